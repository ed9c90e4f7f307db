//! Whether a CONNECT is let in, and on which terms. Pure.

use std::time::Duration;

use bytes::Bytes;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    ConnAck, ConnAckProperties, Connect, ConnectReturnCode, LastWill, Login, Packet,
};
use uuid::Uuid;

use super::BrokerOptions;
use super::access::{self, Target};
use super::wire::{Bearer, brief};
use edgesync_object::NodeName;

/// QoS 1 publishes a client may have on the way to us. What we have not handled we have not read, so this
/// costs nothing; it is announced because some clients take the default of 65,535 as a promise.
const RECEIVE_MAXIMUM: u16 = 1024;

/// A client that was let in.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) node: NodeName,
    /// How often the client must be heard of.
    pub(super) keepalive: Duration,
    /// The largest packet the client takes, in bytes.
    pub(super) max_packet: u32,
    /// QoS 1 publishes the client takes at a time.
    pub(super) inflight: u16,
    pub(super) will: Option<Will>,
    pub(super) connack: Packet,
}

/// What is published for a client that goes without a farewell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Will {
    pub(super) target: Target,
    pub(super) payload: Bytes,
    pub(super) retain: bool,
}

/// A client that was not let in.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: ConnectReturnCode,
    pub(super) reason: String,
    /// Whether the client claims to be somebody that its certificate does not name.
    pub(super) impostor: bool,
}

impl Refusal {
    pub(super) fn new(code: ConnectReturnCode, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), impostor: false }
    }

    fn impostor(code: ConnectReturnCode, reason: String) -> Self {
        Self { code, reason, impostor: true }
    }

    /// The answer to the client.
    pub(super) fn connack(&self) -> Packet {
        let properties = ConnAckProperties { reason_string: Some(self.reason.clone()), ..no_properties() };
        Packet::ConnAck(ConnAck { session_present: false, code: self.code, properties: Some(properties) })
    }
}

/// Decides on a CONNECT.
///
/// The certificate names the node. Without TLS, on this machine alone, the user name does if there is one, and else
/// the client id. The password is not looked at.
pub(super) fn admit(
    options: &BrokerOptions,
    connect: Connect,
    will: Option<LastWill>,
    login: Option<Login>,
    bearer: &Bearer,
) -> Result<Admitted, Refusal> {
    let asked = connect.properties;
    if asked.as_ref().is_some_and(|asked| asked.authentication_method.is_some()) {
        let code = ConnectReturnCode::BadAuthenticationMethod;
        return Err(Refusal::new(code, "extended authentication is not supported"));
    }
    let (node, assigned) = node_name(connect.client_id, login, bearer)?;
    let will = will.map(|will| check_will(options, &node, &will)).transpose()?;
    let (keepalive, server_keep_alive) = keepalive(options, connect.keep_alive);
    let max_packet = asked.as_ref().and_then(|asked| asked.max_packet_size).unwrap_or(u32::MAX);
    let inflight = asked.as_ref().and_then(|asked| asked.receive_maximum).unwrap_or(u16::MAX);
    if max_packet == 0 || inflight == 0 {
        return Err(Refusal::new(ConnectReturnCode::ProtocolError, "a limit of zero in the connect packet"));
    }
    let properties = ConnAckProperties {
        session_expiry_interval: Some(0),
        receive_max: Some(RECEIVE_MAXIMUM),
        max_qos: Some(1),
        max_packet_size: Some(options.max_packet),
        assigned_client_identifier: assigned,
        subscription_identifiers_available: Some(0),
        shared_subscription_available: Some(0),
        server_keep_alive,
        ..no_properties()
    };
    let connack =
        ConnAck { session_present: false, code: ConnectReturnCode::Success, properties: Some(properties) };
    Ok(Admitted {
        node,
        keepalive,
        max_packet: max_packet.min(options.max_packet),
        inflight: inflight.min(options.inflight),
        will,
        connack: Packet::ConnAck(connack),
    })
}

/// The name of the node, and its client id if it left that to us.
fn node_name(
    client_id: String,
    login: Option<Login>,
    bearer: &Bearer,
) -> Result<(NodeName, Option<String>), Refusal> {
    let user = login.map(|login| login.username).filter(|user| !user.is_empty());
    let anonymous = client_id.is_empty();
    match bearer {
        Bearer::Local => {
            let assigned = anonymous.then(|| format!("auto-{}", Uuid::new_v4()));
            let client_id = assigned.clone().unwrap_or(client_id);
            claimed_name(client_id, user).map(|node| (node, assigned))
        }
        Bearer::Stranger(who) => {
            let reason =
                format!("only nodes are let in, with a certificate of O=system:nodes; this is {who}");
            Err(Refusal::impostor(ConnectReturnCode::NotAuthorized, reason))
        }
        Bearer::Node { name, .. } => {
            let other = |what: &str, given: &str| {
                format!("{what} is '{}', the certificate is for '{name}'; leave it out", brief(given))
            };
            if let Some(user) = user.filter(|user| *name != **user) {
                let reason = other("the user name", &user);
                return Err(Refusal::impostor(ConnectReturnCode::NotAuthorized, reason));
            }
            if !anonymous && *name != *client_id {
                let reason = other("the client id", &client_id);
                return Err(Refusal::impostor(ConnectReturnCode::ClientIdentifierNotValid, reason));
            }
            Ok((name.clone(), anonymous.then(|| name.to_string())))
        }
    }
}

/// The name that a client of this machine gives itself.
fn claimed_name(client_id: String, user: Option<String>) -> Result<NodeName, Refusal> {
    let (name, code, what) = match user {
        Some(user) => (user, ConnectReturnCode::BadUserNamePassword, "the user name"),
        None => (client_id, ConnectReturnCode::ClientIdentifierNotValid, "the client id"),
    };
    let problem = |problem| Refusal::new(code, format!("{what} is the node's name and {problem}"));
    NodeName::try_from(name).map_err(problem)
}

fn check_will(options: &BrokerOptions, node: &str, will: &LastWill) -> Result<Will, Refusal> {
    if will.qos == QoS::ExactlyOnce {
        return Err(Refusal::new(ConnectReturnCode::QoSNotSupported, "the will has QoS 2"));
    }
    if will.message.len() > options.max_retained_bytes {
        let reason = format!("the will is longer than {} bytes", options.max_retained_bytes);
        return Err(Refusal::new(ConnectReturnCode::QuotaExceeded, reason));
    }
    let topic = std::str::from_utf8(&will.topic).ok();
    let target = topic.and_then(|topic| access::may_publish(&options.topics, node, topic));
    let Some(target) = target else {
        return Err(Refusal::new(
            ConnectReturnCode::NotAuthorized,
            "the will is for a topic of someone else",
        ));
    };
    // A copy, so that the buffer of the CONNECT is not kept for the life of the connection.
    Ok(Will { target, payload: Bytes::copy_from_slice(&will.message), retain: will.retain })
}

/// The client's keep-alive, or ours if it has none or a longer one; then the client must be told.
fn keepalive(options: &BrokerOptions, asked: u16) -> (Duration, Option<u16>) {
    let longest = u16::try_from(options.max_keepalive.as_secs()).unwrap_or(u16::MAX);
    if asked == 0 || asked > longest {
        (Duration::from_secs(longest.into()), Some(longest))
    } else {
        (Duration::from_secs(asked.into()), None)
    }
}

fn no_properties() -> ConnAckProperties {
    ConnAckProperties {
        session_expiry_interval: None,
        receive_max: None,
        max_qos: None,
        retain_available: None,
        max_packet_size: None,
        assigned_client_identifier: None,
        topic_alias_max: None,
        reason_string: None,
        user_properties: Vec::new(),
        wildcard_subscription_available: None,
        subscription_identifiers_available: None,
        shared_subscription_available: None,
        server_keep_alive: None,
        response_information: None,
        server_reference: None,
        authentication_method: None,
        authentication_data: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without TLS.
    fn admit(
        options: &BrokerOptions,
        connect: Connect,
        will: Option<LastWill>,
        login: Option<Login>,
    ) -> Result<Admitted, Refusal> {
        super::admit(options, connect, will, login, &Bearer::Local)
    }

    fn connect(client_id: &str, keep_alive: u16) -> Connect {
        Connect { keep_alive, client_id: client_id.to_owned(), clean_start: true, properties: None }
    }

    fn will(topic: &str) -> Option<LastWill> {
        Some(LastWill::new(topic, "gone", QoS::AtLeastOnce, true, None))
    }

    fn code(result: Result<Admitted, Refusal>) -> ConnectReturnCode {
        result.unwrap_err().code
    }

    fn properties(admitted: &Admitted) -> &ConnAckProperties {
        match &admitted.connack {
            Packet::ConnAck(connack) => connack.properties.as_ref().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_user_name_names_the_node_and_the_client_id_stands_in_for_it() {
        let options = BrokerOptions::default();
        let named = admit(&options, connect("Client 1", 5), None, Some(Login::new("node-1", ""))).unwrap();
        assert_eq!(&*named.node, "node-1");
        let unnamed = admit(&options, connect("node-2", 5), None, None).unwrap();
        assert_eq!(&*unnamed.node, "node-2");
        let bad_user = admit(&options, connect("a", 5), None, Some(Login::new("A/#", "")));
        assert_eq!(code(bad_user), ConnectReturnCode::BadUserNamePassword);
        let bad_id = admit(&options, connect("../x", 5), None, None);
        assert_eq!(code(bad_id), ConnectReturnCode::ClientIdentifierNotValid);
    }

    #[test]
    fn an_empty_client_id_is_replaced_and_told() {
        let admitted = admit(&BrokerOptions::default(), connect("", 5), None, None).unwrap();
        let assigned = properties(&admitted).assigned_client_identifier.clone().unwrap();
        assert_eq!(*admitted.node, *assigned);
    }

    #[test]
    fn with_a_certificate_its_node_counts_whatever_the_client_says() {
        let options = BrokerOptions::default();
        let node = Bearer::Node { name: NodeName::parse("n-1").unwrap(), until: jiff::Timestamp::MAX };
        let ask = |bearer: &Bearer, client_id: &str, user: Option<&str>| {
            let login = user.map(|user| Login::new(user, "x"));
            super::admit(&options, connect(client_id, 5), None, login, bearer)
        };
        for (client_id, user) in [("n-1", None), ("n-1", Some("n-1")), ("n-1", Some("")), ("", Some("n-1"))] {
            assert_eq!(&*ask(&node, client_id, user).unwrap().node, "n-1", "{client_id} {user:?}");
        }
        let admitted = ask(&node, "", None).unwrap();
        assert_eq!(properties(&admitted).assigned_client_identifier.as_deref(), Some("n-1"));
        let stranger = Bearer::Stranger("without a certificate".into());
        for (bearer, client_id, user, expected) in [
            (&node, "n-2", None, ConnectReturnCode::ClientIdentifierNotValid),
            (&node, "N-1", None, ConnectReturnCode::ClientIdentifierNotValid),
            (&node, "n-1", Some("n-2"), ConnectReturnCode::NotAuthorized),
            (&node, "n-2", Some("n-1"), ConnectReturnCode::ClientIdentifierNotValid),
            (&stranger, "n-1", Some("n-1"), ConnectReturnCode::NotAuthorized),
            (&stranger, "", None, ConnectReturnCode::NotAuthorized),
        ] {
            let refusal = ask(bearer, client_id, user).unwrap_err();
            assert_eq!((refusal.code, refusal.impostor), (expected, true), "{client_id} {user:?}");
        }
    }

    #[test]
    fn a_missing_or_long_keep_alive_is_replaced_and_told() {
        let options = BrokerOptions { max_keepalive: Duration::from_secs(60), ..Default::default() };
        for (asked, seconds, told) in [(0, 60, Some(60)), (61, 60, Some(60)), (60, 60, None), (7, 7, None)] {
            let admitted = admit(&options, connect("a", asked), None, None).unwrap();
            assert_eq!(admitted.keepalive.as_secs(), seconds, "{asked}");
            assert_eq!(properties(&admitted).server_keep_alive, told, "{asked}");
        }
    }

    #[test]
    fn a_will_is_for_the_own_presence_and_has_limits() {
        let options = BrokerOptions::default();
        let own = options.topics.presence("a");
        assert!(admit(&options, connect("a", 5), will(&own), None).unwrap().will.is_some());
        for topic in [options.topics.presence("b"), options.topics.down("a"), "x".to_owned()] {
            let refused = admit(&options, connect("a", 5), will(&topic), None);
            assert_eq!(code(refused), ConnectReturnCode::NotAuthorized, "{topic}");
        }
        let long = LastWill::new(own.as_str(), vec![0; 5000], QoS::AtLeastOnce, true, None);
        let refused = admit(&options, connect("a", 5), Some(long), None);
        assert_eq!(code(refused), ConnectReturnCode::QuotaExceeded);
    }

    #[test]
    fn the_smaller_limits_of_both_sides_count() {
        let options = BrokerOptions { max_packet: 5000, inflight: 8, ..Default::default() };
        let ask = |max_packet_size, receive_maximum| {
            let asked = rumqttc::v5::mqttbytes::v5::ConnectProperties {
                max_packet_size,
                receive_maximum,
                ..Default::default()
            };
            admit(&options, Connect { properties: Some(asked), ..connect("a", 5) }, None, None)
        };
        let less = ask(Some(2000), Some(3)).unwrap();
        assert_eq!((less.max_packet, less.inflight), (2000, 3));
        let more = ask(Some(9000), Some(30)).unwrap();
        assert_eq!((more.max_packet, more.inflight), (5000, 8));
        assert_eq!(code(ask(Some(0), None)), ConnectReturnCode::ProtocolError);
        assert_eq!(code(ask(None, Some(0))), ConnectReturnCode::ProtocolError);
    }
}
