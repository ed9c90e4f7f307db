//! 2, 4 and 8 replicas with 10,000 nodes over one Kubernetes API server: the load that it and etcd
//! carry is the limit of such a fleet.
//!
//! Requires the binaries of `tests/cluster/run prepare`. Server, etcd, replicas and nodes share the
//! machine.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::fleet::{may_open, memories, storm_at};
use crate::kubernetes::{SHARED, Server, config_map, placement};
use crate::processes::FleetSite;
use crate::table::Table;
use edgesync_testkit::node::Memory;

const NODES: usize = 10_000;
const REPLICAS: [usize; 3] = [2, 4, 8];
/// More than the server takes: it is measured, not the limit of a replica.
const LIMITS: &str = "qps = 1000\nburst = 2000\n";
const LEASE: Duration = Duration::from_secs(60);
/// Limit of the time until everything about the nodes is written.
const WRITTEN: Duration = Duration::from_secs(900);

/// Requests that the server has answered, and processor time, so far.
struct Used {
    at: Instant,
    requests: f64,
    server: Duration,
    replicas: Duration,
}

/// A fleet of replicas over a server.
struct Fleet<'a> {
    server: &'a Server,
    replicas: Vec<FleetSite>,
}

/// Measurements of the replicas and their server.
struct Found {
    written: Duration,
    /// Requests a second, and shares of a core of server and replicas: until everything is written,
    /// and while nothing but Leases is sent.
    busy: [f64; 3],
    idle: [f64; 3],
    /// Resident bytes of the largest replica.
    largest: u64,
}

pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    may_open(2 * NODES);
    let server = Server::start()?;
    server.create(&placement("shared", "shared", "node-*"))?;
    server.create_all((0..SHARED).map(|n| config_map("shared", &format!("s-{n}"), n)))?;
    let mut nodes = memories(NODES, SHARED);
    nodes.iter_mut().for_each(|node| node.lease = Some(LEASE));
    let mut which = "new nodes";
    for count in REPLICAS {
        let start = || FleetSite::over_cluster(&server.kubeconfig, LIMITS);
        let replicas = (0..count).map(|_| start()).collect::<anyhow::Result<Vec<_>>>()?;
        let fleet = Fleet { server: &server, replicas };
        let (time, found) = fleet.serve(&mut nodes)?;
        let what =
            format!("{count} replicas: 10,000 {which} with {SHARED} objects each at once, all in sync");
        table.figure(&what, format!("{:.1} s", time.as_secs_f64()));
        let busy = format!("{:.0} s, {}", found.written.as_secs_f64(), shares(found.busy));
        table.figure("  until all is written: time, requests, CPU of server and replicas", busy);
        let what = "  Leases every 60 s: requests, CPU of server and replicas";
        table.figure(what, shares(found.idle));
        let what = "  memory of a replica, at most";
        table.figure(what, format!("{:.0} MB", found.largest as f64 / 1e6));
        which = "nodes of killed replicas";
        // Nodes end in any order; names must match epochs again.
        nodes.sort_by_key(|node| node.totals.epoch.0);
    }
    Ok(())
}

fn shares([requests, server, replicas]: [f64; 3]) -> String {
    format!("{requests:.0}/s, {:.0} % and {:.0} % of a core", server * 100.0, replicas * 100.0)
}

impl Fleet<'_> {
    /// Connects all nodes at once, and observes them for minutes. Returns the time until all are in
    /// sync.
    fn serve(&self, nodes: &mut Vec<Memory>) -> anyhow::Result<(Duration, Found)> {
        let endpoints = self.replicas.iter().map(FleetSite::endpoint).collect::<anyhow::Result<Vec<_>>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let before = runtime.block_on(self.used())?;
        let mut found = Err(anyhow::anyhow!("nothing was observed"));
        let observe = async || found = self.observe(&before).await;
        let time = runtime.block_on(storm_at(&endpoints, nodes, observe))?;
        Ok((time, found?))
    }

    async fn observe(&self, before: &Used) -> anyhow::Result<Found> {
        while self.waiting().await? > 0.0 {
            anyhow::ensure!(before.at.elapsed() < WRITTEN, "not all is written after {WRITTEN:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let written = self.used().await?;
        // The first renewals follow the connects.
        tokio::time::sleep(LEASE).await;
        let begun = self.used().await?;
        tokio::time::sleep(LEASE * 2).await;
        let ended = self.used().await?;
        Ok(Found {
            written: written.at - before.at,
            busy: before.until(&written),
            idle: begun.until(&ended),
            largest: self.replicas.iter().map(FleetSite::cloud_rss).max().unwrap_or_default(),
        })
    }

    /// Returns the number of requests that the replicas have not sent.
    async fn waiting(&self) -> anyhow::Result<f64> {
        let mut waiting = 0.0;
        for replica in &self.replicas {
            let metrics = replica.client().text("/metrics").await?;
            waiting += sum(&metrics, "edgesync_cloud_cluster_waiting_")?;
        }
        Ok(waiting)
    }

    async fn used(&self) -> anyhow::Result<Used> {
        let metrics = self.server.client().text("/metrics").await?;
        Ok(Used {
            at: Instant::now(),
            requests: sum(&metrics, "apiserver_request_total{")?,
            server: self.server.spent(),
            replicas: self.replicas.iter().map(|replica| replica.cloud_spent().0).sum(),
        })
    }
}

impl Used {
    /// Returns what was used until then: requests a second, and shares of a core.
    fn until(&self, then: &Self) -> [f64; 3] {
        let seconds = (then.at - self.at).as_secs_f64();
        let share = |after: Duration, before: Duration| (after - before).as_secs_f64() / seconds;
        [
            (then.requests - self.requests) / seconds,
            share(then.server, self.server),
            share(then.replicas, self.replicas),
        ]
    }
}

/// Returns the sum of the samples whose names, with labels, begin with a text.
fn sum(metrics: &str, name: &str) -> anyhow::Result<f64> {
    let values = metrics.lines().filter(|line| line.starts_with(name));
    values.map(|line| Ok(line.rsplit(' ').next().context("a sample without value")?.parse::<f64>()?)).sum()
}
