//! Single scenarios over a good link, each with the exact outcome that the guarantees promise.

use std::time::Duration;

use super::objects::{self, NAMESPACE};
use super::world::{Chaos, Disk, MAX_OBJECT, World};
use edgesync_protocol::simulation::timeline::Simulated;

/// Returns a node that holds a Pod, its references, objects that rules match, and custom resources.
fn in_sync(dynamic: bool) -> World {
    let mut world = World::new(1, Chaos { dynamic, ..Chaos::none() }, false);
    world.connect();
    settle(&mut world, 60);
    let now = world.time.now;
    for n in 0..6 {
        world.cloud.apply(now, objects::config("ConfigMap", &format!("config-{n}"), n, 20));
    }
    world.cloud.apply(now, objects::config("Secret", "secret-0", 0, 20));
    world.cloud.apply(now, objects::config("ConfigMap", "fetched", 0, 20));
    world.cloud.apply(now, objects::pod("pod-0", 0, [0, 1, 2], 0, 20));
    for n in 0..50 {
        world.cloud.apply(now, objects::widget(&format!("widget-{n}"), n, 20));
    }
    // Objects created only now are queried again after a while.
    settle(&mut world, 900);
    world
}

/// Advances time until convergence, at most so many seconds.
fn settle(world: &mut World, seconds: u64) {
    for _ in 0..seconds {
        world.pass(Duration::from_secs(1)).unwrap();
        if world.converged().is_ok() {
            return;
        }
    }
    world.converged().unwrap();
}

fn lose_database(world: &mut World) {
    world.stop_agent();
    world.replace_disk(Disk::new(99));
    world.start_agent();
    world.connect();
}

#[test]
fn a_lost_database_is_refilled_at_once() {
    let mut world = in_sync(true);
    let before = world.disk.db.held();
    assert!(before.len() > 50, "{}", before.len());
    lose_database(&mut world);
    settle(&mut world, 5);
    let lost = before.into_iter().filter(|(uid, _)| world.disk.db.version(uid).is_none());
    let lost = lost.map(|held| world.bodies[&held].object.clone());
    // The Node arrives when it changes.
    let lost: Vec<_> = lost.filter(|object| &*object.kind != "Node").collect();
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn named_objects_return_without_the_dynamic_controller() {
    let mut world = in_sync(false);
    lose_database(&mut world);
    settle(&mut world, 30);
    let uid = world.cloud.object("configmap", NAMESPACE, "fetched").unwrap()["metadata"]["uid"].clone();
    assert!(world.disk.db.held().contains_key(uid.as_str().unwrap()));
}

#[test]
fn a_config_map_recreated_offline_is_right_within_seconds() {
    for dynamic in [true, false] {
        let mut world = in_sync(dynamic);
        world.cut();
        let now = world.time.now;
        world.cloud.recreate(now, objects::config("ConfigMap", "config-1", 77, 20));
        world.cloud.recreate(now, objects::pod("pod-0", 1, [1, 3, 4], 0, 20));
        world.connect();
        settle(&mut world, 15);
    }
}

#[test]
fn an_object_that_cannot_be_stored_blocks_no_others() {
    let mut world = in_sync(true);
    let now = world.time.now;
    world.cloud.apply(now, objects::widget("too-large", 0, MAX_OBJECT));
    world.cloud.apply(now, objects::widget("bad..name", 0, 20));
    let uid = world.cloud.apply(now, objects::widget("good", 0, 20));
    world.pass(Duration::from_secs(1)).unwrap();
    assert!(world.disk.db.held().contains_key(uid.as_str()));
    settle(&mut world, 5);
}

#[test]
fn a_full_store_withholds_acknowledgements_and_recovers() {
    let mut world = in_sync(true);
    world.full_until = world.time.now + Duration::from_secs(7);
    let acknowledged = world.acknowledged.len();
    let now = world.time.now;
    world.cloud.apply(now, objects::widget("late", 0, 20));
    world.pass(Duration::from_secs(4)).unwrap();
    assert_eq!(world.acknowledged.len(), acknowledged);
    settle(&mut world, 60);
}
