//! Contents of the files of an object.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::record::{Digest, Member};
use super::refusal::Refusal;
use super::rule::{Format, Rule, Write};
use super::template::{check_name, check_word};
use edgesync_object::yaml;

/// File contents by file name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Desired files of a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The files of all objects of the place.
    pub files: Files,
    /// The objects that the files are derived from.
    pub members: Vec<Member>,
    /// Whether one of the objects is a Secret.
    pub is_secret: bool,
    /// Whether all changed objects ask for their change outside of windows.
    pub is_urgent: bool,
}

impl Desired {
    /// Returns the digests of the files.
    #[must_use]
    pub fn digests(&self, key: (u64, u64)) -> BTreeMap<String, Digest> {
        self.files.iter().map(|(name, content)| (name.clone(), Digest::of(key, content))).collect()
    }

    /// Returns the size of all files in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|content| content.len() as u64).sum()
    }
}

/// Derives the files of an object. If the place is a single file there is one, and the place has
/// its name.
///
/// # Errors
/// The object has no files by this rule, with the reason.
pub fn files(rule: &Rule, object: &Value, is_secret: bool) -> Result<Files, Refusal> {
    match &rule.write {
        Write::Keys => keys(rule, object, is_secret),
        Write::Object(format) => {
            let (text, ending) = match format {
                Format::Yaml => {
                    (yaml::write(object).map_err(|error| Refusal::Yaml(error.to_string()))?, ".yaml")
                }
                Format::Json => (format!("{object:#}\n"), ".json"),
            };
            one(rule, object, ending, text.into_bytes())
        }
        Write::Field(pointer) => {
            let content = match object.pointer(pointer) {
                None | Some(Value::Null) => return Err(Refusal::NoField(pointer.clone())),
                Some(Value::String(text)) if is_secret && pointer.starts_with("/data/") => {
                    decoded(pointer, text)?
                }
                Some(Value::String(text)) => text.clone().into_bytes(),
                Some(other) => other.to_string().into_bytes(),
            };
            one(rule, object, "", content)
        }
    }
}

/// Returns the single file of an object, under a name that is unique where objects are gathered.
fn one(rule: &Rule, object: &Value, ending: &str, content: Vec<u8>) -> Result<Files, Refusal> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let name = [text("namespace"), text("name")].into_iter().filter(|part| !part.is_empty());
    let name = name.collect::<Vec<_>>().join(".") + ending;
    if rule.gather
        && let Err(reason) = check_word(&name)
    {
        return Err(Refusal::GatheredFile { name, reason });
    }
    Ok(Files::from([(name, content)]))
}

fn keys(rule: &Rule, object: &Value, is_secret: bool) -> Result<Files, Refusal> {
    let mut files = Files::new();
    for (field, encoded) in [("data", is_secret), ("binaryData", true)] {
        for (key, value) in object[field].as_object().into_iter().flatten() {
            let (name, checked) = match rule.keys.get(key) {
                Some(name) => (name, check_name(name)),
                None if rule.keys.is_empty() => (key, check_word(key)),
                None => continue,
            };
            checked.map_err(|reason| Refusal::KeyName { name: name.clone(), reason })?;
            let text = value.as_str().ok_or_else(|| Refusal::NotString(key.clone()))?;
            let content = if encoded { decoded(key, text)? } else { text.as_bytes().to_vec() };
            if files.insert(name.clone(), content).is_some() {
                return Err(Refusal::SameKey(name.clone()));
            }
            if files.len() as u64 > rule.max_files {
                return Err(Refusal::TooManyKeys(rule.max_files));
            }
        }
    }
    Ok(files)
}

fn decoded(key: &str, text: &str) -> Result<Vec<u8>, Refusal> {
    STANDARD.decode(text).map_err(|_| Refusal::NotBase64(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(write: Write) -> Rule {
        Rule { write, ..Rule::default() }
    }

    fn text(files: &Files, name: &str) -> String {
        String::from_utf8(files[name].clone()).unwrap()
    }

    #[test]
    fn keys_become_files() {
        let rule = named(Write::Keys);
        let map = json!({ "data": { "a": "x" }, "binaryData": { "b": "eQ==" } });
        let found = files(&rule, &map, false).unwrap();
        assert_eq!((text(&found, "a"), text(&found, "b"), found.len()), ("x".into(), "y".into(), 2));
        let secret = files(&rule, &json!({ "data": { "a": "eA==" } }), true).unwrap();
        assert_eq!(text(&secret, "a"), "x");
        assert!(files(&rule, &json!({}), false).unwrap().is_empty());
        let renamed = Rule { keys: [("a".to_owned(), "a.conf".to_owned())].into(), ..rule };
        let found = files(&renamed, &map, false).unwrap();
        assert_eq!(found.into_keys().collect::<Vec<_>>(), ["a.conf"]);
    }

    #[test]
    fn object_with_invalid_keys_is_refused() {
        let rule = named(Write::Keys);
        for (object, why) in [
            (json!({ "data": { "../x": "" } }), "'/'"),
            (json!({ "data": { "..data": "" } }), "edgesync"),
            (json!({ "data": { "a\u{0}": "" } }), "control"),
            (json!({ "data": { "a b": "" } }), "contains ' '"),
            (json!({ "data": { "$(reboot)": "" } }), "contains '$'"),
            (json!({ "data": { "*": "" } }), "contains '*'"),
            (json!({ "data": { "a": 1 } }), "not a string"),
            (json!({ "data": { "a": "" }, "binaryData": { "a": "" } }), "two keys"),
            (json!({ "binaryData": { "a": "?" } }), "base64"),
        ] {
            let error = files(&rule, &object, false).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let keys = |count: usize| -> serde_json::Map<_, _> {
            (0..count).map(|number| (number.to_string(), json!(""))).collect()
        };
        let few = Rule { max_files: 10, ..rule };
        assert_eq!(files(&few, &json!({ "data": keys(11) }), false), Err(Refusal::TooManyKeys(10)));
        assert_eq!(files(&few, &json!({ "data": keys(10) }), false).unwrap().len(), 10);
    }

    #[test]
    fn gathered_object_names_no_file_elsewhere() {
        let rule = Rule { gather: true, ..named(Write::Object(Format::Json)) };
        for (namespace, name) in [("..", "/../../etc/cron.d/x"), ("n", "a b"), ("", "$(reboot)")] {
            let object = json!({ "metadata": { "namespace": namespace, "name": name } });
            assert!(files(&rule, &object, false).is_err(), "{object}");
        }
        let role = json!({ "metadata": { "namespace": "n", "name": "system:node" } });
        assert_eq!(
            files(&rule, &role, false).unwrap().into_keys().collect::<Vec<_>>(),
            ["n.system:node.json"]
        );
    }

    #[test]
    fn object_or_field_becomes_one_file() {
        let object =
            json!({ "metadata": { "namespace": "n", "name": "w" }, "spec": { "port": 80, "motd": "hi" } });
        let yaml = files(&named(Write::Object(Format::Yaml)), &object, false).unwrap();
        assert!(text(&yaml, "n.w.yaml").contains("port: 80"));
        let json = files(&named(Write::Object(Format::Json)), &object, false).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text(&json, "n.w.json")).unwrap(), object);
        let field = |pointer: &str| files(&named(Write::Field(pointer.into())), &object, false);
        assert_eq!(text(&field("/spec/motd").unwrap(), "n.w"), "hi");
        assert_eq!(text(&field("/spec/port").unwrap(), "n.w"), "80");
        assert_eq!(field("/spec/none"), Err(Refusal::NoField("/spec/none".to_owned())));
        let secret = json!({ "metadata": { "name": "s" }, "data": { "k": "eA==" } });
        let found = files(&named(Write::Field("/data/k".into())), &secret, true).unwrap();
        assert_eq!(text(&found, "s"), "x");
    }
}
