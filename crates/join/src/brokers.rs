//! Addresses of the broker that the cloud side advertises to nodes.

use std::fmt;
use std::str::FromStr;

use edgesync_config::host;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum number of addresses that are taken over from the cloud side.
const MAX_BROKERS: usize = 16;
/// MQTT over TLS, as registered with IANA.
const MQTTS_PORT: u16 = 8883;
const MQTT_PORT: u16 = 1883;
const WSS_PORT: u16 = 443;
/// Path of MQTT over WebSocket.
const WEB_SOCKET_PATH: &str = "/mqtt";
const FORM: &str =
    "a broker address such as \"mqtts://broker.example:8883\" or \"wss://broker.example/mqtt\"";

/// Transport of MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerScheme {
    /// Plain TCP.
    Mqtt,
    /// TLS.
    Mqtts,
    /// WebSocket over TLS, at the path `/mqtt`.
    Wss,
}

/// An address of the broker: `mqtts://host:port`, `wss://host:port/mqtt` or `mqtt://host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedBroker {
    /// Transport of MQTT.
    pub scheme: BrokerScheme,
    /// Host name or address, without brackets. Empty: the host of the join service.
    pub host: String,
    /// TCP port of the broker.
    pub port: u16,
}

impl FromStr for AdvertisedBroker {
    type Err = String;

    /// Parses an address; the error states the requirement.
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("must be {FORM}, not {text:?}{why}");
        let (scheme, rest) = text.split_once("://").ok_or_else(|| refused(""))?;
        let (scheme, default_port) = match scheme {
            "mqtt" => (BrokerScheme::Mqtt, MQTT_PORT),
            "mqtts" => (BrokerScheme::Mqtts, MQTTS_PORT),
            "wss" => (BrokerScheme::Wss, WSS_PORT),
            _ => return Err(refused("")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let authority = match scheme {
            BrokerScheme::Wss => rest.strip_suffix(WEB_SOCKET_PATH).unwrap_or(rest),
            _ => rest,
        };
        if scheme == BrokerScheme::Wss && authority.contains('/') {
            return Err(refused(": the path of MQTT over WebSocket is /mqtt"));
        }
        if let Some(port) = authority.strip_prefix(':') {
            let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| refused(""))?;
            return Ok(Self { scheme, host: String::new(), port });
        }
        let (host, port) = host::split(authority).map_err(refused)?;
        Ok(Self { scheme, host, port: port.unwrap_or(default_port) })
    }
}

impl fmt::Display for AdvertisedBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = host::join(&self.host, self.port);
        match self.scheme {
            BrokerScheme::Mqtt => write!(f, "mqtt://{authority}"),
            BrokerScheme::Mqtts => write!(f, "mqtts://{authority}"),
            BrokerScheme::Wss => write!(f, "wss://{authority}{WEB_SOCKET_PATH}"),
        }
    }
}

impl Serialize for AdvertisedBroker {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads the known addresses of a list. Those of another form are of a later version, and left
/// out.
pub(crate) fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AdvertisedBroker>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    Ok(texts.iter().filter_map(|text| text.parse().ok()).take(MAX_BROKERS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Membership;

    #[test]
    fn addresses_survive_a_round_trip() {
        for (text, shown) in [
            ("mqtts://broker.example", "mqtts://broker.example:8883"),
            ("mqtt://10.0.0.1/", "mqtt://10.0.0.1:1883"),
            ("wss://broker.example/mqtt", "wss://broker.example:443/mqtt"),
            ("wss://broker.example", "wss://broker.example:443/mqtt"),
            ("wss://[::1]:8443/mqtt", "wss://[::1]:8443/mqtt"),
            ("mqtts://:443", "mqtts://:443"),
            ("wss://:443/mqtt", "wss://:443/mqtt"),
        ] {
            let broker: AdvertisedBroker = text.parse().unwrap();
            assert_eq!(broker.to_string(), shown);
            assert_eq!(shown.parse(), Ok(broker));
        }
    }

    #[test]
    fn other_addresses_are_refused_with_the_requirement() {
        for bad in [
            "",
            "broker",
            "http://a",
            "ws://a/mqtt",
            "mqtts://",
            "mqtts://:0",
            "mqtts://a:0",
            "mqtts://a b",
            "mqtts://a/b",
            "wss://a/other",
            "mqtts://me:secret@a",
            "wss:///mqtt",
        ] {
            let problem = bad.parse::<AdvertisedBroker>().unwrap_err();
            assert!(problem.starts_with("must be a broker address such as"), "{bad}: {problem}");
        }
    }

    fn membership(brokers: &str) -> Result<Membership, serde_json::Error> {
        let text = format!(r#"{{"node":"a","broker":"mqtts://:8883","prefix":"p","time":"t"{brokers}}}"#);
        serde_json::from_str(&text)
    }

    #[test]
    fn answers_without_the_list_have_an_empty_one() {
        assert_eq!(membership("").unwrap().brokers, []);
        let answer = serde_json::to_string(&membership("").unwrap()).unwrap();
        assert!(!answer.contains("brokers"), "{answer}");
    }

    #[test]
    fn addresses_of_later_versions_are_left_out() {
        let found = membership(r#","brokers":["mqtts://:8883","quic://:1","wss://a/mqtt",""]"#).unwrap();
        let shown: Vec<String> = found.brokers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["mqtts://:8883", "wss://a:443/mqtt"]);
        let answer = serde_json::to_string(&found).unwrap();
        assert!(answer.contains(r#""brokers":["mqtts://:8883","wss://a:443/mqtt"]"#), "{answer}");
        let many = format!(",\"brokers\":[{}]", ["\"mqtts://:1\""; 500].join(","));
        assert_eq!(membership(&many).unwrap().brokers.len(), MAX_BROKERS);
        assert!(membership(r#","brokers":[1]"#).is_err());
    }

    /// The answer as an earlier device reads it.
    #[test]
    fn devices_that_do_not_know_the_list_ignore_it() {
        #[derive(Deserialize)]
        struct Earlier {
            broker: String,
        }
        let answer =
            serde_json::to_string(&membership(r#","brokers":["wss://:443/mqtt"]"#).unwrap()).unwrap();
        assert_eq!(serde_json::from_str::<Earlier>(&answer).unwrap().broker, "mqtts://:8883");
    }
}
