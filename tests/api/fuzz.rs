//! Fuzzes the API: every request gets a proper status below 500, and memory stays bounded.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_api::{Address, Limits};
use edgesync_testkit::serving;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use serving::{Answer, Running, config_map, send};

const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];
const PATHS: &[&str] = &[
    "/",
    "/api",
    "/apis",
    "/api/v1",
    "/apis/apps",
    "/apis/apps/v1",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/api/v1",
    "/openapi/v3/apis/apps/v1",
    "/version",
    "/metrics",
    "/healthz",
    "/readyz",
    "/livez/store",
    "/api/v1/configmaps",
    "/api/v1/namespaces",
    "/api/v1/namespaces/default",
    "/api/v1/namespaces/default/status",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/configmaps/a",
    "/api/v1/namespaces/default/pods/p",
    "/api/v1/namespaces/default/pods/p/status",
    "/api/v1/nodes/n",
    "/api/v1/namespaces/default/events",
    "/apis/events.k8s.io/v1/namespaces/default/events/e",
    "/apis/apps/v1/namespaces/default/deployments",
    "/apis/apps/v1/namespaces/default/deployments/d",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases/l",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com",
    "/apis/reliablesyncs.kubeedge.io/v1alpha1/namespaces/default/objectsyncs/n.u",
    "/api/v1/watch/configmaps",
];
const PARAMETERS: &[&str] = &[
    "limit",
    "continue",
    "resourceVersion",
    "resourceVersionMatch",
    "labelSelector",
    "fieldSelector",
    "timeoutSeconds",
    "sendInitialEvents",
    "allowWatchBookmarks",
    "dryRun",
    "fieldManager",
    "fieldValidation",
    "force",
    "pretty",
    "includeObject",
    "gracePeriodSeconds",
    "propagationPolicy",
    "orphanDependents",
    "verbose",
    "exclude",
];
const VALUES: &[&str] = &[
    "",
    "0",
    "1",
    "-1",
    "true",
    "false",
    "x",
    "All",
    "Strict",
    "Ignore",
    "Exact",
    "NotOlderThan",
    "Foreground",
    "Orphan",
    "a=b",
    "a in (b,c)",
    "!a",
    "metadata.name=a",
    "spec.nodeName=n",
    "99999999999999999999",
    "18446744073709551615",
    "None",
    "Object",
    "%00",
    "%zz",
    "e30",
    "eyJjIjoiIiwicCI6IiJ9",
    "me",
];
const TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "text/plain",
    "",
];
const ACCEPTS: &[&str] = &[
    "application/json",
    "application/yaml",
    "*/*",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    "text/html",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
];
/// Field names that the API reads.
const FIELDS: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "resourceVersion",
    "uid",
    "generateName",
    "deletionTimestamp",
    "spec",
    "status",
    "data",
    "type",
    "template",
    "containers",
    "ports",
    "selector",
    "replicas",
    "regarding",
    "eventTime",
    "reason",
    "versions",
    "schema",
    "openAPIV3Schema",
    "properties",
    "group",
    "names",
    "plural",
    "scope",
    "op",
    "path",
    "value",
    "from",
    "$patch",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "$retainKeys",
    "preconditions",
    "dryRun",
    "fieldsV1",
    "f:metadata",
    "k:{\"name\":\"a\"}",
    "propagationPolicy",
    "immutable",
    "binaryData",
    "holderIdentity",
];
const TEXTS: &[&str] = &[
    "v1",
    "apps/v1",
    "ConfigMap",
    "Deployment",
    "Pod",
    "a",
    "default",
    "",
    "Apply",
    "Update",
    "FieldsV1",
    "/metadata/labels",
    "/data/a",
    "replace",
    "add",
    "remove",
    "test",
    "move",
    "copy",
    "-",
    "2026-01-01T00:00:00Z",
    "delete",
    "merge",
    "1Gi",
    "ä\u{0}",
];

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop_oneof![Just(0_i64), Just(1), Just(-1), any::<i64>()].prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        proptest::sample::select(TEXTS).prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(proptest::sample::select(FIELDS), inner, 0..6)
                .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// A valid object with one mutated value.
fn spoilt_object() -> impl Strategy<Value = Value> {
    let good = prop_oneof![
        Just(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "b"}})),
        Just(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
            "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}}}})),
        Just(json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"}, "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}}]}})),
    ];
    let pointers = proptest::sample::select(
        &[
            "",
            "/metadata",
            "/metadata/name",
            "/data",
            "/data/a",
            "/spec",
            "/spec/selector",
            "/spec/template",
            "/spec/template/spec/containers",
            "/spec/template/spec/containers/0",
            "/spec/names",
            "/spec/versions",
            "/spec/versions/0",
            "/spec/versions/0/schema/openAPIV3Schema",
            "/spec/versions/0/schema/openAPIV3Schema/properties",
        ][..],
    );
    (good, pointers, proptest::sample::select(FIELDS), any_json(), any::<bool>()).prop_map(
        |(mut object, pointer, field, value, insert)| {
            match object.pointer_mut(pointer) {
                Some(Value::Object(fields)) if insert => drop(fields.insert(field.to_owned(), value)),
                Some(place) => *place = value,
                None => {}
            }
            object
        },
    )
}

fn body() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => any_json().prop_map(|json| json.to_string()),
        3 => spoilt_object().prop_map(|json| json.to_string()),
        2 => proptest::collection::vec(any_json(), 0..4).prop_map(|list| Value::from(list).to_string()),
        1 => "\\PC{0,60}",
        1 => Just(String::new()),
        1 => Just("[".repeat(3_000)),
    ]
}

fn path() -> impl Strategy<Value = String> {
    let known = proptest::sample::select(PATHS).prop_map(str::to_owned);
    let odd = "(/[a-z0-9.%-]{0,12}){0,7}".prop_map(|path| format!("/{path}"));
    let query = proptest::collection::vec(
        (proptest::sample::select(PARAMETERS), proptest::sample::select(VALUES)),
        0..4,
    );
    (prop_oneof![6 => known, 1 => odd], query).prop_map(|(path, query)| {
        let query: Vec<String> =
            query.into_iter().map(|(key, value)| format!("{key}={}", value.replace(' ', "+"))).collect();
        if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
    })
}

#[derive(Clone, Debug)]
struct Shot {
    method: &'static str,
    path: String,
    content_type: &'static str,
    accept: &'static str,
    body: String,
}

fn shot() -> impl Strategy<Value = Shot> {
    (
        proptest::sample::select(METHODS),
        path(),
        proptest::sample::select(TYPES),
        proptest::sample::select(ACCEPTS),
        body(),
    )
        .prop_map(|(method, path, content_type, accept, body)| Shot {
            method,
            path,
            content_type,
            accept,
            body,
        })
}

async fn fire(address: &Address, shot: &Shot) -> Answer {
    let mut path = shot.path.clone();
    // A watch would run for long; other tests read its events.
    if path.contains("/watch/") {
        path = format!("{path}{}timeoutSeconds=1", if path.contains('?') { "&" } else { "?" });
    }
    let content_type = match shot.content_type {
        "" => String::new(),
        content_type => format!("Content-Type: {content_type}\r\n"),
    };
    send(address, shot.method, &path, &format!("{content_type}Accept: {}\r\n", shot.accept), &shot.body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fuzzed_requests_cause_no_server_errors() {
    let limits = Limits { body_bytes: 256 << 10, ..Limits::cloud() };
    let running = Running::cloud(limits).await;
    for (path, object) in [
        ("/api/v1/namespaces/default/configmaps", config_map("a", "1")),
        ("/api/v1/namespaces/default/configmaps", config_map("b", "1")),
    ] {
        assert_eq!(
            send(&running.unix, "POST", path, "Content-Type: application/json\r\n", &object).await.code,
            201
        );
    }
    let mut runner = TestRunner::deterministic();
    let shots = shot();
    for _ in 0..6_000 {
        let shot = shots.new_tree(&mut runner).unwrap().current();
        let answer = fire(&running.unix, &shot).await;
        assert!(answer.code < 500 || answer.code == 504, "{shot:?}: {answer:?}");
        let json = answer.header("content-type") == Some("application/json");
        if answer.code >= 400 && json && shot.method != "HEAD" {
            assert_eq!(answer.json()["kind"], "Status", "{shot:?}");
        }
    }
    let after = send(&running.unix, "GET", "/api/v1/namespaces/default/configmaps", "", "").await;
    assert_eq!(after.code, 200, "{after:?}");
}

#[tokio::test]
async fn patches_that_inflate_an_object_are_refused() {
    let running = Running::cloud(Limits { body_bytes: 64 << 10, ..Limits::cloud() }).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let json = "Content-Type: application/json\r\n";
    let seed = config_map("a", &"x".repeat(1_000));
    assert_eq!(send(&running.unix, "POST", maps, json, &seed).await.code, 201);
    // Each copy doubles the object.
    let copies: Vec<Value> =
        (0..40).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/c{n}")})).collect();
    let patch = "Content-Type: application/json-patch+json\r\n";
    let path = format!("{maps}/a");
    let answer = send(&running.unix, "PATCH", &path, patch, &Value::from(copies).to_string()).await;
    assert!((400..500).contains(&answer.code), "{answer:?}");
    let too_large = send(&running.unix, "PATCH", &path, patch, &"x".repeat(65 << 10)).await;
    assert_eq!(too_large.code, 413);
}
