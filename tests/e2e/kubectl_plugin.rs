//! `kubectl edgesync`: the commands of the cloud side as a plugin of kubectl.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::os::unix::fs::symlink;

use edgesync_testkit::kubectl::Cluster;
use edgesync_testkit::programs;

#[tokio::test]
async fn kubectl_runs_the_plugin_with_its_own_kubeconfig() {
    let mut cluster = Cluster::start().await;
    let directory = cluster.site.path("programs");
    std::fs::create_dir(&directory).unwrap();
    let plugin = programs::root().join("packaging/kubectl-edgesync");
    symlink(plugin, directory.join("kubectl-edgesync")).unwrap();
    symlink(programs::cloud(), directory.join("edgesync-cloud")).unwrap();
    let path = std::env::var("PATH").unwrap();
    cluster.client.env("PATH", &format!("{}:{path}", directory.display()));
    cluster.kubectl(&["plugin", "list"]).shows(&["/programs/kubectl-edgesync"]);

    cluster.kubectl(&["create", "configmap", "settings", "--from-literal=mode=fast"]).ok();
    cluster.kubectl(&["edgesync", "get", "configmaps", "-n", "default"]).shows(&["settings"]);
    // Exit codes and errors are those of the program.
    let run = cluster.kubectl(&["edgesync", "nodez"]);
    assert!(run.code == Some(64) && run.stderr.contains("nodez"), "{run}");
    // The cluster is that of kubectl, and empty entries are ignored.
    cluster.client.env("EDGESYNC_CLOUD_KUBECONFIG", "/other");
    cluster.client.env("KUBECONFIG", &format!(":{}:", cluster.cloud.kubeconfig.display()));
    cluster.kubectl(&["edgesync", "get", "configmaps", "-n", "default"]).shows(&["settings"]);
    cluster.client.env("KUBECONFIG", "/first:/second");
    let run = cluster.kubectl(&["edgesync", "nodes"]);
    assert!(run.code == Some(64) && run.stderr.contains("hint: KUBECONFIG=FILE"), "{run}");
    // By itself: kubectl looks for its own configuration without HOME too.
    let plugin = std::process::Command::new(directory.join("kubectl-edgesync")).env_clear().output().unwrap();
    let error = String::from_utf8_lossy(&plugin.stderr);
    assert!(plugin.status.code() == Some(64) && error.contains("neither KUBECONFIG nor HOME"), "{error}");
}
