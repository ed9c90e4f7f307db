//! Lists and bodies of a client that is not the agent it claims to be: whatever it sends, files
//! stay below the directory of the rule.

use edgesync_fuzz::fuzz;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::contents::Desired;
use crate::pass::{Options, Pass};
use crate::record::{Change, Held, Intent, Place, Record, Shape};
use crate::rule::{Format, Rule, Write};
use crate::template::Template;
use crate::wire::Listed;
use crate::{Effects, Failure, Observed};

/// An empty device that looks at what is written where.
struct Device;

impl Effects for Device {
    fn inspect(
        &mut self,
        _: &Place,
        _: Shape,
        _: Option<&Held>,
        _: Option<&Desired>,
    ) -> Result<Observed, String> {
        Ok(Observed::default())
    }

    fn key(&self, _: &Place) -> (u64, u64) {
        (1, 2)
    }

    fn is_memory(&mut self, _: &Place, _: Shape) -> bool {
        true
    }

    fn intend(&mut self, _: &Intent) -> Result<(), Failure> {
        Ok(())
    }

    fn stage(&mut self, change: &Change, desired: &Desired) -> Result<(), Failure> {
        assert_eq!(change.place.base, "/b");
        let directory = change.shape == Shape::Directory;
        let below = change.place.below.split('/');
        for part in below.chain(desired.files.keys().filter(|_| directory).map(String::as_str)) {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
            assert!(!part.is_empty() && !part.starts_with("..") && part.chars().all(is_plain), "{part:?}");
        }
        Ok(())
    }

    fn check(&mut self, _: &[Change]) -> Result<(), Failure> {
        Ok(())
    }

    fn swap(&mut self, _: &Change) -> Result<(), Failure> {
        Ok(())
    }

    fn restore(&mut self, _: &Change) -> Result<(), Failure> {
        Ok(())
    }

    fn reload(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn commit(&mut self, _: &Record) -> Result<(), Failure> {
        Ok(())
    }

    fn discard(&mut self, _: &Change, _: bool) -> Result<(), Failure> {
        Ok(())
    }

    fn forget(&mut self) -> Result<(), Failure> {
        Ok(())
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
            let (mut device, mut record, mut seq) = (Device, Record::default(), 0);
            let pass = Pass::begin(&mut device, rule, &mut record, &mut seq, &list, Options::default());
            pass.apply(&mut |number| bodies.get(number).cloned());
        }
    });
}
