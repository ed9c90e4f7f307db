use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use edgesync_fuzz::{files, fuzz};

fn message(operation: &str, resource: &str, parent: bool, content: &Value) -> String {
    let mut message = json!({
        "header": {"msg_id": "5f0ecd1c-19ab-4d0b-8fb1-0a5c4f0b9d11", "timestamp": 1, "unheard": [1]},
        "route": {"source": "edgecontroller", "group": "resource", "operation": operation, "resource": resource},
        "content": content,
    });
    if parent {
        message["header"]["parent_msg_id"] = "00000000-0000-4000-8000-00000000000A".into();
    }
    message.to_string()
}

#[test]
fn unreadable_messages_have_short_errors() {
    let long = format!(r#"{{"header":{:?},"route":{{}}}}"#, "x".repeat(5000));
    let cases: [(&[u8], &str); 9] = [
        (b"", "EOF"),
        (b"\xff\xfe{}", "utf-8"),
        (b"[1]", "Header"),
        (br#"{"header":{}}"#, "route"),
        (br#"{"route":{"resource":"a/b/c"}}"#, "header"),
        (br#"{"header":{},"route":{"operation":"insert"}}"#, "resource"),
        (br#"{"header":{"msg_id":1},"route":{"resource":"a"}}"#, "string"),
        (br#"{"header":{},"route":{"resource":"a"}"#, "EOF"),
        (long.as_bytes(), "invalid type"),
    ];
    for (text, expected) in cases {
        let problem = decode(text).unwrap_err();
        let shown = String::from_utf8_lossy(text);
        assert!(problem.contains(expected), "{problem} for {shown}");
        assert!(problem.len() <= 200, "{}", problem.len());
    }
}

#[test]
fn optional_fields_may_be_missing_or_null() {
    let text = r#"{"header":{"msg_id":"7"},"route":{"resource":"null"},"content":null}"#;
    let incoming = decode(text.as_bytes()).unwrap();
    assert_eq!((incoming.id, incoming.parent, incoming.operation), (None, None, Operation::Other));
    assert!(incoming.content.is_none() && incoming.resource_version.is_none());
    assert_eq!(incoming.target(), None);
}

#[test]
fn no_nesting_overflows_the_stack() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let text = format!(r#"{{"header":{{}},"route":{{"resource":"a/b/c"}},"content":{deep}}}"#);
    assert!(decode(text.as_bytes()).is_ok_and(|incoming| !incoming.is_object()));
    let text = format!(r#"{{"header":{deep},"route":{{"resource":"a/b/c"}}}}"#);
    assert!(decode(text.as_bytes()).is_err());
}

#[test]
fn a_resource_has_a_namespace_a_type_and_a_name() {
    let target = |resource: &str| {
        let text = message("insert", resource, false, &Value::Null);
        let incoming = decode(text.as_bytes()).unwrap();
        incoming.target().map(|target| format!("{} {} {}", target.namespace, target.kind, target.name))
    };
    assert_eq!(target("lab/pod/web").as_deref(), Some("lab pod web"));
    assert_eq!(target("null/node/edgea").as_deref(), Some(" node edgea"));
    assert_eq!(target("lab/role/a/b").as_deref(), Some("lab role a/b"));
    for none in ["", "null", "node", "a/b", "a//c", "a/b/", "watchapp/sync"] {
        assert_eq!(target(none), None, "{none}");
    }
}

#[test]
fn only_messages_that_await_it_are_acknowledged() {
    let object = json!({"metadata": {"name": "x"}});
    let failure = json!({"ErrStatus": {"code": 404}});
    let answer = json!({"Object": object, "Err": null});
    let cases = [
        ("insert", "lab/pod/web", false, &object, true),
        ("delete", "lab/pod/web", false, &Value::Null, true),
        ("update", "null/node/edgea", false, &object, true),
        ("publish", "a/b", false, &Value::Null, true),
        ("response", "lab/configmap/x", true, &object, true),
        ("response", "lab/secret/x", true, &object, true),
        ("response", "lab/persistentvolumeclaim/x", true, &object, true),
        ("response", "lab/configmap/x", true, &failure, false),
        ("response", "lab/configmap/x", true, &json!({}), false),
        ("response", "null/node/edgea", true, &object, false),
        ("response", "null/node/edgea", true, &answer, false),
        ("response", "null/nodepatch/edgea", true, &answer, false),
        ("response", "lab/podpatch/web", true, &answer, false),
        ("response", "kube-node-lease/lease/edgea", true, &answer, false),
        ("response", "lab/serviceaccounttoken/x", true, &object, false),
        ("response", "lab/pod/web", true, &json!("OK"), false),
        ("response", "twin", false, &json!("OK"), false),
        ("response", "lab/pod/web", false, &failure, false),
        ("response", "lab/pod/web", false, &json!("news"), true),
        ("applicationResponse", "ignore/Application/ignore", true, &json!({}), false),
        ("error", "lab/pod/web", false, &json!("why"), false),
    ];
    for (operation, resource, parent, content, expected) in cases {
        let text = message(operation, resource, parent, content);
        let wants = wants_acknowledgement(&decode(text.as_bytes()).unwrap());
        assert_eq!(wants, expected, "{text}");
    }
}

#[test]
fn a_watch_may_push_objects_of_any_type() {
    let text = message("insert", "lab/lease/x", false, &json!({"metadata": {}}));
    assert!(!decode(text.as_bytes()).unwrap().is_object());
    let text = text.replace("edgecontroller", "dynamiccontroller");
    assert!(decode(text.as_bytes()).unwrap().is_object());
}

fn raw(text: &str) -> &RawValue {
    serde_json::from_str(text).unwrap()
}

#[test]
fn errors_are_distinguished_from_objects() {
    let status = r#"{"ErrStatus":{"metadata":{},"status":"Failure","message":"configmap \"x\" not found",
        "reason":"NotFound","details":{"name":"x"},"code":404}}"#;
    let failure_of = |text: &str| failure(raw(text));
    let found = failure_of(status).unwrap();
    assert_eq!((found.code, &*found.reason, &*found.message), (404, "NotFound", "configmap \"x\" not found"));
    for none in ["{}", "null", "\"OK\"", "[]", r#"{"metadata":{}}"#, r#"{"ErrStatus":7}"#] {
        assert_eq!(failure_of(none), None, "{none}");
        assert!(outcome(raw(none)).is_none(), "{none}");
    }
    let both = format!(r#"{{"Object":{{"metadata":{{"creationTimestamp":null}}}},"Err":{status}}}"#);
    let both = outcome(raw(&both)).unwrap();
    assert!(both.object.is_none() && both.error == Some(found));
    let odd = outcome(raw(r#"{"Object":null,"Err":{"Op":"dial"}}"#)).unwrap();
    assert_eq!(odd.error.unwrap().message, r#"{"Op":"dial"}"#);
    let nothing = outcome(raw(r#"{"Object":null,"Err":null}"#)).unwrap();
    assert!(nothing.object.is_none() && nothing.error.is_none());
}

#[test]
fn words_of_cloudcore_are_kept_short() {
    let text = json!({"ErrStatus": {"code": 500, "message": "ä".repeat(4000), "reason": "r".repeat(4000)}});
    let failure = failure(raw(&text.to_string())).unwrap();
    assert!(failure.message.len() <= 256 && failure.reason.len() <= 256);
}

#[test]
fn an_acknowledgement_repeats_odd_words_as_valid_json() {
    let text = message("insert", "a\"/\\b/\u{7}ä", false, &Value::Null);
    let incoming = decode(text.as_bytes()).unwrap();
    let answer = Answer::to(&incoming).draft().to_text(9, -1);
    let value: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(value["route"]["resource"], "a\"/\\b/\u{7}ä");
    assert_eq!(value["header"]["msg_id"], "00000000-0000-0000-0000-000000000009");
    assert_eq!(value["header"]["parent_msg_id"], "5f0ecd1c-19ab-4d0b-8fb1-0a5c4f0b9d11");
    assert_eq!((&value["header"]["timestamp"], &value["content"]), (&json!(-1), &json!("OK")));
}

#[test]
fn fuzz_kubeedge() {
    let mut samples = files("kubeedge/edgecore-edged-session", ".json");
    samples.extend(files("kubeedge/samples", ".json"));
    fuzz("kubeedge", &samples, |bytes| {
        if let Ok(incoming) = decode(bytes) {
            let _ = (
                wants_acknowledgement(&incoming),
                incoming.content.map(|content| outcome(content).is_some()),
            );
        }
    });
}

proptest! {
    #[test]
    fn ids_come_back_as_they_went(id: u128, parent: Option<u128>) {
        let text = Draft { parent, ..keepalive() }.to_text(id, 0);
        let incoming = decode(text.as_bytes()).unwrap();
        prop_assert_eq!((incoming.id, incoming.parent), (Some(id), parent));
        prop_assert_eq!(parse_id(&id_text(id).to_uppercase()), Some(id));
    }

    #[test]
    fn only_a_uuid_is_an_id(text in "[0-9a-fg-]{0,40}|.{0,40}") {
        if let Some(id) = parse_id(&text) {
            prop_assert_eq!(id_text(id), text.to_lowercase());
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn no_part_of_a_message_makes_it_panic(
        header in r#"\{?("(msg_id|parent_msg_id|x)":("[0-9a-f-]{0,36}"|null|1),?){0,2}\}?"#,
        resource in "[a-z/]{0,9}",
        operation in "insert|response|delete|x",
        content in r#"[{\[]{0,3}("(metadata|Object|Err|ErrStatus)":)?([{}\[\]0-9]|null|"OK"){0,3}[}\]]{0,3}"#,
    ) {
        let text = format!(
            r#"{{"header":{header},"route":{{"operation":"{operation}","resource":"{resource}"}},"content":{content}}}"#
        );
        if let Ok(incoming) = decode(text.as_bytes()) {
            let _ = (wants_acknowledgement(&incoming), incoming.content.map(|content| outcome(content).is_some()));
        }
    }
}
