//! Changes that wait on a real file system, holds over their socket, and reboots that empty the
//! memory.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};

use edgesync_files::WaitReason;
use edgesync_files::calendar::Window;
use edgesync_files::wire::{HoldReply, HoldRequest, Outcome, Reply, Request, Verb};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::*;

/// Returns a window that is days away.
fn closed_text() -> String {
    let day = TimeZone::UTC.to_datetime(Timestamp::now()).date();
    let day = day.checked_add(jiff::Span::new().days(3)).unwrap().weekday();
    format!("{} 02:00-04:00", &format!("{day:?}")[..3])
}

fn window(open: bool) -> Window {
    let text = if open { "00:00-24:00".to_owned() } else { closed_text() };
    Window::parse(&text, TimeZone::UTC).unwrap()
}

/// A rule that reloads by a line in a file beside the base.
fn rule(bed: &Bed, open: bool) -> Rule {
    let reloads = bed.directory.path().join("reloads");
    let script = format!("echo reload >>{}", reloads.display());
    let run = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    Rule { apply: vec![window(open)], reload: Reload::Run(run), ..bed.rule("{metadata.name}", Write::Keys) }
}

fn reloads(bed: &Bed) -> usize {
    fs::read_to_string(bed.directory.path().join("reloads")).unwrap_or_default().lines().count()
}

fn pass(bed: &Bed, rule: &Rule, version: u32) -> Record {
    pass_with(bed, rule, &[config_map(version, &json!({ "a": version.to_string() }))])
}

fn pass_with(bed: &Bed, rule: &Rule, objects: &[Value]) -> Record {
    let mut records = Records::open(&bed.config).unwrap();
    records.holds.observe(&bed.config);
    let mut executor = Executor::new(rule, &bed.config, &mut records).unwrap();
    let list: Vec<Listed> = objects.iter().map(listed).collect();
    let options = Options { look: true, force: true, keep: false, now: 1 };
    executor
        .run_pass(&mut records, &list, options, false, |pass| {
            pass.apply(&mut |number| objects.get(number).cloned())
        })
        .unwrap();
    records.all.remove(&rule.name).unwrap()
}

fn content(bed: &Bed) -> Option<String> {
    fs::read_to_string(bed.base().join("web/..data/a")).ok()
}

/// Empties the memory: files, and the key of their digests.
fn reboot(bed: &Bed) {
    fs::remove_dir_all(bed.base()).unwrap();
    fs::create_dir(bed.base()).unwrap();
    fs::remove_file(bed.config.helper.socket.with_extension("key")).unwrap();
}

#[test]
fn copy_of_files_in_memory_outlives_a_reboot_while_a_version_waits() {
    let bed = Bed::in_memory();
    if !crate::disk::is_in_memory(&bed.base().display().to_string()) {
        eprintln!("notice: no file system in memory here; reboots were not tested");
        return;
    }
    assert_eq!(state(&pass(&bed, &rule(&bed, true), 1)), (State::InEffect, Some("1")));
    for _ in 0..2 {
        let record = pass(&bed, &rule(&bed, false), 2);
        assert_eq!((state(&record), reloads(&bed)), ((State::Waiting, Some("1")), 1), "{record:?}");
        assert_eq!(content(&bed).as_deref(), Some("1"));
        reboot(&bed);
    }
    // An unreadable copy is no reason to write something else.
    let copies = bed.config.helper.state.join("r.kept");
    let copy = fs::read_dir(&copies).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(&copy).unwrap();
    fs::write(&copy, b"x").unwrap();
    let record = pass(&bed, &rule(&bed, false), 2);
    assert_eq!((state(&record), content(&bed)), ((State::Waiting, None), None));
    fs::write(&copy, bytes).unwrap();
    assert_eq!(state(&pass(&bed, &rule(&bed, false), 2)), (State::Waiting, Some("1")));
    let record = pass(&bed, &rule(&bed, true), 2);
    assert_eq!((state(&record), reloads(&bed)), ((State::InEffect, Some("2")), 2));
    assert_eq!((content(&bed).as_deref(), fs::read_dir(&copies).unwrap().count()), (Some("2"), 1));
    pass_with(&bed, &rule(&bed, true), &[]);
    assert!(!copies.exists(), "nothing is in effect, and nothing kept");
}

#[test]
fn power_cut_in_a_change_that_closes_reloads_nothing_and_loses_no_copy() {
    for calls in (0..60).step_by(3) {
        let bed = Bed::in_memory();
        pass(&bed, &rule(&bed, true), 1);
        let two = [config_map(2, &json!({ "a": "2" }))];
        bed.pass(&rule(&bed, true), &two, Some(calls));
        let before = reloads(&bed);
        reboot_if_in_memory(&bed);
        let record = pass(&bed, &rule(&bed, false), 3);
        assert_eq!(reloads(&bed), before, "after {calls} calls");
        let files = content(&bed);
        assert!(matches!(files.as_deref(), Some("1" | "2")), "after {calls} calls: {files:?}");
        let claimed = record.objects["u"].version.clone();
        assert!(claimed.is_none() || claimed == files, "after {calls} calls: {claimed:?}, {files:?}");
        let record = pass(&bed, &rule(&bed, true), 3);
        assert_eq!(state(&record), (State::InEffect, Some("3")), "after {calls} calls");
    }
}

fn reboot_if_in_memory(bed: &Bed) {
    if crate::disk::is_in_memory(&bed.base().display().to_string()) {
        reboot(bed);
    }
}

/// A helper with both sockets, and a rule.
struct Holding {
    bed: Bed,
    holds: PathBuf,
}

impl Holding {
    fn new(bed: Bed, keys: &str) -> Self {
        let (socket, holds) = (bed.config.helper.socket.clone(), bed.directory.path().join("hold.sock"));
        let (agent, listener) = (UnixListener::bind(&socket).unwrap(), UnixListener::bind(&holds).unwrap());
        let config = bed.directory.path().join("edgesync.toml");
        let text = format!(
            "[[files]]\nname = \"r\"\nobjects = {{ kinds = [\"configmaps\"] }}\nto = \"{}/{{metadata.name}}\"\n{keys}\n\
             [node]\nname = \"a\"\n[link]\nbroker = \"mqtt://localhost\"\n[helper]\nsocket = {socket:?}\nstate = {:?}\n",
            bed.base().display(),
            bed.config.helper.state
        );
        fs::write(&config, text).unwrap();
        // It serves until the test process ends.
        std::thread::spawn(move || crate::serve::serve(&agent, Some(&listener), &config, None).unwrap());
        Self { bed, holds }
    }

    fn ask(&self, request: &HoldRequest) -> HoldReply {
        let mut stream = UnixStream::connect(&self.holds).unwrap();
        send(&mut stream, &serde_json::to_vec(request).unwrap());
        serde_json::from_slice(&receive(&mut stream)).unwrap()
    }

    /// Forces the rule with this version.
    fn force(&self, version: u32) -> Outcome {
        let object = config_map(version, &json!({ "a": version.to_string() }));
        let mut stream = UnixStream::connect(&self.bed.config.helper.socket).unwrap();
        let request =
            Request { verb: Verb::Apply, rule: "r".into(), look: true, force: true, ..Request::default() };
        let list = serde_json::to_vec(&[listed(&object)]).unwrap();
        for frame in [Vec::new(), serde_json::to_vec(&request).unwrap()] {
            send(&mut stream, &frame);
        }
        loop {
            match serde_json::from_slice(&receive(&mut stream)).unwrap() {
                Reply::Whole => {
                    send(&mut stream, &list);
                    send(&mut stream, &[]);
                }
                Reply::Want(wanted) => {
                    wanted.iter().for_each(|_| send(&mut stream, object.to_string().as_bytes()));
                }
                Reply::Done(outcome) => return *outcome,
                Reply::Refused(why) => panic!("{why}"),
            }
        }
    }
}

fn send(stream: &mut UnixStream, frame: &[u8]) {
    stream.write_all(&u32::try_from(frame.len()).unwrap().to_le_bytes()).unwrap();
    stream.write_all(frame).unwrap();
}

fn receive(stream: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    frame
}

fn new_hold(rule: &str) -> HoldRequest {
    HoldRequest::Hold { rule: rule.to_owned(), seconds: 7200, why: "harvest".to_owned() }
}

#[test]
fn forced_request_overrides_neither_window_nor_hold() {
    let keys = format!("apply = {{ at = \"{}\" }}\noverridable = true", closed_text());
    let served = Holding::new(Bed::new(), &keys);
    let outcome = served.force(1);
    let rule = &outcome.rules[0];
    assert_eq!((rule.waiting, rule.in_effect, content(&served.bed)), (1, 0, None), "{outcome:?}");
    assert_eq!(rule.closed.as_ref().map(|closed| closed.reason), Some(WaitReason::Window));
    let served = Holding::new(Bed::new(), "");
    assert_eq!(served.force(1).rules[0].in_effect, 1);
    let HoldReply::Done(made) = served.ask(&new_hold("r")) else { panic!("not made") };
    let outcome = served.force(2);
    let rule = &outcome.rules[0];
    assert_eq!((rule.waiting, rule.in_effect, content(&served.bed).as_deref()), (1, 0, Some("1")));
    let closed = rule.closed.as_ref().unwrap();
    assert_eq!(closed.reason, WaitReason::Hold);
    assert!(closed.message.ends_with(": harvest"), "{closed:?}");
    assert_eq!(outcome.holds.len(), 1);
    assert_eq!((outcome.holds[0].id, &outcome.holds[0].why), (made[0].id, &made[0].why));
    assert!(outcome.retry.is_some_and(|retry| retry <= 30_000));
    let HoldReply::Done(ended) = served.ask(&HoldRequest::Release(made[0].id)) else { panic!("not ended") };
    assert_eq!(ended.len(), 1);
    assert_eq!((served.force(2).rules[0].in_effect, content(&served.bed).as_deref()), (1, Some("2")));
}

#[test]
fn holds_outlive_a_restart_and_are_refused_with_a_sentence() {
    let served = Holding::new(Bed::new(), "");
    let refused = |request: &HoldRequest| match served.ask(request) {
        HoldReply::Refused(why) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&new_hold("s")), "no rule \"s\" in the configuration; rules: r");
    assert!(refused(&HoldRequest::Release(1)).starts_with("no such hold is in force"));
    let long = HoldRequest::Hold { rule: "r".into(), seconds: 90_000, why: "x".into() };
    assert_eq!(refused(&long), "hold for 25h: must be between 1s and 24h (helper.longest_hold)");
    assert!(matches!(served.ask(&new_hold("r")), HoldReply::Done(_)));
    // Another helper reads the same state.
    let records = Records::open(&served.bed.config).unwrap();
    assert_eq!(records.holds.infos().len(), 1);
    // Damaged, it holds everything: what was held is unknown.
    fs::write(records.holds.path(), b"{").unwrap();
    let error = edgesync_runtime::chain(&Records::open(&served.bed.config).unwrap_err());
    assert!(error.contains("read holds") && error.contains("hint: remove the file"), "{error}");
}

#[test]
fn silent_client_of_holds_does_not_keep_the_agent_out() {
    let served = Holding::new(Bed::new(), "");
    let _silent = UnixStream::connect(&served.holds).unwrap();
    let mut flooding = UnixStream::connect(&served.holds).unwrap();
    flooding.write_all(&u32::MAX.to_le_bytes()).unwrap();
    assert_eq!(served.force(1).rules[0].in_effect, 1);
    let refused: HoldReply = serde_json::from_slice(&receive(&mut flooding)).unwrap();
    assert!(
        matches!(&refused, HoldReply::Refused(why) if why.contains("must have at most 4096")),
        "{refused:?}"
    );
    assert!(matches!(served.ask(&HoldRequest::List), HoldReply::Done(holds) if holds.is_empty()));
}

/// Each byte restarted the time limit.
#[test]
fn client_of_holds_that_drips_ends_at_the_time_limit() {
    let served = Holding::new(Bed::new(), "");
    let mut dripping = UnixStream::connect(&served.holds).unwrap();
    dripping.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
    dripping.write_all(&4096_u32.to_le_bytes()).unwrap();
    let sent = (0..4096).take_while(|_| {
        let is_sent = dripping.write_all(b" ").is_ok();
        is_sent && !matches!(dripping.read(&mut [0; 4]), Ok(0))
    });
    assert!(sent.count() < 4000, "the request was read to its end");
    assert!(matches!(served.ask(&HoldRequest::List), HoldReply::Done(holds) if holds.is_empty()));
}

/// Nothing tried again: the removal waited until the agent was restarted.
#[test]
fn removal_of_a_held_rule_is_tried_again_and_leaves_no_copies() {
    let served = Holding::new(Bed::in_memory(), "");
    assert_eq!(served.force(1).rules[0].in_effect, 1);
    let HoldReply::Done(made) = served.ask(&new_hold("r")) else { panic!("not made") };
    let config = served.bed.directory.path().join("edgesync.toml");
    let text = fs::read_to_string(&config).unwrap().replace("name = \"r\"", "name = \"s\"");
    fs::write(&config, text.replace("{metadata.name}", "other/{metadata.name}")).unwrap();
    let stray = served.bed.config.helper.state.join("lost.kept");
    fs::create_dir(&stray).unwrap();
    fs::write(stray.join("1"), b"sealed").unwrap();
    let clear = || {
        let mut stream = UnixStream::connect(&served.bed.config.helper.socket).unwrap();
        let request = Request { verb: Verb::Clear, ..Request::default() };
        for frame in [Vec::new(), serde_json::to_vec(&request).unwrap()] {
            send(&mut stream, &frame);
        }
        match serde_json::from_slice(&receive(&mut stream)).unwrap() {
            Reply::Done(outcome) => outcome.retry,
            other => panic!("{other:?}"),
        }
    };
    assert!(clear().is_some_and(|retry| (1000..=30_000).contains(&retry)), "it waits for the hold");
    assert_eq!(content(&served.bed).as_deref(), Some("1"));
    assert!(!stray.exists(), "copies without a record");
    assert!(matches!(served.ask(&HoldRequest::Release(made[0].id)), HoldReply::Done(_)));
    assert_eq!((clear(), content(&served.bed)), (None, None));
    assert!(!served.bed.config.helper.state.join("r.kept").exists());
}

/// Its file system was not mounted yet: the Secret was written to the disk below.
#[test]
fn copy_of_a_secret_is_not_restored_to_a_disk() {
    let bed = Bed::new();
    if crate::disk::is_in_memory(&bed.base().display().to_string()) {
        eprintln!("notice: no disk here; copies on disks were not tested");
        return;
    }
    let mut records = Records::open(&bed.config).unwrap();
    let mut rule = bed.rule("{metadata.name}", Write::Keys);
    let place = rule.to.place("n", "web").unwrap();
    let files = edgesync_files::contents::Files::from([("a".to_owned(), b"hunter2".to_vec())]);
    crate::kept::Copies::new("r", &bed.config).write(7, &place, &files, true).unwrap();
    let held = edgesync_files::Held {
        place,
        shape: edgesync_files::Shape::Directory,
        stamp: 7,
        made: true,
        parents: 0,
        files: Default::default(),
        sizes: Vec::new(),
        bytes: 0,
        members: Vec::new(),
        rule: Default::default(),
        kept: Some(7),
        lost: false,
    };
    let revive = |rule: &Rule, records: &mut Records| {
        let mut executor = Executor::new(rule, &bed.config, records).unwrap();
        edgesync_files::Effects::revive(&mut executor, &held, 8)
    };
    let refused = revive(&rule, &mut records).unwrap_err().message;
    assert!(refused.contains("plain_text_on_disk"), "{refused}");
    assert_eq!(fs::read_dir(bed.base()).unwrap().count(), 0);
    rule.plain_text_on_disk = true;
    assert_eq!(revive(&rule, &mut records).unwrap().len(), 1);
}

/// It was written again from memory, by a helper that did not end while something waited.
#[test]
fn removed_state_of_the_clock_begins_anew_in_a_running_helper() {
    let bed = Bed::new();
    let mut config = bed.config.clone();
    config.files.rules.push(rule(&bed, true));
    let open = || Records::open(&config).unwrap();
    let mut records = open();
    records.holds.observe(&config);
    let path = records.holds.path().to_owned();
    // A time ahead, of an earlier boot.
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let ahead = Timestamp::now().as_microsecond() + 10_000_000_000_000;
    state["clock"]["last"]["boot"] = json!("earlier");
    state["clock"]["mark"] = json!([ahead, 5]);
    fs::write(&path, state.to_string()).unwrap();
    let mut records = open();
    records.holds.observe(&config);
    assert!(!records.holds.clock().is_known());
    fs::remove_file(&path).unwrap();
    records.holds.observe(&config);
    assert!(records.holds.clock().is_known());
}
