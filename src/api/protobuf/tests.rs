use proptest::prelude::*;
use serde_json::json;

use super::*;

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
    digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
}

/// What `kubectl create` of version 1.37 sends, and what it means.
fn examples() -> [(&'static str, Value); 7] {
    let metadata = |name: &str| json!({"name": name});
    let web = json!({"app": "web"});
    let container = json!({"name": "nginx", "image": "nginx", "ports": [{"containerPort": 80}]});
    [
        (
            "6b3873000a0f0a02763112094e616d657370616365121d0a150a05706c616e7412001a0022002a003200380042001\
             20\
             01a020a001a002200",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata("plant")}),
        ),
        (
            "6b3873000a0f0a0276311209436f6e6669674d617012280a180a0873657474696e677312001a0022002a003200380\
             04200120c0a046d6f64651204666173741a002200",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("settings"), "data": {"mode": "fast"}}),
        ),
        (
            "6b3873000a0c0a027631120653656372657412250a150a056c6f67696e12001a0022002a00320038004200120a0a0\
             47573657212026d651a001a002200",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("login"), "data": {"user": "bWU="}}),
        ),
        (
            "6b3873000a150a07617070732f7631120a4465706c6f796d656e7412b8010a1f0a0377656212001a0022002a00320\
             0380042005a0a0a0361707012037765621286010800120c0a0a0a0361707012037765621a6c0a1c0a0012001a0022\
             002a003200380042005a0a0a036170701203776562124c122e0a056e67696e7812056e67696e782a00320a0a00100\
             0185022002a0042006a007200800100880100900100a201001a00320042004a0052005800600068008201008a0100\
             9a0100c2010022020a00280038001a0c0800100018002000280038001a002200",
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "web", "labels": web},
                "spec": {
                    // A zero that somebody has set.
                    "replicas": 0,
                    "selector": {"matchLabels": web},
                    "template": {"metadata": {"labels": web}, "spec": {"containers": [container]}},
                },
            }),
        ),
        (
            "6b3873000a0d0a027631120753657276696365126c0a1f0a0377656212001a0022002a003200380042005a0a0a036\
             170701203776562\
             12450a1e0a0738302d6874747012035443501850220a080110001a04687474702800120a0a0361707012037765621\
             a002209436c757374657249503a00420052005a00600068001a020a001a002200",
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "web", "labels": web},
                "spec": {
                    "ports": [{"name": "80-http", "protocol": "TCP", "port": 80, "targetPort": "http"}],
                    "selector": web,
                    "type": "ClusterIP",
                },
            }),
        ),
        (
            "6b3873000a130a027631120d5265736f7572636551756f746112300a110a017112001a0022002a003200380042001\
             2190a0a0a0363707512030a01310a0b0a04706f647312030a01321a001a002200",
            json!({
                "apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata("q"),
                "spec": {"hard": {"cpu": "1", "pods": "2"}},
            }),
        ),
        (
            "6b3873000a200a09706f6c6963792f76311213506f6444697372757074696f6e42756467657412360a110a0170120\
             01a0022002a0032003800420012150a09080110001a0335302512080a060a01611201621a0a080018002000280030\
             001a002200",
            json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata("p"),
                "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}},
            }),
        ),
    ]
}

#[test]
fn what_kubectl_creates_is_read() {
    for (hex, expected) in examples() {
        assert_eq!(read(&unhex(hex)).unwrap(), expected);
    }
}

#[test]
fn a_body_that_is_cut_or_something_else_is_refused() {
    let (hex, _) = &examples()[1];
    let body = unhex(hex);
    for length in 0..body.len() - 4 {
        // Where a field ends by chance, less is read.
        if let Err(status) = read(&body[..length]) {
            assert_eq!(status.code, 400, "{length}");
        }
    }
    for body in [&b"{}"[..], b"k8s\0", b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
        assert_eq!(read(body).unwrap_err().code, 400);
    }
}

#[test]
fn a_kind_that_is_not_known_in_this_encoding_is_another_media_type() {
    let status = read(b"k8s\0\x0a\x0b\x0a\x02v1\x12\x05Thing").unwrap_err();
    assert_eq!(status.code, 415);
    assert!(status.message.contains("\"Thing\""), "{status}");
}

#[test]
fn every_message_that_a_field_names_is_in_the_table() {
    for (name, fields) in TABLE.iter() {
        for field in fields {
            if let Kind::Message(inner) = field.kind {
                assert!(TABLE.contains_key(inner), "{name}.{} is a {inner}", field.name);
            }
        }
    }
    let fields: usize = TABLE.values().map(Vec::len).sum();
    let written: usize = MESSAGES.lines().map(|line| line.split(' ').count() - 1).sum();
    assert_eq!((TABLE.len(), fields), (MESSAGES.lines().count(), written));
}

#[test]
fn times_and_delete_options_are_read() {
    assert_eq!(time(&unhex("0880cdd8a80610")), None);
    assert_eq!(time(&unhex("08ffcdd8a806")).unwrap(), json!("2023-09-29T01:23:11Z"));
    assert_eq!(time(&[]).unwrap(), Value::Null);
    let body = b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x0e\x08\x00\x22\x0aForeground";
    let expected = json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "propagationPolicy": "Foreground",
    });
    assert_eq!(read(body).unwrap(), expected);
}

proptest! {
    #[test]
    fn no_bytes_panic(example in 0..7_usize, changes in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6)) {
        let mut body = unhex(examples()[example].0);
        for (place, byte) in changes {
            let place = usize::from(place) % body.len();
            body[place] = byte;
        }
        if let Ok(value) = read(&body) {
            prop_assert!(!crate::object::too_deep(&value.to_string()));
        }
    }
}
