//! The broker keeps nodes apart: this one hears its own topics and neither hears nor writes those of another.
//!
//! The other is one that no fleet has. A broker may grant a subscription and then deliver nothing (mosquitto does), so
//! where it is granted a message is sent, to a topic that only that other node would listen to.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::mqtt::{Problem, probe};
use super::{Check, Examined, Finding, Look};
use edgesync_config::LinkType;
use edgesync_transport::link::{Cause, LinkEvent, LinkHandle, Topics};

pub(super) const CHECK: Check = Check {
    id: "acl",
    title: "Access rules",
    needs: &["configuration", "name-resolution", "tcp", "tls", "mqtt"],
    limit: Duration::from_secs(10),
    look: Look::Wire(|examined| Box::pin(look(examined))),
};

/// A node of no fleet.
const OTHER: &str = "edgesync-check.invalid";
/// How long the broker may take to judge a message.
const VERDICT: Duration = Duration::from_secs(2);
/// How long the farewell may take.
const FAREWELL: Duration = Duration::from_secs(1);
const RULES: &str =
    "give the broker access rules that keep nodes apart: 'edgesync-cloud broker-config' prints them";

async fn look(examined: &Examined) -> Finding {
    if examined.config().link_type == LinkType::KubeEdge {
        return Finding::skipped("the link is kubeedge");
    }
    if examined.agent_runs_now() {
        return Finding::skipped(
            "the agent runs: a second connection would throw it out; stop it to have this checked",
        );
    }
    let config = examined.config();
    let Ok(topics) = Topics::new(&config.link.prefix) else {
        return Finding::skipped("link.prefix makes no topics");
    };
    let foreign = topics.down(OTHER);
    let subscriptions = |topics: &Topics, node: &str| vec![topics.down(node), topics.down(OTHER)];
    match probe(examined, subscriptions).await {
        Err(Problem::Cause(Cause::SubscriptionRefused { filter, .. })) if filter == foreign => {
            Finding::ok("the own topic is granted, that of another node refused")
        }
        Err(problem) => problem.finding(),
        Ok((link, mut events)) => {
            let verdict = say(&link, &mut events, &foreign).await;
            link.shutdown(Vec::new(), FAREWELL).await;
            judge(verdict, config.link.broker.is_local() && !config.link.broker.tls)
        }
    }
}

/// What became of a message to another node's topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The broker has not taken it.
    Refused,
    /// It came back: it was written and read.
    Heard,
    /// The broker took it, and nobody heard it here.
    Taken,
}

async fn say(link: &LinkHandle, events: &mut mpsc::Receiver<LinkEvent>, foreign: &str) -> Verdict {
    if link.try_publish(foreign, Vec::new(), false).is_err() {
        return Verdict::Refused;
    }
    let answer = async {
        while let Some(event) = events.recv().await {
            match event {
                LinkEvent::NotTaken { topic, .. } if topic == foreign => return Verdict::Refused,
                LinkEvent::Message { topic, .. } if topic == foreign => return Verdict::Heard,
                // The embedded endpoint ends the connection of whoever writes to a topic of others.
                LinkEvent::Disconnected { .. } => return Verdict::Refused,
                _ => {}
            }
        }
        Verdict::Refused
    };
    timeout(VERDICT, answer).await.unwrap_or(Verdict::Taken)
}

/// On one machine without certificates, where nodes are not told apart, open rules are only a warning.
fn judge(verdict: Verdict, local: bool) -> Finding {
    let seen = match verdict {
        Verdict::Refused => {
            return Finding::ok("the own topic is granted, writing to that of another node refused");
        }
        Verdict::Heard => "the broker lets this node read and write the topics of other nodes",
        Verdict::Taken => "the broker lets this node write to the topics of other nodes",
    };
    if local { Finding::warning(seen, RULES) } else { Finding::failed(seen, RULES) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Bed, failed, ok, warned};

    #[test]
    fn what_came_of_the_message_decides() {
        ok(judge(Verdict::Refused, false), "refused");
        failed(judge(Verdict::Heard, false), "read and write", "broker-config");
        failed(judge(Verdict::Taken, false), "write to the topics", "broker-config");
        warned(judge(Verdict::Heard, true), "read and write", "broker-config");
    }

    #[tokio::test]
    async fn a_running_agent_is_left_alone() {
        let mut examined = Bed::new("").examined();
        examined.agent_runs = true;
        assert!(matches!(look(&examined).await, Finding::Skipped(why) if why.contains("throw it out")));
    }
}
