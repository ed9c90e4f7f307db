use serde_json::json;

use super::super::testing::{NAMESPACE, Rig, at, pass};
use super::*;

struct Candidate {
    leader: Leader,
    observed: Option<ObservedLease>,
}

impl Candidate {
    fn new(rig: &Rig, replica: &str) -> Self {
        Self { leader: Leader::new(rig.requests(), NAMESPACE, replica), observed: None }
    }

    /// Steps until the outcome is final.
    async fn elect(&mut self) -> bool {
        while self.leader.attempt(&mut self.observed).await.unwrap() == Duration::ZERO {}
        self.leader.is_leader()
    }
}

#[tokio::test]
async fn one_of_many_candidates_leads() {
    let rig = Rig::start().await;
    let mut all: Vec<Candidate> = (0..8).map(|n| Candidate::new(&rig, &format!("replica-{n}"))).collect();
    let led = futures_util::future::join_all(all.iter_mut().map(Candidate::elect)).await;
    assert_eq!(led.iter().filter(|leads| **leads).count(), 1, "{led:?}");
    let again = futures_util::future::join_all(all.iter_mut().map(Candidate::elect)).await;
    assert_eq!(again, led);
}

#[tokio::test]
async fn an_expired_leader_is_replaced_by_the_observers_clock() {
    let rig = Rig::start().await;
    let (mut a, mut b) = (Candidate::new(&rig, "a"), Candidate::new(&rig, "b"));
    assert!(a.elect().await && !b.elect().await);
    // The timestamp of a machine with another clock.
    let lease = rig.get("coordination.k8s.io/v1", "Lease", NAMESPACE, NAME).await.unwrap();
    rig.patch(&lease, json!({"spec": {"renewTime": "2001-01-01T00:00:00.000000Z"}})).await;
    assert!(!b.elect().await, "when it says that it was renewed does not count");
    pass(Duration::from_secs(9)).await;
    assert!(a.leader.is_leader() && !b.elect().await);
    pass(Duration::from_secs(2)).await;
    assert!(!a.leader.is_leader(), "it stops before another one can begin");
    assert!(!b.elect().await);
    pass(Duration::from_secs(2)).await;
    assert!(b.elect().await && !a.elect().await);
    let lease = rig.get("coordination.k8s.io/v1", "Lease", NAMESPACE, NAME).await.unwrap();
    assert_eq!(
        (at(&lease, "/spec/holderIdentity"), at(&lease, "/spec/leaseTransitions")),
        (&json!("b"), &json!(1))
    );
}

#[tokio::test]
async fn a_leader_that_renews_stays_one() {
    let rig = Rig::start().await;
    let (mut a, mut b) = (Candidate::new(&rig, "a"), Candidate::new(&rig, "b"));
    assert!(a.elect().await);
    for _ in 0..6 {
        pass(RENEW_INTERVAL).await;
        assert!(a.elect().await && !b.elect().await);
    }
}

#[tokio::test]
async fn a_released_lease_is_free_at_once() {
    let rig = Rig::start().await;
    let (a, mut b) = (Candidate::new(&rig, "a").leader, Candidate::new(&rig, "b"));
    let leads = a.changed(false);
    let stop = async {
        assert!(leads.await);
        assert!(!b.elect().await);
    };
    a.run(stop).await;
    assert!(!a.is_leader());
    assert!(b.elect().await);
}

#[tokio::test]
async fn expiry_of_leadership_wakes_waiters() {
    let rig = Rig::start().await;
    let mut a = Candidate::new(&rig, "a");
    assert!(a.elect().await);
    pass(LEADER_TIMEOUT).await;
    assert!(!a.leader.changed(true).await);
}
