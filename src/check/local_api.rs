//! Checks that the agent runs, answers at its socket, and has this version.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::Value;

use super::{Check, CheckFn, Examined, Finding, chain};
use crate::store::inspect;
use edgesync_admin::agent::{AgentIdentity, AgentStatus, StoreStatus};
use edgesync_admin::{InvalidResponse, Route, read};
use edgesync_api::{Address, Client, ClientError};
use edgesync_runtime::VERSION;
use edgesync_runtime::systemd;

pub(super) const CHECK: Check = Check {
    id: "local-api",
    title: "Local API",
    needs: &["configuration"],
    limit: Duration::from_secs(8),
    examine: CheckFn::Wire(|examined| Box::pin(examine(examined))),
};

/// Returns the next step for an agent of another configuration or version.
fn restart() -> &'static str {
    systemd::advice("systemctl restart edgesync", "restart the agent")
}

async fn examine(examined: &mut Examined) -> Finding {
    let config = examined.config();
    let shown = config.api.socket.display().to_string();
    // The check of permissions reports an inaccessible lock.
    examined.agent_runs = inspect::is_in_use(&config.store.path).unwrap_or(false);
    let client = Client::new(Address::Unix(config.api.socket));
    match client.get::<Value>(&Route::Status.path()).await {
        Ok(status) => {
            examined.agent_runs = true;
            let (finding, status) = answered(&status, &config.node.name, &shown);
            examined.status = status;
            finding
        }
        Err(ClientError::Connect { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            examined.agent_runs = true;
            let next_step = "run the check as root, or as a member of the socket's group";
            Finding::failed(format!("connect to {shown}: {source}"), next_step)
        }
        Err(error) if examined.agent_runs => {
            let message = format!(
                "agent does not respond at {shown}, but a process has the database open: {}",
                chain(&error)
            );
            Finding::failed(message, "see 'journalctl -u edgesync', and restart the agent if it hangs")
        }
        Err(error @ ClientError::Connect { .. }) => Finding::failed(
            format!("agent not running: {}", chain(&error)),
            systemd::advice("systemctl start edgesync", "start it: 'edgesync run'"),
        ),
        Err(error) => {
            let message = format!("no agent at {shown}: {}", chain(&error));
            Finding::failed(message, "see 'journalctl -u edgesync'")
        }
    }
}

/// Rates an answer, and returns the status unless another version sent it.
fn answered(answer: &Value, node: &str, socket: &str) -> (Finding, Option<AgentStatus>) {
    let status = read::<AgentStatus>(answer);
    let finding = match (read::<AgentIdentity>(answer), &status) {
        (Ok(identity), status) => {
            of_node(&identity, node, socket).unwrap_or_else(|| of_status(status, socket))
        }
        (Err(error), _) => Finding::warning(error.to_string(), restart()),
    };
    (finding, status.ok())
}

/// Returns a finding for another node or version.
fn of_node(identity: &AgentIdentity, node: &str, socket: &str) -> Option<Finding> {
    let (running, is) = (&identity.agent.version, &identity.node);
    if is != node {
        let message = format!("the agent at {socket} is node '{is}', but node.name is '{node}'");
        return Some(Finding::warning(message, restart()));
    }
    if running != VERSION {
        let message = format!("the running agent has version {running}, this program {VERSION}");
        return Some(Finding::warning(message, restart()));
    }
    None
}

fn of_status(status: &Result<AgentStatus, InvalidResponse>, socket: &str) -> Finding {
    let status = match status {
        Ok(status) => status,
        Err(error) => return Finding::warning(error.to_string(), restart()),
    };
    let writing = &status.store.writing;
    if writing != StoreStatus::WORKS {
        let message = format!("agent running, but its database is not writable: {writing}");
        return Finding::failed(message, "free space on the disk, or see 'journalctl -u edgesync'");
    }
    Finding::ok(format!("{socket}: agent running, version {VERSION}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};
    use edgesync_admin::samples;
    use serde_json::json;

    #[tokio::test]
    async fn a_stopped_agent_is_a_failure_with_its_start_command() {
        let testbed = Testbed::new("");
        let mut examined = testbed.examined();
        let start = systemd::advice("systemctl start edgesync", "'edgesync run'");
        failed(examine(&mut examined).await, "agent not running", start);
        assert!(!examined.agent_runs);
    }

    #[tokio::test]
    async fn an_open_database_without_an_answer_fails() {
        let testbed = Testbed::new("");
        let mut examined = testbed.examined();
        let store = testbed.store().await;
        failed(examine(&mut examined).await, "does not respond", "journalctl");
        assert!(examined.agent_runs);
        store.close().await;
    }

    #[test]
    fn an_agent_of_another_version_or_node_must_be_restarted() {
        let status = |version: &str, node: &str, writing: &str| {
            let mut status = samples::status();
            (status.agent.version, status.node) = (version.to_owned(), node.to_owned());
            status.store.writing = writing.to_owned();
            json!(status)
        };
        let answered = |status: &Value, node: &str, socket: &str| answered(status, node, socket).0;
        ok(answered(&status(VERSION, "a", "works"), "a", "/s"), "/s: agent running, version");
        warned(answered(&status("0.0.1", "a", "works"), "a", "/s"), "version 0.0.1", "restart");
        warned(answered(&status(VERSION, "b", "works"), "a", "/s"), "node 'b'", "restart");
        failed(answered(&status(VERSION, "a", "full"), "a", "/s"), "not writable: full", "free space");
        let mut old = status(VERSION, "a", "works");
        old["store"].as_object_mut().unwrap().remove("writing");
        warned(answered(&old, "a", "/s"), "parse agent status: missing field `writing`", "restart");
        old["agent"]["version"] = json!("0.0.1");
        warned(answered(&old, "a", "/s"), "version 0.0.1", "restart");
        warned(answered(&json!({ "node": "a" }), "a", "/s"), "missing field `agent`", "restart");
    }
}
