//! Checks the systemd units of the packages.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;

use edgesync_testkit::programs::root;

/// Returns all values of a setting in the section `[Service]` of a unit.
fn values<'u>(unit: &'u str, setting: &str) -> Vec<&'u str> {
    let (_, service) = unit.split_once("\n[Service]\n").unwrap();
    let service = service.split_once("\n[").map_or(service, |(service, _)| service);
    let values = service.lines().filter_map(|line| line.split_once('='));
    values.filter(|(name, _)| *name == setting).map(|(_, value)| value).collect()
}

/// The rating of systemd-analyze has room for the loss of one of them.
#[test]
fn services_restrict_setuid_files_processes_and_mounts() {
    for name in ["edgesync-files", "edgesync", "edgesync-cloud"] {
        let unit = fs::read_to_string(root().join(format!("packaging/{name}.service"))).unwrap();
        for (setting, value) in [
            ("RestrictSUIDSGID", "yes"),
            ("ProtectProc", "invisible"),
            ("PrivateMounts", "yes"),
            ("NoNewPrivileges", "yes"),
        ] {
            assert_eq!(values(&unit, setting), [value], "{setting} of {name}");
        }
    }
}
