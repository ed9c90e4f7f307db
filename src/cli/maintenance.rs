//! The commands `edgesync backup`, `verify`, `repair` and `support-bundle`.

use std::fs;
use std::io::{self};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::check;
use crate::agent;
use crate::check as doctor;
use crate::check::bundle;
use crate::store::inspect::{self, Inspection, Schema};
use crate::store::{EdgeOptions, EdgeStore, Reset};
use edgesync_admin::agent::{Verification, VerifiedStore};
use edgesync_admin::{Route, read};
use edgesync_api::Client;
use edgesync_cli::maintenance::{KeyValueSheet, Owner, missing_database, refused, write_bundle};
use edgesync_cli::output::size;
use edgesync_cli::progress::Progress;
use edgesync_cli::{CliError, EXIT_FAILED, Peer, program};
use edgesync_config as config;
use edgesync_config::edge::Config;
use edgesync_runtime::{chain, systemd};
use edgesync_store::StoreError;

/// Copies the database, with or without a running agent.
pub(super) fn backup(config: &Path, file: &Path) -> anyhow::Result<u8> {
    let config = load(config)?;
    if fs::symlink_metadata(file).is_ok() {
        return refused(&format!("{} exists; hint: name a new file", file.display()));
    }
    let path = &config.store.path;
    if let Some(missing) = missing_database(path, Peer::AGENT.start_command()) {
        return refused(&missing);
    }
    let copied = match Progress::during("copying the database", |_| inspect::backup(path, file)) {
        Ok(copied) => copied,
        Err(error) => return refused(&format!("copy {}: {}", path.display(), chain(&error))),
    };
    let bytes = fs::metadata(file).map_or(0, |metadata| metadata.len());
    let mut out = io::stdout();
    let mut sheet = KeyValueSheet(&mut out);
    sheet.line("copy", format!("{}, {}", file.display(), size(bytes)))?;
    contents(&mut sheet, &copied)?;
    let sealed: u64 = copied.sealed.values().sum();
    if sealed > 0 {
        let key = config.seal.key_file.display();
        sheet.line("sealed", format!("{sealed} objects; their key {key} is not in the copy"))?;
    } else {
        sheet.line("sealed", "none")?;
    }
    verdict(&mut sheet, &copied)
}

/// Checks the database; with a client also against the cloud.
pub(super) fn verify(config: &Path, agent: Option<Client>) -> anyhow::Result<u8> {
    let path = load(config)?.store.path;
    // With --online, the agent answers for its database.
    if agent.is_none()
        && let Some(missing) = missing_database(&path, Peer::AGENT.start_command())
    {
        return refused(&missing);
    }
    let mut out = io::stdout();
    let mut sheet = KeyValueSheet(&mut out);
    sheet.line("database", path.display())?;
    let inspected = Progress::during("verifying the database", |progress| {
        let mut rows = 0;
        inspect::inspect(&path, || {
            rows += inspect::BATCH;
            progress.count(rows, None, "rows");
            true
        })
    });
    let offline = match inspected {
        Ok(Some(found)) => {
            contents(&mut sheet, &found)?;
            verdict(&mut sheet, &found)?
        }
        Ok(None) => EXIT_FAILED,
        Err(error) => {
            sheet.line("rows", chain(&error))?;
            EXIT_FAILED
        }
    };
    let Some(agent) = agent else { return Ok(offline) };
    let verified = Progress::during("comparing with the cloud", |_| {
        program::wait(agent.post::<Value>(&Route::Verify.path(), &json!({})))
    });
    let answer = verified?.map_err(CliError::Client)?;
    // Damage is repaired by now, so only the agreement of both sides counts.
    online(&mut sheet, &read(&answer).map_err(CliError::Answer)?)
}

/// Replaces a damaged database by its readable rows.
pub(super) fn repair(config: &Path) -> anyhow::Result<u8> {
    let config = load(config)?;
    let path = &config.store.path;
    if let Some(missing) = missing_database(path, Peer::AGENT.start_command()) {
        return refused(&missing);
    }
    // The agent would set it aside, which is no repair.
    if let Ok(Schema { found, known }) = inspect::schema(path)
        && found > known
    {
        let newer = StoreError::Newer { path: path.clone(), found, known };
        return refused(&format!(
            "{newer}; it is not damaged; hint: start the agent, which sets it aside, or install the newer version again"
        ));
    }
    let owner = Owner::of(path).with_context(|| format!("stat {}", path.display()))?;
    let result = Progress::during("repairing the database", |_| program::wait(repair_database(&config)))?;
    owner.give(path)?;
    let repaired = match result {
        Ok(repaired) => repaired,
        Err(StoreError::InUse { .. }) => {
            let stop = systemd::advice("'systemctl stop edgesync'", "stop the agent");
            return refused(&format!(
                "the agent is running; hint: {stop}, or repair through the agent: 'edgesync verify --online'"
            ));
        }
        Err(error) => return refused(&format!("repair {}: {}", path.display(), chain(&error))),
    };
    let mut out = io::stdout();
    let mut sheet = KeyValueSheet(&mut out);
    sheet.line("database", path.display())?;
    repaired.show(&mut sheet)
}

/// Collects an archive for a problem report.
pub(super) fn support_bundle(config: &Path, file: Option<&Path>, agent: &Client) -> anyhow::Result<u8> {
    let collected = async {
        let report = doctor::run(config).await;
        bundle::collect(config, &report, agent).await
    };
    let bundle = Progress::during("collecting", |_| check::wait(collected))?;
    let file = file.map_or_else(|| default_name(config), Path::to_owned);
    write_bundle(&bundle, &file)
}

fn load(path: &Path) -> anyhow::Result<Config> {
    Ok(config::load::<Config>(path)?.config)
}

fn default_name(config: &Path) -> PathBuf {
    let node = load(config).map_or_else(|_| "unknown".to_owned(), |config| config.node.name);
    format!("edgesync-support-{node}-{}.tar.zst", Timestamp::now().strftime("%Y%m%dT%H%M%SZ")).into()
}

fn contents(sheet: &mut KeyValueSheet<'_>, found: &Inspection) -> anyhow::Result<()> {
    let totals = &found.totals;
    sheet.line("objects", format!("{} read, {} recorded", found.rows, totals.count))?;
    sheet.line("revision", format!("{}, confirmed by the cloud: {}", totals.revision, found.confirmed))?;
    sheet.line("epoch", totals.epoch)?;
    sheet.line("digest", totals.digest)
}

fn verdict(sheet: &mut KeyValueSheet<'_>, found: &Inspection) -> anyhow::Result<u8> {
    let problems = found.problems();
    for problem in &problems {
        sheet.line("damage", problem)?;
    }
    if problems.is_empty() {
        sheet.line("result", "check passed: checksums, count, digest and indexes match")?;
        return Ok(0);
    }
    sheet.line(
        "result",
        "damaged; hint: 'edgesync repair' with the agent stopped, or 'edgesync verify --online'",
    )?;
    Ok(EXIT_FAILED)
}

/// Prints the results of agent and cloud.
fn online(sheet: &mut KeyValueSheet<'_>, answer: &Verification) -> anyhow::Result<u8> {
    match &answer.store {
        VerifiedStore::Damaged { problem } => {
            sheet.line("agent", format!("{problem}; readable rows are salvaged into a new database"))?;
        }
        VerifiedStore::Checked(rows) => match rows.removed + rows.local_removed + rows.outbox_removed {
            0 => sheet.line("agent", format!("{} rows checked, none damaged", rows.rows))?,
            removed => {
                let checked = rows.rows;
                sheet.line("agent", format!("{checked} rows checked, {removed} damaged rows removed"))?;
            }
        },
    }
    let cloud = &answer.cloud;
    if !cloud.in_sync {
        sheet.line("cloud", cloud.problem.as_deref().unwrap_or("unreadable response"))?;
        return Ok(EXIT_FAILED);
    }
    sheet.line(
        "cloud",
        match (cloud.differed, cloud.applied) {
            (false, 0) => "records are equal".to_owned(),
            (true, 0) => "records differed, corrected".to_owned(),
            (false, applied) => format!("records are equal, {applied} changes received during the check"),
            (true, applied) => {
                format!("records differed, corrected; {applied} changes sent again")
            }
        },
    )?;
    Ok(0)
}

/// Result of a repair.
struct Repaired {
    resets: Vec<Reset>,
    objects: u64,
    rows_removed: u64,
    others_removed: u64,
}

/// Opens the database, which salvages an unreadable one, and checks all rows, which repairs the
/// others.
async fn repair_database(config: &Config) -> Result<Repaired, StoreError> {
    // Sealed objects stay as they are: only the unit has the credential that may wrap their keys,
    // and without it they would count as lost.
    let options = EdgeOptions { seal: None, ..agent::store_options(config) };
    let store = EdgeStore::open(&config.store.path, options)?;
    let health = store.health();
    let mut resets: Vec<Reset> = Vec::new();
    let mut repaired = Repaired { resets: Vec::new(), objects: 0, rows_removed: 0, others_removed: 0 };
    let mut last = Ok(());
    // Structural damage fails the first check and replaces the file; the second check covers the
    // new one.
    for _ in 0..3 {
        last = match store.check().await {
            Ok(report) => {
                repaired.rows_removed += report.removed;
                repaired.others_removed += report.local_removed + report.outbox_removed;
                Ok(())
            }
            Err(error) => Err(error),
        };
        let reset = health.borrow().reset.clone();
        resets.extend(reset.filter(|reset| resets.last() != Some(reset)));
        if last.is_ok() {
            break;
        }
    }
    repaired.objects = store.facts().totals.count;
    store.close().await;
    repaired.resets = resets;
    last.map(|()| repaired)
}

impl Repaired {
    fn show(&self, sheet: &mut KeyValueSheet<'_>) -> anyhow::Result<u8> {
        for reset in &self.resets {
            sheet.line("damage", &reset.cause)?;
            sheet.line("kept", format!("{} objects", reset.kept))?;
            sheet.line("lost", format!("{} known objects; the cloud sends them again", reset.lost))?;
            if let Some(aside) = &reset.set_aside {
                sheet.line("set aside", aside.display())?;
            }
        }
        if self.others_removed > 0 {
            sheet
                .line("removed", format!("{} damaged Leases, Events or outbox items", self.others_removed))?;
        }
        let repaired = !self.resets.is_empty() || self.rows_removed + self.others_removed > 0;
        let result = if repaired { "repaired" } else { "no damage found" };
        sheet.line("result", format!("{result}; {} objects held", self.objects))?;
        Ok(0)
    }
}
