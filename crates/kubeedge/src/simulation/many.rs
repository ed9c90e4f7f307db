//! Scenarios with 10,000 objects: overflowing limits and the cost of a new session.

use std::time::Duration;

use super::objects::{self, NAMESPACE, NODE};
use super::world::{Chaos, Disk, World};
use crate::{BridgeConfig, FetchRule};
use edgesync_protocol::simulation::timeline::Simulated;
use edgesync_protocol::timing::Now;
use serde_json::{Value, json};

/// The ConfigMaps of the cluster.
const OBJECTS: usize = 10_000;
/// The number of them that one Pod references.
const OF_A_POD: usize = 100;
/// The longest time until a device has all of them: CloudCore sends the next one after the
/// acknowledgement of the last one, which takes up to 60 ms here.
const FILL: u64 = 700;

fn pods() -> impl Iterator<Item = Value> {
    (0..OBJECTS / OF_A_POD).map(|n| {
        let volume = |at: usize| json!({"name": format!("v{at}"), "configMap": {"name": format!("c{at}")}});
        let volumes: Vec<_> = (n * OF_A_POD..(n + 1) * OF_A_POD).map(volume).collect();
        let mut pod = objects::pod(&format!("pod-{n}"), 0, [0, 0, 0], 0, 20);
        pod["spec"] = json!({"nodeName": NODE, "containers": [], "volumes": volumes});
        pod
    })
}

/// Returns a cluster with the ConfigMaps, and a node with these rules and the default times.
fn cluster(dynamic: bool, fetch: &[&str]) -> World {
    let mut world = World::new(1, Chaos { dynamic, ..Chaos::none() }, false);
    world.config = config(&world, fetch);
    world.stop_agent();
    world.start_agent();
    let now = world.time.now;
    for n in 0..OBJECTS {
        world.cloud.apply(now, objects::config("ConfigMap", &format!("c{n}"), 0, 20));
    }
    world
}

fn config(world: &World, fetch: &[&str]) -> BridgeConfig {
    BridgeConfig {
        fetch: fetch.iter().map(|rule| FetchRule::parse(rule).unwrap()).collect(),
        watch: Vec::new(),
        verify_interval: Duration::from_secs(24 * 3600),
        ..world.config.clone()
    }
}

/// Returns such a world with Pods that reference all of them, and everything held.
fn full(dynamic: bool) -> World {
    let mut world = cluster(dynamic, &[]);
    world.connect();
    until(&mut world, 60, "the node is there", |world| world.cloud.object("node", "", NODE).is_some());
    let now = world.time.now;
    for pod in pods() {
        world.cloud.apply(now, pod);
    }
    all_come(&mut world);
    pass(&mut world, 60);
    world
}

fn pass(world: &mut World, seconds: u64) {
    world.pass(Duration::from_secs(seconds)).unwrap();
}

/// Advances time until the condition holds, at most so many seconds, and returns the time it took.
fn until(world: &mut World, seconds: u64, what: &str, is_so: impl Fn(&World) -> bool) -> Now {
    let from = world.time.now;
    while !is_so(world) {
        let waits = world.time.now - from;
        assert!(waits < Duration::from_secs(seconds), "{what}: not in {waits:?}, {} held", held(world));
        world.pass(Duration::from_millis(100)).unwrap();
    }
    world.time.now - from
}

fn held(world: &World) -> usize {
    world.disk.db.totals().count as usize
}

fn is_in_sync(world: &World) -> bool {
    world.agent.as_ref().is_some_and(|agent| agent.machine.in_sync())
}

/// Returns whether each ConfigMap of the cluster is held.
fn has_all(world: &World) -> bool {
    held(world) >= OBJECTS
        && world.cloud.cluster.all().filter(|object| object["kind"] == "ConfigMap").all(|object| {
            object["metadata"]["uid"].as_str().is_some_and(|uid| world.disk.db.version(uid).is_some())
        })
}

/// Waits until all objects have arrived, without an earlier claim of being in sync. Returns the
/// times of the last object and of the claim.
fn all_come(world: &mut World) -> (Now, Now) {
    let from = world.time.now;
    let mut there = None;
    while !(has_all(world) && is_in_sync(world)) {
        assert!(!is_in_sync(world) || pods_are_new(world), "in sync with {} held", held(world));
        if there.is_none() && has_all(world) {
            there = Some(world.time.now - from);
        }
        assert!(world.time.now < from + Duration::from_secs(FILL), "{} held", held(world));
        world.pass(Duration::from_millis(100)).unwrap();
    }
    let said = world.time.now - from;
    (there.unwrap_or(said), said)
}

/// Returns whether CloudCore has not sent all Pods yet, which the node cannot count.
fn pods_are_new(world: &World) -> bool {
    let is_told =
        |pod: &Value| pod["metadata"]["uid"].as_str().is_some_and(|uid| world.disk.db.version(uid).is_some());
    !world.cloud.cluster.all().filter(|object| object["kind"] == "Pod").all(is_told)
}

fn lose_database(world: &mut World) {
    world.stop_agent();
    world.replace_disk(Disk::new(99));
    world.start_agent();
    world.connect();
}

#[test]
fn pod_references_need_no_dynamic_controller() {
    let world = full(false);
    assert!(has_all(&world));
}

#[test]
fn pod_references_return_to_the_last_object() {
    let mut world = full(true);
    lose_database(&mut world);
    let (there, said) = all_come(&mut world);
    println!("lost database, no rule: all there after {there:?}, in sync after {said:?}");
}

#[test]
fn exact_rules_need_no_dynamic_controller() {
    let rules: Vec<_> = (0..OBJECTS).map(|n| format!("{NAMESPACE}/configmap/c{n}")).collect();
    let mut world = cluster(false, &rules.iter().map(String::as_str).collect::<Vec<_>>());
    world.connect();
    all_come(&mut world);
    pass(&mut world, 30);
    lose_database(&mut world);
    let (there, said) = all_come(&mut world);
    println!("lost database, 10,000 rules: all there after {there:?}, in sync after {said:?}");
}

#[test]
fn in_sync_after_a_list_waits_for_the_rows() {
    let mut world = cluster(true, &["lab/configmap/*"]);
    world.connect();
    all_come(&mut world);
    let now = world.time.now;
    for pod in pods() {
        world.cloud.apply(now, pod);
    }
    pass(&mut world, 60);
    lose_database(&mut world);
    let (there, said) = all_come(&mut world);
    println!("lost database, a rule: all there after {there:?}, in sync after {said:?}");
    assert!(said <= there + Duration::from_secs(1), "{there:?} {said:?}");
}

#[test]
fn a_rule_that_was_added_leads_to_its_list() {
    for starts_again in [true, false] {
        let mut world = cluster(true, &["lab/configmap/c1"]);
        world.connect();
        until(&mut world, 60, "in sync", |world| held(world) > 0 && is_in_sync(world));
        pass(&mut world, 30);
        let rules = config(&world, &["lab/configmap/c1", "lab/configmap/*"]);
        world.config = rules.clone();
        if starts_again {
            world.stop_agent();
            world.start_agent();
            world.connect();
        } else {
            let at = world.moment();
            world.agent.as_mut().unwrap().bridge.set_config(at, rules);
            world.pass(Duration::from_millis(1)).unwrap();
        }
        let (there, said) = all_come(&mut world);
        println!("a rule is added: all there after {there:?}, in sync after {said:?}");
        assert!(said < Duration::from_secs(30), "{said:?}");
    }
}

#[test]
fn a_cloudcore_that_is_started_again_costs_no_questions() {
    let mut world = full(true);
    lose_database(&mut world);
    all_come(&mut world);
    // Sooner than the next renewal of the Lease.
    pass(&mut world, 1);
    for wait in [1, 600] {
        world.bytes = [0; 2];
        let asked = world.agent.as_ref().unwrap().bridge.counters().asked;
        world.cloud.restart(world.time.now);
        pass(&mut world, 1);
        world.connect();
        until(&mut world, 30, "in sync", is_in_sync);
        pass(&mut world, 3);
        let [up, down] = world.bytes;
        println!("CloudCore was started again: {up} bytes up, {down} down");
        assert_eq!(world.agent.as_ref().unwrap().bridge.counters().asked, asked);
        assert!(up <= 720 + 2000 && down <= 4000, "{up} up, {down} down");
        pass(&mut world, wait);
    }
}

#[test]
fn a_reconnect_with_nothing_changed_costs_no_more_than_edgecore() {
    let mut world = full(true);
    world.cut();
    world.bytes = [0; 2];
    pass(&mut world, 1);
    world.connect();
    until(&mut world, 1, "in sync", is_in_sync);
    pass(&mut world, 1);
    let [up, down] = world.bytes;
    println!("reconnect: {up} bytes up, {down} down");
    assert!(up <= 720 && down <= 129, "{up} up, {down} down");
}
