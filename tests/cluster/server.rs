//! The API servers behave as real ones: they keep their data across a crash and enforce RBAC. The
//! embedded one passes all tests without RBAC.

use serde_json::{Value, json};

use crate::cluster::api::{ApiServer, over_each};
use crate::cluster::kubernetes::Kubernetes;
use crate::cluster::setup::define;
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::site::Site;

/// The definition of a lamp, with validation of its fields.
const LAMP: &str = "subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, properties: {\
     spec: {type: object, properties: {color: {type: string, pattern: '^[a-z]+$'}}}, \
     status: {type: object, properties: {lit: {type: boolean}}}}}}";

fn lamp(color: &str) -> String {
    format!(
        "apiVersion: example.com/v1\nkind: Lamp\nmetadata: {{ name: hall }}\nspec: {{ color: {color} }}\n"
    )
}

struct Setup<K = Kubernetes> {
    // Dropped before the directory that its processes use.
    kubernetes: K,
    admin: Kubectl,
    site: Site,
}

impl<K: ApiServer> Setup<K> {
    async fn start() -> Self {
        let site = Site::new();
        let kubernetes = K::start(&site).await;
        let admin = Kubectl::with_kubeconfig(&site, "admin", kubernetes.admin());
        Self { kubernetes, admin, site }
    }

    fn get(&self, object: &str) -> Value {
        self.admin.run(&["get", object, "-o", "json"]).json()
    }
}

over_each!(
    killed_server_restarts_at_its_address_with_its_data,
    custom_resource_has_validation_managers_and_status,
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn kubectl_creates_and_reads_in_the_cluster() {
    let setup = Setup::<Kubernetes>::start().await;
    let version = setup.admin.run(&["version", "-o", "json"]).json();
    let expected = format!("v{}", include_str!("version").trim());
    assert_eq!(version["serverVersion"]["gitVersion"], expected.as_str());

    setup.admin.run(&["create", "configmap", "settings", "--from-literal=mode=fast"]).ok();
    assert_eq!(setup.get("configmap/settings")["data"], json!({"mode": "fast"}));
    // The server knows the types of its kinds.
    let misspelt = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: other }\ndate: {}\n";
    setup.admin.feed(&["apply", "-f", "-"], misspelt).fails_with("unknown field \"date\"");
}

async fn killed_server_restarts_at_its_address_with_its_data<K: ApiServer>() {
    let mut setup = Setup::<K>::start().await;
    setup.admin.run(&["create", "secret", "generic", "key", "--from-literal=pin=1234"]).ok();
    let before = setup.get("secret/key");

    setup.kubernetes.kill();
    setup.admin.run(&["get", "secrets"]).fails_with("refused");
    setup.kubernetes.run().await;
    assert_eq!(setup.get("secret/key"), before);
    setup.admin.run(&["annotate", "secret", "key", "seen=yes"]).ok();

    setup.kubernetes.crash().await;
    let after = setup.get("secret/key");
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["annotations"]["seen"], "yes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn service_account_may_do_only_what_its_role_grants() {
    let Setup { kubernetes, admin, site } = Setup::<Kubernetes>::start().await;
    admin.run(&["create", "serviceaccount", "reader"]).ok();
    admin.run(&["create", "role", "reader", "--verb=get,list", "--resource=configmaps"]).ok();
    let token = admin.run(&["create", "token", "reader"]).ok();
    let caller =
        |name: &str, token: &str| Kubectl::with_kubeconfig(&site, name, &kubernetes.caller(name, token));
    let reader = caller("reader", token.trim());

    let forbidden = "(Forbidden): configmaps is forbidden: User \"system:serviceaccount:default:reader\"";
    reader.run(&["get", "configmaps"]).fails_with(forbidden);
    let binding = ["create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:reader"];
    admin.run(&binding).ok();
    admin.run(&["create", "configmap", "settings"]).ok();
    assert_eq!(reader.run(&["get", "configmaps", "-o", "name"]).lines(), ["configmap/settings"]);
    reader.run(&["delete", "configmap", "settings"]).fails_with("(Forbidden): configmaps \"settings\"");
    reader.run(&["get", "secrets"]).fails_with("(Forbidden): secrets");
    reader.run(&["get", "configmaps", "-n", "kube-system"]).fails_with("(Forbidden): configmaps");

    caller("nobody", "nonsense").run(&["get", "configmaps"]).fails_with("must be logged in");
    let user = Kubectl::with_kubeconfig(&site, "ada", &kubernetes.user("ada"));
    user.run(&["get", "configmaps"]).fails_with("(Forbidden): configmaps is forbidden: User \"ada\"");
}

async fn custom_resource_has_validation_managers_and_status<K: ApiServer>() {
    let Setup { admin, kubernetes: _kubernetes, site: _site } = Setup::<K>::start().await;
    define(&admin, "Lamp", LAMP);

    let apply = ["apply", "--server-side", "--field-manager=lights", "-f", "-"];
    admin.feed(&apply, &lamp("RED")).fails_with("spec.color");
    admin.feed(&apply, &lamp("red")).says("lamp.example.com/hall serverside-applied");
    let managed = admin.run(&["get", "lamp", "hall", "-o", "json", "--show-managed-fields"]).json();
    let fields = &managed["metadata"]["managedFields"][0];
    assert_eq!((&fields["manager"], &fields["operation"]), (&json!("lights"), &json!("Apply")));
    let patch = r#"{"status":{"lit":true},"spec":{"color":"blue"}}"#;
    admin.run(&["patch", "lamp", "hall", "--subresource=status", "--type=merge", "-p", patch]).ok();
    let lamp = admin.run(&["get", "lamp", "hall", "-o", "json"]).json();
    assert_eq!((&lamp["spec"]["color"], &lamp["status"]["lit"]), (&json!("red"), &json!(true)));
}
