//! ConfigMaps and Secrets: keys, and required values per Secret type. The 1 MiB limit of
//! Kubernetes, owed to etcd, does not apply; the store limits the size of objects. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::{map, text};
use edgesync_object::Object;

/// Maximum length of a key, in bytes.
const MAX_KEY: usize = 253;

pub(super) fn check_config_map(fields: &Map<String, Value>, causes: &mut Causes) {
    let root = Path::new("");
    let (data, binary) = (map(fields, "data"), map(fields, "binaryData"));
    for key in data.keys() {
        check_key(&root.key("data", key), key, causes);
        if binary.contains_key(key) {
            causes.invalid(&root.key("data", key), key, "must not be a key of `binaryData` too");
        }
    }
    for (key, value) in binary {
        check_key(&root.key("binaryData", key), key, causes);
        decoded(&root.key("binaryData", key), value, causes);
    }
}

pub(super) fn check_secret(object: &Object, causes: &mut Causes) {
    let fields = object.fields();
    let root = Path::new("");
    let data = map(fields, "data");
    for (key, value) in data {
        check_key(&root.key("data", key), key, causes);
        let bytes = decoded(&root.key("data", key), value, causes);
        let is_json = |bytes: Vec<u8>| serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok();
        if docker_key(text(fields, "type")) == Some(key.as_str())
            && bytes.is_some_and(|bytes| !is_json(bytes))
        {
            causes.invalid(&root.key("data", key), "<secret contents redacted>", "must be JSON");
        }
    }
    check_type(object, data, causes);
}

/// Returns the key of the configuration in Secrets for image registries.
fn docker_key(kind: &str) -> Option<&'static str> {
    match kind {
        "kubernetes.io/dockercfg" => Some(".dockercfg"),
        "kubernetes.io/dockerconfigjson" => Some(".dockerconfigjson"),
        _ => None,
    }
}

fn check_type(object: &Object, data: &Map<String, Value>, causes: &mut Causes) {
    let root = Path::new("");
    let kind = text(object.fields(), "type");
    let needed: &[&str] = match kind {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        _ => &[],
    };
    for key in needed {
        if !data.contains_key(*key) {
            causes.required(&root.key("data", key), &format!("must be there when `type` is '{kind}'"));
        }
    }
    let basic = kind == "kubernetes.io/basic-auth";
    if basic && !data.contains_key("username") && !data.contains_key("password") {
        causes.required(
            &root.key("data", "username"),
            "`username` or `password` must be there when `type` is 'kubernetes.io/basic-auth'",
        );
    }
    let account = "kubernetes.io/service-account.name";
    let named = object.annotations().get(account).is_some_and(|name| !name.is_empty());
    if kind == "kubernetes.io/service-account-token" && !named {
        causes.required(&Path::new("metadata").key("annotations", account), "must name the ServiceAccount");
    }
}

fn check_key(at: &Path, key: &str, causes: &mut Causes) {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let fits = (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(allowed);
    if !fits || key == "." || key.starts_with("..") {
        let must = format!(
            "must be 1 to {MAX_KEY} letters, digits, '-', '_' or '.', not '.', and must not start with '..'"
        );
        causes.invalid(at, key, &must);
    }
}

/// Decodes a value; `None` if it is not base64. Values are never shown: they may be secret.
fn decoded(at: &Path, value: &Value, causes: &mut Causes) -> Option<Vec<u8>> {
    // Line breaks are common in manually encoded text and are ignored.
    let text: Vec<u8> = value.as_str()?.bytes().filter(|b| !matches!(b, b'\n' | b'\r')).collect();
    let bytes = STANDARD.decode(text).ok();
    if bytes.is_none() {
        causes.invalid(at, "<contents redacted>", "must be base64");
    }
    bytes
}
