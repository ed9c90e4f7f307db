//! `edgesync-cloud check`: checks the requirements of the cloud side. The checks are read-only and
//! work while it is stopped.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

use edgesync_admin::cloud::{NodeInfo, NodeList, state};
use edgesync_admin::{Route, read};
use edgesync_api::{Address, Client, ClientError};
use edgesync_cli::check::{Finding, Report, size};
use edgesync_cloud_store::{CloudError, inspect};
use edgesync_config as config;
use edgesync_fleet::config::{Config, StoreType};
use edgesync_runtime::{chain, systemd};
use edgesync_store::StoreError;
use edgesync_store::durable::directory_of;
use edgesync_transport::tls::Certificate;

/// Remaining lifetime of the CA at which a warning is due.
const CA_SOON_SECONDS: i64 = 90 * 86_400;
/// Minimum free space on the database's disk, in bytes.
const MIN_FREE_BYTES: u64 = 256 << 20;

/// Advice for a file that is no database of the cloud side, or not readable.
const OTHER_FILE: &str = "check that store.path names the database of the cloud side, created at the first start, and that \
                              this user may read it: root, or the user of the service";

/// Advice for a database of a newer version.
const NEWER_FILE: &str = "install the newer edgesync-cloud again, or restore a backup from before the upgrade with \
                              'edgesync-cloud restore FILE'";

/// Advice for a database from before the first release.
const UNRELEASED_FILE: &str = "move it away, start edgesync-cloud, apply all manifests again and let the nodes join again with new tokens";

pub(crate) async fn run(config_path: &Path) -> Report {
    let mut report = Report::default();
    let config = match config::load::<Config>(config_path) {
        Ok(loaded) => {
            report.0.push(("configuration", "Configuration", Finding::ok(config_path.display().to_string())));
            loaded.config
        }
        Err(errors) => {
            let next_step = "correct it; 'edgesync-cloud check-config' prints the effective values";
            report.0.push(("configuration", "Configuration", Finding::failed(errors.to_string(), next_step)));
            return report;
        }
    };
    report.0.push(("authority", "CA", authority(&config)));
    report.0.push(("disk-space", "Disk space", disk_space(&config)));
    report.0.push(("database", "Database", database(&config)));
    let client = Client::new(Address::Unix(config.api.socket.clone()));
    let (api, answers) = match client.text("/readyz").await {
        Ok(_) => (Finding::ok(format!("{} is ready", client.address())), true),
        Err(error) => {
            let next_step = match &error {
                ClientError::Connect { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
                    edgesync_cli::check::AS_ROOT
                }
                _ => systemd::advice(
                    "systemctl start edgesync-cloud, or check its log: journalctl -u edgesync-cloud",
                    "start it, 'edgesync-cloud run', or check its log",
                ),
            };
            (Finding::failed(chain(&error), next_step), false)
        }
    };
    report.0.push(("api", "API", api));
    let nodes = if answers { nodes(&client).await } else { Finding::skipped("not checked because of: API") };
    report.0.push(("nodes", "Nodes", nodes));
    report
}

/// Checks the CA of nodes and operators.
fn authority(config: &Config) -> Finding {
    let directory = &config.enrollment.directory;
    let (certificate, key) = (directory.join("ca.crt"), directory.join("ca.key"));
    if config.store.r#type == StoreType::Kubernetes {
        return Finding::skipped("stored in a Secret of the cluster");
    }
    let text = match fs::read_to_string(&certificate) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Finding::warning(
                format!("no CA in {}", directory.display()),
                "the first start creates one; to use your own or a backup, copy it there before",
            );
        }
        Err(error) => {
            let message = format!("{}: {error}", certificate.display());
            return Finding::failed(message, edgesync_cli::check::AS_ROOT);
        }
    };
    let parsed = Certificate::all_from_pem(&certificate.display().to_string(), &text);
    let Some(ends) = parsed.ok().and_then(|all| all.first().map(Certificate::not_after)) else {
        let message = format!("no certificate in {}", certificate.display());
        return Finding::failed(message, "restore a backup of enrollment.directory");
    };
    match fs::metadata(&key) {
        Ok(found) if found.mode() & 0o077 != 0 => {
            let message = format!("{} is readable by other users", key.display());
            return Finding::failed(message, format!("chmod 0600 {}", key.display()));
        }
        Ok(_) => {}
        Err(error) => {
            let message = format!("{}: {error}", key.display());
            let denied = error.kind() == ErrorKind::PermissionDenied;
            return Finding::failed(
                message,
                if denied {
                    edgesync_cli::check::AS_ROOT
                } else {
                    "restore a backup of enrollment.directory"
                },
            );
        }
    }
    let left = ends.as_second() - Timestamp::now().as_second();
    let message = format!("{}, valid until {ends}", certificate.display());
    if left < CA_SOON_SECONDS {
        return Finding::warning(message, "plan its replacement: all nodes must join again");
    }
    Finding::ok(message)
}

fn disk_space(config: &Config) -> Finding {
    let directory = edgesync_cli::bundle::existing(directory_of(&config.store.path));
    match rustix::fs::statvfs(directory) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let message = format!("{} free in {}", size(free), directory.display());
            if free < MIN_FREE_BYTES {
                Finding::warning(message, "free space on this disk")
            } else {
                Finding::ok(message)
            }
        }
        Err(error) => Finding::failed(format!("{}: {error}", directory.display()), "check the disk"),
    }
}

fn database(config: &Config) -> Finding {
    if config.store.r#type == StoreType::Kubernetes {
        return Finding::skipped("a Kubernetes cluster is the store");
    }
    let path = &config.store.path;
    if !path.exists() {
        return Finding::warning(format!("{} does not exist", path.display()), "the first start creates it");
    }
    match inspect::inspect(path) {
        Ok(report) => Finding::ok(format!("{}: {} objects, check passed", path.display(), report.objects)),
        Err(error) => Finding::failed(
            format!("{}: {}", path.display(), chain(&error)),
            other_file(&error).unwrap_or("restore a backup with 'edgesync-cloud restore FILE'"),
        ),
    }
}

/// Returns advice for a file that is undamaged, but no database of the cloud side or not readable.
#[must_use]
pub(crate) fn other_file(error: &CloudError) -> Option<&'static str> {
    let CloudError::Store(error) = error else { return None };
    match error {
        StoreError::Unreleased { .. } => Some(UNRELEASED_FILE),
        StoreError::Newer { .. } => Some(NEWER_FILE),
        StoreError::Unavailable(_) | StoreError::Foreign { .. } => Some(OTHER_FILE),
        _ => None,
    }
}

/// Checks for nodes that need an operator.
async fn nodes(client: &Client) -> Finding {
    let answer: Value = match client.get(&Route::Nodes.path()).await {
        Ok(answer) => answer,
        Err(error) => {
            return Finding::failed(chain(&error), "check the log: journalctl -u edgesync-cloud");
        }
    };
    let nodes = match read::<NodeList>(&answer) {
        Ok(list) => list.items,
        Err(error) => return Finding::warning(error.to_string(), "restart edgesync-cloud"),
    };
    let with = |count: fn(&NodeInfo) -> Option<u64>| {
        nodes.iter().filter(|node| count(node).is_some_and(|count| count > 0)).count()
    };
    let offline = nodes.iter().filter(|node| node.state() == state::OFFLINE).count();
    let (held, rejecting) = (with(NodeInfo::held_back), with(NodeInfo::rejected));
    let message = format!(
        "{}, {offline} offline, {rejecting} rejecting objects, {held} holding removals back",
        nodes.len()
    );
    if held + rejecting > 0 {
        return Finding::warning(
            message,
            "edgesync-cloud nodes, and 'edgesync-cloud nodes NODE' for details",
        );
    }
    Finding::ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'r>(report: &'r Report, id: &str) -> &'r Finding {
        &report.0.iter().find(|(found, ..)| *found == id).unwrap().2
    }

    #[tokio::test]
    async fn checks_report_problems_and_create_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cloud.toml");
        fs::write(
            &path,
            "[store]\npath = \"cloud.db\"\n[enrollment]\ndirectory = \"pki\"\n[api]\nsocket = \"c.sock\"\n",
        )
        .unwrap();
        let report = run(&path).await;
        assert!(matches!(found(&report, "configuration"), Finding::Ok(_)), "{report:?}");
        assert!(matches!(found(&report, "authority"), Finding::Warning { .. }), "{report:?}");
        assert!(matches!(found(&report, "database"), Finding::Warning { .. }), "{report:?}");
        assert!(matches!(found(&report, "api"), Finding::Failed { .. }) && !report.is_good(), "{report:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        fs::write(dir.path().join("cloud.db"), "no database").unwrap();
        fs::write(&path, fs::read_to_string(&path).unwrap() + "[nonsense]\n").unwrap();
        let report = run(&path).await;
        assert!(matches!(found(&report, "configuration"), Finding::Failed { .. }), "{report:?}");
        assert_eq!(report.0.len(), 1);
    }
}
