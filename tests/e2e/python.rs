//! The API as the Python client library `kubernetes` sees it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::kubectl;
use std::process::Command;

use kubectl::{Cluster, python};

#[tokio::test]
async fn the_python_client_finds_what_it_expects() {
    let cluster = Cluster::start().await;
    let script = edgesync_testkit::programs::root().join("tests/e2e/client/client.py");
    let run = Command::new(python()).arg(script).arg(&cluster.cloud.kubeconfig).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && out.trim() == "ok", "{out}\n{err}");
}
