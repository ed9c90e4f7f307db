//! Causes of failed and lost connections, worded for operators. Contains no type of another
//! library.

use std::time::Duration;

use crate::connect::REFUSED;

/// Cause of a failed or lost connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The host's name has no address.
    #[error("resolve host name '{host}': {message}")]
    Dns {
        /// Host name in the configuration.
        host: String,
        /// Message of the resolver.
        message: String,
    },
    /// The host answers, but nothing listens there.
    #[error("connect to {peer}: {REFUSED}")]
    Refused {
        /// Host and port of the peer.
        peer: String,
    },
    /// TCP, TLS and the opening of MQTT or of the WebSocket together took longer than allowed.
    #[error("connect to {peer}: timed out after {after:?}")]
    ConnectTimeout {
        /// Host and port of the peer.
        peer: String,
        /// Limit for the attempt.
        after: Duration,
    },
    /// TCP failed, as the system reports.
    #[error("connection to {peer} failed: {message}")]
    Network {
        /// Host and port of the peer.
        peer: String,
        /// Message of the system.
        message: String,
    },
    /// The TLS handshake failed: one side refuses the other's certificate, or the peer does not
    /// speak TLS.
    #[error("TLS handshake with {peer} failed: {message}")]
    Tls {
        /// Host and port of the peer.
        peer: String,
        /// Label for metrics: [`HandshakeError::label`](crate::tls::HandshakeError::label).
        kind: &'static str,
        /// Problem and remedy, in one sentence.
        message: String,
    },
    /// Nothing was received, not even an answer to a ping, or the peer stopped reading.
    #[error("keepalive timeout: peer silent for {silent:?}")]
    KeepAlive {
        /// Duration of the silence.
        silent: Duration,
    },
    /// The peer closed the connection and gave no reason.
    #[error("connection closed by the peer without a reason")]
    Closed,
    /// The broker denies this client the connection or an operation.
    #[error(
        "refused by the broker: {reason} (0x{code:02x}); hint: check certificate, user name, password and access rules"
    )]
    NotAuthorized {
        /// The MQTT reason code.
        code: u8,
        /// Meaning of the code, and the broker's reason string.
        reason: String,
    },
    /// The broker refused the connection for another reason.
    #[error("connection refused by the broker: {reason} (0x{code:02x})")]
    Rejected {
        /// The MQTT reason code.
        code: u8,
        /// Meaning of the code, and the broker's reason string.
        reason: String,
    },
    /// The broker refused a subscription.
    #[error("subscription to '{filter}' refused by the broker: {reason} (0x{code:02x})")]
    SubscriptionRefused {
        /// Topic filter of the subscription.
        filter: String,
        /// The MQTT reason code.
        code: u8,
        /// Meaning of the reason code.
        reason: String,
    },
    /// Another client uses the same client id. Without a pause the two would disconnect each other
    /// for ever.
    #[error("session of '{client_id}' taken over by another client; hint: two devices with one name?")]
    TakenOver {
        /// Client id of both.
        client_id: String,
    },
    /// The broker is shutting down or too busy.
    #[error("broker unavailable: {reason} (0x{code:02x})")]
    Unavailable {
        /// The MQTT reason code.
        code: u8,
        /// Meaning of the code, and the broker's reason string.
        reason: String,
    },
    /// The broker ended the connection for another reason.
    #[error("connection closed by the broker: {reason} (0x{code:02x})")]
    Ended {
        /// The MQTT reason code.
        code: u8,
        /// Meaning of the code, and the broker's reason string.
        reason: String,
    },
    /// A packet was larger than its receiver allows.
    #[error("packet too large: {detail}")]
    PacketTooLarge {
        /// The packet, with sizes where they are known.
        detail: String,
    },
    /// The peer violated the protocol.
    #[error("protocol error: {detail}")]
    Protocol {
        /// Description of the violation.
        detail: String,
    },
    /// This program did not take received events for too long.
    #[error("received messages not processed for {stalled:?}")]
    ConsumerStalled {
        /// Duration of the stall.
        stalled: Duration,
    },
    /// Will or greetings cannot be expressed in MQTT.
    #[error("send presence message: {detail}")]
    BadIntroduction {
        /// Limit that they exceed.
        detail: String,
    },
    /// The peer refused the WebSocket upgrade.
    #[error("WebSocket upgrade with {peer} failed: {reason}")]
    Upgrade {
        /// Host and port of the peer.
        peer: String,
        /// Answer of the peer, and hints.
        reason: String,
    },
    /// The peer closed the WebSocket with a reason.
    #[error("connection closed by the peer: {reason}")]
    Parted {
        /// Code and reason string of the close frame.
        reason: String,
    },
    /// The proxy opens no tunnel.
    #[error("proxy {proxy} {problem}")]
    Proxy {
        /// Address of the proxy.
        proxy: String,
        /// Its answer, or why it has none, with a remedy.
        problem: String,
    },
    /// The peer accepts messages and answers none.
    #[error("peer accepts messages and does not respond: no session for this node")]
    Unanswered,
    /// The owner of the link has paused it, see
    /// [`LinkHandle::pause`](super::LinkHandle::pause).
    #[error("disconnected as planned")]
    Paused,
}

impl Cause {
    /// Number of variants of the enum.
    pub const COUNT: usize = Self::LABELS.len();
    /// Short fixed labels, in the order of [`Cause::index`]: for counters, status and metrics.
    pub const LABELS: [&'static str; 22] = [
        "dns",
        "refused",
        "connect-timeout",
        "network",
        "keepalive",
        "closed",
        "not-authorized",
        "rejected",
        "subscription-refused",
        "taken-over",
        "unavailable",
        "ended",
        "packet-too-large",
        "protocol",
        "consumer-stalled",
        "bad-introduction",
        "tls",
        "upgrade",
        "parted",
        "unanswered",
        "proxy",
        "paused",
    ];

    /// Returns the index of this cause's label in [`Cause::LABELS`].
    #[must_use]
    pub fn index(&self) -> usize {
        match self {
            Self::Dns { .. } => 0,
            Self::Refused { .. } => 1,
            Self::ConnectTimeout { .. } => 2,
            Self::Network { .. } => 3,
            Self::KeepAlive { .. } => 4,
            Self::Closed => 5,
            Self::NotAuthorized { .. } => 6,
            Self::Rejected { .. } => 7,
            Self::SubscriptionRefused { .. } => 8,
            Self::TakenOver { .. } => 9,
            Self::Unavailable { .. } => 10,
            Self::Ended { .. } => 11,
            Self::PacketTooLarge { .. } => 12,
            Self::Protocol { .. } => 13,
            Self::ConsumerStalled { .. } => 14,
            Self::BadIntroduction { .. } => 15,
            Self::Tls { .. } => 16,
            Self::Upgrade { .. } => 17,
            Self::Parted { .. } => 18,
            Self::Unanswered => 19,
            Self::Proxy { .. } => 20,
            Self::Paused => 21,
        }
    }

    /// Returns a short fixed label for counters and status.
    #[must_use]
    pub fn label(&self) -> &'static str {
        Self::LABELS.get(self.index()).copied().unwrap_or("other")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_labels_are_distinct() {
        let (code, reason) = (0x87, String::new());
        let all = [
            (Cause::Dns { host: String::new(), message: String::new() }, "dns"),
            (Cause::Refused { peer: String::new() }, "refused"),
            (Cause::ConnectTimeout { peer: String::new(), after: Duration::ZERO }, "connect-timeout"),
            (Cause::Network { peer: String::new(), message: String::new() }, "network"),
            (Cause::KeepAlive { silent: Duration::ZERO }, "keepalive"),
            (Cause::Closed, "closed"),
            (Cause::NotAuthorized { code, reason: reason.clone() }, "not-authorized"),
            (Cause::Rejected { code, reason: reason.clone() }, "rejected"),
            (
                Cause::SubscriptionRefused { filter: String::new(), code, reason: reason.clone() },
                "subscription-refused",
            ),
            (Cause::TakenOver { client_id: String::new() }, "taken-over"),
            (Cause::Unavailable { code, reason: reason.clone() }, "unavailable"),
            (Cause::Ended { code, reason }, "ended"),
            (Cause::PacketTooLarge { detail: String::new() }, "packet-too-large"),
            (Cause::Protocol { detail: String::new() }, "protocol"),
            (Cause::ConsumerStalled { stalled: Duration::ZERO }, "consumer-stalled"),
            (Cause::BadIntroduction { detail: String::new() }, "bad-introduction"),
            (Cause::Tls { peer: String::new(), kind: "refused", message: String::new() }, "tls"),
            (Cause::Upgrade { peer: String::new(), reason: String::new() }, "upgrade"),
            (Cause::Parted { reason: String::new() }, "parted"),
            (Cause::Unanswered, "unanswered"),
            (Cause::Proxy { proxy: String::new(), problem: String::new() }, "proxy"),
            (Cause::Paused, "paused"),
        ];
        assert_eq!(all.len(), Cause::COUNT);
        for (at, (cause, word)) in all.iter().enumerate() {
            assert_eq!((cause.index(), cause.label()), (at, *word));
        }
    }
}
