//! State of the connection to the cloud: link, presence, admission.

use std::time::Duration;

use jiff::Timestamp;

use super::wire::PendingMessage;
use edgesync_transport::link::presence::CloudPresence;

/// State of the link, for the status.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkState {
    pub(super) connected: bool,
    /// Whether the node has been in sync on this connection.
    pub(super) was_in_sync: bool,
    pub(super) since: Option<Timestamp>,
    pub(super) cause: Option<String>,
    pub(super) retry_in: Duration,
    pub(super) reconnects: u64,
}

/// Effect of a presence message on the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloudChange {
    Unchanged,
    Offline,
    /// Online again, or restarted.
    Returned,
}

/// Tracks link, presence and admission.
#[derive(Default)]
pub(super) struct Connection {
    pub(super) link: LinkState,
    cloud_boot: Option<String>,
    pub(super) cloud_online: Option<bool>,
    /// Whether the cloud has reported this node as removed from the fleet.
    pub(super) removed: bool,
    /// Why the cloud refuses this node; `None` once it welcomes it.
    pub(super) refusal: Option<String>,
    /// Time from the last Hello to its Welcome.
    pub(super) welcome_round_trip: Option<Duration>,
    /// The message that waits for space in the link's queue.
    waiting: Option<PendingMessage>,
}

impl Connection {
    /// Records that the link is up.
    pub(super) fn up(&mut self) {
        self.link = LinkState {
            connected: true,
            since: Some(Timestamp::now()),
            reconnects: self.link.reconnects + 1,
            ..LinkState::default()
        };
    }

    /// Records a failed connection or attempt, and drops the waiting message.
    pub(super) fn down(&mut self, cause: String, retry_in: Duration) {
        let LinkState { was_in_sync, reconnects, .. } = self.link;
        self.link = LinkState {
            connected: false,
            was_in_sync,
            since: Some(Timestamp::now()),
            cause: Some(cause),
            retry_in,
            reconnects,
        };
        self.waiting = None;
    }

    /// Clears the presence of the cloud: the broker resends the retained one. The endpoint of the
    /// cloud side sends it only when it changes.
    pub(super) fn forget_presence(&mut self, is_endpoint: bool) {
        self.cloud_boot = is_endpoint.then(String::new);
        self.cloud_online = is_endpoint.then_some(true);
    }

    /// Records the presence of the cloud.
    pub(super) fn observe_cloud(&mut self, presence: CloudPresence) -> CloudChange {
        let CloudPresence { boot, online } = presence;
        let was_online = self.cloud_online.replace(online);
        let is_other = self.cloud_boot.as_ref().is_some_and(|known| *known != boot);
        self.cloud_boot = Some(boot);
        match online {
            false => CloudChange::Offline,
            true if was_online == Some(false) || is_other => CloudChange::Returned,
            true => CloudChange::Unchanged,
        }
    }

    /// Records a Welcome: the cloud admits this node.
    pub(super) fn welcomed(&mut self, round_trip: Duration) {
        self.removed = false;
        self.refusal = None;
        self.welcome_round_trip = Some(round_trip);
    }

    /// Records the node's removal from the fleet. Returns whether it was not recorded before.
    pub(super) fn remove(&mut self) -> bool {
        !std::mem::replace(&mut self.removed, true)
    }

    /// Holds a message until the link's queue has space.
    pub(super) fn hold(&mut self, message: PendingMessage) {
        self.waiting = Some(message);
    }

    /// Returns the waiting message for another attempt.
    pub(super) fn take_waiting(&mut self) -> Option<PendingMessage> {
        self.waiting.take()
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(boot: &str, online: bool) -> CloudPresence {
        CloudPresence { boot: boot.to_owned(), online }
    }

    #[test]
    fn a_cloud_returns_when_it_was_offline_or_restarted() {
        let mut connection = Connection::default();
        assert_eq!(connection.observe_cloud(presence("a", true)), CloudChange::Unchanged);
        assert_eq!(connection.observe_cloud(presence("a", true)), CloudChange::Unchanged);
        assert_eq!(connection.observe_cloud(presence("b", true)), CloudChange::Returned);
        assert_eq!(connection.observe_cloud(presence("b", false)), CloudChange::Offline);
        assert_eq!(connection.observe_cloud(presence("b", true)), CloudChange::Returned);
        connection.forget_presence(false);
        assert_eq!(connection.observe_cloud(presence("c", true)), CloudChange::Unchanged);
        connection.forget_presence(true);
        assert_eq!(connection.cloud_online, Some(true));
        assert_eq!(connection.observe_cloud(presence("c", true)), CloudChange::Returned);
    }

    #[test]
    fn the_link_counts_connections_and_drops_the_waiting_message() {
        let mut connection = Connection::default();
        connection.up();
        connection.link.was_in_sync = true;
        connection.hold(PendingMessage { name: "Report", topic: String::new(), bytes: Vec::new() });
        connection.down("broken pipe".to_owned(), Duration::from_secs(3));
        assert!(!connection.is_waiting());
        assert!(connection.link.was_in_sync, "until the next connection");
        assert_eq!((connection.link.connected, connection.link.reconnects), (false, 1));
        connection.up();
        assert_eq!((connection.link.was_in_sync, connection.link.reconnects), (false, 2));
        assert_eq!(connection.link.cause, None);
    }

    #[test]
    fn a_removal_is_new_once_until_the_cloud_admits_the_node() {
        let mut connection = Connection::default();
        assert!(connection.remove());
        assert!(!connection.remove());
        connection.refusal = Some("no".to_owned());
        connection.welcomed(Duration::from_millis(1));
        assert_eq!((connection.removed, &connection.refusal), (false, &None));
        assert!(connection.remove());
    }
}
