//! The API through the Python client library `kubernetes`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::kubectl;
use std::process::Command;

use kubectl::{Cluster, python};

#[tokio::test]
async fn python_client_works_against_the_cloud() {
    let cluster = Cluster::start().await;
    let script = edgesync_testkit::programs::root().join("tests/e2e/client/client.py");
    let run = Command::new(python()).arg(script).arg(&cluster.cloud.kubeconfig).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && out.trim() == "ok", "{out}\n{err}");
}
