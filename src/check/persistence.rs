//! Checks that the files of the join outlive a reboot, and that they can be renewed.

use std::path::Path;

use super::disk_type::{FileSystem, Kind};
use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding, disk_space};
use edgesync_store::durable::directory_of;

pub(super) const CHECK: Check = Check {
    id: "persistence",
    title: "Persistence",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

/// Next step for a file on the wrong file system.
const MOVE: &str = "move it to a disk that lasts; docs/devices.md has ways";

/// Use of a file after the join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Read,
    /// Renewed by the agent.
    Written,
}

fn examine(examined: &mut Examined) -> Finding {
    let config = examined.config();
    let key_directory = disk_space::existing(directory_of(&config.seal.key_file));
    let files = [
        ("configuration", Some(examined.config_path.as_path()), Use::Read),
        ("identity", config.identity.directory.as_deref(), Use::Written),
        ("sealing key", Some(key_directory), Use::Written),
    ];
    let problems = files.into_iter().filter_map(|(what, path, used)| {
        let path = path?;
        problem(what, path, used, &FileSystem::of(path)?)
    });
    let problems: Vec<String> = problems.collect();
    if problems.is_empty() {
        return Finding::ok("configuration, identity and sealing key outlive a reboot");
    }
    Finding::warning(problems.join("; "), MOVE)
}

/// Returns the problem of a file with its file system. The check of the disk type covers
/// containers, by the database.
fn problem(what: &str, path: &Path, used: Use, found: &FileSystem) -> Option<String> {
    let (path, name) = (path.display(), &found.name);
    match (found.kind, used) {
        (Kind::Memory, _) => Some(format!("{what} in {path} is on {name}: each reboot loses it")),
        (Kind::ReadOnly, Use::Written) => {
            Some(format!("{what} in {path} is on {name}, mounted read-only: it cannot be renewed"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, ok, warned};

    fn on(name: &str, kind: Kind, used: Use) -> Option<String> {
        problem("identity", Path::new("/d"), used, &FileSystem { name: name.to_owned(), kind })
    }

    #[test]
    fn files_lost_by_a_reboot_or_fixed_are_problems() {
        for used in [Use::Read, Use::Written] {
            let lost = on("overlayfs over tmpfs", Kind::Memory, used).unwrap();
            assert_eq!(lost, "identity in /d is on overlayfs over tmpfs: each reboot loses it");
            assert_eq!(on("ext4", Kind::Disk, used), None);
            assert_eq!(on("overlayfs", Kind::Layered, used), None);
        }
        assert_eq!(on("squashfs", Kind::ReadOnly, Use::Read), None);
        let fixed = on("squashfs", Kind::ReadOnly, Use::Written).unwrap();
        assert!(fixed.ends_with("mounted read-only: it cannot be renewed"), "{fixed}");
    }

    #[test]
    fn a_real_configuration_in_memory_is_found() {
        let testbed = Testbed::new("");
        let mut examined = testbed.examined();
        let memory = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        examined.config_path = memory.path().to_owned();
        warned(examine(&mut examined), "configuration in /dev/shm/", "docs/devices.md");
        examined.config_path = "/proc/self/status".into();
        let finding = examine(&mut examined);
        if matches!(finding, Finding::Ok(_)) {
            ok(finding, "outlive a reboot");
        } else {
            // This machine has its directory for temporary files in memory.
            warned(finding, "sealing key in ", "docs/devices.md");
        }
    }
}
