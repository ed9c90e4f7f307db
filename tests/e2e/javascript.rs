//! The APIs of both sides through the JavaScript client library `@kubernetes/client-node`, with the
//! kubeconfigs that the programs write.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use edgesync_testkit::kubectl::{Cluster, Edge, javascript};

#[track_caller]
fn drive(side: &str, kubeconfig: &Path) {
    let script = edgesync_testkit::programs::root().join("tests/e2e/client/client.mjs");
    let run = Command::new("node").arg(script).arg(javascript()).arg(side).arg(kubeconfig).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && out.trim() == "ok", "{out}\n{err}");
}

#[tokio::test]
async fn javascript_client_works_against_the_cloud() {
    let cluster = Cluster::start().await;
    drive("cloud", &cluster.cloud.kubeconfig);
}

#[tokio::test]
async fn javascript_client_works_against_a_node() {
    let cluster = Cluster::start().await;
    let edge = Edge::start(&cluster, "edge-1").await;
    cluster.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {mode: fast}}");
    cluster.cloud.in_sync("edge-1", 1).await;
    drive("node", &edge.agent.database.with_file_name("kubeconfig"));
}
