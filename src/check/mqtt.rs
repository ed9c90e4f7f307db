//! Checks that the broker accepts this node and grants its subscriptions. With a running agent it
//! checks the agent's connection: a second one under its name would take it over.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Check, CheckFn, Examined, Finding};
use edgesync_admin::agent::LinkStatus;
use edgesync_config::LinkType;
use edgesync_config::edge::Config;
use edgesync_runtime::connection::configured_link;
use edgesync_transport::link::{Cause, Link, LinkEvent, LinkHandle, LinkOptions, RetryOptions, Topics};

pub(super) const CHECK: Check = Check {
    id: "mqtt",
    title: "MQTT",
    needs: &["configuration", "name-resolution", "tcp", "tls"],
    limit: Duration::from_secs(9),
    examine: CheckFn::Wire(|examined| Box::pin(examine(examined))),
};

/// Time limit of CONNECT and SUBSCRIBE.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(6);
/// Time limit of the farewell.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

async fn examine(examined: &Examined) -> Finding {
    if examined.config().link_type == LinkType::KubeEdge {
        return Finding::skipped("the link is kubeedge");
    }
    if let Some(status) = &examined.status {
        return of_agent(&status.link);
    }
    if examined.agent_runs_now() {
        return Finding::skipped("the agent is running and would lose its connection");
    }
    match probe(examined, |topics, node| vec![topics.down(node), topics.cloud()]).await {
        Ok((link, _)) => {
            let config = examined.config();
            let peers = config.peers();
            let peer = peers.get(link.position()).map_or(String::new(), ToString::to_string);
            link.shutdown(Vec::new(), FAREWELL_TIMEOUT).await;
            Finding::ok(format!("{peer}: connected, subscriptions granted"))
        }
        Err(problem) => problem.finding(),
    }
}

/// Rates the link of the running agent.
fn of_agent(link: &LinkStatus) -> Finding {
    let broker = &link.broker;
    if link.is_connected() {
        let since = link.since.as_deref().unwrap_or_default();
        return Finding::ok(format!("the agent is connected to {broker} since {since}"));
    }
    if let Some(next) = &link.next_check_in {
        return Finding::ok(format!("the agent is away as planned, next check-in {next}"));
    }
    let cause = link.cause.as_deref().unwrap_or("no attempt yet");
    Finding::failed(
        format!("the agent is not connected to {broker}: {cause}"),
        "fix the cause; to check each step, stop the agent and run the check again",
    )
}

/// Failure of the check's own connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProbeError {
    /// The configuration permits no link.
    Options(String),
    /// The broker or the network refused or failed.
    Cause(Cause),
    /// No answer in time.
    Silent,
}

impl ProbeError {
    pub(super) fn finding(&self) -> Finding {
        let cause = match self {
            Self::Options(problem) => return Finding::failed(problem.clone(), "correct section [link]"),
            Self::Silent => {
                let message = format!("no response within {} s", CONNECT_TIMEOUT.as_secs());
                return Finding::failed(message, "see the broker's log");
            }
            Self::Cause(cause) => cause,
        };
        let next_step = match cause {
            Cause::NotAuthorized { .. } | Cause::Rejected { .. } => {
                "see the broker's log; with certificates it must use their names as user names ('edgesync-cloud broker-config')"
            }
            Cause::SubscriptionRefused { .. } => {
                "correct the broker's access rules ('edgesync-cloud broker-config')"
            }
            Cause::TakenOver { .. } => "find the other device with this node's name, and rename one of them",
            Cause::Proxy { .. } => "check link.proxy, and the log of the proxy",
            Cause::Upgrade { .. } => "check host and port, and a proxy in front of the broker",
            Cause::Protocol { .. } | Cause::Closed => {
                "check that an MQTT v5 broker listens there, and see its log"
            }
            _ => "see the broker's log",
        };
        Finding::failed(cause.to_string(), next_step)
    }
}

/// Connects like the agent, without publishing the node's presence.
pub(super) async fn probe(
    examined: &Examined,
    subscriptions: impl FnOnce(&Topics, &str) -> Vec<String>,
) -> Result<(LinkHandle, mpsc::Receiver<LinkEvent>), ProbeError> {
    let config = examined.config();
    let mut options = options(examined, &config)?;
    let topics = Topics::new(&config.link.prefix).map_err(|error| ProbeError::Options(error.to_string()))?;
    options.subscriptions = subscriptions(&topics, &config.node.name);
    let attempts = options.endpoints.len().max(1);
    options.connect_timeout = CONNECT_TIMEOUT / u32::try_from(attempts).unwrap_or(1);
    options.retry = RetryOptions { first: Duration::from_millis(1), ..options.retry };
    let (link, mut events) = Link::spawn(options);
    match timeout(CONNECT_TIMEOUT, first(&mut events, attempts)).await {
        Ok(Some(Ok(()))) => Ok((link, events)),
        Ok(Some(Err(cause))) => Err(ProbeError::Cause(cause)),
        Ok(None) | Err(_) => Err(ProbeError::Silent),
    }
}

fn options(examined: &Examined, config: &Config) -> Result<LinkOptions, ProbeError> {
    let mut options =
        configured_link(&config.link).map_err(|error| ProbeError::Options(format!("{error:#}")))?;
    options.username.get_or_insert_with(|| config.node.name.clone());
    options.tls = examined.tls().transpose().map_err(|unusable| ProbeError::Options(unusable.problem))?;
    Ok(options)
}

/// Returns the result of the first attempt at each of so many addresses: the first success, or the
/// last failure.
async fn first(events: &mut mpsc::Receiver<LinkEvent>, mut attempts: usize) -> Option<Result<(), Cause>> {
    loop {
        match events.recv().await? {
            LinkEvent::Connected { .. } => return Some(Ok(())),
            LinkEvent::Disconnected { .. } if attempts > 1 => attempts -= 1,
            LinkEvent::Disconnected { cause, .. } => return Some(Err(cause)),
            LinkEvent::Message { .. } | LinkEvent::Rejected { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok};
    use crate::store::{EdgeOptions, EdgeStore};
    use edgesync_admin::agent::LinkState;
    use edgesync_admin::samples;

    #[tokio::test]
    async fn a_running_agent_is_queried_and_not_disturbed() {
        let mut examined = Testbed::new("").examined();
        examined.agent_runs = true;
        assert!(matches!(examine(&examined).await, Finding::Skipped(_)));
        let mut status = samples::status();
        status.link.broker = "mqtt://b:1883".to_owned();
        status.link.cause = Some("no route".to_owned());
        examined.status = Some(status.clone());
        ok(examine(&examined).await, "the agent is connected to mqtt://b:1883");
        status.link.state = LinkState::Disconnected;
        examined.status = Some(status.clone());
        failed(examine(&examined).await, "no route", "check again");
        status.link.next_check_in = Some("2026-11-21T13:00:00Z".to_owned());
        examined.status = Some(status);
        ok(examine(&examined).await, "away as planned, next check-in 2026-11-21T13:00:00Z");
    }

    #[tokio::test]
    async fn an_agent_started_meanwhile_keeps_its_connection() {
        let testbed = Testbed::new("[link]\nbroker = \"mqtt://127.0.0.1:1\"\n");
        let path = testbed.path("state/edgesync.db");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let store = EdgeStore::open(&path, EdgeOptions::default()).unwrap();
        assert!(
            matches!(examine(&testbed.examined()).await, Finding::Skipped(why) if why.contains("lose its connection"))
        );
        store.close().await;
    }

    #[tokio::test]
    async fn a_kubeedge_link_has_no_broker() {
        let testbed = Testbed::new("[link]\ntype = \"kubeedge\"\n[kubeedge]\nurl = \"ws://127.0.0.1:1\"\n");
        assert_eq!(examine(&testbed.examined()).await, Finding::skipped("the link is kubeedge"));
    }

    #[tokio::test]
    async fn a_closed_port_and_a_missing_password_are_reported() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let broker = format!("[link]\nbroker = \"mqtt://{closed}\"\n");
        failed(examine(&Testbed::new(&broker).examined()).await, "connection refused", "broker's log");
        let testbed = Testbed::new(&format!("{broker}username = \"x\"\npassword_file = \"/nowhere/p\"\n"));
        failed(examine(&testbed.examined()).await, "/nowhere/p", "[link]");
    }

    #[test]
    fn refusals_have_their_own_next_step() {
        let refused = |cause| ProbeError::Cause(cause).finding();
        let reason = || "not authorized".to_owned();
        failed(
            refused(Cause::NotAuthorized { code: 0x87, reason: reason() }),
            "not authorized",
            "broker-config",
        );
        let filter = "a/b".to_owned();
        failed(
            refused(Cause::SubscriptionRefused { filter, code: 0x87, reason: reason() }),
            "a/b",
            "access rules",
        );
        failed(refused(Cause::TakenOver { client_id: "gw".into() }), "gw", "rename");
        failed(refused(Cause::Closed), "closed", "MQTT v5");
    }
}
