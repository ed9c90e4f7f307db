//! The walk of a round over what is held: a page at a time, the next one when all of the last one is asked for, and no
//! commit is under way that it would not show.

use std::collections::VecDeque;

use super::scope::Says;
use super::{BURST, Round, Rounds, Stage};
use crate::delivery::Delivery;
use crate::names::{FetchRule, Name};
use crate::outbound::Outbound;
use crate::queries::{Queries, asked_name};
use crate::types::{BridgeConfig, BridgeEffect, HeldEntry, HeldPage, RoundReason};
use edgesync_object::{ObjectKey, split_api_version};
use edgesync_protocol::change::{Change, Delete};
use edgesync_protocol::timing::Now;

/// Rows read at a time.
const PAGE: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Walk {
    /// Where the page begins that is at hand or being read.
    cursor: u64,
    page: VecDeque<HeldEntry>,
    /// Where the next page begins.
    next: Option<u64>,
    is_reading: bool,
    /// When rows that could not be read are read again.
    retry_at: Option<Now>,
    rows: u64,
    /// How many rules without `*` were looked at, once all rows were.
    rules: usize,
    /// What has changed since the page was asked for.
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

    /// A walk without rows: only what rules without `*` want is left.
    pub(super) fn over() -> Self {
        Self { next: None, ..Self::from(0) }
    }

    /// Rows that it has seen.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Where it may be taken up again.
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
        // A page that leads nowhere must not be read for ever.
        self.next = page.next.filter(|next| *next > self.cursor);
    }

    /// What has just come under the name of a ConfigMap or Secret is newer than the row at hand, and is compared by that.
    /// All other rows say something in any case: a Pod what it references.
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

    /// Asks for the next page if there is one.
    fn read_on(&mut self, outbound: &mut Outbound) -> bool {
        let Some(cursor) = self.next.take() else { return false };
        (self.cursor, self.is_reading, self.retry_at) = (cursor, true, None);
        outbound.effects.push_back(BridgeEffect::ReadHeld { cursor, limit: PAGE });
        true
    }
}

/// What is to be done about a row.
enum Verdict {
    Keep,
    Remove,
    Ask(Name),
}

fn name_of(entry: &HeldEntry) -> Option<Name> {
    let object = &entry.object;
    asked_name(&object.api_version, &object.kind, &object.namespace, &object.name)
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
    fn judge(
        &self,
        config: &BridgeConfig,
        asking: &Queries,
        entry: &HeldEntry,
        name: Option<&Name>,
    ) -> Verdict {
        let mut is_listed = false;
        for listed in &self.listed {
            match listed.says(entry) {
                Says::Gone => return Verdict::Remove,
                Says::Exists => is_listed = true,
                Says::Nothing => {}
            }
        }
        match name {
            // Of a list only what is wanted was compared.
            Some(name) if is_listed && asking.wants_name(config, name) => Verdict::Keep,
            // What is not listed was not compared with anything.
            Some(_) if !self.reason.compares() => Verdict::Keep,
            Some(name) if asking.is_compared(name) => Verdict::Keep,
            Some(name) => Verdict::Ask(name.clone()),
            None => Verdict::Keep,
        }
    }
}

/// What a Pod references is wanted, and asked for if it is not held. Returns whether that is done; what has no room waits.
fn ask_for_references(outbound: &mut Outbound, asking: &mut Queries, entry: &mut HeldEntry) -> bool {
    while let Some((name, held)) = entry.references.last() {
        asking.remember(name);
        match held {
            Some(uid) => asking.is_held(name, uid),
            None if asking.has(name) => {}
            None if asking.room() == 0 => return false,
            None => _ = asking.ask(outbound, name.clone(), None),
        }
        entry.references.pop();
    }
    true
}

impl Round {
    /// The Pods are gone through once more for what they want.
    pub(super) fn look_through(&mut self, asking: &mut Queries) {
        asking.look_through();
        self.stage = Stage::Walking(Walk::from(0));
    }

    /// What rules without `*` want is asked for if it is not held. Returns whether that is done.
    fn ask_for_rules(&mut self, outbound: &mut Outbound, asking: &mut Queries) -> bool {
        let Stage::Walking(walk) = &mut self.stage else { return false };
        let rules = outbound.config.fetch.iter().skip(walk.rules);
        let names: Vec<_> = rules.map(FetchRule::exact).take(PAGE).collect();
        for name in &names {
            if let Some(name) = name.as_ref().filter(|name| !asking.has(name)) {
                if asking.room() == 0 {
                    return false;
                }
                asking.ask(outbound, name.clone(), None);
            }
            walk.rules += 1;
        }
        names.is_empty() || self.ask_for_rules(outbound, asking)
    }
}

impl Rounds {
    /// Goes on with the walk. Returns whether it is over.
    pub(super) fn walk_on(
        &mut self,
        outbound: &mut Outbound,
        delivery: &mut Delivery,
        asking: &mut Queries,
    ) -> bool {
        let Some(mut round) = self.round.take() else { return false };
        let is_over =
            self.walk_page(&mut round, outbound, delivery, asking) && round.ask_for_rules(outbound, asking);
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
        asking: &mut Queries,
    ) -> bool {
        let now = outbound.at.now;
        let is_paced = round.reason == RoundReason::Routine;
        let mut removed = Vec::new();
        let mut page = match &mut round.stage {
            Stage::Walking(walk) => std::mem::take(&mut walk.page),
            Stage::Listing(_) | Stage::Ending => return false,
        };
        while let Some(entry) = page.front_mut() {
            if !ask_for_references(outbound, asking, entry) {
                break;
            }
            let name = name_of(entry);
            match round.judge(&outbound.config, asking, entry, name.as_ref()) {
                Verdict::Remove => {
                    name.iter().for_each(|name| asking.is_gone(name));
                    removed.push(delete(entry));
                }
                Verdict::Ask(name) => {
                    // What the bucket holds is for names that are wanted; a walk takes what would not fit into it.
                    if is_paced && self.budget.left(now) < BURST {
                        self.waits = true;
                        break;
                    }
                    if asking.room() == 0 {
                        break;
                    }
                    self.budget.take(u32::from(is_paced));
                    round.compared += 1;
                    asking.is_held(&name, &entry.uid);
                    asking.ask(outbound, name, Some(entry.uid.clone()));
                }
                Verdict::Keep => {
                    name.iter().for_each(|name| asking.is_held(name, &entry.uid));
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
        // It is over once: what is left is what rules want.
        if walk.rules == 0 && round.reason.compares() && !round.was_empty {
            asking.sweep(&outbound.config);
        }
        true
    }
}
