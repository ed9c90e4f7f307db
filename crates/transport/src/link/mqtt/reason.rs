//! Converts rumqttc's errors and reason codes into a [`Cause`].

use rumqttc::v5::StateError;
use rumqttc::v5::mqttbytes::v5::{
    ConnAck, ConnAckProperties, ConnectReturnCode, Disconnect, DisconnectReasonCode, PubAck, PubAckReason,
    SubscribeReasonCode,
};

use super::wire::{WireError, words};
use crate::link::Cause;

/// Limit for the broker's reason string, in characters.
const SHOWN: usize = 200;

fn with_text(meaning: &str, text: Option<&String>) -> String {
    match text {
        Some(text) if !text.is_empty() => {
            let shown: String = text.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
            format!("{meaning}: {shown}")
        }
        _ => meaning.to_owned(),
    }
}

/// Converts a CONNACK that refuses the connection.
pub(super) fn of_connack(connack: &ConnAck) -> Cause {
    use ConnectReturnCode as Code;
    let text = connack.properties.as_ref().and_then(|p: &ConnAckProperties| p.reason_string.as_ref());
    let reason = with_text(&words(connack.code), text);
    let code = connack_number(connack.code);
    match connack.code {
        Code::NotAuthorized | Code::BadUserNamePassword | Code::Banned | Code::BadAuthenticationMethod => {
            Cause::NotAuthorized { code, reason }
        }
        Code::ServerBusy | Code::ServerUnavailable | Code::ConnectionRateExceeded | Code::QuotaExceeded => {
            Cause::Unavailable { code, reason }
        }
        Code::PacketTooLarge => Cause::PacketTooLarge { detail: "CONNECT refused by the broker".into() },
        _ => Cause::Rejected { code, reason },
    }
}

/// Returns the number of a reason code; rumqttc's table is private.
fn connack_number(code: ConnectReturnCode) -> u8 {
    use ConnectReturnCode as Code;
    match code {
        Code::Success => 0x00,
        Code::RefusedProtocolVersion => 0x01,
        Code::BadClientId => 0x02,
        Code::ServiceUnavailable => 0x03,
        Code::UnspecifiedError => 0x80,
        Code::MalformedPacket => 0x81,
        Code::ProtocolError => 0x82,
        Code::ImplementationSpecificError => 0x83,
        Code::UnsupportedProtocolVersion => 0x84,
        Code::ClientIdentifierNotValid => 0x85,
        Code::BadUserNamePassword => 0x86,
        Code::NotAuthorized => 0x87,
        Code::ServerUnavailable => 0x88,
        Code::ServerBusy => 0x89,
        Code::Banned => 0x8a,
        Code::BadAuthenticationMethod => 0x8c,
        Code::TopicNameInvalid => 0x90,
        Code::PacketTooLarge => 0x95,
        Code::QuotaExceeded => 0x97,
        Code::PayloadFormatInvalid => 0x99,
        Code::RetainNotSupported => 0x9a,
        Code::QoSNotSupported => 0x9b,
        Code::UseAnotherServer => 0x9c,
        Code::ServerMoved => 0x9d,
        Code::ConnectionRateExceeded => 0x9f,
    }
}

/// Converts a DISCONNECT from the broker.
pub(super) fn of_disconnect(disconnect: &Disconnect, client_id: &str) -> Cause {
    let text = disconnect.properties.as_ref().and_then(|p| p.reason_string.as_ref());
    of_disconnect_code(disconnect.reason_code, text, client_id)
}

fn of_disconnect_code(code: DisconnectReasonCode, text: Option<&String>, client_id: &str) -> Cause {
    use DisconnectReasonCode as Code;
    let reason = with_text(&words(code), text);
    let number = code as u8;
    match code {
        Code::SessionTakenOver => Cause::TakenOver { client_id: client_id.to_owned() },
        Code::NotAuthorized => Cause::NotAuthorized { code: number, reason },
        Code::ServerShuttingDown | Code::ServerBusy | Code::ConnectionRateExceeded => {
            Cause::Unavailable { code: number, reason }
        }
        Code::PacketTooLarge => Cause::PacketTooLarge { detail: "sent packet refused by the broker".into() },
        _ => Cause::Ended { code: number, reason },
    }
}

/// Converts an error of rumqttc's state machine.
pub(super) fn of_state(error: StateError, client_id: &str) -> Cause {
    match error {
        StateError::ServerDisconnect { reason_code, reason_string } => {
            of_disconnect_code(reason_code, reason_string.as_ref(), client_id)
        }
        other => Cause::Protocol { detail: other.to_string().to_lowercase() },
    }
}

/// Converts an error of the packet parser.
pub(super) fn of_wire(error: &WireError) -> Cause {
    match error {
        WireError::TooLarge { size, limit } => {
            Cause::PacketTooLarge { detail: format!("received {size} bytes, limit {limit}") }
        }
        other => Cause::Protocol { detail: other.to_string() },
    }
}

/// Returns the reason for refusing a subscription; `None` if it was granted.
pub(super) fn of_suback(code: SubscribeReasonCode, filter: &str) -> Option<Cause> {
    use SubscribeReasonCode as Code;
    let number = match code {
        Code::Success(_) => return None,
        Code::Failure | Code::Unspecified => 0x80,
        Code::ImplementationSpecific => 0x83,
        Code::NotAuthorized => 0x87,
        Code::TopicFilterInvalid => 0x8f,
        Code::PkidInUse => 0x91,
        Code::QuotaExceeded => 0x97,
        Code::SharedSubscriptionsNotSupported => 0x9e,
        Code::SubscriptionIdNotSupported => 0xa1,
        Code::WildcardSubscriptionsNotSupported => 0xa2,
    };
    let filter = filter.to_owned();
    Some(Cause::SubscriptionRefused { filter, code: number, reason: words(code) })
}

/// Outcome of a publish.
pub(super) enum Outcome {
    Accepted,
    NoSubscriber,
    Rejected { code: u8, reason: String },
}

/// Parses the outcome from a PUBACK.
pub(super) fn of_puback(puback: &PubAck) -> Outcome {
    use PubAckReason as Reason;
    let code = match puback.reason {
        Reason::Success => return Outcome::Accepted,
        Reason::NoMatchingSubscribers => return Outcome::NoSubscriber,
        Reason::UnspecifiedError => 0x80,
        Reason::ImplementationSpecificError => 0x83,
        Reason::NotAuthorized => 0x87,
        Reason::TopicNameInvalid => 0x90,
        Reason::PacketIdentifierInUse => 0x91,
        Reason::QuotaExceeded => 0x97,
        Reason::PayloadFormatInvalid => 0x99,
    };
    let text = puback.properties.as_ref().and_then(|p| p.reason_string.as_ref());
    Outcome::Rejected { code, reason: with_text(&words(puback.reason), text) }
}
