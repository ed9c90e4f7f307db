mod disk;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::LazyLock;

use super::*;
use crate::settings;
use crate::tests::authority::{Authority, MADE, time};
use disk::{Fault, TestDisk};
use edgesync_config as config;
use edgesync_config::edge::Config;

const ROOT: &str = "/var/lib/edgesync/identity";
const CONFIG: &str = "/etc/edgesync/edgesync.toml";

static CA: LazyLock<Authority> = LazyLock::new(|| Authority::new("ca"));

/// An identity that joins.
struct Joining {
    set: String,
    node: &'static str,
    identity: Identity,
}

impl Joining {
    fn new(node: &'static str) -> Self {
        let identity = CA.node(node, time(MADE), time("2027-11-01T00:00:00Z"));
        Self { set: new_set_name(), node, identity }
    }

    /// Performs all disk operations of a join.
    fn join(&self, disk: &mut impl Disk, root: &Path, config: &Path) -> Result<PathBuf, FilesError> {
        probe(disk, root, config)?;
        let before = disk.read(config).unwrap_or_else(|_| b"# nothing yet\n".to_vec());
        let before = String::from_utf8(before).unwrap();
        let text = |directory: &Path| {
            let settings = [
                ("node", "name", settings::string(self.node)),
                ("identity", "directory", settings::string(directory.to_str().unwrap())),
            ];
            Ok(settings::set_all(&before, &settings).unwrap())
        };
        let directory = install(disk, root, &self.set, &CA.ca, &self.identity, config, text)?;
        remove_others(disk, root, &directory)?;
        Ok(directory)
    }

    fn join_test_disk(&self, disk: &mut TestDisk) -> Result<PathBuf, FilesError> {
        self.join(disk, Path::new(ROOT), Path::new(CONFIG))
    }

    fn is(&self) -> Option<(String, String)> {
        Some((self.node.to_owned(), self.identity.certificate().serial().to_owned()))
    }
}

/// Returns the identity of an agent that starts now: its configured name and the serial number of
/// its certificate. Panics if the two do not match, or the identity is unreadable.
fn identity_of(disk: &TestDisk) -> Option<(String, String)> {
    let text = disk.read(Path::new(CONFIG)).ok()?;
    let text = String::from_utf8(text).unwrap();
    let config = config::parse::<Config>(Path::new(CONFIG), &text, []).unwrap().config;
    let stored = load(disk, &config.identity.directory?).unwrap();
    assert_eq!(stored.ca, std::slice::from_ref(&CA.ca));
    assert_eq!(stored.identity.certificate().node(), Some(config.node.name.as_str()));
    Some((config.node.name, stored.identity.certificate().serial().to_owned()))
}

fn empty() -> TestDisk {
    TestDisk::new(&["/etc", "/var/lib"])
}

/// A disk with the configuration of a package.
fn packaged() -> TestDisk {
    let mut disk = TestDisk::new(&["/etc/edgesync", "/var/lib/edgesync"]);
    let text = "[node]\n#name = \"\"\n[log]\nlevel = \"debug\"\n";
    disk.write_new(Path::new(CONFIG), text.as_bytes(), 0o640).unwrap();
    disk.sync_directory(Path::new("/etc/edgesync")).unwrap();
    disk
}

fn joined(old: &Joining) -> TestDisk {
    let mut disk = packaged();
    old.join_test_disk(&mut disk).unwrap();
    disk
}

/// Asserts that a later join succeeds and removes all leftovers.
fn joins_later(disk: &TestDisk) {
    static LATER: LazyLock<Joining> = LazyLock::new(|| Joining::new("later"));
    let mut disk = disk.healthy();
    let directory = LATER.join_test_disk(&mut disk).unwrap();
    assert_eq!(identity_of(&disk), LATER.is());
    let directory = directory.display();
    assert_eq!(disk.files(), [CONFIG, &format!("{directory}/ca.crt"), &format!("{directory}/node.pem")]);
}

/// Cuts the power at each step of a join, and verifies every state that may remain.
fn survive_power_cuts(start: &TestDisk, new: &Joining) {
    let old = identity_of(start);
    let mut whole = start.healthy();
    new.join_test_disk(&mut whole).unwrap();
    let steps = whole.steps();
    assert!(steps > 20, "{steps}");
    let mut seen = [0, 0];
    for step in 0..=steps {
        let mut disk = start.with(step, Fault::PowerCut);
        let result = new.join_test_disk(&mut disk);
        assert_eq!(result.is_ok(), step == steps, "step {step}");
        for (number, found) in disk.after_power_cut().iter().enumerate() {
            let is = identity_of(found);
            assert!(is == old || is == new.is(), "step {step}, outcome {number}: {is:?}");
            assert!(step < steps || is == new.is(), "outcome {number} after the end: {is:?}");
            seen[usize::from(is == new.is())] += 1;
            if number % 7 == 0 {
                joins_later(found);
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

#[test]
fn power_cut_during_the_first_join_leaves_nothing_or_all() {
    survive_power_cuts(&empty(), &Joining::new("a"));
    survive_power_cuts(&packaged(), &Joining::new("a"));
}

#[test]
fn power_cut_during_a_join_leaves_old_or_new_identity() {
    let disk = joined(&Joining::new("a"));
    survive_power_cuts(&disk, &Joining::new("b"));
    survive_power_cuts(&disk, &Joining::new("a"));
}

#[test]
fn failed_join_leaves_old_or_new_identity_without_leftovers() {
    for start in [empty(), packaged(), joined(&Joining::new("a"))] {
        let (old, new) = (identity_of(&start), Joining::new("b"));
        let mut whole = start.healthy();
        new.join_test_disk(&mut whole).unwrap();
        for (step, kind) in (0..whole.steps())
            .flat_map(|step| [(step, io::ErrorKind::StorageFull), (step, io::ErrorKind::PermissionDenied)])
        {
            let mut disk = start.with(step, Fault::Fails(kind));
            let result = new.join_test_disk(&mut disk);
            let is = identity_of(&disk);
            assert!(is == old || is == new.is(), "step {step}: {is:?}");
            if let Err(error) = &result {
                let FilesError::Io(FileError { cause, .. }) = error else { panic!("{error}") };
                assert_eq!(cause.kind(), kind, "step {step}");
            }
            if is == old && result.is_err() {
                let made =
                    disk.files().into_iter().filter(|file| file.contains(&new.set)).collect::<Vec<_>>();
                assert!(made.is_empty(), "step {step}: {made:?}");
            }
            for found in disk.after_power_cut() {
                let is = identity_of(&found);
                assert!(is == old || is == new.is(), "step {step}, after a power cut: {is:?}");
            }
            joins_later(&disk);
        }
    }
}

fn renewed(node: &'static str) -> Identity {
    CA.node(node, time("2027-06-01T00:00:00Z"), time("2028-06-01T00:00:00Z"))
}

fn serial(identity: &Identity) -> &str {
    identity.certificate().serial()
}

#[test]
fn interrupted_renewal_leaves_a_valid_identity() {
    let joining = Joining::new("a");
    let start = joined(&joining);
    let set = Path::new(ROOT).join(&joining.set);
    let (second, third) = (renewed("a"), renewed("a"));
    let mut renewed_once = start.healthy();
    renew(&mut renewed_once, &set, &second).unwrap();
    for (start, old, new) in [(&start, &joining.identity, &second), (&renewed_once, &second, &third)] {
        let mut whole = start.healthy();
        renew(&mut whole, &set, new).unwrap();
        let stored = load(&whole, &set).unwrap();
        assert_eq!(serial(&stored.identity), serial(new));
        assert_eq!(stored.previous.as_ref().map(serial), Some(serial(old)));
        assert_eq!(whole.mode(&set.join(PREVIOUS_FILE)).unwrap(), Some(0o600));
        let steps = whole.steps();
        for step in 0..=steps {
            for fault in [Fault::PowerCut, Fault::Fails(io::ErrorKind::StorageFull)] {
                let mut disk = start.with(step, fault);
                assert_eq!(renew(&mut disk, &set, new).is_ok(), step == steps, "step {step}");
                for found in disk.after_power_cut() {
                    let stored = load(&found, &set).unwrap();
                    let is_new = serial(&stored.identity) == serial(new);
                    assert!(is_new || serial(&stored.identity) == serial(old), "step {step}");
                    assert!(is_new || step < steps, "after the end");
                    if is_new {
                        assert_eq!(stored.previous.as_ref().map(serial), Some(serial(old)), "step {step}");
                    }
                    let mut later = found.healthy();
                    let last = if is_new { old } else { new };
                    renew(&mut later, &set, last).unwrap();
                    forget_previous(&mut later, &set).unwrap();
                    assert_eq!(serial(&load(&later, &set).unwrap().identity), serial(last));
                    assert_eq!(later.names(&set).unwrap(), [CA_FILE, IDENTITY_FILE], "step {step}");
                }
            }
        }
    }
}

#[test]
fn unreadable_previous_identity_is_ignored() {
    let joining = Joining::new("a");
    let mut disk = joined(&joining);
    let set = Path::new(ROOT).join(&joining.set);
    disk.write_new(&set.join(PREVIOUS_FILE), b"half of a ke", 0o600).unwrap();
    assert!(load(&disk, &set).unwrap().previous.is_none());
    disk.remove(&set.join(IDENTITY_FILE)).unwrap();
    let error = load(&disk, &set).unwrap_err().to_string();
    assert!(error.contains("read ") && error.contains("node.pem"), "{error}");
}

fn mode_of(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn real_disk_keeps_modes_of_keys_and_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let (root, config) =
        (directory.path().join("lib/edgesync/identity"), directory.path().join("etc/e.toml"));
    let first = Joining::new("a").join(&mut RealDisk, &root, &config).unwrap();
    for (path, mode) in [
        (root.as_path(), 0o700),
        (&first, 0o700),
        (&first.join(CA_FILE), 0o644),
        (&first.join(IDENTITY_FILE), 0o600),
        (&config, 0o644),
        (config.parent().unwrap(), 0o755),
    ] {
        assert_eq!(mode_of(path), mode, "{}", path.display());
        let owner = std::fs::metadata(directory.path()).unwrap().uid();
        assert_eq!(std::fs::metadata(path).unwrap().uid(), owner, "{}", path.display());
    }
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o640)).unwrap();
    let second = Joining::new("b").join(&mut RealDisk, &root, &config).unwrap();
    assert_eq!(mode_of(&config), 0o640);
    assert_eq!(RealDisk.names(&root).unwrap(), [second.file_name().unwrap().to_str().unwrap()]);
    assert_eq!(RealDisk.names(config.parent().unwrap()).unwrap(), ["e.toml"]);
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.starts_with("# nothing yet\n") && !text.contains("PRIVATE"), "{text}");

    renew(&mut RealDisk, &second, &renewed("b")).unwrap();
    for name in [IDENTITY_FILE, PREVIOUS_FILE] {
        assert_eq!(mode_of(&second.join(name)), 0o600, "{name}");
    }
    assert!(load(&RealDisk, &second).unwrap().previous.is_some());
    forget_previous(&mut RealDisk, &second).unwrap();
    assert!(load(&RealDisk, &second).unwrap().previous.is_none());
}

#[test]
fn foreign_directories_are_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (root, config) = (directory.path().join("identity"), directory.path().join("e.toml"));
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("README"), "mine").unwrap();
    std::fs::create_dir(root.join("0123456789abcdef")).unwrap();
    let set = Joining::new("a").join(&mut RealDisk, &root, &config).unwrap();
    let mut names = RealDisk.names(&root).unwrap();
    names.sort();
    let mut expected = [set.file_name().unwrap().to_str().unwrap(), "README"];
    expected.sort_unstable();
    assert_eq!(names, expected);
}

#[test]
fn real_disk_neither_follows_links_nor_overwrites() {
    let directory = tempfile::tempdir().unwrap();
    let (file, link) = (directory.path().join("file"), directory.path().join("link"));
    let mut disk = RealDisk;
    disk.write_new(&file, b"x", 0o600).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert_eq!(disk.write_new(&file, b"y", 0o600).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(disk.write_new(&link, b"y", 0o600).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert!(disk.give_to_owner_of(&link, directory.path()).is_err());
    disk.remove(&link).unwrap();
    disk.remove(&link).unwrap();
    assert_eq!(disk.read(&file).unwrap(), b"x");
    assert_eq!(disk.make_directory(&file, 0o700).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    assert_eq!(disk.mode(&link).unwrap(), None);
    assert!(disk.names(&link).unwrap().is_empty());
    std::fs::write(&file, vec![0; 2 << 20]).unwrap();
    assert_eq!(disk.read(&file).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
}
