//! `edgesync-cloud run`, and an operator who uses its API.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use edgesync::api::{Address, Client};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::process::Process;
use super::{PATIENCE, block_on, eventually, get, number, text};
use crate::support::mosquitto::free_address;

const PROGRAM: &str = env!("CARGO_BIN_EXE_edgesync-cloud");
/// Requests under way at a time.
const CLIENTS: usize = 8;
/// Where the objects of the tests are.
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The cloud side: a process that may be killed and started again over the same store.
pub(crate) struct Cloud {
    directory: TempDir,
    api: Address,
    broker: SocketAddr,
    process: Option<Process>,
}

impl Cloud {
    /// Starts one with its embedded endpoint.
    pub(crate) fn embedded(sync: &str) -> Self {
        let broker = free_address();
        Self::start(broker, &format!("mode = \"embedded\"\nlisten = \"{broker}\""), "", sync)
    }

    /// Starts one that uses a broker elsewhere.
    pub(crate) fn external(broker: SocketAddr, sync: &str) -> Self {
        let link = format!("broker = \"mqtt://{broker}\"");
        Self::start(broker, "mode = \"external\"", &link, sync)
    }

    fn start(broker: SocketAddr, mode: &str, link: &str, sync: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let api = free_address();
        let store = directory.path().join("cloud.db");
        let config = format!(
            "[[placement]]\n\
             nodes = {{ names = [\"edge-*\"] }}\n\
             objects = {{ kinds = [\"configmaps\"] }}\n\
             [store]\npath = {store:?}\n\
             [broker]\n{mode}\n\
             [link]\n{link}\nkeepalive = \"4s\"\nconnect_timeout = \"3s\"\n\
             backoff_min = \"50ms\"\nbackoff_max = \"500ms\"\ntaken_over_backoff = \"2s\"\n\
             [sync]\n{sync}\n\
             [api]\nlisten = \"{api}\"\n"
        );
        std::fs::write(directory.path().join("cloud.toml"), config).unwrap();
        let mut cloud = Self { directory, api: Address::Tcp(api), broker, process: None };
        cloud.restart();
        cloud
    }

    /// Where nodes connect to.
    pub(crate) fn broker(&self) -> SocketAddr {
        self.broker
    }

    /// Where its API is.
    pub(crate) fn api(&self) -> &Address {
        &self.api
    }

    /// The process.
    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the cloud does not run")
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again over the same store, and waits for its API.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let config = self.directory.path().join("cloud.toml");
        let mut command = Command::new(PROGRAM);
        command.arg("run").arg("--config").arg(config);
        self.process = Some(Process::start("edgesync-cloud", &mut command));
        let api = self.api.clone();
        let process = self.process.as_mut().unwrap();
        eventually("the cloud's API answers", PATIENCE, || {
            assert!(process.is_alive(), "the cloud has ended");
            get(&api, "/edgesync/v1/nodes").is_some()
        });
    }

    /// What it knows of a node.
    pub(crate) fn node(&self, node: &str) -> Option<Value> {
        get(&self.api, &format!("/edgesync/v1/nodes/{node}"))
    }

    /// The state of a node in a word.
    pub(crate) fn state(&self, node: &str) -> String {
        self.node(node).map(|shown| text(&shown, "/state")).unwrap_or_default()
    }

    /// One of the counters of a node.
    #[track_caller]
    pub(crate) fn counter(&self, node: &str, name: &str) -> u64 {
        number(&self.node(node).expect("the cloud knows the node"), &format!("/counters/{name}"))
    }

    /// Frames that it refused, by reason.
    pub(crate) fn bad_frames(&self) -> Value {
        get(&self.api, "/edgesync/v1/nodes").map(|nodes| nodes["badFrames"].clone()).unwrap_or_default()
    }

    /// What `edgesync-cloud nodes` prints.
    pub(crate) fn nodes_table(&self) -> String {
        let mut command = Command::new(PROGRAM);
        command.args(["nodes", "--server", &self.api.to_string()]).stdin(Stdio::null());
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    }

    /// Creates objects.
    pub(crate) fn create(&self, objects: Vec<Value>) {
        self.each(objects, |client, object| async move {
            client.post::<Value>(CONFIG_MAPS, &object).await.map(drop).map_err(|e| format!("{e:?}"))
        });
    }

    /// Replaces objects.
    pub(crate) fn replace(&self, objects: Vec<Value>) {
        self.each(objects, |client, object| async move {
            let path = format!("{CONFIG_MAPS}/{}", text(&object, "/metadata/name"));
            client.put::<Value>(&path, &object).await.map(drop).map_err(|e| format!("{e:?}"))
        });
    }

    /// Deletes objects by name.
    pub(crate) fn delete(&self, names: Vec<String>) {
        let names = names.into_iter().map(Value::String).collect();
        self.each(names, |client, name| async move {
            let path = format!("{CONFIG_MAPS}/{}", name.as_str().unwrap_or_default());
            client.delete::<Value>(&path, None).await.map(drop).map_err(|e| format!("{e:?}"))
        });
    }

    fn each<F>(&self, items: Vec<Value>, request: impl Fn(Arc<Client>, Value) -> F + Copy + Send + 'static)
    where
        F: Future<Output = Result<(), String>> + Send,
    {
        let mut shares: Vec<Vec<Value>> = vec![Vec::new(); CLIENTS];
        for (at, item) in items.into_iter().enumerate() {
            shares[at % CLIENTS].push(item);
        }
        block_on(async {
            let mut tasks = JoinSet::new();
            for share in shares {
                let client = Arc::new(Client::new(self.api.clone()));
                tasks.spawn(async move {
                    for item in share {
                        request(client.clone(), item).await.unwrap();
                    }
                });
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
        });
    }
}
