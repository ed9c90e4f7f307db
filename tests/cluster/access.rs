//! Connecting to a cluster: its version, its kinds, and the errors of refused connections.

use std::fs;
use std::time::Duration;

use edgesync_kubernetes::cluster::{Cluster, Unserved};

use crate::cluster::kubernetes::Kubernetes;
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::site::{Site, eventually};
use edgesync_transport::proxy::ProxyRules;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn kubeconfig_connects_to_the_cluster_and_lists_its_kinds() {
    let site = Site::new();
    let kubernetes = Kubernetes::start(&site).await;
    let cluster = Cluster::connect(Some(&kubernetes.admin), &ProxyRules::default()).await.unwrap();
    assert_eq!(cluster.version().await.unwrap(), format!("v{}", include_str!("version").trim()));

    let kinds = cluster.kinds().await.unwrap();
    assert!(kinds.undiscovered.is_empty(), "{:?}", kinds.undiscovered);
    let versions = |plural: &str| {
        let named = kinds.served.iter().filter(|resource| resource.plural == plural);
        named.map(|resource| resource.api_version()).collect::<Vec<_>>()
    };
    assert_eq!(versions("configmaps"), ["v1"]);
    // Once, in the preferred version, and not also as `extensions/v1beta1`.
    assert_eq!(versions("ingresses"), ["networking.k8s.io/v1"]);
    assert_eq!(versions("cronjobs"), ["batch/v1beta1"]);
    // This kind can only be created.
    assert_eq!(versions("subjectaccessreviews"), [""; 0]);

    let before = cluster.reached().await.unwrap();
    let admin = Kubectl::with_kubeconfig(&site, "admin", &kubernetes.admin);
    admin.run(&["create", "namespace", "shop"]).ok();
    let given = admin.run(&["get", "namespace/shop", "-o", "json"]).json();
    let given = given["metadata"]["resourceVersion"].as_str().unwrap().into();
    assert!(before.is_older_than(&given), "{before} {given}");
    assert!(!cluster.reached().await.unwrap().is_older_than(&given));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn starting_server_does_not_hide_established_kinds() {
    let site = Site::new();
    let mut kubernetes = Kubernetes::start(&site).await;
    let admin = Kubectl::with_kubeconfig(&site, "admin", &kubernetes.admin);
    let rules = include_str!("../../packaging/kubernetes/crds/placements.yaml");
    admin.feed(&["create", "-f", "-"], rules).ok();
    admin.run(&["wait", "--for=condition=Established", "crd/placements.edgesync.io"]).ok();
    let cluster = Cluster::connect(Some(&kubernetes.admin), &ProxyRules::default()).await.unwrap();
    kubernetes.server.kill();
    kubernetes.server.start();
    let mut answers = Vec::new();
    let kinds = eventually("the server tells its kinds", Duration::from_secs(90), async || {
        cluster.kinds().await.map_err(|error| answers.push(error.to_string())).ok()
    });
    let kinds = kinds.await;
    assert!(kinds.served.iter().any(|resource| resource.plural == "placements"), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn refused_connections_say_why() {
    let site = Site::new();
    let mut kubernetes = Kubernetes::start(&site).await;
    let asked = async |kubeconfig| {
        Cluster::connect(Some(kubeconfig), &ProxyRules::default()).await.unwrap().version().await.unwrap_err()
    };

    let stranger = kubernetes.caller("stranger", "nonsense");
    let error = asked(&stranger).await;
    assert!(matches!(error, Unserved::Unknown { .. }), "{error:?}");
    assert!(error.to_string().contains("stranger.kubeconfig: expired"), "{error}");

    let other = Site::new();
    let elsewhere = Kubernetes::start(&other).await;
    let mixed = site.path("mixed.kubeconfig");
    let read = |path| serde_json::from_str::<serde_json::Value>(&fs::read_to_string(path).unwrap()).unwrap();
    let mut kubeconfig = read(&kubernetes.admin);
    kubeconfig["clusters"][0]["cluster"]["server"] =
        read(&elsewhere.admin)["clusters"][0]["cluster"]["server"].clone();
    fs::write(&mixed, kubeconfig.to_string()).unwrap();
    let error = asked(&mixed).await;
    assert!(matches!(error, Unserved::Untrusted { .. }), "{error:?}");

    kubernetes.server.kill();
    let error = asked(&kubernetes.admin).await;
    assert!(matches!(error, Unserved::Unreachable { .. }), "{error:?}");
    Kubectl::with_kubeconfig(&site, "admin", &kubernetes.admin).run(&["get", "nodes"]).fails_with("refused");
}
