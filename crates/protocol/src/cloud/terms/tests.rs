use std::time::Duration;

use super::*;
use crate::apply::Totals;
use crate::cloud::testing::{DesiredObjects, machine};
use crate::cloud::{CloudEffect, CloudPhase};
use crate::edge::{EdgeConfig, EdgeEffect, EdgeMachine, EdgePhase};
use crate::fault;
use crate::frame::{Down, Received, Up};
use crate::renewal::{CheckIn, CheckInReason};
use crate::timing::Now;

const ACQUIRED: i64 = 1_795_237_935_165_062;
const CHECK_IN: CheckIn = CheckIn { within: 21_600, reason: CheckInReason::Interval };

fn nothing() -> DesiredObjects {
    DesiredObjects::default()
}

/// Both machines, joined without a link, and what passed between them.
struct Pair {
    edge: EdgeMachine,
    cloud: CloudMachine,
    now: Now,
    random: u64,
    /// Names of the frames of the node since the last look.
    said: Vec<&'static str>,
    /// Renewals that the cloud side applied since the last look.
    renewed: Vec<Renewal>,
    /// The terms that the cloud side knows: those of the last renewal in full.
    terms: Option<u32>,
}

impl Pair {
    fn new(acquired: Option<i64>) -> Self {
        let mut edge = EdgeMachine::new(EdgeConfig::defaults("edge"), Totals::default(), 0, None);
        if let Some(acquired) = acquired {
            edge.set_acquired(acquired);
        }
        edge.restore_parts();
        let mut pair = Self {
            edge,
            cloud: machine(),
            now: Now::ZERO,
            random: 0,
            said: Vec::new(),
            renewed: Vec::new(),
            terms: None,
        };
        pair.connect();
        pair
    }

    fn random(&mut self) -> u64 {
        self.random += 1 << 32;
        self.random
    }

    fn connect(&mut self) {
        self.edge.disconnected();
        let random = self.random();
        self.edge.connected(self.now, 256 << 10, random);
        self.exchange();
    }

    /// Exchanges frames until both sides are silent.
    fn exchange(&mut self) {
        loop {
            let mut was_busy = false;
            while let Some(effect) = self.edge.poll_effect() {
                was_busy = true;
                let random = self.random();
                match effect {
                    EdgeEffect::RenewLease => self.edge.renew(self.now, ACQUIRED, 7, random),
                    EdgeEffect::ReadParts => self.edge.parts_read(self.now, None, random),
                    _ => {}
                }
            }
            while let Some(frame) = self.edge.poll_frame(self.now) {
                was_busy = true;
                self.said.push(frame.name());
                self.cloud.received(self.now, frame, &nothing());
            }
            while let Some(effect) = self.cloud.poll_effect(&nothing()) {
                was_busy = true;
                self.perform(effect);
            }
            while let Some(frame) = self.cloud.poll_frame(self.now, &nothing()) {
                was_busy = true;
                let random = self.random();
                self.edge.received(self.now, received(frame), random);
            }
            if !was_busy {
                return;
            }
        }
    }

    fn perform(&mut self, effect: CloudEffect) {
        match effect {
            CloudEffect::ReadRecords => self.cloud.opened(self.now, Some(Vec::new()), &nothing()),
            CloudEffect::Record(batch) => self.cloud.recorded(self.now, batch.token, true, 0, &nothing()),
            CloudEffect::Renew(renewal) => {
                if let Some(lease) = renewal.clone().into_lease(0) {
                    self.terms = Some(lease.seconds);
                }
                self.renewed.push(renewal);
            }
            _ => {}
        }
    }

    /// Lets the time of the next renewal come.
    fn renew(&mut self) {
        self.now += Duration::from_secs(10);
        let random = self.random();
        self.edge.tick(self.now, random);
        self.exchange();
    }

    fn look(&mut self) -> (Vec<&'static str>, Vec<Renewal>) {
        (std::mem::take(&mut self.said), std::mem::take(&mut self.renewed))
    }
}

fn received(frame: Down) -> Received {
    match frame {
        Down::Welcome(frame) => Received::Welcome(frame),
        Down::Confirm(frame) => Received::Confirm(frame),
        Down::HelloRequest(frame) => Received::HelloRequest(frame),
        Down::Stay(frame) => Received::Stay(frame),
        other => panic!("{} is not expected", other.name()),
    }
}

#[test]
fn hello_renews_the_lease_and_short_frames_repeat_it() {
    let mut pair = Pair::new(Some(ACQUIRED));
    let terms = LeaseTerms { seconds: 40, acquired: ACQUIRED };
    assert_eq!(pair.look(), (vec!["Hello"], vec![Renewal::Hello(terms)]));
    for _ in 0..3 {
        pair.renew();
        assert_eq!(pair.look(), (vec!["Renew"], vec![Renewal::Again]));
    }
    assert_eq!(pair.cloud.counters().leases, 4);
}

#[test]
fn node_and_cloud_side_of_an_older_version_get_no_short_frames() {
    // An older node: it reads no features, so it gets none.
    let mut pair = Pair::new(None);
    assert_eq!(pair.look().0, ["Hello", "Lease"]);
    pair.renew();
    assert_eq!(pair.look().0, ["Lease"]);
    pair.cloud.set_stay(Some(60));
    assert!(pair.cloud.poll_frame(pair.now, &nothing()).is_none(), "it knows no such frame");
    // An older cloud side: it ignores the terms in the Hello, and its Welcome names no features.
    let mut edge = Pair::new(Some(ACQUIRED)).edge;
    edge.disconnected();
    edge.connected(Now::ZERO, 256 << 10, 5 << 32);
    let Some(Up::Hello(hello)) = edge.poll_frame(Now::ZERO) else { panic!("a Hello is due") };
    let welcome = crate::frame::Welcome {
        session: hello.session,
        incarnation: None,
        confirmed: 0,
        pending: 0,
        held: 0,
        register: false,
        features: Vec::new(),
        waiting: Default::default(),
    };
    edge.received(Now::ZERO, Received::Welcome(welcome), 0);
    for _ in 0..2 {
        edge.renew(Now::ZERO, ACQUIRED, 7, 0);
        assert!(matches!(edge.poll_frame(Now::ZERO), Some(Up::Lease(_))));
    }
    assert_eq!(edge.absences_are_understood(), Some(false));
}

/// Changes the terms on the way; the cloud side has to end with those of the node.
fn changed_terms_arrive() -> Result<(), String> {
    let mut pair = Pair::new(Some(ACQUIRED));
    pair.edge.set_frugal(pair.now, true);
    for _ in 0..6 {
        pair.renew();
    }
    match pair.terms {
        Some(240) => Ok(()),
        other => Err(format!("the Lease lasts 240 s, the cloud side knows {other:?}")),
    }
}

#[test]
fn changed_terms_are_stated_in_full() {
    assert_eq!(changed_terms_arrive(), Ok(()));
    let planted = fault::with(Some(Fault::ShortWithoutTerms), changed_terms_arrive);
    assert!(planted.is_err(), "the planted bug is found");
}

/// A renewal in a session without terms, as a hostile node may send it.
fn renewal_without_terms() -> Vec<CloudEffect> {
    let mut cloud = machine();
    crate::cloud::testing::welcome(&mut cloud, crate::cloud::testing::hello("a"), &nothing());
    cloud.received(Now::ZERO, Up::Renew(Renew { session: "a".into() }), &nothing());
    std::iter::from_fn(|| cloud.poll_effect(&nothing())).collect()
}

#[test]
fn renewal_without_terms_is_answered_with_a_hello_request() {
    let renews = |effects: &[CloudEffect]| effects.iter().any(|it| matches!(it, CloudEffect::Renew(_)));
    assert!(!renews(&renewal_without_terms()));
    let planted = fault::with(Some(Fault::RenewalWithoutTerms), renewal_without_terms);
    assert!(renews(&planted), "the planted bug is found");
}

#[test]
fn cloud_side_that_lost_session_or_terms_gets_them_again() {
    let mut pair = Pair::new(Some(ACQUIRED));
    pair.look();
    // Another process, as after a restart behind an external broker.
    pair.cloud = machine();
    pair.renew();
    assert_eq!(pair.look().0, ["Renew", "Hello"]);
    assert_eq!((pair.edge.phase(), pair.cloud.phase()), (EdgePhase::Live, CloudPhase::Live));
    pair.cloud.request_terms();
    pair.exchange();
    assert!(matches!(pair.look().1[..], [Renewal::Hello(_)]));
    pair.renew();
    assert_eq!(pair.look(), (vec!["Renew"], vec![Renewal::Again]));
}

#[test]
fn announced_absence_is_stated_once_and_in_full() {
    let mut pair = Pair::new(Some(ACQUIRED));
    pair.look();
    assert!(pair.edge.announce_absence(pair.now, CHECK_IN, 0));
    pair.exchange();
    let (said, renewed) = pair.look();
    assert_eq!(said, ["Lease"]);
    assert!(matches!(&renewed[..], [Renewal::Full(Lease { check_in: Some(CHECK_IN), .. })]), "{renewed:?}");
    pair.renew();
    assert_eq!(pair.look().0, ["Renew"]);
    pair.edge.disconnected();
    assert!(!pair.edge.announce_absence(pair.now, CHECK_IN, 0), "there is nobody to tell");
}

#[test]
fn request_to_stay_ends_with_its_time_its_session_or_on_request() {
    let mut pair = Pair::new(Some(ACQUIRED));
    assert_eq!(pair.edge.stay_until(), None);
    for (seconds, expected) in [(60, 60), (u64::MAX, 86_400)] {
        pair.cloud.set_stay(Some(seconds));
        pair.exchange();
        assert_eq!(pair.edge.stay_until(), Some(pair.now + Duration::from_secs(expected)));
    }
    pair.cloud.set_stay(None);
    pair.exchange();
    assert_eq!(pair.edge.stay_until(), None);
    pair.cloud.set_stay(None);
    assert!(pair.cloud.poll_frame(pair.now, &nothing()).is_none(), "nothing has changed");
    pair.cloud.set_stay(Some(60));
    pair.exchange();
    pair.connect();
    assert_eq!(pair.edge.stay_until(), None, "the next Welcome repeats it");
    let late = Stay { session: "another".into(), seconds: 60 };
    pair.edge.received(pair.now, Received::Stay(late), 0);
    assert_eq!(pair.edge.stay_until(), None);
}
