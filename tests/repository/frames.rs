//! Checks that frames are compatible across versions. `tests/fixtures/frames/<version>` holds one
//! frame of each type, with all its fields, as that version wrote it. Today's decoder reads every
//! recorded frame. Today's encoder writes every field of the recorded frames with the same meaning,
//! so that older programs read them.
//!
//! A release records its own:
//! `EDGESYNC_TEST_RECORD_FRAMES=1 cargo nextest run --test parts frames`.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use edgesync_object::urgency::Urgency;
use edgesync_object::{Budget, ObjectRef, Resource, ResourceVersion, Scope};
use edgesync_protocol::body::Body;
use edgesync_protocol::change::{Change, RejectReason, Rejected};
use edgesync_protocol::digest::{BucketSet, Buckets, Digest, Epoch, MessageDigest};
use edgesync_protocol::frame::{
    Confirm, Credit, DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Down, Hello, HelloRequest, Inventory,
    InventoryRequest, Item, Lease, ObjectsText, Part, PartialMessage, Received, Report, Up, Upload,
    UploadConfirm, Welcome,
};
use edgesync_protocol::message::{MessageText, Outgoing};
use edgesync_protocol::metered::{MeteredLink, Waiting};
use edgesync_protocol::node::NodeReport;
use edgesync_protocol::patch::{PatchProblem, Unpatched};
use edgesync_protocol::renewal::{CheckIn, CheckInReason, Feature, LeaseTerms, Renew, Stay};
use edgesync_protocol::upload::{Content, Lane, Lanes, Refused, RefusedReason, UploadItem};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::protocol_examples::written_again;

const LIMIT: usize = DEFAULT_MAX_FRAME as usize;
const MAX_OBJECT: usize = DEFAULT_MAX_OBJECT as usize;

/// Frames by direction and type, as JSON.
type Frames = BTreeMap<String, Value>;

fn directory() -> PathBuf {
    edgesync_testkit::programs::root().join("tests/fixtures/frames")
}

fn recorded(version: &Path) -> Frames {
    let mut frames = Frames::new();
    for direction in ["up", "down"] {
        for file in fs::read_dir(version.join(direction)).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy();
            let json = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            frames.insert(format!("{direction}/{name}"), json);
        }
    }
    frames
}

/// Reads the frames of all recorded versions.
fn versions() -> Vec<(String, Frames)> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let version = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (version(path), recorded(path))).collect()
}

const SESSION: &str = "4295632f";
const OUTBOX: &str = "0f5b6c7d8e9fa0b1";
const MESSAGE: MessageDigest = MessageDigest(0x75dc_4300_a926_d135_9b7e_7225_1be1_0cef);
const EPOCH: Epoch = Epoch(0x524e_61e6_d721_4a93_8a33_f678_dc1f_6fb7);

fn object() -> ObjectRef {
    ObjectRef {
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        namespace: "plant".into(),
        name: "line-1".into(),
    }
}

fn item() -> Item {
    Item { uid: "u-1".into(), resource_version: 1062.into(), object: Some(object()) }
}

fn content(seq: u64, content: &Value) -> UploadItem {
    UploadItem { seq, content: RawValue::from_string(content.to_string()).unwrap() }
}

fn report() -> Report {
    Report {
        session: SESSION.into(),
        from: 3,
        to: 5,
        objects: vec![item()],
        removed: vec!["u-2".into()],
        rejected: vec![Rejected {
            uid: "u-3".into(),
            resource_version: 1072.into(),
            reason: RejectReason::TooLarge,
            message: "must be at most 65536 bytes, has 100415".into(),
            object: None,
        }],
        unpatched: vec![Unpatched { uid: "u-5".into(), base: 1071.into(), reason: PatchProblem::OtherBase }],
        receiving: Some("u-4".into()),
        received: None,
        receipt: 0,
    }
}

fn up() -> Vec<Up> {
    let session = || SESSION.to_owned();
    let mut buckets = BucketSet::default();
    buckets.insert(74);
    let condition = json!({"type": "edgesync.io/DiskPressure", "status": "False", "reason": "EnoughSpace",
        "message": "half of it is free", "lastTransitionTime": "2026-11-21T05:12:17Z"});
    let node = json!({"node": {"labels": {"site": "north"}, "status": {"nodeInfo": {"architecture": "arm64"}},
        "conditions": [condition]}});
    let status = json!({"status": {"uid": "u-1", "object": object(), "status": {"readyReplicas": 1}}});
    let event = json!({"event": {"apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "edge-1.18a2", "namespace": "default"}, "reason": "AgentStarted"}});
    vec![
        Up::Hello(Hello {
            node: "edge-1".into(),
            agent: "0.1.0".into(),
            session: session(),
            epoch: EPOCH,
            revision: 5,
            confirmed: Some(3),
            count: 3,
            digest: Digest(0x951d_ffcf_4ab7_0812_259b_9996_b498_34d7),
            incarnation: Some("feb9e0bd2faf4720".into()),
            max_frame: 16384,
            max_object: 65536,
            patches: true,
            partial: Some(Box::new(PartialMessage {
                uid: "u-4".into(),
                resource_version: 1070.into(),
                total: 50407,
                digest: MESSAGE,
                received: 47616,
            })),
            lease: Some(LeaseTerms { seconds: 40, acquired: 1_795_237_935_165_062 }),
            metered: Some(MeteredLink { urgency: Urgency::High, size: Some(65_536), credit: Some(0) }),
        }),
        Up::Report(report()),
        Up::Inventory(Inventory { session: session(), page: 1, buckets, more: true, objects: vec![item()] }),
        Up::Lease(Lease {
            session: session(),
            seconds: 40,
            acquired: 1_795_237_935_165_062,
            renewed: 1_795_238_021_292_817,
            check_in: Some(CheckIn { within: 21_610, reason: CheckInReason::Interval }),
        }),
        Up::Renew(Renew { session: session() }),
        Up::Credit(Credit { session: session(), bytes: 26_112, receipt: 9 }),
        Up::Upload(Upload {
            session: session(),
            outbox: OUTBOX.into(),
            lane: Lane::Status,
            confirmed: 11,
            items: vec![content(12, &node), content(14, &status), content(15, &event)],
        }),
    ]
}

fn outgoing(body: Option<&str>) -> MessageText {
    let outgoing = Outgoing {
        uid: "u-1".into(),
        version: 1062.into(),
        supersedes: body.map(|_| ResourceVersion::from(2000)),
        resource: Arc::new(Resource {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
            scope: Scope::Namespaced,
        }),
        namespace: "plant".into(),
        name: "line-1".into(),
        body: body.map(|body| Body::new(body.into()).unwrap()),
    };
    outgoing.to_text().unwrap()
}

fn down() -> Vec<Down> {
    let session = || SESSION.to_owned();
    let mut buckets = Buckets::default();
    buckets.add(EPOCH, "u-1", &1062.into());
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"line-1","namespace":"plant","uid":"u-1","resourceVersion":"1062"},"data":{"speed":"55"}}"#;
    vec![
        Down::Welcome(Welcome {
            session: session(),
            incarnation: Some("feb9e0bd2faf4720".into()),
            confirmed: 3,
            pending: 2,
            held: 1,
            register: true,
            features: vec![Feature::Renew, Feature::CheckIn, Feature::Metered],
            waiting: Waiting { urgency: 3, size: 1, credit: 12 },
        }),
        Down::Objects(ObjectsText {
            session: session(),
            receipt: 0,
            messages: vec![outgoing(Some(body)), outgoing(None)],
        }),
        Down::Part(Part {
            session: session(),
            uid: "u-1".into(),
            resource_version: 1062.into(),
            offset: 47616,
            total: 50407,
            data: "abcdef".into(),
            receipt: 0,
            digest: Some(MESSAGE),
            object: None,
        }),
        Down::Confirm(Confirm {
            session: session(),
            revision: 5,
            pending: 2,
            held: 1,
            waiting: Waiting { urgency: 3, size: 1, credit: 12 },
            receipt: 9,
        }),
        Down::InventoryRequest(InventoryRequest { session: session(), buckets }),
        Down::HelloRequest(HelloRequest {
            session: session(),
            reason: "the node was removed from the fleet".into(),
            retry_after_seconds: 3600,
            removed: true,
        }),
        Down::UploadConfirm(UploadConfirm {
            session: session(),
            outbox: OUTBOX.into(),
            last: Lanes { status: 14, events: 2, bulk: 1 },
            refused: vec![Refused {
                seq: 14,
                reason: RefusedReason::Recreated,
                message: "Deployment plant/line-1 has another UID now".into(),
            }],
        }),
        Down::Stay(Stay { session: session(), seconds: 3600 }),
    ]
}

/// Encodes the current form of each frame type.
fn written() -> Frames {
    let parse = |bytes: Vec<u8>| serde_json::from_slice(&bytes).unwrap();
    let up = up()
        .into_iter()
        .map(|frame| (format!("up/{}", frame.name()), parse(frame.encode(usize::MAX).unwrap())));
    let down = down()
        .into_iter()
        .map(|frame| (format!("down/{}", frame.name()), parse(frame.encode(usize::MAX).unwrap())));
    up.chain(down).collect()
}

/// Decodes a frame and encodes it again; an Objects frame becomes a description of its changes.
fn read(name: &str, frame: &Value) -> Result<Value, String> {
    let text = frame.to_string();
    let parse = |bytes: Vec<u8>| serde_json::from_slice(&bytes).map_err(|error| error.to_string());
    if name.starts_with("up/") {
        let frame = Up::decode(text.as_bytes(), &mut Budget::of(LIMIT)).map_err(|error| error.to_string())?;
        return parse(frame.encode(usize::MAX).unwrap());
    }
    let frame = Received::decode(text.as_bytes(), &mut Budget::of(LIMIT), MAX_OBJECT)
        .map_err(|error| error.to_string())?;
    if let Received::Objects(objects) = &frame {
        assert!(objects.rejected.is_empty(), "{:?}", objects.rejected);
        let change = |change: &Change| match change {
            Change::Put(put) => json!({"put": put.uid, "version": put.version, "supersedes": put.supersedes,
                "resource": *put.resource, "namespace": put.namespace, "name": put.name}),
            Change::Patch(patch) => json!({"patch": patch.uid(), "version": patch.version()}),
            Change::Delete(delete) => json!({"delete": delete.uid, "key": delete.key.to_string()}),
        };
        return Ok(
            json!({"session": objects.session, "changes": objects.changes.iter().map(change).collect::<Vec<_>>()}),
        );
    }
    parse(written_again(frame).unwrap().encode(usize::MAX).unwrap())
}

/// Returns the first path where `new` lacks a field of `old` or has another value.
fn missing(old: &Value, new: &Value, at: &str) -> Option<String> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => old.iter().find_map(|(field, value)| {
            let at = format!("{at}.{field}");
            new.get(field).map_or(Some(at.clone()), |found| missing(value, found, &at))
        }),
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            let mut pairs = old.iter().zip(new).enumerate();
            pairs.find_map(|(index, (old, new))| missing(old, new, &format!("{at}[{index}]")))
        }
        _ => (old != new).then(|| format!("{at}: {old} became {new}")),
    }
}

#[test]
fn frames_of_this_version_are_recorded() {
    let version = directory().join(edgesync_runtime::VERSION);
    if std::env::var_os("EDGESYNC_TEST_RECORD_FRAMES").is_some() {
        for (name, frame) in written() {
            let path = version.join(format!("{name}.json"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{frame}\n")).unwrap();
        }
    }
    let names = |frames: Frames| frames.into_keys().collect::<Vec<_>>();
    assert_eq!(names(recorded(&version)), names(written()), "a frame of each type");
}

#[test]
fn recorded_frames_decode_with_all_their_fields() {
    for (version, frames) in versions() {
        for (name, frame) in frames {
            let again = read(&name, &frame).unwrap_or_else(|error| panic!("{name} of {version}: {error}"));
            if name == "down/Objects" {
                assert_eq!(again, read(&name, &written()[&name]).unwrap(), "{name} of {version}");
            } else {
                assert_eq!(missing(&frame, &again, ""), None, "{name} of {version}");
            }
        }
    }
}

#[test]
fn todays_frames_have_every_field_of_older_versions() {
    let today = written();
    for (version, frames) in versions() {
        for (name, frame) in frames {
            assert_eq!(missing(&frame, &today[&name], ""), None, "{name} as {version} wrote it");
        }
    }
}

/// Words of enumerations that a later version may extend.
const WORDS: [&str; 10] = [
    "TooLarge",
    "OtherBase",
    "Recreated",
    "Namespaced",
    "False",
    "status",
    "update",
    "interval",
    "checkIn",
    "high",
];

/// Adds unknown fields to each object of a frame and replaces words with unknown ones, as `choose`
/// decides. Objects, statuses and Events belong to Kubernetes and stay unchanged.
fn alter(value: &mut Value, choose: &mut impl FnMut() -> bool) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields.iter_mut() {
                let known_word = value.as_str().is_some_and(|text| WORDS.contains(&text));
                if known_word && !matches!(field.as_str(), "operation") && choose() {
                    *value = "Later".into();
                }
                if !matches!(field.as_str(), "event" | "metadata" | "data" | "nodeInfo" | "labels") {
                    alter(value, choose);
                }
            }
            if choose() {
                fields.insert("later".to_owned(), json!({"a": [1, null, {"b": "c"}], "lane": "status"}));
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| alter(value, choose)),
        _ => {}
    }
}

proptest! {
    /// Simulates a later version that adds fields and words.
    #[test]
    fn unknown_words_and_fields_leave_a_frame_readable(choices in prop::collection::vec(any::<bool>(), 1..60)) {
        for (name, frame) in written() {
            let (mut altered, mut at) = (frame.clone(), 0);
            alter(&mut altered, &mut || {
                at += 1;
                choices[at % choices.len()]
            });
            let again = read(&name, &altered);
            prop_assert!(again.is_ok(), "{:?}: {}", again, altered);
            if name == "up/Upload" {
                let Ok(Up::Upload(upload)) = Up::decode(altered.to_string().as_bytes(), &mut Budget::of(LIMIT)) else { panic!("{altered}") };
                for item in &upload.items {
                    match serde_json::from_str(item.content.get()) {
                        Ok(Content::Node(report)) => {
                            let report: NodeReport = serde_json::from_str(report.get()).unwrap();
                            prop_assert_eq!(report.conditions.len(), 1);
                        }
                        Ok(Content::Status(_) | Content::Event(_) | Content::Effect(_)) => {}
                        Err(error) => panic!("{error}: {}", item.content),
                    }
                }
            }
        }
    }
}
