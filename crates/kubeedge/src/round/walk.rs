//! The walk of a round over the held objects, page by page. The next page is read after the last
//! one is queried and no commit is in flight that it would miss.

use std::collections::VecDeque;

use super::scope::ListedState;
use super::{BURST, Round, Rounds, Stage};
use crate::delivery::Delivery;
use crate::names::{FetchRule, Name};
use crate::outbound::Outbound;
use crate::queries::{Queries, queried_name};
use crate::types::{BridgeConfig, BridgeEffect, HeldEntry, HeldPage, RoundReason};
use edgesync_object::{ObjectKey, split_api_version};
use edgesync_protocol::change::{Change, Delete};
use edgesync_protocol::timing::Now;

/// Rows read at a time.
const PAGE: usize = 64;

/// The progress of the walk.
#[derive(Debug)]
pub(super) struct Walk {
    /// The start of the current page.
    cursor: u64,
    page: VecDeque<HeldEntry>,
    /// The start of the next page.
    next: Option<u64>,
    is_reading: bool,
    /// The time of the next attempt after a failed read.
    retry_at: Option<Now>,
    rows: u64,
    /// The number of rules without `*` checked after all rows.
    rules: usize,
    /// The names changed since the page was requested.
    changed: Vec<ObjectKey>,
}

impl Walk {
    pub(super) fn from(cursor: u64) -> Self {
        Self {
            cursor,
            page: VecDeque::new(),
            next: Some(cursor),
            is_reading: false,
            retry_at: None,
            rows: 0,
            rules: 0,
            changed: Vec::new(),
        }
    }

    /// Returns a walk without rows: only rules without `*` remain.
    pub(super) fn over() -> Self {
        Self { next: None, ..Self::from(0) }
    }

    /// Returns the number of rows seen.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the position at which it may be resumed.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    pub(super) fn read(&mut self, page: HeldPage) {
        if !self.is_reading {
            return;
        }
        self.is_reading = false;
        self.rows += page.entries.len() as u64;
        self.page = page.entries.into();
        for key in std::mem::take(&mut self.changed) {
            self.forget(&key);
        }
        // A page without progress must not be read forever.
        self.next = page.next.filter(|next| *next > self.cursor);
    }

    /// Handles a change: a ConfigMap or Secret that has just arrived is newer than the current row
    /// and thereby compared. Rows of other kinds stay relevant, such as a Pod's references.
    pub(super) fn changed(&mut self, key: ObjectKey) {
        if !matches!(&*key.kind, "ConfigMap" | "Secret") {
            return;
        }
        self.forget(&key);
        if self.is_reading {
            self.changed.push(key);
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        for (name, held) in self.page.iter_mut().flat_map(|entry| &mut entry.references) {
            if (name.kind.kind(), &*name.namespace, &*name.name) == (&*key.kind, &*key.namespace, &*key.name)
            {
                *held = None;
            }
        }
        self.page.retain(|HeldEntry { object, .. }| {
            (&*object.kind, &*object.namespace, &*object.name) != (&*key.kind, &*key.namespace, &*key.name)
        });
    }

    pub(super) fn failed(&mut self, retry_at: Now) {
        if self.is_reading {
            self.is_reading = false;
            self.changed.clear();
            self.next = Some(self.cursor);
            self.retry_at = Some(retry_at);
        }
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.retry_at
    }

    /// Requests the next page if there is one.
    fn read_on(&mut self, outbound: &mut Outbound) -> bool {
        let Some(cursor) = self.next.take() else { return false };
        (self.cursor, self.is_reading, self.retry_at) = (cursor, true, None);
        outbound.effects.push_back(BridgeEffect::ReadHeld { cursor, limit: PAGE });
        true
    }
}

/// The decision on a row.
enum Verdict {
    Keep,
    Remove,
    Ask(Name),
}

fn name_of(entry: &HeldEntry) -> Option<Name> {
    let object = &entry.object;
    queried_name(&object.api_version, &object.kind, &object.namespace, &object.name)
}

fn delete(entry: &HeldEntry) -> Change {
    let object = &entry.object;
    let (group, _) = split_api_version(&object.api_version);
    let key = ObjectKey {
        group: group.into(),
        kind: (&*object.kind).into(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
    };
    Change::Delete(Delete { uid: entry.uid.clone(), key })
}

impl Round {
    fn decide(
        &self,
        config: &BridgeConfig,
        queries: &Queries,
        entry: &HeldEntry,
        name: Option<&Name>,
    ) -> Verdict {
        let mut is_listed = false;
        for listed in &self.listed {
            match listed.state_of(entry) {
                ListedState::Gone => return Verdict::Remove,
                ListedState::Exists => is_listed = true,
                ListedState::Nothing => {}
            }
        }
        match name {
            // Only the desired items of a list were compared.
            Some(name) if is_listed && queries.is_name_desired(config, name) => Verdict::Keep,
            // Rows outside of all lists were not compared.
            Some(_) if !self.reason.compares() => Verdict::Keep,
            Some(name) if queries.is_compared(name) => Verdict::Keep,
            Some(name) => Verdict::Ask(name.clone()),
            None => Verdict::Keep,
        }
    }
}

/// Queries the references of a Pod that are not held. Returns false if the window is full and some
/// remain.
fn query_references(outbound: &mut Outbound, queries: &mut Queries, entry: &mut HeldEntry) -> bool {
    while let Some((name, held)) = entry.references.last() {
        queries.mark_desired(name);
        match held {
            Some(uid) => queries.is_held(name, uid),
            None if queries.has(name) => {}
            None if queries.capacity() == 0 => return false,
            None => _ = queries.query(outbound, name.clone(), None),
        }
        entry.references.pop();
    }
    true
}

impl Round {
    /// Restarts the walk to rescan the Pods for desired names.
    pub(super) fn rescan(&mut self, queries: &mut Queries) {
        queries.rescan();
        self.stage = Stage::Walking(Walk::from(0));
    }

    /// Queries the names of rules without `*` that are not held. Returns whether that is complete.
    fn query_rules(&mut self, outbound: &mut Outbound, queries: &mut Queries) -> bool {
        let Stage::Walking(walk) = &mut self.stage else { return false };
        let rules = outbound.config.fetch.iter().skip(walk.rules);
        let names: Vec<_> = rules.map(FetchRule::exact).take(PAGE).collect();
        for name in &names {
            if let Some(name) = name.as_ref().filter(|name| !queries.has(name)) {
                if queries.capacity() == 0 {
                    return false;
                }
                queries.query(outbound, name.clone(), None);
            }
            walk.rules += 1;
        }
        names.is_empty() || self.query_rules(outbound, queries)
    }
}

impl Rounds {
    /// Advances the walk. Returns whether it is complete.
    pub(super) fn walk_on(
        &mut self,
        outbound: &mut Outbound,
        delivery: &mut Delivery,
        queries: &mut Queries,
    ) -> bool {
        let Some(mut round) = self.round.take() else { return false };
        let is_over =
            self.walk_page(&mut round, outbound, delivery, queries) && round.query_rules(outbound, queries);
        if is_over {
            round.stage = Stage::Ending;
        }
        self.round = Some(round);
        is_over
    }

    fn walk_page(
        &mut self,
        round: &mut Round,
        outbound: &mut Outbound,
        delivery: &mut Delivery,
        queries: &mut Queries,
    ) -> bool {
        let now = outbound.at.now;
        let is_paced = round.reason == RoundReason::Routine;
        let mut removed = Vec::new();
        let mut page = match &mut round.stage {
            Stage::Walking(walk) => std::mem::take(&mut walk.page),
            Stage::Listing(_) | Stage::Ending => return false,
        };
        while let Some(entry) = page.front_mut() {
            if !query_references(outbound, queries, entry) {
                break;
            }
            let name = name_of(entry);
            match round.decide(&outbound.config, queries, entry, name.as_ref()) {
                Verdict::Remove => {
                    name.iter().for_each(|name| queries.is_gone(name));
                    removed.push(delete(entry));
                }
                Verdict::Ask(name) => {
                    // The burst is reserved for desired names; a walk takes only overflowing
                    // tokens.
                    if is_paced && !self.budget.has(BURST, now) {
                        break;
                    }
                    if queries.capacity() == 0 {
                        break;
                    }
                    self.budget.take(u32::from(is_paced));
                    round.compared += 1;
                    queries.is_held(&name, &entry.uid);
                    queries.query(outbound, name, Some(entry.uid.clone()));
                }
                Verdict::Keep => {
                    name.iter().for_each(|name| queries.is_held(name, &entry.uid));
                }
            }
            page.pop_front();
        }
        if !removed.is_empty() {
            delivery.apply(outbound, removed, Vec::new());
        }
        let Stage::Walking(walk) = &mut round.stage else { return false };
        walk.page = page;
        let must_wait = walk.retry_at.take_if(|at| *at <= now).is_none() && walk.retry_at.is_some();
        if !walk.page.is_empty() || walk.is_reading || must_wait || delivery.pending() > 0 {
            return false;
        }
        if walk.read_on(outbound) {
            return false;
        }
        // The rows are complete once: only rules remain.
        if walk.rules == 0 && round.reason.compares() && !round.was_empty {
            queries.sweep(&outbound.config);
        }
        true
    }
}
