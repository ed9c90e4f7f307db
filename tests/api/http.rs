//! The API over plain HTTP: a server over the cloud's store, on Unix and TCP sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::serving;
use std::time::Duration;

use edgesync_api::{Limits, SYSTEM_NAMESPACES};
use serde_json::{Value, json};
use serving::{Running, TOKEN, config_map, connect, parse, raw, send, soon};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &str = "Content-Type: application/json\r\n";
const YAML: &str = "Content-Type: application/yaml\r\n";

fn map_path(name: &str) -> String {
    format!("{MAPS}/{name}")
}

#[tokio::test]
async fn objects_are_created_replaced_and_deleted_on_both_sockets() {
    let running = Running::cloud(Limits::cloud()).await;
    for (address, name) in [(&running.tcp, "a"), (&running.unix, "b")] {
        let created = send(address, "POST", MAPS, JSON, &config_map(name, "1")).await;
        assert_eq!(created.code, 201, "{created:?}");
        assert_eq!(created.header("content-type"), Some("application/json"));
        let metadata = &created.json()["metadata"];
        assert_eq!((&metadata["namespace"], &metadata["generation"]), (&json!("default"), &json!(1)));
        assert!(metadata["uid"].is_string() && metadata["creationTimestamp"].is_string(), "{metadata}");

        let got = send(address, "GET", &map_path(name), "", "").await;
        assert_eq!((got.code, got.json()), (200, created.json()));

        let mut changed = got.json();
        changed["data"]["k"] = json!("2");
        let replaced = send(address, "PUT", &map_path(name), JSON, &changed.to_string()).await;
        assert_eq!((replaced.code, &replaced.json()["data"]["k"]), (200, &json!("2")), "{replaced:?}");
        let stale = send(address, "PUT", &map_path(name), JSON, &got.json().to_string()).await;
        assert_eq!((stale.code, stale.reason().as_str()), (409, "Conflict"));

        let deleted = send(address, "DELETE", &map_path(name), "", "").await;
        assert_eq!((deleted.code, &deleted.json()["status"]), (200, &json!("Success")));
        assert_eq!(deleted.json()["details"]["uid"], metadata["uid"]);
        let gone = send(address, "GET", &map_path(name), "", "").await;
        assert_eq!((gone.code, gone.reason().as_str()), (404, "NotFound"));
        assert_eq!(gone.json()["message"], format!("configmaps \"{name}\" not found"));
    }
}

#[tokio::test]
async fn system_namespaces_cannot_be_deleted() {
    let running = Running::cloud(Limits::cloud()).await;
    for name in SYSTEM_NAMESPACES {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}).to_string();
        // The server may have created them already.
        send(&running.unix, "POST", "/api/v1/namespaces", JSON, &namespace).await;
        let path = format!("/api/v1/namespaces/{name}");
        let refused = send(&running.unix, "DELETE", &path, "", "").await;
        assert_eq!((refused.code, refused.reason().as_str()), (403, "Forbidden"), "{name}");
        assert_eq!(send(&running.unix, "GET", &path, "", "").await.code, 200);
    }
}

#[tokio::test]
async fn finalizers_of_a_namespace_delay_its_deletion() {
    let running = Running::cloud(Limits::cloud()).await;
    let path = "/api/v1/namespaces/held";
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "held"}}).to_string();
    let created = send(&running.unix, "POST", "/api/v1/namespaces", JSON, &namespace).await.json();
    assert_eq!(created["spec"]["finalizers"], json!(["kubernetes"]));
    let finalize = async |finalizers: Value| {
        let mut sent = created.clone();
        sent["metadata"] = json!({"name": "held"});
        sent["spec"]["finalizers"] = finalizers;
        send(&running.unix, "PUT", &format!("{path}/finalize"), JSON, &sent.to_string()).await
    };
    let held = finalize(json!(["kubernetes", "example.com/hold"])).await;
    assert_eq!((held.code, &held.json()["spec"]["finalizers"][1]), (200, &json!("example.com/hold")));
    let refused = finalize(json!([])).await;
    assert_eq!((refused.code, refused.reason().as_str()), (422, "Invalid"), "{refused:?}");
    // Neither the object nor its status changes them.
    let replaced = send(&running.unix, "PUT", path, JSON, &namespace).await;
    assert_eq!(replaced.json()["spec"]["finalizers"], held.json()["spec"]["finalizers"], "{replaced:?}");

    // A server without a collector removes no finalizer.
    assert_eq!(send(&running.unix, "DELETE", path, "", "").await.code, 200);
    let terminating = finalize(json!(["example.com/hold"])).await;
    assert_eq!((terminating.code, &terminating.json()["status"]["phase"]), (200, &json!("Terminating")));
    assert_eq!(finalize(json!([])).await.code, 200);
    assert_eq!(send(&running.unix, "GET", path, "", "").await.code, 404);
    for method in ["GET", "PATCH", "POST", "DELETE"] {
        let answer = send(&running.unix, method, &format!("{path}/finalize"), JSON, "{}").await;
        assert_eq!((answer.code, answer.header("allow")), (405, Some("PUT, OPTIONS")), "{method}");
    }
}

/// Deletes a ConfigMap with these options; returns the code and the finalizers of a pending
/// deletion.
async fn delete_as(running: &Running, name: &str, options: &Value) -> (u16, Value) {
    let answer = send(&running.unix, "DELETE", &map_path(name), JSON, &options.to_string()).await;
    (answer.code, answer.json()["metadata"]["finalizers"].clone())
}

#[tokio::test]
async fn later_delete_changes_the_propagation_policy() {
    let running = Running::cloud(Limits::cloud()).await;
    let (foreground, orphan) = (json!(["foregroundDeletion"]), json!(["orphan"]));
    let policy = |policy: &str| json!({"propagationPolicy": policy});
    for name in ["a", "b", "c"] {
        assert_eq!(send(&running.unix, "POST", MAPS, JSON, &config_map(name, "1")).await.code, 201);
        assert_eq!(delete_as(&running, name, &policy("Foreground")).await, (200, foreground.clone()));
        let marked = send(&running.unix, "GET", &map_path(name), "", "").await.json();
        // A delete without a policy changes nothing.
        assert_eq!(delete_as(&running, name, &json!({})).await, (200, foreground.clone()));
        assert_eq!(send(&running.unix, "GET", &map_path(name), "", "").await.json(), marked);
        assert_eq!(delete_as(&running, name, &policy("Orphan")).await, (200, orphan.clone()));
        assert_eq!(delete_as(&running, name, &policy("Foreground")).await, (200, foreground.clone()));
        let after = send(&running.unix, "GET", &map_path(name), "", "").await.json();
        assert_eq!(after["metadata"]["deletionTimestamp"], marked["metadata"]["deletionTimestamp"]);
    }
    // Background deletion waits for no dependents, so the object is deleted at once; other
    // finalizers stay.
    assert_eq!(delete_as(&running, "a", &policy("Background")).await, (200, Value::Null));
    assert_eq!(delete_as(&running, "b", &json!({"orphanDependents": false})).await, (200, Value::Null));
    for name in ["a", "b"] {
        assert_eq!(send(&running.unix, "GET", &map_path(name), "", "").await.code, 404);
    }
    let mut held = serde_json::from_str::<Value>(&config_map("held", "1")).unwrap();
    held["metadata"]["finalizers"] = json!(["lab.io/hold", "orphan"]);
    assert_eq!(send(&running.unix, "POST", MAPS, JSON, &held.to_string()).await.code, 201);
    let dry = json!({"propagationPolicy": "Foreground", "dryRun": ["All"]});
    assert_eq!(delete_as(&running, "held", &dry).await.1, json!(["lab.io/hold", "foregroundDeletion"]));
    assert_eq!(delete_as(&running, "held", &json!({})).await.1, json!(["lab.io/hold", "orphan"]));
    assert_eq!(delete_as(&running, "held", &policy("Background")).await.1, json!(["lab.io/hold"]));
}

#[tokio::test]
async fn refusals_are_a_status_with_code_and_reason() {
    let running = Running::cloud(Limits::cloud()).await;
    let at = &running.unix;
    assert_eq!(send(at, "POST", MAPS, JSON, &config_map("a", "1")).await.code, 201);
    for (method, path, headers, body, code, reason) in [
        ("POST", MAPS, JSON, config_map("a", "1"), 409, "AlreadyExists"),
        ("POST", MAPS, JSON, config_map("No Name", "1"), 422, "Invalid"),
        ("POST", MAPS, JSON, "{".into(), 400, "BadRequest"),
        ("POST", MAPS, JSON, String::new(), 400, "BadRequest"),
        ("POST", MAPS, JSON, r#"{"kind":"Pod","apiVersion":"v1"}"#.into(), 400, "BadRequest"),
        ("POST", MAPS, "Content-Type: text/plain\r\n", "x".into(), 415, "UnsupportedMediaType"),
        ("PUT", &*map_path("none"), JSON, config_map("none", "1"), 404, "NotFound"),
        ("PUT", &*map_path("a"), JSON, config_map("b", "1"), 400, "BadRequest"),
        ("DELETE", &*map_path("a"), JSON, r#"{"preconditions":{"uid":"x"}}"#.into(), 409, "Conflict"),
        ("GET", &*map_path("a"), "Accept: text/html\r\n", String::new(), 406, "NotAcceptable"),
        ("GET", "/api/v1/widgets", "", String::new(), 404, "NotFound"),
        ("GET", "/api/v1/configmaps/a", "", String::new(), 404, "NotFound"),
        ("GET", "/api/v1/namespaces/x/nodes", "", String::new(), 404, "NotFound"),
        ("GET", "/nothing", "", String::new(), 404, "NotFound"),
        ("GET", "/api/v1/pods?limit=x", "", String::new(), 400, "BadRequest"),
        ("GET", "/api/v1/pods?continue=x", "", String::new(), 400, "BadRequest"),
        ("GET", "/api/v1/pods?labelSelector=(", "", String::new(), 400, "BadRequest"),
    ] {
        let answer = send(at, method, path, headers, &body).await;
        assert_eq!(
            (answer.code, answer.reason().as_str()),
            (code, reason),
            "{method} {path} {body}: {answer:?}"
        );
    }
    let invalid = send(at, "POST", MAPS, JSON, &config_map("No Name", "1")).await.json();
    assert_eq!(invalid["details"]["causes"][0]["field"], "metadata.name", "{invalid}");
}

#[tokio::test]
async fn unserved_methods_are_answered_with_the_allowed_ones() {
    let running = Running::cloud(Limits::cloud()).await;
    for (method, path, allow) in [
        ("POST", &*map_path("a"), "GET, HEAD, PUT, PATCH, DELETE, OPTIONS"),
        ("PUT", MAPS, "GET, HEAD, POST, DELETE, OPTIONS"),
        ("POST", "/api/v1/configmaps", "GET, HEAD, OPTIONS"),
        ("DELETE", "/api/v1/namespaces/a/pods/p/status", "GET, HEAD, PUT, PATCH, OPTIONS"),
        ("PUT", "/healthz", "GET, HEAD, OPTIONS"),
    ] {
        let answer = send(&running.unix, method, path, "", "").await;
        assert_eq!((answer.code, answer.header("allow")), (405, Some(allow)), "{method} {path}");
        assert_eq!(answer.reason(), "MethodNotAllowed");
        let asked = send(&running.unix, "OPTIONS", path, "", "").await;
        assert_eq!((asked.code, &*asked.body), (204, ""), "{path}");
    }
    let head = send(&running.unix, "HEAD", "/api/v1/configmaps", "", "").await;
    assert_eq!((head.code, &*head.body), (200, ""));
}

#[tokio::test]
async fn yaml_is_accepted_and_returned() {
    let running = Running::cloud(Limits::cloud()).await;
    let manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml}\ndata:\n  on: \"on\"\n  run: |\n    a\n    b\n";
    let created = send(&running.unix, "POST", MAPS, YAML, manifest).await;
    assert_eq!((created.code, &created.json()["data"]), (201, &json!({"true": "on", "run": "a\nb\n"})));
    let accept = "Accept: application/yaml\r\n";
    let got = send(&running.unix, "GET", &map_path("yaml"), accept, "").await;
    assert_eq!(got.header("content-type"), Some("application/yaml"));
    assert_eq!(edgesync_object::yaml::parse(&got.body).unwrap(), created.json());
    let list = send(&running.unix, "GET", MAPS, accept, "").await;
    assert_eq!(edgesync_object::yaml::parse(&list.body).unwrap()["items"], json!([created.json()]));
    let pretty = send(&running.unix, "GET", &format!("{}?pretty=true", map_path("yaml")), "", "").await;
    assert!(pretty.body.starts_with("{\n  \"apiVersion\""), "{}", pretty.body);
    let refused = send(&running.unix, "GET", &map_path("none"), accept, "").await;
    assert!(refused.body.contains("reason: NotFound\n"), "{}", refused.body);
}

#[tokio::test]
async fn tables_are_served_in_the_v1beta1_version() {
    let running = Running::cloud(Limits::cloud()).await;
    assert_eq!(send(&running.tcp, "POST", MAPS, JSON, &config_map("a", "1")).await.code, 201);
    let accept = "Accept: application/json;as=Table;g=meta.k8s.io;v=v1beta1\r\n";
    let watch = format!("{MAPS}?watch=1&timeoutSeconds=1");
    for path in [MAPS, &map_path("a"), &watch] {
        let answer = send(&running.tcp, "GET", path, accept, "").await;
        assert_eq!(answer.code, 200, "{path}: {answer:?}");
        let mut table = answer.json();
        if path == watch {
            assert_eq!(table["type"], "ADDED", "{table}");
            table = table["object"].take();
        }
        let row = &table["rows"][0];
        let found = (&table["apiVersion"], &table["kind"], &row["object"]["apiVersion"], &row["cells"][0]);
        let older = json!("meta.k8s.io/v1beta1");
        assert_eq!(found, (&older, &json!("Table"), &older, &json!("a")), "{path}");
    }
}

#[tokio::test]
async fn duplicate_and_unknown_fields_are_reported_together() {
    let running = Running::cloud(Limits::cloud()).await;
    let body = r#"{"metadata": {"name": "a"}, "date": {"x": 1, "x": 2}, "data": {"k": "1", "k": "2"}}"#;
    let odd = ["duplicate field \"data.k\"", "unknown field \"date\""];
    let strict = send(&running.tcp, "POST", &format!("{MAPS}?fieldValidation=Strict"), JSON, body).await;
    assert_eq!(strict.code, 400, "{strict:?}");
    let message = strict.json()["message"].to_string().replace('\\', "");
    assert!(message.contains(&format!("strict decoding error: {}\"", odd.join(", "))), "{message}");
    let warned = send(&running.tcp, "POST", MAPS, JSON, body).await;
    assert_eq!((warned.code, &warned.json()["data"]["k"]), (201, &json!("2")), "{warned:?}");
    let warnings = warned.head.lines().filter(|line| line.to_ascii_lowercase().starts_with("warning:"));
    let warnings: Vec<String> = warnings.map(|line| line.replace('\\', "")).collect();
    assert!(
        warnings.len() == 2 && warnings.iter().zip(odd).all(|(line, odd)| line.contains(odd)),
        "{warnings:?}"
    );
    let path = format!("{}?fieldValidation=Ignore", map_path("a"));
    let ignored = send(&running.tcp, "PUT", &path, JSON, body).await;
    assert_eq!(ignored.header("warning"), None);
}

#[tokio::test]
async fn duplicate_owner_references_are_merged_with_a_warning() {
    let running = Running::cloud(Limits::cloud()).await;
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "name": name, "uid": "u-1"});
    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a",
        "ownerReferences": [owner("s"), owner("s")]}});
    let created = send(&running.tcp, "POST", MAPS, JSON, &map.to_string()).await;
    assert_eq!((created.code, &created.json()["metadata"]["ownerReferences"]), (201, &json!([owner("s")])));
    let warning = ".metadata.ownerReferences contains duplicate entries";
    assert!(created.header("warning").is_some_and(|text| text.contains(warning)), "{created:?}");
    map["metadata"]["ownerReferences"] = json!([owner("s")]);
    let again = send(&running.tcp, "PUT", &map_path("a"), JSON, &map.to_string()).await;
    assert_eq!((again.code, again.header("warning")), (200, None));
    map["metadata"]["ownerReferences"] = json!([owner("s"), owner("s"), owner("s")]);
    let merge = "Content-Type: application/merge-patch+json\r\n";
    let patched = send(&running.tcp, "PATCH", &map_path("a"), merge, &map.to_string()).await;
    assert_eq!((patched.code, &patched.json()["metadata"]["ownerReferences"]), (200, &json!([owner("s")])));
    assert!(patched.header("warning").is_some_and(|text| text.contains(warning)), "{patched:?}");
}

#[tokio::test]
async fn long_lists_are_streamed_and_paginated() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let total = 1_203;
    for number in 0..total {
        let mut object: Value = serde_json::from_str(&config_map(&format!("m{number:05}"), "v")).unwrap();
        object["metadata"]["labels"] = json!({"third": (number % 3 == 0).to_string()});
        client.post::<Value>(MAPS, &object).await.unwrap();
    }
    let whole = send(&running.tcp, "GET", "/api/v1/configmaps", "", "").await;
    assert_eq!(whole.header("transfer-encoding"), Some("chunked"), "{}", whole.head);
    let list = whole.json();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("ConfigMapList"), total));
    assert!(list["metadata"]["resourceVersion"].is_string() && list["metadata"].get("continue").is_none());

    let mut names = Vec::new();
    let mut path = format!("{MAPS}?limit=700&labelSelector=third%3Dfalse");
    loop {
        let page: Value = client.get(&path).await.unwrap();
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 700);
        names.extend(items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()));
        match page["metadata"]["continue"].as_str() {
            Some(token) => path = format!("{MAPS}?limit=700&labelSelector=third%3Dfalse&continue={token}"),
            None => break,
        }
    }
    let expected: Vec<String> = (0..total).filter(|n| n % 3 != 0).map(|n| format!("m{n:05}")).collect();
    assert_eq!(names, expected);
    let one: Value = client.get("/api/v1/configmaps?fieldSelector=metadata.name%3Dm00007").await.unwrap();
    assert_eq!(one["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn bodies_beyond_the_limit_are_refused_in_either_encoding() {
    let limits = Limits { body_bytes: 1_000, ..Limits::cloud() };
    let running = Running::cloud(limits).await;
    let large = config_map("a", &"x".repeat(2_000));
    let announced = send(&running.unix, "POST", MAPS, JSON, &large).await;
    assert_eq!((announced.code, announced.reason().as_str()), (413, "RequestEntityTooLarge"));
    let chunked = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n{JSON}\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    assert_eq!(parse(&raw(&running.unix, &chunked).await).reason(), "RequestEntityTooLarge");
    // The server refuses by the header, before the body arrives.
    let head =
        format!("POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n{JSON}\r\n");
    assert_eq!(parse(&raw(&running.unix, &head).await).code, 413);
    let long = send(&running.unix, "GET", &format!("/api/v1/{}", "a".repeat(9_000)), "", "").await;
    assert_eq!((long.code, long.reason().as_str()), (414, "BadRequest"));
    let header = format!("X: {}\r\n", "y".repeat(40_000));
    assert_eq!(send(&running.unix, "GET", "/healthz", &header, "").await.code, 431);
}

#[tokio::test]
async fn client_still_sending_a_refused_body_reads_the_refusal() {
    let running = Running::cloud(Limits { body_bytes: 1_000, ..Limits::cloud() }).await;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 8388608\r\n{JSON}\r\n"
    );
    for address in [&running.unix, &running.tcp] {
        let mut stream = connect(address).await;
        // More than the socket buffers hold for a peer that does not read.
        soon("what is sent", stream.write_all(&[head.as_bytes(), &[b' '; 300 << 10]].concat()))
            .await
            .unwrap();
        let mut answer = Vec::new();
        soon("an answer", stream.read_to_end(&mut answer)).await.unwrap();
        let answer = parse(&answer);
        assert_eq!((answer.code, answer.header("connection")), (413, Some("close")));
    }
}

#[tokio::test]
async fn early_refusals_arrive_and_close_the_connection() {
    let running = Running::cloud(Limits::cloud()).await;
    let elsewhere = format!("{JSON}Origin: https://example.com\r\n");
    for (method, path, token, headers, code, reason) in [
        ("POST", MAPS, "another", JSON, 401, "Unauthorized"),
        ("POST", MAPS, TOKEN, &*elsewhere, 403, "Forbidden"),
        ("POST", "/api/v1/namespaces/default/widgets", TOKEN, JSON, 404, "NotFound"),
        ("POST", "/nothing", TOKEN, JSON, 404, "NotFound"),
        ("PUT", MAPS, TOKEN, JSON, 405, "MethodNotAllowed"),
        ("POST", MAPS, TOKEN, "Content-Type: text/html\r\n", 415, "UnsupportedMediaType"),
        (
            "PUT",
            &map_path("a"),
            TOKEN,
            "Content-Type: application/merge-patch+json\r\n",
            415,
            "UnsupportedMediaType",
        ),
        ("PATCH", &map_path("a"), TOKEN, JSON, 415, "UnsupportedMediaType"),
        ("POST", MAPS, TOKEN, &format!("{JSON}Accept: text/html\r\n"), 406, "NotAcceptable"),
    ] {
        let mut stream = connect(&running.tcp).await;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 8388608\r\n{headers}\r\n"
        );
        let sent = [head.as_bytes(), &[b' '; 300 << 10]].concat();
        soon("what is sent", stream.write_all(&sent)).await.unwrap();
        let mut answer = Vec::new();
        soon("an answer", stream.read_to_end(&mut answer)).await.unwrap();
        let answer = parse(&answer);
        let told = (answer.code, answer.reason(), answer.header("connection").map(str::to_owned));
        assert_eq!(told, (code, reason.to_owned(), Some("close".to_owned())), "{method} {path} {headers}");
        assert_eq!(answer.header("content-length"), Some(&*answer.body.len().to_string()), "it is whole");
    }
}

/// Caches between client and server must revalidate: another client may not see the response, and
/// the next version differs.
#[tokio::test]
async fn responses_must_be_revalidated_by_caches() {
    let running = Running::cloud(Limits::cloud()).await;
    assert_eq!(send(&running.unix, "POST", MAPS, JSON, &config_map("a", "1")).await.code, 201);
    let document = send(&running.unix, "GET", "/openapi/v3/api/v1", "", "").await;
    let known = format!("If-None-Match: {}\r\n", document.header("etag").unwrap());
    for (path, headers, code) in [
        (&*map_path("a"), "", 200),
        (&*map_path("none"), "", 404),
        (MAPS, "", 200),
        ("/healthz", "", 200),
        ("/openapi/v3/api/v1", &*known, 304),
    ] {
        let answer = send(&running.unix, "GET", path, headers, "").await;
        assert_eq!(
            (answer.code, answer.header("cache-control")),
            (code, Some("no-cache, private")),
            "{path}"
        );
    }
}

/// Go's decoder maps null to an empty string.
#[tokio::test]
async fn initial_events_of_a_watch_are_the_objects_of_a_list() {
    let running = Running::cloud(Limits::cloud()).await;
    for name in ["c", "a", "b"] {
        assert_eq!(send(&running.unix, "POST", MAPS, JSON, &config_map(name, "1")).await.code, 201);
    }
    assert_eq!(send(&running.unix, "DELETE", &map_path("c"), "", "").await.code, 200);
    let list = send(&running.unix, "GET", MAPS, "", "").await.json();
    // The body of a response to HTTP/1.0 is not chunked: one event per line.
    let watch = format!(
        "GET {MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&\
         allowWatchBookmarks=true&resourceVersion={} HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n",
        list["metadata"]["resourceVersion"].as_str().unwrap()
    );
    let mut stream = connect(&running.unix).await;
    stream.write_all(watch.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut line = async || soon("a line", lines.next_line()).await.unwrap().unwrap();
    while !line().await.is_empty() {}
    let mut event = async || serde_json::from_str::<Value>(&line().await).unwrap();
    let mut events = vec![event().await, event().await, event().await];
    let created = send(&running.unix, "POST", MAPS, JSON, &config_map("0", "1")).await.json();
    events.push(event().await);
    let of = |event: &str, object: &Value| json!({"type": event, "object": object});
    let items = list["items"].as_array().unwrap();
    let mut expected: Vec<Value> = items.iter().map(|item| of("ADDED", item)).collect();
    for event in &mut expected {
        // A list says them once for all its items.
        event["object"]["apiVersion"] = json!("v1");
        event["object"]["kind"] = json!("ConfigMap");
    }
    let end = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "resourceVersion": list["metadata"]["resourceVersion"], "creationTimestamp": null,
            "annotations": {"k8s.io/initial-events-end": "true"},
        },
    });
    expected.extend([of("BOOKMARK", &end), of("ADDED", &created)]);
    assert_eq!(events, expected);
}

#[tokio::test]
async fn null_values_of_a_config_map_become_empty_strings() {
    let running = Running::cloud(Limits::cloud()).await;
    let yaml = "{apiVersion: v1, kind: ConfigMap, metadata: {name: yaml}, data: {A: }}";
    let json = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"json"},"data":{"A":null}}"#;
    for (headers, body, name) in [(YAML, yaml, "yaml"), (JSON, json, "json")] {
        let created = send(&running.unix, "POST", MAPS, headers, body).await;
        assert_eq!((created.code, &created.json()["data"]), (201, &json!({"A": ""})), "{name}: {created:?}");
        let put = send(&running.unix, "PUT", &map_path(name), headers, body).await;
        assert_eq!((put.code, put.json()), (200, created.json()), "nothing has changed");
    }
    // Applying it twice changes nothing either.
    let path = format!("{}?fieldManager=m", map_path("applied"));
    let apply = "Content-Type: application/apply-patch+yaml\r\n";
    let text = yaml.replace("name: yaml", "name: applied");
    let applied = send(&running.unix, "PATCH", &path, apply, &text).await;
    assert_eq!((applied.code, &applied.json()["data"]), (201, &json!({"A": ""})), "{applied:?}");
    let again = send(&running.unix, "PATCH", &path, apply, &text).await;
    assert_eq!((again.code, again.json()), (200, applied.json()));
}

#[tokio::test]
async fn negative_grace_periods_are_accepted_in_query_and_body() {
    let running = Running::cloud(Limits::cloud()).await;
    for (query, body) in [("?gracePeriodSeconds=-1", ""), ("", r#"{"gracePeriodSeconds":-1}"#)] {
        assert_eq!(send(&running.unix, "POST", MAPS, JSON, &config_map("a", "1")).await.code, 201);
        let path = map_path("a");
        let deleted = send(&running.unix, "DELETE", &format!("{path}{query}"), JSON, body).await;
        assert_eq!((deleted.code, &deleted.json()["status"]), (200, &json!("Success")), "{query}{body}");
        assert_eq!(send(&running.unix, "GET", &path, "", "").await.code, 404);
    }
    let refused =
        send(&running.unix, "DELETE", &format!("{}?gracePeriodSeconds=soon", map_path("a")), "", "").await;
    assert_eq!((refused.code, refused.reason().as_str()), (400, "BadRequest"));
}

#[tokio::test]
async fn objects_of_several_megabytes_are_stored() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let object: Value = serde_json::from_str(&config_map("large", &"x".repeat(3 << 20))).unwrap();
    client.post::<Value>(MAPS, &object).await.unwrap();
    let got: Value = client.get(&map_path("large")).await.unwrap();
    assert_eq!(got["data"], object["data"]);
}

#[tokio::test]
async fn slow_clients_are_disconnected() {
    let short = Duration::from_millis(300);
    let limits = Limits { head_timeout: short, body_timeout: short, connections: 1, ..Limits::cloud() };
    let running = Running::cloud(limits).await;
    let unfinished_head = raw(&running.unix, "GET /healthz HTTP/1.1\r\nHost:").await;
    assert!(unfinished_head.is_empty() || parse(&unfinished_head).code == 408, "{unfinished_head:?}");
    let idle = raw(&running.unix, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert_eq!(parse(&idle).body, "ok", "then the idle connection is closed");
    let head = format!("POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n{JSON}\r\n{{");
    let answer = parse(&raw(&running.unix, &head).await);
    assert_eq!((answer.code, answer.reason().as_str()), (429, "TooManyRequests"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    // With one connection allowed, this succeeds only if all of the above are closed.
    assert_eq!(send(&running.unix, "GET", "/healthz", "", "").await.code, 200);
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let running = Running::cloud(Limits { connections: 1, ..Limits::cloud() }).await;
    let mut first = connect(&running.unix).await;
    first.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    soon("the first answer", first.read_exact(&mut answer)).await.unwrap();
    let address = running.unix.clone();
    let second = tokio::spawn(async move { send(&address, "GET", "/healthz", "", "").await.code });
    tokio::task::yield_now().await;
    assert!(!second.is_finished());
    drop(first);
    assert_eq!(soon("the second answer", second).await.unwrap(), 200);
}

#[tokio::test]
async fn cross_origin_requests_are_refused_on_tcp() {
    let running = Running::cloud(Limits::cloud()).await;
    let foreign = "GET /healthz HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n";
    let answer = parse(&raw(&running.tcp, foreign).await);
    assert_eq!((answer.code, answer.reason().as_str()), (403, "Forbidden"));
    assert_eq!(parse(&raw(&running.unix, foreign).await).code, 200, "no browser reaches a Unix socket");
    let page =
        send(&running.tcp, "POST", MAPS, "Origin: https://example.com\r\n", &config_map("a", "1")).await;
    assert_eq!(page.code, 403);
}

#[tokio::test]
async fn health_version_and_extension_paths_are_served() {
    let running = Running::cloud(Limits::cloud()).await;
    for path in ["/healthz", "/livez", "/readyz"] {
        let answer = send(&running.tcp, "GET", path, "", "").await;
        assert_eq!((answer.code, answer.body.as_str()), (200, "ok"), "{path}");
    }
    let version = send(&running.tcp, "GET", "/version", "", "").await.json();
    assert_eq!(version["major"], "1");
    let echoed = send(&running.tcp, "POST", "/edgesync/v1/a/b%20c?x=1", JSON, r#"{"all":true}"#).await;
    let expected = json!({"method": "POST", "path": "a/b c", "query": [["x", "1"]], "body": {"all": true}});
    assert_eq!((echoed.code, echoed.json()), (200, expected));
    assert_eq!(send(&running.tcp, "GET", "/edgesync/v1/missing", "", "").await.reason(), "NotFound");
}

#[tokio::test]
async fn malformed_http_leaves_the_server_running() {
    let running =
        Running::cloud(Limits { head_timeout: Duration::from_millis(200), ..Limits::cloud() }).await;
    for garbage in
        ["\0\0\0\0", "\u{16}\u{3}\u{1}", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n"]
    {
        let _ = raw(&running.tcp, garbage).await;
    }
    assert_eq!(send(&running.tcp, "GET", "/healthz", "", "").await.code, 200);
}

/// A local user holds idle connections and watches: 64 of each would exhaust the limits.
#[tokio::test]
async fn idle_connections_and_watches_leave_room_for_other_users() {
    let running = Running::cloud(Limits::edge()).await;
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(connect(&running.unix).await);
        held.push(connect(&running.tcp).await);
    }
    assert_eq!(send(&running.unix, "GET", "/healthz", "", "").await.code, 200);
    assert_eq!(send(&running.tcp, "GET", "/healthz", "", "").await.code, 200);
    let mut refused = 0;
    for _ in 0..40 {
        let mut watch = connect(&running.unix).await;
        let head = format!("GET {MAPS}?watch=true HTTP/1.1\r\nHost: localhost\r\n\r\n");
        watch.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        soon("the head of a watch", watch.read_exact(&mut answer)).await.unwrap();
        refused += usize::from(answer.ends_with(b"429"));
        held.push(watch);
    }
    assert_eq!(refused, 8, "a user has half of the watches");
    assert_eq!(send(&running.unix, "GET", "/healthz", "", "").await.code, 200);
}

#[tokio::test]
async fn connections_without_a_request_are_closed() {
    let limits = Limits { first_timeout: Duration::from_millis(50), ..Limits::edge() };
    let running = Running::cloud(limits).await;
    assert!(raw(&running.unix, "").await.is_empty());
}
