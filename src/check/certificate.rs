//! Checks that the node's certificate exists, belongs to this node and to its key, and is valid.

use jiff::Timestamp;

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding, JOIN, JOIN_AGAIN, format_duration};
use edgesync_join::files::{IDENTITY_FILE, Stored};
use edgesync_join::renewal::{Schedule, Validity};
use edgesync_transport::tls::{Certificate, Clock};

pub(super) const CHECK: Check = Check {
    id: "certificate",
    title: "Certificate",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

/// Latest planned renewal, as a fraction of the lifetime.
const LATEST: f64 = 0.999;

fn examine(examined: &mut Examined) -> Finding {
    if examined.not_joined {
        return Finding::failed("not joined", JOIN);
    }
    let config = examined.config();
    let uses_tls = config.peers().iter().any(|peer| peer.tls);
    match (examined.identity(), uses_tls) {
        (None, false) => Finding::skipped("this node has not joined, and the link is without TLS"),
        (None, true) => Finding::warning(
            "no certificate: the broker must accept this node by password",
            "join the cloud with 'edgesync join'",
        ),
        (Some(Err(unusable)), _) => unusable.into(),
        (Some(Ok(stored)), _) => {
            evaluate(&stored, &config.node.name, config.identity.cloud.is_some(), &examined.clock())
        }
    }
}

fn evaluate(stored: &Stored, node: &str, renews: bool, clock: &Clock) -> Finding {
    let certificate = stored.identity.certificate();
    match certificate.subject().requested_node() {
        Some(name) if name == node => {}
        Some(name) => {
            let message = format!("certificate of node '{name}', but node.name is '{node}'");
            return Finding::failed(message, format!("set node.name to '{name}', or {JOIN_AGAIN}"));
        }
        None => {
            let name = &certificate.subject().common_name;
            return Finding::failed(format!("certificate of '{name}' is not that of a node"), JOIN_AGAIN);
        }
    }
    if let Some(expired) = stored.ca.iter().find(|ca| has_ended(ca, clock)) {
        let message = format!("certificate of the authority expired on {}", date(expired.not_after()));
        return Finding::failed(message, JOIN_AGAIN);
    }
    lifetime(certificate, renews, clock)
}

fn lifetime(certificate: &Certificate, renews: bool, clock: &Clock) -> Finding {
    let (now, until) = (clock.now(), certificate.not_after());
    let left = until.as_second().saturating_sub(now.as_second());
    let message = format!("valid until {}, {} left", date(until), format_duration(left.max(0)));
    let renewal = match renews {
        true => {
            "see 'journalctl -u edgesync' for the cause, and check that the cloud's join service is reachable"
        }
        false => "set identity.cloud to the address of the join service, so that the agent renews it",
    };
    let overdue = Schedule::new(certificate, LATEST).planned() <= now;
    match Schedule::new(certificate, 0.0).validity(clock) {
        Validity::Expired => Finding::failed(
            format!("expired on {}, {} ago", date(until), format_duration(left.saturating_neg())),
            format!("start the agent, which renews it within the cloud's grace period; else {JOIN_AGAIN}"),
        ),
        Validity::Unknown => Finding::warning(
            format!("valid until {}; remaining time unknown, clock not set", date(until)),
            "set the clock",
        ),
        Validity::Tight => Finding::warning(format!("{message}; renewal failing"), renewal),
        Validity::Good if overdue => Finding::warning(format!("{message}; renewal is overdue"), renewal),
        Validity::Good if !renews => Finding::warning(format!("{message}, no renewal configured"), renewal),
        Validity::Good => {
            let due = Schedule::new(certificate, 0.0).planned();
            Finding::ok(format!("{message}, renewed after {}; key in {IDENTITY_FILE} matches", date(due)))
        }
    }
}

fn has_ended(certificate: &Certificate, clock: &Clock) -> bool {
    clock.checking(certificate.not_before()) > certificate.not_after()
}

fn date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
