//! Test cluster in this process: the embedded API over a store, on its own port.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::*;
use crate::cluster::Cluster;
use edgesync_api::{Access, Address, Extension, ExtensionCall, Limits, Listener, Role, Server, own_uid};
use edgesync_fleet::CloudObjects;
use edgesync_transport::proxy::ProxyRules;

/// Token with the admin role.
const TOKEN: &str = "a-token-that-opens-everything";
/// The namespace of edgesync, and that of its keys.
pub(crate) const NAMESPACE: &str = "edgesync";
pub(crate) const CA_NAMESPACE: &str = "edgesync-ca";

struct Nothing;

impl Extension for Nothing {
    async fn call(&self, _call: ExtensionCall) -> edgesync_object::status::Result<serde_json::Value> {
        Err(Status::no_such_path())
    }
}

/// A cluster that runs until it is dropped.
pub(crate) struct Served {
    pub(crate) objects: Arc<CloudObjects>,
    kubeconfig: PathBuf,
    address: SocketAddr,
    serving: Option<(watch::Sender<()>, JoinHandle<()>)>,
    directory: tempfile::TempDir,
}

impl Served {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = CloudStore::open(&directory.path().join("cluster.db"), &CloudOptions::default()).unwrap();
        let objects = Arc::new(CloudObjects::new(store).await.unwrap());
        let mut served = Self {
            objects,
            kubeconfig: directory.path().join("kubeconfig"),
            address: ([127, 0, 0, 1], 0).into(),
            serving: None,
            directory,
        };
        served.run().await;
        let server = format!("http://{}", served.address);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": server}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
        });
        std::fs::write(&served.kubeconfig, config.to_string()).unwrap();
        served
    }

    /// Serves at the previous address.
    pub(crate) async fn run(&mut self) {
        let listener = Listener::bind(&Address::Tcp(self.address)).await.unwrap();
        let Address::Tcp(address) = *listener.address() else { unreachable!("it listens on TCP") };
        self.address = address;
        let access = Access::tokens(vec![(TOKEN.to_owned(), Role::Admin)], own_uid());
        let server = Server::new(Arc::clone(&self.objects), Nothing, access, Limits::cloud());
        let (stop, mut stopped) = watch::channel(());
        let serving = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.changed().await;
            };
            server.serve(listener, stopped).await;
        });
        self.serving = Some((stop, serving));
    }

    /// Stops the server and waits for its end.
    pub(crate) async fn stop(&mut self) {
        if let Some((stop, serving)) = self.serving.take() {
            drop(stop);
            serving.await.unwrap();
        }
    }

    pub(crate) async fn cluster(&self) -> Cluster {
        Cluster::connect(Some(&self.kubeconfig), &ProxyRules::default()).await.unwrap()
    }

    /// Connects through a proxy that can freeze the connections.
    pub(crate) async fn way(&self) -> (Cluster, Way) {
        let way = Way::start(self.address).await;
        let kubeconfig = std::fs::read_to_string(&self.kubeconfig).unwrap();
        let path = self.path("way.kubeconfig");
        std::fs::write(&path, kubeconfig.replace(&self.address.to_string(), &way.address.to_string()))
            .unwrap();
        (Cluster::connect(Some(&path), &ProxyRules::default()).await.unwrap(), way)
    }

    /// Returns the membership store of a new replica, without a watch.
    pub(crate) async fn members(&self) -> MembershipStore {
        MembershipStore::of_cluster(Arc::new(self.cluster().await), NAMESPACE)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// A proxy whose connections can be frozen: they stay open and transfer nothing.
pub(crate) struct Way {
    address: SocketAddr,
    frozen: watch::Sender<u32>,
    _carrying: JoinSet<()>,
}

impl Way {
    async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let frozen = watch::Sender::new(0);
        let freezes = frozen.subscribe();
        let mut carrying = JoinSet::new();
        carrying.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let mut freezes = freezes.clone();
                let born = *freezes.borrow();
                connections.spawn(async move {
                    let mut far = TcpStream::connect(to).await.unwrap();
                    let frozen = async { drop(freezes.wait_for(|frozen| *frozen > born).await) };
                    let is_frozen = tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => false,
                        () = frozen => true,
                    };
                    if is_frozen {
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Self { address, frozen, _carrying: carrying }
    }

    /// Freezes the open connections; later ones work.
    pub(crate) fn freeze(&self) {
        self.frozen.send_modify(|frozen| *frozen += 1);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some((_, serving)) = &self.serving {
            serving.abort();
        }
    }
}
