//! Planned absences: Events of missed check-ins, and requests to stay.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Fleet;
use super::cloud_events::CloudEvent;
use super::nodes::NodeId;
use super::reconciler::Reconciler;
use super::requests::{EventCause, Response};
use crate::lifecycle::MissedCheckIn;
use crate::source::Source;
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Object};

/// Reason of the Event of a missed check-in.
const MISSED: &str = "CheckInMissed";

impl<S: Source> Fleet<S> {
    /// Emits an Event for each node that has become overdue, a few at a time.
    pub(super) fn emit_missed(&mut self) {
        while let Some(MissedCheckIn { node, due }) = self.reconciler.nodes.lifecycle.next_missed() {
            tracing::warn!(node = node.as_str(), due = %rfc3339(due), "planned check-in missed");
            let uid = self.reconciler.nodes.uid(&node).map(ToString::to_string);
            let event = missed_event(&node, uid.as_deref(), due, Timestamp::now());
            self.requests.ask(|source| async move {
                Response::EventEmitted(source.emit_event(event).await, EventCause::MissedCheckIn)
            });
        }
    }
}

/// Returns the Event of a missed check-in. Its name is that of the absence, also after a restart:
/// the Lease has the time in seconds.
fn missed_event(node: &NodeName, uid: Option<&str>, due: Timestamp, now: Timestamp) -> Object {
    let mut regarding = json!({"apiVersion": "v1", "kind": "Node", "name": node});
    if let Some(uid) = uid {
        regarding["uid"] = Value::from(uid);
    }
    let event = CloudEvent {
        name: format!("{node}.{:x}", due.as_second()),
        namespace: "default",
        regarding,
        action: "CheckIn",
        reason: MISSED,
        note: format!("not connected at its check-in of {}", rfc3339(due)),
        is_warning: true,
    };
    event.at(now)
}

/// Sets the time until which an operator asks a node to stay, from its Node.
pub(super) fn set_stay(reconciler: &mut Reconciler, name: &NodeName, until: Option<Timestamp>) {
    if reconciler.nodes.set_stay(name, until)
        && let Some(id) = reconciler.nodes.id(name)
        && ask_to_stay(reconciler, id)
    {
        reconciler.nodes.touch(id);
    }
}

/// Asks a connected node to stay for as long as its Node says. Returns whether a frame waits;
/// within a turn of the node it is sent by that turn.
pub(super) fn ask_to_stay(reconciler: &mut Reconciler, id: NodeId) -> bool {
    let Some(name) = reconciler.nodes.name(id) else { return false };
    let until = reconciler.nodes.stay(&name);
    let seconds =
        until.and_then(|until| u64::try_from(until.duration_since(Timestamp::now()).as_secs()).ok());
    let seconds = seconds.filter(|seconds| *seconds > 0);
    reconciler.nodes.get_mut(id).is_some_and(|node| node.machine.set_stay(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_name;

    #[test]
    fn event_names_the_node_and_the_planned_time() {
        let at: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let event = missed_event(&node_name("edge-1"), Some("u-1"), at, at);
        let fields = event.fields();
        assert_eq!(
            fields["regarding"],
            json!({"apiVersion": "v1", "kind": "Node", "name": "edge-1", "uid": "u-1"})
        );
        assert_eq!(fields["note"], "not connected at its check-in of 2026-11-21T10:00:00Z");
        assert!(event.name().starts_with("edge-1."));
        let stored: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let exact = "2026-11-21T10:00:00.25Z".parse().unwrap();
        let [first, again] = [exact, stored].map(|due| missed_event(&node_name("edge-1"), None, due, at));
        assert_eq!(first.name(), again.name(), "one absence, by the next process");
        let later = missed_event(&node_name("edge-1"), None, Timestamp::MAX, at);
        assert_ne!(event.name(), later.name(), "each absence has its own");
    }
}
