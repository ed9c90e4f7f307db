//! What a client of the API must not be able to do, tried over a real server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use crate::serving;
use edgesync::api::Limits;
use serde_json::{Value, json};
use serving::{Answer, Running, config_map, send};

const JSON: &str = "Content-Type: application/json\r\n";
const MAPS: &str = "/api/v1/namespaces/plant/configmaps";

async fn delete(running: &Running, path: &str) -> Answer {
    send(&running.unix, "DELETE", path, "", "").await
}

async fn get(running: &Running, path: &str) -> Answer {
    send(&running.unix, "GET", path, "", "").await
}

#[tokio::test]
async fn an_empty_name_deletes_nothing_and_namespaces_go_one_by_one() {
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
async fn discovery_and_openapi_name_the_verbs_that_are_served() {
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
