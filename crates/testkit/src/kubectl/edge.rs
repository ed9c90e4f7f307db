//! A node of a cluster, and the real kubectl with the kubeconfigs that its agent writes.

use edgesync_admin::agent::{AgentStatus, ListenStatus};
use serde_json::Value;

use super::{Cluster, Kubectl, Run};
use crate::site::{Agent, Settings, Site};

/// An agent, and kubectls with its kubeconfigs.
pub struct Edge {
    pub agent: Agent,
    /// For all users in the group of the files.
    pub local: Kubectl,
    /// For the agent's user.
    pub secrets: Kubectl,
}

impl Edge {
    /// Starts a node of the cluster; its API keeps its address.
    pub async fn start(cluster: &Cluster, node: &str) -> Self {
        Self::start_with(cluster, node, |_| {}).await
    }

    pub async fn start_with(cluster: &Cluster, node: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let agent = Agent::start_with(&cluster.site, node, cluster.cloud.mqtt, |settings| {
            settings.text("api.listen", Site::address());
            change(settings);
        })
        .await;
        let kubeconfig = agent.database.with_file_name("kubeconfig");
        let secrets = agent.database.with_file_name("kubeconfig-secrets");
        let local = Kubectl::with_kubeconfig(&cluster.site, "local", &kubeconfig);
        let secrets = Kubectl::with_kubeconfig(&cluster.site, "secrets", &secrets);
        let edge = Self { agent, local, secrets };
        if !edge.agent.settings.is("api.listen", "off") {
            edge.opened().await;
        }
        edge
    }

    /// Waits until the API answers over TCP, and returns its address.
    pub async fn opened(&self) -> String {
        let is_open = |status: &AgentStatus| matches!(status.api, ListenStatus::Open { .. });
        match self.agent.until("its API answers over TCP", is_open).await.api {
            ListenStatus::Open { address } => address,
            other => panic!("{other:?}"),
        }
    }

    /// Stops the agent in order.
    pub async fn stop(&mut self) {
        self.agent.stop().await;
    }

    /// Starts the agent and waits until its API answers over TCP.
    pub async fn run(&mut self) {
        self.agent.run().await;
        self.opened().await;
    }

    /// Kills the agent and starts it again.
    pub async fn crash(&mut self) {
        self.agent.crash().await;
        self.opened().await;
    }

    /// Runs kubectl as a user in the group.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> Run {
        self.local.run(arguments)
    }

    /// Returns an object by kind and name.
    #[track_caller]
    pub fn get(&self, object: &str) -> Value {
        self.kubectl(&["get", object, "-o", "json"]).json()
    }

    /// Returns the names of listed objects.
    #[track_caller]
    pub fn names(&self, arguments: &[&str]) -> Vec<String> {
        let run = self.kubectl(&[&["get", "-o", "name"], arguments].concat());
        run.lines().iter().map(|line| line.split_once('/').unwrap().1.to_owned()).collect()
    }

    /// Runs a command with a manifest on standard input.
    #[track_caller]
    pub fn feed(&self, arguments: &[&str], manifest: &Value) -> Run {
        self.local.feed(&[arguments, &["-f", "-"]].concat(), &manifest.to_string())
    }
}
