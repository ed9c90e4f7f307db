//! The layout on a real file system: a power cut at each call, links and files of others, modes.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::records::Records;
use super::serve::Carrier;
use crate::config::edge::Config;
use crate::files::pass::Options;
use crate::files::rule::{Reload, Rule, Write};
use crate::files::template::Template;
use crate::files::wire::Listed;
use crate::files::{Record, State};

/// A directory for files and one for records.
struct Bed {
    directory: tempfile::TempDir,
    config: Config,
}

impl Bed {
    fn new() -> Self {
        // Not in memory, wherever temporary files are.
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
        fs::create_dir_all(&target).unwrap();
        let directory = tempfile::tempdir_in(target).unwrap();
        let mut config = Config::default();
        config.helper.state = directory.path().join("state");
        fs::create_dir(directory.path().join("base")).unwrap();
        Self { directory, config }
    }

    fn base(&self) -> PathBuf {
        self.directory.path().join("base")
    }

    fn rule(&self, to: &str, write: Write) -> Rule {
        let to = Template::parse(&format!("{}/{to}", self.base().display())).unwrap();
        Rule { name: "r".into(), to, write, text: "1".into(), ..Rule::default() }
    }

    /// A pass; the world ends after so many calls.
    fn pass(&self, rule: &Rule, objects: &[Value], calls: Option<u32>) -> (Record, bool) {
        let mut records = Records::open(&self.config.helper.state).unwrap();
        let mut carrier = Carrier::new(rule, &self.config, &mut records).unwrap();
        carrier.disk.fuse.set(calls);
        let fuse = carrier.disk.fuse.clone();
        let listed: Vec<Listed> = objects.iter().map(listed).collect();
        let options = Options { look: true, force: true, keep: false, now: 1 };
        carrier.work(&mut records, &listed, options, |pass| {
            pass.carry_out(&mut |number| objects.get(number).cloned());
        });
        (records.take("r"), fuse.get() == Some(0))
    }

    fn names(&self, place: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.base().join(place))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn listed(object: &Value) -> Listed {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    Listed {
        uid: text("uid"),
        api_version: "v1".into(),
        kind: object["kind"].as_str().unwrap().to_owned(),
        namespace: text("namespace"),
        name: text("name"),
        version: text("resourceVersion"),
    }
}

fn config_map(version: u32, data: &Value) -> Value {
    json!({
        "kind": "ConfigMap",
        "metadata": { "name": "web", "namespace": "n", "uid": "u", "resourceVersion": version.to_string() },
        "data": data,
    })
}

fn state(record: &Record) -> (State, Option<&str>) {
    let status = &record.objects["u"];
    (status.state, status.version.as_deref())
}

#[test]
fn a_power_cut_at_any_call_leaves_one_whole_set_and_the_next_pass_the_new_one() {
    let (one, two) = (json!({ "a": "one", "b": "one" }), json!({ "b": "two", "c": "two" }));
    for calls in 0.. {
        let bed = Bed::new();
        let rule = bed.rule("{metadata.name}", Write::Keys);
        bed.pass(&rule, &[config_map(1, &one)], None);
        let (_, ended) = bed.pass(&rule, &[config_map(2, &two)], Some(calls));
        let read = |name: &str| fs::read_to_string(bed.base().join("web/..data").join(name)).ok();
        let seen = ["a", "b", "c"].map(read);
        let sets = [[Some("one"), Some("one"), None], [None, Some("two"), Some("two")]];
        let seen = seen.each_ref().map(Option::as_deref);
        assert!(sets.contains(&seen), "after {calls} calls: {seen:?}");
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
fn a_power_cut_while_one_file_is_replaced_leaves_the_old_or_the_new_one() {
    for calls in 0.. {
        let bed = Bed::new();
        let rule = bed.rule("{metadata.name}.conf", Write::Field("/data/a".into()));
        bed.pass(&rule, &[config_map(1, &json!({ "a": "one" }))], None);
        let two = [config_map(2, &json!({ "a": "two" }))];
        let (_, ended) = bed.pass(&rule, &two, Some(calls));
        let seen = fs::read_to_string(bed.base().join("web.conf")).unwrap();
        assert!(["one", "two"].contains(&&*seen), "after {calls} calls: {seen:?}");
        let (record, _) = bed.pass(&rule, &two, None);
        assert_eq!(state(&record), (State::InEffect, Some("2")), "after {calls} calls");
        assert_eq!(bed.names(""), ["web.conf"], "after {calls} calls");
        if !ended {
            break;
        }
    }
}

#[test]
fn a_power_cut_while_files_go_or_come_leaves_nothing_behind() {
    for (first, second) in [(1, 0), (0, 1)] {
        for calls in 0.. {
            let bed = Bed::new();
            for write in [Write::Keys, Write::Field("/data/a".into())] {
                let to = if write == Write::Keys { "{metadata.name}" } else { "{metadata.name}.conf" };
                let rule = bed.rule(to, write);
                let objects = [config_map(1, &json!({ "a": "one" }))];
                bed.pass(&rule, &objects[..first], None);
                bed.pass(&rule, &objects[..second], Some(calls));
                let (record, _) = bed.pass(&rule, &objects[..second], None);
                assert_eq!(record.places.len(), second, "after {calls} calls");
                // Its rule has another shape then: what it has written goes first.
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
fn links_of_others_are_not_followed() {
    let bed = Bed::new();
    let elsewhere = bed.directory.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let objects = [config_map(1, &json!({ "a": "one" }))];
    symlink(&elsewhere, bed.base().join("web")).unwrap();
    let (record, _) = bed.pass(&bed.rule("{metadata.name}", Write::Keys), &objects, None);
    assert_eq!(state(&record), (State::NotInEffect, None));
    assert!(record.objects["u"].message.contains("made a link"), "{:?}", record.objects["u"]);
    symlink(&elsewhere, bed.base().join("n")).unwrap();
    let (record, _) = bed.pass(&bed.rule("{metadata.namespace}/x", Write::Keys), &objects, None);
    assert_eq!(state(&record), (State::NotInEffect, None));
    // A link in the place of a file is somebody else's.
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
fn files_of_others_stay_and_are_put_back_when_the_program_does_not_take_the_new_ones() {
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
    // Files beside them are nobody's business.
    fs::write(bed.base().join("web/other"), "theirs").unwrap();
    bed.pass(&rule, &[], None);
    assert_eq!(bed.names("web"), ["other"]);
}

#[test]
fn the_check_sees_the_candidate_and_nothing_is_replaced_before() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    bed.pass(&rule, &[config_map(1, &json!({ "a": "good" }))], None);
    let script = "grep -q good \"$EDGESYNC_CANDIDATE/a\" || { echo unsound; exit 3; }; cut -f1 \"$EDGESYNC_CANDIDATES\"";
    let check = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let rule = Rule { check, ..rule };
    let (record, _) = bed.pass(&rule, &[config_map(2, &json!({ "a": "bad" }))], None);
    assert_eq!(state(&record), (State::NotInEffect, Some("1")));
    assert!(record.objects["u"].message.contains("unsound") && !record.objects["u"].rolled_back);
    assert_eq!(fs::read_to_string(bed.base().join("web/a")).unwrap(), "good");
    let (record, _) = bed.pass(&rule, &[config_map(3, &json!({ "a": "good too" }))], None);
    assert_eq!(state(&record), (State::InEffect, Some("3")));
}

#[test]
fn secrets_are_written_to_memory_alone_unless_the_rule_says_otherwise() {
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
fn a_record_that_is_lost_takes_over_what_is_as_it_is_wanted() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let objects = [config_map(1, &json!({ "a": "one" }))];
    bed.pass(&rule, &objects, None);
    fs::write(bed.config.helper.state.join("r.json"), "{ not json").unwrap();
    let (record, _) = bed.pass(&rule, &objects, None);
    assert_eq!(state(&record), (State::InEffect, Some("1")));
    assert_eq!(fs::read_to_string(bed.base().join("web/a")).unwrap(), "one");
}

#[test]
fn a_configuration_that_others_can_write_is_refused() {
    let bed = Bed::new();
    let path = bed.directory.path().join("edgesync.toml");
    fs::write(&path, "[node]\nname = \"a\"\n[link]\nbroker = \"mqtt://localhost\"\n").unwrap();
    super::rules(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(super::rules(&path).unwrap_err().to_string().contains("root alone"));
}
