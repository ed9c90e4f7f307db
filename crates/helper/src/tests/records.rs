//! Records, intents and backups, also damaged and lost ones.

use super::*;
use edgesync_files::wire::ObjectCounts;

#[test]
fn record_of_an_older_version_is_read() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let objects = [config_map(1, &json!({ "a": "one" }))];
    bed.pass(&rule, &objects, None);
    let path = bed.config.helper.state.join("r.json");
    let mut kept: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let record = kept["record"].as_object_mut().unwrap();
    assert!(record.remove("stuck").is_some());
    let places = record["places"].as_object_mut().unwrap().values_mut();
    for held in places {
        assert!(held.as_object_mut().unwrap().remove("sizes").is_some());
        assert!(held.as_object_mut().unwrap().remove("parents").is_some());
    }
    fs::write(&path, kept.to_string()).unwrap();
    let (record, _) = bed.pass(&rule, &objects, None);
    assert_eq!(state(&record), (State::InEffect, Some("1")));
    assert_eq!(bed.names("web"), ["..data", "..v1", "a"]);
    let (record, _) = bed.pass(&rule, &[], None);
    assert!(record.places.is_empty() && bed.names("").is_empty());
}

#[test]
fn newest_unreported_deletions_are_remembered() {
    let bed = Bed::new();
    let mut records = Records::open(&bed.config).unwrap();
    let gone = |seq: u64| (format!("u{seq}"), Status { seq, ..Status::default() });
    let objects = (1..=MAX_GONE as u64 + 5).map(gone).collect();
    records.all.insert("r".into(), Record { objects, ..Record::default() });
    records.prune(&ReportPosition::default(), &["r"].into());
    let left = &records.all["r"].objects;
    assert_eq!(left.len(), MAX_GONE);
    assert!(!left.contains_key("u5") && left.contains_key("u6"));
}

/// Statuses summed over the rules counted an object once for each rule that writes it.
#[test]
fn object_of_two_rules_counts_once_in_its_worst_state() {
    let bed = Bed::new();
    let mut records = Records::open(&bed.config).unwrap();
    let record = |states: &[(&str, State)]| Record {
        objects: states
            .iter()
            .map(|(uid, state)| ((*uid).to_owned(), Status { state: *state, ..Status::default() }))
            .collect(),
        ..Record::default()
    };
    assert_eq!(records.counts(), ObjectCounts::default());
    records.all.insert(
        "one".into(),
        record(&[
            ("a", State::InEffect),
            ("b", State::InEffect),
            ("c", State::NotInEffect),
            ("d", State::Gone),
        ]),
    );
    assert_eq!(records.counts(), ObjectCounts { in_effect: 2, not_in_effect: 1, conflicts: 0, waiting: 0 });
    records.all.insert(
        "two".into(),
        record(&[
            ("a", State::InEffect),
            ("b", State::NotInEffect),
            ("c", State::Conflict),
            ("d", State::InEffect),
        ]),
    );
    assert_eq!(records.counts(), ObjectCounts { in_effect: 2, not_in_effect: 1, conflicts: 1, waiting: 0 });
}

#[test]
fn partial_intent_is_ignored() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    bed.pass(&rule, &[config_map(1, &json!({ "a": "1" }))], None);
    // The first failing call is the first one after the intent was written.
    bed.pass(&rule, &[config_map(2, &json!({ "a": "2" }))], Some(1));
    let note = bed.config.helper.state.join("r.intent");
    let whole = fs::read(&note).unwrap();
    for (version, length) in (3..).zip([0, 1, whole.len() / 2, whole.len() - 1, whole.len()]) {
        fs::write(&note, &whole[..length]).unwrap();
        let objects = [config_map(version, &json!({ "a": version.to_string() }))];
        let (record, _) = bed.pass(&rule, &objects, None);
        assert_eq!(state(&record), (State::InEffect, Some(version.to_string().as_str())));
        assert!(!note.exists());
        assert_eq!(fs::read_to_string(bed.base().join("web/a")).unwrap(), version.to_string());
    }
}

#[test]
fn reload_does_not_commit_a_reappeared_intent() {
    let bed = Bed::new();
    let marker = bed.directory.path().join("marker");
    let reload = Reload::Run(script(&format!("test -e {}", marker.display())));
    let rule = Rule { reload, ..bed.rule("{metadata.name}", Write::Keys) };
    let [old, new] = [1, 2].map(|version| [config_map(version, &json!({ "a": version.to_string() }))]);
    fs::write(&marker, "").unwrap();
    bed.pass(&rule, &old, None);
    let before = bed.names("web");
    bed.pass(&rule, &new, Some(1));
    let note = bed.config.helper.state.join("r.intent");
    let kept = fs::read(&note).unwrap();
    // The program rejects both new and old files, and accepts the old ones later.
    fs::remove_file(&marker).unwrap();
    assert!(bed.pass(&rule, &new, None).0.owes_reload);
    fs::write(&marker, "").unwrap();
    assert!(!bed.pass(&rule, &old, None).0.owes_reload);
    fs::write(&note, kept).unwrap();
    let (record, _) = bed.pass(&rule, &old, None);
    assert_eq!(state(&record), (State::InEffect, Some("1")));
    assert_eq!(bed.names("web"), before);
}

#[test]
fn lost_record_takes_over_desired_files() {
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
fn copied_backup_is_whole_or_not_there() {
    let bed = Bed::new();
    let rule = Rule { max_size: 10, ..bed.rule("x", Write::Field("/data/a".into())) };
    let mut records = Records::open(&bed.config).unwrap();
    let disk = Executor::new(&rule, &bed.config, &mut records).unwrap().disk;
    let directory = fs::File::open(bed.base()).unwrap().into();
    for (length, copied) in [(10, true), (11, false)] {
        let content = "x".repeat(length);
        fs::write(bed.base().join("file"), &content).unwrap();
        fs::set_permissions(bed.base().join("file"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(disk.copy(&directory, "file", "kept").is_ok(), copied);
        assert_eq!(bed.base().join("kept").exists(), copied);
        if copied {
            assert_eq!(fs::read_to_string(bed.base().join("kept")).unwrap(), content);
            assert_eq!(fs::metadata(bed.base().join("kept")).unwrap().mode() & 0o777, 0o640);
            fs::remove_file(bed.base().join("kept")).unwrap();
        }
    }
}

/// Names that a file gets at most; ext4 permits 65,000, and btrfs 65,535.
const MAX_LINKS: u32 = 66_000;

/// Gives a file as many names as its file system permits. Returns whether there is such a limit.
fn use_up_hard_links(file: &Path, names: &Path) -> bool {
    fs::create_dir(names).unwrap();
    let link = |number: u32| fs::hard_link(file, names.join(number.to_string()));
    let Some(error) = (0..MAX_LINKS).find_map(|number| link(number).err()) else { return false };
    assert_eq!(error.kind(), std::io::ErrorKind::TooManyLinks, "{error}");
    true
}

/// So it is on a file system without hard links, too.
#[test]
fn file_without_a_free_hard_link_is_restored_from_a_copy() {
    let bed = Bed::new();
    let file = bed.base().join("web.conf");
    fs::write(&file, "theirs").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
    if !use_up_hard_links(&file, &bed.directory.path().join("names")) {
        eprintln!("notice: hard links have no limit here; copies in their place were not tested");
        return;
    }
    let reload = Reload::Run(script("echo rejected; exit 1"));
    let rule = bed.rule("{metadata.name}.conf", Write::Field("/data/a".into()));
    let rule = Rule { overwrite: true, reload, ..rule };
    let objects = [config_map(1, &json!({ "a": "ours" }))];
    let run = |max_size: u64| {
        let (record, _) = bed.pass(&Rule { max_size, ..rule.clone() }, &objects, None);
        assert_eq!(state(&record), (State::NotInEffect, None));
        assert_eq!(bed.names(""), ["web.conf"]);
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
        let found = fs::metadata(&file).unwrap();
        assert_eq!(found.mode() & 0o777, 0o604);
        (record.objects["u"].message.clone(), found.nlink())
    };
    // A file above the limit of the rule is not copied, and so not replaced.
    let (message, links) = run(5);
    assert!(message.contains("File too large") && links > 1, "{message}, {links} links");
    let (message, links) = run(6);
    assert!(message.contains("rejected") && links == 1, "{message}, {links} links");
}

#[test]
fn bulk_flush_covers_every_file_system() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let mut records = Records::open(&bed.config).unwrap();
    let mut disk = Executor::new(&rule, &bed.config, &mut records).unwrap().disk;
    disk.batch_flush = true;
    for path in [bed.base(), bed.base(), PathBuf::from("/proc")] {
        disk.fsync(&fs::File::open(path).unwrap().into()).unwrap();
    }
    assert_eq!(disk.unflushed.borrow().len(), 2);
    disk.flush().unwrap();
    assert!(disk.unflushed.borrow().is_empty());
}
