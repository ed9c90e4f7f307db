//! Requests of a client that is not the agent it claims to be: whatever it sends, the steps of a
//! pass concern files that the rule itself names.

use std::io::{self, Read, Write};

use edgesync_files::contents::Desired;
use edgesync_files::list;
use edgesync_files::pass::Pass;
use edgesync_files::rule::{Format, Rule, Write as Part};
use edgesync_files::template::Template;
use edgesync_files::testing::EmptyDevice;
use edgesync_files::wire::{Listed, Request, Verb};
use edgesync_files::{Change, Record, Shape};
use edgesync_fuzz::fuzz;
use edgesync_object::matching::ObjectMatch;
use serde_json::{Value, json};

use super::{list_objects, options, read_frame, read_list, run};

/// Reads the frames of the client, and discards the replies.
struct Client<'a>(&'a [u8]);

impl Read for Client<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Asserts that a place and its files are those of a rule for the objects that it selects.
fn examine(change: &Change, desired: Option<&Desired>) {
    assert_eq!(change.place.base, "/b");
    let own = ["n/web", "x-web.conf", "n"].contains(&change.place.below.as_str());
    assert!(own, "{:?}", change.place.below);
    let directory = change.shape == Shape::Directory;
    for name in desired.iter().flat_map(|desired| desired.files.keys()).filter(|_| directory) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        assert!(!name.is_empty() && !name.starts_with("..") && name.chars().all(is_plain), "{name:?}");
    }
}

/// Returns rules for the object `n/web`: a directory, a file, a shared directory.
fn rules() -> Vec<Rule> {
    let rule = |name: &str, to: &str, write, gather| Rule {
        name: name.to_owned(),
        objects: ObjectMatch {
            kinds: vec!["configmaps".parse().unwrap(), "secrets".parse().unwrap()],
            namespaces: vec!["n".parse().unwrap()],
            names: vec!["web".to_owned()],
            selector: "a=b".parse().unwrap(),
        },
        to: Template::parse(to).unwrap(),
        write,
        gather,
        ..Rule::default()
    };
    vec![
        rule("r", "/b/{metadata.namespace}/{metadata.name}", Part::Keys, false),
        rule("s", "/b/x-{metadata.name}.conf", Part::Field("/data/a".into()), false),
        rule("t", "/b/{metadata.namespace}", Part::Object(Format::Json), true),
    ]
}

/// Handles the next request of the client as the helper does, without the files.
fn serve(client: &mut Client<'_>, rules: &mut [(Rule, Record)], seq: &mut u64) -> io::Result<()> {
    let changed = read_list(client)?;
    let request: Request = serde_json::from_slice(&read_frame(client)?)?;
    let Ok(changed) = changed else { return Ok(()) };
    let is_check = request.verb == Verb::Check;
    let named = rules.iter_mut().find(|(rule, _)| rule.name == request.rule);
    let Some((rule, record)) = named.filter(|_| is_check || request.verb == Verb::Apply) else {
        return Ok(());
    };
    let Ok(listed) = list_objects(client, Some(&*record), &request, changed)? else { return Ok(()) };
    assert!(listed.iter().all(|listed| listed.check().is_ok()));
    let mut copy = record.clone();
    let record = if is_check { &mut copy } else { record };
    let mut device = EmptyDevice(examine);
    let pass = Pass::begin(&mut device, rule, record, seq, &listed, options(&request, 7));
    run(client, pass, &listed, is_check).map(|_| ())
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_le_bytes(), bytes].concat()
}

/// Returns the frames of a request: the list of changes, the request, what follows.
fn frames(changed: &[Listed], request: &Request, more: &[Vec<u8>]) -> Vec<u8> {
    let changed = frame(&serde_json::to_vec(changed).unwrap());
    let request = frame(&serde_json::to_vec(request).unwrap());
    [vec![changed, frame(&[]), request], more.to_vec()].concat().concat()
}

/// Returns the requests of an agent: a whole list, then a change, then a deletion.
fn requests(rule: &str, verb: Verb, object: &Value) -> Vec<u8> {
    let text = |pointer: &str| object.pointer(pointer).unwrap().as_str().unwrap().to_owned();
    let listed = |version: &str| Listed {
        uid: text("/metadata/uid"),
        api_version: text("/apiVersion"),
        kind: text("/kind"),
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name"),
        version: version.to_owned(),
        ..Listed::default()
    };
    let request = |since| Request { verb, rule: rule.to_owned(), since, ..Request::default() };
    let body = frame(object.to_string().as_bytes());
    let whole = frame(&serde_json::to_vec(&[listed("1")]).unwrap());
    let one = Some(list::number(&[listed("1")]));
    let two = Some(list::number(&[listed("2")]));
    let deleted = Listed { uid: text("/metadata/uid"), ..Listed::default() };
    [
        frames(&[], &request(None), &[whole, frame(&[]), body.clone()]),
        frames(&[listed("2")], &request(one), &[body]),
        frames(&[deleted], &request(two), &[]),
    ]
    .concat()
}

#[test]
fn fuzz_requests_of_the_agent() {
    let object = |kind: &str| {
        json!({
            "apiVersion": "v1", "kind": kind, "data": { "a": "eA==", "b.conf": "" },
            "metadata": { "namespace": "n", "name": "web", "uid": "u", "labels": { "a": "b" } },
        })
    };
    let mut samples = Vec::new();
    for rule in ["r", "s", "t"] {
        samples.push(requests(rule, Verb::Apply, &object("ConfigMap")));
        samples.push(requests(rule, Verb::Apply, &object("Secret")));
    }
    samples.push(requests("r", Verb::Check, &object("ConfigMap")));
    samples.push(frames(&[], &Request::default(), &[]));
    let rules: Vec<(Rule, Record)> = rules().into_iter().map(|rule| (rule, Record::default())).collect();
    // The samples themselves bring their files into effect.
    let (mut rules_of_sample, mut seq) = (rules.clone(), 0);
    serve(&mut Client(&samples[0]), &mut rules_of_sample, &mut seq).unwrap();
    assert_eq!(rules_of_sample[0].1.objects["u"].version.as_deref(), Some("1"));
    fuzz("files-helper", &samples, |input| {
        let (mut client, mut rules, mut seq) = (Client(input), rules.clone(), 0);
        while serve(&mut client, &mut rules, &mut seq).is_ok() {}
    });
}
