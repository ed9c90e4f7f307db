//! Mounts of this machine, from `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`).

use std::path::{Path, PathBuf};

const MOUNTS: &str = "/proc/self/mountinfo";

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Directory on which it is mounted.
    pub(super) point: PathBuf,
    /// Writable layer of an overlay.
    pub(super) upper: Option<PathBuf>,
}

/// Returns the mount of an existing path; `None` without `/proc`.
pub(super) fn of(path: &Path) -> Option<Mount> {
    let path = std::fs::canonicalize(path).ok()?;
    let bytes = std::fs::read(MOUNTS).ok()?;
    find(&String::from_utf8_lossy(&bytes), &path)
}

/// Returns the mount of a path without links: the deepest one, and of several on one directory the
/// last.
fn find(mounts: &str, path: &Path) -> Option<Mount> {
    let mounts = mounts.lines().filter_map(parse).filter(|mount| path.starts_with(&mount.point));
    mounts.max_by_key(|mount| mount.point.components().count())
}

fn parse(line: &str) -> Option<Mount> {
    let (fields, file_system) = line.split_once(" - ")?;
    let point = unescaped(fields.split(' ').nth(4)?);
    let options = file_system.split(' ').nth(2).unwrap_or_default();
    let upper = options.split(',').find_map(|option| option.strip_prefix("upperdir="));
    Some(Mount { point, upper: upper.map(unescaped) })
}

/// Decodes space, tab, line feed and backslash.
fn unescaped(text: &str) -> PathBuf {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    PathBuf::from(escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_ONLY_ROOT: &str = "\
22 1 179:2 / / ro,noatime shared:1 - squashfs /dev/root ro
23 22 0:21 / /etc rw,relatime - overlay overlay rw,lowerdir=/etc,upperdir=/run/etc/up\\040per,workdir=/run/etc/work
24 22 179:3 / /var rw,relatime shared:2 master:3 - ext4 /dev/mmcblk0p3 rw
25 22 179:4 /a /data rw,nofail - f2fs /dev/mmcblk0p4 rw
26 22 179:5 /b /data rw - ext4 /dev/mmcblk0p5 rw
a line that is none
";

    #[test]
    fn paths_belong_to_their_deepest_and_last_mount() {
        let point = |path: &str| find(READ_ONLY_ROOT, Path::new(path)).unwrap().point;
        for (path, expected) in [
            ("/usr/bin", "/"),
            ("/", "/"),
            ("/var", "/var"),
            ("/var/lib/edgesync", "/var"),
            ("/variable", "/"),
            ("/data/a", "/data"),
        ] {
            assert_eq!(point(path), Path::new(expected), "{path}");
        }
        assert_eq!(find("", Path::new("/")), None);
    }

    #[test]
    fn overlays_have_their_writable_layer() {
        let upper = |path: &str| find(READ_ONLY_ROOT, Path::new(path)).unwrap().upper;
        assert_eq!(upper("/etc/edgesync"), Some("/run/etc/up per".into()));
        assert_eq!(upper("/var"), None);
    }

    #[test]
    fn a_real_path_has_a_mount() {
        let directory = tempfile::tempdir().unwrap();
        let mount = of(directory.path()).unwrap();
        assert!(std::fs::canonicalize(directory.path()).unwrap().starts_with(mount.point));
        assert_eq!(of(&directory.path().join("none")), None);
    }
}
