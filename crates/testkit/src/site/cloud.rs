//! A cloud side: its process, its API, its counters of a node.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use edgesync_admin::Route;
use edgesync_admin::cloud::{NodeCounters, NodeInfo, NodeList, ServedNode};
use edgesync_api::{Address, Client, ClientError, object_path};
use edgesync_object::kinds;
use edgesync_object::status::Reason;
use serde_json::Value;

use super::fleet::ended;
use super::{PATIENCE, Process, Settings, Site, ask, eventually};

/// Number of connections for applying many objects.
const CONNECTIONS: usize = 8;
/// Places all objects of these kinds on every node.
const PLACEMENT: &str = r#"
[[placement]]
nodes = { names = ["*"] }
objects = { kinds = ["configmaps", "secrets", "pods"] }
"#;

/// The cloud side of a test.
pub struct Cloud {
    pub process: Process,
    pub settings: Settings,
    /// Address of the API.
    pub api: SocketAddr,
    /// Address of the embedded endpoint.
    pub mqtt: SocketAddr,
    /// Socket of the API.
    pub socket: PathBuf,
    /// kubeconfig for administrators of the machine, over TCP.
    pub kubeconfig: PathBuf,
    /// Path of the database file.
    pub database: PathBuf,
    config: PathBuf,
}

impl Cloud {
    /// Starts a cloud side with its embedded endpoint.
    pub async fn start(site: &Site) -> Self {
        Self::start_with(site, |_| {}).await
    }

    /// The same with a changed configuration.
    pub async fn start_with(site: &Site, change: impl FnOnce(&mut Settings)) -> Self {
        let mut cloud = Self::new(site);
        change(&mut cloud.settings);
        cloud.run().await;
        cloud
    }

    /// Starts a cloud side that uses a broker elsewhere, with a changed configuration.
    pub async fn start_behind(site: &Site, broker: SocketAddr, change: impl FnOnce(&mut Settings)) -> Self {
        let mut cloud = Self::new(site);
        cloud.mqtt = broker;
        cloud.settings.text("broker.mode", "external").text("link.broker", format!("mqtt://{broker}"));
        cloud.settings.text("link.backoff_min", "20ms").text("link.backoff_max", "200ms");
        change(&mut cloud.settings);
        cloud.run().await;
        cloud
    }

    /// Creates a cloud side without starting it.
    pub fn new(site: &Site) -> Self {
        let (config, database) = (site.path("cloud.toml"), site.path("cloud.db"));
        let (socket, kubeconfig) = (site.path("cloud.sock"), site.path("admin.kubeconfig"));
        let (api, mqtt) = (Site::address(), Site::address());
        let mut settings = Settings::default();
        settings.text("store.path", database.display()).text("broker.listen", mqtt);
        settings
            .text("api.socket", socket.display())
            .text("api.listen", api)
            .text("log.format", "text")
            .tables(PLACEMENT);
        settings.text("enrollment.listen", "off").text("page.listen", "127.0.0.1:0");
        settings.text("sync.resend_min", "2s").text("sync.resend_max", "5s");
        let process = Process::new("the cloud side", crate::programs::cloud(), &config);
        Self { process, settings, api, mqtt, socket, kubeconfig, database, config }
    }

    /// Writes the configuration file, such as for a reload.
    pub fn write_config(&self) {
        self.settings.write(&self.config);
    }

    /// Starts it and waits until its API answers.
    pub async fn run(&mut self) {
        self.write_config();
        self.process.start();
        let client = self.client();
        let process = &mut self.process;
        eventually("the API of the cloud side answers", PATIENCE, async || {
            assert!(process.runs(), "the cloud side ended: {:?}", process.log().last());
            client.get::<Value>("/version").await.ok()
        })
        .await;
    }

    /// Kills it with SIGKILL and restarts it.
    pub async fn crash(&mut self) {
        self.process.kill();
        self.run().await;
    }

    /// Returns a client with its own connection.
    pub fn client(&self) -> Client {
        Client::new(Address::Unix(self.socket.clone()))
    }

    /// Runs `edgesync-cloud` with these arguments, for this cloud side.
    pub async fn command(&self, words: &[&str]) -> Output {
        let mut command = Command::new(crate::programs::cloud());
        command.args(words).env("EDGESYNC_CLOUD_SERVER", &self.socket);
        ended(command).await
    }

    /// Creates or replaces objects, over several connections.
    pub async fn apply(&self, objects: impl IntoIterator<Item = Value>) {
        let objects: Arc<Vec<Value>> = Arc::new(objects.into_iter().collect());
        let next = Arc::new(AtomicUsize::new(0));
        let workers = (0..CONNECTIONS.min(objects.len())).map(|_| {
            let (client, objects, next) = (self.client(), Arc::clone(&objects), Arc::clone(&next));
            tokio::spawn(async move {
                while let Some(object) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
                    apply(&client, object).await.unwrap();
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await.unwrap();
        }
    }

    pub async fn delete(&self, object: &Value) {
        self.client().delete::<Value>(&path_of(object), None).await.unwrap();
    }

    /// Returns an object as held by the cloud.
    pub async fn get(&self, object: &Value) -> Value {
        self.client().get(&path_of(object)).await.unwrap()
    }

    /// Returns the cloud's status of a node; `None` if it has no such node.
    pub async fn node(&self, name: &str) -> Option<NodeInfo> {
        match ask(&self.client(), Route::Node(name)).await {
            Ok(node) => Some(node),
            Err(error) if error.status().is_some_and(|status| status.code == 404) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the status of a node that this process serves; `None` before its first Hello.
    pub async fn served(&self, name: &str) -> Option<ServedNode> {
        match self.node(name).await? {
            NodeInfo::Served(node) => Some(*node),
            _ => None,
        }
    }

    /// Returns the counters of a node since the process started; zero before its first Hello.
    pub async fn counters(&self, name: &str) -> NodeCounters {
        self.served(name).await.map(|node| node.counters).unwrap_or_default()
    }

    /// Returns the objects and removals that the cloud has sent since it had counted `before`.
    pub async fn sent_since(&self, name: &str, before: NodeCounters) -> (u64, u64) {
        let now = self.counters(name).await;
        let sent = |counters: &NodeCounters| counters.objects_sent + counters.objects_resent;
        (sent(&now) - sent(&before), now.removals_sent - before.removals_sent)
    }

    /// Returns the state of a node; `None` if the cloud has no such node.
    pub async fn state(&self, name: &str) -> Option<String> {
        self.node(name).await.map(|node| node.state().to_owned())
    }

    /// Returns all nodes.
    pub async fn nodes(&self) -> NodeList {
        ask(&self.client(), Route::Nodes).await.unwrap()
    }

    /// Returns the numbers of refused frames, by reason.
    pub async fn bad_frames(&self) -> BTreeMap<String, u64> {
        self.nodes().await.bad_frames.expect("a process that serves nodes counts bad frames")
    }

    /// Waits until the cloud counts a node as in sync with `objects` objects.
    pub async fn in_sync(&self, name: &str, objects: u64) {
        let what = format!("{name} is in sync with {objects} objects");
        eventually(&what, PATIENCE, async || {
            let node = self.node(name).await?;
            (node.state() == "in sync" && node.objects() == Some(objects)).then_some(())
        })
        .await;
    }
}

/// Creates or replaces an object.
pub async fn apply(client: &Client, object: &Value) -> Result<Value, ClientError> {
    let path = path_of(object);
    let (collection, _) = path.rsplit_once('/').unwrap();
    match client.post(collection, object).await {
        Err(ClientError::Api(status)) if status.reason == Some(Reason::AlreadyExists) => {
            client.put(&path, object).await
        }
        other => other,
    }
}

/// Returns the path of an object in either API.
pub fn path_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&object["kind"]);
    let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let resource = kinds::guess(&text(&object["apiVersion"]), &kind, !namespace.is_empty());
    object_path(&resource, &namespace, &name)
}
