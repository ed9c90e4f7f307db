//! Malformed frames to the cloud and to an agent: each is refused, counted and logged, memory stays
//! bounded, and all other nodes sync.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use edgesync_testkit::site;
use std::collections::BTreeMap;
use std::time::Instant;

use edgesync_admin::agent::AgentStatus;
use edgesync_object::Budget;
use edgesync_protocol::frame::{Hello, Report, Up};
use serde_json::{Value, json};
use site::{
    Agent, Cloud, Forger, PATIENCE, Settings, Site, changed, eventually, objects, same_on_both_sides,
};
use support::mosquitto::Mosquitto;

const NODE: &str = "edge-1";
const ROGUE: &str = "edge-rogue";
/// Maximum frame size on both sides.
const MAX_FRAME: usize = 256 << 10;
/// Maximum growth of a process while it refuses frames, in KiB: a few decoded frames of the largest
/// size.
const GROWTH: u64 = 48 << 10;

fn up(node: &str) -> String {
    format!("edgesync/v1/nodes/{node}/up")
}

fn down(node: &str) -> String {
    format!("edgesync/v1/nodes/{node}/down")
}

/// Starts an agent with a small object limit, so that memory growth shows.
async fn agent(site: &Site, cloud: &Cloud) -> Agent {
    Agent::start_with(site, NODE, cloud.mqtt, |settings| {
        settings.text("sync.max_object", "1MiB");
    })
    .await
}

fn unchanged(_: &mut Settings) {}

fn frame(r#type: &str, body: Value) -> Vec<u8> {
    let mut frame = json!({ "type": r#type, "protocol": 1 });
    let Value::Object(fields) = body else { panic!("no fields: {body}") };
    frame.as_object_mut().unwrap().extend(fields);
    frame.to_string().into_bytes()
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).unwrap()
}

/// Compresses as a stream, whose header lacks the size.
fn streamed(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// Returns frames that either side refuses, with the reason that it counts. `like` is a type that
/// the side knows.
fn malformed(like: &str) -> Vec<(&'static str, Vec<u8>)> {
    let bomb = vec![b' '; 64 << 20];
    let cut = compressed(&bomb)[..100].to_vec();
    let deep = format!("{{\"type\":{},\"protocol\":1}}", nested(100_000));
    vec![
        ("json", b"".to_vec()),
        ("json", b"{".to_vec()),
        ("json", b"null".to_vec()),
        ("json", b"[1,2,3]".to_vec()),
        ("json", b"no frame".to_vec()),
        ("json", b"{\"type\":\"Hello\"}".to_vec()),
        ("json", frame(like, json!({}))),
        ("json", frame(like, json!({ "session": 7, "objects": "x", "from": -1, "to": 1e300 }))),
        ("json", format!("{{\"type\":\"{like}\",\"protocol\":\"1\"}}").into_bytes()),
        ("json", format!("{{\"type\":\"{like}\",\"protocol\":18446744073709551616}}").into_bytes()),
        ("json", deep.into_bytes()),
        ("protocol", format!("{{\"type\":\"{like}\",\"protocol\":2}}").into_bytes()),
        ("protocol", format!("{{\"type\":\"{like}\",\"protocol\":4294967295}}").into_bytes()),
        ("type", frame("Nonsense", json!({}))),
        ("type", frame(&"x".repeat(100_000), json!({}))),
        ("encoding", vec![0xff, 0xfe, 0xfd]),
        ("encoding", b"{\"type\":\"\xc3\x28\",\"protocol\":1}".to_vec()),
        ("too_large", vec![b' '; MAX_FRAME + 1]),
        ("too_large", compressed(&bomb)),
        ("too_large", cut),
        ("compression", streamed(&bomb)),
        ("compression", vec![0x28, 0xb5, 0x2f, 0xfd]),
        // A header alone, with a declared size of an exbibyte.
        ("too_large", vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]),
    ]
}

fn tally(frames: &[(&'static str, Vec<u8>)]) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    for (reason, _) in frames {
        *counted.entry((*reason).to_owned()).or_default() += 1;
    }
    counted
}

#[tokio::test]
async fn cloud_refuses_bad_frames_through_mosquitto() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), unchanged).await;
    assert_cloud_refuses_bad_frames(&site, cloud).await;
}

#[tokio::test]
async fn cloud_refuses_bad_frames_at_its_endpoint() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    assert_cloud_refuses_bad_frames(&site, cloud).await;
}

async fn assert_cloud_refuses_bad_frames(site: &Site, mut cloud: Cloud) {
    let agent = agent(site, &cloud).await;
    let mut forger = Forger::start(ROGUE, cloud.mqtt, &down(ROGUE)).await;
    cloud.apply(objects(0..300)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 300);
    let before = cloud.process.resident();

    let mut bad = malformed("Report");
    bad.push(("node", Up::Hello(hello(NODE, "5e551000", 0)).encode(1024).unwrap()));
    bad.push(("json", frame("Report", json!({ "session": "s", "from": 0, "to": 0, "objects": 1 }))));
    // UIDs that no object can have, and one that is too long.
    let removed = |uid: &str| json!({ "session": "s", "from": 0, "to": 1, "removed": [uid] });
    bad.extend(["../..", "", &"x".repeat(1000)].map(|uid| ("invalid", frame("Report", removed(uid)))));
    for (_, payload) in &bad {
        forger.send(&up(ROGUE), payload).await;
    }
    let expected = tally(&bad);
    eventually("every bad frame is counted", PATIENCE, async || {
        (cloud.bad_frames().await == expected).then_some(())
    })
    .await;
    cloud.process.logged("invalid frame", 0).await;

    // A Hello of another protocol gets a response that every version understands, and changes
    // nothing.
    let mut later = hello(ROGUE, "5e552000", 0);
    later.agent = "9.0.0".into();
    let mut later = serde_json::to_value(&later).unwrap();
    later["type"] = "Hello".into();
    later["protocol"] = 2.into();
    later["digest"] = json!({ "algorithm": "later" });
    forger.send(&up(ROGUE), later.to_string().as_bytes()).await;
    let answer: Value = serde_json::from_slice(&forger.receive().await).unwrap();
    let reason = "the node speaks protocol 2, the cloud side 1; hint: update the cloud side";
    let expected_answer = json!({
        "type": "HelloRequest", "protocol": 1, "session": "5e552000", "reason": reason,
        "retryAfterSeconds": 3600,
    });
    assert_eq!(answer, expected_answer);
    bad.push(("protocol", Vec::new()));
    let expected = tally(&bad);

    send_nonsensical_frames(&cloud, &mut forger).await;
    let grown = cloud.process.resident().saturating_sub(before);
    assert!(grown < GROWTH, "the cloud has grown by {grown} KiB");
    assert_eq!(cloud.bad_frames().await, expected, "what was readable was read");
    cloud.apply(objects(0..50).map(|object| changed(object, "second"))).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 300);
    assert!(cloud.process.runs());
    assert_eq!(cloud.counters(NODE).await.hellos, 1, "the good node noticed nothing");
}

fn hello(node: &str, session: &str, count: u64) -> Hello {
    let text = json!({
        "node": node,
        "agent": "x".repeat(256),
        "session": session,
        "epoch": "0123456789abcdef0123456789abcdef",
        "revision": count,
        "count": count,
        "digest": "00000000000000000000000000000001",
    });
    serde_json::from_value(text).unwrap()
}

/// Sends well-formed frames with nonsensical contents.
async fn send_nonsensical_frames(cloud: &Cloud, forger: &mut Forger) {
    let topic = up(ROGUE);
    // Without a session, with extreme numbers.
    let absurd = json!({ "session": "00000000", "from": u64::MAX, "to": u64::MAX, "removed": ["u"] });
    forger.send(&topic, &frame("Report", absurd)).await;
    assert_eq!(heard_type(forger).await, "HelloRequest");
    // A frame limit that no object fits into.
    let tiny = Hello { max_frame: 1, ..hello(ROGUE, "5e551001", 0) };
    forger.send(&topic, &Up::Hello(tiny).encode(1024).unwrap()).await;
    assert_eq!(heard_type(forger).await, "HelloRequest");
    // An unrequested inventory of 100,000 objects.
    for page in 0..40 {
        forger.send(&topic, &inventory("5e551002", page, page * 2500)).await;
    }
    assert_eq!(heard_type(forger).await, "HelloRequest");
    // A requested inventory that exceeds the count in the Hello and never ends.
    forger.send(&topic, &Up::Hello(hello(ROGUE, "5e551003", 3000)).encode(1024).unwrap()).await;
    loop {
        match heard_type(forger).await.as_str() {
            "InventoryRequest" => break,
            "HelloRequest" => {}
            other => panic!("{other} instead of InventoryRequest"),
        }
    }
    for page in 0..40 {
        forger.send(&topic, &inventory("5e551003", page, page * 2500)).await;
    }
    eventually("the cloud has taken them", PATIENCE, async || {
        (cloud.counters(ROGUE).await.foreign_session >= 20).then_some(())
    })
    .await;
    assert_eq!(cloud.state(ROGUE).await.as_deref(), Some("repairing"));
}

fn inventory(session: &str, page: u64, first: u64) -> Vec<u8> {
    use base64::Engine as _;
    let items = first..first + 2500;
    let items = items.map(|n| json!({ "uid": format!("uid-{n}"), "resourceVersion": "1" }));
    let buckets = base64::engine::general_purpose::STANDARD_NO_PAD.encode([0xff; 32]);
    let body = json!({
        "session": session,
        "page": page,
        "buckets": buckets,
        "more": true,
        "objects": items.collect::<Vec<_>>(),
    });
    compressed(&frame("Inventory", body))
}

async fn heard_type(forger: &mut Forger) -> String {
    let payload = forger.receive().await;
    let payload = if payload.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        zstd::bulk::decompress(&payload, MAX_FRAME).unwrap()
    } else {
        payload
    };
    let frame: Value = serde_json::from_slice(&payload).unwrap();
    frame["type"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn agent_refuses_bad_frames_and_stays_in_sync() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), unchanged).await;
    let mut agent = agent(&site, &cloud).await;
    let forger = Forger::start("forger", broker.address(), "nobody/talks/here").await;
    cloud.apply(objects(0..300)).await;
    same_on_both_sides(&cloud, &agent).await;
    let before = agent.process.resident();

    let mut bad = malformed("Objects");
    let session = agent.status().await.cloud.session.unwrap();
    let buckets = json!({ "session": &session, "buckets": "AAAA" });
    bad.push(("json", frame("InventoryRequest", buckets)));
    bad.push(("json", frame("Objects", json!({ "session": &session, "objects": [{ "route": 1 }] }))));
    bad.push(("type", frame("Hello", json!({ "session": &session }))));
    for (_, payload) in &bad {
        forger.send(&down(NODE), payload).await;
    }
    // mosquitto accepts packets that are larger than the agent's limit.
    forger.send(&down(NODE), &[b' '; 600_000]).await;
    let expected = tally(&bad);
    agent.until("every bad frame is counted", |status| status.counters.bad_frames == expected).await;
    agent.process.logged("invalid frame", 0).await;
    assert!(agent.is_in_sync().await);

    for payload in misleading(&session) {
        forger.send(&down(NODE), &payload).await;
    }
    let rejected = |status: &AgentStatus| status.counters.rejected >= 2005;
    agent.until("what was readable is rejected", rejected).await;
    let grown = agent.process.resident().saturating_sub(before);
    assert!(grown < GROWTH, "the agent has grown by {grown} KiB");
    cloud.apply(objects(0..50).map(|object| changed(object, "second"))).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 300);
    assert!(agent.process.runs());
    assert_eq!(agent.status().await.counters.bad_frames, expected, "what was readable was read");
}

#[tokio::test]
async fn log_lines_that_the_other_side_causes_are_limited() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let mut cloud = Forger::start("edgesync-cloud", broker.address(), &up(NODE)).await;
    let agent = Agent::start(&site, NODE, broker.address()).await;
    let Up::Hello(hello) = reported(&mut cloud).await else { panic!("no Hello") };
    let session = hello.session;
    let started = Instant::now();
    let welcome = json!({ "session": &session, "incarnation": "scripted", "confirmed": 0, "pending": 1 });
    cloud.send(&down(NODE), &frame("Welcome", welcome)).await;
    for _ in 0..200 {
        cloud.send(&down(NODE), b"no frame").await;
    }
    let nameless = json!({ "header": {}, "route": { "operation": "update", "resource": "" } });
    cloud
        .send(&down(NODE), &frame("Objects", json!({ "session": &session, "objects": vec![nameless; 200] })))
        .await;
    agent
        .until("everything is counted", |status| {
            let counters = &status.counters;
            counters.bad_frames.get("json") == Some(&200) && counters.rejected >= 200
        })
        .await;
    let refusal = json!({ "session": &session, "reason": "come later", "retryAfterSeconds": 3600 });
    cloud.send(&down(NODE), &frame("HelloRequest", refusal)).await;
    agent.process.logged("session refused by the cloud", 0).await;
    let times = 1 + started.elapsed().as_secs() as usize / 10;
    for kind in ["invalid frame", "object rejected"] {
        let lines = agent.process.log().iter().filter(|line| line.contains(kind)).count();
        assert!((1..=20 * times).contains(&lines), "{lines} of '{kind}' in {times} times ten seconds");
    }
}

/// Well-formed frames of the session with impossible contents.
fn misleading(session: &str) -> Vec<Vec<u8>> {
    let part = |uid: &str, offset: u64, total: u64, data: &str| {
        let body = json!({
            "session": session, "uid": uid, "resourceVersion": "1",
            "offset": offset, "total": total, "data": data,
        });
        frame("Part", body)
    };
    let mut frames = vec![
        frame("Confirm", json!({ "session": session, "revision": u64::MAX })),
        frame("Confirm", json!({ "session": "00000000", "revision": 0, "pending": u64::MAX })),
        frame("Confirm", json!({ "session": session, "revision": 0, "pending": u64::MAX, "held": u64::MAX })),
        frame("Welcome", json!({ "session": "00000000", "incarnation": "other", "confirmed": u64::MAX })),
        part("huge", 0, u64::MAX, "x"),
        part("announced", 0, 20 << 20, ""),
        part("late", 1 << 40, 1 << 41, "x"),
        part("middle", 100, 1000, "x"),
        part("no-json", 0, 4, "null"),
    ];
    // Parts of objects that never complete.
    let piece = "x".repeat(200_000);
    for n in 0..50 {
        frames.push(compressed(&part(&format!("begun-{n}"), 0, 1 << 20, &piece)));
    }
    let nameless = json!({ "header": {}, "route": { "operation": "update", "resource": "" } });
    let all = vec![nameless; 2000];
    frames.push(frame("Objects", json!({ "session": session, "objects": all })));
    let mut deep = message("deep", "deep").to_string();
    deep = deep.replacen("\"value\"", &nested(20_000), 1);
    frames.push(
        format!("{{\"type\":\"Objects\",\"protocol\":1,\"session\":\"{session}\",\"objects\":[{deep}]}}")
            .into(),
    );
    frames.push(frame("Objects", json!({ "session": session, "objects": [message("..", "dots")] })));
    frames
}

/// An object as the cloud sends it.
fn message(name: &str, uid: &str) -> Value {
    json!({
        "header": { "resourceversion": "7" },
        "route": {
            "operation": "update", "resource": format!("default/configmap/{name}"),
            "plural": "configmaps", "scope": "Namespaced",
        },
        "content": {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": "default", "uid": uid, "resourceVersion": "7" },
            "data": { "key": "value" },
        },
    })
}

#[tokio::test]
async fn agent_keeps_valid_objects_of_a_frame_and_rejects_others() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let mut cloud = Forger::start("edgesync-cloud", broker.address(), &up(NODE)).await;
    let agent = Agent::start(&site, NODE, broker.address()).await;
    let Up::Hello(hello) = reported(&mut cloud).await else { panic!("no Hello") };
    let session = hello.session;
    let welcome = json!({ "session": &session, "incarnation": "scripted", "confirmed": 0, "pending": 4 });
    cloud.send(&down(NODE), &frame("Welcome", welcome)).await;
    let objects = [
        message("one", "uid-1"),
        message("..", "uid-2"),
        message("a/../b", "uid-3"),
        message("two", "uid-4"),
    ];
    cloud.send(&down(NODE), &frame("Objects", json!({ "session": &session, "objects": objects }))).await;
    let mut rejected = BTreeMap::new();
    let Report { objects, rejected: refused, .. } = next_report(&mut cloud).await;
    let held: Vec<String> = objects.iter().map(|item| item.uid.to_string()).collect();
    assert_eq!(held, ["uid-1", "uid-4"]);
    rejected.extend(refused.into_iter().map(|refused| (refused.uid.to_string(), refused.reason)));
    // 20 MB exceed a frame: the object arrives in parts, and the agent refuses the first.
    let big = json!({
        "session": &session, "uid": "uid-5", "resourceVersion": "8", "offset": 0, "total": 20 << 20,
        "data": "x".repeat(100_000),
    });
    cloud.send(&down(NODE), &compressed(&frame("Part", big))).await;
    let Report { rejected: refused, .. } = next_report(&mut cloud).await;
    rejected.extend(refused.into_iter().map(|refused| (refused.uid.to_string(), refused.reason)));
    assert_eq!(json!(rejected), json!({ "uid-2": "Invalid", "uid-3": "Invalid", "uid-5": "TooLarge" }));
    let status = agent.status().await;
    assert_eq!((status.objects.total, status.rejected.len()), (2, 3));
    let why = &status.rejected[0].message;
    assert!(why.contains("metadata.name"), "{why}");
}

#[tokio::test]
async fn agent_reports_why_a_cloud_of_another_protocol_refuses_it() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let mut cloud = Forger::start("edgesync-cloud", broker.address(), &up(NODE)).await;
    let agent = Agent::start(&site, NODE, broker.address()).await;
    let Up::Hello(hello) = reported(&mut cloud).await else { panic!("no Hello") };
    let says = |status: &AgentStatus, words: &str| status.cloud.state.contains(words);
    cloud.send(&down(NODE), br#"{"type":"Welcome","protocol":2,"session":{"id":"later"}}"#).await;
    let words = "the cloud side speaks protocol 2, this agent 1; hint: update the agent";
    agent.until("the protocol is said", |status| says(status, words)).await;
    let reason = "the node speaks protocol 1, the cloud side 2; hint: update the agent";
    let request = json!({ "session": hello.session, "reason": reason, "retryAfterSeconds": 3600 });
    cloud.send(&down(NODE), &frame("HelloRequest", request)).await;
    agent.until("the reason is said", |status| says(status, reason)).await;
    let bad_frames = agent.status().await.counters.bad_frames;
    assert_eq!(bad_frames, BTreeMap::from([("protocol".to_owned(), 1)]));
}

async fn reported(cloud: &mut Forger) -> Up {
    Up::decode(&cloud.receive().await, &mut Budget::of(MAX_FRAME)).unwrap()
}

/// Returns the next report with new contents; the agent repeats unconfirmed ones.
async fn next_report(cloud: &mut Forger) -> Report {
    loop {
        match reported(cloud).await {
            Up::Report(report) if report.to > report.from || !report.rejected.is_empty() => return report,
            Up::Report(_) | Up::Lease(_) | Up::Renew(_) | Up::Upload(_) | Up::Credit(_) => {}
            other => panic!("{} instead of Report", other.name()),
        }
    }
}
