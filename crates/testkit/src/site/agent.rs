//! An agent: its process, its local API, its database file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use edgesync_admin::Route;
use edgesync_admin::agent::AgentStatus;
use edgesync_api::{Address, Client};
use serde_json::Value;

use super::{PATIENCE, Process, Settings, Site, ask, eventually, path_of};

/// An agent of a test.
pub struct Agent {
    pub process: Process,
    pub settings: Settings,
    /// Name of the node.
    pub node: String,
    /// Path of the database file.
    pub database: PathBuf,
    /// Socket of the local API.
    pub socket: PathBuf,
    config: PathBuf,
}

impl Agent {
    /// Starts an agent of a node with a broker.
    pub async fn start(site: &Site, node: &str, broker: SocketAddr) -> Self {
        Self::start_with(site, node, broker, |_| {}).await
    }

    /// The same with a changed configuration.
    pub async fn start_with(
        site: &Site,
        node: &str,
        broker: SocketAddr,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut agent = Self::new(site, node, broker);
        change(&mut agent.settings);
        agent.run().await;
        agent
    }

    /// Creates an agent without starting it.
    pub fn new(site: &Site, node: &str, broker: SocketAddr) -> Self {
        let config = site.path(&format!("{node}.toml"));
        let socket = site.path(&format!("{node}.sock"));
        let database = site.path(node).join("edgesync.db");
        let mut settings = Settings::default();
        settings.text("node.name", node).text("link.broker", format!("mqtt://{broker}"));
        settings.text("store.path", database.display()).text("api.socket", socket.display());
        settings.text("api.listen", "127.0.0.1:0");
        settings.text("link.backoff_min", "20ms").text("link.backoff_max", "200ms");
        settings.text("sync.hello_timeout", "2s").text("sync.report_timeout", "2s");
        settings.text("log.format", "text");
        let process = Process::new(&format!("the agent of {node}"), crate::programs::device(), &config);
        Self { process, settings, node: node.to_owned(), database, socket, config }
    }

    /// Writes the configuration file, such as for a reload.
    pub fn write_config(&self) {
        self.settings.write(&self.config);
    }

    /// Returns the path of the configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Starts it and waits until its local API answers.
    pub async fn run(&mut self) {
        self.write_config();
        self.run_as_configured().await;
    }

    /// The same with the existing configuration, such as after `edgesync join`.
    pub async fn run_as_configured(&mut self) {
        self.process.start();
        let client = self.client();
        let process = &mut self.process;
        eventually("the agent's API answers", PATIENCE, async || {
            assert!(process.runs(), "the agent ended: {:?}", process.log().last());
            client.get::<Value>("/version").await.ok()
        })
        .await;
    }

    /// Stops it in order.
    pub async fn stop(&mut self) {
        let status = self.process.terminate(PATIENCE).await;
        assert!(status.success(), "the agent ended with {status}");
    }

    /// Kills it with SIGKILL and restarts it.
    pub async fn crash(&mut self) {
        self.process.kill();
        self.run().await;
    }

    /// Kills it with SIGKILL and restarts it with the existing configuration.
    pub async fn crash_as_configured(&mut self) {
        self.process.kill();
        self.run_as_configured().await;
    }

    /// Returns a client with its own connection.
    pub fn client(&self) -> Client {
        Client::new(Address::Unix(self.socket.clone()))
    }

    /// Returns the status of the agent.
    pub async fn status(&self) -> AgentStatus {
        ask(&self.client(), Route::Status).await.unwrap()
    }

    /// Returns whether the broker is connected.
    pub async fn is_connected(&self) -> bool {
        self.status().await.link.is_connected()
    }

    /// Returns whether the agent reports that it is in sync.
    pub async fn is_in_sync(&self) -> bool {
        self.status().await.sync.in_sync
    }

    /// Returns an object as held by the node.
    pub async fn get(&self, object: &Value) -> Option<Value> {
        self.client().get(&path_of(object)).await.ok()
    }

    /// Waits until the status matches.
    pub async fn until(&self, what: &str, mut fits: impl FnMut(&AgentStatus) -> bool) -> AgentStatus {
        eventually(&format!("{}: {what}", self.node), PATIENCE, async || {
            let status = self.status().await;
            fits(&status).then_some(status)
        })
        .await
    }
}
