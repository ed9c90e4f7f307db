//! The lists of a round: one page of one list at a time, the next one when the last one is stored.

use std::sync::Arc;

use super::scope::{Listed, Purpose, Target, hash};
use super::walk::Walk;
use super::{ATTEMPTS, Round, Rounds, Stage};
use crate::object::{Resource, Scope as ObjectScope, member, split_api_version};
use crate::sync::change::Change;
use crate::sync::kubeedge::application::{self, Page, Request, Response};
use crate::sync::kubeedge::delivery::Delivery;
use crate::sync::kubeedge::message::MessageId;
use crate::sync::kubeedge::message::{self, Failure, Incoming};
use crate::sync::kubeedge::names::WatchRule;
use crate::sync::kubeedge::object;
use crate::sync::kubeedge::outbound::Outbound;
use crate::sync::kubeedge::queries::{Queries, asked_name};
use crate::sync::kubeedge::types::{DynamicController, RoundReason};
use crate::sync::timing::Now;

/// Items of a page of a list, unless a page was too much for the link.
pub(super) const LIMIT: u32 = 100;
/// Changes that are applied in one transaction.
const BATCH: usize = 64;

/// Which list, and how far it has come.
#[derive(Debug, Default)]
pub(super) struct Listing {
    target: usize,
    /// The question under way, until when, and how often it was put.
    asked: Option<(MessageId, Now, u32)>,
    attempt: u32,
    so_far: Listed,
    /// Where the next page begins; empty for the first one.
    continues: Box<str>,
    /// Whether it had to begin anew, because what it continued has expired.
    is_anew: bool,
}

impl Listing {
    /// Whether a page is under way.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.asked.map(|(_, until, _)| until)
    }

    fn next(&mut self) {
        *self = Self { target: self.target + 1, ..Self::default() };
    }
}

/// The kind of the items of a page.
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
    /// Whether its lists are of everything, or only ask whether a watch is safe.
    fn lists_all(&self) -> bool {
        self.reason != RoundReason::Reconnect
    }

    fn walk(&mut self) {
        self.stage = Stage::Walking(Walk::from(self.cursor));
    }
}

impl Rounds {
    /// Asks for the next page. Returns whether the round goes on at once.
    pub(super) fn list_on(&mut self, outbound: &mut Outbound, delivery: &Delivery) -> bool {
        let Some(round) = &mut self.round else { return false };
        let lists_all = round.lists_all();
        let Stage::Listing(listing) = &mut round.stage else { return false };
        if listing.asked.is_some() || delivery.has_compared() {
            return false;
        }
        let Some(target) = round.targets.get(listing.target) else {
            self.watches.all_listed();
            self.watches.advance(outbound);
            round.walk();
            return true;
        };
        let is_proof = target.purpose == Purpose::Proof;
        let is_needed = match is_proof {
            true => self.watches.lacks_below(&target.scope),
            false => lists_all || self.watches.lacks(&target.scope),
        };
        if !is_needed {
            listing.next();
            return true;
        }
        if lists_all && !round.reason.is_urgent() {
            if self.budget.left(outbound.at.now) == 0 {
                self.waits = true;
                return false;
            }
            self.budget.take(1);
        }
        let continues = (!listing.continues.is_empty()).then_some(&*listing.continues);
        let limit = if lists_all && !is_proof { self.limit.0 } else { 1 };
        let request = Request::List { scope: &target.scope, limit, continues };
        let id = outbound.send(&message::application("null", request.to_json(&outbound.config.node)));
        listing.attempt += 1;
        listing.asked = Some((id, outbound.at.now + outbound.config.answer_timeout, listing.attempt));
        false
    }

    /// Puts a question again that was not answered. Returns whether the dynamic controller is silent: what it would have
    /// listed is left out.
    pub(super) fn list_tick(&mut self, outbound: &Outbound) -> bool {
        let Some(round) = &mut self.round else { return false };
        let Stage::Listing(listing) = &mut round.stage else { return false };
        let Some((.., attempt)) = listing.asked.take_if(|(_, until, _)| *until <= outbound.at.now) else {
            return false;
        };
        if attempt < ATTEMPTS {
            return false;
        }
        // One that has answered before is only slow.
        round.is_incomplete = self.dynamic == DynamicController::On;
        round.walk();
        true
    }

    /// Takes a page. Returns whether it was asked for.
    pub(super) fn list_answered(
        &mut self,
        outbound: &mut Outbound,
        delivery: &mut Delivery,
        asking: &mut Queries,
        incoming: &Incoming<'_>,
    ) -> bool {
        let Some(round) = &mut self.round else { return false };
        let lists_all = round.lists_all();
        let Stage::Listing(listing) = &mut round.stage else { return false };
        if listing.asked.take_if(|(id, ..)| incoming.parent == Some(*id)).is_none() {
            return false;
        }
        listing.attempt = 0;
        let Some(target) = round.targets.get(listing.target) else { return true };
        let response = incoming.content.and_then(application::response);
        let body = match &response {
            Some(Response::Approved { body }) => Ok(body.as_str()),
            Some(Response::Refused(failure)) => Err(failure.message.as_str()),
            None => Err("the answer cannot be read"),
        };
        let page = body.and_then(|body| application::page(body).ok_or("the answer is no list"));
        let page = match page {
            Ok(page) => page,
            Err(_) if !listing.continues.is_empty() && !listing.is_anew => {
                *listing = Listing { target: listing.target, is_anew: true, ..Listing::default() };
                return true;
            }
            Err(message) => {
                // What is not there, or may not be seen, is known; anything else passes.
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
        if !lists_all || target.purpose == Purpose::Proof {
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
        self.limit.0 = (self.limit.0 * 2).min(LIMIT);
        let before = listing.so_far.uids.len();
        take_items(&page, target, &mut listing.so_far, outbound, delivery, asking);
        round.compared += (listing.so_far.uids.len() - before) as u64;
        listing.continues = page.continues;
        if listing.continues.is_empty() {
            let mut listed = std::mem::take(&mut listing.so_far);
            listed.complete();
            round.listed.push(listed);
            listing.next();
        }
        true
    }
}

/// Hands the items of a page to the machine, in batches.
fn take_items(
    page: &Page<'_>,
    target: &Target,
    listed: &mut Listed,
    outbound: &mut Outbound,
    delivery: &mut Delivery,
    asking: &mut Queries,
) {
    let resource = Arc::new(resource(page, &target.scope.rule));
    if !page.items.is_empty() {
        delivery.kinds.learn(&resource);
    }
    let (mut changes, mut rejected) = (Vec::new(), Vec::new());
    for item in &page.items {
        match object::read_item(item.get(), &resource, &outbound.config) {
            Ok(Change::Put(put)) => {
                listed.uids.push(hash(&put.uid));
                let name = asked_name(&resource.api_version(), &resource.kind, &put.namespace, &put.name);
                let is_wanted =
                    |name| target.purpose != Purpose::Fetched || asking.wants_name(&outbound.config, &name);
                if name.is_none_or(is_wanted) {
                    asking.stored(outbound, &put);
                    changes.push(Change::Put(put));
                }
            }
            Ok(Change::Delete(_)) => {}
            // What is held of it in another version is not gone.
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
