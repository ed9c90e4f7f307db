//! Why a connection could not be made or ended, in words an operator can act on. No type of any library.

use std::time::Duration;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The host's name has no address.
    #[error("cannot resolve the broker's name '{host}': {message}")]
    Dns {
        /// The configured host.
        host: String,
        /// What the resolver says.
        message: String,
    },
    /// The host answers, but nothing listens there.
    #[error("nothing listens at {peer}")]
    Refused {
        /// Host and port.
        peer: String,
    },
    /// TCP, CONNACK and SUBACK together took longer than allowed.
    #[error("{peer} did not complete the connection within {after:?}")]
    ConnectTimeout {
        /// Host and port.
        peer: String,
        /// The limit.
        after: Duration,
    },
    /// The network failed.
    #[error("connection to {peer} failed: {message}")]
    Network {
        /// Host and port.
        peer: String,
        /// What the system says.
        message: String,
    },
    /// Nothing was heard, not even an answer to a ping, or the peer stopped reading.
    #[error("the broker has been silent for {silent:?}: the connection is dead")]
    KeepAlive {
        /// For how long.
        silent: Duration,
    },
    /// The broker closed the connection and gave no reason.
    #[error("the broker closed the connection without a reason")]
    Closed,
    /// The broker does not let this client in or do this.
    #[error("the broker refused: {reason} (0x{code:02x}); check user name, password and access rules")]
    NotAuthorized {
        /// The MQTT reason code.
        code: u8,
        /// Its meaning and the broker's own words.
        reason: String,
    },
    /// The broker refused the connection for another reason.
    #[error("the broker refused the connection: {reason} (0x{code:02x})")]
    Rejected {
        /// The MQTT reason code.
        code: u8,
        /// Its meaning and the broker's own words.
        reason: String,
    },
    /// The broker refused a subscription.
    #[error("the broker refused the subscription to '{filter}': {reason} (0x{code:02x})")]
    SubscriptionRefused {
        /// The topic filter.
        filter: String,
        /// The MQTT reason code.
        code: u8,
        /// Its meaning.
        reason: String,
    },
    /// Another client uses the same client id. Two of them would throw each other out for ever.
    #[error(
        "another client has taken over the session of '{client_id}': two devices may have the same name; \
         waiting for minutes"
    )]
    TakenOver {
        /// The id both use.
        client_id: String,
    },
    /// The broker is shutting down or too busy.
    #[error("the broker says it is going away: {reason} (0x{code:02x})")]
    Unavailable {
        /// The MQTT reason code.
        code: u8,
        /// Its meaning and the broker's own words.
        reason: String,
    },
    /// The broker ended the connection for another reason.
    #[error("the broker ended the connection: {reason} (0x{code:02x})")]
    Ended {
        /// The MQTT reason code.
        code: u8,
        /// Its meaning and the broker's own words.
        reason: String,
    },
    /// A packet was larger than its receiver allows.
    #[error("a packet was too large: {detail}")]
    PacketTooLarge {
        /// Which one, with sizes where they are known.
        detail: String,
    },
    /// The broker broke the protocol.
    #[error("the broker broke the protocol: {detail}")]
    Protocol {
        /// How.
        detail: String,
    },
    /// This program did not take received messages for too long.
    #[error("received messages were not taken for {stalled:?}")]
    ConsumerStalled {
        /// For how long.
        stalled: Duration,
    },
    /// What this program wants to say on connecting cannot be said in MQTT.
    #[error("the presence message cannot be sent: {detail}")]
    BadIntroduction {
        /// Why.
        detail: String,
    },
    /// This program asked for a new connection.
    #[error("a new connection was asked for")]
    Asked,
}

impl Cause {
    /// A short fixed word for counters and status.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Dns { .. } => "dns",
            Self::Refused { .. } => "refused",
            Self::ConnectTimeout { .. } => "connect-timeout",
            Self::Network { .. } => "network",
            Self::KeepAlive { .. } => "keepalive",
            Self::Closed => "closed",
            Self::NotAuthorized { .. } => "not-authorized",
            Self::Rejected { .. } => "rejected",
            Self::SubscriptionRefused { .. } => "subscription-refused",
            Self::TakenOver { .. } => "taken-over",
            Self::Unavailable { .. } => "unavailable",
            Self::Ended { .. } => "ended",
            Self::PacketTooLarge { .. } => "packet-too-large",
            Self::Protocol { .. } => "protocol",
            Self::ConsumerStalled { .. } => "consumer-stalled",
            Self::BadIntroduction { .. } => "bad-introduction",
            Self::Asked => "asked",
        }
    }
}
