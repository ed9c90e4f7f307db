//! The manifests for a Kubernetes cluster: each right says which code needs it.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    edgesync_testkit::programs::root()
}

fn manifest(name: &str) -> String {
    fs::read_to_string(root().join("packaging/kubernetes").join(name)).unwrap()
}

#[test]
fn every_right_of_a_replica_names_the_code_that_needs_it() {
    let mut rules = 0;
    for name in ["base/rights.yaml", "base/place.yaml"] {
        let text = manifest(name);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let is_rule = |line: &str| line.starts_with("- apiGroups:") || line.starts_with("- nonResourceURLs:");
        for at in (0..lines.len()).filter(|at| is_rule(lines[*at])) {
            let above: Vec<&str> =
                lines[..at].iter().rev().take_while(|line| line.starts_with('#')).copied().collect();
            // The status of a kind stands below the kind.
            let comment = above.into_iter().rev().collect::<Vec<_>>().join(" ");
            let is_status = lines[at + 1].contains("/status");
            assert!(!comment.is_empty() || is_status, "{name}:{}: no comment", at + 1);
            let named = comment.split([' ', ',', ':']).map(|word| word.trim_end_matches('.'));
            let named: Vec<&str> =
                named.filter(|word| word.starts_with("src/") || word.starts_with("crates/")).collect();
            assert!(!named.is_empty() || is_status, "{name}:{}: names no code: {comment}", at + 1);
            for path in named {
                assert!(root().join(path).exists(), "{name}:{}: there is no {path}", at + 1);
            }
            rules += 1;
        }
    }
    assert!(rules > 12, "the rules were not found");
}

#[test]
fn the_deployment_has_the_ports_of_the_configuration_and_no_variables_of_services() {
    let (deployment, configuration) =
        (manifest("base/deployment.yaml"), manifest("base/edgesync-cloud.toml"));
    for port in ["8883", "10002", "8080"] {
        assert!(deployment.contains(&format!("containerPort: {port}")), "{port}");
        assert!(configuration.contains(&format!("0.0.0.0:{port}")), "{port}");
    }
    // A Service of this name makes variables that begin as those of the configuration do.
    assert!(deployment.contains("enableServiceLinks: false"));
}
