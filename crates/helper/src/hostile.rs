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
use edgesync_files::rule::{CheckUser, Rule, Write};

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

/// Returns a check that runs a script in the rule's directory.
fn check(base: &Path, text: &str) -> Vec<String> {
    ["/bin/sh", "-ec", &format!("cd {}; {text}", base.display())].map(str::to_owned).to_vec()
}

#[test]
fn candidate_gets_its_owner_after_the_check() {
    if !is_root() {
        eprintln!("notice: this is not root; owners of candidates were not tested");
        return;
    }
    for (to, write, candidate, file) in [
        ("{metadata.name}", Write::Keys, "$EDGESYNC_CANDIDATE $EDGESYNC_CANDIDATE/a", "web/a"),
        ("web", Write::Field("/data/a".into()), "$EDGESYNC_CANDIDATE", "web"),
    ] {
        let bed = Bed::in_memory();
        let (base, owners) = (bed.base(), bed.directory.path().join("owners"));
        let check = check(&base, &format!("stat -c %u {candidate} > {}", owners.display()));
        let rule = Rule {
            owner: "65534:65534".into(),
            mode: Some(0o640),
            check,
            check_user: CheckUser::Root,
            ..bed.rule(to, write)
        };
        for version in 1..3 {
            let (record, _) = bed.pass(&rule, &[config_map(version, &json!({ "a": "one" }))], None);
            assert_eq!(state(&record).0, State::InEffect, "{:?}", record.objects["u"]);
            let seen = fs::read_to_string(&owners).unwrap();
            assert!(seen.lines().all(|owner| owner == "0"), "during the check: {seen}");
            let found = fs::metadata(base.join(file)).unwrap();
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (NOBODY, NOBODY, 0o640));
        }
    }
}

#[test]
fn candidate_replaced_during_the_check_is_refused() {
    if !is_root() {
        eprintln!("notice: this is not root; replaced candidates were not tested");
        return;
    }
    let bed = Bed::in_memory();
    let base = bed.base();
    let owned = Rule { owner: "65534:65534".into(), ..bed.rule("{metadata.name}", Write::Keys) };
    bed.pass(&owned, &[config_map(1, &json!({ "a": "one" }))], None);
    let victim = bed.directory.path().join("victim");
    fs::write(&victim, "root's").unwrap();
    // The owner of the directory can do this while the check runs.
    let planted = format!("mv web/..v2 web/away; mkdir web/..v2; ln {} web/..v2/a", victim.display());
    let check_user = CheckUser::Root;
    let rule = Rule { check: check(&base, &planted), check_user, text: "2".into(), ..owned };
    let (record, _) = bed.pass(&rule, &[config_map(2, &json!({ "a": "two" }))], None);
    assert_eq!(state(&record), (State::NotInEffect, Some("1")));
    assert!(record.objects["u"].message.contains("replaced during the check"), "{:?}", record.objects["u"]);
    assert_eq!(fs::metadata(&victim).unwrap().uid(), 0);
    assert_eq!(fs::read_to_string(base.join("web/a")).unwrap(), "one");
}

/// The service's user may move a directory that it cannot read to a name of ours.
#[test]
fn directory_moved_to_the_name_of_a_candidate_keeps_its_contents() {
    if !is_root() {
        eprintln!("notice: this is not root; directories of another user were not tested");
        return;
    }
    for name in [".edgesync-r-2", ".edgesync-r-2-old"] {
        let bed = Bed::in_memory();
        let base = bed.base();
        fs::set_permissions(bed.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        chown(&base, Some(NOBODY), Some(NOBODY)).unwrap();
        let rule = Rule { owner: "65534:65534".into(), ..bed.rule("web", Write::Field("/data/a".into())) };
        bed.pass(&rule, &[config_map(1, &json!({ "a": "one" }))], None);
        fs::create_dir(base.join("keys")).unwrap();
        fs::set_permissions(base.join("keys"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(base.join("keys/secret"), "root's").unwrap();
        planted(&base, &format!("mv keys {name}"));
        bed.pass(&rule, &[config_map(2, &json!({ "a": "two" }))], None);
        assert_eq!(fs::read_to_string(base.join(name).join("secret")).unwrap(), "root's", "{name}");
    }
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
