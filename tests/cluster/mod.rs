//! Replicas and feeds over a real Kubernetes API server with etcd, and checks of that server.
//!
//! `tests/cluster/run` prepares it, lists its limitations, and runs these tests.

mod access;
mod api;
mod attack;
mod audit;
mod broker;
mod cache;
// Packages have Helm for this architecture only.
#[cfg(target_arch = "x86_64")]
mod chart;
#[cfg(not(target_arch = "x86_64"))]
mod chart {
    #[test]
    fn chart_is_checked_on_x86_64() {
        eprintln!("notice: packages have Helm for x86-64 only; the chart was not checked");
    }
}
mod costs;
mod fault_proxy;
mod feed;
mod install;
mod installed;
mod joining;
mod kubernetes;
mod replicas;
mod rollouts;
mod server;
mod setup;
mod trouble;
mod uploads;
mod via_cluster;
