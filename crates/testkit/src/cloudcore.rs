//! The CloudCore model behind real sockets: WebSockets over TLS with mutual certificates, and the
//! join service. Faults of the field occur on command.

mod authority;
mod join;
mod socket;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use authority::Authority;
use edgesync_kubeedge::model::{CloudCore, Now, Settings};

use crate::timing::{PATIENCE, within};

/// A fault of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// The next message is cut in the middle of a frame, and the connection closed.
    CutMidFrame,
    /// Messages are sent in frames of `bytes` bytes, with a pause between them.
    Slow { bytes: usize, pause: Duration },
}

#[derive(Clone, Debug)]
pub struct Options {
    pub settings: Settings,
    /// Disables TLS, for measurements.
    pub plain: bool,
}

impl Default for Options {
    /// A stock one with shorter delays: 200 ms instead of 5 s. Keepalives are unchanged.
    fn default() -> Self {
        let quick = Duration::from_millis(200);
        Self { settings: Settings { resend: quick, scan: quick, ..Settings::default() }, plain: false }
    }
}

/// State shared by the server's tasks.
struct Shared {
    core: Mutex<CloudCore>,
    /// Incremented after each access by [`Shared::with`]; waiting tests subscribe to it.
    changes: watch::Sender<u64>,
    started: Instant,
    authority: Authority,
    fault: Mutex<Fault>,
    refusing: Mutex<bool>,
    plain: bool,
}

impl Shared {
    fn now(&self) -> Now {
        self.started.elapsed()
    }

    fn core(&self) -> MutexGuard<'_, CloudCore> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&mut CloudCore, Now) -> T) -> T {
        let now = self.now();
        let result = act(&mut self.core(), now);
        self.changes.send_modify(|count| *count += 1);
        result
    }

    fn fault(&self) -> Fault {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_refusing(&self) -> bool {
        *self.refusing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running CloudCore, stopped on drop.
pub struct Scripted {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    session: SocketAddr,
    join: SocketAddr,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn listen(runtime: &Runtime) -> TcpListener {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let _guard = runtime.enter();
    TcpListener::from_std(listener).unwrap()
}

impl Scripted {
    pub fn start(options: Options) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("cloudcore")
            .enable_all()
            .build()
            .unwrap();
        let shared = Arc::new(Shared {
            core: Mutex::new(CloudCore::new(options.settings)),
            changes: watch::Sender::new(0),
            started: Instant::now(),
            authority: Authority::new(),
            fault: Mutex::default(),
            refusing: Mutex::new(false),
            plain: options.plain,
        });
        let (sessions, joins) = (listen(&runtime), listen(&runtime));
        let (session, join) = (sessions.local_addr().unwrap(), joins.local_addr().unwrap());
        runtime.spawn(socket::accept(shared.clone(), sessions));
        runtime.spawn(join::accept(shared.clone(), joins));
        runtime.spawn(keep_time(shared.clone()));
        Self { shared, runtime: Some(runtime), session, join }
    }

    // --- addresses and credentials

    /// Returns host and port of the sessions.
    pub fn address(&self) -> SocketAddr {
        self.session
    }

    pub fn url(&self) -> String {
        let scheme = if self.shared.plain { "ws" } else { "wss" };
        format!("{scheme}://{}", self.session)
    }

    pub fn join_url(&self) -> String {
        format!("https://{}", self.join)
    }

    /// Returns host and port of the join service.
    pub fn join_address(&self) -> SocketAddr {
        self.join
    }

    /// Returns a token in the format of `keadm gettoken`.
    pub fn token(&self) -> String {
        self.shared.authority.token(Duration::from_secs(24 * 3600))
    }

    /// Returns an expired token.
    pub fn expired_token(&self) -> String {
        self.shared.authority.token(Duration::ZERO)
    }

    /// Returns the certificate of the authority in DER.
    pub fn ca(&self) -> Vec<u8> {
        self.shared.authority.certificate().to_vec()
    }

    /// Returns certificate and key of a joined node in PEM.
    pub fn identity(&self, node: &str) -> String {
        self.shared.authority.node(node)
    }

    /// Returns certificate and key of a service in PEM, also for `core.example`, `join.example` and
    /// `0.0.0.0`.
    pub fn service_identity(&self) -> String {
        self.shared.authority.service_pem()
    }

    // --- the cluster

    /// Runs an operation on the model.
    pub fn with<T>(&self, act: impl FnOnce(&mut CloudCore, Now) -> T) -> T {
        self.shared.with(act)
    }

    pub fn define(&self, api_version: &str, kind: &str, plural: &str) {
        self.with(|core, _| core.cluster.define(api_version, kind, plural));
    }

    /// Creates or replaces an object. Returns its UID.
    pub fn apply(&self, object: Value) -> String {
        self.with(|core, now| core.apply(now, object))
    }

    pub fn delete(&self, kind: &str, namespace: &str, name: &str) -> Option<String> {
        self.with(|core, now| core.delete(now, kind, namespace, name))
    }

    pub fn recreate(&self, object: Value) -> String {
        self.with(|core, now| core.recreate(now, object))
    }

    pub fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.shared.core().object(kind, namespace, name).cloned()
    }

    pub fn node(&self, name: &str) -> Option<Value> {
        self.object("node", "", name)
    }

    pub fn lease(&self, name: &str) -> Option<Value> {
        self.object("lease", "kube-node-lease", name)
    }

    /// Returns every Event that was written.
    pub fn events(&self) -> Vec<Value> {
        self.shared.core().event_writes().to_vec()
    }

    /// Returns the versions that the node has acknowledged, by UID.
    pub fn objectsyncs(&self, node: &str) -> BTreeMap<String, String> {
        self.shared.core().objectsyncs(node)
    }

    pub fn violations(&self) -> Vec<String> {
        self.shared.core().violations().to_vec()
    }

    pub fn is_connected(&self, node: &str) -> bool {
        self.shared.core().connection_of(node).is_some()
    }

    /// Sends a text to a node ahead of messages that wait for acknowledgements.
    pub fn inject(&self, node: &str, text: impl Into<String>) {
        self.with(|core, _| core.inject(node, text));
    }

    // --- faults

    pub fn suffer(&self, fault: Fault) {
        *self.shared.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
        self.with(|_, _| ());
    }

    /// Closes the session of a node.
    pub fn cut(&self, node: &str) {
        self.with(|core, _| {
            if let Some(connection) = core.connection_of(node) {
                core.disconnect(connection);
            }
        });
    }

    /// Refuses new connections, or accepts them again.
    pub fn refuse(&self, refuse: bool) {
        *self.shared.refusing.lock().unwrap_or_else(PoisonError::into_inner) = refuse;
    }

    /// Opens an idle session under the node's name.
    pub fn take_over(&self, node: &str) {
        self.with(|core, now| core.connect(now, node));
    }

    /// Restarts the process: sessions, queues and watches are lost, the cluster is not.
    pub fn restart(&self) {
        self.with(CloudCore::restart);
    }

    // --- waiting

    /// Waits for a condition. Panics with `what` if it does not become true.
    pub async fn until(&self, what: &str, is_so: impl Fn(&CloudCore) -> bool) {
        let mut changes = self.shared.changes.subscribe();
        let wait = async {
            while !is_so(&self.shared.core()) {
                changes.changed().await.unwrap();
            }
        };
        within(what, PATIENCE, wait).await;
    }
}

/// Ticks the model at its deadlines.
async fn keep_time(shared: Arc<Shared>) {
    let mut changes = shared.changes.subscribe();
    loop {
        let due = shared.core().next_deadline();
        let now = shared.now();
        if due <= now {
            shared.with(CloudCore::tick);
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(due - now) => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}
