//! The watches of a session. A watch is asked for only after a list of the same key was approved.

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

/// What a question waits for.
#[derive(Debug)]
enum Asked {
    /// To be pushed what changes.
    Watch(Scope),
    /// To push nothing else.
    Only,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Watches {
    flight: BTreeMap<MessageId, (Asked, Now, u32)>,
    /// Watched in this session.
    watched: BTreeSet<Scope>,
    /// What is to be watched.
    wanted: BTreeSet<Scope>,
    /// Kinds that CloudCore may list in all namespaces.
    proven: BTreeSet<Scope>,
    /// What was refused, and was told: once is enough.
    denied: BTreeSet<Scope>,
    /// Whether CloudCore was told since the last change that nothing else is to be watched. Once in the life of the
    /// process is due in any case: its predecessor may have had other rules.
    is_told: bool,
    /// Whether all lists of this round are through.
    all_listed: bool,
}

/// A watch that CloudCore could not begin.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failed {
    #[serde(default)]
    key: String,
    #[serde(default)]
    reason: String,
}

impl Watches {
    /// The session is over.
    pub(super) fn forget(&mut self) {
        self.flight.clear();
        self.watched.clear();
        self.proven.clear();
        self.all_listed = false;
    }

    /// From now on these are to be watched.
    pub(super) fn want(&mut self, wanted: BTreeSet<Scope>) {
        if !self.wanted.is_subset(&wanted) {
            self.is_told = false;
        }
        self.watched.retain(|scope| wanted.contains(scope));
        self.wanted = wanted;
    }

    /// Whether it is to be watched and is not.
    pub(super) fn lacks(&self, scope: &Scope) -> bool {
        self.wanted.contains(scope) && !self.watched.contains(scope)
    }

    /// Whether one of the namespaces of this kind is to be watched and is not.
    pub(super) fn lacks_below(&self, everywhere: &Scope) -> bool {
        self.wanted.iter().any(|scope| scope.everywhere() == *everywhere && self.lacks(scope))
    }

    /// A list of this kind in all namespaces was approved.
    pub(super) fn prove(&mut self, everywhere: &Scope) {
        self.denied.remove(everywhere);
        self.proven.insert(everywhere.clone());
    }

    /// A list of this key was approved: it is safe to watch it, if that is so in all namespaces.
    pub(super) fn listed(&mut self, outbound: &mut Outbound, scope: &Scope) {
        if scope.rule.namespace.is_some() && !self.proven.contains(&scope.everywhere()) {
            return;
        }
        self.denied.remove(scope);
        let is_asked =
            |(asked, ..): &(Asked, Now, u32)| matches!(asked, Asked::Watch(asked) if asked == scope);
        if self.lacks(scope) && !self.flight.values().any(is_asked) {
            self.ask(outbound, Asked::Watch(scope.clone()), 1);
        }
    }

    fn ask(&mut self, outbound: &mut Outbound, asked: Asked, attempt: u32) {
        let draft = match &asked {
            Asked::Watch(scope) => {
                message::application("null", Request::Watch { scope }.to_json(&outbound.config.node))
            }
            Asked::Only => {
                let watched: Vec<_> = self.watched.iter().cloned().collect();
                message::application(
                    "watchapp/sync",
                    application::all_watches(&outbound.config.node, &watched),
                )
            }
        };
        let id = outbound.send(&draft);
        self.flight.insert(id, (asked, outbound.at.now + outbound.config.answer_timeout, attempt));
    }

    /// All lists are through.
    pub(super) fn all_listed(&mut self) {
        self.all_listed = true;
    }

    /// Once the watches are answered too, CloudCore is told to forget all others.
    pub(super) fn advance(&mut self, outbound: &mut Outbound) {
        if self.all_listed && !self.is_told && self.flight.is_empty() {
            (self.is_told, self.all_listed) = (true, false);
            self.ask(outbound, Asked::Only, 1);
        }
    }

    /// Something was refused.
    pub(super) fn deny(&mut self, outbound: &mut Outbound, scope: &Scope, message: &str) {
        self.watched.remove(scope);
        if self.denied.insert(scope.clone()) {
            let what = scope.rule.to_string();
            outbound.notice(BridgeNotice::Denied { what, message: message.to_owned() });
        }
    }

    /// Takes an answer. Returns whether it is one to these questions.
    pub(super) fn answered(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) -> bool {
        let asked = incoming.parent.and_then(|id| self.flight.remove(&id));
        let Some((asked, ..)) = asked else { return false };
        match asked {
            Asked::Watch(scope) => match incoming.content.and_then(application::response) {
                Some(Response::Approved { .. }) => {
                    self.watched.insert(scope);
                }
                Some(Response::Refused(failure)) => self.deny(outbound, &scope, &failure.message),
                None => self.deny(outbound, &scope, "the answer cannot be read"),
            },
            Asked::Only => self.take_failed(outbound, incoming),
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

    /// Asks again what was not answered. Returns whether that was in vain.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) -> bool {
        let now = outbound.at.now;
        let due: Vec<_> =
            self.flight.iter().filter(|(_, (_, until, _))| *until <= now).map(|(id, _)| *id).collect();
        let mut in_vain = false;
        for id in due {
            match self.flight.remove(&id) {
                Some((asked, _, attempt)) if attempt < ATTEMPTS => {
                    self.ask(outbound, asked, attempt + 1);
                }
                Some((Asked::Watch(_), ..)) => in_vain = true,
                // The next round tells it.
                Some((Asked::Only, ..)) => self.is_told = false,
                None => {}
            }
        }
        in_vain
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.flight.values().map(|(_, until, _)| *until).min()
    }
}
