//! Uploads of a node that the test plays: what is ingested now, later, or never.

use std::sync::atomic::Ordering;

use super::turns::World;
use super::*;
use crate::node_name;
use crate::source::{Effect, UploadBatch};
use edgesync_broker::Channel;
use edgesync_protocol::frame::{Hello, Up, Upload, UploadConfirm};
use edgesync_protocol::upload::{Lane, RefusedReason, UploadItem};
use serde_json::Value;
use serde_json::value::RawValue;

const NODE: &str = "edge-1";
/// Turns after which nothing happens any more without an input.
const TURNS: usize = 50;

/// The fleet, and the connected node.
struct Played<const SHARED: bool> {
    world: World<SHARED>,
    seq: u64,
}

impl<const SHARED: bool> Played<SHARED> {
    async fn start() -> Self {
        let mut played = Self { world: World::with(0).await, seq: 0 };
        let presence = br#"{"connection":"c","online":true}"#.to_vec();
        for event in [
            FleetEvent::Open { max_packet: 1 << 20 },
            FleetEvent::Message { node: node_name(NODE), channel: Channel::Presence, payload: presence },
        ] {
            played.world.fleet.event(event);
        }
        played.send(&Up::Hello(Hello::of_empty_node(NODE, "s")));
        let frames = played.run().await;
        assert!(frames.iter().any(|frame| matches!(frame, Received::Welcome(_))), "{frames:?}");
        played
    }

    fn send(&mut self, frame: &Up) {
        let (node, channel) = (node_name(NODE), Channel::Up);
        let payload = frame.encode(1024).unwrap();
        self.world.fleet.event(FleetEvent::Message { node, channel, payload });
    }

    /// Runs the loop until it is idle. Returns the frames for the node.
    async fn run(&mut self) -> Vec<Received> {
        let mut frames = Vec::new();
        for _ in 0..TURNS {
            self.world.fleet.begin_turn();
            while let Some(publish) = self.world.broker.queue.pop() {
                if publish.topic.ends_with("/down") {
                    let mut budget = Budget::of(1 << 20);
                    frames.push(Received::decode(&publish.payload, &mut budget, 1 << 20).unwrap());
                }
            }
            // Tasks of the store, and changes of the source.
            tokio::task::yield_now().await;
            while let Some(answer) = self.world.fleet.requests.try_next() {
                self.world.fleet.handle_response(answer);
            }
            if self.world.fleet.reconciler.broadcasts.is_delivered() {
                tokio::select! {
                    biased;
                    change = self.world.fleet.feed.next() => self.world.fleet.changed(change),
                    () = std::future::ready(()) => {}
                }
            }
        }
        frames
    }

    /// Sends items after the last confirmed one. Returns the confirm, if there is any.
    async fn upload(&mut self, lane: Lane, contents: &[Value]) -> Option<UploadConfirm> {
        let confirmed = self.seq;
        let raw = |content: &Value| RawValue::from_string(content.to_string()).unwrap();
        let items = contents.iter().zip(confirmed + 1..);
        let items: Vec<_> = items.map(|(content, seq)| UploadItem { seq, content: raw(content) }).collect();
        let (session, outbox) = ("s".into(), "o".into());
        self.send(&Up::Upload(Upload { session, outbox, lane, confirmed, items }));
        let frames = self.run().await;
        let confirm = frames.into_iter().find_map(|frame| match frame {
            Received::UploadConfirm(confirm) => Some(confirm),
            _ => None,
        });
        if let Some(confirm) = &confirm {
            self.seq = confirm.last.get(lane);
        }
        confirm
    }

    fn ingested(&self) -> Vec<UploadBatch> {
        std::mem::take(&mut self.world.store.0.lock().unwrap().ingested)
    }
}

fn status(name: &str) -> Value {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "plant", "name": name});
    json!({"status": {"uid": name, "object": object, "status": {"phase": "Running"}}})
}

fn event(number: usize) -> Value {
    json!({"event": {
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": format!("e{number}"), "namespace": "default"},
        "eventTime": "2026-11-22T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i",
        "action": "A", "reason": "R", "type": "Normal", "regarding": {"kind": "Node", "name": NODE},
    }})
}

fn reasons(confirm: &UploadConfirm) -> Vec<RefusedReason> {
    confirm.refused.iter().map(|refused| refused.reason).collect()
}

/// The node has been sent the object by another replica, and this one has not received it yet.
#[tokio::test]
async fn a_lagging_replica_refuses_nothing_before_it_is_current() {
    let mut played = Played::<true>::start().await;
    assert_eq!(played.upload(Lane::Status, &[status("late")]).await, None, "not now");
    assert_eq!(played.upload(Lane::Status, &[status("late")]).await, None, "not before it caught up");
    let asked = played.world.asked.load(Ordering::Relaxed);
    assert_eq!((played.ingested().len(), asked), (0, 1));

    played.world.put("late");
    played.world.answer();
    played.run().await;
    let confirm = played.upload(Lane::Status, &[status("late")]).await.unwrap();
    assert_eq!((reasons(&confirm), confirm.last.status), (vec![], 1));
    let batches = played.ingested();
    assert!(matches!(&batches[..], [batch] if matches!(batch.items[0].effect, Ok(Effect::Status { .. }))));

    // An object that does not exist at that moment is not placed on the node.
    let confirm = played.upload(Lane::Status, &[status("invented"), status("late")]).await.unwrap();
    assert_eq!((reasons(&confirm), confirm.last.status), (vec![RefusedReason::NotPlaced], 3));
    assert_eq!(played.world.asked.load(Ordering::Relaxed), 1, "once in a session");
}

#[tokio::test]
async fn a_cloud_side_without_replicas_answers_at_once() {
    let mut played = Played::<false>::start().await;
    let confirm = played.upload(Lane::Status, &[status("invented")]).await.unwrap();
    assert_eq!(reasons(&confirm), [RefusedReason::NotPlaced]);
    assert_eq!(confirm.refused[0].message, "ConfigMap 'plant/invented' is not placed on this node");
}

/// The attack: a device uploads Events without end. Its statuses are not delayed.
#[tokio::test]
async fn events_beyond_the_rate_of_a_node_are_ingested_later() {
    let mut played = Played::<false>::start().await;
    let (mut sent, mut batches) = (0, 0);
    loop {
        let events: Vec<Value> = (sent..sent + 100).map(event).collect();
        match played.upload(Lane::Bulk, &events).await {
            Some(confirm) => assert_eq!(reasons(&confirm), []),
            None => break,
        }
        (sent, batches) = (sent + 100, batches + 1);
        assert!(batches < 100, "there is no limit");
    }
    assert_eq!((sent, batches, played.ingested().len()), (1000, 10, 10));
    played.seq = 0;
    let confirm = played.upload(Lane::Status, &[json!({"node": {}}), event(1)]).await.unwrap();
    assert_eq!((reasons(&confirm), confirm.last.status), (vec![RefusedReason::Other], 2));

    played.seq = 1000;
    tokio::time::advance(Duration::from_millis(250)).await;
    let confirm = played.upload(Lane::Bulk, &[event(1001)]).await.unwrap();
    assert_eq!((reasons(&confirm), confirm.last.bulk), (vec![], 1001));
}
