//! The Helm chart in a cluster: installed, upgraded, uninstalled and installed again, by the oldest
//! and the newest Helm.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::install::{Setup, packaging};
use edgesync_testkit::kubectl::{Kubectl, Run, helm, old_helm};

const LABEL: &str = "app.kubernetes.io/name=edgesync";
const PLACEMENT: &str = "{apiVersion: edgesync.io/v1alpha1, kind: Placement, metadata: {name: all, namespace: default}, \
     spec: {objects: {kinds: [configmaps]}, nodes: {names: ['*']}}}";

/// Runs `helm upgrade --install` with these values beside those without a default.
fn upgrade(client: &Kubectl, values: &[&str]) {
    upgrade_with(client, values, &[]).ok();
}

/// The same with more options, which may fail.
fn upgrade_with(client: &Kubectl, values: &[&str], options: &[&str]) -> Run {
    upgrade_to(client, &packaging("chart"), values, options)
}

/// The same with another chart.
fn upgrade_to(client: &Kubectl, chart: &Path, values: &[&str], options: &[&str]) -> Run {
    let mut words = vec!["upgrade", "--install", "edgesync", chart.to_str().unwrap()];
    words.extend(["--namespace", "edgesync", "--create-namespace"]);
    for value in
        ["image.repository=edgesync-cloud", "enrollment.names={edge.example.com}"].iter().chain(values)
    {
        words.extend(["--set", value]);
    }
    words.extend(options);
    client.run(&words)
}

/// Copies the chart with another definition of the kind Placement, as of another release.
fn other_release(setup: &Setup) -> PathBuf {
    let copy = setup.site.path("chart");
    // The links to the manifests become files.
    let copied = Command::new("cp").arg("-rL").args([&packaging("chart"), &copy]).status().unwrap();
    assert!(copied.success());
    let path = copy.join("manifests/crds/placements.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let renamed = text.replacen("name: In sync\n", "name: Synced\n", 1);
    fs::write(path, renamed.replacen("maxItems: 100\n", "maxItems: 7\n", 1)).unwrap();
    copy
}

/// Returns a column of the kind Placement, and the maximum number of kinds in a rule.
fn placement_kind(setup: &Setup) -> (Value, Value) {
    let definition = setup.get(&["crd", "placements.edgesync.io"]);
    let version = &definition["spec"]["versions"][0];
    let objects = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["objects"];
    let column = &version["additionalPrinterColumns"][2]["name"];
    (column.clone(), objects["properties"]["kinds"]["maxItems"].clone())
}

/// Replaces the cluster's aggregation controller.
fn aggregate_rights(setup: &Setup) -> Value {
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]);
    let patch = json!({ "rules": rules }).to_string();
    setup.admin.run(&["patch", "clusterrole", "edgesync-place", "--type=merge", "-p", &patch]).ok();
    rules
}

/// Installs the chart, and asserts that a second time changes nothing.
fn install_twice(setup: &Setup, client: &Kubectl) {
    upgrade(client, &["signer.enabled=true"]);
    let rules = aggregate_rights(setup);
    let before = setup.versions();
    assert!(before.len() > 20, "{before:#?}");
    upgrade(client, &["signer.enabled=true"]);
    assert_eq!(setup.versions(), before);
    assert_eq!(setup.get(&["clusterrole", "edgesync-place"])["rules"], rules);
    let budget = setup.get(&["poddisruptionbudget", "edgesync-cloud", "-n", "edgesync"]);
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
}

/// Uninstalls the chart, and asserts that rules and keys are kept.
fn uninstall(setup: &Setup, client: &Kubectl) {
    client.run(&["uninstall", "edgesync", "--namespace", "edgesync"]).ok();
    let kinds = "deployments,services,configmaps,clusterroles,clusterrolebindings,roles,rolebindings";
    setup.admin.run(&["get", kinds, "-A", "-l", LABEL, "-o", "name"]).says("");
    assert_eq!(setup.admin.run(&["get", "crd", "-l", LABEL, "-o", "name"]).lines().len(), 4);
    setup.get(&["namespace", "edgesync-ca"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn chart_is_installed_upgraded_uninstalled_and_back() {
    let setup = Setup::start(&[]).await;
    let mut client = Kubectl::with_kubeconfig(&setup.site, "helm", &setup.kubernetes.admin);
    for program in [old_helm(), helm()] {
        client.program(program);
        install_twice(&setup, &client);

        // Without the signer, the replicas have the right to the keys again.
        upgrade(&client, &["config.kubernetes.qps=500"]);
        setup
            .admin
            .run(&["get", "deployments", "-n", "edgesync", "-o", "name"])
            .says("deployment.apps/edgesync-cloud");
        let binding = setup.get(&["rolebinding", "edgesync-signer", "-n", "edgesync-ca"]);
        assert_eq!(binding["subjects"][0]["name"], "edgesync-cloud");
        assert!(setup.configuration().contains("qps = 500"));
        uninstall(&setup, &client);
    }
}

/// Helm 4 applies on the server, where the fields belong to kubectl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn chart_takes_over_an_installation_of_kustomize() {
    let values = ["service.type=LoadBalancer", "config.kubernetes.qps=500"];
    let options: [(_, &[&str]); 2] =
        [(old_helm(), &["--take-ownership"]), (helm(), &["--take-ownership", "--force-conflicts"])];
    for (program, options) in options {
        let setup = Setup::installed().await;
        let mut client = Kubectl::with_kubeconfig(&setup.site, "helm", &setup.kubernetes.admin);
        client.program(program);
        let deployment = || setup.get(&["deployment", "edgesync-cloud", "-n", "edgesync"])["metadata"].take();
        let before = deployment();
        let error = upgrade_with(&client, &values, &[]).fails();
        assert!(error.contains("invalid ownership metadata"), "{error}");
        upgrade_with(&client, &values, options).ok();
        let after = deployment();
        assert_eq!(after["uid"], before["uid"], "the replicas are not recreated");
        assert_eq!(after["annotations"]["meta.helm.sh/release-name"], "edgesync");
        assert!(setup.configuration().contains("qps = 500"));
        // From then on it is a release like others.
        upgrade(&client, &values);
        assert_eq!(deployment()["uid"], before["uid"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn upgrade_of_the_chart_updates_the_kinds_and_keeps_rules() {
    for program in [old_helm(), helm()] {
        let setup = Setup::start(&[]).await;
        let mut client = Kubectl::with_kubeconfig(&setup.site, "helm", &setup.kubernetes.admin);
        client.program(program);
        upgrade_to(&client, &other_release(&setup), &[], &[]).ok();
        assert_eq!(placement_kind(&setup), (json!("Synced"), json!(7)));
        setup.admin.run(&["wait", "--for=condition=Established", "crd", "--all"]).ok();
        setup.apply(PLACEMENT);
        let uid = || setup.get(&["placement", "all", "-n", "default"])["metadata"]["uid"].take();
        let before = uid();
        upgrade(&client, &[]);
        assert_eq!(placement_kind(&setup), (json!("In sync"), json!(100)));
        assert_eq!(uid(), before);
    }
}
