//! Conditions of a Node that the cloud sets. Pure.

use edgesync_protocol::node::{
    CLOUD_REACHABLE, Condition, ConditionStatus, DISK_PRESSURE, IN_SYNC, NodeReason, READY, STORE_HEALTHY,
    TRAFFIC_BUDGET_SPENT,
};

use super::{Life, Liveness, Sync};

/// Conditions assumed for a node that has not reported its own.
const OWN: [&str; 3] = [STORE_HEALTHY, DISK_PRESSURE, TRAFFIC_BUDGET_SPENT];

/// Numbers of missing objects of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SyncState {
    pub(crate) in_sync: bool,
    pub(crate) pending: u64,
    pub(crate) rejected: u64,
    pub(crate) held: u64,
    /// Objects that wait for the node's link.
    pub(crate) waiting: u64,
}

/// Published form of a [`SyncState`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyncCondition {
    pub(super) reason: NodeReason,
    pub(super) message: String,
    /// Number of held-back removals; an operator confirms the published number.
    pub(super) held: u64,
}

/// Texts that follow a number of objects in the message.
const PENDING: &str = "to be sent or removed";
const REJECTED: &str = "rejected by the node";
const HELD: &str = "held back from removal until confirmed";
const WAITING: &str = "waiting for the link";

/// Numbers parsed from a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub pending: u64,
    pub rejected: u64,
    pub held: u64,
    pub waiting: u64,
}

impl Counts {
    /// Parses a message of [`SyncState::condition`]. Missing numbers are zero.
    pub fn read(message: &str) -> Self {
        let count = |what: &str| {
            let part = message.split(", ").find_map(|part| part.strip_suffix(what));
            let number = part.and_then(|part| part.split(' ').next()?.parse().ok());
            number.unwrap_or_default()
        };
        Self {
            pending: count(PENDING),
            rejected: count(REJECTED),
            held: count(HELD),
            waiting: count(WAITING),
        }
    }
}

impl SyncCondition {
    pub(super) fn status(&self) -> ConditionStatus {
        self.reason.fields().status
    }

    /// Returns whether this is published in place of the other.
    pub(super) fn differs_from(&self, other: &Self) -> bool {
        self.reason != other.reason || self.held != other.held
    }
}

impl SyncState {
    /// Returns the published form. Reasons that only an operator can resolve come first.
    pub(super) fn condition(&self) -> SyncCondition {
        let reason = match self {
            Self { in_sync: true, .. } => NodeReason::InSync,
            Self { held: 1.., .. } => NodeReason::RemovalsHeldBack,
            Self { rejected: 1.., .. } => NodeReason::ObjectsRejected,
            Self { pending: 0, waiting: 1.., .. } => NodeReason::ObjectsWaiting,
            _ => NodeReason::ObjectsPending,
        };
        if self.in_sync {
            let message = "all desired objects are held at their latest version".to_owned();
            return SyncCondition { reason, message, held: 0 };
        }
        let counts =
            [(self.pending, PENDING), (self.rejected, REJECTED), (self.held, HELD), (self.waiting, WAITING)];
        let mut parts: Vec<String> = Vec::new();
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            let noun = if count == 1 { "object" } else { "objects" };
            parts.push(format!("{count} {noun} {what}"));
        }
        if parts.is_empty() {
            parts.push("recording a report".to_owned());
        }
        SyncCondition { reason, message: parts.join(", "), held: self.held }
    }
}

impl Liveness {
    /// Returns the current conditions; reported ones only if they must be restored.
    pub(super) fn conditions(&self) -> Vec<Condition> {
        match self.life {
            Life::Unknown => Vec::new(),
            Life::Lost => self.all_unknown(),
            Life::Away => self.away(),
            Life::Welcomed | Life::Renewed => self.alive(),
        }
    }

    fn alive(&self) -> Vec<Condition> {
        let mut conditions = Vec::new();
        match self.life {
            Life::Renewed => {
                conditions.push(Condition::new(NodeReason::AgentReady, "agent is renewing its Lease"));
            }
            // Its Lease expired after an earlier renewal; that may not be written yet.
            Life::Welcomed if self.arrived.is_some() => conditions.push(Condition::unknown(READY)),
            _ => {}
        }
        conditions.push(Condition::new(NodeReason::Connected, "node is connected to the cloud side"));
        conditions.extend(self.sync.as_ref().map(Sync::published));
        if self.restore {
            let own = self.reported.iter().flat_map(|own| own.iter().cloned());
            conditions.extend(own.map(|own| Condition { last_transition_time: None, ..own }));
        }
        conditions
    }

    fn all_unknown(&self) -> Vec<Condition> {
        let mut conditions: Vec<Condition> =
            [READY, CLOUD_REACHABLE, IN_SYNC].into_iter().map(Condition::unknown).collect();
        match &self.reported {
            Some(own) => conditions.extend(own.iter().map(|own| Condition::unknown(&own.condition))),
            None => conditions.extend(OWN.map(Condition::unknown)),
        }
        conditions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_message_is_parsed_into_its_counts() {
        for pending in [0, 1, 20] {
            for rejected in [0, 1, 300] {
                for held in [0, 1, 4000] {
                    for waiting in [0, 1, 50_000] {
                        let state = SyncState { in_sync: false, pending, rejected, held, waiting };
                        let published = state.condition();
                        assert_eq!(
                            Counts::read(&published.message),
                            Counts { pending, rejected, held, waiting },
                            "{published:?}"
                        );
                        assert_eq!(published.held, held);
                    }
                }
            }
        }
        let in_sync = SyncState { in_sync: true, ..SyncState::default() }.condition();
        let lost = Condition::unknown(IN_SYNC).message;
        for message in [&*in_sync.message, &*lost, "", "many objects rejected by the node"] {
            assert_eq!(Counts::read(message), Counts::default(), "{message}");
        }
    }
}
