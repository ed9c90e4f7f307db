use serde_json::json;

use super::super::testing::{NAMESPACE, Rig, at, pass};
use super::*;

/// Later than any version of the embedded store.
const LATE: u64 = 9_000_000_000_000_000_000;

async fn open(rig: &Rig) -> Incarnation {
    Incarnation::open(rig.requests(), NAMESPACE).await.unwrap()
}

async fn map(rig: &Rig) -> Object {
    rig.get("v1", "ConfigMap", NAMESPACE, NAME).await.unwrap()
}

#[tokio::test]
async fn replicas_that_start_together_agree() {
    let rig = Rig::start().await;
    let (a, b, c) = tokio::join!(open(&rig), open(&rig), open(&rig));
    assert_eq!((a.id(), b.id()), (b.id(), c.id()));
    assert_eq!(open(&rig).await.id(), a.id(), "so does one that starts later");
    assert_eq!(at(&map(&rig).await, "/data/incarnation"), &*a.id());
}

#[tokio::test]
async fn concurrent_replicas_begin_one_new_incarnation() {
    let rig = Rig::start().await;
    let (a, b, c) = (open(&rig).await, open(&rig).await, open(&rig).await);
    let before = a.id();
    a.observe(&LATE.into());
    let reached = ResourceVersion::from(90);
    let (one, other) = tokio::join!(a.begin_new(&reached), b.begin_new(&reached));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one, other);
    assert_ne!(one, before);
    assert_eq!((a.id(), b.id()), (one.clone(), one.clone()));
    assert_eq!(a.newest(), reached, "earlier observations are dropped");
    assert_eq!(c.id(), before);
    assert!(c.refresh().await.unwrap() && !c.refresh().await.unwrap());
    assert_eq!(c.id(), one);
}

#[tokio::test]
async fn another_cluster_is_a_new_incarnation() {
    let rig = Rig::start().await;
    let before = open(&rig).await.id();
    rig.patch(&map(&rig).await, json!({"data": {"cluster": "copied-from-elsewhere"}})).await;
    let after = open(&rig).await.id();
    assert_ne!(after, before);
    assert_eq!(open(&rig).await.id(), after);
}

#[tokio::test]
async fn a_cluster_older_than_recorded_is_a_new_incarnation() {
    let rig = Rig::start().await;
    let before = open(&rig).await.id();
    rig.patch(&map(&rig).await, json!({"data": {"revision": LATE.to_string()}})).await;
    let after = open(&rig).await;
    assert_ne!(after.id(), before);
    assert!(after.newest().is_older_than(&LATE.into()));
}

#[tokio::test]
async fn the_newest_version_is_recorded_periodically_and_only_grows() {
    let rig = Rig::start().await;
    let (a, b) = (open(&rig).await, open(&rig).await);
    let recorded = async || at(&map(&rig).await, "/data/revision").as_str().unwrap().to_owned();
    a.observe(&(LATE + 5).into());
    b.observe(&(LATE + 4).into());
    let first = recorded().await;
    assert!(!a.refresh().await.unwrap());
    assert_eq!(recorded().await, first, "it was written a moment ago");
    pass(WRITE_INTERVAL).await;
    assert!(!a.refresh().await.unwrap());
    assert_eq!(recorded().await, (LATE + 5).to_string());
    assert!(!b.refresh().await.unwrap());
    assert_eq!(recorded().await, (LATE + 5).to_string(), "another replica has observed a newer one");
    assert_eq!(b.newest(), (LATE + 5).into());
}

#[tokio::test]
async fn a_missing_config_map_is_named() {
    let rig = Rig::start().await;
    let incarnation = open(&rig).await;
    rig.delete(&map(&rig).await).await;
    let error = incarnation.refresh().await.unwrap_err().to_string();
    assert!(error.contains("edgesync/edgesync-cloud"), "{error}");
}

#[tokio::test]
async fn an_older_config_map_reveals_a_restored_cluster() {
    let rig = Rig::start().await;
    let one = open(&rig).await;
    let record = one.id();
    assert!(!one.is_replaced(&record).await.unwrap() && !one.is_replaced(&record).await.unwrap());
    assert!(one.is_replaced("before").await.unwrap());
    let mut newer = map(&rig).await;
    newer.set_metadata("resourceVersion", LATE.to_string());
    assert!(!one.is_rolled_back(&newer));
    assert!(one.is_replaced(&record).await.unwrap(), "it has been newer");
    // A new incarnation starts with a new `mark`.
    let other = one.begin_new_unless_changed(&record, &LATE.into()).await.unwrap();
    assert_ne!(other, record);
    assert_eq!(
        one.begin_new_unless_changed(&record, &LATE.into()).await.unwrap(),
        other,
        "it has begun since"
    );
    assert!(!one.is_replaced(&other).await.unwrap() && one.is_replaced(&record).await.unwrap());
    rig.delete(&map(&rig).await).await;
    assert!(one.is_replaced(&other).await.unwrap());
}
