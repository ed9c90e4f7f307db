#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "findings are written as they come to hand")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::value::RawValue;
use tempfile::TempDir;

use super::*;
use crate::store::{EdgeOptions, EdgeStore};
use edgesync_object::{Resource, ResourceVersion, Scope};
use edgesync_protocol::change::{Change, Put};

/// A directory with a configuration whose paths are in it.
pub(super) struct Testbed {
    directory: TempDir,
}

impl Testbed {
    /// Creates one with further sections of the configuration.
    pub(super) fn new(more: &str) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let testbed = Self { directory: tempfile::tempdir().unwrap() };
        fs::set_permissions(testbed.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        testbed.configure(more);
        testbed
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn config_path(&self) -> PathBuf {
        self.path("edgesync.toml")
    }

    pub(super) fn configure(&self, more: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let (store, socket) = (self.path("state/edgesync.db"), self.path("edgesync.sock"));
        let store_section = format!("[store]\npath = {:?}\n", store.display().to_string());
        let more = match more.contains("[store]\n") {
            true => more.replace("[store]\n", &store_section),
            false => format!("{store_section}{more}"),
        };
        let text =
            format!("[node]\nname = \"gw-1\"\n[api]\nsocket = {:?}\n{more}", socket.display().to_string());
        fs::write(self.config_path(), text).unwrap();
        fs::set_permissions(self.config_path(), fs::Permissions::from_mode(0o644)).unwrap();
    }

    /// Returns an `Examined` with a loaded configuration.
    pub(super) fn examined(&self) -> Examined {
        let text = fs::read_to_string(self.config_path()).unwrap();
        let loaded = edgesync_config::parse(&self.config_path(), &text, []).unwrap();
        Examined { config: Some(loaded.config), ..Examined::new(&self.config_path()) }
    }

    pub(super) async fn store(&self) -> EdgeStore {
        EdgeStore::open(&self.path("state/edgesync.db"), EdgeOptions::default()).unwrap()
    }

    /// Returns a store with so many ConfigMaps.
    pub(super) async fn filled_store(&self, count: u64) -> EdgeStore {
        let store = self.store().await;
        store.apply((0..count).map(|number| config_map(number, "1")).collect()).await.unwrap();
        store
    }
}

/// Returns a ConfigMap with `marker-<number>` in its body.
pub(super) fn config_map(number: u64, version: &str) -> Change {
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"m-{number}","namespace":"x"}},"data":{{"a":"marker-{number}."}}}}"#
    );
    Change::Put(Put {
        uid: format!("uid-{number}").into(),
        version: ResourceVersion::from(version),
        supersedes: None,
        resource: Arc::new(Resource {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
            scope: Scope::Namespaced,
        }),
        namespace: "x".into(),
        name: format!("m-{number}").into(),
        body: RawValue::from_string(body).unwrap(),
    })
}

/// Flips a bit at the first occurrence of these bytes and a dot in a file.
pub(super) fn flip_in(path: &Path, bytes: &[u8]) {
    let mut content = fs::read(path).unwrap();
    let mut pattern = bytes.to_vec();
    pattern.push(b'.');
    let at = content.windows(pattern.len()).position(|window| window == pattern).unwrap();
    content[at] ^= 1;
    fs::write(path, content).unwrap();
}

#[track_caller]
pub(super) fn ok(finding: Finding, part: &str) {
    let Finding::Ok(message) = &finding else { panic!("{finding:?}") };
    assert!(message.contains(part), "{message}");
}

#[track_caller]
pub(super) fn warned(finding: Finding, part: &str, step: &str) {
    let Finding::Warning { message, next_step } = &finding else { panic!("{finding:?}") };
    assert!(message.contains(part) && next_step.contains(step), "{finding:?}");
}

#[track_caller]
pub(super) fn failed(finding: Finding, part: &str, step: &str) {
    let Finding::Failed { message, next_step } = &finding else { panic!("{finding:?}") };
    assert!(message.contains(part) && next_step.contains(step), "{finding:?}");
}

#[test]
fn ids_are_unique_and_prerequisites_come_first() {
    let mut earlier: Vec<&str> = Vec::new();
    for check in CHECKS {
        assert!(!earlier.contains(&check.id), "{}", check.id);
        for need in check.needs {
            assert!(earlier.contains(need), "{} needs {need}, which comes later or never", check.id);
        }
        earlier.push(check.id);
    }
}

#[test]
fn all_checks_together_fit_into_a_minute() {
    assert!(TOTAL_TIMEOUT < Duration::from_secs(60));
}

#[tokio::test]
async fn dependants_of_a_failed_check_are_skipped_and_name_it() {
    let testbed = Testbed::new("[link]\nkeepalive = 20\n");
    let report = run(&testbed.config_path()).await;
    assert_eq!(report.0.len(), CHECKS.len());
    let finding = |id| &report.0.iter().find(|(other, ..)| *other == id).unwrap().2;
    assert!(matches!(finding("configuration"), Finding::Failed { .. }));
    for id in ["permissions", "database-integrity", "mqtt", "cloud"] {
        assert_eq!(*finding(id), Finding::skipped("not checked because of: Configuration"), "{id}");
    }
}

#[tokio::test]
async fn a_node_that_has_not_joined_fails_one_check_of_the_link() {
    let testbed = Testbed::new("");
    let report = run(&testbed.config_path()).await;
    let finding = |id| report.0.iter().find(|(other, ..)| *other == id).unwrap().2.clone();
    failed(finding("certificate"), "not joined", "'edgesync join --cloud https://HOST:10002 --token -'");
    for id in ["name-resolution", "tcp", "tls", "mqtt", "acl", "cloud"] {
        assert_eq!(finding(id), Finding::skipped("not checked because of: Certificate"), "{id}");
    }
}

#[tokio::test]
async fn a_hanging_check_ends_at_its_limit_and_the_others_continue() {
    fn hang(_: &mut Examined) -> Answer<'_> {
        Box::pin(std::future::pending())
    }
    let check =
        Check { id: "x", title: "X", needs: &[], limit: DEFAULT_TIMEOUT, examine: CheckFn::Wire(hang) };
    let mut examined = Examined::new(Path::new("/etc/x.toml"));
    let finding = check.within(Duration::from_millis(1), &mut examined).await;
    failed(finding, "no result within 1ms", "hanging");
    assert_eq!(examined.config_path, Path::new("/etc/x.toml"));
}

#[test]
fn sizes_and_durations_use_two_units_at_most() {
    assert_eq!([size(5), size(2048), size(3 << 20), size(3 << 29)], ["5 B", "2 KiB", "3 MiB", "1.5 GiB"]);
    assert_eq!(
        [format_duration(61), format_duration(7260), format_duration(180_000)],
        ["1 min 1 s", "2 h 1 min", "2 d 2 h"]
    );
}

#[test]
fn an_unreadable_identity_must_not_be_replaced() {
    use edgesync_store::durable::FileError;
    let failed = |code| {
        let error = std::io::Error::from_raw_os_error(code);
        Finding::from(Unusable::from(FilesError::Io(FileError::tried("read", "identity/ca.crt".as_ref())(
            error,
        ))))
    };
    let Finding::Failed { message, next_step } = failed(13) else { panic!() };
    assert!(message.contains("Permission denied") && next_step.contains("root"), "{message}: {next_step}");
    assert!(!next_step.contains("--force"), "{next_step}");
    let testbed =
        Testbed::new("[link]\nbroker = \"mqtts://broker.example\"\nca_file = \"/nowhere/ca.crt\"\n");
    let Some(Err(unusable)) = testbed.examined().tls() else { panic!() };
    let Finding::Failed { message, next_step } = Finding::from(unusable) else { panic!() };
    assert!(message.starts_with("link.ca_file: /nowhere/ca.crt: No such file"), "{message}");
    assert_eq!(next_step, "correct it in the configuration");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "-----BEGIN CERTIFICATE-----\nnonsense").unwrap();
    let path = file.path().display();
    let testbed =
        Testbed::new(&format!("[link]\nbroker = \"mqtts://broker.example\"\nca_file = \"{path}\"\n"));
    let Some(Err(unusable)) = testbed.examined().tls() else { panic!() };
    let Finding::Failed { message, next_step } = Finding::from(unusable) else { panic!() };
    assert!(message.starts_with("link.ca_file: ") && message.contains(&path.to_string()), "{message}");
    assert!(next_step.contains("authority") && !next_step.contains("--force"), "{next_step}");
    let Finding::Failed { next_step, .. } = failed(2) else { panic!() };
    assert!(next_step.contains("--force"), "{next_step}");
}
