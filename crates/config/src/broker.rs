//! Addresses of a broker, and the list of them that a link tries.

use std::fmt;

use toml::de::DeValue;

use super::binding::{Binding, Raw, Refusals, quote, toml_string};
use super::host;

/// Address of a broker: `mqtts://host:port` with TLS, `wss://host:port` for MQTT over WebSocket
/// with TLS, or `mqtt://host:port` without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerUrl {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port of the broker.
    pub port: u16,
    /// Whether the connection uses TLS.
    pub tls: bool,
    /// Whether MQTT is carried in a WebSocket, at the path `/mqtt`.
    pub websocket: bool,
}

/// The addresses of a broker, in the order in which they are tried; at least one, none twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brokers {
    first: BrokerUrl,
    others: Vec<BrokerUrl>,
}

/// Maximum number of addresses.
const MAX_BROKERS: usize = 16;
const URL: &str = "a broker address such as \"mqtts://broker.example:8883\" or \"wss://broker.example\"";
const LIST: &str = "a broker address such as \"mqtts://broker.example:8883\", or a list of them";
const MQTT_PORT: u16 = 1883;
/// MQTT over TLS, as registered with IANA (secure-mqtt).
const MQTTS_PORT: u16 = 8883;
const WSS_PORT: u16 = 443;
/// Path of MQTT over WebSocket.
const PATH: &str = "/mqtt";

impl BrokerUrl {
    /// Parses `mqtt://host[:port]`, `mqtts://host[:port]` or `wss://host[:port][/mqtt]`.
    ///
    /// # Errors
    /// The address is invalid, with the requirement.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("must be {URL}, not {}{why}", quote(text));
        let Some((scheme, rest)) = text.split_once("://") else { return Err(refused("")) };
        let (tls, websocket) = match scheme {
            "mqtt" | "tcp" => (false, false),
            "mqtts" | "ssl" => (true, false),
            "wss" => (true, true),
            "ws" => return Err(refused(": a WebSocket needs TLS, use wss://")),
            _ => return Err(refused("")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let authority = if websocket { rest.strip_suffix(PATH).unwrap_or(rest) } else { rest };
        if authority.contains('@') {
            return Err(refused(": set username and password_file instead"));
        }
        if websocket && authority.contains('/') {
            return Err(refused(": the path is /mqtt; the address of CloudCore is kubeedge.url"));
        }
        let (host, port) = host::split(authority).map_err(refused)?;
        let usual = match (websocket, tls) {
            (true, _) => WSS_PORT,
            (false, true) => MQTTS_PORT,
            (false, false) => MQTT_PORT,
        };
        Ok(Self { host, port: port.unwrap_or(usual), tls, websocket })
    }

    /// Returns whether the broker is on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        host::is_local(&self.host)
    }

    /// Returns the scheme of the address.
    pub(super) fn scheme(&self) -> &'static str {
        match (self.websocket, self.tls) {
            (true, _) => "wss",
            (false, true) => "mqtts",
            (false, false) => "mqtt",
        }
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.websocket { PATH } else { "" };
        write!(f, "{}://{}{path}", self.scheme(), host::join(&self.host, self.port))
    }
}

impl Brokers {
    /// Parses addresses, in their order.
    ///
    /// # Errors
    /// There is none, one is invalid or listed twice, or there are too many.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, String> {
        let mut found: Vec<BrokerUrl> = Vec::new();
        for text in texts {
            let broker = BrokerUrl::parse(text)?;
            if found.contains(&broker) {
                return Err(format!("has {} twice", quote(text)));
            }
            if found.len() == MAX_BROKERS {
                return Err(format!("must have at most {MAX_BROKERS} addresses"));
            }
            found.push(broker);
        }
        let mut found = found.into_iter();
        let first = found.next().ok_or_else(|| format!("must be {LIST}, not an empty list"))?;
        Ok(Self { first, others: found.collect() })
    }

    /// Returns the first address.
    #[must_use]
    pub fn first(&self) -> &BrokerUrl {
        &self.first
    }

    /// Returns all addresses in their order.
    pub fn iter(&self) -> impl Iterator<Item = &BrokerUrl> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns whether one of them uses TLS.
    #[must_use]
    pub fn uses_tls(&self) -> bool {
        self.iter().any(|broker| broker.tls)
    }

    /// Returns the values as TOML: a string, or a list of strings.
    #[must_use]
    pub fn to_toml(&self) -> String {
        if self.others.is_empty() {
            return toml_string(&self.first.to_string());
        }
        let texts: Vec<String> = self.iter().map(|broker| toml_string(&broker.to_string())).collect();
        format!("[{}]", texts.join(", "))
    }
}

impl Default for Brokers {
    fn default() -> Self {
        let first = BrokerUrl { host: "127.0.0.1".into(), port: MQTT_PORT, tls: false, websocket: false };
        first.into()
    }
}

impl From<BrokerUrl> for Brokers {
    fn from(first: BrokerUrl) -> Self {
        Self { first, others: Vec::new() }
    }
}

impl fmt::Display for Brokers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.others.iter().try_for_each(|broker| write!(f, ", {broker}"))
    }
}

/// Binding for one address, or a list of them; `a,b` in a variable.
pub(super) fn brokers(value: &mut Brokers) -> impl Binding + '_ {
    List(value)
}

struct List<'a>(&'a mut Brokers);

impl Binding for List<'_> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals> {
        *self.0 = match raw {
            Raw::Toml(DeValue::String(text)) => Brokers::parse([&**text])?,
            Raw::Toml(DeValue::Array(items)) => {
                let (mut texts, mut refusals) = (Vec::new(), Refusals::default());
                for item in items {
                    let read = match item.get_ref() {
                        DeValue::String(text) => BrokerUrl::parse(text).map(|_| texts.push(&**text)),
                        other => Err(Raw::Toml(other).expected("a string").message),
                    };
                    refusals.add("", &item.span(), read);
                }
                refusals.result()?;
                Brokers::parse(texts)?
            }
            Raw::Toml(_) => return Err(raw.expected(LIST).into()),
            Raw::Variable(text) => {
                Brokers::parse(text.split(',').map(str::trim).filter(|part| !part.is_empty()))?
            }
        };
        Ok(())
    }

    fn show(&self) -> String {
        self.0.to_toml()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_addresses_survive_a_round_trip() {
        for (text, host, port) in [
            ("mqtt://broker.example", "broker.example", 1883),
            ("mqtt://10.0.0.1:1884/", "10.0.0.1", 1884),
            ("tcp://[::1]:9", "::1", 9),
            ("mqtt://[fe80::1]", "fe80::1", 1883),
            ("mqtts://broker.example", "broker.example", 8883),
            ("ssl://broker.example:1", "broker.example", 1),
            ("wss://broker.example", "broker.example", 443),
            ("wss://broker.example:8443/mqtt", "broker.example", 8443),
            ("wss://[::1]/mqtt/", "::1", 443),
        ] {
            let url = BrokerUrl::parse(text).unwrap();
            assert_eq!((url.host.as_str(), url.port), (host, port), "{text}");
            assert_eq!(url.tls, !text.starts_with("mqtt:") && !text.starts_with("tcp:"), "{text}");
            assert_eq!(url.websocket, text.starts_with("wss:"), "{text}");
            assert_eq!(BrokerUrl::parse(&url.to_string()), Ok(url));
        }
    }

    #[test]
    fn invalid_broker_address_is_refused_with_the_requirement() {
        for bad in
            ["", "broker:1883", "mqtt://", "mqtt://:1883", "mqtt://a:0", "mqtt://a:99999", "mqtt://a b"]
        {
            assert!(BrokerUrl::parse(bad).unwrap_err().contains("mqtts://broker.example:8883"), "{bad}");
        }
        for bad in ["http://a", "mqtt://[::1", "mqtt://[x]:1", "mqtt://[::1]x", "mqtt://a/b", "mqtt://a:b:c"]
        {
            assert!(BrokerUrl::parse(bad).is_err(), "{bad}");
        }
        assert!(BrokerUrl::parse("ws://a").unwrap_err().contains("needs TLS"));
        assert!(BrokerUrl::parse("wss://a/e632/n/events").unwrap_err().contains("kubeedge.url"));
        assert!(BrokerUrl::parse("mqtt://me:secret@a").unwrap_err().contains("password_file"));
    }

    #[test]
    fn lists_keep_their_order_and_are_bounded() {
        let brokers = Brokers::parse(["mqtts://a", "wss://b", "mqtt://c"]).unwrap();
        assert_eq!(brokers.to_string(), "mqtts://a:8883, wss://b:443/mqtt, mqtt://c:1883");
        assert_eq!(brokers.to_toml(), r#"["mqtts://a:8883", "wss://b:443/mqtt", "mqtt://c:1883"]"#);
        assert!(brokers.uses_tls());
        assert_eq!(Brokers::parse(["mqtt://a"]).unwrap().to_toml(), "\"mqtt://a:1883\"");
        assert!(Brokers::parse([]).unwrap_err().contains("an empty list"));
        assert!(Brokers::parse(["mqtts://a", "mqtts://a:8883"]).unwrap_err().contains("twice"));
        let many: Vec<String> = (0..=MAX_BROKERS).map(|number| format!("mqtts://b{number}")).collect();
        let error = Brokers::parse(many.iter().map(String::as_str)).unwrap_err();
        assert!(error.contains("at most 16"), "{error}");
    }

    #[test]
    fn file_has_a_string_or_a_list_and_a_variable_commas() {
        let mut brokers = Brokers::default();
        for (text, shown) in [
            ("\"mqtts://a\"", "mqtts://a:8883"),
            ("[\"mqtts://a\", \"wss://b\"]", "mqtts://a:8883, wss://b:443/mqtt"),
        ] {
            let value = DeValue::parse(text).unwrap();
            List(&mut brokers).set(Raw::Toml(value.get_ref())).unwrap();
            assert_eq!(brokers.to_string(), shown);
        }
        List(&mut brokers).set(Raw::Variable("mqtts://a, wss://b")).unwrap();
        assert_eq!(brokers.to_string(), "mqtts://a:8883, wss://b:443/mqtt");
        for bad in ["[]", "7", "[7]", "[\"http://a\"]"] {
            let value = DeValue::parse(bad).unwrap();
            assert!(List(&mut brokers).set(Raw::Toml(value.get_ref())).is_err(), "{bad}");
        }
    }
}
