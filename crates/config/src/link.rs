//! `[link]`: the connection to an MQTT broker, the same on the edge and on a cloud side with an
//! external broker.

use std::path::PathBuf;
use std::time::Duration;

use super::Review;
use super::binding::quote;
use super::broker::{Brokers, brokers};
use super::connect::{self, ConnectPlan};
use super::proxy::{PROXY, ProxySetting};
use super::units::{self, MIB, hours, minutes, ordered, seconds, show_duration};
use crate::section;
use edgesync_protocol::frame::MIN_MAX_FRAME;

section! {
    /// The connection to an MQTT broker.
    #[derive(Eq)]
    pub struct Link in "link";
    /// Addresses of the broker, in the order in which they are tried.
    broker: Brokers = Brokers::default(), fixed brokers(broker);
    /// Whether connections go through an HTTP proxy.
    proxy: ProxySetting = ProxySetting::Off,
        fixed units::text(proxy, PROXY, ProxySetting::parse, ProxySetting::to_string);
    /// File whose first line is the password for the proxy.
    proxy_password_file: Option<PathBuf> = None, fixed units::optional_path(proxy_password_file);
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
    /// When a node connects; the cloud side always does.
    connect: ConnectPlan = ConnectPlan::Always, live connect::plan(connect);
}

const MILLISECOND: Duration = Duration::from_millis(1);
impl Link {
    /// Checks the limits of the backoff.
    pub(super) fn check_waits(&self, review: &mut Review<'_>) {
        let min = ("link.backoff_min", self.backoff_min);
        let max = ("link.backoff_max", self.backoff_max);
        if let Err(message) = ordered(min, max, show_duration) {
            review.conflict(&[min.0, max.0], message);
        }
    }

    /// Checks the keys of the proxy, which any type of link uses.
    pub fn check_proxy(&self, review: &mut Review<'_>) {
        let has_user = match &self.proxy {
            ProxySetting::Off => false,
            // The variable may have one.
            ProxySetting::Environment => true,
            ProxySetting::Http { username, .. } => username.is_some(),
        };
        if self.proxy_password_file.is_some() && !has_user {
            let message = "link.proxy_password_file needs a user name in link.proxy: http://USER@HOST:PORT";
            review.conflict(&["link.proxy_password_file"], message);
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
        if self.ca_file.is_some() && !self.broker.uses_tls() {
            let message = format!("link.ca_file requires TLS, and {} has none: use mqtts://", self.broker);
            review.conflict(&["link.ca_file"], message);
        }
        let mut in_plain_text = self.broker.iter().filter(|broker| !broker.tls && !broker.is_local());
        if self.password_file.is_some()
            && let Some(broker) = in_plain_text.next()
        {
            review.warn(format!(
                "the password of link.password_file is sent to {broker} in plain text: use mqtts://"
            ));
        }
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
    fn prefixes_have_no_wildcards_and_no_empty_segment() {
        assert!(parse_prefix("edgesync/v1").is_ok());
        for bad in ["", "/a", "a/", "a//b", "a/+/b", "#", "$SYS/x", "a b", "ä"] {
            assert!(parse_prefix(bad).is_err(), "{bad}");
        }
    }
}
