//! One compromised node beside 200 good ones.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::hostile::crowd::{Crowd, endpoint};
use crate::hostile::intruder::{self, Attack, Deeds, INVENTED, Intruder, NAMESPACE, NODE};
use edgesync_testkit::site::fleet::Fleet;
use edgesync_testkit::site::{Cloud, PATIENCE, Site, config_map};
use edgesync_testkit::timing::{assert_within, is_within};

/// Recorded objects that the cloud side has not given to a node: the default of `sync.max_unknown`.
const MAX_UNKNOWN: u64 = 20_000;
/// Maximum memory of the cloud side for one hostile node, in KiB, with all messages in flight to
/// it.
const GROWTH: u64 = 64 << 10;
/// Minimum number of invented objects.
const OBJECTS: u64 = 100_000;
/// Changes without an attack, and the minimum during an attack.
const CHANGES: u32 = 8;
/// Maximum delay of a change beyond ten times the usual: slack for a busy machine and an allowed
/// burst.
const LATER: Duration = Duration::from_secs(10);

/// Returns whether the intruder has invented enough and was refused with a reason.
fn refused(deeds: &Deeds) -> bool {
    deeds.invented >= OBJECTS && deeds.reasons.iter().any(|reason| reason.contains("raise sync.max_unknown"))
}

/// Measures the good nodes beside these attacks, for some changes and until the intruder has done
/// enough.
async fn beside(attacks: &'static [Attack], enough: fn(&Deeds) -> bool) -> (Fleet, Site) {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |settings| {
        settings.remove("sync.resend_min").remove("sync.resend_max");
    })
    .await;
    let endpoint = endpoint(&fleet.cloud, &site.path("pki"));
    let mut crowd = Crowd::gather(&fleet.cloud, &endpoint, config_map(1)).await;
    let mut usual = Duration::ZERO;
    for _ in 0..CHANGES {
        usual += crowd.change().await / CHANGES;
    }
    let before = fleet.cloud.process.resident();
    let intruder = Intruder::start(endpoint, attacks);
    let (mut changes, mut slowest) = (0, Duration::ZERO);
    let begun = Instant::now();
    while changes < CHANGES || !enough(&intruder.deeds()) {
        slowest = slowest.max(crowd.change().await);
        changes += 1;
        let is_timely = is_within(begun.elapsed(), 2 * PATIENCE);
        assert!(is_timely, "after {changes} changes: {:?}", intruder.deeds());
    }
    drop(intruder);
    assert_within(slowest, usual * 10 + LATER);
    let grown = fleet.cloud.process.resident_peak().saturating_sub(before);
    assert!(grown < GROWTH, "the cloud side has grown by {grown} KiB");
    crowd.part().await;
    (fleet, site)
}

/// Asserts that the intruder was refused and that its invented objects stay within the quota.
async fn assert_intruder_was_refused(cloud: &Cloud) {
    let path = "/apis/reliablesyncs.kubeedge.io/v1alpha1/namespaces";
    let path = format!("{path}/{NAMESPACE}/objectsyncs?limit=1");
    let list: Value = cloud.client().get(&path).await.unwrap();
    let first = list["items"].as_array().unwrap().len() as u64;
    let recorded = first + list["metadata"]["remainingItemCount"].as_u64().unwrap_or_default();
    assert!(recorded <= MAX_UNKNOWN, "{recorded} records of invented objects");
    let refusals = cloud.counters(NODE).await.over_quota;
    let metrics = cloud.client().text("/metrics").await.unwrap();
    let counted = format!("\nedgesync_cloud_quota_refusals_total {refusals}\n");
    assert!(refusals > 0 && metrics.contains(&counted), "{refusals} refusals: {metrics}");
    let namespace = cloud.client().get::<Value>(&format!("/api/v1/namespaces/{NAMESPACE}")).await;
    assert_eq!(namespace.unwrap_err().status().unwrap().code, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_floods_invented_objects_slows_no_others() {
    const ATTACKS: &[Attack] = &[
        Attack { claims: 0, invents: 0, frames: 40, frame: intruder::words },
        Attack { claims: 0, invents: 0, frames: 40, frame: intruder::uploads },
        Attack { claims: 0, invents: 0, frames: 2000, frame: intruder::questions },
        Attack { claims: 0, invents: INVENTED, frames: 1000, frame: intruder::reports },
    ];
    let (fleet, _site) = beside(ATTACKS, refused).await;
    assert_intruder_was_refused(&fleet.cloud).await;
    let bad = fleet.cloud.bad_frames().await;
    assert!(bad["too_large"] > 0 && bad["invalid"] > 0, "{bad:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_an_endless_inventory_slows_no_others() {
    let (fleet, _site) = beside(
        &[Attack { claims: 1_000_000, invents: INVENTED, frames: 1000, frame: intruder::inventories }],
        refused,
    )
    .await;
    assert_intruder_was_refused(&fleet.cloud).await;
    fleet.cloud.process.logged("reports more objects than it was sent", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_expensive_frames_slows_no_others() {
    let attack = &[Attack { claims: 0, invents: 1, frames: 2000, frame: intruder::removals }];
    beside(attack, |deeds| deeds.invented > 40).await;
}
