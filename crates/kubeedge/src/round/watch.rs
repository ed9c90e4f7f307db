//! The watches of a session. A watch is requested only after a list of the same key was approved.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::ATTEMPTS;
use crate::application::{self, Request, Response, Scope};
use crate::message::MessageId;
use crate::message::{self, Incoming};
use crate::outbound::Outbound;
use crate::types::BridgeNotice;
use edgesync_protocol::timing::Now;

/// The kind of a request in flight.
#[derive(Debug)]
enum WatchRequest {
    /// Start the watch of a scope.
    Watch(Scope),
    /// End all watches outside of the complete set.
    Only,
}

/// The watches of the session and the requests for them.
#[derive(Debug, Default)]
pub(super) struct Watches {
    in_flight: BTreeMap<MessageId, (WatchRequest, Now, u32)>,
    /// The active watches of this session.
    watched: BTreeSet<Scope>,
    desired: BTreeSet<Scope>,
    /// Kinds that CloudCore may list in all namespaces.
    proven: BTreeSet<Scope>,
    /// The refused scopes already reported.
    denied: BTreeSet<Scope>,
    /// Whether CloudCore knows the complete set since its last change. One sync per process is due
    /// in any case, because the predecessor may have had other rules.
    is_synced: bool,
    /// Whether all lists of this round are complete.
    all_listed: bool,
}

/// A watch that CloudCore could not start.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failed {
    #[serde(default)]
    key: String,
    #[serde(default)]
    reason: String,
}

impl Watches {
    /// Ends the session: its watches and proofs are void.
    pub(super) fn forget(&mut self) {
        self.in_flight.clear();
        self.watched.clear();
        self.proven.clear();
        self.all_listed = false;
    }

    /// Sets the desired watches.
    pub(super) fn set_desired(&mut self, desired: BTreeSet<Scope>) {
        if !self.desired.is_subset(&desired) {
            self.is_synced = false;
        }
        self.watched.retain(|scope| desired.contains(scope));
        self.desired = desired;
    }

    /// Returns whether the scope is desired and not watched.
    pub(super) fn lacks(&self, scope: &Scope) -> bool {
        self.desired.contains(scope) && !self.watched.contains(scope)
    }

    /// Returns whether a namespace of this kind is desired and not watched.
    pub(super) fn lacks_below(&self, everywhere: &Scope) -> bool {
        self.desired.iter().any(|scope| scope.everywhere() == *everywhere && self.lacks(scope))
    }

    /// Records that a list of this kind in all namespaces was approved.
    pub(super) fn prove(&mut self, everywhere: &Scope) {
        self.denied.remove(everywhere);
        self.proven.insert(everywhere.clone());
    }

    /// Handles an approved list: a watch of its key is safe, if the kind is proven in all
    /// namespaces.
    pub(super) fn listed(&mut self, outbound: &mut Outbound, scope: &Scope) {
        if scope.rule.namespace.is_some() && !self.proven.contains(&scope.everywhere()) {
            return;
        }
        self.denied.remove(scope);
        let is_requested = |(request, ..): &(WatchRequest, Now, u32)| matches!(request, WatchRequest::Watch(request) if request == scope);
        if self.lacks(scope) && !self.in_flight.values().any(is_requested) {
            self.send(outbound, WatchRequest::Watch(scope.clone()), 1);
        }
    }

    fn send(&mut self, outbound: &mut Outbound, request: WatchRequest, attempt: u32) {
        let draft = match &request {
            WatchRequest::Watch(scope) => {
                message::application("null", Request::Watch { scope }.to_json(&outbound.config.node))
            }
            WatchRequest::Only => {
                let watched: Vec<_> = self.watched.iter().cloned().collect();
                message::application(
                    "watchapp/sync",
                    application::all_watches(&outbound.config.node, &watched),
                )
            }
        };
        let id = outbound.send(&draft);
        self.in_flight.insert(id, (request, outbound.at.now + outbound.config.answer_timeout, attempt));
    }

    /// Records that all lists are complete.
    pub(super) fn all_listed(&mut self) {
        self.all_listed = true;
    }

    /// Syncs the complete set with CloudCore once lists and watches are answered.
    pub(super) fn advance(&mut self, outbound: &mut Outbound) {
        if self.all_listed && !self.is_synced && self.in_flight.is_empty() {
            (self.is_synced, self.all_listed) = (true, false);
            self.send(outbound, WatchRequest::Only, 1);
        }
    }

    /// Handles a refusal, reported once per scope.
    pub(super) fn deny(&mut self, outbound: &mut Outbound, scope: &Scope, message: &str) {
        self.watched.remove(scope);
        if self.denied.insert(scope.clone()) {
            let what = scope.rule.to_string();
            outbound.notice(BridgeNotice::Denied { what, message: message.to_owned() });
        }
    }

    /// Handles an answer. Returns whether it belongs to these requests.
    pub(super) fn answered(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) -> bool {
        let request = incoming.parent.and_then(|id| self.in_flight.remove(&id));
        let Some((request, ..)) = request else { return false };
        match request {
            WatchRequest::Watch(scope) => match incoming.content.and_then(application::response) {
                Some(Response::Approved { .. }) => {
                    self.watched.insert(scope);
                }
                Some(Response::Refused(failure)) => self.deny(outbound, &scope, &failure.message),
                None => self.deny(outbound, &scope, "invalid response"),
            },
            WatchRequest::Only => self.take_failed(outbound, incoming),
        }
        true
    }

    fn take_failed(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) {
        let failed = incoming.content.map(RawValue::get);
        let failed: BTreeMap<String, Failed> =
            failed.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        for Failed { key, reason } in failed.into_values() {
            let scope = self.watched.iter().find(|scope| scope.key() == key).cloned();
            if let Some(scope) = scope {
                self.deny(outbound, &scope, &reason);
            }
        }
    }

    /// Repeats unanswered requests. Returns whether one has failed finally.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) -> bool {
        let now = outbound.at.now;
        let due: Vec<_> =
            self.in_flight.iter().filter(|(_, (_, until, _))| *until <= now).map(|(id, _)| *id).collect();
        let mut in_vain = false;
        for id in due {
            match self.in_flight.remove(&id) {
                Some((request, _, attempt)) if attempt < ATTEMPTS => {
                    self.send(outbound, request, attempt + 1);
                }
                Some((WatchRequest::Watch(_), ..)) => in_vain = true,
                // The next round syncs the set again.
                Some((WatchRequest::Only, ..)) => self.is_synced = false,
                None => {}
            }
        }
        in_vain
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.in_flight.values().map(|(_, until, _)| *until).min()
    }
}
