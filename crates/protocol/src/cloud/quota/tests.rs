//! A hostile node against its machine with the default limits.

use crate::change::Uid;
use crate::cloud::testing::{DesiredObjects, hello, machine, welcome};
use crate::cloud::{CloudConfig, CloudEffect, CloudMachine, CloudPhase};
use crate::digest::{BucketSet, Digest};
use crate::fault::{self, Fault};
use crate::frame::{Down, Hello, Inventory, Item, Report, Up};
use crate::timing::Now;
use edgesync_object::ObjectRef;

/// The items in a node's frame: as many as fit into 256 KiB with names.
const PAGE: u64 = 2000;

fn nothing() -> DesiredObjects {
    DesiredObjects::default()
}

fn object(name: &str) -> ObjectRef {
    let (api_version, kind) = ("v1".into(), "ConfigMap".into());
    ObjectRef { api_version, kind, namespace: "nobody".into(), name: name.into() }
}

/// Returns objects that were never sent to the node.
fn invented(page: u64) -> Vec<Item> {
    let item = |number: u64| {
        let name = format!("invented-{}", page * PAGE + number);
        Item { uid: name.as_str().into(), resource_version: 1.into(), object: Some(object(&name)) }
    };
    (0..PAGE).map(item).collect()
}

fn report(from: u64, objects: Vec<Item>, removed: Vec<Uid>) -> Up {
    Up::Report(Report { session: "s".into(), from, to: from + 1, objects, removed, ..Report::default() })
}

/// Returns a Hello of a node that claims to hold `count` objects.
fn claims(session: &str, count: u64) -> Up {
    let Up::Hello(plain) = hello(session) else { unreachable!() };
    Up::Hello(Hello { count, digest: Digest(7), revision: 1, confirmed: Some(0), ..plain })
}

/// Stores all batches and returns the size of the largest one, and of all.
fn stored(cloud: &mut CloudMachine) -> (usize, usize) {
    let (mut largest, mut sum) = (0, 0);
    while let Some(effect) = cloud.poll_effect(&nothing()) {
        match effect {
            CloudEffect::ReadRecords => cloud.opened(Now::ZERO, Some(Vec::new()), &nothing()),
            CloudEffect::Record(batch) => {
                let entries = batch.put.len() + batch.remove.len();
                (largest, sum) = (largest.max(entries), sum + batch.put.len());
                cloud.recorded(Now::ZERO, batch.token, true, 0, &nothing());
            }
            _ => {}
        }
    }
    (largest, sum)
}

/// Returns the reason of the next Hello request.
fn refusal(cloud: &mut CloudMachine) -> Option<String> {
    let mut frames = std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, &nothing()));
    frames.find_map(|frame| match frame {
        Down::HelloRequest(request) => Some(request.reason),
        _ => None,
    })
}

/// Reports 100,000 invented objects; returns the number of records and the reason that the node
/// receives.
fn invents() -> (usize, Option<String>) {
    let mut cloud = machine();
    welcome(&mut cloud, hello("s"), &nothing());
    let (mut records, mut claimed) = (0, None);
    for page in 0..50 {
        cloud.received(Now::ZERO, report(page, invented(page), Vec::new()), &nothing());
        records += stored(&mut cloud).1;
        claimed = claimed.or(refusal(&mut cloud));
    }
    (records, claimed)
}

#[test]
fn unknown_objects_become_records_up_to_the_quota() {
    let (records, claimed) = invents();
    assert_eq!(records, 20_000);
    let claimed = claimed.unwrap();
    assert!(claimed.contains("20000 objects") && claimed.contains("sync.max_unknown"), "{claimed}");
    let (records, claimed) = fault::with(Some(Fault::NoQuota), invents);
    assert_eq!((records, claimed), (100_000, None), "the planted bug is found");
}

#[test]
fn a_refused_node_learns_the_first_reason() {
    let mut cloud = machine();
    welcome(&mut cloud, hello("s"), &nothing());
    for page in 0..50 {
        cloud.received(Now::ZERO, report(page, invented(page), Vec::new()), &nothing());
        stored(&mut cloud);
    }
    let claimed = refusal(&mut cloud).unwrap();
    assert!(claimed.contains("sync.max_unknown"), "{claimed}");
}

#[test]
fn no_transaction_grows_with_a_burst_of_a_node() {
    let mut cloud = machine();
    welcome(&mut cloud, hello("s"), &nothing());
    for page in 0..9 {
        cloud.received(Now::ZERO, report(page, invented(page), Vec::new()), &nothing());
    }
    let (largest, sum) = stored(&mut cloud);
    assert_eq!(sum as u64, 9 * PAGE);
    assert!(largest <= 1024, "{largest} changes in one transaction");
    assert_eq!(cloud.confirmed(), 9);
}

/// A Confirm of the first parts would let the node forget changes of which no record exists.
#[test]
fn nothing_is_confirmed_before_all_parts_are_stored() {
    let mut cloud = machine();
    welcome(&mut cloud, hello("s"), &nothing());
    for page in 0..2 {
        cloud.received(Now::ZERO, report(page, invented(page), Vec::new()), &nothing());
    }
    let (mut left, mut confirmed) = (2 * PAGE, Vec::new());
    while let Some(effect) = cloud.poll_effect(&nothing()) {
        let CloudEffect::Record(batch) = effect else { continue };
        left -= batch.put.len() as u64;
        cloud.recorded(Now::ZERO, batch.token, true, 0, &nothing());
        confirmed.push((left, cloud.confirmed()));
    }
    assert!(confirmed.len() >= 4, "in parts: {confirmed:?}");
    let (last, parts) = confirmed.split_last().unwrap();
    assert!(parts.iter().all(|(left, confirmed)| *left > 0 && *confirmed == 0), "{parts:?}");
    assert_eq!(*last, (0, 2));
}

#[test]
fn unrecorded_objects_are_not_removed() {
    let mut cloud = machine();
    welcome(&mut cloud, hello("s"), &nothing());
    // A batch is at the store: later changes are gathered.
    cloud.received(Now::ZERO, report(0, invented(0), Vec::new()), &nothing());
    for page in 1..100 {
        let removed = invented(page).into_iter().map(|item| item.uid).collect();
        cloud.received(Now::ZERO, report(page, Vec::new(), removed), &nothing());
    }
    let (mut removals, mut batches) = (0, 0);
    while let Some(effect) = cloud.poll_effect(&nothing()) {
        if let CloudEffect::Record(batch) = effect {
            (removals, batches) = (removals + batch.remove.len(), batches + 1);
            cloud.recorded(Now::ZERO, batch.token, true, 0, &nothing());
        }
    }
    assert_eq!(removals, 0, "in {batches} batches");
    assert_eq!(cloud.confirmed(), 100);
}

/// Sends pages of an inventory until a refusal; returns the number of accepted ones.
fn pages(cloud: &mut CloudMachine, objects: impl Fn(u64) -> Vec<Item>) -> u64 {
    for page in 0..400 {
        let (session, buckets) = ("s".into(), BucketSet::default());
        let number = u32::try_from(page).unwrap();
        let inventory = Inventory { session, page: number, buckets, more: true, objects: objects(page) };
        cloud.received(Now::ZERO, Up::Inventory(inventory), &nothing());
        if refusal(cloud).is_some() {
            return page;
        }
    }
    400
}

#[test]
fn an_inventory_is_bounded_by_known_objects_not_by_claims() {
    let repeated: fn(u64) -> Vec<Item> = |_| invented(0);
    for objects in [invented, repeated] {
        let mut cloud = machine();
        cloud.received(Now::ZERO, claims("s", 1_000_000), &nothing());
        stored(&mut cloud);
        cloud.tick(CloudConfig::defaults().answer_timeout, &nothing());
        assert_eq!(cloud.phase(), CloudPhase::Repairing);
        refusal(&mut cloud);
        let taken = pages(&mut cloud, objects);
        assert!(taken * PAGE <= 20_000, "{taken} pages");
        assert_eq!(cloud.phase(), CloudPhase::Offline);
    }
}

#[test]
fn reports_that_wait_for_the_records_are_bounded_in_bytes() {
    let mut cloud = machine();
    cloud.received(Now::ZERO, claims("s", 1), &nothing());
    for page in 0..60 {
        cloud.received(Now::ZERO, report(page, invented(page), Vec::new()), &nothing());
    }
    let (_, sum) = stored(&mut cloud);
    // An item is about 100 bytes.
    assert!(sum <= 10 * (1 << 20) / 1000, "{sum} reported objects waited");
}
