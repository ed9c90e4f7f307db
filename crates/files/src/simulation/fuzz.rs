//! Lists and bodies of a client that is not the agent it claims to be: whatever it sends, files
//! stay below the directory of the rule.

use edgesync_fuzz::fuzz;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::contents::Desired;
use crate::pass::{Options, Pass};
use crate::record::{Change, Record, Shape};
use crate::rule::{Format, Rule, Write};
use crate::template::Template;
use crate::testing::EmptyDevice;
use crate::wire::Listed;

/// Asserts that a place and its files are below the directory of the rule.
fn examine(change: &Change, desired: Option<&Desired>) {
    assert_eq!(change.place.base, "/b");
    let directory = change.shape == Shape::Directory;
    let names = desired.iter().flat_map(|desired| desired.files.keys()).filter(|_| directory);
    for part in change.place.below.split('/').chain(names.map(String::as_str)) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        assert!(!part.is_empty() && !part.starts_with("..") && part.chars().all(is_plain), "{part:?}");
    }
}

#[derive(Deserialize)]
struct Sent {
    list: Vec<Listed>,
    bodies: Vec<Value>,
}

fn rules() -> Vec<Rule> {
    let rule =
        |to: &str, write, gather| Rule { to: Template::parse(to).unwrap(), write, gather, ..Rule::default() };
    vec![
        rule("/b/{metadata.namespace}/{metadata.name}", Write::Keys, false),
        rule("/b/x-{metadata.name}.conf", Write::Field("/data/a".into()), false),
        rule("/b/{metadata.namespace}", Write::Object(Format::Json), true),
    ]
}

#[test]
fn fuzz_lists_and_bodies() {
    let object = |api_version: &str, kind: &str, name: &str| {
        json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": { "namespace": "n", "name": name, "uid": name, "labels": { "a": "b" } },
            "data": { "a": "eA==", "b.conf": "" },
        })
    };
    let listed = |api_version: &str, kind: &str, name: &str| {
        json!({
            "uid": name, "api_version": api_version, "kind": kind, "plural": "mice", "namespace": "n",
            "name": name, "version": "7", "sealed": false,
        })
    };
    let kinds = [("v1", "ConfigMap", "web"), ("v1", "Secret", "key"), ("lab.io/v1", "Mouse", "m")];
    let mut samples: Vec<Vec<u8>> = kinds
        .iter()
        .map(|&(version, kind, name)| {
            json!({ "list": [listed(version, kind, name)], "bodies": [object(version, kind, name)] })
        })
        .map(|sent| sent.to_string().into_bytes())
        .collect();
    let all = kinds.map(|(version, kind, name)| (listed(version, kind, name), object(version, kind, name)));
    let (list, bodies): (Vec<Value>, Vec<Value>) = all.into_iter().unzip();
    samples.push(json!({ "list": list, "bodies": bodies }).to_string().into_bytes());
    let rules = rules();
    fuzz("files", &samples, |input| {
        let Ok(Sent { mut list, bodies }) = serde_json::from_slice(input) else { return };
        list.retain(|listed| listed.check().is_ok());
        for rule in &rules {
            let (mut device, mut record, mut seq) = (EmptyDevice(examine), Record::default(), 0);
            let pass = Pass::begin(&mut device, rule, &mut record, &mut seq, &list, Options::default());
            pass.apply(&mut |number| bodies.get(number).cloned());
        }
    });
}
