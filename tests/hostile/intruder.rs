//! A compromised node: it has a valid certificate and sends frames that no agent sends.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use edgesync_object::{Budget, ObjectRef, ResourceVersion};
use edgesync_protocol::digest::{BucketSet, Digest, Epoch};
use edgesync_protocol::frame::{
    DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Hello, Inventory, Item, Received, Report, Up,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use edgesync_testkit::line::{Endpoint, Line};

/// The name of the node.
pub(crate) const NODE: &str = "hostile";
/// The namespace of its invented objects.
pub(crate) const NAMESPACE: &str = "invented";
/// Invented objects per frame.
pub(crate) const INVENTED: u64 = 1500;
/// The newest revision that it claims when it connects.
const REVISION: u64 = 1 << 40;
/// The topic of its frames.
const UP: &str = "edgesync/v1/nodes/hostile/up";

/// The frames of one connection.
pub(crate) struct Attack {
    /// Number of objects that it claims to hold.
    pub(crate) claims: u64,
    /// Number of invented objects per frame.
    pub(crate) invents: u64,
    /// Number of frames per connection, sent without waiting for responses.
    pub(crate) frames: u64,
    /// Builds the frame with this number for a session.
    pub(crate) frame: fn(u64, &str) -> Vec<u8>,
}

/// The intruder's actions and the responses to them.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    /// Invented objects in acknowledged frames.
    pub(crate) invented: u64,
    pub(crate) connections: u64,
    /// Reasons of the requests for another Hello.
    pub(crate) reasons: BTreeSet<String>,
}

/// The running intruder: it cycles through the attacks, each over a separate connection.
pub(crate) struct Intruder {
    deeds: watch::Receiver<Deeds>,
    task: JoinHandle<()>,
}

impl Intruder {
    pub(crate) fn start(endpoint: Endpoint, attacks: &'static [Attack]) -> Self {
        let (sender, deeds) = watch::channel(Deeds::default());
        let task = tokio::spawn(async move {
            for (life, attack) in attacks.iter().cycle().enumerate() {
                // The next connection follows a cut one.
                let _ = intrude(&endpoint, life as u64, attack, &sender).await;
            }
        });
        Self { deeds, task }
    }

    pub(crate) fn deeds(&self) -> watch::Ref<'_, Deeds> {
        self.deeds.borrow()
    }
}

impl Drop for Intruder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Runs one connection: sends Hello, then the frames of the attack.
async fn intrude(
    endpoint: &Endpoint,
    life: u64,
    attack: &Attack,
    deeds: &watch::Sender<Deeds>,
) -> anyhow::Result<()> {
    let session = format!("life-{life}");
    let mut line = Line::open(endpoint, NODE).await?;
    deeds.send_modify(|deeds| deeds.connections += 1);
    line.publish(UP, &hello(&session, attack.claims)).await?;
    // Waits for a response, but only briefly once the cloud ignores the node.
    let is_accepted = deeds.borrow().reasons.is_empty();
    let patience = Duration::from_millis(if is_accepted { 10_000 } else { 100 });
    let responses = async {
        while !listen(&mut line, attack, deeds).await? {}
        anyhow::Ok(())
    };
    timeout(patience, responses).await.unwrap_or(Ok(()))?;
    for number in 0..attack.frames {
        line.publish(UP, &(attack.frame)(number, &session)).await?;
        while let Ok(received) = timeout(Duration::ZERO, listen(&mut line, attack, deeds)).await {
            received?;
        }
    }
    // A connection that ends with unread data loses frames, so it reads until all is quiet.
    while let Ok(received) = timeout(Duration::from_secs(1), listen(&mut line, attack, deeds)).await {
        received?;
    }
    Ok(())
}

/// Reads the next packet; returns true for a message, false for the acknowledgement of a frame.
async fn listen(line: &mut Line, attack: &Attack, deeds: &watch::Sender<Deeds>) -> anyhow::Result<bool> {
    let Some(said) = line.message().await? else {
        deeds.send_modify(|deeds| deeds.invented += attack.invents);
        return Ok(false);
    };
    if let Received::HelloRequest(request) = Received::decode(&said, &mut Budget::of(1 << 20), 1 << 20)? {
        deeds.send_modify(|deeds| deeds.reasons.extend([request.reason]));
    }
    Ok(true)
}

fn hello(session: &str, count: u64) -> Vec<u8> {
    let hello = Hello {
        node: NODE.into(),
        agent: "hostile".into(),
        session: session.into(),
        epoch: Epoch(1 << 64),
        revision: REVISION,
        confirmed: None,
        count,
        digest: Digest(count.into()),
        incarnation: None,
        max_frame: DEFAULT_MAX_FRAME,
        max_object: DEFAULT_MAX_OBJECT,
        partial: None,
        patches: false,
        lease: None,
        metered: None,
    };
    Up::Hello(hello).encode(1024).unwrap()
}

fn invented(number: u64, session: &str) -> Vec<Item> {
    let item = |number| {
        let name = format!("{session}-{number:x}");
        let object = ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: NAMESPACE.into(),
            name: name.as_str().into(),
        };
        Item { uid: name.into(), resource_version: ResourceVersion::from(1), object: Some(object) }
    };
    (number * INVENTED..(number + 1) * INVENTED).map(item).collect()
}

/// Builds reports of objects that the node was not given.
pub(crate) fn reports(number: u64, session: &str) -> Vec<u8> {
    let (from, objects) = (REVISION + number, invented(number, session));
    let report = Report { session: session.into(), from, to: from + 1, objects, ..Report::default() };
    Up::Report(report).encode(1024).unwrap()
}

/// Builds long reports of removals of objects that the node was not given: they cost time but
/// create no records.
pub(crate) fn removals(number: u64, session: &str) -> Vec<u8> {
    let uid = |n: u64| format!("removed-{number}-{n:x}").into();
    let (from, removed) = (REVISION + number, (0..8000).map(uid).collect());
    let report = Report { session: session.into(), from, to: from + 1, removed, ..Report::default() };
    Up::Report(report).encode(1024).unwrap()
}

/// Builds pages of an endless inventory.
pub(crate) fn inventories(number: u64, session: &str) -> Vec<u8> {
    let mut buckets = BucketSet::default();
    (0..=u8::MAX).for_each(|bucket| buckets.insert(bucket));
    let page = u32::try_from(number).unwrap();
    let objects = invented(number, session);
    let session = session.into();
    Up::Inventory(Inventory { session, page, buckets, more: true, objects }).encode(1024).unwrap()
}

/// Builds a compressed frame of a form that the protocol types do not allow.
fn frame(r#type: &str, session: &str, rest: &str) -> Vec<u8> {
    let text = format!("{{\"type\":\"{type}\",\"protocol\":1,\"session\":\"{session}\",{rest}}}");
    zstd::bulk::compress(text.as_bytes(), 1).unwrap()
}

/// Builds oversized values: lists of a million items, many items in few bytes, overlong words, a
/// header that declares an exbibyte.
pub(crate) fn words(number: u64, session: &str) -> Vec<u8> {
    static MILLION: OnceLock<Vec<u8>> = OnceLock::new();
    let removed = |uid: &str, times: usize| {
        let uids = vec![json!(uid); times];
        frame("Report", session, &format!("\"from\":0,\"to\":1,\"removed\":{}", Value::from(uids)))
    };
    let object = |uid: &str, version: &str| {
        let objects = json!([{ "uid": uid, "resourceVersion": version }]);
        frame("Report", session, &format!("\"from\":0,\"to\":1,\"objects\":{objects}"))
    };
    match number % 5 {
        // Built once, because a million words take long.
        0 => MILLION.get_or_init(|| removed("u", 1_000_000)).clone(),
        1 => removed("", 80_000),
        2 => object(&"u".repeat(100_000), "1"),
        3 => object("u", &"9".repeat(100_000)),
        _ => vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0],
    }
}

/// Builds uploads of the maximum size: Events in an invented namespace, and endless labels.
pub(crate) fn uploads(number: u64, session: &str) -> Vec<u8> {
    let note = "x".repeat(1000);
    let item = |n: u64| {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Normal", "reason": "Invented",
            "metadata": { "name": format!("invented-{number}-{n}"), "namespace": NAMESPACE },
            "eventTime": "2026-11-21T05:12:17.000000Z", "action": "Invent", "note": note,
            "reportingController": "hostile", "reportingInstance": NODE, "regarding": {},
        });
        json!({ "seq": number * 100 + n, "content": { "event": event } })
    };
    let labels = (0..2000).map(|n| (format!("label-{n}"), json!("x".repeat(60))));
    let labels: serde_json::Map<_, _> = labels.collect();
    let node = json!({ "seq": number * 100 + 99, "content": { "node": { "labels": labels } } });
    let items: Vec<_> = (1..60).map(item).chain([node]).collect();
    let rest = format!("\"outbox\":\"{NODE}\",\"lane\":\"bulk\",\"confirmed\":0,\"items\":{}", json!(items));
    frame("Upload", session, &rest)
}

/// Builds small messages of unknown sessions.
pub(crate) fn questions(number: u64, _: &str) -> Vec<u8> {
    let report = Report { session: format!("nobody-{number}"), ..Report::default() };
    Up::Report(report).encode(1024).unwrap()
}
