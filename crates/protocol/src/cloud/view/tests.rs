use std::sync::Arc;

use crate::body::Body;
use crate::change::{RejectReason, Rejected, Uid};
use crate::cloud::testing::{DesiredObject, DesiredObjects, NONE_UNREAD, hello_with, machine_with};
use crate::cloud::{CloudEffect, CloudMachine, CloudPhase, LoadRequest, Loaded, Reached, Records};
use crate::digest::{BucketSet, Tally};
use crate::frame::{DEFAULT_MAX_FRAME, Down, Inventory, Item, ObjectsText, Report, Up};
use crate::message::MessageText;
use crate::timing::Now;
use edgesync_object::urgency::Urgency;
use edgesync_object::{ObjectRef, Resource, ResourceVersion, Scope};

fn object(name: &str) -> ObjectRef {
    let (namespace, name) = ("default".into(), name.into());
    ObjectRef { api_version: "v1".into(), kind: "ConfigMap".into(), namespace, name }
}

/// Returns a desired state of these objects, by name and version.
fn wishes(objects: &[(&str, u64)]) -> DesiredObjects {
    let wish = |(name, version): &(&str, u64)| {
        let resource = Resource {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
            scope: Scope::Namespaced,
        };
        let (object, resource) = (Arc::new(object(name)), Arc::new(resource));
        (
            Uid::from(*name),
            DesiredObject {
                version: (*version).into(),
                object,
                resource,
                size: 10,
                urgency: Urgency::Normal,
            },
        )
    };
    DesiredObjects(objects.iter().map(wish).collect(), NONE_UNREAD)
}

/// One node and one replica.
struct Rig {
    cloud: CloudMachine,
    wishes: DesiredObjects,
    /// The number of requests to catch up.
    asked: Vec<u64>,
    opened: usize,
    /// Whether records are left unwritten.
    is_stuck: bool,
    went_back: usize,
    frames: Vec<Down>,
}

impl Rig {
    fn new(wanted: &[(&str, u64)]) -> Self {
        let (cloud, wishes) = (machine_with(Records::Proven), wishes(wanted));
        Self { cloud, wishes, asked: vec![], opened: 0, is_stuck: false, went_back: 0, frames: vec![] }
    }

    /// Connects the node: it sends Hello and, on request, its inventory.
    fn connect(&mut self, session: &str, incarnation: Option<&str>, held: &[(&str, u64)]) {
        let Up::Hello(mut hello) = hello_with(session, DEFAULT_MAX_FRAME) else { unreachable!() };
        let mut tally = Tally::default();
        held.iter().for_each(|(uid, version)| tally.add(hello.epoch, uid, &(*version).into()));
        (hello.count, hello.digest, hello.revision) = (tally.count, tally.digest, 40);
        hello.incarnation = incarnation.map(str::to_owned);
        self.cloud.received(Now::ZERO, Up::Hello(hello), &self.wishes);
        self.run();
        if self.cloud.phase() == CloudPhase::Repairing {
            let mut buckets = BucketSet::default();
            (0..=u8::MAX).for_each(|bucket| buckets.insert(bucket));
            let item = |(name, version): &(&str, u64)| {
                let object = Some(object(name));
                Item { uid: (*name).into(), resource_version: (*version).into(), object }
            };
            let (session, objects) = (session.to_owned(), held.iter().map(item).collect());
            let inventory = Inventory { session, page: 0, buckets, more: false, objects };
            self.cloud.received(Now::ZERO, Up::Inventory(inventory), &self.wishes);
            self.run();
        }
        assert_eq!(self.cloud.phase(), CloudPhase::Live);
    }

    fn run(&mut self) {
        loop {
            while let Some(effect) = self.cloud.poll_effect(&self.wishes) {
                self.perform(effect);
            }
            let Some(frame) = self.cloud.poll_frame(Now::ZERO, &self.wishes) else { return };
            self.frames.push(frame);
        }
    }

    fn perform(&mut self, effect: CloudEffect) {
        match effect {
            CloudEffect::ReadRecords => {
                self.opened += 1;
                self.cloud.opened(Now::ZERO, Some(Vec::new()), &self.wishes);
            }
            CloudEffect::Record(batch) if !self.is_stuck => {
                self.cloud.recorded(Now::ZERO, batch.token, true, 0, &self.wishes);
            }
            CloudEffect::Load { token, objects } => {
                let body = |uid: &Uid| Body::new(format!(r#"{{"metadata":{{"uid":"{uid}"}}}}"#)).unwrap();
                let load =
                    |LoadRequest { uid, version, .. }| Loaded { body: body(&uid), uid, version, patch: None };
                let bodies = objects.into_iter().map(load).collect();
                self.cloud.loaded(Now::ZERO, token, bodies, &self.wishes);
            }
            CloudEffect::CatchUp { token } => self.asked.push(token),
            CloudEffect::RollbackClaimed => self.went_back += 1,
            _ => {}
        }
    }

    /// Changes the desired version of an object; `None` deletes it.
    fn hear(&mut self, name: &str, version: Option<u64>) {
        let wish = version.and_then(|version| wishes(&[(name, version)]).0.remove(name));
        self.wishes.tell(Now::ZERO, Some(&mut self.cloud), &name.into(), wish);
        self.run();
    }

    fn catch_up(&mut self, token: u64, reached: u64) {
        self.cloud.caught_up(Now::ZERO, token, &reached.into(), &self.wishes);
        self.run();
    }

    /// Returns the objects and removals sent, with the superseded versions.
    fn sent(&self) -> Vec<String> {
        let objects = self.frames.iter().filter_map(|frame| match frame {
            Down::Objects(ObjectsText { messages, .. }) => Some(messages),
            _ => None,
        });
        objects.flatten().map(|message| format!("{message:?}")).collect()
    }

    /// Returns UID, version and superseded version of each object sent.
    fn puts(&self) -> Vec<(String, String, Option<String>)> {
        let objects = self.frames.iter().filter_map(|frame| match frame {
            Down::Objects(ObjectsText { messages, .. }) => Some(messages),
            _ => None,
        });
        let put = |message: &MessageText| {
            let mut text = String::new();
            message.write_to(&mut text);
            let message: serde_json::Value = serde_json::from_str(&text).unwrap();
            let word = |pointer: &str| message.pointer(pointer)?.as_str().map(str::to_owned);
            (word("/route/operation")? == "update").then(|| {
                let uid = word("/content/metadata/uid").unwrap();
                (uid, word("/header/resourceversion").unwrap(), word("/header/supersedes"))
            })
        };
        objects.flatten().filter_map(put).collect()
    }

    /// Returns the incarnation in the last Welcome.
    fn claimed(&self) -> Option<&str> {
        let welcome = self.frames.iter().rev().find_map(|frame| match frame {
            Down::Welcome(welcome) => Some(welcome),
            _ => None,
        });
        welcome?.incarnation.as_deref()
    }
}

#[test]
fn a_node_in_sync_is_welcomed_by_a_new_replica_unread() {
    let mut rig = Rig::new(&[("a", 3), ("b", 5)]);
    rig.connect("1", Some("inc"), &[("a", 3), ("b", 5)]);
    assert_eq!((rig.opened, rig.frames.len(), rig.asked.len()), (0, 1, 0));
    assert!(rig.cloud.in_sync());
}

#[test]
fn held_objects_are_compared_with_desired_ones() {
    let mut rig = Rig::new(&[("a", 3), ("b", 5)]);
    rig.connect("1", Some("inc"), &[("a", 2), ("b", 5)]);
    assert!(matches!(rig.frames[0], Down::InventoryRequest(_)), "{:?}", rig.frames);
    assert_eq!(
        (rig.opened, rig.sent().len(), rig.asked.len()),
        (1, 1, 0),
        "a newer version needs no question"
    );
}

#[test]
fn changes_since_the_last_sync_need_no_inventory() {
    let mut rig = Rig::new(&[("a", 3), ("b", 5), ("c", 6)]);
    rig.hear("a", Some(7));
    rig.hear("c", None);
    rig.hear("a", Some(8));
    rig.hear("d", Some(9));
    rig.connect("1", Some("inc"), &[("a", 7), ("b", 5)]);
    assert!(matches!(rig.frames[0], Down::Welcome(_)), "{:?}", rig.frames);
    assert_eq!((rig.opened, rig.sent().len(), rig.asked.len()), (0, 1, 1));
    rig.catch_up(0, 9);
    assert_eq!(rig.sent().len(), 2);
}

#[test]
fn a_lagging_replica_leaves_unknown_objects_and_asks_once() {
    let mut rig = Rig::new(&[("rolled", 3), ("deleted", 4), ("same", 2)]);
    rig.connect("1", Some("inc"), &[("rolled", 8), ("new", 9), ("same", 2)]);
    assert_eq!((rig.sent().len(), rig.asked.as_slice()), (0, [0].as_slice()));
    assert!(rig.cloud.pending() > 0 && !rig.cloud.in_sync());
    rig.hear("deleted", None);
    rig.hear("rolled", Some(8));
    rig.hear("new", Some(9));
    rig.catch_up(0, 9);
    assert_eq!((rig.sent().len(), rig.asked.len(), rig.went_back), (0, 1, 0));
    assert!(rig.cloud.in_sync());
}

/// An upload about an object that this replica has not received yet must not be refused: the
/// refusal is final, and the status would be lost.
#[test]
fn a_replica_may_refuse_after_it_caught_up_in_the_session() {
    let mut rig = Rig::new(&[("a", 3)]);
    rig.connect("1", Some("inc"), &[("a", 3)]);
    assert!(rig.cloud.in_sync() && !rig.cloud.may_refuse(), "another replica may have sent more");
    assert!(!rig.cloud.may_refuse());
    rig.run();
    assert_eq!((rig.asked.as_slice(), rig.cloud.may_refuse()), ([0].as_slice(), false));
    rig.catch_up(0, 9);
    assert!(rig.cloud.may_refuse());
    rig.run();
    assert_eq!((rig.asked.len(), rig.cloud.in_sync()), (1, true));

    rig.connect("2", Some("inc"), &[("a", 3)]);
    assert!(!rig.cloud.may_refuse(), "another one may have served the node meanwhile");
    let mut alone = machine_with(Records::Stored(crate::cloud::LedgerFacts::default()));
    assert!(alone.may_refuse(), "there is no other replica");
}

#[test]
fn an_answer_of_an_earlier_session_is_none() {
    let mut rig = Rig::new(&[("deleted", 4)]);
    rig.connect("1", Some("inc"), &[]);
    rig.connect("2", Some("inc"), &[("new", 9)]);
    rig.catch_up(0, 5);
    assert_eq!((rig.sent().len(), rig.asked.as_slice()), (0, [0, 1].as_slice()));
    rig.catch_up(1, 9);
    assert_eq!(rig.sent().len(), 2);
}

#[test]
fn a_caught_up_replica_removes_and_sends_without_asking() {
    let mut rig = Rig::new(&[("a", 3)]);
    rig.connect("1", Some("inc"), &[("b", 4)]);
    rig.catch_up(0, 9);
    assert_eq!(rig.sent().len(), 2);
    rig.hear("c", Some(10));
    assert_eq!((rig.sent().len(), rig.asked.len()), (3, 1));
}

#[test]
fn versions_of_another_store_are_not_unissued() {
    let mut rig = Rig::new(&[("a", 3)]);
    rig.connect("1", Some("inc"), &[("a", 90)]);
    let groups = Some(Arc::new(["apps".to_owned()].into()));
    rig.cloud.caught_up(Now::ZERO, 0, &Reached { groups, ..50.into() }, &rig.wishes);
    rig.run();
    assert_eq!((rig.sent().len(), rig.went_back), (1, 0), "{:?}", rig.frames);
    let mut own = Rig::new(&[("a", 3)]);
    own.connect("1", Some("inc"), &[("a", 90)]);
    own.catch_up(0, 50);
    assert_eq!(own.went_back, 1);
}

#[test]
fn unissued_versions_hold_removals_back_and_are_reported_once() {
    let names: Vec<String> = (0..20).map(|n| format!("lost-{n}")).collect();
    let held: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 90)).collect();
    let mut rig = Rig::new(&[("a", 3)]);
    rig.connect("1", Some("inc"), &held);
    rig.catch_up(0, 50);
    assert_eq!((rig.cloud.held_count(), rig.went_back, rig.sent().len()), (20, 1, 1));
    // The same happens at another replica.
    let mut other = Rig::new(&[("a", 3)]);
    other.connect("2", Some("inc"), &held);
    other.catch_up(0, 50);
    assert_eq!((other.cloud.held_count(), other.went_back), (20, 1));
}

#[test]
fn an_undone_version_is_replaced_by_name() {
    let mut rig = Rig::new(&[("a", 3)]);
    rig.connect("1", Some("inc"), &[("a", 8)]);
    assert_eq!(rig.sent().len(), 0);
    rig.catch_up(0, 5);
    assert!(rig.sent()[0].contains("supersedes"), "{:?}", rig.sent());
}

#[test]
fn an_undone_version_of_another_uid_is_replaced_by_name() {
    let mut rig = Rig::new(&[("new", 3)]);
    rig.wishes.0.get_mut("new").unwrap().object = Arc::new(object("old"));
    rig.connect("1", Some("inc"), &[("old", 8)]);
    assert_eq!(rig.sent().len(), 0);
    rig.catch_up(0, 5);
    assert_eq!(rig.puts(), [("new".into(), "3".into(), Some("8".into()))]);
}

#[test]
fn an_older_version_of_another_uid_needs_no_replacement_by_name() {
    let mut rig = Rig::new(&[("new", 3)]);
    rig.wishes.0.get_mut("new").unwrap().object = Arc::new(object("old"));
    rig.connect("1", Some("inc"), &[("old", 2)]);
    rig.catch_up(0, 5);
    assert_eq!(rig.puts(), [("new".into(), "3".into(), None)]);
}

#[test]
fn a_new_incarnation_is_announced_without_suspicion() {
    let names: Vec<String> = (0..20).map(|n| format!("gone-{n}")).collect();
    let held: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 4)).collect();
    let mut rig = Rig::new(&[]);
    rig.connect("1", Some("before"), &held);
    rig.catch_up(0, 50);
    assert_eq!((rig.claimed(), rig.cloud.held_count()), (None, 20));
    // The replica that serves it next holds them back too, until an operator has confirmed them.
    rig.connect("2", Some("before"), &held);
    rig.catch_up(1, 50);
    assert_eq!((rig.claimed(), rig.cloud.held_count()), (None, 20));
    rig.cloud.confirm_deletions(Now::ZERO, &rig.wishes);
    rig.run();
    assert_eq!(rig.sent().len(), 20);
    rig.connect("3", Some("before"), &[]);
    assert_eq!(rig.claimed(), Some("inc"));
}

#[test]
fn a_node_without_extra_objects_learns_the_new_incarnation() {
    let mut rig = Rig::new(&[("a", 3), ("refused", 4)]);
    rig.connect("1", Some("before"), &[("a", 2)]);
    assert_eq!(rig.claimed(), Some("inc"));
}

#[test]
fn confirms_of_another_replica_do_not_look_like_a_loss() {
    let names: Vec<String> = (0..20).map(|n| format!("gone-{n}")).collect();
    let held: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 4)).collect();
    let mut rig = Rig::new(&held);
    rig.connect("1", Some("inc"), &held);
    rig.cloud.disconnected();
    held.iter().for_each(|(name, _)| rig.hear(name, None));
    // Meanwhile another replica has confirmed more than this one has ever received.
    rig.connect("2", Some("inc"), &held);
    rig.catch_up(0, 50);
    assert_eq!((rig.cloud.held_count(), rig.sent().len()), (0, 20));
}

#[test]
fn a_replica_that_falls_behind_has_the_node_say_hello_again() {
    let mut rig = Rig::new(&[("a", 3)]);
    rig.connect("1", Some("inc"), &[("a", 3)]);
    rig.cloud.fall_behind();
    rig.hear("a", Some(4));
    assert!(matches!(rig.frames.last(), Some(Down::HelloRequest(request)) if request.session == "1"));
    rig.connect("2", Some("inc"), &[("a", 3)]);
    assert_eq!((rig.sent().len(), rig.asked.len()), (1, 0));
}

#[test]
fn versions_without_an_order_wait_until_more_is_known() {
    let mut rig = Rig::new(&[("a", 3)]);
    rig.wishes.0.get_mut("a").unwrap().version = ResourceVersion::new("x");
    rig.connect("1", Some("inc"), &[("a", 3)]);
    assert_eq!((rig.sent().len(), rig.asked.len()), (0, 1));
    rig.catch_up(0, 5);
    assert_eq!(rig.sent().len(), 1);
}

#[test]
fn a_suspended_retry_does_not_wake_the_machine() {
    let mut rig = Rig::new(&[("a", 3)]);
    rig.connect("1", Some("inc"), &[]);
    rig.catch_up(0, 5);
    let (uid, message) = ("a".into(), String::new());
    let reason = RejectReason::StoreFull;
    let rejected = vec![Rejected { uid, resource_version: 3.into(), reason, message, object: None }];
    let report = Report { session: "1".into(), from: 40, to: 40, rejected, ..Report::default() };
    rig.cloud.received(Now::ZERO, Up::Report(report), &rig.wishes);
    rig.run();
    rig.connect("2", Some("inc"), &[]);
    assert_eq!(rig.asked.len(), 1, "it is not to be sent yet");
    let due = Now::from_secs(3600);
    rig.cloud.tick(due, &rig.wishes);
    rig.run();
    assert_eq!(rig.asked.len(), 2);
    assert!(rig.cloud.deadline().is_none_or(|at| at > due), "{:?}", rig.cloud.deadline());
    rig.catch_up(1, 5);
    assert_eq!(rig.sent().len(), 2);
}

#[test]
fn unwritten_records_do_not_delay_a_reconnect() {
    let mut rig = Rig::new(&[("a", 3)]);
    rig.connect("1", Some("inc"), &[("a", 3)]);
    rig.is_stuck = true;
    let (uid, resource_version) = ("a".into(), 2.into());
    let objects = vec![Item { uid, resource_version, object: None }];
    let report = Report { session: "1".into(), from: 40, to: 41, objects, ..Report::default() };
    rig.cloud.received(Now::ZERO, Up::Report(report), &rig.wishes);
    rig.run();
    rig.frames.clear();
    rig.connect("2", Some("inc"), &[("a", 3)]);
    assert_eq!((rig.frames.len(), rig.opened), (1, 0));
}

#[test]
fn unread_objects_stay_until_they_are_readable() {
    let names: Vec<String> = (0..20).map(|n| format!("lost-{n}")).collect();
    let held: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 4)).collect();
    let mut rig = Rig::new(&[("a", 3)]);
    rig.wishes.1 = |_| true;
    rig.connect("1", Some("inc"), &held);
    rig.catch_up(0, 50);
    assert_eq!((rig.sent().len(), rig.cloud.held_count()), (1, 0));
    rig.wishes.1 = NONE_UNREAD;
    rig.cloud.reads_more(Now::ZERO, &rig.wishes);
    rig.run();
    assert_eq!(rig.sent().len(), 21);
    // In a restored cluster they wait for confirmation, readable or not.
    let mut rig = Rig::new(&[("a", 3)]);
    rig.wishes.1 = |_| true;
    rig.connect("1", Some("before"), &held);
    rig.catch_up(0, 50);
    rig.wishes.1 = NONE_UNREAD;
    rig.cloud.reads_more(Now::ZERO, &rig.wishes);
    rig.run();
    assert_eq!((rig.sent().len(), rig.cloud.held_count()), (1, 20));
}

#[test]
fn unread_objects_are_not_replaced_by_known_versions() {
    let mut rig = Rig::new(&[("behind", 3), ("ahead", 9)]);
    rig.wishes.1 = |_| true;
    rig.connect("1", Some("inc"), &[("behind", 5), ("ahead", 8)]);
    assert_eq!(rig.sent().len(), 1, "what is newer is right");
    // Another object that became readable proves nothing about this one.
    rig.catch_up(0, 50);
    assert_eq!((rig.sent().len(), rig.cloud.pending()), (1, 1));
    rig.wishes.1 = NONE_UNREAD;
    rig.cloud.reads_more(Now::ZERO, &rig.wishes);
    rig.run();
    assert_eq!(rig.sent().len(), 2);
}

#[test]
fn unread_objects_do_not_replace_held_ones_by_name() {
    // In a restored store the existing object may be right although it is older.
    for held in [5, 2] {
        let mut rig = Rig::new(&[("old", 3)]);
        let object = rig.wishes.0["old"].object.clone();
        rig.wishes.1 = |_| true;
        rig.wishes.0.get_mut("old").unwrap().object =
            Arc::new(ObjectRef { name: "new".into(), ..(*object).clone() });
        rig.connect("1", Some("inc"), &[("new", held)]);
        rig.catch_up(0, 50);
        assert_eq!(rig.sent().len(), 0, "{held}");
        rig.hear("old", None);
        rig.wishes.1 = NONE_UNREAD;
        rig.cloud.reads_more(Now::ZERO, &rig.wishes);
        rig.run();
        assert_eq!(rig.sent().len(), 1, "it is gone indeed");
    }
}
