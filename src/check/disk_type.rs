//! Checks that the database is on a durable file system.

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding, disk_space};
use edgesync_store::durable::directory_of;

pub(super) const CHECK: Check = Check {
    id: "disk-type",
    title: "Disk type",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

/// Suitability of a file system for a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Disk,
    /// Lost at the next boot.
    Memory,
    /// Possibly lost with the container, and slow.
    Layered,
    /// Locks and shared memory do not work.
    Network,
    ReadOnly,
}

/// File systems by their number in `statfs` (`linux/magic.h`).
const KNOWN: [(u64, &str, Kind); 17] = [
    (0x0102_1994, "tmpfs", Kind::Memory),
    (0x8584_58f6, "ramfs", Kind::Memory),
    (0x794c_7630, "overlayfs", Kind::Layered),
    (0x6969, "NFS", Kind::Network),
    (0x517b, "SMB", Kind::Network),
    (0xff53_4d42, "CIFS", Kind::Network),
    (0xfe53_4d42, "SMB2", Kind::Network),
    (0x0102_1997, "9p", Kind::Network),
    (0x00c3_6400, "Ceph", Kind::Network),
    (0x5346_414f, "AFS", Kind::Network),
    (0x7371_7368, "squashfs", Kind::ReadOnly),
    (0xef53, "ext4", Kind::Disk),
    (0x5846_5342, "XFS", Kind::Disk),
    (0x9123_683e, "Btrfs", Kind::Disk),
    (0xf2f5_2010, "F2FS", Kind::Disk),
    (0x2405_1905, "UBIFS", Kind::Disk),
    (0x2fc1_2fc1, "ZFS", Kind::Disk),
];

pub(super) fn examine(examined: &mut Examined) -> Finding {
    let config = examined.config();
    let directory = disk_space::existing(directory_of(&config.store.path));
    let (Ok(kind), Ok(state)) = (rustix::fs::statfs(directory), rustix::fs::statvfs(directory)) else {
        return Finding::skipped(format!("file system of {} unknown", directory.display()));
    };
    // The number has 32 bits; some systems store it in a signed word.
    let number = (kind.f_type as u64) & 0xffff_ffff;
    let read_only = state.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
    evaluate(&directory.display().to_string(), number, read_only)
}

fn evaluate(directory: &str, number: u64, read_only: bool) -> Finding {
    let known = KNOWN.iter().find(|(known, ..)| *known == number);
    let unknown = format!("type {number:#x}");
    let (name, kind) = known.map_or((unknown.as_str(), Kind::Disk), |(_, name, kind)| (*name, *kind));
    let kind = if read_only { Kind::ReadOnly } else { kind };
    let place = "put store.path on a local disk";
    match kind {
        Kind::Disk => Finding::ok(format!("{directory} is on {name}")),
        Kind::Memory => {
            Finding::warning(format!("{directory} is on {name}: each reboot loses the database"), place)
        }
        Kind::Layered => Finding::warning(
            format!("{directory} is on {name}: the database is lost with the container"),
            "mount a volume there, or put store.path on a local disk",
        ),
        Kind::Network => Finding::failed(
            format!("{directory} is on {name}: databases on network file systems get damaged"),
            place,
        ),
        Kind::ReadOnly => Finding::failed(
            format!("{directory} is on {name}, mounted read-only"),
            "mount it read-write; see 'dmesg' for errors of the disk",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};

    #[test]
    fn each_kind_of_file_system_has_its_verdict() {
        ok(evaluate("/d", 0xef53, false), "/d is on ext4");
        ok(evaluate("/d", 0x1234, false), "type 0x1234");
        warned(evaluate("/d", 0x0102_1994, false), "tmpfs", "local disk");
        warned(evaluate("/d", 0x794c_7630, false), "overlayfs", "volume");
        failed(evaluate("/d", 0x6969, false), "NFS", "local disk");
        failed(evaluate("/d", 0xef53, true), "read-only", "dmesg");
    }

    #[test]
    fn the_file_system_of_a_real_directory_is_known() {
        let finding = examine(&mut Testbed::new("").examined());
        assert!(!matches!(finding, Finding::Skipped(_) | Finding::Failed { .. }), "{finding:?}");
        let proc = rustix::fs::statfs("/proc").unwrap();
        assert_eq!((proc.f_type as u64) & 0xffff_ffff, 0x9fa0);
    }
}
