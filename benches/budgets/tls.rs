//! The cost of certificates: a joined node over TLS with the embedded endpoint. Bytes are counted
//! on the line.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use edgesync_admin::Route;
use edgesync_admin::agent::AgentStatus;
use edgesync_admin::cloud::NodeList;
use edgesync_api::{Address, Client};
use edgesync_testkit::proxy::Proxy;
use serde_json::Value;

use crate::objects::object;
use crate::processes::{
    Process, carried, cloud_program, collection, connect, edge_program, free_port, irreclaimable, mib,
    proc_number, spawn, until,
};
use crate::table::Table;
use edgesync_testkit::site::ask;

/// Objects held during the measurement.
const OBJECTS: usize = 10_000;
/// Observation time of an idle node; extrapolated to a day.
const WATCHED: Duration = Duration::from_secs(120);
/// Time for the node to become idle.
const SETTLE: Duration = Duration::from_secs(20);

/// A cloud side with its embedded endpoint, and a node that has joined it and is not running yet.
pub(crate) struct Joined {
    _cloud: Process,
    line: Proxy,
    runtime: tokio::runtime::Runtime,
    directory: tempfile::TempDir,
}

impl Joined {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let root = directory.path();
        let (broker, joining) = (free_port(), free_port());
        let line = Proxy::start((Ipv4Addr::LOCALHOST, broker).into());
        std::fs::write(
            root.join("cloud.toml"),
            format!(
                "[store]\npath = \"{0}/cloud.db\"\n[broker]\nlisten = \"127.0.0.1:{broker}\"\ntls = \"on\"\n\
                 [api]\nsocket = \"{0}/cloud.sock\"\nlisten = \"127.0.0.1:0\"\n[enrollment]\nlisten = \"127.0.0.1:{joining}\"\n\
                 broker_url = \"mqtts://{1}\"\n[log]\nformat = \"text\"\nlevel = \"warn\"\n\
                 [[placement]]\nnodes = {{ names = [\"*\"] }}\nobjects = {{ kinds = [\"ConfigMap\", \"Secret\", \"Pod\"] }}\n",
                root.display(),
                line.address()
            ),
        )?;
        std::fs::write(
            root.join("edge.toml"),
            format!(
                "[node]\nname = \"edge-1\"\n[store]\npath = \"{0}/edge.db\"\n[link]\nbackoff_min = \"50ms\"\nbackoff_max = \"200ms\"\n\
                 [api]\nsocket = \"{0}/edge.sock\"\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"text\"\n",
                root.display()
            ),
        )?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let cloud = spawn(cloud_program(), &root.join("cloud.toml"), &root.join("cloud.log"))?;
        let joined = Self { _cloud: cloud, line, runtime, directory };
        let answers = || joined.runtime.block_on(joined.cloud().get::<Value>("/version")).ok();
        until("the cloud's API answers", answers)?;
        join(&joined.path("edge.toml"), &joined.path("cloud.sock"), joining)?;
        Ok(joined)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn cloud(&self) -> Client {
        Client::new(Address::Unix(self.path("cloud.sock")))
    }

    /// Creates objects on the cloud side.
    pub(crate) fn create(&self, numbers: Range<usize>) -> anyhow::Result<()> {
        let client = self.cloud();
        self.runtime.block_on(async {
            for number in numbers {
                let object = object(number, 0);
                client.post::<Value>(&collection(&object), &object).await?;
            }
            Ok(())
        })
    }

    /// Starts a program of the agent.
    pub(crate) fn agent(&self, program: &Path) -> anyhow::Result<Process> {
        spawn(program, &self.path("edge.toml"), &self.path("edge.log"))
    }

    /// Returns the status of the agent; `None` if it does not answer.
    pub(crate) fn status(&self) -> Option<AgentStatus> {
        let client = Client::new(Address::Unix(self.path("edge.sock")));
        self.runtime.block_on(ask(&client, Route::Status)).ok()
    }
}

/// Measures the load of a new node: objects per second, from the start of the agent until all are
/// persisted and reported.
fn load() -> anyhow::Result<f64> {
    let site = Joined::new()?;
    site.create(0..OBJECTS)?;
    let start = Instant::now();
    let _agent = site.agent(edge_program())?;
    until("the node is in sync", || {
        let nodes: NodeList = site.runtime.block_on(ask(&site.cloud(), Route::Nodes)).ok()?;
        let node = nodes.items.first()?;
        (node.state() == "in sync" && node.objects() == Some(OBJECTS as u64)).then_some(())
    })?;
    Ok(OBJECTS as f64 / start.elapsed().as_secs_f64())
}

/// Joins one node, and measures it.
pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let rate = load()?;
    let what = "10,000 objects of 1 KB to an empty node, persisted and reported";
    table.budget(what, format!("{rate:.0}/s"), "≥ 40,000/s", rate >= 40_000.0);
    let site = Joined::new()?;
    site.create(0..OBJECTS)?;
    let agent = site.agent(edge_program())?;
    let status = || site.status();
    let line = &site.line;
    let in_sync = |connections: u64| {
        until("the node is in sync", || {
            let status = status()?;
            (status.sync.in_sync && status.link.connections >= connections).then_some(())
        })
    };
    let mut peak = 0;
    until("the node is in sync", || {
        peak = peak.max(irreclaimable(&agent));
        status()?.sync.in_sync.then_some(())
    })?;
    peak = peak.max(irreclaimable(&agent));
    std::thread::park_timeout(SETTLE);
    let idle = irreclaimable(&agent);
    let what = "memory not reclaimable, idle with 10,000 objects";
    table.budget(what, mib(idle), "≤ 3 MB (EdgeCore: 13–21)", idle * 1024 <= 3_000_000);
    let what = "  while receiving them, sampled every few milliseconds";
    table.budget(what, mib(peak), "≤ 6 MB", peak * 1024 <= 6_000_000);
    let pss = proc_number(&agent, "smaps_rollup", "Pss:");
    table.budget("  PSS, idle", mib(pss), "≤ 9 MB (EdgeCore: 107)", pss * 1024 <= 9_000_000);
    let (before, start) = (carried(line), Instant::now());
    std::thread::park_timeout(WATCHED);
    let day = (carried(line) - before) as f64 / start.elapsed().as_secs_f64() * 86_400.0;
    table.budget(
        "idle traffic per day over TLS (TCP payload, both directions), Lease every 10s",
        format!("{:.0} KB", day / 1e3),
        "≤ 1.8 MB",
        day <= 1.8e6,
    );
    for (what, connections) in [("session resumed", 2), ("again", 3)] {
        connect(line, false);
        until("the link is lost", || (!status()?.link.is_connected()).then_some(()))?;
        let before = carried(line);
        connect(line, true);
        in_sync(connections)?;
        let bytes = carried(line) - before;
        let what = format!("reconnect over TLS, {what}: TCP payload until in sync");
        table.budget(&what, format!("{bytes} bytes"), "≤ 1,500 bytes", bytes <= 1500);
    }
    Ok(())
}

/// Enrolls a node with a token. Returns the time that the join takes.
pub(crate) fn join(config: &Path, api: &Path, joining: u16) -> anyhow::Result<Duration> {
    let made = Command::new(cloud_program())
        .args(["token", "create", "--node", "edge-1", "--server"])
        .arg(api)
        .output()
        .context("creating a token")?;
    let start = Instant::now();
    let joined = Command::new(edge_program())
        .args(["join", "--cloud", &format!("https://127.0.0.1:{joining}"), "--config"])
        .arg(config)
        .env("EDGESYNC_JOIN_TOKEN", String::from_utf8(made.stdout)?.trim())
        .output()
        .context("joining")?;
    if !joined.status.success() {
        bail!("the node could not join: {}", String::from_utf8_lossy(&joined.stderr));
    }
    Ok(start.elapsed())
}
