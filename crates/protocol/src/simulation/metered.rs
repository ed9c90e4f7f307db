//! The simulation of a metered link, with faults, and the injected bugs that it must find.

use std::time::Duration;

use super::seeds::Seeds;
use super::timeline::{Random, Simulated};
use super::world::{Link, Setting, World};
use crate::fault::{self, Fault};
use edgesync_object::urgency::Urgency;

const SEEDS: Seeds =
    Seeds { run, count: 400, package: env!("CARGO_PKG_NAME"), one: "simulation::metered::one_seed" };

/// More than a frame with a single object, and than the smallest part of a message, needs.
const ENOUGH: u64 = 20_000;

/// Runs one seed over a link whose bytes grow from time to time, then lets them grow until
/// everything has arrived. The link keeps the order of frames, as MQTT does.
fn run(seed: u64, trace: bool) -> Result<(), String> {
    let setting = Setting::for_seed(seed);
    let chaos = setting.chaos.in_order(10);
    let setting = Setting { chaos, is_old: false, is_cloud_old: false, ..setting };
    let mut world = World::new(seed, setting, trace);
    let mut random = Random(seed ^ 0xfeed);
    let mut link = Link {
        urgency: if random.percent(30) { Urgency::Normal } else { Urgency::Low },
        size: random.percent(30).then_some(3000),
        left: random.percent(90).then(|| random.below(60_000)),
    };
    world.set_link(Some(link));
    for _ in 0..12 {
        world.add_credit(random.below(60_000));
        world.run_chaos()?;
    }
    world.heal();
    for _ in 0..10 {
        world.pass(Duration::from_secs(120))?;
        if world.is_cut() {
            world.connect(0);
        }
    }
    let (cloud, node) = world.waiting();
    if cloud != node {
        return Err(format!("waiting: the cloud says {cloud:?}, the node {node:?}"));
    }
    let left = world.link_terms().and_then(|link| link.left);
    if cloud.credit > 0 && left.is_none_or(|left| left >= ENOUGH) {
        return Err(format!("waiting: {cloud:?}, although {left:?} bytes may come"));
    }
    if world.node_is_in_sync() && !cloud.is_none() {
        return Err(format!("the node says that it is in sync, and {cloud:?} wait"));
    }
    (link.urgency, link.size) = (Urgency::Low, None);
    world.set_link(Some(Link { left: left.map(|left| left + (1 << 40)), ..link }));
    world.run_to_convergence()
}

#[test]
fn metered_link_is_kept_to_under_every_seed() {
    SEEDS.hold();
}

#[test]
fn one_seed() {
    SEEDS.one_holds();
}

#[test]
fn cloud_that_ignores_the_terms_is_found() {
    SEEDS.find(Fault::TermsIgnored);
}

#[test]
fn cloud_that_ignores_the_credit_is_found() {
    SEEDS.find(Fault::CreditIgnored);
}

#[test]
fn credit_that_forgets_frames_on_their_way_is_found() {
    SEEDS.find(Fault::CreditForgetsFlight);
}

#[test]
fn node_that_takes_waiting_objects_for_none_is_found() {
    SEEDS.find(Fault::WaitingIsInSync);
}

/// Returns a world with objects of each urgency, small and larger than a frame, and no credit.
fn world_with_each_urgency() -> World {
    let mut world = World::new(1, Setting::QUIET, false);
    for urgency in ["high", "normal", "low"] {
        world.write(&format!("{urgency}-large"), 40_000);
        world.write(&format!("{urgency}-2"), 2000);
        world.write(&format!("{urgency}-1"), 1000);
    }
    world.set_link(Some(Link { urgency: Urgency::Low, size: None, left: Some(0) }));
    world.connect(0);
    world
}

/// Lets bytes arrive little by little; returns the names in the order of their arrival.
fn order_of_arrival() -> Vec<String> {
    let mut world = world_with_each_urgency();
    let mut order: Vec<String> = Vec::new();
    for turn in 0..100_000 {
        if turn % 200 == 0 {
            world.add_credit(2500);
        }
        // Objects that share the last credit arrive one after the other.
        world.pass(Duration::from_millis(5)).unwrap();
        let new = world.held_names().into_iter().filter(|name| !order.contains(name));
        let new: Vec<String> = new.collect();
        order.extend(new);
        if order.len() == 9 {
            break;
        }
    }
    world.settle();
    assert!(world.converged().is_ok());
    order
}

#[test]
fn urgent_objects_come_first_and_large_ones_last() {
    let expected = [
        "high-1",
        "high-2",
        "high-large",
        "normal-1",
        "normal-2",
        "normal-large",
        "low-1",
        "low-2",
        "low-large",
    ];
    assert_eq!(order_of_arrival(), expected);
    let unordered = fault::with(Some(Fault::UrgencyUnordered), order_of_arrival);
    assert_ne!(unordered, expected, "the bug is not found");
}

#[test]
fn large_object_arrives_over_many_connections_without_a_byte_twice() {
    let mut world = World::new(1, Setting::QUIET, false);
    world.write("large", 50_000);
    world.set_link(Some(Link { urgency: Urgency::Low, size: None, left: Some(0) }));
    for _ in 0..40 {
        world.cut();
        world.add_credit(10_000);
        world.connect(0);
        world.pass(Duration::from_secs(30)).unwrap();
    }
    assert_eq!(world.held(), 1);
    assert!(world.converged().is_ok());
    // Its parts are cut at the ends of the credits.
    assert!(world.traffic().1.bytes < 70_000, "{}", world.traffic().1.bytes);
}

#[test]
fn object_that_may_not_come_waits_and_is_not_pending() {
    let mut world = World::new(1, Setting::QUIET, false);
    for (name, size) in [("high-1", 100), ("normal-1", 100), ("low-1", 100), ("high-2", 5000)] {
        world.write(name, size);
    }
    world.set_link(Some(Link { urgency: Urgency::Normal, size: Some(4000), left: None }));
    world.connect(0);
    world.pass(Duration::from_secs(30)).unwrap();
    let (cloud, node) = world.waiting();
    assert_eq!((cloud.urgency, cloud.size, cloud.credit), (1, 1, 0));
    assert_eq!((node, world.node_is_in_sync()), (cloud, false));
    assert_eq!(world.held_names(), ["high-1", "normal-1"]);
    assert_eq!(world.repeated_reports(), 0, "nothing is announced");
    world.set_link(Some(Link { urgency: Urgency::Low, size: None, left: None }));
    world.settle();
    assert_eq!(world.held(), 4);
}

/// The old object would otherwise be removed at once, and the new one come days later.
#[test]
fn replaced_object_stays_until_its_replacement_may_come() {
    let mut world = World::new(1, Setting::QUIET, false);
    world.write("low-1", 100);
    world.write("low-2", 100);
    world.connect(0);
    world.settle();
    let before = world.held_version("low-1");
    world.set_link(Some(Link { urgency: Urgency::Normal, size: None, left: None }));
    world.pass(Duration::from_secs(30)).unwrap();
    for name in ["low-1", "low-2"] {
        world.delete(name);
    }
    // The cloud serves the node again after both objects are written.
    world.cut();
    world.write("low-1", 100);
    world.connect(0);
    world.pass(Duration::from_secs(30)).unwrap();
    assert_eq!(world.held_names(), ["low-1"], "a removal without a replacement comes");
    assert_eq!((world.held_version("low-1"), world.waiting().0.urgency), (before.clone(), 1));
    world.set_link(Some(Link { urgency: Urgency::Low, size: None, left: None }));
    world.settle();
    assert_ne!(world.held_version("low-1"), before);
    assert_eq!(world.held(), 1);
}

#[test]
fn removals_precede_more_urgent_large_objects() {
    let mut world = World::new(1, Setting::QUIET, false);
    world.write("low-1", 100);
    world.connect(0);
    world.settle();
    world.set_link(Some(Link { urgency: Urgency::Low, size: None, left: Some(0) }));
    world.pass(Duration::from_secs(30)).unwrap();
    world.write("high-large", 40_000);
    world.delete("low-1");
    world.add_credit(3000);
    world.pass(Duration::from_secs(30)).unwrap();
    assert_eq!(world.held(), 0);
}
