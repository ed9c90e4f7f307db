//! The manifests in `packaging/kubernetes`: a cluster accepts them, and they grant a replica
//! exactly the rights it needs.
//!
//! Kubernetes 1.20 has no `policy/v1`, so the PodDisruptionBudget is tested in its previous
//! version. No controller aggregates ClusterRoles in this cluster, so the parts of `edgesync-place`
//! are bound one by one.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use edgesync_admin::cloud::state::REVOKED;
use edgesync_api::{Address, Client};
use serde_json::{Value, json};

use crate::cluster::kubernetes::Kubernetes;
use crate::cluster::setup::{ANYTHING, define};
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::site::fleet::{Fleet, ended, in_sync, output_text};
use edgesync_testkit::site::{Agent, Cloud, Process, Settings, Site, eventually};

/// Maximum duration of each step. A refused kind is retried within half a minute.
const PATIENCE: Duration = Duration::from_secs(120);
/// The identity of the replicas, and that of the signer of the overlay.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:edgesync:edgesync-cloud";
const SIGNER_ACCOUNT: &str = "system:serviceaccount:edgesync:edgesync-signer";
/// The error for the kind that Kubernetes 1.20 does not have.
const TOO_NEW: &str = "no matches for kind \"PodDisruptionBudget\" in version \"policy/v1\"";
/// Number of all other installed objects.
const INSTALLED: usize = 24;
/// Number of objects that the overlay with a signer adds.
const SIGNER: usize = 12;

const PLACEMENT: &str = "{apiVersion: edgesync.io/v1alpha1, kind: Placement, metadata: {name: all, namespace: plant}, \
     spec: {objects: {kinds: [configmaps, secrets, widgets.example.com]}, nodes: {names: ['*']}}}";

/// A cluster for the manifests.
pub(crate) struct Setup {
    // Dropped before the directory that its processes use.
    pub(crate) kubernetes: Kubernetes,
    pub(crate) admin: Kubectl,
    pub(crate) site: Site,
}

/// Returns the path of a manifest.
pub(crate) fn packaging(name: &str) -> PathBuf {
    edgesync_testkit::programs::root().join("packaging/kubernetes").join(name)
}

impl Setup {
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let site = Site::new();
        let kubernetes = Kubernetes::start_with(&site, arguments).await;
        let admin = Kubectl::with_kubeconfig(&site, "admin", &kubernetes.admin);
        Self { kubernetes, admin, site }
    }

    /// Starts a cluster with everything installed and the namespace `plant`.
    pub(crate) async fn installed() -> Self {
        Self::installed_with(&[]).await
    }

    /// The same with additional arguments of the API server.
    pub(crate) async fn installed_with(arguments: &[&str]) -> Self {
        Self::start(arguments).await.install("overlays/load-balancer", INSTALLED)
    }

    /// Installs an overlay of so many objects, and creates the namespace `plant`.
    fn install(self, overlay: &str, objects: usize) -> Self {
        let made = self.kustomize(overlay, &[]);
        assert_eq!(made.len(), objects, "{made:#?}");
        self.admin.run(&["wait", "--for=condition=Established", "crd", "--all"]).ok();
        self.admin.run(&["create", "namespace", "plant"]).ok();
        self
    }

    /// Applies a kustomization. Returns the output for all objects but the one that this cluster
    /// cannot have.
    fn kustomize(&self, name: &str, words: &[&str]) -> Vec<String> {
        let path = packaging(name);
        let run = self.admin.run(&[&["apply", "-k", path.to_str().unwrap()], words].concat());
        let errors: Vec<&str> = run.stderr.lines().filter(|line| !line.starts_with("ensure CRDs")).collect();
        assert!(matches!(&errors[..], [error] if error.contains(TOO_NEW)), "{run}");
        run.stdout.lines().map(str::to_owned).collect()
    }

    pub(crate) fn apply(&self, text: &str) {
        self.admin.feed(&["apply", "-f", "-"], text).ok();
    }

    pub(crate) fn get(&self, words: &[&str]) -> Value {
        self.admin.run(&[&["get", "-o", "json"], words].concat()).json()
    }

    /// Replaces the cluster's aggregation controller: these ClusterRoles are part of
    /// `edgesync-place`.
    pub(crate) fn aggregate(&self, roles: &[&str]) {
        for role in roles {
            let label = self.get(&["clusterrole", role])["metadata"]["labels"].take();
            assert_eq!(label["edgesync.io/aggregate-to-place"], "true", "{role}");
            let (role, account) =
                (format!("--clusterrole={role}"), "--serviceaccount=edgesync:edgesync-cloud");
            self.admin.run(&["create", "clusterrolebinding", &role[14..], &role, account]).ok();
        }
    }

    /// Returns a kubeconfig of a ServiceAccount.
    pub(crate) fn account(&self, name: &str) -> PathBuf {
        let token = self.admin.run(&["create", "token", name, "-n", "edgesync"]).ok();
        self.kubernetes.caller(name, token.trim())
    }

    /// Returns whether an account has a right: a verb, a resource, a namespace. The part of the
    /// resource after a slash is a subresource or the name of an object.
    fn may(&self, account: &str, (verb, resource, namespace): (&str, &str, &str)) -> bool {
        let account = format!("--as={account}");
        let (kind, subresource) = match resource.split_once('/') {
            Some((kind, part)) if ["exec", "token", "proxy", "status"].contains(&part) => (kind, part),
            _ => (resource, ""),
        };
        let subresource = format!("--subresource={subresource}");
        let mut words = vec!["auth", "can-i", verb, kind, &account, &subresource];
        if !namespace.is_empty() {
            words.extend(["-n", namespace]);
        }
        let run = self.admin.run(&words);
        match run.stdout.trim_end() {
            "yes" => true,
            "no" => false,
            _ => panic!("{run}"),
        }
    }

    /// Creates a replica like the Pods: their configuration with paths and addresses of this
    /// machine, and their ServiceAccount.
    pub(crate) fn replica(&self) -> Replica {
        let mut cloud = Cloud::new(&self.site);
        cloud.settings = Settings::default();
        cloud.settings.tables(&self.configuration());
        // Like an emptyDir with fsGroup.
        let state = self.site.path("state");
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o2777)).unwrap();
        let (joining, health) = (Site::address(), Site::address());
        for (key, value) in [
            ("KUBERNETES_KUBECONFIG", self.account("edgesync-cloud").display().to_string()),
            ("STORE_PATH", state.join("cloud.db").display().to_string()),
            ("BROKER_LISTEN", cloud.mqtt.to_string()),
            ("BROKER_TLS", "on".to_owned()),
            ("ENROLLMENT_LISTEN", joining.to_string()),
            ("API_LISTEN", cloud.api.to_string()),
            ("API_SOCKET", cloud.socket.display().to_string()),
            ("API_HEALTH", health.to_string()),
            ("LOG_LEVEL", "info,edgesync=debug".to_owned()),
            ("LOG_FORMAT", "text".to_owned()),
        ] {
            cloud.process.env(&format!("EDGESYNC_CLOUD_{key}"), value);
        }
        let health = Client::new(Address::Tcp(health));
        Replica { fleet: Fleet { cloud, joining }, health }
    }

    /// Waits for the Accepted condition of the Placement with this reason and any status.
    async fn accepted(&self, reason: &str) -> Value {
        self.accepted_as(reason, "").await
    }

    /// Also waits for a message. An API server that has just started refuses too much until it has
    /// read its RBAC rules.
    async fn accepted_as(&self, reason: &str, message: &str) -> Value {
        eventually(&format!("the Placement is {reason}: {message}"), PATIENCE, async || {
            let found = self.get(&["placement", "all", "-n", "plant"])["status"]["conditions"].take();
            let accepted =
                found.as_array()?.iter().find(|condition| condition["type"] == "Accepted")?.clone();
            (accepted["reason"] == reason && accepted["message"].as_str()?.contains(message))
                .then_some(accepted)
        })
        .await
    }
}

/// A replica and a client of its probes.
pub(crate) struct Replica {
    pub(crate) fleet: Fleet,
    pub(crate) health: Client,
}

impl Replica {
    /// Returns the log lines of refused requests.
    pub(crate) fn refused(&self) -> Vec<String> {
        let log = self.fleet.cloud.process.log();
        log.into_iter()
            .filter(|line| line.contains("is forbidden") || line.contains("cannot get path"))
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn manifests_are_accepted_by_the_api_server() {
    let setup = Setup::start(&[]).await;
    // A server-side dry run needs the namespace.
    setup.admin.run(&["apply", "-f", packaging("base/namespace.yaml").to_str().unwrap()]).ok();
    for (name, objects) in [
        (".", INSTALLED),
        ("overlays/load-balancer", INSTALLED),
        ("overlays/external-broker", INSTALLED),
        ("overlays/signer", INSTALLED + SIGNER),
    ] {
        let made = setup.kustomize(name, &["--dry-run=server"]);
        let tried = made.iter().filter(|line| line.ends_with("(server dry run)")).count();
        assert_eq!((made.len(), tried), (objects, objects), "{name}: {made:#?}");
    }
    let budget = fs::read_to_string(packaging("base/disruption.yaml")).unwrap();
    let older = budget.replace("apiVersion: policy/v1", "apiVersion: policy/v1beta1");
    setup.admin.feed(&["apply", "--dry-run=server", "-f", "-"], &older).ok();
    let nothing =
        setup.admin.run(&["get", "crd,clusterroles", "-l", "app.kubernetes.io/name=edgesync", "-o", "name"]);
    nothing.says("");

    assert_eq!(setup.kustomize(".", &[]).len(), INSTALLED);
    setup.admin.run(&["wait", "--for=condition=Established", "crd", "--all"]).ok();
    // Applies an overlay and then the base again.
    for name in ["overlays/external-broker", "overlays/load-balancer", "."] {
        assert_eq!(setup.kustomize(name, &[]).len(), INSTALLED);
        let config = setup.site.path("edgesync-cloud.toml");
        fs::write(&config, setup.configuration()).unwrap();
        let mut check = Command::new(edgesync_testkit::programs::cloud());
        check.args(["check-config", "--config"]).arg(&config);
        let output = ended(check).await;
        assert!(
            output.status.success() && !output_text(&output).contains("warning"),
            "{name}: {}",
            output_text(&output)
        );
        assert!(output_text(&output).contains("0.0.0.0:8080"), "{name}: {}", output_text(&output));
    }
    // A controller writes the rules of an aggregated role; applying again keeps them.
    let rules =
        json!({"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]});
    setup
        .admin
        .run(&["patch", "clusterrole", "edgesync-place", "--type=merge", "-p", &rules.to_string()])
        .ok();
    let before = setup.versions();
    assert!(before.len() > 10, "{before:#?}");
    setup.kustomize(".", &[]);
    assert_eq!(setup.versions(), before);
    let diff = setup.admin.run(&["diff", "-k", packaging(".").to_str().unwrap()]);
    assert!(diff.stdout.is_empty() && diff.stderr.contains(TOO_NEW), "{diff}");
    assert_eq!(setup.get(&["clusterrole", "edgesync-place"])["rules"], rules["rules"]);

    let deployment = setup.get(&["deployment", "edgesync-cloud", "-n", "edgesync"]);
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(
        (&pod["enableServiceLinks"], &pod["serviceAccountName"]),
        (&json!(false), &json!("edgesync-cloud"))
    );
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    // Every path that is written is a volume.
    let mounts = container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["mountPath"].as_str().unwrap());
    assert_eq!(
        mounts.collect::<Vec<_>>(),
        ["/etc/edgesync", "/var/lib/edgesync-cloud", "/run/edgesync-cloud"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn documented_uninstall_removes_only_edgesync() {
    let setup = Setup::installed().await;
    let sync = |name: &str, labels: &str| {
        setup.apply(&format!(
            "{{apiVersion: reliablesyncs.kubeedge.io/v1alpha1, kind: ObjectSync, metadata: {{name: {name}, namespace: plant, \
             labels: {{{labels}}}}}, spec: {{objectName: a}}}}"
        ));
    };
    sync("ours", "edgesync.io/node: edge-1");
    sync("theirs", "");
    for (name, labels) in [("edge-1", "edgesync.io/edge: 'true'"), ("server-1", "")] {
        setup.apply(&format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}, labels: {{{labels}}}}}}}"
        ));
    }
    setup.admin.run(&["apply", "-f", packaging("examples/rights.yaml").to_str().unwrap()]).ok();
    let document = include_str!("../../docs/kubernetes.md");
    let (_, section) = document.split_once("\n## Uninstall it\n").unwrap();
    let commands = section.split("```").nth(1).unwrap().lines().skip(1);
    for command in commands {
        let words: Vec<&str> = command.strip_prefix("kubectl ").unwrap().split(' ').collect();
        // No namespace controller runs here.
        let words =
            if words.contains(&"namespace") { [&words[..], &["--wait=false"]].concat() } else { words };
        setup.admin.run(&words).ok();
    }
    let ours = "app.kubernetes.io/name=edgesync";
    let kinds = "clusterroles,clusterrolebindings,customresourcedefinitions";
    let left = setup.admin.run(&["get", kinds, "-l", ours, "-o", "name"]).lines();
    let shared = left.iter().all(|name| name.ends_with("objectsyncs.reliablesyncs.kubeedge.io"));
    assert!(shared && left.len() == 2, "{left:?}");
    setup.admin.run(&["get", "roles,rolebindings", "-A", "-l", ours, "-o", "name"]).says("");
    setup.admin.run(&["get", "roles,rolebindings", "-n", "plant", "-o", "name"]).says("");
    let gone = setup.get(&["namespace", "edgesync"]);
    assert_eq!(gone["status"]["phase"], "Terminating");
    setup
        .admin
        .run(&["get", "objectsyncs", "-A", "-o", "name"])
        .says("objectsync.reliablesyncs.kubeedge.io/theirs");
    setup.admin.run(&["get", "nodes", "-o", "name"]).says("node/server-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn installed_rights_are_sufficient() {
    let setup = Setup::installed().await;
    setup.aggregate(&["edgesync-place-configmaps"]);
    define(&setup.admin, "Widget", &format!("subresources: {{status: {{}}}}, {ANYTHING}"));
    setup.apply(PLACEMENT);
    setup.admin.run(&["create", "configmap", "settings", "-n", "plant", "--from-literal=mode=fast"]).ok();
    setup.admin.run(&["create", "secret", "generic", "key", "-n", "plant", "--from-literal=pin=1234"]).ok();
    setup.apply("{apiVersion: example.com/v1, kind: Widget, metadata: {name: press, namespace: plant}, spec: {speed: 3}}");

    let mut replica = setup.replica();
    replica.fleet.cloud.run().await;
    eventually("the replica is ready", PATIENCE, async || replica.health.text("/readyz").await.ok()).await;
    let mut agent = replica.fleet.device(&setup.site, "edge-1").await;
    agent.run_as_configured().await;
    eventually("the ConfigMap arrives", PATIENCE, async || {
        agent.get(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "plant"}})).await
    })
    .await;
    // The status names the kinds that may not be placed, and nothing else waits for them.
    let accepted = setup.accepted("Forbidden").await;
    assert_eq!(accepted["status"], "False");
    for what in
        ["secrets in namespace plant: ", "widgets.example.com in namespace plant: ", ACCOUNT, "cannot list"]
    {
        assert!(accepted["message"].as_str().unwrap().contains(what), "{what}: {accepted:#}");
    }
    // The log names a missing right, also of repeated requests.
    let is_not_given = |line: &String| line.contains("plant") && line.contains("cannot list resource");
    assert!(replica.refused().iter().all(is_not_given), "{:#?}", replica.refused());

    let rights = packaging("examples/rights.yaml");
    setup.admin.run(&["apply", "-f", rights.to_str().unwrap()]).ok();
    setup.aggregate(&["edgesync-place-widgets"]);
    setup.accepted("Accepted").await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "press", "namespace": "plant"}});
    let held = eventually("the Widget arrives", PATIENCE, async || agent.get(&widget).await).await;
    let path = edgesync_testkit::site::path_of(&widget);
    let put = {
        let mut put = held;
        put["status"] = json!({"phase": "Running"});
        put
    };
    agent.client().put::<Value>(&format!("{path}/status"), &put).await.unwrap();
    eventually("its status arrives", PATIENCE, async || {
        (setup.get(&["widget", "press", "-n", "plant"])["status"]["phase"] == "Running").then_some(())
    })
    .await;

    eventually("the Node is ready and in sync", PATIENCE, async || {
        let nodes = setup.get(&["nodes", "-l", "edgesync.io/edge=true"]);
        let conditions = nodes["items"][0]["status"]["conditions"].as_array()?.clone();
        let is = |name: &str| conditions.iter().any(|one| one["type"] == name && one["status"] == "True");
        (is("Ready") && is("edgesync.io/InSync")).then_some(())
    })
    .await;
    let lease = setup.get(&["lease", "edge-1", "-n", "kube-node-lease"]);
    assert_eq!(lease["spec"]["holderIdentity"], "edge-1");
    assert!(!setup.get(&["lease", "edgesync-cloud", "-n", "edgesync"])["spec"]["holderIdentity"].is_null());
    eventually("Events of the agent are there", PATIENCE, async || {
        let events = setup.get(&["events.events.k8s.io", "--all-namespaces"]);
        events["items"].as_array()?.iter().any(|event| event["reason"] == "AgentStarted").then_some(())
    })
    .await;
    eventually("the ObjectSyncs are there, and the Placement counts the node", PATIENCE, async || {
        let syncs = setup.get(&["objectsyncs", "-n", "plant"]);
        let kinds = syncs["items"].as_array()?.iter().filter_map(|sync| sync["spec"]["objectKind"].as_str());
        let placement = setup.get(&["placement", "all", "-n", "plant"])["status"].take();
        let all = ["ConfigMap", "Secret", "Widget"];
        (kinds.filter(|kind| all.contains(kind)).count() == 3 && placement["nodesInSync"] == 1).then_some(())
    })
    .await;

    // Another label changes the Node itself.
    agent.process.env("EDGESYNC_NODE_LABELS", "rack=7");
    agent.crash_as_configured().await;
    eventually("the label is noted", PATIENCE, async || {
        let node = setup.get(&["node", "edge-1"]);
        node["metadata"]["annotations"]["edgesync.io/node-labels"].as_str()?.contains("rack=7").then_some(())
    })
    .await;

    // Operator commands need rights too; finally the granted rights are removed.
    let output = replica.fleet.command(&["token", "list"]).await;
    assert!(output.status.success(), "{}", output_text(&output));
    for what in ["revoke", "remove"] {
        let output = replica.fleet.command(&["node", what, "edge-1"]).await;
        assert!(output.status.success(), "{}", output_text(&output));
    }
    let left = "nodes,leases.coordination.k8s.io,objectsyncs";
    eventually("nothing of the node is left", PATIENCE, async || {
        let found = setup.get(&[left, "--all-namespaces"])["items"].take();
        let names = found.as_array()?.iter().filter_map(|item| item["metadata"]["name"].as_str());
        names.eq(["edgesync-cloud"]).then_some(())
    })
    .await;
    agent.stop().await;
    assert!(replica.fleet.cloud.process.terminate(PATIENCE).await.success());
    assert!(replica.refused().iter().all(is_not_given), "{:#?}", replica.refused());
}

/// Requests that the ServiceAccount may not make: a verb, a resource, a namespace.
const FORBIDDEN: [(&str, &str, &str); 48] = [
    ("get", "secrets", "default"),
    ("list", "secrets", "kube-system"),
    ("list", "secrets", "plant"),
    ("create", "secrets", "plant"),
    ("get", "secrets", "edgesync-ca"),
    ("list", "secrets", "edgesync-ca"),
    ("watch", "secrets", "edgesync-ca"),
    ("update", "secrets/edgesync-ca", "edgesync-ca"),
    ("get", "secrets/edgesync-server", "edgesync-ca"),
    ("update", "secrets/edgesync-server", "edgesync-ca"),
    ("delete", "secrets/edgesync-ca", "edgesync-ca"),
    ("patch", "configmaps", "edgesync"),
    ("get", "configmaps", "plant"),
    ("create", "configmaps", "plant"),
    ("update", "configmaps", "kube-system"),
    ("delete", "configmaps", "plant"),
    ("list", "pods", "edgesync"),
    ("create", "pods", "edgesync"),
    ("delete", "pods", "plant"),
    ("create", "pods/exec", "edgesync"),
    ("get", "deployments.apps", "edgesync"),
    ("create", "deployments.apps", "plant"),
    ("update", "deployments.apps", "edgesync"),
    ("create", "daemonsets.apps", "kube-system"),
    ("list", "namespaces", ""),
    ("create", "namespaces", ""),
    ("delete", "namespaces", ""),
    ("update", "namespaces", ""),
    ("create", "serviceaccounts", "edgesync"),
    ("create", "serviceaccounts/token", "edgesync"),
    ("impersonate", "serviceaccounts", "edgesync"),
    ("impersonate", "users", ""),
    ("create", "roles.rbac.authorization.k8s.io", "edgesync"),
    ("update", "clusterroles.rbac.authorization.k8s.io", ""),
    ("bind", "clusterroles.rbac.authorization.k8s.io", ""),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", ""),
    ("create", "customresourcedefinitions.apiextensions.k8s.io", ""),
    ("create", "certificatesigningrequests.certificates.k8s.io", ""),
    ("create", "validatingwebhookconfigurations.admissionregistration.k8s.io", ""),
    ("proxy", "nodes", ""),
    ("get", "nodes/proxy", ""),
    ("update", "placements.edgesync.io", "plant"),
    ("create", "clusterplacements.edgesync.io", ""),
    ("get", "leases.coordination.k8s.io", "kube-system"),
    ("update", "leases.coordination.k8s.io/kube-controller-manager", "kube-system"),
    ("list", "events", "plant"),
    ("watch", "events", "plant"),
    ("create", "events.events.k8s.io", "plant"),
];

/// Permitted requests, to detect misspelled questions. They include all Nodes: RBAC does not select
/// by labels.
const ALLOWED: [(&str, &str, &str); 11] = [
    ("delete", "nodes", ""),
    ("update", "nodes/status", ""),
    ("get", "namespaces/kube-system", ""),
    ("get", "secrets", "edgesync"),
    ("get", "secrets/edgesync-ca", "edgesync-ca"),
    ("get", "secrets/edgesync-token-key", "edgesync-ca"),
    ("get", "leases.coordination.k8s.io/kube-controller-manager", "kube-system"),
    ("create", "events", "plant"),
    ("delete", "events", "plant"),
    ("update", "placements.edgesync.io/status", "plant"),
    ("list", "configmaps", "plant"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn installed_rights_are_minimal() {
    let setup = Setup::installed().await;
    setup.aggregate(&["edgesync-place-configmaps"]);
    for question in ALLOWED {
        assert!(setup.may(ACCOUNT, question), "{question:?}");
    }
    for question in FORBIDDEN {
        assert!(!setup.may(ACCOUNT, question), "{question:?}");
    }
    let roles =
        setup.get(&["roles,clusterroles", "--all-namespaces", "-l", "app.kubernetes.io/name=edgesync"]);
    let roles = roles["items"].as_array().unwrap();
    assert_eq!(roles.len(), 7);
    assert!(!Value::from(roles.clone()).to_string().contains("[\"*\"]"), "{roles:#?}");
}

/// Requests for the keys, and whether a replica and the signer of the overlay may make them.
const KEYS: [(&str, &str, &str, [bool; 2]); 10] = [
    ("get", "secrets/edgesync-ca", "edgesync-ca", [false, true]),
    ("get", "secrets/edgesync-token-key", "edgesync-ca", [false, true]),
    ("get", "secrets/edgesync-server", "edgesync-ca", [true, true]),
    ("update", "secrets/edgesync-server", "edgesync-ca", [false, true]),
    ("create", "secrets", "edgesync-ca", [false, true]),
    ("list", "secrets", "edgesync-ca", [false, false]),
    ("watch", "secrets", "edgesync-ca", [false, false]),
    ("list", "configmaps", "plant", [true, false]),
    ("list", "secrets", "plant", [false, false]),
    ("update", "nodes", "", [true, false]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn signer_alone_has_the_keys_and_devices_join_at_replicas() {
    let setup = Setup::start(&[]).await.install("overlays/signer", INSTALLED + SIGNER);
    setup.aggregate(&["edgesync-place-configmaps"]);
    for (verb, resource, namespace, expected) in KEYS {
        let question = (verb, resource, namespace);
        let may = [ACCOUNT, SIGNER_ACCOUNT].map(|account| setup.may(account, question));
        assert_eq!(may, expected, "{question:?}");
    }
    setup.apply(&PLACEMENT.replace(", secrets, widgets.example.com", ""));
    setup.admin.run(&["create", "configmap", "settings", "-n", "plant", "--from-literal=mode=fast"]).ok();

    let mut replica = setup.replica();
    let (signing, socket) = (Site::address(), setup.site.path("signer.sock"));
    replica.fleet.cloud.process.env("EDGESYNC_CLOUD_ENROLLMENT_SIGNER", format!("https://{signing}"));
    replica.fleet.cloud.write_config();
    replica.fleet.cloud.process.start();
    replica.fleet.cloud.process.logged("edgesync-ca/edgesync-server not found", 0).await;

    let config = setup.site.path("cloud.toml");
    let words = ["signer".into(), "--config".into(), config.into()];
    let program = edgesync_testkit::programs::cloud();
    let mut signer = Process::with_arguments("the signer", program.as_ref(), words.into());
    for (key, value) in [
        ("KUBERNETES_KUBECONFIG", setup.account("edgesync-signer").display().to_string()),
        ("STORE_PATH", setup.site.path("signer/cloud.db").display().to_string()),
        ("BROKER_LISTEN", replica.fleet.cloud.mqtt.to_string()),
        ("BROKER_TLS", "on".to_owned()),
        ("ENROLLMENT_LISTEN", signing.to_string()),
        ("ENROLLMENT_NAMES", replica.fleet.joining.ip().to_string()),
        ("API_SOCKET", socket.display().to_string()),
        ("API_HEALTH", "off".to_owned()),
        ("LOG_FORMAT", "text".to_owned()),
    ] {
        signer.env(&format!("EDGESYNC_CLOUD_{key}"), value);
    }
    signer.start();
    signer.logged("serving joins and renewals", 0).await;
    eventually("the replica is ready", PATIENCE, async || replica.health.text("/readyz").await.ok()).await;

    let at_the_signer = async |words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words).env("EDGESYNC_CLOUD_SERVER", &socket);
        ended(command).await
    };
    let refused = replica.fleet.command(&["token", "create"]).await;
    let text = output_text(&refused);
    assert!(!refused.status.success() && text.contains("exec deploy/edgesync-signer"), "{text}");
    let token = at_the_signer(&["token", "create", "--node", "edge-1"]).await;
    assert!(token.status.success(), "{}", output_text(&token));
    let refused = at_the_signer(&["nodes"]).await;
    assert!(output_text(&refused).contains("exec deploy/edgesync-cloud"), "{}", output_text(&refused));

    let token = String::from_utf8(token.stdout).unwrap();
    let mut agent = replica.fleet.new_device(&setup.site, "edge-1");
    let joined = replica.fleet.join(&agent, token.trim(), &[]).await;
    assert!(joined.status.success(), "{}", output_text(&joined));
    agent.run_as_configured().await;
    in_sync(&agent).await;
    // A revocation by the replica, which needs no key.
    let output = replica.fleet.command(&["node", "revoke", "edge-1"]).await;
    assert!(output.status.success(), "{}", output_text(&output));
    eventually("the node is cut", PATIENCE, async || {
        (replica.fleet.cloud.state("edge-1").await? == REVOKED).then_some(())
    })
    .await;
    assert!(signer.terminate(PATIENCE).await.success());
    assert!(replica.refused().is_empty(), "{:#?}", replica.refused());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn replica_reports_a_missing_right_and_recovers_once_granted() {
    let setup = Setup::installed().await;
    setup.aggregate(&["edgesync-place-configmaps"]);
    let take = |binding: &[&str]| drop(setup.admin.run(&[&["delete"], binding].concat()).ok());
    take(&["rolebinding", "edgesync-cloud", "-n", "edgesync"]);
    take(&["clusterrolebinding", "edgesync-cloud"]);
    let mut replica = setup.replica();
    replica.fleet.cloud.write_config();
    replica.fleet.cloud.process.start();
    let waits = async |what: &str| {
        let said = replica.fleet.cloud.process.logged(what, 0).await;
        assert!(said.contains("fleet not served yet") && said.contains(ACCOUNT), "{said}");
        assert!(replica.health.text("/readyz").await.is_err(), "nodes are not sent to it");
        replica.health.text("/livez").await.expect("it need not be started anew");
    };
    waits("cannot list resource \"secrets\" in API group \"\" in the namespace \"edgesync\"").await;
    let give = |name: &str| {
        let text = fs::read_to_string(packaging("base/rights.yaml")).unwrap();
        let parts = text.split("\n---\n");
        let binding = parts.filter(|part| part.contains(&format!("\nkind: {name}\n")));
        binding.for_each(|binding| setup.apply(binding));
    };
    give("RoleBinding");
    waits("\"kube-system\" is forbidden").await;
    give("ClusterRoleBinding");
    eventually("the replica is ready", PATIENCE, async || replica.health.text("/readyz").await.ok()).await;
    assert!(replica.fleet.cloud.process.runs(), "it has waited, and not ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn revoked_rights_remove_nothing_from_nodes() {
    let mut setup = Setup::installed().await;
    setup.aggregate(&["edgesync-place-configmaps"]);
    let rights = packaging("examples/rights.yaml");
    let give = |setup: &Setup| drop(setup.admin.run(&["apply", "-f", rights.to_str().unwrap()]).ok());
    give(&setup);
    setup.apply(&PLACEMENT.replace(", widgets.example.com", ""));
    let secret = |setup: &Setup, name: &str| {
        setup.admin.run(&["create", "secret", "generic", name, "-n", "plant", "--from-literal=pin=1"]).ok();
    };
    secret(&setup, "kept");
    secret(&setup, "dropped");
    let mut replica = setup.replica();
    replica.fleet.cloud.run().await;
    let mut agent = replica.fleet.device(&setup.site, "edge-1").await;
    agent.run_as_configured().await;
    let secrets = async |agent: &Agent| {
        let list: Value = agent.client().get("/api/v1/namespaces/plant/secrets").await.unwrap();
        let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    let holds = async |agent: &Agent, names: &[&str]| {
        eventually(&format!("the node holds {names:?}"), PATIENCE, async || {
            (secrets(agent).await == names).then_some(())
        })
        .await;
    };
    holds(&agent, &["dropped", "kept"]).await;
    setup.accepted("Accepted").await;

    setup.admin.run(&["delete", "rolebinding", "edgesync-place-secrets", "-n", "plant"]).ok();
    // An open watch continues until it is cut.
    setup.kubernetes.crash().await;
    setup.accepted_as("Forbidden", "secrets in namespace plant: ").await;
    setup.admin.run(&["delete", "secret", "dropped", "-n", "plant"]).ok();
    secret(&setup, "new");
    let arrives = async |setup: &Setup, agent: &Agent, name: &str| {
        setup.admin.run(&["create", "configmap", name, "-n", "plant"]).ok();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "plant"}});
        eventually("the ConfigMap arrives", PATIENCE, async || agent.get(&map).await).await;
    };
    arrives(&setup, &agent, "one").await;
    assert_eq!(secrets(&agent).await, ["dropped", "kept"]);
    // A restarted node and a replica that has never read the Secrets keep them too.
    agent.crash_as_configured().await;
    replica.fleet.cloud.crash().await;
    arrives(&setup, &agent, "two").await;
    in_sync(&agent).await;
    assert_eq!(secrets(&agent).await, ["dropped", "kept"]);

    give(&setup);
    setup.accepted("Accepted").await;
    holds(&agent, &["kept", "new"]).await;
}
