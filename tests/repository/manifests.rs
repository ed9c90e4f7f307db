//! Checks the Kubernetes manifests: each RBAC rule names the code that needs it, and Pods run
//! nothing but the program of the image.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use edgesync_enrollment::ca_namespace;
use edgesync_object::yaml;
use serde_json::json;

fn root() -> &'static Path {
    edgesync_testkit::programs::root()
}

fn manifest(name: &str) -> String {
    fs::read_to_string(root().join("packaging/kubernetes").join(name)).unwrap()
}

#[test]
fn rbac_rules_name_the_code_that_needs_them() {
    let mut rules = 0;
    for name in ["base/rights.yaml", "base/place.yaml", "overlays/signer/rights.yaml"] {
        let text = manifest(name);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let is_rule = |line: &str| line.starts_with("- apiGroups:") || line.starts_with("- nonResourceURLs:");
        for at in (0..lines.len()).filter(|at| is_rule(lines[*at])) {
            let above: Vec<&str> =
                lines[..at].iter().rev().take_while(|line| line.starts_with('#')).copied().collect();
            // The rule for a kind's status follows the rule for the kind.
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

/// A right to list or watch includes every Secret of its namespace.
#[test]
fn secrets_with_keys_are_read_by_name_only() {
    for name in ["base/rights.yaml", "base/place.yaml", "overlays/signer/rights.yaml", "examples/rights.yaml"]
    {
        let text = manifest(name);
        for document in text.split("\n---\n").filter(|document| document.contains("secrets]")) {
            let is_of_keys = document.contains("namespace: edgesync-ca\n");
            let is_cluster_wide = document.contains("kind: ClusterRole\n");
            assert!(!is_cluster_wide, "{name}: a right to Secrets of all namespaces:\n{document}");
            let lists = document.contains("list") && document.contains("watch]");
            assert!(!is_of_keys || !lists, "{name}: the keys can be listed:\n{document}");
        }
    }
}

/// cert-manager writes the Secret that replicas read, with a key that signs.
#[test]
fn certificate_of_cert_manager_is_the_ca_of_the_fleet() {
    let certificate = yaml::parse(&manifest("examples/cert-manager.yaml")).unwrap();
    let (metadata, spec) = (&certificate["metadata"], &certificate["spec"]);
    assert_eq!(metadata["namespace"], ca_namespace("edgesync"));
    assert_eq!(
        (&spec["secretName"], &spec["isCA"], &spec["usages"]),
        (&json!("edgesync-ca"), &json!(true), &json!(["cert sign", "crl sign"]))
    );
    assert_eq!(spec["privateKey"]["rotationPolicy"], "Never", "a new key would be another CA");
    let document = fs::read_to_string(root().join("docs/kubernetes.md")).unwrap();
    let name = metadata["name"].as_str().unwrap();
    for words in [format!("certificate/{name}\n"), format!("certificate {name} --cascade=orphan\n")] {
        assert!(document.contains(&words), "{words}");
    }
}

/// Replicas relay to the Service of the signer, whose Pods have the configuration of replicas.
#[test]
fn signer_has_the_keys_and_replicas_relay_to_it() {
    let overlay = manifest("overlays/signer/kustomization.yaml");
    assert!(overlay.contains("value: https://edgesync-signer.edgesync.svc:10002"));
    assert!(overlay.contains("path: /subjects/0/name\n        value: edgesync-signer"));
    let (deployment, service) =
        (manifest("overlays/signer/deployment.yaml"), manifest("overlays/signer/service.yaml"));
    assert!(deployment.contains("command: [edgesync-cloud, signer, --config,"));
    assert!(deployment.contains("serviceAccountName: edgesync-signer"));
    assert!(deployment.contains("enableServiceLinks: false"));
    assert!(deployment.contains("containerPort: 10002") && service.contains("port: 10002"));
    let config = deployment.contains("configMap: { name: edgesync-cloud-config }");
    assert!(
        config && manifest("base/deployment.yaml").contains("configMap: { name: edgesync-cloud-config }")
    );
}

/// Without a signer each replica has a certificate of its own, in a file.
#[test]
fn rights_to_the_certificate_of_a_signer_are_in_its_overlay() {
    assert!(!manifest("base/rights.yaml").contains("edgesync-server"));
    let overlay = manifest("overlays/signer/rights.yaml");
    let role = |name: &str| {
        let head = format!("kind: Role\nmetadata:\n  name: {name}\n");
        overlay.split("\n---\n").find(|document| document.contains(&head)).unwrap().to_owned()
    };
    for (name, verbs) in [("edgesync-server", "[get]"), ("edgesync-server-issuer", "[get, update]")] {
        let role = role(name);
        assert!(role.contains("resourceNames: [edgesync-server]"), "{role}");
        assert!(role.contains(&format!("verbs: {verbs}")), "{role}");
    }
}

#[test]
fn deployment_has_configured_ports_and_no_service_variables() {
    let (deployment, configuration) =
        (manifest("base/deployment.yaml"), manifest("base/edgesync-cloud.toml"));
    for port in ["8883", "10002", "8080"] {
        assert!(deployment.contains(&format!("containerPort: {port}")), "{port}");
        assert!(configuration.contains(&format!("0.0.0.0:{port}")), "{port}");
    }
    let one_port = ["kustomization.yaml", "edgesync-cloud.toml"]
        .map(|name| manifest(&format!("overlays/one-port/{name}")));
    assert!(one_port[0].contains("containerPort: 10443") && one_port[1].contains("0.0.0.0:10443"));
    assert!(one_port[0].contains("port: 443,") && one_port[1].contains("mqtts://:443"));
    // The variables that Kubernetes sets for a Service of this name have the prefix of
    // configuration variables.
    assert!(deployment.contains("enableServiceLinks: false"));
}

/// The image has neither a shell nor `sleep`.
#[test]
fn containers_and_their_hooks_run_the_program_of_the_image() {
    let mut commands = 0;
    for name in ["base/deployment.yaml", "overlays/signer/deployment.yaml"] {
        let text = manifest(name);
        for (_, command) in text.lines().filter_map(|line| line.split_once("command: [")) {
            assert!(command.starts_with("edgesync-cloud,"), "{name}: {command}");
            commands += 1;
        }
    }
    assert_eq!(commands, 3, "two containers and a preStop hook");
}
