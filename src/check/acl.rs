//! Checks that the broker isolates nodes: this one receives its own topics and can neither read nor
//! write those of another.
//!
//! The other node belongs to no fleet. A broker may grant a subscription and then deliver nothing
//! (mosquitto does), so after a grant a message is sent, to a topic that only the other node would
//! subscribe to.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::mqtt::{ProbeError, probe};
use super::{Check, CheckFn, Examined, Finding};
use edgesync_config::LinkType;
use edgesync_transport::link::{Cause, LinkEvent, LinkHandle, Topics};

pub(super) const CHECK: Check = Check {
    id: "acl",
    title: "Access rules",
    needs: &["configuration", "name-resolution", "tcp", "tls", "mqtt"],
    limit: Duration::from_secs(10),
    examine: CheckFn::Wire(|examined| Box::pin(examine(examined))),
};

/// A node of no fleet.
const FOREIGN_NODE: &str = "edgesync-check.invalid";
/// Time limit for the broker's reaction to a message.
const REACTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of the farewell.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
const ACL_ADVICE: &str =
    "configure access rules of the broker that separate nodes: 'edgesync-cloud broker-config'";

async fn examine(examined: &Examined) -> Finding {
    if examined.config().link_type == LinkType::KubeEdge {
        return Finding::skipped("the link is kubeedge");
    }
    if examined.agent_runs_now() {
        return Finding::skipped(
            "the agent is running and would lose its connection; stop it for this check",
        );
    }
    let config = examined.config();
    let Ok(topics) = Topics::new(&config.link.prefix) else {
        return Finding::skipped("link.prefix is not valid in topics");
    };
    let foreign = topics.down(FOREIGN_NODE);
    let subscriptions = |topics: &Topics, node: &str| vec![topics.down(node), topics.down(FOREIGN_NODE)];
    match probe(examined, subscriptions).await {
        Err(ProbeError::Cause(Cause::SubscriptionRefused { filter, .. })) if filter == foreign => {
            Finding::ok("own topic granted, topic of another node refused")
        }
        Err(problem) => problem.finding(),
        Ok((link, mut events)) => {
            let outcome = probe_foreign_topic(&link, &mut events, &foreign).await;
            link.shutdown(Vec::new(), FAREWELL_TIMEOUT).await;
            evaluate(outcome, config.peers().iter().all(|peer| peer.is_local() && !peer.tls))
        }
    }
}

/// Result of a message to another node's topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeOutcome {
    /// The broker refused it.
    Refused,
    /// It was delivered here: writing and reading are permitted.
    Delivered,
    /// The broker accepted it, without delivery here.
    Accepted,
}

async fn probe_foreign_topic(
    link: &LinkHandle,
    events: &mut mpsc::Receiver<LinkEvent>,
    foreign: &str,
) -> ProbeOutcome {
    if link.try_publish(foreign, Vec::new(), false).is_err() {
        return ProbeOutcome::Refused;
    }
    let answer = async {
        while let Some(event) = events.recv().await {
            match event {
                LinkEvent::Rejected { topic, .. } if topic == foreign => return ProbeOutcome::Refused,
                LinkEvent::Message { topic, .. } if topic == foreign => return ProbeOutcome::Delivered,
                // The embedded endpoint closes the connection of a client that writes to another
                // node's topic.
                LinkEvent::Disconnected { .. } => return ProbeOutcome::Refused,
                _ => {}
            }
        }
        ProbeOutcome::Refused
    };
    timeout(REACTION_TIMEOUT, answer).await.unwrap_or(ProbeOutcome::Accepted)
}

/// Rates the result. On one machine without certificates, which does not distinguish nodes, open
/// rules are only a warning.
fn evaluate(outcome: ProbeOutcome, local: bool) -> Finding {
    let message = match outcome {
        ProbeOutcome::Refused => {
            return Finding::ok("own topic granted, writing to that of another node refused");
        }
        ProbeOutcome::Delivered => "the broker lets this node read and write the topics of other nodes",
        ProbeOutcome::Accepted => "the broker lets this node write to the topics of other nodes",
    };
    if local { Finding::warning(message, ACL_ADVICE) } else { Finding::failed(message, ACL_ADVICE) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};

    #[test]
    fn the_outcome_of_the_message_decides() {
        ok(evaluate(ProbeOutcome::Refused, false), "refused");
        failed(evaluate(ProbeOutcome::Delivered, false), "read and write", "broker-config");
        failed(evaluate(ProbeOutcome::Accepted, false), "write to the topics", "broker-config");
        warned(evaluate(ProbeOutcome::Delivered, true), "read and write", "broker-config");
    }

    #[tokio::test]
    async fn a_running_agent_is_not_disturbed() {
        let mut examined = Testbed::new("").examined();
        examined.agent_runs = true;
        assert!(
            matches!(examine(&examined).await, Finding::Skipped(why) if why.contains("lose its connection"))
        );
    }
}
