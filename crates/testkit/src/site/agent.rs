//! An agent: its process, its local API, its database file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use edgesync_api::{Address, Client};
use serde_json::Value;

use super::{PATIENCE, Process, Settings, Site, eventually, path_of};

/// An agent of a test.
pub struct Agent {
    pub process: Process,
    pub settings: Settings,
    /// The name of the node.
    pub node: String,
    /// The database file.
    pub database: PathBuf,
    /// The socket of the local API.
    pub socket: PathBuf,
    config: PathBuf,
}

impl Agent {
    /// An agent of a node with a broker, started.
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

    /// An agent that is not started yet.
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

    /// Writes the configuration file, for a reload for instance.
    pub fn write_config(&self) {
        self.settings.write(&self.config);
    }

    /// The configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Starts it and waits until its local API answers.
    pub async fn run(&mut self) {
        self.write_config();
        self.run_as_configured().await;
    }

    /// The same with the configuration as it is, after `edgesync join` for instance.
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

    /// Kills it with SIGKILL and starts it again.
    pub async fn crash(&mut self) {
        self.process.kill();
        self.run().await;
    }

    /// Kills it with SIGKILL and starts it again with the configuration as it is.
    pub async fn crash_as_configured(&mut self) {
        self.process.kill();
        self.run_as_configured().await;
    }

    /// A client with a connection of its own.
    pub fn client(&self) -> Client {
        Client::new(Address::Unix(self.socket.clone()))
    }

    /// What the agent says of itself.
    pub async fn status(&self) -> Value {
        self.client().get("/edgesync/v1/status").await.unwrap()
    }

    /// A text in the status, by JSON pointer; empty when there is none.
    pub async fn says(&self, pointer: &str) -> String {
        self.status().await.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// A number in the status, by JSON pointer; 0 when there is none.
    pub async fn counts(&self, pointer: &str) -> u64 {
        self.status().await.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
    }

    /// Whether the broker is connected.
    pub async fn is_connected(&self) -> bool {
        self.says("/link/state").await == "connected"
    }

    /// Whether the agent says that it is in sync.
    pub async fn is_in_sync(&self) -> bool {
        self.status().await["sync"]["inSync"] == true
    }

    /// An object as the node holds it.
    pub async fn get(&self, object: &Value) -> Option<Value> {
        self.client().get(&path_of(object)).await.ok()
    }

    /// Waits until the status fits.
    pub async fn until(&self, what: &str, mut fits: impl FnMut(&Value) -> bool) -> Value {
        eventually(&format!("{}: {what}", self.node), PATIENCE, async || {
            let status = self.status().await;
            fits(&status).then_some(status)
        })
        .await
    }
}
