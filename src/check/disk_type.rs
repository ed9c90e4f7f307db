//! Checks that the database is on a durable file system.

use std::path::Path;

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding, disk_space, mounts};
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
pub(super) enum Kind {
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

/// The file system of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileSystem {
    /// Name for people: `ext4`, `overlayfs over tmpfs`, `type 0x1234`.
    pub(super) name: String,
    pub(super) kind: Kind,
}

impl FileSystem {
    /// Returns the file system of an existing path. An overlay has the kind of its writable layer;
    /// in a container, that layer is hidden. `None` if it is unknown.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let found = Self::itself(path)?;
        let hidden = || mounts::of(path)?.upper.and_then(|upper| Self::itself(&upper));
        Some(if found.kind == Kind::Layered { found.over(hidden()) } else { found })
    }

    fn itself(path: &Path) -> Option<Self> {
        let (kind, state) = (rustix::fs::statfs(path).ok()?, rustix::fs::statvfs(path).ok()?);
        // The number has 32 bits; some systems store it in a signed word.
        let number = (kind.f_type as u64) & 0xffff_ffff;
        Some(Self::known(number, state.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY)))
    }

    fn known(number: u64, read_only: bool) -> Self {
        let known = KNOWN.iter().find(|(known, ..)| *known == number);
        let name = known.map_or_else(|| format!("type {number:#x}"), |(_, name, _)| (*name).to_owned());
        let kind = known.map_or(Kind::Disk, |(.., kind)| *kind);
        Self { name, kind: if read_only { Kind::ReadOnly } else { kind } }
    }

    fn over(self, layer: Option<Self>) -> Self {
        match layer.filter(|layer| layer.kind != Kind::Layered) {
            Some(layer) => Self { name: format!("{} over {}", self.name, layer.name), kind: layer.kind },
            None => self,
        }
    }
}

pub(super) fn examine(examined: &mut Examined) -> Finding {
    let config = examined.config();
    let directory = disk_space::existing(directory_of(&config.store.path));
    match FileSystem::of(directory) {
        Some(found) => evaluate(&directory.display().to_string(), &found),
        None => Finding::skipped(format!("file system of {} unknown", directory.display())),
    }
}

fn evaluate(directory: &str, found: &FileSystem) -> Finding {
    let name = &found.name;
    let place = "put store.path on a local disk";
    match found.kind {
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
        let evaluate = |number, read_only| evaluate("/d", &FileSystem::known(number, read_only));
        ok(evaluate(0xef53, false), "/d is on ext4");
        ok(evaluate(0x1234, false), "type 0x1234");
        warned(evaluate(0x0102_1994, false), "tmpfs", "local disk");
        warned(evaluate(0x794c_7630, false), "overlayfs", "volume");
        failed(evaluate(0x6969, false), "NFS", "local disk");
        failed(evaluate(0xef53, true), "read-only", "dmesg");
    }

    #[test]
    fn an_overlay_lasts_as_long_as_its_writable_layer() {
        let overlay = || FileSystem::known(0x794c_7630, false);
        let over = |number| evaluate("/d", &overlay().over(Some(FileSystem::known(number, false))));
        warned(over(0x0102_1994), "/d is on overlayfs over tmpfs: each reboot loses", "local disk");
        ok(over(0xef53), "/d is on overlayfs over ext4");
        warned(over(0x794c_7630), "lost with the container", "volume");
        assert_eq!(overlay().over(None), overlay());
    }

    #[test]
    fn the_file_system_of_a_real_directory_is_known() {
        let finding = examine(&mut Testbed::new("").examined());
        assert!(!matches!(finding, Finding::Skipped(_) | Finding::Failed { .. }), "{finding:?}");
        let proc = rustix::fs::statfs("/proc").unwrap();
        assert_eq!((proc.f_type as u64) & 0xffff_ffff, 0x9fa0);
    }
}
