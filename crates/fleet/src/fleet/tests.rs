//! Tests of the fleet over a real store and real connections.

use std::collections::HashMap;
use std::path::Path;

mod admin;
mod pages;
mod rollouts;
mod turns;
mod uploads;
mod waves;

use edgesync_object::Budget;
use edgesync_protocol::change::Uid;
use edgesync_protocol::parts::assemble;
use edgesync_runtime::random;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::CloudObjects;
use crate::metrics::PatchNumbers;
use crate::source::Embedded;
use edgesync_broker::{Broker, BrokerOptions};
use edgesync_cloud_store::{CloudOptions, CloudStore, Stored};
use edgesync_enrollment::{EnrollmentOptions, EnrollmentRole};
use edgesync_object::{Object, ObjectKey, Resource, ResourceVersion, kinds};
use edgesync_protocol::apply::{self, Applied, Held, HeldBody, Rows, Totals};
use edgesync_protocol::change::Put;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::edge::{Commit, EdgeConfig, EdgeEffect, EdgeMachine};
use edgesync_protocol::frame::Received;
use edgesync_transport::link::{Link, LinkEvent, LinkOptions, SessionIntro, Topics};

const PATIENCE: Duration = Duration::from_secs(120);

/// Held objects of a node, and their content.
#[derive(Default)]
struct Memory(HashMap<Uid, (ResourceVersion, ObjectKey)>, HashMap<Uid, (Arc<Resource>, String)>);

impl Rows for Memory {
    type Row = Uid;
    type Error = std::convert::Infallible;

    fn by_uid(&mut self, uid: &str) -> std::result::Result<Option<Held<Uid>>, Self::Error> {
        let held = |(uid, (version, key)): (&Uid, &(ResourceVersion, ObjectKey))| Held {
            row: uid.clone(),
            uid: uid.clone(),
            version: version.clone(),
            key: key.clone(),
        };
        Ok(self.0.get_key_value(uid).map(held))
    }

    fn by_name(&mut self, key: &ObjectKey) -> std::result::Result<Option<Held<Uid>>, Self::Error> {
        let uid = self.0.iter().find(|(_, (_, held))| held == key).map(|(uid, _)| uid.clone());
        uid.map_or(Ok(None), |uid| self.by_uid(&uid))
    }

    fn body(&mut self, held: &Held<Uid>) -> std::result::Result<Option<HeldBody>, Self::Error> {
        let (resource, text) = self.1[&held.uid].clone();
        Ok(Some(HeldBody { resource, text }))
    }

    fn put(&mut self, _: u64, put: &Put, _: Option<Uid>) -> std::result::Result<(), Self::Error> {
        self.1.insert(put.uid.clone(), (put.resource.clone(), put.body.get().to_owned()));
        self.0.insert(put.uid.clone(), (put.version.clone(), put.key()));
        Ok(())
    }

    fn remove(&mut self, _: u64, held: Held<Uid>) -> std::result::Result<(), Self::Error> {
        self.0.remove(&held.uid);
        self.1.remove(&held.uid);
        Ok(())
    }
}

/// A node with a real machine and rows in memory.
struct Device {
    machine: EdgeMachine,
    rows: Memory,
    /// Kept bytes of a message that arrives in parts.
    parts: String,
    totals: Totals,
    origin: Instant,
}

impl Device {
    fn new(name: &str) -> Self {
        let config = EdgeConfig {
            hello_timeout: Duration::from_secs(60),
            report_timeout: Duration::from_secs(60),
            report_attempts: 5,
            lease_interval: Duration::from_secs(60),
            lease_duration: Duration::from_secs(240),
            ..EdgeConfig::defaults(name)
        };
        let epoch = Epoch(u128::from(random()) + 1);
        let totals = Totals { epoch, ..Totals::default() };
        let machine = EdgeMachine::new(config, totals, 0, None);
        Self { machine, rows: Memory::default(), parts: String::new(), totals, origin: Instant::now() }
    }

    fn connected(&mut self) {
        self.machine.connected(self.origin.elapsed(), usize::MAX, random());
    }

    fn receive(&mut self, payload: &[u8]) {
        let frame = Received::decode(payload, &mut Budget::of(1 << 20), 1 << 23).unwrap();
        self.machine.received(self.origin.elapsed(), frame, random());
    }

    /// Performs the effects of the machine, and returns its next frame.
    fn next_frame(&mut self) -> Option<Vec<u8>> {
        let Self { machine, rows, parts, totals, origin } = self;
        while let Some(effect) = machine.poll_effect() {
            let (token, changes) = match effect {
                EdgeEffect::Apply { token, changes } => (token, changes),
                EdgeEffect::KeepPart { message, text } => {
                    parts.truncate(usize::try_from(message.received).unwrap());
                    parts.push_str(&text);
                    machine.part_kept(&message, Ok(true));
                    continue;
                }
                EdgeEffect::ApplyParts { token, message, rest, max_object } => {
                    let text = std::mem::take(parts) + &rest;
                    let change = assemble(&text, message.digest, totals.epoch, max_object);
                    (token, vec![change.unwrap().unwrap()])
                }
                _ => continue,
            };
            let (before, mut applied) = (totals.revision, Applied::default());
            for change in &changes {
                apply::apply(rows, totals, change, &mut applied).unwrap();
            }
            let commit = Commit { before, totals: *totals, applied };
            machine.applied(origin.elapsed(), token, Ok(commit), random());
        }
        Some(machine.poll_frame(origin.elapsed())?.encode(1024).unwrap())
    }
}

/// Runs a device with a real link.
async fn node(name: &'static str, broker: Broker) {
    let topics = Topics::default();
    let address = broker.address();
    let mut options = LinkOptions::new(&address.ip().to_string(), address.port(), name);
    options.subscriptions = vec![topics.down(name)];
    options.introduce = Arc::new(|_| SessionIntro { will: None, greetings: Vec::new() });
    let (link, mut events) = Link::spawn(options);
    let mut device = Device::new(name);
    while let Some(event) = events.recv().await {
        match event {
            LinkEvent::Connected { .. } => device.connected(),
            LinkEvent::Message { payload, .. } => device.receive(&payload),
            other => panic!("{other:?}"),
        }
        while let Some(frame) = device.next_frame() {
            link.try_publish(&topics.up(name), frame, false).unwrap();
        }
    }
}

pub(super) async fn enrollment(directory: &Path, store: &CloudStore) -> EnrollmentService {
    let options = EnrollmentOptions {
        directory: directory.join("pki"),
        names: vec!["cloud.example".into()],
        broker: "mqtts://:8883".into(),
        brokers: Vec::new(),
        prefix: "edgesync/v1".into(),
        lifetime: Duration::from_secs(3600),
        external: false,
        role: EnrollmentRole::Whole,
        grace: Duration::from_secs(3600),
    };
    EnrollmentService::open(options, store.clone()).await.unwrap()
}

/// Runs one turn of the loop.
async fn turn<S: Source>(fleet: &mut Fleet<S>, events: &mut FleetEvents) {
    let wake = fleet.begin_turn();
    tokio::select! {
        event = events.recv() => fleet.hear(event.unwrap(), events),
        change = fleet.feed.next(), if fleet.reconciler.broadcasts.is_delivered() => fleet.changed(change),
        Some(answer) = fleet.requests.next() => fleet.handle_responses(answer),
        moved = fleet.sender.moved(), if fleet.reconciler.nodes.is_settled() => {
            fleet.reconciler.nodes.links_moved(&moved);
        }
        () = tokio::time::sleep_until(wake) => fleet.tick(),
    }
}

/// Cloud side under test: a store in a directory, an endpoint, and the fleet.
struct Site {
    fleet: Fleet<Embedded>,
    events: FleetEvents,
    broker: Broker,
    store: CloudStore,
    _directory: TempDir,
}

fn config_map() -> Resource {
    kinds::by_word("configmap").unwrap().resource()
}

fn object(name: &str, bytes: usize) -> Object {
    let metadata = json!({"name": name, "namespace": "plant"});
    let data = json!({ "x": "x".repeat(bytes) });
    serde_json::from_value(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}),
    )
    .unwrap()
}

impl Site {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = CloudStore::open(&directory.path().join("cloud.db"), &CloudOptions::default()).unwrap();
        Self::over(store, directory).await
    }

    async fn over(store: CloudStore, directory: TempDir) -> Self {
        let text = "[[placement]]\nnodes = { names = [\"*\"] }\nobjects = { kinds = [\"ConfigMap\"] }\n";
        let config: Config = edgesync_config::parse(Path::new("test.toml"), text, []).unwrap().config;
        let enrollment = enrollment(directory.path(), &store).await;
        let (broker, events) =
            Broker::bind(([127, 0, 0, 1], 0).into(), BrokerOptions::default()).await.unwrap();
        let objects = Arc::new(CloudObjects::new(store.clone()).await.unwrap());
        let downlink = Downlink::Embedded(broker.clone());
        let fleet = Fleet::start(&config, Embedded::new(objects), downlink, enrollment).await.unwrap();
        Self { fleet, events, broker, store, _directory: directory }
    }

    async fn turn(&mut self) {
        turn(&mut self.fleet, &mut self.events).await;
    }

    /// Runs the fleet until this many nodes hold this version of the object. Returns the highest
    /// number of live bodies.
    async fn until_in_sync(&mut self, nodes: usize, stored: &Stored) -> u64 {
        let (end, mut most) = (Instant::now() + PATIENCE, 0);
        loop {
            self.turn().await;
            most = most.max(self.fleet.bodies.numbers().count);
            let placed = self.fleet.reconciler.desired.placement.object(&stored.uid);
            let is_applied = placed.is_some_and(|object| object.version == stored.version.into());
            let in_sync = self.fleet.reconciler.nodes.values().filter(|node| node.machine.in_sync()).count();
            if is_applied && in_sync == nodes {
                return most;
            }
            assert!(Instant::now() < end, "{in_sync} of {nodes} nodes in sync");
        }
    }
}

#[tokio::test]
async fn large_object_is_in_memory_once_per_version() {
    const NODES: usize = 30;
    const BYTES: usize = 1 << 20;
    let mut site = Site::start().await;
    let first = site.store.create(&config_map(), object("large", BYTES)).await.unwrap();
    let names = (0..NODES).map(|n| &*format!("node-{n}").leak());
    let nodes: Vec<_> = names.map(|name| tokio::spawn(node(name, site.broker.clone()))).collect();
    let most = site.until_in_sync(NODES, &first).await;
    assert_eq!(most, 1, "{:?}", site.fleet.bodies.numbers());
    let mut changed = object("large", BYTES + 1);
    changed.set_metadata("uid", json!(first.uid));
    let second = site.store.update(&config_map(), changed, first.version).await.unwrap();
    let most = site.until_in_sync(NODES, &second).await;
    let numbers = site.fleet.bodies.numbers();
    assert_eq!((most, numbers.count, numbers.bytes), (1, 0, 0), "{numbers:?}");
    assert!(numbers.shared >= numbers.read, "{numbers:?}");
    nodes.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn update_goes_to_all_nodes_as_one_patch() {
    const NODES: usize = 30;
    let text: String = (0..500).map(|n| format!("parameter-{n}={};", n * 7919 % 1000)).collect();
    let with = |text: &str| {
        let mut object = object("settings", 1);
        object.fields_mut().insert("data".to_owned(), json!({ "x": text }));
        object
    };
    let mut site = Site::start().await;
    let first = site.store.create(&config_map(), with(&text)).await.unwrap();
    let names = (0..NODES).map(|n| &*format!("node-{n}").leak());
    let nodes: Vec<_> = names.map(|name| tokio::spawn(node(name, site.broker.clone()))).collect();
    site.until_in_sync(NODES, &first).await;
    assert_eq!(site.fleet.patches.numbers(), PatchNumbers::default(), "a new object has no base");
    let mut changed = with(&text.replace("parameter-77=", "parameter-77=1"));
    changed.set_metadata("uid", json!(first.uid));
    let second = site.store.update(&config_map(), changed, first.version).await.unwrap();
    site.until_in_sync(NODES, &second).await;
    let numbers = site.fleet.patches.numbers();
    assert_eq!((numbers.made, numbers.shared), (1, NODES as u64 - 1), "{numbers:?}");
    let counters = site.fleet.reconciler.nodes.values().map(|node| node.machine.counters());
    let sent =
        counters.fold((0, 0), |(sent, refused), it| (sent + it.patches_sent, refused + it.patches_refused));
    assert_eq!(sent, (NODES as u64, 0));
    nodes.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A node that connects while the fleet loads its objects has sent its Hello before this event is
/// handled: it would send another one for a new boot id.
#[tokio::test]
async fn embedded_endpoint_keeps_the_announced_boot_id() {
    let mut site = Site::start().await;
    let announced = site.fleet.boot().to_owned();
    let opened = site.events.recv().await.unwrap();
    assert!(matches!(opened, FleetEvent::Open { .. }), "{opened:?}");
    site.fleet.event(opened);
    assert_eq!(site.fleet.boot(), announced);
}
