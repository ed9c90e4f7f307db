//! Tests of the helper over its socket: lists, repeated statuses, refusals, and a client that is
//! not the agent it claims to be.

use std::fs;
use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use super::executor::Executor;
use super::records::Records;
use super::tests::{Bed, config_map, listed};
use edgesync_files::pass::Options;
use edgesync_files::rule::Write;
use edgesync_files::wire::{Listed, MAX_CHANGED, MAX_FRAME, Outcome, Reply, ReportPosition, Request, Verb};
use edgesync_files::{Member, State};

/// A helper that serves in a thread, and its client.
struct Served {
    bed: Bed,
}

impl Served {
    fn new(bed: Bed, rules: &str) -> Self {
        let socket = bed.config.helper.socket.clone();
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let config = bed.directory.path().join("edgesync.toml");
        let served = Self { bed };
        served.configure(rules);
        // It serves until the test process ends.
        std::thread::spawn(move || super::serve::serve(&listener, None, &config, None).unwrap());
        served
    }

    /// Starts another helper with these rules on the records of the first.
    fn restarted(self, rules: &str) -> Self {
        fs::remove_file(&self.bed.config.helper.socket).unwrap();
        Self::new(self.bed, rules)
    }

    fn configure(&self, rules: &str) {
        let helper = &self.bed.config.helper;
        let head = format!(
            "[node]\nname = \"a\"\n[link]\nbroker = \"mqtt://localhost\"\n[helper]\nsocket = {:?}\nstate = {:?}\n",
            helper.socket, helper.state
        );
        fs::write(self.bed.directory.path().join("edgesync.toml"), head + rules).unwrap();
    }

    /// Sends a request and the requested objects, except those marked as changed.
    fn send_request(&self, request: &Request, objects: &[Value]) -> Reply {
        self.send_request_with(request, objects, &objects.iter().map(listed).collect::<Vec<_>>()).0
    }

    /// The same, with `first` as the list of changes. Also returns whether the whole list was
    /// requested.
    fn send_request_with(&self, request: &Request, objects: &[Value], first: &[Listed]) -> (Reply, bool) {
        let body = |member: &Member| {
            let fits = |object: &&Value| {
                let listed = listed(object);
                listed.uid == member.uid && listed.version == member.version && object["changed"] != true
            };
            objects.iter().find(fits).map(Value::to_string).unwrap_or_default()
        };
        let all: Vec<Listed> = objects.iter().map(listed).collect();
        self.exchange(request, first, &all, &body)
    }

    /// Sends a request with a list of changes, the whole list if requested, and for each requested
    /// object what `body` returns. Also returns whether the whole list was requested.
    fn exchange(
        &self,
        request: &Request,
        first: &[Listed],
        all: &[Listed],
        body: &dyn Fn(&Member) -> String,
    ) -> (Reply, bool) {
        let mut whole = false;
        let mut stream = std::os::unix::net::UnixStream::connect(&self.bed.config.helper.socket).unwrap();
        let send = |stream: &mut std::os::unix::net::UnixStream, frame: &[u8]| {
            stream.write_all(&u32::try_from(frame.len()).unwrap().to_le_bytes()).unwrap();
            stream.write_all(frame).unwrap();
        };
        send(&mut stream, &serde_json::to_vec(first).unwrap());
        send(&mut stream, &[]);
        send(&mut stream, &serde_json::to_vec(request).unwrap());
        loop {
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            let mut frame = vec![0; u32::from_le_bytes(length) as usize];
            stream.read_exact(&mut frame).unwrap();
            match serde_json::from_slice(&frame).unwrap() {
                Reply::Want(requested) => {
                    for member in requested {
                        send(&mut stream, body(&member).as_bytes());
                    }
                }
                Reply::Whole => {
                    whole = true;
                    send(&mut stream, &serde_json::to_vec(all).unwrap());
                    send(&mut stream, &[]);
                }
                reply => return (reply, whole),
            }
        }
    }

    /// Names the changes since a list; returns the outcome, and whether the whole list was
    /// requested.
    fn name_changes(&self, since: Option<u64>, changed: &[Value], objects: &[Value]) -> (Outcome, bool) {
        let request = Request { since, ..apply() };
        let changed: Vec<Listed> = changed.iter().map(listed).collect();
        match self.send_request_with(&request, objects, &changed) {
            (Reply::Done(outcome), whole) => (*outcome, whole),
            other => panic!("{other:?}"),
        }
    }

    fn done(&self, request: &Request, objects: &[Value]) -> Outcome {
        match self.send_request(request, objects) {
            Reply::Done(outcome) => *outcome,
            other => panic!("{other:?}"),
        }
    }
}

fn a_rule(bed: &Bed) -> String {
    format!(
        "[[files]]\nname = \"r\"\nobjects = {{ kinds = [\"configmaps\"] }}\nto = \"{}/{{metadata.name}}\"\n",
        bed.base().display()
    )
}

fn apply() -> Request {
    Request { verb: Verb::Apply, rule: "r".into(), ..Request::default() }
}

#[test]

fn invalid_configuration_is_reported_until_corrected() {
    let bed = Bed::new();
    let rules = a_rule(&bed);
    let served = Served::new(bed, "nonsense = 1\n");
    let objects = [config_map(1, &json!({ "a": "one" }))];
    let request = apply();
    assert!(
        matches!(served.send_request(&request, &objects), Reply::Refused(why) if why.contains("nonsense"))
    );
    served.configure(&rules);
    assert_eq!(served.done(&request, &objects).rules[0].in_effect, 1);
}

#[test]

fn object_changed_meanwhile_blocks_no_other() {
    let bed = Bed::new();
    let rules = a_rule(&bed);
    let served = Served::new(bed, &rules);
    let mut other = config_map(1, &json!({ "a": "one" }));
    other["metadata"]["name"] = "other".into();
    other["metadata"]["uid"] = "v".into();
    other["changed"] = true.into();
    let objects = [other, config_map(1, &json!({ "a": "one" }))];
    let outcome = served.done(&apply(), &objects);
    let told: Vec<_> =
        outcome.updates.iter().map(|update| (update.uid.as_str(), update.status.state)).collect();
    assert_eq!(told, [("u", State::InEffect)]);
}

#[test]

fn removed_rules_are_cleared_on_request_and_reported_again() {
    let bed = Bed::new();
    let rules = a_rule(&bed);
    let served = Served::new(bed, &rules);
    let objects = [config_map(1, &json!({ "a": "one" }))];
    let first = served.done(&apply(), &objects);
    served.configure("");
    let file = served.bed.base().join("web/a");
    let send_request = |verb, told: &ReportPosition| {
        served.done(&Request { verb, told: told.clone(), ..Request::default() }, &[])
    };
    send_request(Verb::Show, &first.told);
    assert!(file.exists());
    let cleared = send_request(Verb::Clear, &first.told);
    assert!(!file.exists() && cleared.updates[0].status.state == State::Gone);
    // The next request drops the record and its sequence numbers; a restarted helper does not know
    // them.
    send_request(Verb::Show, &cleared.told);
    let bed = &served.bed;
    assert!(!bed.config.helper.state.join("r.json").exists());
    let mut records = Records::open(&bed.config).unwrap();
    records.continue_after(&cleared.told);
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let mut executor = Executor::new(&rule, &bed.config, &mut records).unwrap();
    let listed: Vec<Listed> = objects.iter().map(listed).collect();
    let result = executor.run_pass(&mut records, &listed, Options::default(), false, |pass| {
        pass.apply(&mut |number| objects.get(number).cloned())
    });
    assert_eq!(result, Ok(None));
    assert_eq!(records.updates(&cleared.told).len(), 1);
}

#[test]
fn changes_are_listed_alone_unless_the_record_is_lost() {
    let bed = Bed::new();
    let rules = a_rule(&bed);
    let named = |name: &str, version: u32| {
        let mut object = config_map(version, &json!({ "a": version.to_string() }));
        object["metadata"]["name"] = name.into();
        object["metadata"]["uid"] = name.into();
        object
    };
    let mut objects = vec![named("one", 1), named("two", 1), named("three", 1)];
    let mut served = Served::new(bed, &rules);
    let base = served.bed.base();
    let read = |name: &str| fs::read_to_string(base.join(name).join("a")).ok();
    let known = served.done(&apply(), &objects).known;
    assert!(known.is_some());
    // One object changes, one is deleted; the third one is not named and stays.
    objects = vec![named("one", 2), named("three", 1)];
    let mut gone = named("two", 1);
    gone["metadata"]["resourceVersion"] = "".into();
    let (outcome, whole) = served.name_changes(known, &[named("one", 2), gone], &objects);
    assert!(!whole && outcome.known.is_some() && outcome.known != known);
    assert_eq!((read("one").as_deref(), read("two"), read("three").as_deref()), (Some("2"), None, Some("1")));
    // The checksum is of an older list.
    let (outcome, whole) = served.name_changes(known, &[], &objects);
    assert!(whole && outcome.rules[0].in_effect == 2);
    // A restarted helper knows the list from its record, unless that is lost.
    served = served.restarted(&rules);
    objects[0] = named("one", 3);
    let (outcome, whole) = served.name_changes(outcome.known, &[named("one", 3)], &objects);
    assert_eq!((whole, read("one").as_deref(), read("three").as_deref()), (false, Some("3"), Some("1")));
    let log = served.bed.config.helper.state.join("r.log");
    fs::remove_file(&log).unwrap();
    served = served.restarted(&rules);
    let (outcome, whole) = served.name_changes(outcome.known, &[], &objects);
    assert!(whole && outcome.known.is_some() && outcome.rules[0].in_effect == 2, "{outcome:?}");
    // Beyond the limit the whole list is requested.
    let many: Vec<Value> = (0..=MAX_CHANGED).map(|number| named(&format!("n{number}"), 1)).collect();
    assert!(served.name_changes(outcome.known, &many, &objects).1);
    assert!(!served.name_changes(outcome.known, &[], &objects).1);
    // An object that changed before it was sent is not remembered as listed.
    let mut meanwhile = named("one", 5);
    meanwhile["changed"] = true.into();
    objects[0] = meanwhile;
    assert_eq!(served.done(&apply(), &objects).known, None);
}

/// A request that waits for no earlier failure.
fn retry() -> Request {
    Request { force: true, ..apply() }
}

/// A rule that selects objects by all clauses.
fn narrow_rule(bed: &Bed) -> String {
    format!(
        "[[files]]\nname = \"r\"\nto = \"{}/{{metadata.name}}\"\nobjects = {{ kinds = [\"configmaps\"], \
         namespaces = [\"n\"], names = [\"web\", \"api\"], selector = \"app=web\" }}\n",
        bed.base().display()
    )
}

/// An object that the narrow rule selects, with one field set to another value.
fn other(field: &str, value: &str) -> Value {
    let mut object = config_map(1, &json!({ "a": "planted" }));
    object["metadata"]["labels"] = json!({ "app": "web" });
    *object.pointer_mut(field).unwrap() = value.into();
    object
}

#[test]
fn objects_that_the_rule_does_not_select_are_not_written() {
    let bed = Bed::new();
    let rules = narrow_rule(&bed);
    let served = Served::new(bed, &rules);
    for (field, value) in [
        ("/kind", "Secret"),
        ("/metadata/namespace", "other"),
        ("/metadata/name", "sshd"),
        ("/metadata/labels/app", "other"),
    ] {
        let outcome = served.done(&retry(), &[other(field, value)]);
        let status = &outcome.updates[0].status;
        assert!(
            status.state == State::NotInEffect && status.message.contains("objects of the rule"),
            "{status:?}"
        );
        assert!(served.bed.names("").is_empty(), "{field}");
    }
    let selected = other("/metadata/name", "web");
    assert_eq!(served.done(&retry(), &[selected]).rules[0].in_effect, 1);
}

#[test]
fn body_of_another_object_than_the_listed_one_is_refused() {
    let bed = Bed::new();
    let rules = narrow_rule(&bed).replace("/{metadata.name}\"", "\"\ngather = true\nwrite = \"object\"");
    let served = Served::new(bed, &rules);
    let selected = other("/metadata/name", "web");
    let listed = [listed(&selected)];
    for (field, value) in [
        ("/apiVersion", "lab.io/v1"),
        ("/kind", "Secret"),
        ("/metadata/namespace", "../../.."),
        ("/metadata/name", "api"),
    ] {
        let body = |_: &Member| other(field, value).to_string();
        let (reply, _) = served.exchange(&retry(), &listed, &listed, &body);
        let Reply::Done(outcome) = reply else { panic!("{reply:?}") };
        let rule = &outcome.rules[0];
        assert_eq!((rule.in_effect, rule.not_in_effect), (0, 1), "{field}");
        assert!(served.bed.names("").is_empty(), "{field}");
    }
    assert_eq!(served.done(&retry(), &[selected]).rules[0].in_effect, 1);
}

#[test]
fn names_that_kubernetes_does_not_permit_are_refused() {
    let bed = Bed::new();
    let rules = a_rule(&bed);
    let served = Served::new(bed, &rules);
    for name in ["a b", "*", "$(touch /tmp/x)", "../x", "a\nb", "A"] {
        for field in ["/metadata/name", "/metadata/namespace", "/metadata/uid"] {
            let object = other(field, name);
            if field == "/metadata/uid" && name == "A" {
                continue;
            }
            let reply = served.send_request(&apply(), &[object]);
            assert!(
                matches!(&reply, Reply::Refused(why) if why.contains("metadata.")),
                "{field} {name:?}: {reply:?}"
            );
        }
    }
    assert!(served.bed.names("").is_empty());
    let state = fs::read_dir(&served.bed.config.helper.state).unwrap();
    let kept: Vec<_> = state.map(|entry| entry.unwrap().file_name()).collect();
    assert!(!kept.contains(&"r.json".into()), "{kept:?}");
}

#[test]
fn oversized_objects_and_frames_are_refused() {
    let bed = Bed::new();
    let rules = a_rule(&bed);
    let served = Served::new(bed, &rules);
    let keys: serde_json::Map<String, Value> =
        (0..1_000_000).map(|key| (key.to_string(), String::new().into())).collect();
    let mut many = config_map(1, &Value::Object(keys));
    many["metadata"]["name"] = "many".into();
    many["metadata"]["uid"] = "m".into();
    let objects = [many, config_map(1, &json!({ "a": "one" }))];
    let outcome = served.done(&apply(), &objects);
    let state = |uid: &str| outcome.updates.iter().find(|update| update.uid == uid).unwrap().status.clone();
    assert_eq!((state("m").state, state("u").state), (State::NotInEffect, State::InEffect));
    assert!(state("m").message.contains("more than 10000 keys"), "{:?}", state("m"));
    assert_eq!(served.bed.names(""), ["web"]);
    // The agent never sends a larger frame; such a peer is disconnected at once.
    let mut stream = std::os::unix::net::UnixStream::connect(&served.bed.config.helper.socket).unwrap();
    stream.write_all(&(MAX_FRAME + 1).to_le_bytes()).unwrap();
    assert_eq!(stream.read(&mut [0; 4]).unwrap(), 0);
    assert_eq!(served.done(&apply(), &objects[1..]).rules[0].in_effect, 1);
}
