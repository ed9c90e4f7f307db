//! Attacks on the API by its clients, over a real server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use edgesync_api::{Extension, ExtensionCall, Limits};
use edgesync_object::status::Result;
use edgesync_testkit::serving;
use serde_json::{Value, json};
use serving::{Answer, Running, config_map, open, send, soon};
use tokio::sync::Semaphore;

const JSON: &str = "Content-Type: application/json\r\n";
const MAPS: &str = "/api/v1/namespaces/plant/configmaps";

async fn delete(running: &Running, path: &str) -> Answer {
    send(&running.unix, "DELETE", path, "", "").await
}

async fn get(running: &Running, path: &str) -> Answer {
    send(&running.unix, "GET", path, "", "").await
}

#[tokio::test]
async fn empty_names_and_namespace_collections_delete_nothing() {
    let running = Running::cloud(Limits::cloud()).await;
    assert_eq!(send(&running.unix, "POST", MAPS, JSON, &config_map("a", "1")).await.code, 201);
    let refused = delete(&running, "/api/v1/namespaces").await;
    assert_eq!((refused.code, refused.reason().as_str()), (405, "MethodNotAllowed"), "{refused:?}");
    assert_eq!(refused.header("allow"), Some("GET, HEAD, POST, OPTIONS"));
    for path in [
        "/api/v1/namespaces/",
        "/api/v1/namespaces//",
        "/api/v1//namespaces",
        "//api/v1/namespaces",
        &format!("{MAPS}/"),
        "/api/v1/namespaces//configmaps",
        "/api/v1/namespaces/plant//configmaps",
        "/api/v1/namespaces/plant/configmaps//a",
        "/api/v1/namespaces/plant/configmaps/a/",
    ] {
        let refused = delete(&running, path).await;
        assert_eq!((refused.code, refused.reason().as_str()), (404, "NotFound"), "{path}: {refused:?}");
        for method in ["PUT", "POST", "PATCH"] {
            let refused = send(&running.unix, method, path, JSON, "{}").await;
            assert_eq!(refused.code, 404, "{method} {path}: {refused:?}");
        }
    }
    let namespace = get(&running, "/api/v1/namespaces/plant").await.json();
    assert_eq!(namespace["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!(get(&running, &format!("{MAPS}/a")).await.code, 200);
    assert_eq!(delete(&running, MAPS).await.code, 200, "a collection is deleted under its own path");
    assert_eq!(get(&running, &format!("{MAPS}/a")).await.code, 404);
}

#[tokio::test]
async fn discovery_and_openapi_list_the_served_verbs() {
    let running = Running::cloud(Limits::cloud()).await;
    let core = get(&running, "/api/v1").await.json();
    let verbs = |name: &str| {
        let resources = core["resources"].as_array().unwrap();
        resources.iter().find(|resource| resource["name"] == name).unwrap()["verbs"].clone()
    };
    let but_collections = json!(["create", "delete", "get", "list", "patch", "update", "watch"]);
    assert_eq!(verbs("namespaces"), but_collections);
    assert!(verbs("services").as_array().unwrap().contains(&json!("deletecollection")));
    let openapi = get(&running, "/openapi/v3/api/v1").await.json();
    assert_eq!(openapi["paths"]["/api/v1/namespaces"]["delete"], Value::Null);
    assert_eq!(openapi["paths"]["/api/v1/namespaces"]["post"]["x-kubernetes-action"], "post");
    assert!(openapi["paths"]["/api/v1/namespaces/{namespace}/services"]["delete"].is_object());
}

/// An extension whose requests block until they get a permit.
#[derive(Clone)]
struct Gate {
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    done: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Self { inside: Arc::default(), most: Arc::default(), done: Arc::new(Semaphore::new(0)) }
    }
}

impl Extension for Gate {
    async fn call(&self, call: ExtensionCall) -> Result<Value> {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        self.done.acquire().await.unwrap().forget();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(json!({"items": call.body.as_array().map(Vec::len)}))
    }
}

#[tokio::test]
async fn memory_of_parsed_bodies_is_bounded_until_requests_finish() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Arc::new(open(&dir.path().join("cloud.db")).await);
    let gate = Gate::new();
    // The budget holds one body of objects with one field each, which grows from 7 to 700 bytes,
    // but not two.
    let limits = Limits { body_bytes: 64 << 10, values_bytes: 4 << 20, ..Limits::cloud() };
    let tcp = "127.0.0.1:0".parse().unwrap();
    let running = Running::start_with(storage, gate.clone(), limits, &tcp).await;
    let body = |count: usize| format!("[{}0]", r#"{"":0},"#.repeat(count));
    let bomb = send(&running.tcp, "POST", "/edgesync/v1/gate", JSON, &body(8000)).await;
    assert_eq!((bomb.code, bomb.reason().as_str()), (413, "RequestEntityTooLarge"), "{bomb:?}");
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (tcp, body) = (running.tcp.clone(), body(1000));
            tokio::spawn(async move { send(&tcp, "POST", "/edgesync/v1/gate", JSON, &body).await })
        })
        .collect();
    soon("the first request", async {
        while gate.inside.load(Ordering::SeqCst) == 0 {
            assert_eq!(get(&running, "/healthz").await.code, 200);
        }
    })
    .await;
    // Requests without a body reserve nothing, and each response lets the others proceed.
    for _ in 0..20 {
        assert_eq!(get(&running, "/healthz").await.code, 200);
    }
    gate.done.add_permits(4);
    for client in clients {
        let answer = soon("an answer", client).await.unwrap();
        assert_eq!((answer.code, answer.json()), (200, json!({"items": 1001})));
    }
    assert_eq!(gate.most.load(Ordering::SeqCst), 1, "so many requests had their bodies in memory at a time");
}
