//! kubectl on YAML scalars, on its own identity, and on subresources that are not served.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::kubectl::{self, Cluster};
use edgesync_testkit::site;
use serde_json::Value;

/// Checks against kubectl the corpus that also tests the project's YAML reader. It needs no server.
#[tokio::test]
async fn kubectl_parses_scalars_as_the_corpus_does() {
    let site = site::Site::new();
    let client = kubectl::Kubectl::with_kubeconfig(&site, "kubectl", &site.path("none"));
    let corpus = include_str!("../fixtures/yaml/scalars.txt");
    let lines = || corpus.lines().filter(|line| !line.starts_with('#'));
    let read =
        |manifest: &str| client.feed(&["annotate", "--local", "-f", "-", "a=b", "-o", "json"], manifest);
    let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: scalars}\n";
    let (wrong, right): (Vec<_>, Vec<_>) = lines().partition(|line| line.ends_with(" => error"));
    let mut manifest = head.to_owned();
    for (number, line) in right.iter().enumerate() {
        manifest.push_str(&format!("v{number}: {}\n", line.split_once(" => ").unwrap().0));
    }
    let found = read(&manifest).json();
    for (number, line) in right.iter().enumerate() {
        let expected: Value = serde_json::from_str(line.split_once(" => ").unwrap().1).unwrap();
        let found = &found[format!("v{number}")];
        // Beyond 63 bits kubectl rounds.
        let same =
            if expected.is_number() { expected.as_f64() == found.as_f64() } else { expected == *found };
        assert!(same, "{line}: {found}");
    }
    for line in wrong {
        let text = line.split_once(" => ").unwrap().0;
        read(&format!("{head}v: {text}\n")).fails();
    }
}

#[tokio::test]
async fn kubectl_commands_work_or_are_refused_with_a_reason() {
    let cluster = Cluster::start().await;
    cluster.kubectl(&["auth", "whoami"]).shows(&["role:admin"]);
    cluster.kubectl(&["auth", "can-i", "create", "pods"]).says("yes");
    let log = cluster.kubectl(&["auth", "can-i", "get", "pods", "--subresource=log"]);
    assert!(log.code == Some(1) && log.stdout.contains("pods/log is not served here"), "{log}");
    cluster.kubectl(&["create", "deployment", "web", "--image=nginx:1.27", "--replicas=2"]).ok();
    cluster.kubectl(&["scale", "deployment", "web", "--replicas=5"]).ok();
    assert_eq!(cluster.get("deployment/web")["spec"]["replicas"], 5);
    cluster.kubectl(&["run", "pod", "--image=nginx:1.27"]).ok();
    for (arguments, part) in [
        (&["logs", "pod"][..], "pods/log"),
        (&["exec", "pod", "--", "ls"], "pods/exec"),
        (&["attach", "pod"], "pods/attach"),
        (&["create", "token", "default"], "serviceaccounts/token"),
    ] {
        cluster.kubectl(arguments).fails_with(&format!("{part} is not served: "));
    }
}
