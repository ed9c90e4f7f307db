//! Rounds: comparing what is held with what CloudCore has, because CloudCore never asks.
//!
//! A round first lists what the dynamic controller can list (the watched kinds, the rules with `*`, the Pods of the
//! node), page by page; then it walks over what is held: an object that a complete list does not have is removed, a
//! ConfigMap or Secret that no list covers is asked for; last it asks for what is wanted and not held. An urgent round
//! ([`RoundReason::is_urgent`]) goes as fast as CloudCore answers. Others have a budget: [`BURST`] questions at once, and
//! then as many as it takes to have compared everything within `verify_interval`.
//!
//! A list is a statement about one moment: what is held in a newer version than that of the list stays.
//!
//! CloudCore does not survive the watch of a kind that the API server does not know, and hangs on one that it may not
//! list. So a watch is asked for only after a list of the same key was approved; where no round lists it, one of a single
//! item is asked for first.

use std::collections::{BTreeMap, BTreeSet};

use super::application::Scope;
use super::ask::Asking;
use super::delivery::Delivery;
use super::desk::{Desk, MessageId};
use super::message::Incoming;
use super::types::{BridgeConfig, DynamicController, HeldPage, RoundReason};
use crate::sync::timing::Now;

/// Questions that a round that is not urgent may put at once.
pub(super) const BURST: u32 = 64;
/// Rows read at a time.
const PAGE: usize = 64;
/// Items of a page of a list.
const LIST_LIMIT: u32 = 200;

/// A list that is complete: what exists in its scope.
#[derive(Debug, Default)]
struct Listed {
    resource_version: Box<str>,
    /// Hashes of the UIDs.
    uids: BTreeSet<u64>,
}

/// Where a round stands.
#[derive(Debug)]
enum Stage {
    /// Lists are asked for, one after the other.
    Listing { scope: usize, asked: Option<(MessageId, Now, u32)>, so_far: Listed },
    /// What is held is walked over.
    Walking { cursor: u64, reading: bool },
    /// The last questions are under way.
    Ending,
}

#[derive(Debug)]
struct Round {
    reason: RoundReason,
    scopes: Vec<Scope>,
    listed: BTreeMap<usize, Listed>,
    stage: Stage,
    compared: u64,
    differed: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    round: Option<Round>,
    /// What is wanted of the next round before it is due.
    demanded: Option<RoundReason>,
    next_at: Option<Now>,
    /// Watches asked for, and not yet answered.
    watches: BTreeMap<MessageId, (Scope, Now, u32)>,
    pub(super) dynamic: DynamicController,
    /// When, why, compared, differed.
    pub(super) verified: Option<(i64, RoundReason, u64, u64)>,
    /// Whether an urgent round is owed: until it is over the database is not proven.
    owed: bool,
}

impl Rounds {
    /// A session begins, or rules have changed: asks for the watches, and begins a round (an urgent one that is under way
    /// or demanded stays urgent).
    pub(super) fn begin(
        &mut self,
        desk: &mut Desk,
        config: &BridgeConfig,
        asking: &mut Asking,
        reason: RoundReason,
    ) {
        let _ = (desk, config, asking, reason);
        todo!()
    }

    /// The connection is lost: an urgent round begins anew with the next session, whatever the Lease says then.
    pub(super) fn pause(&mut self) {
        todo!()
    }

    /// The next session begins with a round for this reason.
    pub(super) fn demand(&mut self, reason: RoundReason) {
        let _ = reason;
        todo!()
    }

    /// Whether the marker of the database may be written into the Lease: no urgent round is owed.
    pub(super) fn proves(&self) -> bool {
        todo!()
    }

    /// What is still to be done before the node is in sync: of urgent rounds, and of the first [`BURST`] of others.
    pub(super) fn pending(&self) -> u64 {
        todo!()
    }

    /// An answer of the dynamic controller: to a watch, to a page of a list, or to a status (those are the uploads').
    pub(super) fn answered(
        &mut self,
        desk: &mut Desk,
        config: &BridgeConfig,
        delivery: &mut Delivery,
        asking: &mut Asking,
        incoming: &Incoming<'_>,
    ) {
        let _ = (desk, config, delivery, asking, incoming);
        todo!()
    }

    /// A page of what is held.
    pub(super) fn held_read(
        &mut self,
        desk: &mut Desk,
        config: &BridgeConfig,
        delivery: &mut Delivery,
        asking: &mut Asking,
        page: HeldPage,
    ) {
        let _ = (desk, config, delivery, asking, page, PAGE, LIST_LIMIT);
        todo!()
    }

    /// The rows could not be read.
    pub(super) fn read_failed(&mut self, desk: &mut Desk, config: &BridgeConfig) {
        let _ = (desk, config);
        todo!()
    }

    /// Goes on with the round, or begins one that is due.
    pub(super) fn tick(&mut self, desk: &mut Desk, config: &BridgeConfig, asking: &mut Asking) {
        let _ = (desk, config, asking);
        todo!()
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        todo!()
    }

    /// The round under way, and what it has compared.
    pub(super) fn current(&self) -> Option<(RoundReason, u64)> {
        self.round.as_ref().map(|round| (round.reason, round.compared))
    }
}
