use serde_json::json;

use super::super::testing::{NAMESPACE, Rig, at, pass};
use super::*;

struct One {
    leader: Leader,
    seen: Option<Seen>,
}

impl One {
    fn new(rig: &Rig, replica: &str) -> Self {
        Self { leader: Leader::new(rig.requests(), NAMESPACE, replica), seen: None }
    }

    /// Steps until the outcome is final.
    async fn look(&mut self) -> bool {
        while self.leader.step(&mut self.seen).await.unwrap() == Duration::ZERO {}
        self.leader.is_leader()
    }
}

#[tokio::test]
async fn of_many_that_begin_together_one_leads() {
    let rig = Rig::start().await;
    let mut all: Vec<One> = (0..8).map(|n| One::new(&rig, &format!("replica-{n}"))).collect();
    let led = futures_util::future::join_all(all.iter_mut().map(One::look)).await;
    assert_eq!(led.iter().filter(|leads| **leads).count(), 1, "{led:?}");
    let again = futures_util::future::join_all(all.iter_mut().map(One::look)).await;
    assert_eq!(again, led);
}

#[tokio::test]
async fn a_leader_that_renews_no_more_is_followed_once_its_time_is_over_by_ones_own_clock() {
    let rig = Rig::start().await;
    let (mut a, mut b) = (One::new(&rig, "a"), One::new(&rig, "b"));
    assert!(a.look().await && !b.look().await);
    // The timestamp of a machine with another clock.
    let lease = rig.get("coordination.k8s.io/v1", "Lease", NAMESPACE, NAME).await.unwrap();
    rig.patch(&lease, json!({"spec": {"renewTime": "2001-01-01T00:00:00.000000Z"}})).await;
    assert!(!b.look().await, "when it says that it was renewed does not count");
    pass(Duration::from_secs(9)).await;
    assert!(a.leader.is_leader() && !b.look().await);
    pass(Duration::from_secs(2)).await;
    assert!(!a.leader.is_leader(), "it stops before another one can begin");
    assert!(!b.look().await);
    pass(Duration::from_secs(2)).await;
    assert!(b.look().await && !a.look().await);
    let lease = rig.get("coordination.k8s.io/v1", "Lease", NAMESPACE, NAME).await.unwrap();
    assert_eq!(
        (at(&lease, "/spec/holderIdentity"), at(&lease, "/spec/leaseTransitions")),
        (&json!("b"), &json!(1))
    );
}

#[tokio::test]
async fn a_leader_that_renews_stays_one() {
    let rig = Rig::start().await;
    let (mut a, mut b) = (One::new(&rig, "a"), One::new(&rig, "b"));
    assert!(a.look().await);
    for _ in 0..6 {
        pass(RENEW).await;
        assert!(a.look().await && !b.look().await);
    }
}

#[tokio::test]
async fn a_lease_that_is_given_back_is_free_at_once() {
    let rig = Rig::start().await;
    let (a, mut b) = (One::new(&rig, "a").leader, One::new(&rig, "b"));
    let leads = a.changed(false);
    let stop = async {
        assert!(leads.await);
        assert!(!b.look().await);
    };
    a.run(stop).await;
    assert!(!a.is_leader());
    assert!(b.look().await);
}

#[tokio::test]
async fn whoever_waits_hears_that_the_time_of_a_leader_is_over() {
    let rig = Rig::start().await;
    let mut a = One::new(&rig, "a");
    assert!(a.look().await);
    pass(SURE).await;
    assert!(!a.leader.changed(true).await);
}
