//! Tests with a full disk, and with links planted by the service's own user. Both need root;
//! without it a notice says what was not tested.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::tests::{Bed, config_map, state};
use edgesync_files::State;
use edgesync_files::rule::{Rule, Write};

/// A user that owns nothing.
const NOBODY: u32 = 65_534;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A small file system for one test.
struct Mounted(PathBuf);

impl Mounted {
    fn new(at: PathBuf, size: &str) -> Option<Self> {
        fs::create_dir(&at).unwrap();
        mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], &at).then_some(Self(at))
    }

    fn grow(&self, size: &str) {
        assert!(mount(&["-o", &format!("remount,size={size}")], &self.0));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn mount(words: &[&str], at: &Path) -> bool {
    is_root() && Command::new("mount").args(words).arg(at).status().is_ok_and(|status| status.success())
}

#[test]
fn full_disk_keeps_the_old_version_until_there_is_space() {
    for write in [Write::Keys, Write::Field("/data/a".into())] {
        let bed = Bed::new();
        let Some(mounted) = Mounted::new(bed.base().join("small"), "64k") else {
            eprintln!("notice: no file system can be mounted here; a full disk was not tested");
            return;
        };
        let single = write != Write::Keys;
        let rule = bed.rule(if single { "small/web" } else { "small/{metadata.name}" }, write);
        let file = if single { "small/web" } else { "small/web/a" };
        let read = |name: &str| fs::read_to_string(bed.base().join(name)).unwrap();
        bed.pass(&rule, &[config_map(1, &json!({ "a": "one", "b": "one" }))], None);
        let large = "x".repeat(100_000);
        let two = [config_map(2, &json!({ "a": large, "b": "two" }))];
        let (record, _) = bed.pass(&rule, &two, None);
        assert_eq!(state(&record), (State::NotInEffect, Some("1")));
        assert!(record.objects["u"].message.contains("No space left"), "{:?}", record.objects["u"]);
        assert_eq!(read(file), "one");
        let left = if single { vec!["web"] } else { vec!["..data", "..v1", "a", "b"] };
        assert_eq!(bed.names(if single { "small" } else { "small/web" }), left);
        mounted.grow("1m");
        let (record, _) = bed.pass(&rule, &two, None);
        assert_eq!((state(&record), read(file)), ((State::InEffect, Some("2")), large));
    }
}

/// Runs a script in the rule's directory, as the user of the service.
fn planted(base: &Path, script: &str) {
    let run =
        Command::new("/bin/sh").args(["-ec", script]).current_dir(base).uid(NOBODY).gid(NOBODY).status();
    assert!(run.unwrap().success(), "{script}");
}

#[test]
fn links_planted_by_the_service_are_not_followed() {
    if !is_root() {
        eprintln!("notice: this is not root; links of another user were not tested");
        return;
    }
    let scripts = [
        (true, "ln -sfn $V web/..v2"),
        (true, "ln -sfn $V web/..data"),
        (true, "ln -sfn $V web/..data-2"),
        (true, "ln -sfn $V web/..old2"),
        (true, "ln -sf $V/kept web/a"),
        (true, "rm web/..v1/a; ln -s $V/kept web/..v1/a"),
        (true, "mv web/..v1 web/moved; ln -s $V web/..v1"),
        (true, "mv web/..v1 web/moved; ln -s moved web/..v1; ln -sf $V/kept web/moved/b"),
        (true, "rm -r web; ln -s $V web"),
        (false, "ln -sf $V/kept web"),
        (false, "ln -sf $V/new .edgesync-r-2"),
        (false, "ln -sf $V/kept .edgesync-r-2-old"),
        (false, "mv web away; ln -s $V web"),
    ];
    for (directory, script) in scripts {
        let bed = Bed::in_memory();
        let (base, victim) = (bed.base(), bed.directory.path().join("victim"));
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("kept"), "root's").unwrap();
        let before = fs::metadata(&victim).unwrap();
        fs::set_permissions(bed.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        chown(&base, Some(NOBODY), Some(NOBODY)).unwrap();
        let write = if directory { Write::Keys } else { Write::Field("/data/a".into()) };
        let to = if directory { "{metadata.name}" } else { "web" };
        let rule = Rule { overwrite: true, owner: "65534:65534".into(), ..bed.rule(to, write) };
        bed.pass(&rule, &[config_map(1, &json!({ "a": "one", "b": "one" }))], None);
        planted(&base, &script.replace("$V", &victim.display().to_string()));
        bed.pass(&rule, &[config_map(2, &json!({ "a": "two", "c": "two" }))], None);
        bed.pass(
            &Rule { text: "2".into(), ..rule.clone() },
            &[config_map(3, &json!({ "kept": "three" }))],
            None,
        );
        bed.pass(&rule, &[], None);
        let after = fs::metadata(&victim).unwrap();
        assert_eq!((after.uid(), after.mode()), (before.uid(), before.mode()), "{script}");
        let kept = fs::metadata(victim.join("kept")).unwrap();
        assert_eq!((kept.uid(), kept.nlink()), (0, 1), "{script}");
        assert_eq!(fs::read_to_string(victim.join("kept")).unwrap(), "root's", "{script}");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1, "{script}");
    }
}
