//! Attacks of writers to the cloud side's API on other users.

use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use edgesync_api::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::hostile::crowd::{Crowd, NODES, endpoint};
use edgesync_testkit::site::fleet::{Fleet, in_sync, output_text};
use edgesync_testkit::site::{Cloud, PATIENCE, Site, config_map, eventually, path_of, sized};
use edgesync_testkit::timing::assert_within;

/// Maximum duration of other users' requests beside expensive ones, on a busy machine.
const SECONDS: Duration = Duration::from_secs(5);
/// Changes of a kind that watches can resume from: the default of `store.history` and
/// `store.history_fleet`.
const HISTORY: usize = 10_000;

fn code(error: &edgesync_api::ClientError) -> u16 {
    error.status().map(|status| status.code).unwrap_or_default()
}

async fn exists(client: &Client, path: &str) -> bool {
    client.get::<Value>(path).await.is_ok()
}

/// Sends a raw request and returns the code of the response.
async fn raw(socket: &Path, method: &str, path: &str, content_type: &str, body: &str) -> u16 {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    // The server may respond before it has read everything.
    let _ = stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await;
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default()
}

#[tokio::test]
async fn deletes_with_an_empty_name_delete_no_namespace() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    cloud.apply([config_map(1)]).await;
    let client = cloud.client();
    for (path, refused) in
        [("/api/v1/namespaces/", 404), ("/api/v1/namespaces", 405), ("/api/v1/nodes/", 404)]
    {
        assert_eq!(code(&client.delete::<Value>(path, None).await.unwrap_err()), refused, "{path}");
    }
    let namespace: Value = client.get("/api/v1/namespaces/plant-1").await.unwrap();
    assert!(
        namespace["metadata"]["deletionTimestamp"].is_null()
            && exists(&client, &path_of(&config_map(1))).await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expensive_bodies_delay_no_other_requests() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let maps = "/api/v1/namespaces/plant-0/configmaps";
    // Objects nested in objects with long keys, and a Service with thousands of ports.
    let long = "k".repeat(1000);
    let nested = format!("{}1{}", format!("{{\"{long}\":").repeat(90), "}".repeat(90));
    let repeated = vec![format!("\"{long}\":{nested}"); 10].join(",");
    let twice = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"twice\"}},{repeated}}}"
    );
    let port = |n: u32| json!({ "name": format!("p{n}"), "port": 1 + n % 60_000, "protocol": "TCP" });
    let ports: Vec<_> = (0..5000).map(port).collect();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "large" }, "spec": { "ports": ports },
    })
    .to_string();
    let apply = "/api/v1/namespaces/plant-0/services/large?fieldManager=costly&force=true";
    cloud.apply([config_map(0)]).await;
    let socket = cloud.socket.clone();
    let attack = tokio::spawn(async move {
        loop {
            let apply = raw(&socket, "PATCH", apply, "application/apply-patch+yaml", &service);
            let twice = |_| raw(&socket, "POST", maps, "application/json", &twice);
            let (applied, created) = tokio::join!(apply, futures::future::join_all((0..4).map(twice)));
            assert!(applied < 500 && created.iter().all(|code| *code < 500), "{applied} {created:?}");
        }
    });
    let begun = Instant::now();
    while begun.elapsed() < SECONDS {
        let asked = Instant::now();
        cloud.apply([config_map(0)]).await;
        assert_within(asked.elapsed(), SECONDS);
    }
    assert!(!attack.is_finished(), "{:?}", attack.await);
    attack.abort();
}

#[tokio::test]
async fn second_delete_frees_a_stuck_foreground_deletion() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let (owner, mut dependent) = (config_map(0), config_map(3));
    cloud.apply([owner.clone()]).await;
    let uid = cloud.get(&owner).await["metadata"]["uid"].clone();
    dependent["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": uid,
        "blockOwnerDeletion": true,
    }]);
    dependent["metadata"]["finalizers"] = json!(["example.org/never"]);
    cloud.apply([dependent.clone()]).await;
    let client = cloud.client();
    let delete = async |policy: &str| {
        client.delete::<Value>(&path_of(&owner), Some(&json!({ "propagationPolicy": policy }))).await.unwrap()
    };
    let stuck = delete("Foreground").await;
    assert_eq!(stuck["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    delete("Background").await;
    eventually("the owner is gone", PATIENCE, async || {
        (!exists(&client, &path_of(&owner)).await).then_some(())
    })
    .await;
    assert!(exists(&client, &path_of(&dependent)).await, "its dependent waits for its finalizer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unversioned_writes_never_fail_with_a_conflict() {
    const WRITERS: usize = 32;
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    cloud.apply([config_map(1)]).await;
    let writers = (0..WRITERS).map(|writer| {
        let (client, socket) = (cloud.client(), cloud.socket.clone());
        tokio::spawn(async move {
            let path = path_of(&config_map(1));
            for round in 0..10 {
                let patch = json!({ "data": { format!("w{writer}"): format!("{round}") } }).to_string();
                assert_eq!(raw(&socket, "PATCH", &path, "application/merge-patch+json", &patch).await, 200);
                let mut whole = config_map(1);
                whole["metadata"]["labels"] = json!({ "round": format!("{writer}-{round}") });
                client.put::<Value>(&path, &whole).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let object = cloud.get(&config_map(1)).await;
    assert!(object["metadata"]["labels"]["round"].as_str().unwrap().ends_with("-9"), "{object}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_racing_a_namespace_deletion_leave_nothing_behind() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    for round in 0..10 {
        let (namespace, client) = (format!("race-{round}"), cloud.client());
        let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
        let object = |n: usize| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("m{n}") } });
        client.post::<Value>(&maps, &object(0)).await.unwrap();
        let creators = (1..4).map(|creator| {
            let (client, maps) = (cloud.client(), maps.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    if client.post::<Value>(&maps, &object(creator * 1_000_000 + n)).await.is_err() {
                        return;
                    }
                }
            })
        });
        let creators: Vec<_> = creators.collect();
        client.delete::<Value>(&format!("/api/v1/namespaces/{namespace}"), None).await.unwrap();
        for creator in creators {
            creator.await.unwrap();
        }
        eventually("the namespace is gone", PATIENCE, async || {
            (!exists(&client, &format!("/api/v1/namespaces/{namespace}")).await).then_some(())
        })
        .await;
        let left: Value = client.get(&maps).await.unwrap();
        assert_eq!(left["items"], json!([]), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_reports_expire_no_watches_of_config_maps() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |_| {}).await;
    let endpoint = endpoint(&fleet.cloud, &site.path("pki"));
    let mut crowd = Crowd::gather(&fleet.cloud, &endpoint, config_map(1)).await;
    let client = fleet.cloud.client();
    let list: Value = client.get("/api/v1/configmaps").await.unwrap();
    let begun = list["metadata"]["resourceVersion"].as_str().unwrap();
    let changes = HISTORY / NODES + 2;
    for _ in 0..changes {
        crowd.change().await;
    }
    let watch = format!("/api/v1/configmaps?watch=true&timeoutSeconds=1&resourceVersion={begun}");
    let events = client.text(&watch).await.unwrap();
    assert_eq!(events.matches("\"MODIFIED\"").count(), changes, "{events}");
    let syncs = "/apis/reliablesyncs.kubeedge.io/v1alpha1/objectsyncs";
    let watch = format!("{syncs}?watch=true&timeoutSeconds=1&resourceVersion={begun}");
    let old = client.text(&watch).await;
    assert!(
        old.as_ref().map_or(true, |events| events.contains("410")),
        "the fleet has written too little: {old:?}"
    );
    crowd.part().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_lists_do_not_fill_the_cloud_sides_disk() {
    /// Five times the size at which a checkpoint runs.
    const MOST: u64 = 5 << 20;
    let site = Site::new();
    let cloud = Cloud::start_with(&site, |settings| {
        settings.text("store.wal_size", "1MiB");
    })
    .await;
    cloud.apply([config_map(0), config_map(3)]).await;
    let mut log = cloud.database.clone().into_os_string();
    log.push("-wal");
    let client = cloud.client();
    let mut longest = 0;
    for number in 0..40 {
        if number % 10 == 0 {
            let list: Value = client.get("/api/v1/configmaps?limit=1").await.unwrap();
            assert!(list["metadata"]["continue"].is_string(), "{list}");
        }
        cloud.apply([sized("large", 500_000 + number)]).await;
        longest = longest.max(std::fs::metadata(&log).unwrap().len());
    }
    assert!(longest <= MOST, "a log of {longest} bytes");
}

/// Returns the lists of all kinds that an API serves.
async fn all_lists(client: &Client) -> String {
    let served: Value = client.get("/apis").await.unwrap();
    let mut paths = vec!["/api/v1".to_owned()];
    for group in served["groups"].as_array().unwrap() {
        let versions = group["versions"].as_array().unwrap().iter();
        paths.extend(versions.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap())));
    }
    let mut lists = String::new();
    for path in paths {
        let kinds: Value = client.get(&path).await.unwrap();
        let kinds = kinds["resources"].as_array().unwrap().iter();
        for kind in kinds.filter(|kind| kind["verbs"].as_array().unwrap().contains(&json!("list"))) {
            lists += &client.text(&format!("{path}/{}", kind["name"].as_str().unwrap())).await.unwrap();
        }
    }
    lists
}

/// The embedded store keeps them beside its objects, so no namespace has to be reserved for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_tokens_and_operators_are_neither_served_nor_placed() {
    let site = Site::new();
    // Without objects a rule takes those of every kind.
    let fleet = Fleet::embedded(&site, |settings| {
        settings.tables("[[placement]]\nnodes = { names = [\"*\"] }\n");
    })
    .await;
    fleet.cloud.apply([config_map(1)]).await;
    let mut agent = fleet.device(&site, "edge-1").await;
    let token = fleet.token(&["--node", "edge-2"]).await;
    let api = format!("https://{}", fleet.cloud.api);
    let words = ["kubeconfig", "--user", "operator-ada", "--role", "admin", "--api", &api];
    let output = fleet.command(&words).await;
    assert!(output.status.success(), "{}", output_text(&output));
    agent.run_as_configured().await;
    eventually("the rule has placed an object", PATIENCE, async || agent.get(&config_map(1)).await).await;
    in_sync(&agent).await;
    let key = std::fs::read_to_string(site.path("pki/ca.key")).unwrap();
    let (line, encoded) = (key.lines().nth(1).unwrap(), STANDARD.encode(&key));
    let signature = token.rsplit('.').next().unwrap();
    let hidden = [line, encoded.as_str(), signature, "operator-ada"];
    for client in [fleet.cloud.client(), agent.client()] {
        let lists = all_lists(&client).await;
        assert!(lists.contains("\"config-1\""), "{}: no objects in {lists}", client.address());
        for word in hidden {
            assert!(!lists.contains(word), "{}: {word} in {lists}", client.address());
        }
    }
}
