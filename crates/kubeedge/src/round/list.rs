//! The lists of a round: one page at a time, the next one after the last one is stored.

use std::sync::Arc;

use super::scope::{Listed, Purpose, hash, rules_of};
use super::walk::Walk;
use super::{ATTEMPTS, Round, Rounds, Stage};
use crate::application::{self, Page, Request, Response};
use crate::delivery::Delivery;
use crate::message::MessageId;
use crate::message::{self, Failure, Incoming};
use crate::names::{Name, WatchRule};
use crate::object;
use crate::outbound::Outbound;
use crate::queries::{Queries, queried_name, rules_match};
use crate::types::{DynamicController, RoundReason};
use edgesync_object::{Resource, Scope as ObjectScope, member, split_api_version};
use edgesync_protocol::change::Change;
use edgesync_protocol::timing::Now;

/// The largest page of a list, in items.
const MAX_PAGE: u32 = 100;
/// The most changes per transaction.
const BATCH: usize = 64;

/// The page size of lists: smaller after a page that may have been too large for the link.
#[derive(Debug)]
pub(super) struct PageSize(u32);

impl Default for PageSize {
    fn default() -> Self {
        Self(MAX_PAGE)
    }
}

impl PageSize {
    pub(super) fn items(&self) -> u32 {
        self.0
    }

    /// Handles a received page.
    fn grow(&mut self) {
        self.0 = (self.0 * 2).min(MAX_PAGE);
    }

    /// Handles a connection lost while a page was in flight.
    pub(super) fn shrink(&mut self) {
        self.0 = (self.0 / 4).max(1);
    }
}

/// The progress of the current list.
#[derive(Debug, Default)]
pub(super) struct Listing {
    target: usize,
    /// The request in flight, its timeout, and its attempts.
    request: Option<(MessageId, Now, u32)>,
    attempt: u32,
    so_far: Listed,
    /// The continue token of the next page; empty for the first one.
    continues: Box<str>,
    /// Whether it was restarted because its continue token has expired.
    is_restarted: bool,
}

impl Listing {
    /// Returns whether a page is in flight.
    pub(super) fn is_in_flight(&self) -> bool {
        self.request.is_some()
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.request.map(|(_, until, _)| until)
    }

    fn next(&mut self) {
        *self = Self { target: self.target + 1, ..Self::default() };
    }
}

/// Returns the kind of the items of a page.
fn resource(page: &Page<'_>, rule: &WatchRule) -> Resource {
    let (group, version) = split_api_version(&page.api_version);
    let first = page.items.first().and_then(|item| member(item.get(), &["metadata", "namespace"]));
    Resource {
        group: group.into(),
        version: version.into(),
        kind: page.kind.to_string(),
        plural: rule.plural.to_string(),
        scope: if first.is_some() { ObjectScope::Namespaced } else { ObjectScope::Cluster },
    }
}

impl Round {
    /// Begins the walk over the held objects after the lists, unless it cannot change anything.
    fn walk(&mut self, queries: &mut Queries) {
        // Everything held was just listed, or has arrived since.
        let is_new = self.was_empty && !queries.has_unqueried();
        let is_needed =
            !is_new && (self.reason.compares() || queries.has_unqueried() || !self.listed.is_empty());
        let is_rescan_due = is_needed && self.cursor == 0;
        if is_rescan_due {
            queries.rescan();
        }
        let walk = if is_needed { Walk::from(self.cursor) } else { Walk::over() };
        self.stage = Stage::Walking(walk);
    }

    /// Returns whether a full list remains.
    pub(super) fn lists_more(&self, listing: &Listing) -> bool {
        self.targets.iter().skip(listing.target).any(|target| target.is_whole)
    }

    /// Returns whether a list of this round covers a name.
    fn has_listed(&self, name: &Name) -> bool {
        let covers = |listed: &Listed| {
            *listed.kind == *name.kind.kind()
                && *listed.api_version == *"v1"
                && listed.namespace.as_ref().is_none_or(|namespace| *namespace == name.namespace)
        };
        self.listed.iter().any(covers)
    }
}

impl Rounds {
    /// Requests the next page. Returns whether the round continues at once.
    pub(super) fn list_on(
        &mut self,
        outbound: &mut Outbound,
        delivery: &Delivery,
        queries: &mut Queries,
    ) -> bool {
        let Some(round) = &mut self.round else { return false };
        let reason = round.reason;
        let Stage::Listing(listing) = &mut round.stage else { return false };
        if listing.request.is_some() || delivery.has_compared() {
            return false;
        }
        let Some(target) = round.targets.get(listing.target) else {
            self.watches.all_listed();
            self.watches.advance(outbound);
            round.walk(queries);
            return true;
        };
        let is_proof = target.purpose == Purpose::Proof;
        let is_needed = match is_proof {
            true => self.watches.lacks_below(&target.scope),
            false => target.is_whole || self.watches.lacks(&target.scope),
        };
        if !is_needed {
            listing.next();
            return true;
        }
        if reason == RoundReason::Routine {
            if !self.budget.has(1, outbound.at.now) {
                return false;
            }
            self.budget.take(1);
        }
        let continues = (!listing.continues.is_empty()).then_some(&*listing.continues);
        let limit = if target.is_whole { self.page_size.items() } else { 1 };
        let request = Request::List { scope: &target.scope, limit, continues };
        let id = outbound.send(&message::application("null", request.to_json(&outbound.config.node)));
        listing.attempt += 1;
        listing.request = Some((id, outbound.at.now + outbound.config.answer_timeout, listing.attempt));
        false
    }

    /// Repeats an unanswered request. Returns whether the dynamic controller is silent: its lists
    /// are skipped.
    pub(super) fn list_tick(&mut self, outbound: &Outbound, queries: &mut Queries) -> bool {
        let Some(round) = &mut self.round else { return false };
        let Stage::Listing(listing) = &mut round.stage else { return false };
        let Some((.., attempt)) = listing.request.take_if(|(_, until, _)| *until <= outbound.at.now) else {
            return false;
        };
        if attempt < ATTEMPTS {
            return false;
        }
        // A controller that has answered before is only slow.
        round.is_incomplete = self.dynamic == DynamicController::On;
        round.walk(queries);
        true
    }

    /// Handles a page. Returns whether it was requested here.
    pub(super) fn list_answered(
        &mut self,
        outbound: &mut Outbound,
        delivery: &mut Delivery,
        queries: &mut Queries,
        incoming: &Incoming<'_>,
    ) -> bool {
        let Some(round) = &mut self.round else { return false };
        let Stage::Listing(listing) = &mut round.stage else { return false };
        if listing.request.take_if(|(id, ..)| incoming.parent == Some(*id)).is_none() {
            return false;
        }
        listing.attempt = 0;
        let Some(target) = round.targets.get(listing.target) else { return true };
        let response = incoming.content.and_then(application::response);
        let body = match &response {
            Some(Response::Approved { body }) => Ok(body.as_str()),
            Some(Response::Refused(failure)) => Err(failure.message.as_str()),
            None => Err("invalid response"),
        };
        let page = body.and_then(|body| application::page(body).ok_or("response is not a list"));
        let page = match page {
            Ok(page) => page,
            Err(_) if !listing.continues.is_empty() && !listing.is_restarted => {
                *listing = Listing { target: listing.target, is_restarted: true, ..Listing::default() };
                return true;
            }
            Err(message) => {
                // A missing kind or denied access is final; any other failure is temporary.
                let is_final = |failure: &Failure| matches!(failure.code, 403 | 404);
                let is_final = matches!(&response, Some(Response::Refused(failure)) if is_final(failure));
                round.is_incomplete |= !is_final;
                self.watches.deny(outbound, &target.scope, message);
                listing.next();
                return true;
            }
        };
        match target.purpose {
            Purpose::Pods => {}
            Purpose::Proof => self.watches.prove(&target.scope),
            Purpose::Watched | Purpose::Fetched => self.watches.listed(outbound, &target.scope),
        }
        if !target.is_whole {
            listing.next();
            return true;
        }
        if listing.continues.is_empty() {
            listing.so_far = Listed {
                api_version: page.api_version.clone(),
                kind: page.kind.clone(),
                namespace: target.scope.rule.namespace.clone(),
                resource_version: page.resource_version.clone(),
                uids: Vec::new(),
                is_partial: false,
            };
        }
        self.page_size.grow();
        let mut so_far = std::mem::take(&mut listing.so_far);
        listing.continues = page.continues.clone();
        let (before, is_complete) = (so_far.uids.len(), page.continues.is_empty());
        take_items(&page, round, &mut so_far, outbound, delivery, queries);
        round.compared += (so_far.uids.len() - before) as u64;
        let Stage::Listing(listing) = &mut round.stage else { return false };
        if is_complete {
            so_far.complete();
            let target = round.targets.get(listing.target);
            round
                .carried_out
                .extend(target.into_iter().flat_map(|target| rules_of(&outbound.config, &target.scope)));
            round.listed.push(so_far);
            listing.next();
        } else {
            listing.so_far = so_far;
        }
        true
    }
}

/// Passes the items of a page to the machine in batches.
fn take_items(
    page: &Page<'_>,
    round: &Round,
    listed: &mut Listed,
    outbound: &mut Outbound,
    delivery: &mut Delivery,
    queries: &mut Queries,
) {
    let Stage::Listing(listing) = &round.stage else { return };
    let Some(target) = round.targets.get(listing.target) else { return };
    let resource = Arc::new(resource(page, &target.scope.rule));
    if !page.items.is_empty() {
        delivery.kinds.learn(&resource);
    }
    let (mut changes, mut rejected) = (Vec::new(), Vec::new());
    for item in &page.items {
        match object::read_item(item.get(), &resource, &outbound.config) {
            Ok(Change::Put(put)) => {
                listed.uids.push(hash(&put.uid));
                let name = queried_name(&resource.api_version(), &resource.kind, &put.namespace, &put.name);
                let is_wanted = |name| {
                    target.purpose != Purpose::Fetched || queries.is_name_desired(&outbound.config, &name)
                };
                if name.is_none_or(is_wanted) {
                    queries.stored(outbound, &put, |config, name| {
                        round.has_listed(name) && rules_match(config, name)
                    });
                    changes.push(Change::Put(put));
                }
            }
            Ok(Change::Delete(_) | Change::Patch(_)) => {}
            // The object exists: another version of it that is held must stay.
            Err(problem) => {
                listed.is_partial |= problem.uid.is_empty();
                listed.uids.push(hash(&problem.uid));
                rejected.push(problem);
            }
        }
        if changes.len() + rejected.len() >= BATCH {
            delivery.apply(outbound, std::mem::take(&mut changes), std::mem::take(&mut rejected));
        }
    }
    if !changes.is_empty() || !rejected.is_empty() {
        delivery.apply(outbound, changes, rejected);
    }
}
