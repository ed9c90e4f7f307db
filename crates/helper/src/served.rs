//! The helper as it is asked: which objects are listed, what is told again, what is refused.

use std::fs;
use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use super::records::Records;
use super::serve::Carrier;
use super::tests::{Bed, config_map, listed};
use edgesync_files::pass::Options;
use edgesync_files::rule::Write;
use edgesync_files::wire::{Listed, MAX_CHANGED, MAX_FRAME, Outcome, Reply, Request, Told, Verb};
use edgesync_files::{Member, State};

/// The helper as it serves, in a thread, and who asks it.
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
        // It serves until the test ends, however long that takes to ask.
        std::thread::spawn(move || super::serve::serve(&listener, &config, None).unwrap());
        served
    }

    /// A helper that starts, in the place of this one.
    fn again(self, rules: &str) -> Self {
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

    /// Asks, and hands over what is wanted of these objects, but for those that are said to have changed.
    fn ask(&self, request: &Request, objects: &[Value]) -> Reply {
        self.ask_with(request, objects, &objects.iter().map(listed).collect::<Vec<_>>()).0
    }

    /// The same; listed is something else at first. Whether all were to be listed then.
    fn ask_with(&self, request: &Request, objects: &[Value], first: &[Listed]) -> (Reply, bool) {
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
                Reply::Want(wanted) => {
                    for Member { uid, version } in wanted {
                        let fits = |object: &&Value| {
                            let listed = listed(object);
                            listed.uid == uid && listed.version == version && object["changed"] != true
                        };
                        let body = objects.iter().find(fits).map(Value::to_string).unwrap_or_default();
                        send(&mut stream, body.as_bytes());
                    }
                }
                Reply::Whole => {
                    whole = true;
                    let all: Vec<Listed> = objects.iter().map(listed).collect();
                    send(&mut stream, &serde_json::to_vec(&all).unwrap());
                    send(&mut stream, &[]);
                }
                reply => return (reply, whole),
            }
        }
    }

    /// Tells what has changed since the list with a number was known; the outcome, and whether all were to be listed.
    fn tell(&self, since: Option<u64>, changed: &[Value], objects: &[Value]) -> (Outcome, bool) {
        let request = Request { since, ..apply() };
        let changed: Vec<Listed> = changed.iter().map(listed).collect();
        match self.ask_with(&request, objects, &changed) {
            (Reply::Done(outcome), whole) => (*outcome, whole),
            other => panic!("{other:?}"),
        }
    }

    fn done(&self, request: &Request, objects: &[Value]) -> Outcome {
        match self.ask(request, objects) {
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

fn a_wrong_configuration_is_an_answer_and_the_mended_one_is_used() {
    let bed = Bed::new();
    let rules = a_rule(&bed);
    let served = Served::new(bed, "nonsense = 1\n");
    let objects = [config_map(1, &json!({ "a": "one" }))];
    let request = apply();
    assert!(matches!(served.ask(&request, &objects), Reply::Refused(why) if why.contains("nonsense")));
    served.configure(&rules);
    assert_eq!(served.done(&request, &objects).rules[0].in_effect, 1);
}

#[test]

fn an_object_that_has_changed_meanwhile_is_left_out_and_keeps_no_other_out() {
    let bed = Bed::new();
    let rules = a_rule(&bed);
    let served = Served::new(bed, &rules);
    let mut other = config_map(1, &json!({ "a": "one" }));
    other["metadata"]["name"] = "other".into();
    other["metadata"]["uid"] = "v".into();
    other["changed"] = true.into();
    let objects = [other, config_map(1, &json!({ "a": "one" }))];
    let outcome = served.done(&apply(), &objects);
    let told: Vec<_> = outcome.news.iter().map(|news| (news.uid.as_str(), news.status.state)).collect();
    assert_eq!(told, [("u", State::InEffect)]);
}

#[test]

fn rules_that_are_gone_are_cleared_away_when_that_is_asked_for_and_what_comes_again_is_told_again() {
    let bed = Bed::new();
    let rules = a_rule(&bed);
    let served = Served::new(bed, &rules);
    let objects = [config_map(1, &json!({ "a": "one" }))];
    let first = served.done(&apply(), &objects);
    served.configure("");
    let file = served.bed.base().join("web/a");
    let ask =
        |verb, told: &Told| served.done(&Request { verb, told: told.clone(), ..Request::default() }, &[]);
    ask(Verb::Show, &first.told);
    assert!(file.exists());
    let cleared = ask(Verb::Clear, &first.told);
    assert!(!file.exists() && cleared.news[0].status.state == State::Gone);
    // The record goes with the next request, and with it its numbers; a helper that starts then knows nothing of them.
    ask(Verb::Show, &cleared.told);
    let bed = &served.bed;
    assert!(!bed.config.helper.state.join("r.json").exists());
    let mut records = Records::open(&bed.config).unwrap();
    records.goes_on_from(&cleared.told);
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let mut carrier = Carrier::new(&rule, &bed.config, &mut records).unwrap();
    let listed: Vec<Listed> = objects.iter().map(listed).collect();
    let work = carrier.work(&mut records, &listed, Options::default(), false, |pass| {
        pass.carry_out(&mut |number| objects.get(number).cloned())
    });
    assert_eq!(work, Ok(None));
    assert_eq!(records.news(&cleared.told).len(), 1);
}

#[test]
fn what_has_changed_is_told_alone_and_all_is_listed_when_that_was_lost() {
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
    // One changes, one goes; the third is not named, and stays.
    objects = vec![named("one", 2), named("three", 1)];
    let mut gone = named("two", 1);
    gone["metadata"]["resourceVersion"] = "".into();
    let (outcome, whole) = served.tell(known, &[named("one", 2), gone], &objects);
    assert!(!whole && outcome.known.is_some() && outcome.known != known);
    assert_eq!((read("one").as_deref(), read("two"), read("three").as_deref()), (Some("2"), None, Some("1")));
    // The number of before is of another list.
    let (outcome, whole) = served.tell(known, &[], &objects);
    assert!(whole && outcome.rules[0].in_effect == 2);
    // A helper that starts knows it by its record; one that has lost that does not.
    served = served.again(&rules);
    objects[0] = named("one", 3);
    let (outcome, whole) = served.tell(outcome.known, &[named("one", 3)], &objects);
    assert_eq!((whole, read("one").as_deref(), read("three").as_deref()), (false, Some("3"), Some("1")));
    let log = served.bed.config.helper.state.join("r.log");
    fs::remove_file(&log).unwrap();
    served = served.again(&rules);
    let (outcome, whole) = served.tell(outcome.known, &[], &objects);
    assert!(whole && outcome.known.is_some() && outcome.rules[0].in_effect == 2, "{outcome:?}");
    // Nobody names more than a few; of more than that all are listed.
    let many: Vec<Value> = (0..=MAX_CHANGED).map(|number| named(&format!("n{number}"), 1)).collect();
    assert!(served.tell(outcome.known, &many, &objects).1);
    assert!(!served.tell(outcome.known, &[], &objects).1);
    // What has changed before it could be sent is not remembered as listed.
    let mut meanwhile = named("one", 5);
    meanwhile["changed"] = true.into();
    objects[0] = meanwhile;
    assert_eq!(served.done(&apply(), &objects).known, None);
}

#[test]
fn an_object_with_a_million_keys_is_kept_out_and_a_longer_frame_is_not_read() {
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
    let state = |uid: &str| outcome.news.iter().find(|news| news.uid == uid).unwrap().status.clone();
    assert_eq!((state("m").state, state("u").state), (State::NotInEffect, State::InEffect));
    assert!(state("m").message.contains("more keys than the 10000 files"), "{:?}", state("m"));
    assert_eq!(served.bed.names(""), ["web"]);
    // More than a frame holds nobody sends; whoever does is not heard, and keeps nobody waiting.
    let mut stream = std::os::unix::net::UnixStream::connect(&served.bed.config.helper.socket).unwrap();
    stream.write_all(&(MAX_FRAME + 1).to_le_bytes()).unwrap();
    assert_eq!(stream.read(&mut [0; 4]).unwrap(), 0);
    assert_eq!(served.done(&apply(), &objects[1..]).rules[0].in_effect, 1);
}
