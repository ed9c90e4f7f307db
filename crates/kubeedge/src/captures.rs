//! Compares the codec with captured sessions of a stock CloudCore and EdgeCore: every message
//! decodes, and the messages sent in the same situation are equal byte by byte, ids apart.

use std::collections::BTreeMap;

use serde_json::Value;

use super::application::{self, Page, Request, Response, Scope};
use super::message::{self, Answer, Draft, Operation, application as app_message, decode, outcome};
use super::names::{FetchRule, Name, WatchRule, references};
use super::object::{About, Kinds, read, read_item};
use super::testing::{CAPTURES, captured_text, config};
use edgesync_protocol::change::Change;

/// Returns the messages of a captured session in order, and whether the edge sent each.
pub(super) fn session(name: &str) -> Vec<(bool, Value)> {
    let prefix = format!("{name}/");
    let of_it = all().into_iter().filter(|(path, _)| path.starts_with(&prefix));
    of_it.map(|(path, text)| (path.contains("c2s"), serde_json::from_str(&text).unwrap())).collect()
}

/// Returns all captured messages by path, in order.
fn all() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for session in ["samples", "edgecore-edged-session", "edgecore-metaserver-session", "py-first-session"] {
        for entry in std::fs::read_dir(format!("{CAPTURES}/{session}")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".json") && !name.ends_with("http.json") {
                let path = format!("{session}/{name}");
                found.insert(path.clone(), captured_text(&path));
            }
        }
    }
    assert_eq!(found.len(), 211, "the captures are complete");
    found
}

/// Returns the messages sent by the cloud or by the edge.
fn sent_by(side: &str) -> Vec<(String, String)> {
    all().into_iter().filter(|(path, _)| path.contains(side)).collect()
}

/// Encodes a draft with the id of the captured message.
fn named_as(draft: &Draft<'_>, captured: &str) -> String {
    let id = decode(captured.as_bytes()).unwrap().id.unwrap();
    let value: Value = serde_json::from_str(captured).unwrap();
    draft.to_text(id, value["header"]["timestamp"].as_i64().unwrap())
}

/// Asserts equality with the capture; some captures have lost the trailing newline.
fn assert_same(draft: &Draft<'_>, captured: &str, path: &str) {
    let text = named_as(draft, captured);
    assert_eq!(text.trim_end(), captured.trim_end(), "{path}");
    assert!(text.ends_with("}\n"));
}

#[test]
fn every_message_of_both_sides_decodes() {
    for (path, text) in all() {
        let incoming = decode(text.as_bytes()).unwrap_or_else(|problem| panic!("{path}: {problem}"));
        assert!(incoming.id.is_some(), "{path}");
        assert_eq!(incoming.parent.is_some(), text.contains("parent_msg_id"), "{path}");
        let is_of_the_cloud = path.contains("s2c");
        assert!(!is_of_the_cloud || incoming.operation != Operation::Other, "{path}");
    }
}

#[test]
fn every_acknowledgement_is_the_one_that_edgecore_sends() {
    let cloud = sent_by("s2c");
    let mut compared = 0;
    for (path, text) in sent_by("c2s") {
        let Some(parent) = decode(text.as_bytes()).unwrap().parent else { continue };
        let answered = |(_, text): &&(String, String)| decode(text.as_bytes()).unwrap().id == Some(parent);
        let (_, answered) = cloud.iter().find(answered).unwrap_or_else(|| panic!("{path}"));
        let answer = Answer::to(&decode(answered.as_bytes()).unwrap());
        assert_same(&answer.draft(), &text, &path);
        compared += 1;
    }
    assert_eq!(compared, 59);
}

#[test]
fn keepalives_and_questions_are_those_of_edgecore() {
    let (mut keepalives, mut questions) = (0, 0);
    for (path, text) in sent_by("c2s") {
        let incoming = decode(text.as_bytes()).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        match value["route"]["operation"].as_str() {
            Some("keepalive") if incoming.source == "websocket" => {
                assert_same(&message::keepalive(), &text, &path);
                keepalives += 1;
            }
            Some("query") if incoming.resource.contains("lease") => {
                let draft = message::write("lease", "query", &*incoming.resource, "null");
                assert_same(&draft, &text, &path);
            }
            Some("query") => {
                let Some(name) = FetchRule::parse(&incoming.resource).unwrap().exact() else {
                    panic!("{path}")
                };
                assert_same(&message::query(&name), &text, &path);
                questions += 1;
            }
            _ => {}
        }
    }
    assert_eq!((keepalives, questions), (14, 4));
}

#[test]
fn writes_have_the_form_of_edgecore() {
    let mut compared = 0;
    for (path, text) in sent_by("c2s") {
        let incoming = decode(text.as_bytes()).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let operation = value["route"]["operation"].as_str().unwrap();
        if value["route"]["group"] == "meta" && operation != "query" {
            let content = incoming.content.unwrap().get();
            assert_same(&message::write("write", operation, &*incoming.resource, content), &text, &path);
            compared += 1;
        }
    }
    assert_eq!(compared, 31);
}

fn widgets() -> Scope {
    Scope { rule: WatchRule::parse("lab.io/v1/widgets").unwrap(), fields: "".into() }
}

/// Replaces the id, a hash that only its sender can compute.
fn with_id_of(json: &str, captured: &str) -> String {
    let id = |json: &str| {
        let value: Value = serde_json::from_str(json).unwrap();
        value.pointer("/ID").or(value.pointer("/content/ID")).unwrap().as_str().unwrap().to_owned()
    };
    let (ours, theirs) = (id(json), id(captured));
    assert_eq!((ours.len(), theirs.len()), (64, 64));
    assert!(ours.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase()));
    json.replace(&ours, &theirs)
}

#[test]
fn applications_are_those_of_edgecore() {
    let scope = widgets();
    let list = Request::List { scope: &scope, limit: 0, continues: None };
    let watch = Request::Watch { scope: &scope };
    let session = "edgecore-metaserver-session";
    for (request, path) in [
        (&list, "samples/c2s-application-list.json".to_owned()),
        (&watch, "samples/c2s-application-watch.json".to_owned()),
        (&list, format!("{session}/00016-c2s-null-null.json")),
        (&watch, format!("{session}/00018-c2s-null-null.json")),
    ] {
        let text = captured_text(&path);
        let content = with_id_of(&request.to_json(&config().node), &text);
        assert_same(&app_message("null", content), &text, &path);
    }
    for path in
        ["samples/c2s-watchapp-sync.json".to_owned(), format!("{session}/00041-c2s-null-watchapp_sync.json")]
    {
        let content = application::all_watches(&config().node, &[]);
        assert_same(&app_message("watchapp/sync", content), &captured_text(&path), &path);
    }
}

#[test]
fn the_list_of_custom_resources_can_be_stored() {
    let text = captured_text("samples/s2c-application-list-response.json");
    let content = decode(text.as_bytes()).unwrap().content.unwrap();
    let Some(Response::Approved { body }) = application::response(content) else {
        panic!("must be approved")
    };
    let Page { api_version, kind, resource_version, continues, items } = application::page(&body).unwrap();
    let found = (&*api_version, &*kind, &*resource_version, &*continues, items.len());
    assert_eq!(found, ("lab.io/v1", "Widget", "492", "", 2));
    let resource = edgesync_object::kinds::guess(&api_version, &kind, true).into();
    for (item, name) in items.into_iter().zip(["w1", "w2"]) {
        let Ok(Change::Put(put)) = read_item(item.get(), &resource, &config()) else { panic!("{name}") };
        assert_eq!((&*put.name, &*put.namespace), (name, "lab"));
        assert!(!put.body.get().contains("managedFields"));
    }
    let text = captured_text("samples/s2c-application-watch-response.json");
    let response = application::response(decode(text.as_bytes()).unwrap().content.unwrap());
    assert!(matches!(response, Some(Response::Approved { body }) if body.is_empty()));
}

#[test]
fn every_captured_object_is_held_and_every_delete_has_a_uid() {
    let (mut puts, mut deletes, mut kinds) = (0, 0, Kinds::default());
    for (path, text) in sent_by("s2c") {
        let incoming = decode(text.as_bytes()).unwrap();
        if incoming.operation == Operation::ApplicationResponse {
            assert!(!message::wants_acknowledgement(&incoming));
            continue;
        }
        let value: Value = serde_json::from_str(&text).unwrap();
        let metadata = &value["content"]["metadata"];
        match read(&incoming, &config(), &mut kinds) {
            Some(About::Change(Change::Put(put))) => {
                puts += 1;
                assert_eq!(put.version.as_str(), metadata["resourceVersion"], "{path}");
                assert_eq!(*put.name, *metadata["name"].as_str().unwrap());
                assert!(message::wants_acknowledgement(&incoming));
            }
            Some(About::Change(Change::Delete(delete))) => {
                deletes += 1;
                assert_eq!(&*delete.uid, metadata["uid"], "{path}");
                assert!(message::wants_acknowledgement(&incoming));
            }
            Some(other) => panic!("{path}: {other:?}"),
            None => {
                assert!(incoming.operation == Operation::Response && !incoming.is_object(), "{path}");
                assert!(!message::wants_acknowledgement(&incoming), "{path}");
            }
        }
    }
    assert_eq!((puts, deletes), (39, 12));
}

#[test]
fn the_answers_to_writes_are_parsed() {
    let read = |path: &str| {
        let text = captured_text(path);
        let incoming = decode(text.as_bytes()).unwrap();
        let outcome = outcome(incoming.content.unwrap()).unwrap();
        let object = outcome.object.map(|object| serde_json::from_str::<Value>(object.get()).unwrap());
        (object, outcome.error)
    };
    let (object, error) = read("samples/s2c-query-response-notfound.json");
    let error = error.unwrap();
    assert_eq!((object, error.code, &*error.reason), (None, 404, "NotFound"));
    assert_eq!(error.message, "lease.coordination.k8s.io \"edgea\" not found");
    for path in ["node-insert", "nodepatch", "podpatch", "lease-insert"] {
        let (object, error) = read(&format!("samples/s2c-{path}-response.json"));
        assert!(object.unwrap()["metadata"]["uid"].is_string(), "{path}");
        assert_eq!(error, None);
    }
}

#[test]
fn the_captured_pod_references_the_names_edgecore_queried() {
    let text = captured_text("samples/s2c-pod-insert.json");
    let found = references(decode(text.as_bytes()).unwrap().content.unwrap().get());
    let found: Vec<String> = found.iter().map(Name::to_string).collect();
    assert_eq!(found, ["lab/configmap/web-conf", "lab/secret/web-cred"]);
}
