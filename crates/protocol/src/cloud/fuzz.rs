//! Frames of a node that is not the agent it claims to be: whatever they say, its next session
//! begins as usual.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::testing::{DesiredObject, DesiredObjects, hello, machine_with};
use super::{
    CloudEffect, CloudMachine, CloudPhase, LedgerFacts, LoadRequest, Loaded, Reached, Record, Records,
};
use crate::body::Body;
use crate::change::{ObjectRef, Uid};
use crate::digest::{BucketSet, Digest};
use crate::frame::{DEFAULT_MAX_FRAME, Down, Inventory, Up};
use crate::timing::Now;
use crate::upload::IngestCursor;
use edgesync_fuzz::{files, fuzz};
use edgesync_object::urgency::Urgency;
use edgesync_object::{Budget, ResourceVersion, kinds};

/// The largest frame in bytes, decoded.
const LIMIT: usize = DEFAULT_MAX_FRAME as usize;
/// The most effects, and frames to the node, after one frame of it.
const MAX_OUTPUTS: usize = 1_000;

/// The cloud side of a node: its machine, the desired objects, and the store of its records.
struct Side {
    cloud: CloudMachine,
    desired: DesiredObjects,
    /// `None` for a replica, which keeps none.
    records: Option<BTreeMap<Uid, Record>>,
}

impl Side {
    fn stored(desired: &DesiredObjects) -> Self {
        let cloud = machine_with(Records::Stored(LedgerFacts::default()));
        Self { cloud, desired: desired.clone(), records: Some(BTreeMap::new()) }
    }

    fn replica(desired: &DesiredObjects) -> Self {
        Self { cloud: machine_with(Records::Proven), desired: desired.clone(), records: None }
    }

    /// Handles a frame of the node. Returns the frames to it.
    fn received(&mut self, frame: Up) -> Vec<Down> {
        self.cloud.received(Now::ZERO, frame, &self.desired);
        self.settle();
        let mut frames = Vec::new();
        while let Some(frame) = self.cloud.poll_frame(Now::ZERO, &self.desired) {
            frames.push(frame);
            self.settle();
            assert!(frames.len() < MAX_OUTPUTS, "frames without end");
        }
        frames
    }

    /// Performs the effects of the machine.
    fn settle(&mut self) {
        for _ in 0..MAX_OUTPUTS {
            let Some(effect) = self.cloud.poll_effect(&self.desired) else { return };
            match effect {
                CloudEffect::ReadRecords => {
                    let records = self.records.clone().unwrap_or_default();
                    self.cloud.opened(Now::ZERO, Some(records.into_iter().collect()), &self.desired);
                }
                CloudEffect::Load { token, objects } => {
                    let body = || Body::new("{}".to_owned()).unwrap();
                    let loaded = objects.into_iter().map(|LoadRequest { uid, version, .. }| Loaded {
                        uid,
                        version,
                        body: body(),
                        patch: None,
                    });
                    self.cloud.loaded(Now::ZERO, token, loaded.collect(), &self.desired);
                }
                CloudEffect::Record(batch) => {
                    if let Some(records) = &mut self.records {
                        if batch.reset {
                            records.clear();
                        }
                        batch.remove.iter().for_each(|uid| drop(records.remove(uid)));
                        records.extend(batch.put);
                    }
                    self.cloud.recorded(Now::ZERO, batch.token, true, 0, &self.desired);
                }
                CloudEffect::Ingest { token, upload } => {
                    let mut taken = IngestCursor::default();
                    taken.begin(&upload.outbox, upload.lane, upload.confirmed);
                    for item in &upload.items {
                        taken.accept(upload.lane, item.seq);
                    }
                    self.cloud.taken(Now::ZERO, token, Some((taken, Vec::new())));
                }
                CloudEffect::CatchUp { token } => {
                    self.cloud.caught_up(Now::ZERO, token, &Reached::from(2_000), &self.desired);
                }
                CloudEffect::RollbackClaimed | CloudEffect::Renew(_) | CloudEffect::Notice(_) => {}
            }
        }
        panic!("effects without end");
    }

    /// Begins a session of a node that holds nothing.
    fn welcome_empty_node(&mut self) {
        let session = "the next session";
        for frame in self.received(hello(session)) {
            if let Down::InventoryRequest(_) = frame {
                let (session, buckets) = (session.to_owned(), BucketSet::ALL);
                let empty = Inventory { session, page: 0, buckets, more: false, objects: Vec::new() };
                self.received(Up::Inventory(empty));
            }
        }
        assert_eq!(self.cloud.phase(), CloudPhase::Live);
    }
}

/// Returns two objects for the node of the recorded frames, which holds one of them.
fn desired() -> DesiredObjects {
    let mut desired = DesiredObjects::default();
    for (uid, name) in [("u-1", "line-1"), ("u-3", "line-3")] {
        let object = ObjectRef {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            namespace: "plant".into(),
            name: name.into(),
        };
        let wish = DesiredObject {
            version: ResourceVersion::from(1062),
            object: Arc::new(object),
            resource: Arc::new(kinds::guess("apps/v1", "Deployment", true)),
            size: 100,
            urgency: Urgency::Normal,
        };
        desired.tell(Now::ZERO, None, &uid.into(), Some(wish));
    }
    desired
}

/// It caused one write of the records after the other, as long as the node was connected.
#[test]
fn hello_with_a_digest_of_no_objects_is_refused() {
    for mut side in [Side::stored(&desired()), Side::replica(&desired())] {
        let Up::Hello(mut contradiction) = hello("contradiction") else { panic!("must be a Hello") };
        contradiction.digest = Digest(1);
        let frames = side.received(Up::Hello(contradiction));
        let [Down::HelloRequest(request)] = &frames[..] else { panic!("{frames:?}") };
        assert!(request.reason.contains("`digest`"), "{request:?}");
        side.welcome_empty_node();
    }
}

/// The frames of an input are separated by line breaks.
#[test]
fn fuzz_sessions_of_a_node() {
    // Hello, Inventory, Lease, Report, Upload.
    let recorded = files("frames/0.1.0/up", ".json");
    let text = |frame: &[u8]| String::from_utf8(frame.to_vec()).unwrap().replace('\n', " ");
    let frames: Vec<String> = recorded.iter().map(|frame| text(frame)).collect();
    let orders: [&[usize]; 4] =
        [&[0, 3, 1, 2, 4], &[0, 1, 1, 3, 4], &[3, 0, 0, 3, 4, 4], &[0, 1, 3, 0, 1, 3]];
    let empty = String::from_utf8(hello("4295632f").encode(usize::MAX).unwrap()).unwrap();
    let samples = orders.iter().flat_map(|order| {
        let chosen: Vec<&str> = order.iter().map(|number| frames[*number].as_str()).collect();
        // A node that holds nothing is welcomed at once.
        let welcomed = [&[empty.as_str()], &chosen[1..]].concat();
        [chosen.join("\n").into_bytes(), welcomed.join("\n").into_bytes()]
    });
    let desired = desired();
    fuzz("session", &samples.collect::<Vec<_>>(), |bytes| {
        for mut side in [Side::stored(&desired), Side::replica(&desired)] {
            for line in bytes.split(|byte| *byte == b'\n') {
                let Ok(frame) = Up::decode(line, &mut Budget::of(LIMIT)) else { continue };
                for frame in side.received(frame) {
                    frame.encode(usize::MAX).unwrap();
                }
            }
            side.cloud.disconnected();
            side.settle();
            assert_eq!(side.cloud.phase(), CloudPhase::Offline);
            side.welcome_empty_node();
            assert!(side.records.as_ref().is_none_or(BTreeMap::is_empty), "{:?}", side.records);
        }
    });
}
