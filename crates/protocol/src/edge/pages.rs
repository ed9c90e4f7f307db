//! What the edge tells of its rows page by page: reports of what is not confirmed, and the inventory of
//! the buckets in which the cloud's records differ.

use crate::change::{ObjectRef, Uid};
use crate::digest::{BucketSet, Buckets};
use crate::frame::{Inventory, InventoryRequest, Item, Report, Up};
use crate::timing::Now;
use edgesync_object::ResourceVersion;

use super::{ChangesPage, EdgeEffect, EdgeMachine, EdgeNotice, InventoryPage, Phase};

/// A page-wise answer that is under way.
#[derive(Debug, Default)]
enum Reading {
    #[default]
    Nothing,
    Changes,
    Buckets {
        theirs: Buckets,
    },
    Inventory {
        buckets: BucketSet,
        page: u32,
    },
}

/// What is being read for the cloud.
#[derive(Debug, Default)]
pub(super) struct Pages {
    reading: Reading,
    /// The next page to ask the store for, once the frames before it have left.
    next: Option<EdgeEffect>,
}

impl Pages {
    /// Gives up what is being read.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the next page to ask the store for.
    pub(super) fn next_read(&mut self) -> Option<EdgeEffect> {
        self.next.take()
    }

    fn read(&mut self, reading: Reading, next: EdgeEffect) {
        (self.reading, self.next) = (reading, Some(next));
    }

    fn end(&mut self) {
        self.reading = Reading::Nothing;
    }
}

impl EdgeMachine {
    /// Reports again everything that the cloud has not confirmed.
    pub(super) fn replay(&mut self) {
        if self.confirmed < self.totals.revision && matches!(self.pages.reading, Reading::Nothing) {
            self.pages.read(Reading::Changes, self.read_changes(self.confirmed));
        }
    }

    fn read_changes(&self, after: u64) -> EdgeEffect {
        EdgeEffect::ReadChanges { after, limit: self.page_limit() }
    }

    /// How many full items are sure to fit into a frame: an item has at most about 900 bytes.
    fn page_limit(&self) -> usize {
        (self.max_frame() as usize / 1024).clamp(4, 512)
    }

    /// A page of changes was read.
    pub fn changes_read(&mut self, now: Now, page: ChangesPage) {
        if !matches!(self.pages.reading, Reading::Changes) {
            return;
        }
        let ChangesPage { from, to, entries } = page;
        let (objects, removed) = split(entries, |entry| (entry.uid, entry.version, Some(entry.object)));
        self.report(Report { from, to, objects, removed, ..Report::default() });
        if to < self.totals.revision && to > from {
            self.pages.read(Reading::Changes, self.read_changes(to));
        } else {
            self.pages.end();
        }
        self.await_page(now);
    }

    pub(super) fn inventory_requested(&mut self, now: Now, request: InventoryRequest) {
        match &self.phase {
            Phase::Greeting { session, .. } if *session == request.session => self.greeting_goes_on(now),
            _ => return self.foreign(now),
        }
        self.pages.read(Reading::Buckets { theirs: request.buckets }, EdgeEffect::ReadBuckets);
        self.notice(EdgeNotice::Repairing);
    }

    /// The bucket digests were computed.
    pub fn buckets_read(&mut self, ours: &Buckets) {
        let Reading::Buckets { theirs } = &self.pages.reading else { return };
        let buckets = ours.differing(theirs);
        let next = EdgeEffect::ReadInventory { buckets, cursor: 0, limit: self.page_limit() };
        self.pages.read(Reading::Inventory { buckets, page: 0 }, next);
    }

    /// A page of the inventory was read.
    pub fn inventory_read(&mut self, now: Now, read: InventoryPage) {
        let Reading::Inventory { buckets, page } = self.pages.reading else { return };
        let Phase::Greeting { session, .. } = &self.phase else { return };
        let session = session.clone();
        let (objects, _) = split(read.entries, |entry| (entry.uid, entry.version, Some(entry.object)));
        self.frames.push_back(Up::Inventory(Inventory {
            session,
            page,
            buckets,
            more: read.next.is_some(),
            objects,
        }));
        match read.next {
            Some(cursor) => {
                let next = EdgeEffect::ReadInventory { buckets, cursor, limit: self.page_limit() };
                self.pages.read(Reading::Inventory { buckets, page: page.saturating_add(1) }, next);
            }
            None => self.pages.end(),
        }
        self.await_page(now);
    }

    /// What is waited for is the answer to all pages, the last of which has been made now.
    fn await_page(&mut self, now: Now) {
        let page = self.last_frame();
        match &mut self.phase {
            Phase::Greeting { wait, .. } => wait.frame = page,
            Phase::Live { .. } => {
                if let Some(wait) = self.repeat.wait() {
                    wait.frame = page;
                }
                self.arm_repeat(now);
            }
            Phase::Down | Phase::Settling | Phase::Pausing { .. } => {}
        }
    }

    /// A read could not be answered. It is given up; what it was for is tried again when its answer is
    /// overdue.
    pub fn read_failed(&mut self, now: Now) {
        self.pages.clear();
        self.arm_repeat(now);
    }
}

/// Divides observations into held and removed ones. The last one of a UID counts.
pub(super) fn split<T>(
    observed: Vec<T>,
    parts: impl Fn(T) -> (Uid, Option<ResourceVersion>, Option<ObjectRef>),
) -> (Vec<Item>, Vec<Uid>) {
    let (mut objects, mut removed) = (Vec::with_capacity(observed.len()), Vec::new());
    let mut seen = std::collections::HashSet::new();
    for observed in observed.into_iter().rev() {
        let (uid, version, object) = parts(observed);
        if !seen.insert(uid.clone()) {
            continue;
        }
        match version {
            Some(resource_version) => objects.push(Item { uid, resource_version, object }),
            None => removed.push(uid),
        }
    }
    objects.reverse();
    removed.reverse();
    (objects, removed)
}
