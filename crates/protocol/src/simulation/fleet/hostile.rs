//! A hostile node that sends arbitrary well-formed frames, but only in its own name.

use serde_json::value::to_raw_value;

use crate::change::{RejectReason, Rejected, Uid};
use crate::digest::{BucketSet, Digest, Epoch, MessageDigest};
use crate::frame::{
    DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Hello, Inventory, Item, PartialMessage, Report, Up,
};
use crate::metered::{Credit, MeteredLink};
use crate::patch::{PatchProblem, Unpatched};
use crate::renewal::Lease;
use crate::renewal::{CheckIn, CheckInReason, LeaseTerms, Renew};
use crate::simulation::model::{Thing, object_ref};
use crate::simulation::timeline::Random;
use crate::simulation::world::World;
use crate::upload::{Content, Lane, MAX_SEQ, Upload, UploadItem};
use edgesync_object::ResourceVersion;
use edgesync_object::urgency::Urgency;

/// A random source of hostile frames.
pub(super) struct Hostile {
    random: Random,
    session: String,
}

impl Hostile {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random(seed ^ 0xbad), session: String::new() }
    }

    /// Sends some frames at once.
    pub(super) fn talk(&mut self, world: &mut World) {
        let objects = world.uids();
        for _ in 0..self.random.below(6) {
            world.pretend(&self.frame(&objects));
        }
    }

    fn frame(&mut self, objects: &[Uid]) -> Up {
        match self.random.below(10) {
            0 => self.hello(true, objects),
            1 => self.hello(false, objects),
            2 => self.inventory(objects),
            3 => self.upload(),
            4 => Up::Lease(Lease {
                session: self.session(),
                seconds: u32::MAX,
                acquired: i64::MIN,
                renewed: i64::MAX,
                check_in: Some(CheckIn { within: u32::MAX, reason: CheckInReason::Other }),
            }),
            5 => Up::Renew(Renew { session: self.session() }),
            6 => Up::Credit(Credit { session: self.session(), bytes: self.number(), receipt: self.number() }),
            _ => self.report(objects),
        }
    }

    /// Returns the current session, mostly.
    fn session(&mut self) -> String {
        if self.random.percent(90) { self.session.clone() } else { "another".into() }
    }

    fn number(&mut self) -> u64 {
        match self.random.below(4) {
            0 => u64::MAX,
            1 => self.random.next(),
            _ => self.random.below(100),
        }
    }

    /// Returns a Hello of a new node, or one with claims.
    fn hello(&mut self, is_new: bool, objects: &[Uid]) -> Up {
        self.session = format!("{:08x}", self.random.below(1 << 32));
        let mut claim = || if is_new { 0 } else { self.number() };
        let (revision, confirmed, count, digest, epoch) = (claim(), claim(), claim(), claim(), claim());
        Up::Hello(Hello {
            node: "edge".into(),
            agent: "hostile".into(),
            session: self.session.clone(),
            epoch: Epoch(u128::from(epoch)),
            revision,
            confirmed: (!is_new).then_some(confirmed),
            count,
            digest: Digest(u128::from(digest)),
            incarnation: (!is_new).then(|| "of another cloud".into()),
            max_frame: if is_new { DEFAULT_MAX_FRAME } else { u32::MAX },
            max_object: DEFAULT_MAX_OBJECT,
            partial: self.partial(objects),
            patches: self.random.percent(50),
            lease: (!is_new).then_some(LeaseTerms { seconds: 0, acquired: i64::MAX }),
            metered: self.random.percent(30).then(|| MeteredLink {
                urgency: Urgency::Low,
                size: Some(self.number()).filter(|size| *size > 0),
                credit: Some(self.number()).filter(|credit| credit % 2 == 0),
            }),
        })
    }

    /// Claims to hold a part of a message.
    fn partial(&mut self, objects: &[Uid]) -> Option<Box<PartialMessage>> {
        let Item { uid, resource_version, .. } = self.items(objects).swap_remove(0);
        let total = self.number();
        let digest = MessageDigest(u128::from(self.number()));
        let received = total / (1 + self.random.below(4));
        let partial = PartialMessage { uid, resource_version, total, digest, received };
        self.random.percent(50).then(|| Box::new(partial))
    }

    fn version(&mut self) -> ResourceVersion {
        match self.random.below(6) {
            0 => "not a number".into(),
            1 => "9".repeat(60).as_str().into(),
            // From before the opening of the store, as if it had lost what it issued then.
            2 => (101 + self.random.below(1000)).into(),
            _ => self.random.next().into(),
        }
    }

    /// Returns existing objects and some that do not exist.
    fn items(&mut self, objects: &[Uid]) -> Vec<Item> {
        let item = |n: usize| {
            let known = objects.get(usize::try_from(self.random.below(100)).unwrap()).cloned();
            let uid = known.unwrap_or_else(|| format!("uid-{:x}", self.random.next()).into());
            let object = self.random.percent(80).then(|| object_ref(&format!("object-{n}")));
            Item { uid, resource_version: self.version(), object }
        };
        (0..20).map(item).collect()
    }

    fn report(&mut self, objects: &[Uid]) -> Up {
        let rejected = |item: Item| Rejected {
            uid: item.uid,
            resource_version: item.resource_version,
            reason: RejectReason::Invalid,
            message: "no".repeat(500),
            object: item.object.map(Box::new),
        };
        let unpatched = |item: Item| Unpatched {
            uid: item.uid,
            base: item.resource_version,
            reason: PatchProblem::OtherBase,
        };
        Up::Report(Report {
            session: self.session(),
            from: self.number(),
            to: self.number(),
            objects: self.items(objects),
            removed: self.items(objects).into_iter().map(|item| item.uid).collect(),
            rejected: self.items(objects).into_iter().map(rejected).collect(),
            unpatched: self.items(objects).into_iter().map(unpatched).collect(),
            receiving: Some(self.items(objects).swap_remove(0).uid),
            received: Some(self.number()),
            receipt: self.number(),
        })
    }

    fn inventory(&mut self, objects: &[Uid]) -> Up {
        let mut buckets = BucketSet::default();
        (0..=u8::MAX).for_each(|bucket| buckets.insert(bucket));
        Up::Inventory(Inventory {
            session: self.session(),
            page: u32::from(self.random.percent(20)),
            buckets,
            more: self.random.percent(20),
            objects: self.items(objects),
        })
    }

    fn upload(&mut self) -> Up {
        let thing = Thing { key: "hostile".into(), made: self.random.below(1000), text: String::new() };
        let thing = to_raw_value(&thing).unwrap();
        let content = to_raw_value(&Content::Event(&thing)).unwrap();
        let seq = if self.random.percent(90) { self.random.below(100) } else { MAX_SEQ };
        Up::Upload(Upload {
            session: self.session(),
            outbox: self.random.below(3).to_string(),
            lane: Lane::Events,
            confirmed: self.random.below(100),
            items: vec![UploadItem { seq, content }],
        })
    }
}
