//! Pages of the edge's rows: reports of unconfirmed changes, and the inventory of the buckets in
//! which the cloud's records differ.

use crate::change::{ObjectRef, Uid};
use crate::digest::{BucketSet, Buckets};
use crate::frame::{Inventory, InventoryRequest, Item, Report, Up};
use crate::timing::Now;
use edgesync_object::ResourceVersion;

use super::{ChangesPage, EdgeEffect, EdgeMachine, EdgeNotice, InventoryPage, Phase};

/// The paged answer in progress.
#[derive(Debug, Default)]
enum Reading {
    #[default]
    Nothing,
    /// Changes after this revision.
    Changes {
        after: u64,
    },
    Buckets {
        theirs: Buckets,
    },
    Inventory {
        buckets: BucketSet,
        page: u32,
    },
}

/// The state of the paged reads for the cloud.
#[derive(Debug, Default)]
pub(super) struct Pages {
    reading: Reading,
    /// The next page to read, after the frames before it have left.
    next: Option<EdgeEffect>,
}

impl Pages {
    /// Aborts the read in progress.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the next page to read.
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
    /// Reports all unconfirmed changes again.
    pub(super) fn replay(&mut self) {
        if self.confirmed < self.totals.revision && matches!(self.pages.reading, Reading::Nothing) {
            self.read_changes(self.confirmed);
        }
    }

    fn read_changes(&mut self, after: u64) {
        let next = EdgeEffect::ReadChanges { after, limit: self.page_limit() };
        self.pages.read(Reading::Changes { after }, next);
    }

    /// Moves a read that has not started behind the changes confirmed meanwhile.
    pub(super) fn skip_confirmed(&mut self) {
        let Some(EdgeEffect::ReadChanges { after, .. }) = &self.pages.next else { return };
        if *after < self.confirmed {
            self.pages.clear();
            self.replay();
        }
    }

    /// Returns the number of full items that fit into a frame: an item has at most about 900 bytes.
    fn page_limit(&self) -> usize {
        (self.max_frame() as usize / 1024).clamp(4, 512)
    }

    /// Handles a page of changes.
    pub fn changes_read(&mut self, now: Now, page: ChangesPage) {
        if !matches!(self.pages.reading, Reading::Changes { .. }) {
            return;
        }
        let ChangesPage { from, to, entries } = page;
        let (objects, removed) = split(entries, |entry| (entry.uid, entry.version, Some(entry.object)));
        self.report(Report { from, to, objects, removed, ..Report::default() });
        let next = to.max(self.confirmed);
        if next < self.totals.revision && to > from {
            self.read_changes(next);
        } else {
            self.pages.end();
        }
        self.await_page(now);
    }

    /// Handles a read of changes after a revision before the start of the journal. They were
    /// confirmed after the read was requested, and a commit dropped them first. The read continues
    /// after the newest confirmed revision.
    pub fn changes_compacted(&mut self, now: Now, after: u64) {
        if !matches!(self.pages.reading, Reading::Changes { after: asked } if asked == after) {
            return;
        }
        if after >= self.confirmed {
            // The store was replaced; its reset follows.
            return self.read_failed(now);
        }
        self.pages.clear();
        self.replay();
        self.arm_repeat(now);
    }

    pub(super) fn inventory_requested(&mut self, now: Now, request: InventoryRequest) {
        match &self.phase {
            Phase::Greeting { session, .. } if *session == request.session => self.extend_greeting(now),
            _ => return self.foreign(now),
        }
        self.pages.read(Reading::Buckets { theirs: request.buckets }, EdgeEffect::ReadBuckets);
        self.notice(EdgeNotice::Repairing);
    }

    /// Handles the computed bucket digests.
    pub fn buckets_read(&mut self, ours: &Buckets) {
        let Reading::Buckets { theirs } = &self.pages.reading else { return };
        let buckets = ours.differing(theirs);
        let next = EdgeEffect::ReadInventory { buckets, cursor: 0, limit: self.page_limit() };
        self.pages.read(Reading::Inventory { buckets, page: 0 }, next);
    }

    /// Handles a page of the inventory.
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

    /// Moves the awaited answer behind the last page sent.
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

    /// Aborts a failed read. Its purpose is retried when the answer is overdue.
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

#[cfg(test)]
mod tests;
