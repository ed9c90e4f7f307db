//! `edgesync-cloud backup`, `restore`, `verify` and `support-bundle`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use jiff::Timestamp;

use crate::bundle;
use crate::check as cloud_side;
use edgesync_cli::check;
use edgesync_cli::maintenance::{KeyValueSheet, Owner, missing_database, refused, write_bundle};
use edgesync_cli::output::size;
use edgesync_cli::progress::Progress;
use edgesync_cli::{EXIT_FAILED, Peer};
use edgesync_cloud_store::CheckReport;
use edgesync_cloud_store::CloudError;
use edgesync_cloud_store::inspect;
use edgesync_config as config;
use edgesync_fleet::config::{Config, StoreType};
use edgesync_runtime::{chain, systemd};
use edgesync_store::StoreError;

/// The path of the database; `None` where a cluster is the store.
fn database(config: &Path) -> anyhow::Result<Option<PathBuf>> {
    let config = config::load::<Config>(config)?.config;
    Ok((config.store.r#type == StoreType::Sqlite).then_some(config.store.path))
}

const NO_DATABASE: &str = "no database: store.type is \"kubernetes\"; hint: back up the cluster instead";

/// Copies the database to a new file; the cloud side may be running.
pub(super) fn backup(config: &Path, file: &Path) -> anyhow::Result<u8> {
    let Some(path) = database(config)? else { return refused(NO_DATABASE) };
    if fs::symlink_metadata(file).is_ok() {
        return refused(&format!("{} exists; hint: name a new file", file.display()));
    }
    if let Some(missing) = missing_database(&path, Peer::CLOUD.start_command()) {
        return refused(&missing);
    }
    let copied = match Progress::during("copying the database", |_| inspect::backup(&path, file)) {
        Ok(copied) => copied,
        Err(error) => return refused(&format!("copy {}: {}", path.display(), chain(&error))),
    };
    let mut out = io::stdout();
    let mut sheet = KeyValueSheet(&mut out);
    let bytes = fs::metadata(file).map_or(0, |metadata| metadata.len());
    sheet.line("copy", format!("{}, {}", file.display(), size(bytes)))?;
    sound(&mut sheet, copied)?;
    sheet.line("CA", "not in the copy; hint: back up enrollment.directory too, once")?;
    Ok(0)
}

/// Replaces the database by a copy.
pub(super) fn restore(config: &Path, file: &Path) -> anyhow::Result<u8> {
    let Some(path) = database(config)? else { return refused(NO_DATABASE) };
    // Without a database, the owner of the directory is the user of the cloud side.
    let owner = Owner::of(&path).or_else(|_| Owner::of(edgesync_store::durable::directory_of(&path)));
    let owner = owner.with_context(|| format!("stat {}", path.display()))?;
    let restored = Progress::during("restoring the database", |_| inspect::restore(file, &path));
    let (report, aside) = match restored {
        Ok(restored) => restored,
        Err(CloudError::Store(StoreError::InUse { .. })) => {
            let stop = systemd::advice("'systemctl stop edgesync-cloud'", "stop the cloud side");
            return refused(&format!("the cloud side is running; hint: {stop}"));
        }
        Err(error) => return refused(&format!("restore {}: {}", file.display(), chain(&error))),
    };
    owner.give(&path)?;
    let mut out = io::stdout();
    let mut sheet = KeyValueSheet(&mut out);
    sheet.line("database", path.display())?;
    if let Some(aside) = aside {
        sheet.line("set aside", format!("{}: the previous database", aside.display()))?;
    }
    sound(&mut sheet, report)?;
    sheet.line("next", "start the cloud side; it corrects nodes that are newer than this copy")?;
    Ok(0)
}

/// Verifies the whole database; the cloud side may be running.
pub(super) fn verify(config: &Path) -> anyhow::Result<u8> {
    let Some(path) = database(config)? else { return refused(NO_DATABASE) };
    if let Some(missing) = missing_database(&path, Peer::CLOUD.start_command()) {
        return refused(&missing);
    }
    let mut out = io::stdout();
    let mut sheet = KeyValueSheet(&mut out);
    sheet.line("database", path.display())?;
    match Progress::during("verifying the database", |_| inspect::inspect(&path)) {
        Ok(report) => {
            sound(&mut sheet, report)?;
            Ok(0)
        }
        Err(error) => {
            let restore = "restore a backup with the cloud side stopped: 'edgesync-cloud restore FILE'";
            let (problem, next) =
                cloud_side::other_file(&error).map_or(("damage", restore), |next| ("problem", next));
            sheet.line(problem, chain(&error))?;
            sheet.line("result", next)?;
            Ok(EXIT_FAILED)
        }
    }
}

/// Writes the support bundle to a file.
pub(super) fn support_bundle(config: &Path, file: Option<&Path>) -> anyhow::Result<u8> {
    let collected = async {
        let report = cloud_side::run(config).await;
        bundle::collect(config, &report).await
    };
    let bundle = Progress::during("collecting", |_| check::wait(collected))?;
    let name = || Timestamp::now().strftime("edgesync-cloud-support-%Y%m%dT%H%M%SZ.tar.zst").to_string();
    write_bundle(&bundle, &file.map_or_else(|| name().into(), Path::to_owned))
}

fn sound(sheet: &mut KeyValueSheet<'_>, report: CheckReport) -> anyhow::Result<()> {
    sheet.line("rows", format!("{} objects, {} changes in the history", report.objects, report.changes))?;
    sheet.line("result", "check passed: rows, indexes and structure match")
}
