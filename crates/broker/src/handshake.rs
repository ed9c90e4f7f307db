//! Checks a CONNECT and negotiates limits. Pure.

use std::time::Duration;

use bytes::Bytes;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    ConnAck, ConnAckProperties, Connect, ConnectReturnCode, LastWill, Login, Packet,
};
use uuid::Uuid;

use super::BrokerOptions;
use super::access::{self, Target};
use super::stream::{PeerIdentity, truncated};
use edgesync_object::NodeName;
use edgesync_transport::link::compact;

/// Announced window for a client's QoS 1 publishes. Unhandled publishes are not read, so the value
/// costs nothing. It is announced because some clients rely on the default of 65,535.
const RECEIVE_MAXIMUM: u16 = 1024;

/// An accepted CONNECT with the negotiated limits and its CONNACK.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) node: NodeName,
    /// The client must send a packet this often.
    pub(super) keepalive: Duration,
    /// The largest packet that the client accepts, in bytes.
    pub(super) max_packet: u32,
    /// Window of the client: QoS 1 publishes in flight.
    pub(super) inflight: u16,
    pub(super) will: Option<Will>,
    /// Whether the client uses the compact exchange.
    pub(super) is_compact: bool,
    pub(super) connack: Packet,
}

/// Message published when the client disconnects without a DISCONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Will {
    pub(super) target: Target,
    pub(super) payload: Bytes,
    pub(super) retain: bool,
}

/// A refused CONNECT: reason code and reason string of its CONNACK (MQTT v5, section 3.2.2).
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: ConnectReturnCode,
    pub(super) reason: String,
    /// Whether the client claims another identity than that of its certificate.
    pub(super) impostor: bool,
}

impl Refusal {
    pub(super) fn new(code: ConnectReturnCode, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), impostor: false }
    }

    fn impostor(code: ConnectReturnCode, reason: String) -> Self {
        Self { code, reason, impostor: true }
    }

    /// Returns the CONNACK for the client.
    pub(super) fn connack(&self) -> Packet {
        let properties = ConnAckProperties { reason_string: Some(self.reason.clone()), ..no_properties() };
        Packet::ConnAck(ConnAck { session_present: false, code: self.code, properties: Some(properties) })
    }
}

/// Checks a CONNECT.
///
/// The certificate names the node. Without TLS, which is possible on this machine only, the user
/// name does, or else the client id. The password is ignored.
pub(super) fn admit(
    options: &BrokerOptions,
    connect: Connect,
    will: Option<LastWill>,
    login: Option<Login>,
    identity: &PeerIdentity,
) -> Result<Admitted, Refusal> {
    let requested = connect.properties;
    if requested.as_ref().is_some_and(|requested| requested.authentication_method.is_some()) {
        let code = ConnectReturnCode::BadAuthenticationMethod;
        return Err(Refusal::new(code, "extended authentication is not supported"));
    }
    let (node, assigned) = node_name(connect.client_id, login, identity)?;
    let will = will.map(|will| check_will(options, &node, &will)).transpose()?;
    let (keepalive, server_keep_alive) = keepalive(options, connect.keep_alive);
    let max_packet = requested.as_ref().and_then(|requested| requested.max_packet_size).unwrap_or(u32::MAX);
    let inflight = requested.as_ref().and_then(|requested| requested.receive_maximum).unwrap_or(u16::MAX);
    if max_packet == 0 || inflight == 0 {
        return Err(Refusal::new(ConnectReturnCode::ProtocolError, "limit of zero in CONNECT"));
    }
    let is_compact = requested.as_ref().is_some_and(|requested| compact::is_in(&requested.user_properties));
    let properties = match is_compact {
        true => ConnAckProperties { user_properties: vec![compact::property()], ..no_properties() },
        false => standard_properties(),
    };
    let properties = ConnAckProperties {
        max_packet_size: Some(options.max_packet),
        assigned_client_identifier: assigned,
        server_keep_alive,
        ..properties
    };
    let connack =
        ConnAck { session_present: false, code: ConnectReturnCode::Success, properties: Some(properties) };
    Ok(Admitted {
        node,
        keepalive,
        max_packet: max_packet.min(options.max_packet),
        inflight: inflight.min(options.inflight),
        will,
        is_compact,
        connack: Packet::ConnAck(connack),
    })
}

/// Returns the node's name, and its client id if the endpoint assigns one.
fn node_name(
    client_id: String,
    login: Option<Login>,
    identity: &PeerIdentity,
) -> Result<(NodeName, Option<String>), Refusal> {
    let user = login.map(|login| login.username).filter(|user| !user.is_empty());
    let anonymous = client_id.is_empty();
    match identity {
        PeerIdentity::Local => {
            let assigned = anonymous.then(|| format!("auto-{}", Uuid::new_v4()));
            let client_id = assigned.clone().unwrap_or(client_id);
            claimed_name(client_id, user).map(|node| (node, assigned))
        }
        PeerIdentity::Unknown(who) => {
            let reason = format!("node certificate (O=system:nodes) required, client is {who}");
            Err(Refusal::impostor(ConnectReturnCode::NotAuthorized, reason))
        }
        PeerIdentity::Refused(why) => {
            let reason = format!("node certificate (O=system:nodes) required: {why}");
            Err(Refusal::new(ConnectReturnCode::NotAuthorized, reason))
        }
        PeerIdentity::Node { name, .. } => {
            let other = |what: &str, given: &str| {
                format!(
                    "{what} '{}' differs from '{name}' in the certificate; hint: leave it out",
                    truncated(given)
                )
            };
            if let Some(user) = user.filter(|user| *name != **user) {
                let reason = other("user name", &user);
                return Err(Refusal::impostor(ConnectReturnCode::NotAuthorized, reason));
            }
            if !anonymous && *name != *client_id {
                let reason = other("client id", &client_id);
                return Err(Refusal::impostor(ConnectReturnCode::ClientIdentifierNotValid, reason));
            }
            Ok((name.clone(), anonymous.then(|| name.to_string())))
        }
    }
}

/// Returns the name that a client on this machine claims.
fn claimed_name(client_id: String, user: Option<String>) -> Result<NodeName, Refusal> {
    let (name, code, what) = match user {
        Some(user) => (user, ConnectReturnCode::BadUserNamePassword, "user name"),
        None => (client_id, ConnectReturnCode::ClientIdentifierNotValid, "client id"),
    };
    let problem = |problem| Refusal::new(code, format!("{what} must be a node name: {problem}"));
    NodeName::try_from(name).map_err(problem)
}

fn check_will(options: &BrokerOptions, node: &str, will: &LastWill) -> Result<Will, Refusal> {
    if will.qos == QoS::ExactlyOnce {
        return Err(Refusal::new(ConnectReturnCode::QoSNotSupported, "will has QoS 2"));
    }
    if will.message.len() > options.max_retained_bytes {
        let reason = format!("will exceeds the limit of {} bytes", options.max_retained_bytes);
        return Err(Refusal::new(ConnectReturnCode::QuotaExceeded, reason));
    }
    let topic = std::str::from_utf8(&will.topic).ok();
    let target = topic.and_then(|topic| access::may_publish(&options.topics, node, topic));
    let Some(target) = target else {
        return Err(Refusal::new(ConnectReturnCode::NotAuthorized, "will topic belongs to another node"));
    };
    // A copy, so that the buffer of the CONNECT is not kept for the life of the connection.
    Ok(Will { target, payload: Bytes::copy_from_slice(&will.message), retain: will.retain })
}

/// Returns the keep-alive, and the value for the CONNACK if it replaces the client's: for none or
/// one above the limit.
fn keepalive(options: &BrokerOptions, requested: u16) -> (Duration, Option<u16>) {
    let longest = u16::try_from(options.max_keepalive.as_secs()).unwrap_or(u16::MAX);
    if requested == 0 || requested > longest {
        (Duration::from_secs(longest.into()), Some(longest))
    } else {
        (Duration::from_secs(requested.into()), None)
    }
}

/// Returns the properties for clients that do not know this endpoint.
fn standard_properties() -> ConnAckProperties {
    ConnAckProperties {
        session_expiry_interval: Some(0),
        receive_max: Some(RECEIVE_MAXIMUM),
        max_qos: Some(1),
        subscription_identifiers_available: Some(0),
        shared_subscription_available: Some(0),
        ..no_properties()
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

    /// Checks a CONNECT without TLS.
    fn admit(
        options: &BrokerOptions,
        connect: Connect,
        will: Option<LastWill>,
        login: Option<Login>,
    ) -> Result<Admitted, Refusal> {
        super::admit(options, connect, will, login, &PeerIdentity::Local)
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
    fn user_name_or_else_client_id_names_the_node() {
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
    fn empty_client_id_is_replaced_and_announced() {
        let admitted = admit(&BrokerOptions::default(), connect("", 5), None, None).unwrap();
        let assigned = properties(&admitted).assigned_client_identifier.clone().unwrap();
        assert_eq!(*admitted.node, *assigned);
    }

    #[test]
    fn certificate_names_the_node() {
        let options = BrokerOptions::default();
        let node = PeerIdentity::Node { name: NodeName::parse("n-1").unwrap(), until: jiff::Timestamp::MAX };
        let admit_as = |identity: &PeerIdentity, client_id: &str, user: Option<&str>| {
            let login = user.map(|user| Login::new(user, "x"));
            super::admit(&options, connect(client_id, 5), None, login, identity)
        };
        for (client_id, user) in [("n-1", None), ("n-1", Some("n-1")), ("n-1", Some("")), ("", Some("n-1"))] {
            assert_eq!(&*admit_as(&node, client_id, user).unwrap().node, "n-1", "{client_id} {user:?}");
        }
        let admitted = admit_as(&node, "", None).unwrap();
        assert_eq!(properties(&admitted).assigned_client_identifier.as_deref(), Some("n-1"));
        let unknown = PeerIdentity::Unknown("without a certificate".into());
        for (identity, client_id, user, expected) in [
            (&node, "n-2", None, ConnectReturnCode::ClientIdentifierNotValid),
            (&node, "N-1", None, ConnectReturnCode::ClientIdentifierNotValid),
            (&node, "n-1", Some("n-2"), ConnectReturnCode::NotAuthorized),
            (&node, "n-2", Some("n-1"), ConnectReturnCode::ClientIdentifierNotValid),
            (&unknown, "n-1", Some("n-1"), ConnectReturnCode::NotAuthorized),
            (&unknown, "", None, ConnectReturnCode::NotAuthorized),
        ] {
            let refusal = admit_as(identity, client_id, user).unwrap_err();
            assert_eq!((refusal.code, refusal.impostor), (expected, true), "{client_id} {user:?}");
        }
    }

    #[test]
    fn client_whose_certificate_is_refused_gets_the_reason() {
        let options = BrokerOptions::default();
        let identity = PeerIdentity::Refused("peer sent no certificates".to_owned());
        let refusal = super::admit(&options, connect("n-1", 5), None, None, &identity).unwrap_err();
        assert_eq!((refusal.code, refusal.impostor), (ConnectReturnCode::NotAuthorized, false));
        assert!(refusal.reason.ends_with("required: peer sent no certificates"), "{}", refusal.reason);
    }

    #[test]
    fn missing_or_long_keep_alive_is_replaced_and_announced() {
        let options = BrokerOptions { max_keepalive: Duration::from_secs(60), ..Default::default() };
        for (requested, seconds, announced) in
            [(0, 60, Some(60)), (61, 60, Some(60)), (60, 60, None), (7, 7, None)]
        {
            let admitted = admit(&options, connect("a", requested), None, None).unwrap();
            assert_eq!(admitted.keepalive.as_secs(), seconds, "{requested}");
            assert_eq!(properties(&admitted).server_keep_alive, announced, "{requested}");
        }
    }

    #[test]
    fn will_is_for_the_own_presence_and_has_limits() {
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
    fn smaller_limits_of_both_sides_apply() {
        let options = BrokerOptions { max_packet: 5000, inflight: 8, ..Default::default() };
        let admit_as = |max_packet_size, receive_maximum| {
            let requested = rumqttc::v5::mqttbytes::v5::ConnectProperties {
                max_packet_size,
                receive_maximum,
                ..Default::default()
            };
            admit(&options, Connect { properties: Some(requested), ..connect("a", 5) }, None, None)
        };
        let less = admit_as(Some(2000), Some(3)).unwrap();
        assert_eq!((less.max_packet, less.inflight), (2000, 3));
        let more = admit_as(Some(9000), Some(30)).unwrap();
        assert_eq!((more.max_packet, more.inflight), (5000, 8));
        assert_eq!(code(admit_as(Some(0), None)), ConnectReturnCode::ProtocolError);
        assert_eq!(code(admit_as(None, Some(0))), ConnectReturnCode::ProtocolError);
    }
}
