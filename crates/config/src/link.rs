//! `[link]`: the connection to an MQTT broker, the same on the edge and on a cloud side with an
//! external broker.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::binding::quote;
use super::units::{self, MIB, hours, minutes, ordered, seconds, show_duration};
use super::{Review, host};
use crate::section;
use edgesync_protocol::frame::MIN_MAX_FRAME;

section! {
    /// The connection to an MQTT broker.
    #[derive(Eq)]
    pub struct Link in "link";
    /// Address of the broker.
    broker: BrokerUrl = BrokerUrl { host: "127.0.0.1".into(), port: MQTT_PORT, tls: false },
        fixed units::text(broker, URL, BrokerUrl::parse, BrokerUrl::to_string);
    /// Prefix of all topics, without a slash at either end.
    prefix: String = "edgesync/v1".into(),
        fixed units::text(prefix, "topic segments such as \"edgesync/v1\"", parse_prefix, String::clone);
    /// MQTT client identifier; if empty, the node name or, on the cloud side, `edgesync-cloud`.
    client_id: String = String::new(),
        fixed units::text(client_id, "a client identifier", parse_client_id, String::clone);
    /// User name, if the broker requires one.
    username: Option<String> = None,
        fixed units::optional(username, "a user name, or \"\" for none", parse_user);
    /// File whose first line is the password.
    password_file: Option<PathBuf> = None, fixed units::optional_path(password_file);
    /// Trusted authorities of the broker's certificate; the cloud's if none is given.
    ca_file: Option<PathBuf> = None, fixed units::optional_path(ca_file);
    /// Maximum silence of the peer.
    // MQTT encodes the keepalive as 16 bits of seconds; below two a slow link looks dead.
    keepalive: Duration = seconds(20), fixed units::duration(keepalive, seconds(2)..=minutes(20));
    /// Timeout of an attempt up to the CONNACK.
    connect_timeout: Duration = seconds(10), fixed units::duration(connect_timeout, seconds(1)..=minutes(5));
    /// Initial upper limit of the random delay before a retry.
    backoff_min: Duration = seconds(1), live units::duration(backoff_min, MILLISECOND..=hours(1));
    /// Final upper limit of the random delay before a retry.
    backoff_max: Duration = minutes(1), live units::duration(backoff_max, MILLISECOND..=hours(24));
    /// Minimum duration of a connection that resets the delay to the minimum.
    backoff_reset: Duration = minutes(1), live units::duration(backoff_reset, seconds(0)..=hours(24));
    /// Delay after another client has taken over the identifier.
    taken_over_backoff: Duration = minutes(5),
        live units::duration(taken_over_backoff, seconds(1)..=hours(24));
    /// Maximum size of a frame in bytes, in both directions.
    // The protocol requires space for an InventoryRequest and a page of items.
    max_frame: usize = 256 << 10, fixed units::size(max_frame, u64::from(MIN_MAX_FRAME)..=16 * MIB);
    /// Maximum number of unacknowledged publishes.
    inflight: u16 = 64, fixed units::count(inflight, 1..=64);
}

/// Address of a broker: `mqtt://host:port`, or `mqtts://host:port` with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerUrl {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port of the broker.
    pub port: u16,
    /// Whether the connection uses TLS.
    pub tls: bool,
}

const MILLISECOND: Duration = Duration::from_millis(1);
const URL: &str = "a broker address such as \"mqtts://broker.example:8883\"";
const MQTT_PORT: u16 = 1883;
/// MQTT over TLS, as registered with IANA (secure-mqtt).
const MQTTS_PORT: u16 = 8883;

impl Link {
    /// Checks the limits of the backoff.
    pub(super) fn check_waits(&self, review: &mut Review<'_>) {
        let min = ("link.backoff_min", self.backoff_min);
        let max = ("link.backoff_max", self.backoff_max);
        if let Err(message) = ordered(min, max, show_duration) {
            review.conflict(&[min.0, max.0], message);
        }
    }

    /// Checks dependencies between keys.
    pub fn check(&self, review: &mut Review<'_>) {
        self.check_waits(review);
        if !self.keepalive.subsec_nanos().eq(&0) {
            review
                .conflict(&["link.keepalive"], "link.keepalive: must be whole seconds, as MQTT counts them");
        }
        if self.password_file.is_some() && self.username.is_none() {
            let message =
                "link.password_file needs link.username: MQTT sends a password only with a user name";
            review.conflict(&["link.password_file"], message);
        }
        if self.ca_file.is_some() && !self.broker.tls {
            let message = format!("link.ca_file requires TLS, and {} has none: use mqtts://", self.broker);
            review.conflict(&["link.ca_file"], message);
        }
        if self.password_file.is_some() && !self.broker.tls && !self.broker.is_local() {
            review.warn(format!(
                "the password of link.password_file is sent to {} in plain text: use mqtts://",
                self.broker
            ));
        }
    }
}

impl BrokerUrl {
    /// Parses `mqtt://host[:port]` or `mqtts://host[:port]`.
    ///
    /// # Errors
    /// The address is invalid, with the requirement.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("must be {URL}, not {}{why}", quote(text));
        let Some((scheme, rest)) = text.split_once("://") else { return Err(refused("")) };
        let tls = match scheme {
            "mqtt" | "tcp" => false,
            "mqtts" | "ssl" => true,
            "wss" | "ws" => {
                return Err(refused(
                    ": MQTT over WebSocket is not supported; the address of CloudCore is kubeedge.url",
                ));
            }
            _ => return Err(refused("")),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains('@') {
            return Err(refused(": set username and password_file instead"));
        }
        let (host, port) = host::split(authority).map_err(refused)?;
        let port = port.unwrap_or(if tls { MQTTS_PORT } else { MQTT_PORT });
        Ok(Self { host, port, tls })
    }

    /// Returns whether the broker is on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        host::is_local(&self.host)
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "mqtts" } else { "mqtt" };
        write!(f, "{scheme}://{}", host::join(&self.host, self.port))
    }
}

fn parse_prefix(text: &str) -> Result<String, String> {
    let segment = |part: &str| {
        !part.is_empty()
            && !part.starts_with('$')
            && part.bytes().all(|b| b.is_ascii_graphic() && b != b'+' && b != b'#')
    };
    if text.len() <= 128 && text.split('/').all(segment) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "must be 1 to 128 bytes of topic segments without '+', '#' and spaces, not starting or ending with '/', not {}",
        quote(text)
    ))
}

fn parse_client_id(text: &str) -> Result<String, String> {
    // The longest node name fits; brokers agree on little more than printable ASCII.
    if text.len() <= 253 && text.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(format!("must be at most 253 printable ASCII characters without spaces, not {}", quote(text)))
}

fn parse_user(text: &str) -> Result<String, String> {
    if text.len() <= 1024 && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(format!("must be at most 1024 bytes without control characters, not {}", quote(text)))
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
        ] {
            let url = BrokerUrl::parse(text).unwrap();
            assert_eq!((url.host.as_str(), url.port), (host, port), "{text}");
            assert_eq!(url.tls, !text.starts_with("mqtt:") && !text.starts_with("tcp:"), "{text}");
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
        assert!(BrokerUrl::parse("wss://a").unwrap_err().contains("WebSocket is not supported"));
        assert!(BrokerUrl::parse("mqtt://me:secret@a").unwrap_err().contains("password_file"));
    }

    #[test]
    fn prefixes_have_no_wildcards_and_no_empty_segment() {
        assert!(parse_prefix("edgesync/v1").is_ok());
        for bad in ["", "/a", "a/", "a//b", "a/+/b", "#", "$SYS/x", "a b", "ä"] {
            assert!(parse_prefix(bad).is_err(), "{bad}");
        }
    }
}
