//! Remedies for errors, in addition to their messages.

use std::io;
use std::path::Path;

use jiff::Timestamp;

use super::JoinError;
use crate::calls::CallError;
use crate::files::FilesError;
use edgesync_transport::tls::HandshakeError;

/// Tolerated difference of clocks in seconds.
const TOLERATED: i64 = 300;

/// Remedy for a revoked identity.
const REVOKED: &str = "join again with --force and a new token for this node";

impl JoinError {
    /// Returns whether the peer did not answer.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Call(error) => error.is_unreachable(),
            Self::BrokerSilent { .. } => true,
            _ => false,
        }
    }

    /// Returns the remedy, where the message does not state it.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        match self {
            Self::Call(error) => of_call(error),
            Self::Clock { .. } => {
                Some("set the clock (timedatectl set-time, or enable NTP) and join again".into())
            }
            Self::Agent { problem, .. } | Self::Broker { problem, .. } if problem.contains("revoked") => {
                Some(REVOKED.to_owned())
            }
            Self::Files(FilesError::Io(error)) => of_files(error.cause.kind()).map(str::to_owned),
            _ => None,
        }
    }
}

fn of_call(error: &CallError) -> Option<String> {
    let advice = match error {
        CallError::Tls(error) => return of_handshake(error),
        // edgesync-cloud explains its refusals itself.
        CallError::Refused { code: 401, message } if !message.contains("edgesync-cloud") => {
            "tokens expire; get a new one with 'keadm gettoken'"
        }
        CallError::Unreachable { problem, .. } if !problem.starts_with("proxy ") && is_proxy_unused() => {
            "the environment has a proxy that this connection did not use: set link.proxy to \"env\" or to its address \
             (docs/network.md)"
        }
        CallError::Refused { code: 429, .. } => "wait a minute and join again",
        CallError::Unexpected { code: 500.., .. } => {
            "check the log of edgesync-cloud (journalctl -u edgesync-cloud) or CloudCore, then join again"
        }
        _ => return None,
    };
    Some(advice.to_owned())
}

/// Returns whether the environment names a proxy, which only `link.proxy` puts to use.
fn is_proxy_unused() -> bool {
    ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

fn of_handshake(error: &HandshakeError) -> Option<String> {
    let advice = match error {
        HandshakeError::OtherAuthority { .. } => {
            "a proxy that inspects TLS has such an issuer: have the connection to this host and port passed through; \
             otherwise the server changed its CA between two requests: check the address"
        }
        HandshakeError::OtherName { host, names } => {
            let add = format!(
                "add {host} to enrollment.names in the configuration of edgesync-cloud (of a CloudCore: to \
                     modules.cloudHub.advertiseAddress) and restart it"
            );
            return Some(match names.is_empty() {
                true => add,
                false => format!("use one of these names for --cloud ({}), or {add}", names.join(", ")),
            });
        }
        HandshakeError::Http { .. } => {
            "open a web page to log in to the network, or check host and port of --cloud, and link.proxy"
        }
        HandshakeError::NotTls { .. } => {
            "another service has this port: use the port of the join service for --cloud, 10002 by default"
        }
        HandshakeError::Network { .. } => {
            "check that the port is that of the join service (10002 by default), and proxies on the way"
        }
        // The join service requires no certificate.
        HandshakeError::Refused { reason, .. } if reason == "no certificate presented" => {
            "this port requires a client certificate, as MQTT does: use the port of the join service for --cloud, 10002 \
             by default"
        }
        HandshakeError::Refused { .. } => REVOKED,
        HandshakeError::OutsideItsTime { .. } => return None,
    };
    Some(advice.to_owned())
}

fn of_files(kind: io::ErrorKind) -> Option<&'static str> {
    match kind {
        io::ErrorKind::PermissionDenied => Some("run the command as root"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some("free space on the disk and join again")
        }
        io::ErrorKind::ReadOnlyFilesystem => Some("mount the disk writable and join again"),
        _ => None,
    }
}

/// Returns the note about objects of another cloud in the database: versions of two clusters cannot
/// be compared.
pub(super) fn other_objects(store: &Path) -> String {
    format!(
        "objects of another cloud in {} are kept, and may block new ones of the same name; hint: to start empty, stop \
         the agent and remove that file",
        store.display()
    )
}

/// Returns the end of a message about a time: the time of the cloud's clock.
pub(super) fn beside(now: Timestamp, cloud: Option<Timestamp>) -> String {
    match cloud.and_then(|cloud| wrong_clock(now, cloud)) {
        Some(difference) => format!("; {difference}"),
        None => String::new(),
    }
}

/// Describes a clock that differs from the cloud's by more than a few minutes.
pub(super) fn wrong_clock(now: Timestamp, cloud: Timestamp) -> Option<String> {
    let seconds = now.as_second().saturating_sub(cloud.as_second());
    if seconds.saturating_abs() <= TOLERATED {
        return None;
    }
    let (size, unit) = match seconds.saturating_abs() {
        seconds @ ..7_200 => (seconds / 60, "minutes"),
        seconds @ ..172_800 => (seconds / 3_600, "hours"),
        seconds @ ..63_072_000 => (seconds / 86_400, "days"),
        seconds => (seconds / 31_557_600, "years"),
    };
    let direction = if seconds > 0 { "ahead of" } else { "behind" };
    let whole = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
    Some(format!(
        "clock of this device: {}, {size} {unit} {direction} the cloud's: {}",
        whole(now),
        whole(cloud)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_config::JoinUrl;
    use edgesync_store::durable::FileError;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn clock_differences_are_described() {
        let cloud = time("2026-11-21T10:00:00Z");
        assert_eq!(wrong_clock(time("2026-11-21T10:05:00Z"), cloud), None);
        assert_eq!(wrong_clock(time("2026-11-21T09:55:00Z"), cloud), None);
        for (now, words) in [
            ("2026-11-21T10:05:01Z", "5 minutes ahead of"),
            ("2026-11-21T06:59:00Z", "3 hours behind"),
            ("2026-12-01T10:00:00Z", "10 days ahead of"),
            ("2036-11-22T10:00:00Z", "10 years ahead of"),
            ("1970-01-01T00:00:09Z", "56 years behind"),
        ] {
            let said = wrong_clock(time(now), cloud).unwrap();
            let expected = format!("clock of this device: {now}, {words} the cloud's: 2026-11-21T10:00:00Z");
            assert_eq!(said, expected);
        }
        assert_eq!(beside(cloud, None), "");
        assert!(wrong_clock(Timestamp::MIN, Timestamp::MAX).is_some());
    }

    #[test]
    fn refusals_state_a_remedy() {
        let host = "cloud.example".to_owned();
        let url: JoinUrl = "https://cloud.example".parse().unwrap();
        let refused = |code| CallError::Refused { code, message: "no".into() };
        let names = vec!["10.0.0.1".to_owned(), "hub.example".to_owned()];
        let other_name = HandshakeError::OtherName { host: host.clone(), names };
        let not_tls = HandshakeError::NotTls { host: host.clone(), problem: "HTTP".into() };
        let refused_by = |reason: &str| {
            CallError::Tls(HandshakeError::Refused { host: host.clone(), reason: reason.to_owned() })
        };
        let (mqtt, revoked) = (refused_by("no certificate presented"), refused_by("revoked"));
        let silent = CallError::Unreachable { url, problem: "check it".into() };
        for (error, words, unreachable) in [
            (refused(401), &["keadm gettoken"][..], false),
            (
                CallError::Tls(other_name),
                &["10.0.0.1, hub.example", "enrollment.names", "cloud.example"],
                false,
            ),
            (CallError::Tls(not_tls), &["10002"], false),
            (CallError::Tls(HandshakeError::Http { host: host.clone() }), &["log in", "link.proxy"], false),
            (
                CallError::Tls(HandshakeError::OtherAuthority { host: host.clone(), issuer: "x".into() }),
                &["inspects TLS", "passed through"],
                false,
            ),
            (mqtt, &["MQTT", "10002"], false),
            (revoked, &["--force", "new token"], false),
            (CallError::Tls(HandshakeError::Network { host, problem: "eof".into() }), &["10002"], true),
            (silent, &[], true),
        ] {
            let error = JoinError::Call(error);
            assert_eq!(error.is_unreachable(), unreachable, "{error}");
            let advice = error.advice().unwrap_or_default();
            assert!(words.iter().all(|word| advice.contains(word)), "{error}: {advice}");
        }
        let message = "the token has expired: create a new one with 'edgesync-cloud token create'".into();
        let explained = JoinError::Call(CallError::Refused { code: 401, message });
        assert_eq!(explained.advice(), None);
        let denied = |kind: io::ErrorKind| {
            JoinError::Files(FileError::tried("write", "/etc/x".as_ref())(kind.into()).into())
        };
        assert!(denied(io::ErrorKind::PermissionDenied).advice().unwrap().contains("root"));
        assert!(denied(io::ErrorKind::StorageFull).advice().unwrap().contains("space"));
        assert_eq!(denied(io::ErrorKind::Other).advice(), None);
    }
}
