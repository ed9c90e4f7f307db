//! `[kubeedge]`: the connection to a CloudCore of KubeEdge, used with `link.type = "kubeedge"`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::binding::quote;
use super::units::{self, MIB, hours, minutes, seconds};
use super::{Review, host};
use crate::section;
use edgesync_kubeedge::{FetchRule, WatchRule};

/// Type of the link to the cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkType {
    /// An MQTT broker and `edgesync-cloud`.
    #[default]
    Mqtt,
    /// A CloudCore of KubeEdge.
    KubeEdge,
}

impl LinkType {
    pub(super) const WORDS: &'static [(&'static str, Self)] =
        &[("mqtt", Self::Mqtt), ("kubeedge", Self::KubeEdge)];

    /// Returns the word used in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }
}

section! {
    /// Connection to a CloudCore.
    #[derive(Eq)]
    pub struct KubeEdge in "kubeedge";
    /// Address of CloudCore's WebSocket; with `link.type = "kubeedge"` always set after loading.
    url: Option<CloudCoreUrl> = None, fixed units::optional(url, URL, CloudCoreUrl::parse);
    /// Project id in the path of the WebSocket.
    project: String = PROJECT.to_owned(),
        fixed units::text(project, "a project id", parse_project, String::clone);
    /// Interval between keepalive messages to CloudCore.
    // CloudCore ends a session 30 s after the last one: one may be late, or lost.
    keepalive: Duration = seconds(15), fixed units::duration(keepalive, seconds(1)..=seconds(25));
    /// Maximum size of an accepted message in bytes.
    max_message: usize = 32 << 20, fixed units::size(max_message, MIB..=128 * MIB);
    /// ConfigMaps and Secrets to fetch in addition to those referenced by held pods.
    fetch: Vec<FetchRule> = Vec::new(), live units::list(fetch, FETCH, FetchRule::parse);
    /// Kinds to watch through the dynamic controller.
    watch: Vec<WatchRule> = Vec::new(), live units::list(watch, WATCH, WatchRule::parse);
    /// Maximum time in which all held objects are compared once.
    verify_interval: Duration = hours(24),
        live units::duration(verify_interval, minutes(1)..=hours(24 * 365));
    /// Whether to keep `metadata.managedFields`.
    managed_fields: bool = false, live units::flag(managed_fields);
}

/// Address of CloudCore's WebSocket: `wss://HOST:PORT`; the default port is 10000. Without TLS
/// (`ws://`) on this machine only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudCoreUrl {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port of CloudCore.
    pub port: u16,
    /// Whether the connection uses TLS.
    pub tls: bool,
}

const URL: &str = "the address of a CloudCore such as \"wss://cloud.example:10000\"";
const FETCH: &str = "a list such as [\"default/configmap/app-*\"]";
const WATCH: &str = "a list such as [\"example.com/v1/widgets\"]";
/// Default port of CloudCore's WebSocket.
const CLOUD_CORE_PORT: u16 = 10_000;
/// Default project id of CloudCore and EdgeCore.
const PROJECT: &str = "e632aba927ea4ac2b575ec1603d56f10";
const MAX_PROJECT: usize = 128;

impl KubeEdge {
    /// Checks dependencies between keys for this link type.
    pub(super) fn check(&self, has_identity: bool, review: &mut Review<'_>) {
        match &self.url {
            None => {
                let message = "link.type is \"kubeedge\" and kubeedge.url is not set; hint: 'edgesync join', or set \
                               kubeedge.url";
                review.conflict(&["kubeedge.url", "link.type"], message);
            }
            Some(url) if url.tls && !has_identity => {
                let message = format!(
                    "{url} requires a certificate of the node, and there is none; hint: 'edgesync join', or set \
                     identity.directory"
                );
                review.conflict(&["kubeedge.url"], message);
            }
            Some(_) => {}
        }
        for key in MQTT_ONLY {
            if review.is_set(key) {
                review.warn(format!("{key} has no effect: link.type is \"kubeedge\""));
            }
        }
    }
}

/// Keys that only the MQTT link uses.
const MQTT_ONLY: [&str; 9] = [
    "link.broker",
    "link.prefix",
    "link.client_id",
    "link.username",
    "link.password_file",
    "link.keepalive",
    "link.max_frame",
    "link.inflight",
    "sync.compress_above",
];

impl CloudCoreUrl {
    /// Returns the CloudCore at a host with its default port.
    #[must_use]
    pub fn at(host: &str) -> Self {
        Self { host: host.to_owned(), port: CLOUD_CORE_PORT, tls: true }
    }

    /// Parses `wss://host[:port]`, or `ws://host[:port]` if the host is this machine.
    ///
    /// # Errors
    /// The address is invalid, with the requirement.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("must be {URL}, not {}{why}", quote(text));
        let Some((scheme, rest)) = text.split_once("://") else { return Err(refused("")) };
        let tls = match scheme {
            "wss" => true,
            "ws" => false,
            "https" => return Err(refused(": the join service is identity.cloud")),
            _ => return Err(refused("")),
        };
        let (host, port) = host::split(rest.strip_suffix('/').unwrap_or(rest)).map_err(refused)?;
        if !tls && !host::is_local(&host) {
            return Err(refused(": without TLS on loopback only"));
        }
        Ok(Self { host, port: port.unwrap_or(CLOUD_CORE_PORT), tls })
    }
}

impl FromStr for CloudCoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl fmt::Display for CloudCoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "wss" } else { "ws" };
        write!(f, "{scheme}://{}", host::join(&self.host, self.port))
    }
}

fn parse_project(text: &str) -> Result<String, String> {
    // Used in a path and in a header.
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if (1..=MAX_PROJECT).contains(&text.len()) && text.bytes().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err(format!("must be 1 to {MAX_PROJECT} letters, digits, '-', '_' and '.', not {}", quote(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cloud_core_addresses_survive_a_round_trip() {
        for (text, shown) in [
            ("wss://cloud.example", "wss://cloud.example:10000"),
            ("wss://192.0.2.1:1/", "wss://192.0.2.1:1"),
            ("wss://[::1]", "wss://[::1]:10000"),
            ("ws://localhost:7", "ws://localhost:7"),
            ("ws://127.0.0.1:7", "ws://127.0.0.1:7"),
        ] {
            let url = CloudCoreUrl::parse(text).unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(CloudCoreUrl::parse(shown), Ok(url));
        }
    }

    #[test]
    fn invalid_cloud_core_address_is_refused() {
        for bad in ["", "cloud.example:10000", "wss://", "wss://a:0", "mqtts://a", "wss://a/e632/n/events"] {
            assert!(CloudCoreUrl::parse(bad).unwrap_err().contains("wss://cloud.example:10000"), "{bad}");
        }
        assert!(CloudCoreUrl::parse("ws://192.0.2.1").unwrap_err().contains("without TLS"));
        assert!(CloudCoreUrl::parse("https://a:10002").unwrap_err().contains("identity.cloud"));
    }

    #[test]
    fn projects_fit_into_a_path_and_a_header() {
        assert_eq!(parse_project(PROJECT), Ok(PROJECT.to_owned()));
        for bad in ["", "a/b", "a b", "ä", &"a".repeat(129)] {
            assert!(parse_project(bad).is_err(), "{bad}");
        }
    }
}
