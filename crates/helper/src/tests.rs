//! Tests on a real file system: a power cut at each call, foreign links and files, modes.

mod foreign;
mod records;
mod waiting;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Value, json};

use super::disk::read_bytes;
use super::executor::Executor;
use super::power::Flushed;
use super::records::{MAX_GONE, Records};
use edgesync_config::edge::Config;
use edgesync_files::pass::Options;
use edgesync_files::rule::{CheckUser, Format, Reload, Rule, Write};
use edgesync_files::template::Template;
use edgesync_files::wire::{Listed, ReportPosition};
use edgesync_files::{Record, State, Status};

/// A directory for files and one for records.
pub(super) struct Bed {
    pub(super) directory: tempfile::TempDir,
    pub(super) config: Config,
}

impl Bed {
    pub(super) fn new() -> Self {
        // On a disk, wherever temporary files are.
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        fs::create_dir_all(&target).unwrap();
        let target = target.canonicalize().unwrap();
        Self::at(tempfile::tempdir_in(target).unwrap())
    }

    /// Creates the directories in memory if possible, for speed.
    pub(super) fn in_memory() -> Self {
        tempfile::tempdir_in("/dev/shm").map_or_else(|_| Self::new(), Self::at)
    }

    fn at(directory: tempfile::TempDir) -> Self {
        let mut config = Config::default();
        config.helper.state = directory.path().join("state");
        config.helper.socket = directory.path().join("files.sock");
        fs::create_dir(directory.path().join("base")).unwrap();
        Self { directory, config }
    }

    pub(super) fn base(&self) -> PathBuf {
        self.directory.path().join("base")
    }

    pub(super) fn rule(&self, to: &str, write: Write) -> Rule {
        let to = Template::parse(&format!("{}/{to}", self.base().display())).unwrap();
        Rule { name: "r".into(), to, write, text: "1".into(), ..Rule::default() }
    }

    /// Runs a pass that crashes after `calls` calls.
    pub(super) fn pass(&self, rule: &Rule, objects: &[Value], calls: Option<u32>) -> (Record, bool) {
        self.pass_with(rule, objects, calls, None)
    }

    /// The same, with a model of flushes.
    pub(super) fn pass_with(
        &self,
        rule: &Rule,
        objects: &[Value],
        calls: Option<u32>,
        flushed: Option<Rc<Flushed>>,
    ) -> (Record, bool) {
        let mut records = Records::open(&self.config).unwrap();
        records.holds.observe(&self.config);
        let mut executor = Executor::new(rule, &self.config, &mut records).unwrap();
        executor.disk.fuse.set(calls);
        executor.disk.flushed = flushed;
        let fuse = executor.disk.fuse.clone();
        let listed: Vec<Listed> = objects.iter().map(listed).collect();
        let options = Options { look: true, force: true, keep: false, now: 1 };
        let _ = executor.run_pass(&mut records, &listed, options, false, |pass| {
            pass.apply(&mut |number| objects.get(number).cloned())
        });
        (records.all.remove(&rule.name).unwrap(), fuse.get() == Some(0))
    }

    pub(super) fn names(&self, place: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.base().join(place))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

pub(super) fn listed(object: &Value) -> Listed {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    Listed {
        uid: text("uid"),
        api_version: "v1".into(),
        kind: object["kind"].as_str().unwrap().to_owned(),
        namespace: text("namespace"),
        name: text("name"),
        version: text("resourceVersion"),
        sealed: object["kind"] == "Sealed",
        ..Listed::default()
    }
}

pub(super) fn config_map(version: u32, data: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "web", "namespace": "n", "uid": "u", "resourceVersion": version.to_string() },
        "data": data,
    })
}

pub(super) fn state(record: &Record) -> (State, Option<&str>) {
    let status = &record.objects["u"];
    (status.state, status.version.as_deref())
}

#[test]
fn power_cut_leaves_one_whole_version() {
    let (one, two) = (json!({ "a": "one", "b": "one" }), json!({ "b": "two", "c": "two" }));
    for calls in 0.. {
        let bed = Bed::new();
        let rule = bed.rule("{metadata.name}", Write::Keys);
        bed.pass(&rule, &[config_map(1, &one)], None);
        let (_, ended) = bed.pass(&rule, &[config_map(2, &two)], Some(calls));
        let read = |name: &str| fs::read_to_string(bed.base().join("web/..data").join(name)).ok();
        let observed = ["a", "b", "c"].map(read);
        let sets = [[Some("one"), Some("one"), None], [None, Some("two"), Some("two")]];
        let observed = observed.each_ref().map(Option::as_deref);
        assert!(sets.contains(&observed), "after {calls} calls: {observed:?}");
        let (record, _) = bed.pass(&rule, &[config_map(2, &two)], None);
        assert_eq!(state(&record), (State::InEffect, Some("2")), "after {calls} calls");
        let names = bed.names("web");
        let version = names.iter().find(|name| name.starts_with("..v")).unwrap().clone();
        assert_eq!(names, ["..data", &version, "b", "c"], "after {calls} calls");
        assert_eq!(fs::read_to_string(bed.base().join("web/c")).unwrap(), "two");
        if !ended {
            assert!(calls > 15, "{calls}");
            break;
        }
    }
}

#[test]
fn power_cut_leaves_the_old_or_the_new_single_file() {
    for calls in 0.. {
        let bed = Bed::new();
        let rule = bed.rule("{metadata.name}.conf", Write::Field("/data/a".into()));
        bed.pass(&rule, &[config_map(1, &json!({ "a": "one" }))], None);
        let two = [config_map(2, &json!({ "a": "two" }))];
        let (_, ended) = bed.pass(&rule, &two, Some(calls));
        let observed = fs::read_to_string(bed.base().join("web.conf")).unwrap();
        assert!(["one", "two"].contains(&&*observed), "after {calls} calls: {observed:?}");
        let (record, _) = bed.pass(&rule, &two, None);
        assert_eq!(state(&record), (State::InEffect, Some("2")), "after {calls} calls");
        assert_eq!(bed.names(""), ["web.conf"], "after {calls} calls");
        if !ended {
            break;
        }
    }
}

#[test]
fn power_cut_during_removal_or_creation_leaves_no_rest() {
    for (first, second) in [(1, 0), (0, 1)] {
        for calls in 0.. {
            let bed = Bed::new();
            for (to, write) in [
                ("{metadata.name}", Write::Keys),
                ("{metadata.name}.conf", Write::Field("/data/a".into())),
                ("{metadata.namespace}/x/{metadata.name}", Write::Keys),
                ("{metadata.namespace}/x/{metadata.name}.conf", Write::Field("/data/a".into())),
            ] {
                let rule = Rule { text: to.into(), ..bed.rule(to, write) };
                let objects = [config_map(1, &json!({ "a": "one" }))];
                bed.pass(&rule, &objects[..first], None);
                bed.pass(&rule, &objects[..second], Some(calls));
                let (record, _) = bed.pass(&rule, &objects[..second], None);
                assert_eq!(record.places.len(), second, "after {calls} calls");
                // The rule has another shape then: files of the old one are removed first.
                bed.pass(&rule, &[], None);
                assert!(bed.names("").is_empty(), "after {calls} calls: {:?}", bed.names(""));
            }
            if calls > 40 {
                break;
            }
        }
    }
}

#[test]
fn foreign_links_are_not_followed() {
    let bed = Bed::new();
    let elsewhere = bed.directory.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let objects = [config_map(1, &json!({ "a": "one" }))];
    symlink(&elsewhere, bed.base().join("web")).unwrap();
    let (record, _) = bed.pass(&bed.rule("{metadata.name}", Write::Keys), &objects, None);
    assert_eq!(state(&record), (State::NotInEffect, None));
    assert!(record.objects["u"].message.contains("symbolic links"), "{:?}", record.objects["u"]);
    symlink(&elsewhere, bed.base().join("n")).unwrap();
    let (record, _) = bed.pass(&bed.rule("{metadata.namespace}/x", Write::Keys), &objects, None);
    assert_eq!(state(&record), (State::NotInEffect, None));
    // A link in place of a file is foreign.
    symlink(elsewhere.join("new"), bed.base().join("web.conf")).unwrap();
    let rule = bed.rule("{metadata.name}.conf", Write::Field("/data/a".into()));
    let (record, _) = bed.pass(&Rule { overwrite: true, ..rule }, &objects, None);
    assert_eq!(state(&record), (State::Conflict, None));
    // A link in the directory itself.
    fs::create_dir(bed.base().join("own")).unwrap();
    symlink(&elsewhere, bed.base().join("own/..data")).unwrap();
    let (record, _) = bed.pass(&bed.rule("own", Write::Keys), &objects, None);
    assert_eq!(state(&record), (State::Conflict, None));
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn foreign_files_stay_and_are_restored_on_rollback() {
    let bed = Bed::new();
    fs::create_dir(bed.base().join("web")).unwrap();
    fs::write(bed.base().join("web/a"), "theirs").unwrap();
    let objects = [config_map(1, &json!({ "a": "ours", "b": "ours" }))];
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let (record, _) = bed.pass(&rule, &objects, None);
    assert_eq!(state(&record), (State::Conflict, None));
    assert_eq!(bed.names("web"), ["a"]);
    let reload = ["/bin/sh", "-c", "echo no; exit 1"].map(str::to_owned).to_vec();
    let refused = Rule { overwrite: true, reload: Reload::Run(reload), ..rule.clone() };
    let (record, _) = bed.pass(&refused, &objects, None);
    assert_eq!(state(&record), (State::NotInEffect, None));
    assert!(record.objects["u"].rolled_back && record.objects["u"].message.contains("no"));
    assert_eq!(
        (bed.names("web"), fs::read_to_string(bed.base().join("web/a")).unwrap()),
        (vec!["a".into()], "theirs".into())
    );
    let (record, _) = bed.pass(&Rule { overwrite: true, ..rule.clone() }, &objects, None);
    assert_eq!(state(&record), (State::InEffect, Some("1")));
    assert_eq!(fs::read_to_string(bed.base().join("web/a")).unwrap(), "ours");
    // Other files in the directory are ignored.
    fs::write(bed.base().join("web/other"), "theirs").unwrap();
    bed.pass(&rule, &[], None);
    assert_eq!(bed.names("web"), ["other"]);
}

/// The file of others may even have the content of the object.
#[test]
fn foreign_single_file_is_restored_on_rollback_and_after_a_power_cut() {
    let objects = [config_map(1, &json!({ "a": "ours" }))];
    for theirs in ["theirs", "ours"] {
        for calls in 0.. {
            let bed = Bed::new();
            let file = bed.base().join("web.conf");
            fs::write(&file, theirs).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
            let rule = bed.rule("{metadata.name}.conf", Write::Field("/data/a".into()));
            let reload = ["/bin/sh", "-c", "echo no; exit 1"].map(str::to_owned).to_vec();
            let refused = Rule { overwrite: true, reload: Reload::Run(reload), ..rule.clone() };
            let (_, ended) = bed.pass(&refused, &objects, Some(calls));
            let observed = fs::read_to_string(&file).unwrap();
            assert!([theirs, "ours"].contains(&&*observed), "after {calls} calls: {observed:?}");
            let (record, _) = bed.pass(&refused, &objects, None);
            assert_eq!(state(&record), (State::NotInEffect, None), "after {calls} calls");
            assert!(record.objects["u"].rolled_back && record.objects["u"].message.contains("no"));
            assert_eq!(bed.names(""), ["web.conf"], "after {calls} calls");
            assert_eq!(fs::read_to_string(&file).unwrap(), theirs, "after {calls} calls");
            let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o604, "after {calls} calls");
            if !ended {
                assert!(calls > 5, "{calls}");
                let (record, _) = bed.pass(&Rule { overwrite: true, ..rule }, &objects, None);
                assert_eq!(state(&record), (State::InEffect, Some("1")));
                assert_eq!(fs::read_to_string(&file).unwrap(), "ours");
                break;
            }
        }
    }
}

#[test]
fn foreign_changes_stay_when_the_object_is_deleted() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let objects = [config_map(1, &json!({ "a": "ours", "b": "ours", "c": "ours", "d": "ours" }))];
    let web = bed.base().join("web");
    for calls in 0.. {
        fs::create_dir_all(&web).unwrap();
        bed.pass(&rule, &objects, None);
        // One file is changed through its link, one is replaced, one is added.
        fs::write(web.join("a"), "theirs").unwrap();
        fs::remove_file(web.join("b")).unwrap();
        fs::write(web.join("b"), "theirs").unwrap();
        fs::write(web.join("..data/x"), "theirs").unwrap();
        fs::create_dir(web.join("..data/y")).unwrap();
        fs::write(web.join("..data/y/z"), "theirs").unwrap();
        let (record, _) = bed.pass(&rule, &objects, None);
        assert_eq!(state(&record), (State::Conflict, None));
        let (_, ended) = bed.pass(&rule, &[], Some(calls));
        let (record, _) = bed.pass(&rule, &[], None);
        assert_eq!(bed.names("web"), ["a", "b", "x", "y"], "after {calls} calls");
        assert_eq!(fs::read_to_string(web.join("y/z")).unwrap(), "theirs");
        for name in ["a", "b", "x"] {
            assert!(fs::symlink_metadata(web.join(name)).unwrap().is_file());
            assert_eq!(fs::read_to_string(web.join(name)).unwrap(), "theirs");
        }
        let status = &record.objects["u"];
        assert_eq!(state(&record), (State::Gone, None));
        assert!(status.message.contains("by another program"), "{status:?}");
        fs::remove_dir_all(&web).unwrap();
        if !ended {
            assert!(calls > 5, "{calls}");
            return;
        }
    }
}

#[test]
fn empty_parents_are_removed_with_the_last_place() {
    for (to, write) in [
        ("{metadata.namespace}/x/{metadata.name}", Write::Keys),
        ("{metadata.namespace}/x/{metadata.name}.conf", Write::Field("/data/a".into())),
    ] {
        let bed = Bed::new();
        let rule = bed.rule(to, write);
        let objects = ["one", "two", "three"].map(|name| {
            let mut object = config_map(1, &json!({ "a": "1" }));
            (object["metadata"]["name"], object["metadata"]["uid"]) = (name.into(), name.into());
            object
        });
        // The third place is made in directories of the first two, and goes last.
        bed.pass(&rule, &objects[..2], None);
        bed.pass(&rule, &objects, None);
        bed.pass(&rule, &objects[2..], None);
        assert_eq!(bed.names("n/x").len(), 1);
        bed.pass(&rule, &[], None);
        assert!(bed.names("").is_empty(), "{:?}", bed.names(""));
        // Directories of others stay, and those with files of others.
        fs::create_dir(bed.base().join("n")).unwrap();
        bed.pass(&rule, &objects, None);
        fs::write(bed.base().join("n/theirs"), "").unwrap();
        bed.pass(&rule, &[], None);
        assert_eq!(bed.names("n"), ["theirs"]);
        fs::remove_file(bed.base().join("n/theirs")).unwrap();
        bed.pass(&rule, &objects, None);
        bed.pass(&rule, &[], None);
        assert_eq!(bed.names(""), ["n"], "it was there before");
    }
}

/// Makes files of others in a directory: many names of one large file without content.
fn plant_large_files(directory: &Path) {
    let large = fs::File::create(directory.join("large")).unwrap();
    large.set_len(64 << 20).unwrap();
    for number in 0..99 {
        fs::hard_link(directory.join("large"), directory.join(format!("link{number}"))).unwrap();
    }
}

/// A user of the service could have the helper read 99 times 64 MiB with each look: half a minute.
#[test]
fn files_of_others_are_not_read() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let objects = [config_map(1, &json!({ "a": "12345678", "b": "12" }))];
    bed.pass(&rule, &objects, None);
    let web = bed.base().join("web");
    let read_in_a_pass = |objects: &[Value]| {
        let before = read_bytes();
        let (record, _) = bed.pass(&rule, objects, None);
        (state(&record).0, read_bytes() - before)
    };
    assert_eq!(read_in_a_pass(&objects), (State::InEffect, 10));
    plant_large_files(&web.join("..data"));
    let (found, read) = read_in_a_pass(&objects);
    assert!(found == State::Conflict && read <= 20, "{found:?}, {read}");
    // Files of the rule itself, replaced or extended.
    for number in 0..99 {
        fs::remove_file(web.join(format!("..data/link{number}"))).unwrap();
    }
    fs::rename(web.join("..data/large"), web.join("..data/a")).unwrap();
    let (found, read) = read_in_a_pass(&objects);
    assert!(found == State::Conflict && read <= 20, "{found:?}, {read}");
    // The object goes: what was replaced stays.
    let (_, read) = read_in_a_pass(&[]);
    assert!(read <= 20, "{read}");
    assert_eq!(bed.names("web"), ["a"]);
}

#[test]
fn nested_directories_of_others_block_neither_rule_nor_place() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    bed.pass(&rule, &[config_map(1, &json!({ "a": "1" }))], None);
    let deep: PathBuf = (0..12).map(|number| number.to_string()).collect();
    fs::create_dir_all(bed.base().join("web/..v1").join(&deep)).unwrap();
    for version in 2..5 {
        let (record, _) = bed.pass(&rule, &[config_map(version, &json!({ "a": version.to_string() }))], None);
        assert_eq!(state(&record), (State::InEffect, Some(version.to_string().as_str())));
        assert!(!bed.config.helper.state.join("r.intent").exists());
        assert_eq!(fs::read_to_string(bed.base().join("web/a")).unwrap(), version.to_string());
    }
    // Only the directories of others are left of the first version.
    assert_eq!(bed.names("web"), ["..data", "..v1", "..v4", "a"]);
    assert_eq!(bed.names("web/..v1"), ["0"]);
    // Once they can be removed, the next change removes them.
    fs::remove_dir_all(bed.base().join("web/..v1/0/1")).unwrap();
    bed.pass(&rule, &[config_map(5, &json!({ "a": "5" }))], None);
    assert_eq!(bed.names("web"), ["..data", "..v5", "a"]);
}

#[test]
fn place_that_cannot_be_rolled_back_blocks_no_other() {
    let bed = Bed::new();
    let base = bed.base();
    // As if a user of the service replaced a link during the reload.
    let planted = format!(
        "cd {}; grep -q bad web/a 2>/dev/null || exit 0; rm web/..data; mkdir -p web/..data/theirs; exit 1",
        base.display()
    );
    let rule = Rule { reload: Reload::Run(script(&planted)), ..bed.rule("{metadata.name}", Write::Keys) };
    let named = |name: &str, version: u32, text: &str| {
        let mut object = config_map(version, &json!({ "a": text }));
        (object["metadata"]["name"], object["metadata"]["uid"]) = (name.into(), name.into());
        object
    };
    bed.pass(&rule, &[named("api", 1, "1"), named("web", 1, "1")], None);
    let objects = [named("api", 2, "2"), named("web", 2, "bad")];
    for _ in 0..2 {
        let (record, _) = bed.pass(&rule, &objects, None);
        assert_eq!(record.objects["api"].version.as_deref(), Some("2"));
        let web = &record.objects["web"];
        assert_eq!((web.state, web.version.as_deref()), (State::NotInEffect, None));
        assert!(record.stuck.len() == 1 && record.places.len() == 2, "{record:?}");
    }
    assert_eq!(Records::open(&bed.config).unwrap().all["r"].stuck.len(), 1);
    fs::remove_dir_all(base.join("web/..data")).unwrap();
    let objects = [named("api", 3, "3"), named("web", 3, "3")];
    let (record, _) = bed.pass(&rule, &objects, None);
    assert!(record.stuck.is_empty());
    assert_eq!(record.counts(), [2, 0, 0]);
    assert_eq!(fs::read_to_string(base.join("web/a")).unwrap(), "3");
    assert_eq!(bed.names("web").len(), 3);
}

#[test]
fn conflict_in_the_old_place_does_not_affect_the_new() {
    let bed = Bed::new();
    let objects = [config_map(1, &json!({ "a": "ours" }))];
    bed.pass(&bed.rule("{metadata.name}", Write::Keys), &objects, None);
    let rule = Rule { text: "2".into(), ..bed.rule("new-{metadata.name}", Write::Keys) };
    // The database was lost: written files stay for now.
    let mut records = Records::open(&bed.config).unwrap();
    let mut executor = Executor::new(&rule, &bed.config, &mut records).unwrap();
    let options = Options { look: true, force: true, keep: true, now: 1 };
    let listed: Vec<Listed> = objects.iter().map(listed).collect();
    let kept = executor.run_pass(&mut records, &listed, options, false, |pass| {
        pass.apply(&mut |number| objects.get(number).cloned())
    });
    assert_eq!(kept, Ok(None));
    drop((executor, records));
    assert_eq!(bed.names(""), ["new-web", "web"]);
    fs::remove_file(bed.base().join("web/a")).unwrap();
    fs::write(bed.base().join("web/a"), "theirs").unwrap();
    for _ in 0..2 {
        let (record, _) = bed.pass(&rule, &objects, None);
        assert_eq!(state(&record), (State::InEffect, Some("1")));
    }
    assert_eq!(bed.names("web"), ["a"]);
}

#[test]
fn foreign_link_stays_when_the_object_is_deleted() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    bed.pass(&rule, &[config_map(1, &json!({ "a": "ours" }))], None);
    fs::remove_file(bed.base().join("web/..data")).unwrap();
    symlink("elsewhere", bed.base().join("web/..data")).unwrap();
    let (record, _) = bed.pass(&rule, &[], None);
    assert!(record.places.is_empty() && record.objects["u"].message.contains("..data"), "{record:?}");
    assert_eq!(fs::read_link(bed.base().join("web/..data")).unwrap(), Path::new("elsewhere"));
}

#[test]
fn check_sees_the_candidate_before_the_swap() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    bed.pass(&rule, &[config_map(1, &json!({ "a": "good" }))], None);
    let script = "grep -q good \"$EDGESYNC_CANDIDATE/a\" || { echo unsound; exit 3; }; cut -f1 \"$EDGESYNC_CANDIDATES\"";
    let check = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let rule = Rule { check, check_user: CheckUser::Root, ..rule };
    let (record, _) = bed.pass(&rule, &[config_map(2, &json!({ "a": "bad" }))], None);
    assert_eq!(state(&record), (State::NotInEffect, Some("1")));
    assert!(record.objects["u"].message.contains("unsound") && !record.objects["u"].rolled_back);
    assert_eq!(fs::read_to_string(bed.base().join("web/a")).unwrap(), "good");
    let (record, _) = bed.pass(&rule, &[config_map(3, &json!({ "a": "good too" }))], None);
    assert_eq!(state(&record), (State::InEffect, Some("3")));
}

#[test]
fn secrets_are_written_to_memory_unless_the_rule_allows() {
    let bed = Bed::new();
    let mut secret = config_map(1, &json!({ "key": "c2VjcmV0" }));
    secret["kind"] = "Secret".into();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let (record, _) = bed.pass(&rule, std::slice::from_ref(&secret), None);
    assert_eq!(state(&record), (State::NotInEffect, None));
    assert!(record.objects["u"].message.contains("plain_text_on_disk"), "{:?}", record.objects["u"]);
    assert!(bed.names("").is_empty());
    let on_disk = Rule { plain_text_on_disk: true, ..rule };
    bed.pass(&on_disk, std::slice::from_ref(&secret), None);
    let file = bed.base().join("web/key");
    assert_eq!(fs::read_to_string(&file).unwrap(), "secret");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o400);
    if let Ok(memory) = tempfile::tempdir_in("/dev/shm") {
        let to = Template::parse(&format!("{}/{{metadata.name}}", memory.path().display())).unwrap();
        let other = Bed::new();
        let (record, _) = other.pass(&Rule { to, ..other.rule("x", Write::Keys) }, &[secret], None);
        assert_eq!(state(&record), (State::InEffect, Some("1")));
        assert_eq!(fs::read_to_string(memory.path().join("web/key")).unwrap(), "secret");
    }
    let kept = fs::read_to_string(bed.config.helper.state.join("r.json")).unwrap();
    assert!(!kept.contains("secret\"") && !kept.contains("c2VjcmV0"), "{kept}");
}

#[test]
fn configuration_writable_by_others_is_refused() {
    let bed = Bed::new();
    let path = bed.directory.path().join("edgesync.toml");
    fs::write(&path, "[node]\nname = \"a\"\n[link]\nbroker = \"mqtt://localhost\"\n").unwrap();
    super::rules(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(super::rules(&path).unwrap_err().to_string().contains("not owned by root"));
}

#[test]
fn linked_configuration_in_a_directory_of_others_is_refused() {
    let bed = Bed::new();
    let at = |name: &str| bed.directory.path().join(name);
    for directory in ["first", "second", "target"] {
        fs::create_dir(at(directory)).unwrap();
    }
    fs::write(at("target/edgesync.toml"), "[node]\nname = \"a\"\n[link]\nbroker = \"mqtt://localhost\"\n")
        .unwrap();
    symlink("../target/edgesync.toml", at("second/edgesync.toml")).unwrap();
    symlink(at("second/edgesync.toml"), at("first/edgesync.toml")).unwrap();
    let path = at("first/edgesync.toml");
    assert_eq!(super::rules(&path).unwrap().node.name, "a");
    for directory in ["first", "second", "target"] {
        fs::set_permissions(at(directory), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = super::rules(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("/{directory}: ")), "{refused}");
        fs::set_permissions(at(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    symlink("edgesync.toml", at("edgesync.toml")).unwrap();
    assert!(super::rules(&at("edgesync.toml")).is_err(), "a link to itself");
}

fn script(text: &str) -> Vec<String> {
    ["/bin/sh", "-c", text].map(str::to_owned).to_vec()
}

#[test]
fn changed_rule_is_retried_until_applied() {
    let bed = Bed::new();
    let objects = [config_map(1, &json!({ "a": "one" }))];
    let rule = bed.rule("{metadata.name}", Write::Keys);
    bed.pass(&rule, &objects, None);
    let marker = bed.directory.path().join("marker");
    let fails_once = script(&format!("test -e {0} || {{ touch {0}; exit 1; }}", marker.display()));
    let other = Rule { mode: Some(0o640), text: "2".into(), reload: Reload::Run(fails_once), ..rule };
    let mode = || fs::metadata(bed.base().join("web/a")).unwrap().mode() & 0o777;
    let (record, _) = bed.pass(&other, &objects, None);
    assert_eq!((state(&record), mode()), ((State::NotInEffect, Some("1")), 0o644));
    let (record, _) = bed.pass(&other, &objects, None);
    assert_eq!((state(&record), mode()), ((State::InEffect, Some("1")), 0o640));
}

#[test]
fn sealed_kinds_are_treated_as_secrets() {
    let bed = Bed::new();
    let mut object = config_map(1, &json!({ "key": "c2VjcmV0" }));
    object["kind"] = "Sealed".into();
    let (record, _) = bed.pass(&bed.rule("{metadata.name}", Write::Object(Format::Json)), &[object], None);
    assert_eq!(state(&record), (State::NotInEffect, None));
    assert!(record.objects["u"].message.contains("sealed kinds"), "{:?}", record.objects["u"]);
}

#[test]
fn disk_contains_no_trace_of_secrets() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
    let bed = Bed::new();
    let mut secret = config_map(1, &json!({ "key": "aHVudGVyMg==" }));
    secret["kind"] = "Secret".into();
    let before = secret.clone();
    let to = Template::parse(&format!("{}/{{metadata.name}}", memory.path().display())).unwrap();
    let rule = Rule { to, ..bed.rule("x", Write::Keys) };
    bed.pass(&rule, std::slice::from_ref(&secret), None);
    secret["metadata"]["resourceVersion"] = "2".into();
    secret["data"]["key"] = "aHVudGVyMw==".into();
    let check = script("cat $EDGESYNC_CANDIDATE/key; exit 1");
    let (record, _) = bed.pass(&Rule { check, check_user: CheckUser::Root, ..rule.clone() }, &[secret], None);
    assert!(record.objects["u"].message.contains("hunter3") && record.output.contains("hunter3"));
    let kept: String = fs::read_dir(&bed.config.helper.state)
        .unwrap()
        .map(|of| fs::read_to_string(of.unwrap().path()).unwrap())
        .collect();
    assert!(kept.contains("not kept") && !kept.contains("hunter"), "{kept}");
    let key = fs::read_to_string(bed.config.helper.socket.with_extension("key")).unwrap();
    let parts: Vec<&str> = key.trim_matches(['[', ']']).split(',').collect();
    assert!(parts.len() == 2 && parts.iter().all(|part| part.len() > 8 && !kept.contains(part)), "{kept}");
    // A reboot drops key and files; files that exist nevertheless are taken over.
    fs::remove_file(bed.config.helper.socket.with_extension("key")).unwrap();
    let (record, _) = bed.pass(&rule, &[before], None);
    assert_eq!(state(&record), (State::InEffect, Some("1")));
}

#[test]
fn place_removed_during_the_check_is_not_in_effect() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let check = script(&format!("rm -r {}/web", bed.base().display()));
    let rule = Rule { check, check_user: CheckUser::Root, ..rule };
    let (record, _) = bed.pass(&rule, &[config_map(1, &json!({ "a": "one" }))], None);
    assert_eq!(state(&record), (State::NotInEffect, None));
}

#[test]
fn new_message_of_the_same_failure_is_not_reported() {
    let bed = Bed::new();
    let check = script("date +%N; exit 1");
    let rule = Rule { check, check_user: CheckUser::Root, ..bed.rule("{metadata.name}", Write::Keys) };
    let objects = [config_map(1, &json!({ "a": "one" }))];
    let [one, two] = [(); 2].map(|()| bed.pass(&rule, &objects, None).0.objects["u"].clone());
    assert_eq!(one.seq, two.seq);
    assert_ne!(one.message, two.message);
}

#[test]
fn foreign_files_in_a_version_are_removed_with_it() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    bed.pass(&rule, &[config_map(1, &json!({ "a": "one" }))], None);
    fs::create_dir_all(bed.base().join("web/..v1/x/y")).unwrap();
    let name = std::ffi::OsStr::from_bytes(b"\xff");
    fs::write(bed.base().join("web/..v1/x").join(name), "").unwrap();
    let (record, _) = bed.pass(&rule, &[config_map(2, &json!({ "a": "two" }))], None);
    assert_eq!(state(&record), (State::InEffect, Some("2")));
    assert_eq!(bed.names("web"), ["..data", "..v2", "a"]);
}

#[test]
fn link_in_place_of_a_directory_backs_the_rule_off() {
    let bed = Bed::new();
    let objects = [config_map(1, &json!({ "a": "one" }))];
    bed.pass(&bed.rule("{metadata.name}", Write::Keys), &objects, None);
    fs::remove_dir_all(bed.base().join("web")).unwrap();
    symlink("/nowhere", bed.base().join("web")).unwrap();
    let rule = bed.rule("{metadata.name}", Write::Object(Format::Json));
    let mut records = Records::open(&bed.config).unwrap();
    let mut executor = Executor::new(&rule, &bed.config, &mut records).unwrap();
    let listed: Vec<Listed> = objects.iter().map(listed).collect();
    let options = Options { now: 1, ..Options::default() };
    let again = executor.run_pass(&mut records, &listed, options, false, |pass| {
        pass.apply(&mut |number| objects.get(number).cloned())
    });
    assert!(again.unwrap().is_some_and(|after| after > 0));
    assert_eq!(state(&records.all["r"]), (State::NotInEffect, Some("1")));
}

#[test]
fn object_is_in_effect_if_it_is_by_every_rule() {
    let bed = Bed::new();
    let mut records = Records::open(&bed.config).unwrap();
    for (rule, version, seq) in [("a", "1", 3), ("z", "2", 9)] {
        let status =
            Status { version: Some(version.into()), state: State::InEffect, seq, ..Status::default() };
        let objects = [("u".to_owned(), status)].into();
        records.all.insert(rule.into(), Record { objects, ..Record::default() });
    }
    let updates = records.updates(&ReportPosition::default());
    assert_eq!(updates.iter().map(|update| update.rule.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn change_is_one_log_line_and_a_partial_line_is_ignored() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let named = |number: u32, version: u32| {
        let mut object = config_map(version, &json!({ "a": version.to_string() }));
        object["metadata"]["name"] = format!("o{number:03}").into();
        object["metadata"]["uid"] = format!("u{number:03}").into();
        object
    };
    let mut objects: Vec<Value> = (0..200).map(|number| named(number, 1)).collect();
    let (record, log) = (bed.config.helper.state.join("r.json"), bed.config.helper.state.join("r.log"));
    bed.pass(&rule, &objects, None);
    let whole = fs::read(&record).unwrap();
    let mut lengths = Vec::new();
    for version in 2..40 {
        objects[7] = named(7, version);
        let (kept, _) = bed.pass(&rule, &objects, None);
        assert_eq!(kept.objects["u007"].version.as_deref(), Some(version.to_string().as_str()));
        lengths.push(fs::metadata(&log).unwrap().len());
    }
    assert_eq!(fs::read(&record).unwrap(), whole);
    assert!(lengths.windows(2).all(|of| of[1] > of[0] && of[1] - of[0] < 1500), "{lengths:?}");
    // A partial line after a power cut; the next write is a whole snapshot.
    let mut text = fs::read(&log).unwrap();
    text.truncate(text.len() - 10);
    fs::write(&log, text).unwrap();
    let records = Records::open(&bed.config).unwrap();
    assert_eq!(records.all["r"].objects["u007"].version.as_deref(), Some("38"));
    let (kept, _) = bed.pass(&rule, &objects, None);
    assert_eq!(kept.objects["u007"].version.as_deref(), Some("39"));
    assert_ne!(fs::read(&record).unwrap(), whole);
    assert_eq!(Records::open(&bed.config).unwrap().all["r"], kept);
}
