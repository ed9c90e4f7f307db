use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing::config;

fn scope(rule: &str, fields: &str) -> Scope {
    Scope { rule: WatchRule::parse(rule).unwrap(), fields: fields.into() }
}

fn decoded(text: &Value) -> Value {
    serde_json::from_slice(&BASE64.decode(text.as_str().unwrap()).unwrap()).unwrap()
}

fn sent(request: &Request<'_>) -> Value {
    serde_json::from_str(&request.to_json(&config().node)).unwrap()
}

#[test]
fn keys_name_group_version_plural_and_namespace() {
    for (rule, key) in [
        ("lab.io/v1/widgets", "/lab.io/v1/widgets/null/null"),
        ("lab.io/v1/widgets/lab", "/lab.io/v1/widgets/lab/null"),
        ("core/v1/pods", "/core/v1/pods/null/null"),
    ] {
        assert_eq!(scope(rule, "").key(), key);
    }
}

#[test]
fn options_are_json_for_every_request() {
    let pods = scope("core/v1/pods", "spec.nodeName=edge-1");
    let list = |limit, continues| sent(&Request::List { scope: &pods, limit, continues });
    let expected = json!({"fieldSelector": "spec.nodeName=edge-1", "limit": 200, "continue": "a\"b"});
    assert_eq!(decoded(&list(200, Some("a\"b"))["Option"]), expected);
    assert_eq!(decoded(&list(0, None)["Option"]), json!({"fieldSelector": "spec.nodeName=edge-1"}));
    let watch = decoded(&sent(&Request::Watch { scope: &pods })["Option"]);
    assert_eq!((&watch["watch"], &watch["fieldSelector"]), (&json!(true), &json!("spec.nodeName=edge-1")));
}

#[test]
fn a_status_is_patched_as_a_subresource() {
    let key = "/lab.io/v1/widgets/lab/w1".to_owned();
    let patch = Request::PatchStatus { key: key.clone(), name: "w1", patch: r#"{"status":{"on":true}}"# };
    let json = sent(&patch);
    assert_eq!((&json["Verb"], &json["Key"], &json["ReqBody"]), (&json!("patch"), &json!(key), &Value::Null));
    let option = decoded(&json["Option"]);
    assert_eq!(decoded(&option["Data"]), json!({"status": {"on": true}}));
    assert_eq!((&option["Name"], &option["Subresources"]), (&json!("w1"), &json!(["status"])));
    assert_eq!(option["PatchType"], "application/merge-patch+json");
}

#[test]
fn an_id_depends_on_everything_and_on_nothing_else() {
    let id = |node, key, verb, option| super::id(&NodeName::parse(node).unwrap(), key, verb, option);
    let ids = [
        id("a", "k", "list", "{}"),
        id("b", "k", "list", "{}"),
        id("a", "l", "list", "{}"),
        id("a", "k", "watch", "{}"),
        id("a", "k", "list", "{ }"),
        id("ak", "", "list", "{}"),
    ];
    let different: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(different.len(), ids.len());
    assert_eq!(ids[0], id("a", "k", "list", "{}"));
    assert_ne!(ids[0][..32], ids[0][32..]);
}

#[test]
fn all_watches_are_named_by_their_ids() {
    let scopes = [scope("lab.io/v1/widgets", ""), scope("core/v1/pods", "")];
    let all: Value = serde_json::from_str(&all_watches(&config().node, &scopes)).unwrap();
    assert_eq!(all.as_object().unwrap().len(), 2);
    for (id, watch) in all.as_object().unwrap() {
        assert_eq!((watch["ID"].as_str(), &watch["Verb"]), (Some(&**id), &json!("watch")));
        assert_eq!(watch["Nodename"], "edgea");
    }
    let again = sent(&Request::Watch { scope: &scopes[0] });
    assert!(all.get(again["ID"].as_str().unwrap()).is_some());
}

fn answered(content: &Value) -> Option<Response> {
    let text = content.to_string();
    response(serde_json::from_str(&text).unwrap())
}

fn refused(content: &Value) -> (u16, String) {
    match answered(content) {
        Some(Response::Refused(failure)) => (failure.code, failure.reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn refused_requests_have_a_reason() {
    let status = json!({"metadata": {}, "code": 409, "reason": "Conflict", "message": "m"});
    let with_status = json!({"Status": "Rejected", "Reason": "", "Error": {"ErrStatus": status}});
    assert_eq!(refused(&with_status), (409, "Conflict".to_owned()));
    let in_words = |reason: &str| {
        refused(&json!({"Status": "Rejected", "Reason": reason, "Error": {"ErrStatus": {"metadata": {}}}}))
    };
    let forbidden = "get current list error: widgets.lab.io is forbidden: User \"x\" cannot list";
    assert_eq!(in_words(forbidden), (403, "Forbidden".to_owned()));
    assert_eq!(in_words("node \"x\" is not allowed to access this resource").0, 403);
    let unknown = "get current list error: the server could not find the requested resource";
    assert_eq!(in_words(unknown), (404, "NotFound".to_owned()));
    let expired =
        "get current list error: The provided continue parameter is too old to display a consistent list";
    assert_eq!(in_words(expired), (410, "Expired".to_owned()));
    assert_eq!(in_words("unsupported Application Verb type :x"), (0, String::new()));
    assert_eq!(refused(&json!({"Status": "Failed"})), (0, String::new()));
}

#[test]
fn an_answer_that_is_none_is_not_taken_for_one() {
    for none in [
        json!({}),
        json!("OK"),
        json!({"Status": "InProcessing"}),
        json!({"Status": "Approved", "RespBody": "no base64!"}),
        json!({"Status": "Approved", "RespBody": BASE64.encode([0xff])}),
    ] {
        assert!(answered(&none).is_none(), "{none}");
    }
}

#[test]
fn a_page_has_kind_version_and_continue_token() {
    let body = json!({
        "apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {}}],
        "metadata": {"resourceVersion": "7", "continue": "token", "remainingItemCount": 3},
    });
    let body = body.to_string();
    let page = page(&body).unwrap();
    assert_eq!((&*page.kind, &*page.resource_version, &*page.continues), ("Pod", "7", "token"));
    assert_eq!(page.items.len(), 1);
}

#[test]
fn only_a_list_parses_as_a_page() {
    let empty = r#"{"apiVersion":"v1","kind":"PodList","metadata":{},"items":null}"#;
    assert!(page(empty).unwrap().items.is_empty());
    for none in ["", "{}", "[]", r#"{"apiVersion":"v1","kind":"Pod","items":[]}"#, &empty.replace("Pod", "")]
    {
        assert!(page(none).is_none(), "{none}");
    }
}

proptest! {
    #[test]
    fn no_answer_makes_it_panic(
        status in "Approved|Rejected|.{0,3}", body in "[A-Za-z0-9+/=]{0,20}|.{0,9}", reason in ".{0,300}",
        bytes in ".{0,60}", inner in r#"[\{\}\[\]":,a-z0-9]{0,40}"#,
    ) {
        let _ = answered(&json!({"Status": status, "RespBody": body, "Reason": reason}));
        let _ = page(&bytes);
        let _ = page(&format!(r#"{{"apiVersion":"v1","kind":"PodList","metadata":{{}},"items":[{inner}]}}"#));
    }
}
