//! A node that was taken over: it has its certificate, and says what no agent says.

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
/// The namespace that it invents.
pub(crate) const NAMESPACE: &str = "invented";
/// Objects that it invents in each frame.
pub(crate) const INVENTED: u64 = 1500;
/// The newest change that it claims when it connects.
const REVISION: u64 = 1 << 40;
/// Where it says all that.
const UP: &str = "edgesync/v1/nodes/hostile/up";

/// What it sends over a connection.
pub(crate) struct Attack {
    /// How many objects it claims to hold.
    pub(crate) claims: u64,
    /// How many objects it invents in each frame.
    pub(crate) invents: u64,
    /// How many frames it sends over a connection, without waiting for anything.
    pub(crate) frames: u64,
    /// A frame by its number, of a session.
    pub(crate) frame: fn(u64, &str) -> Vec<u8>,
}

/// What it has done, and what it was told.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    /// Objects that it has invented in frames that were taken.
    pub(crate) invented: u64,
    pub(crate) connections: u64,
    /// Why it was asked for another Hello.
    pub(crate) reasons: BTreeSet<String>,
}

/// The node at work: one attack after the other, each over a connection of its own, again and again.
pub(crate) struct Intruder {
    deeds: watch::Receiver<Deeds>,
    task: JoinHandle<()>,
}

impl Intruder {
    pub(crate) fn start(endpoint: Endpoint, attacks: &'static [Attack]) -> Self {
        let (sender, deeds) = watch::channel(Deeds::default());
        let task = tokio::spawn(async move {
            for (life, attack) in attacks.iter().cycle().enumerate() {
                // A cut connection is not the end.
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

/// One connection: says Hello, and what the attack has.
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
    // It is told something, unless it is not heard any more.
    let is_heard = deeds.borrow().reasons.is_empty();
    let patience = Duration::from_millis(if is_heard { 10_000 } else { 100 });
    let told = async {
        while !listen(&mut line, attack, deeds).await? {}
        anyhow::Ok(())
    };
    timeout(patience, told).await.unwrap_or(Ok(()))?;
    for number in 0..attack.frames {
        line.publish(UP, &(attack.frame)(number, &session)).await?;
        while let Ok(heard) = timeout(Duration::ZERO, listen(&mut line, attack, deeds)).await {
            heard?;
        }
    }
    // What is not read of a connection that it ends has no effect: it listens until all is quiet.
    while let Ok(heard) = timeout(Duration::from_secs(1), listen(&mut line, attack, deeds)).await {
        heard?;
    }
    Ok(())
}

/// Takes the next packet: whether it is told something, rather than that a frame of it has been taken.
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

/// Reports of objects that nobody has given to it.
pub(crate) fn reports(number: u64, session: &str) -> Vec<u8> {
    let (from, objects) = (REVISION + number, invented(number, session));
    let report = Report { session: session.into(), from, to: from + 1, objects, ..Report::default() };
    Up::Report(report).encode(1024).unwrap()
}

/// Long reports that objects are gone which nobody has given to it: they cost time, and become no records.
pub(crate) fn removals(number: u64, session: &str) -> Vec<u8> {
    let uid = |n: u64| format!("removed-{number}-{n:x}").into();
    let (from, removed) = (REVISION + number, (0..8000).map(uid).collect());
    let report = Report { session: session.into(), from, to: from + 1, removed, ..Report::default() };
    Up::Report(report).encode(1024).unwrap()
}

/// Pages of an inventory that has no end.
pub(crate) fn inventories(number: u64, session: &str) -> Vec<u8> {
    let mut buckets = BucketSet::default();
    (0..=u8::MAX).for_each(|bucket| buckets.insert(bucket));
    let page = u32::try_from(number).unwrap();
    let objects = invented(number, session);
    let session = session.into();
    Up::Inventory(Inventory { session, page, buckets, more: true, objects }).encode(1024).unwrap()
}

/// A frame of a form that the types of this crate do not allow, compressed.
fn frame(r#type: &str, session: &str, rest: &str) -> Vec<u8> {
    let text = format!("{{\"type\":\"{type}\",\"protocol\":1,\"session\":\"{session}\",{rest}}}");
    zstd::bulk::compress(text.as_bytes(), 1).unwrap()
}

/// Lists of a million items; many items in few bytes; words that nothing can have; a header that claims an exbibyte.
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
        // Made once: a million words take their time.
        0 => MILLION.get_or_init(|| removed("u", 1_000_000)).clone(),
        1 => removed("", 80_000),
        2 => object(&"u".repeat(100_000), "1"),
        3 => object("u", &"9".repeat(100_000)),
        _ => vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0],
    }
}

/// Frames of the outbox as large as they may be: Events in a namespace that it invents, and labels without end.
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

/// Small messages: questions that ask nothing.
pub(crate) fn questions(number: u64, _: &str) -> Vec<u8> {
    let report = Report { session: format!("nobody-{number}"), ..Report::default() };
    Up::Report(report).encode(1024).unwrap()
}
