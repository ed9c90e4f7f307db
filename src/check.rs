//! `edgesync check`: one check per file, each with a result and the next step. Checks change
//! nothing, and do not require a running agent.
//!
//! They cover configuration, files, clock, database, TLS, link and the local API. [`Examined`]
//! passes the results of a check to later ones. A check is skipped if its prerequisite has failed,
//! and names it.

mod acl;
pub mod bundle;
mod certificate;
mod clock;
mod cloud;
mod configuration;
mod database_integrity;
mod database_version;
mod disk_space;
mod disk_type;
mod file_rules;
mod files;
mod local_api;
mod mounts;
mod mqtt;
mod name_resolution;
mod permissions;
mod persistence;
mod seal_key;
mod systemd_unit;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::store::inspect;
use edgesync_admin::agent::AgentStatus;
use edgesync_config::edge::Config;
use edgesync_join::files::{FilesError, RealDisk, Stored, load};
use edgesync_transport::dial::{Dialer, LastGood};
use edgesync_transport::tls::{Clock, Trust};

use edgesync_cli::check::{AS_ROOT, size};
pub use edgesync_cli::check::{Finding, Report, render};
use edgesync_object::time::rounded;
use edgesync_runtime::{chain, connection};

/// Time limit of all checks together.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(55);
/// Default time limit of a check.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(6);

/// Next step before the node has joined.
const JOIN: &str = "join a cloud: 'edgesync join --cloud https://HOST:10002 --token -'";
/// Next step for an unusable identity.
const JOIN_AGAIN: &str =
    "join again with a new token: 'edgesync join --force --cloud https://HOST:10002 --token -'";

/// Problem of an identity or a trusted authority, and the next step.
struct Unusable {
    problem: String,
    next_step: &'static str,
}

impl Unusable {
    /// An identity that must be replaced.
    fn identity(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), next_step: JOIN_AGAIN }
    }

    /// Replaces the next step if this user lacks permission: then the file itself may be fine.
    fn of_io(self, cause: &std::io::Error) -> Self {
        let next_step = if cause.kind() == ErrorKind::PermissionDenied { AS_ROOT } else { self.next_step };
        Self { next_step, ..self }
    }
}

impl From<FilesError> for Unusable {
    fn from(error: FilesError) -> Self {
        let unusable = Self::identity(chain(&error));
        match &error {
            FilesError::Io(error) => unusable.of_io(&error.cause),
            _ => unusable,
        }
    }
}

impl From<Unusable> for Finding {
    fn from(unusable: Unusable) -> Self {
        Self::failed(unusable.problem, unusable.next_step)
    }
}

/// Subject of the checks, and the results of earlier ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Examined {
    /// Path of the configuration file under check.
    pub config_path: PathBuf,
    /// The configuration; `None` until it was read.
    pub config: Option<Config>,
    /// Whether no cloud is configured yet, so that there is nothing to connect to.
    pub not_joined: bool,
    /// Status of the running agent.
    pub status: Option<AgentStatus>,
    /// Whether a process has opened the database, or answers at the socket.
    pub agent_runs: bool,
    /// Number of bodies sealed with each key.
    pub sealed: Option<BTreeMap<u32, u64>>,
}

impl Examined {
    fn new(config_path: &Path) -> Self {
        Self { config_path: config_path.to_owned(), ..Self::default() }
    }

    /// Returns the configuration, or the default one for checks that do not require it.
    fn config(&self) -> Config {
        self.config.clone().unwrap_or_default()
    }

    /// Returns whether an agent runs by now: one that was just starting at the earlier check has
    /// opened the database since.
    fn agent_runs_now(&self) -> bool {
        self.agent_runs || inspect::is_in_use(&self.config().store.path).unwrap_or(false)
    }

    /// Returns the identity on disk; `None` if the node has not joined.
    fn identity(&self) -> Option<Result<Stored, Unusable>> {
        let directory = self.config.as_ref()?.identity.directory.clone()?;
        Some(load(&RealDisk, &directory).map_err(Unusable::from))
    }

    /// Returns the clock, with all known lower bounds of the current time.
    fn clock(&self) -> Clock {
        let written = std::fs::metadata(&self.config().store.path).and_then(|metadata| metadata.modified());
        let written = written.ok().and_then(|time| jiff::Timestamp::try_from(time).ok());
        let identity = self.identity().and_then(Result::ok);
        let made = identity.iter().flat_map(|stored| {
            stored
                .ca
                .iter()
                .chain([stored.identity.certificate()])
                .map(edgesync_transport::tls::Certificate::not_before)
        });
        Clock::system(made.chain(written).collect::<Vec<_>>())
    }

    /// Returns the dialer of the link, or the finding about what keeps it from being used.
    fn dialer(&self) -> Result<Dialer, Finding> {
        connection::dialer(&self.config().link, LastGood::default())
            .map_err(|error| Finding::failed(format!("{error:#}"), "correct section [link]"))
    }

    /// Returns a client with the node's certificate and the agent's trust anchors; `None` without
    /// TLS.
    fn tls(&self) -> Option<Result<edgesync_transport::tls::Client, Unusable>> {
        let config = self.config();
        if !config.peers().iter().any(|peer| peer.tls) {
            return None;
        }
        Some(self.tls_client(&config))
    }

    fn tls_client(&self, config: &Config) -> Result<edgesync_transport::tls::Client, Unusable> {
        let stored = self.identity().transpose()?;
        let trust = match (&config.link.ca_file, &stored) {
            (Some(path), _) => {
                let what = path.display().to_string();
                let text = std::fs::read_to_string(path).map_err(|error| {
                    let problem = format!("link.ca_file: {what}: {error}");
                    Unusable { problem, next_step: "correct it in the configuration" }.of_io(&error)
                })?;
                // A new join writes the same file to the configuration.
                edgesync_transport::tls::Certificate::all_from_pem(&what, &text).map_err(|error| {
                    Unusable {
                        problem: format!("link.ca_file: {error}"),
                        next_step: "put the certificate of the broker's authority there, in PEM",
                    }
                })?
            }
            (None, Some(stored)) => stored.ca.clone(),
            (None, None) => return Err(Unusable::identity("no certificate authority configured")),
        };
        let identity = stored.as_ref().map(|stored| &stored.identity);
        edgesync_transport::tls::Client::new(&Trust::new(trust), identity, self.clock())
            .map_err(|error| Unusable::identity(error.to_string()))
    }
}

/// Combines the findings about the addresses of the cloud. The link needs one that works.
fn combine(findings: Vec<Finding>) -> Finding {
    let (mut good, mut bad, mut next_step, mut skipped) = (Vec::new(), Vec::new(), None, None);
    let mut is_reachable = false;
    for finding in findings {
        match finding {
            Finding::Ok(message) => {
                is_reachable = true;
                good.push(message);
            }
            Finding::Warning { message, next_step: step } => {
                is_reachable = true;
                bad.push(message);
                next_step.get_or_insert(step);
            }
            Finding::Failed { message, next_step: step } => {
                bad.push(message);
                next_step.get_or_insert(step);
            }
            Finding::Skipped(why) => skipped = Some(why),
        }
    }
    match (next_step, is_reachable) {
        (None, true) => Finding::ok(good.join("; ")),
        (None, false) => Finding::skipped(skipped.unwrap_or_default()),
        (Some(next_step), true) => Finding::warning([bad, good].concat().join("; "), next_step),
        (Some(next_step), false) => Finding::failed(bad.join("; "), next_step),
    }
}

/// Examines all addresses of the cloud at the same time, by their positions, and combines the
/// findings.
async fn examine_peers<F>(config: &Config, examine: impl Fn(Config, usize) -> F) -> Finding
where
    F: Future<Output = Finding> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for position in 0..config.peers().len() {
        let finding = examine(config.clone(), position);
        tasks.spawn(async move { (position, finding.await) });
    }
    let mut findings = BTreeMap::new();
    while let Some(ended) = tasks.join_next().await {
        if let Ok((position, finding)) = ended {
            findings.insert(position, finding);
        }
    }
    combine(findings.into_values().collect())
}

/// Splits a message into problem and remedy.
fn split_hint(message: &str) -> (String, Option<String>) {
    match message.split_once("; hint: ") {
        Some((problem, hint)) => (problem.to_owned(), Some(hint.to_owned())),
        None => (message.to_owned(), None),
    }
}

/// The pending result of a check.
type Answer<'e> = Pin<Box<dyn Future<Output = Finding> + Send + 'e>>;

/// Kind of a check.
#[derive(Clone, Copy)]
enum CheckFn {
    /// Reads files, on a separate thread, because a disk can hang.
    Files(fn(&mut Examined) -> Finding),
    /// Uses a connection; runs on the runtime.
    Wire(fn(&mut Examined) -> Answer<'_>),
}

#[derive(Clone, Copy)]
pub struct Check {
    /// Its id: `clock`, `database-integrity`.
    pub id: &'static str,
    /// Its title, for people.
    pub title: &'static str,
    /// Ids of the required checks.
    needs: &'static [&'static str],
    limit: Duration,
    examine: CheckFn,
}

/// All checks in their order.
pub(crate) const CHECKS: [Check; 20] = [
    configuration::CHECK,
    permissions::CHECK,
    clock::CHECK,
    disk_space::CHECK,
    disk_type::CHECK,
    persistence::CHECK,
    local_api::CHECK,
    file_rules::CHECK,
    files::CHECK,
    database_version::CHECK,
    database_integrity::CHECK,
    seal_key::CHECK,
    systemd_unit::CHECK,
    certificate::CHECK,
    name_resolution::CHECK,
    tcp::CHECK,
    tls::CHECK,
    mqtt::CHECK,
    acl::CHECK,
    cloud::CHECK,
];

/// Runs all checks, within a minute. Requires a runtime that does not wait for blocked threads.
pub async fn run(config_path: &Path) -> Report {
    let start = Instant::now();
    let mut examined = Examined::new(config_path);
    let mut report = Report::default();
    // Maps each failed or skipped check to the check that blocks its dependants.
    let mut blocked: BTreeMap<&str, &str> = BTreeMap::new();
    for check in CHECKS {
        let mut needs = check.needs.iter().chain([&check.id]);
        let by = needs.find_map(|need| blocked.get(need).copied());
        let finding = match by {
            Some(by) => Finding::skipped(format!("not checked because of: {by}")),
            None => {
                let limit = check.limit.min(TOTAL_TIMEOUT.saturating_sub(start.elapsed()));
                check.within(limit, &mut examined).await
            }
        };
        let failed = matches!(finding, Finding::Failed { .. }).then_some(check.title);
        if let Some(by) = by.or(failed) {
            blocked.insert(check.id, by);
        }
        if check.id == certificate::CHECK.id && examined.not_joined {
            blocked.insert(name_resolution::CHECK.id, check.title);
        }
        report.0.push((check.id, check.title, finding));
    }
    report
}

impl Check {
    async fn within(&self, limit: Duration, examined: &mut Examined) -> Finding {
        let (mut own, broken) = (examined.clone(), examined.clone());
        let work = async {
            match self.examine {
                CheckFn::Wire(examine) => {
                    let finding = examine(&mut own).await;
                    (own, finding)
                }
                CheckFn::Files(examine) => {
                    let work = tokio::task::spawn_blocking(move || {
                        let finding = examine(&mut own);
                        (own, finding)
                    });
                    work.await.unwrap_or_else(|error| {
                        let message = format!("the check ended early: {error}");
                        (broken, Finding::failed(message, "report this as a bug"))
                    })
                }
            }
        };
        match tokio::time::timeout(limit, work).await {
            Ok((learned, finding)) => {
                *examined = learned;
                finding
            }
            Err(_) => Finding::failed(
                format!("no result within {}", rounded(limit)),
                "check for a hanging disk or network, and run the check again",
            ),
        }
    }
}

/// Formats a duration in its two largest units.
fn format_duration(seconds: i64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds % 86_400 / 3600, seconds % 3600 / 60);
    match (days, hours) {
        (0, 0) => format!("{minutes} min {} s", seconds % 60),
        (0, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
