//! Configuration of a Kubernetes cluster as the store.

use std::path::PathBuf;

use super::network::Network;

use edgesync_config::section;
use edgesync_config::units;
use edgesync_enrollment::ca_namespace;
use edgesync_object::name;
use edgesync_placement::rules::{GlobError, KindError};
use edgesync_placement::{Glob, KindMatch};

section! {
    /// Cluster settings, used if `store.type` is `"kubernetes"`.
    #[derive(Eq)]
    pub struct Kubernetes in "kubernetes";
    /// Kubeconfig; `None` for the service account of the Pod, else that of the user.
    kubeconfig: Option<PathBuf> = None, fixed units::optional_path(kubeconfig);
    /// Namespace of the replicas' own objects. Their keys are in a namespace of the same name with
    /// the ending `-ca`.
    namespace: String = "edgesync".to_owned(), fixed units::text(namespace, NAMESPACE, namespace_name, String::clone);
    /// File of the cache of desired objects; never empty after loading.
    cache: PathBuf = PathBuf::new(), fixed units::path_or_derived(cache);
    /// Kinds whose objects may name their node with the label, in every namespace: who may write
    /// them decides what devices hold.
    labelled: Vec<KindMatch> = Vec::new(), fixed units::list(labelled, KINDS, kind);
    /// Kinds whose objects may list their nodes in the annotation.
    annotated: Vec<KindMatch> = Vec::new(), fixed units::list(annotated, KINDS, kind);
    /// Namespaces whose Pods are placed on the nodes that they name, with the objects that they
    /// reference.
    pods: Vec<Glob> = Vec::new(), fixed units::list(pods, PODS, glob);
    /// Networks of the addresses that devices may report for their Node.
    node_addresses: Vec<Network> = Vec::new(), fixed units::list(node_addresses, NETWORKS, str::parse);
    /// Mode of writing ObjectSyncs.
    objectsyncs: ObjectSyncs = ObjectSyncs::All, fixed units::choice(objectsyncs, OBJECT_SYNCS);
    /// Sustained rate of a replica's write requests, per second.
    qps: u32 = 100, fixed units::count(qps, 1..=100_000);
    /// Burst of write requests after a pause.
    burst: u32 = 200, fixed units::count(burst, 1..=100_000);
}

/// Mode of writing ObjectSyncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectSyncs {
    /// One for each object on each node.
    #[default]
    All,
    /// Only for objects that a node holds in another state than desired.
    Differences,
    /// None; see `docs/scale.md` for when to use this.
    Off,
}

const OBJECT_SYNCS: &[(&str, ObjectSyncs)] =
    &[("all", ObjectSyncs::All), ("differences", ObjectSyncs::Differences), ("off", ObjectSyncs::Off)];

const NAMESPACE: &str = "the name of a namespace such as \"edgesync\"";
const KINDS: &str = "a list of kinds such as [\"configmaps\", \"widgets.example.com\"]";
const NETWORKS: &str = "a list of networks such as [\"10.20.0.0/16\", \"2001:db8::/32\"]";
const PODS: &str = "a list of namespaces, with * and ? as in [[placement]], such as [\"plant-*\"]";

fn namespace_name(text: &str) -> Result<String, String> {
    let refused = |problem: String| format!("must be {NAMESPACE}: {text:?} {problem}");
    name::check_label(text).map_err(refused)?;
    // The derived namespace of the keys has a longer name.
    name::check_label(&ca_namespace(text))
        .map_err(|_| refused("must have at most 60 characters".to_owned()))?;
    Ok(text.to_owned())
}

fn kind(text: &str) -> Result<KindMatch, String> {
    text.parse().map_err(|problem: KindError| problem.to_string())
}

fn glob(text: &str) -> Result<Glob, String> {
    text.parse().map_err(|problem: GlobError| problem.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;
    use edgesync_placement::Naming;

    #[test]
    fn objects_of_a_cluster_name_no_nodes_by_default() {
        let naming = |text: &str| {
            edgesync_config::parse::<Config>(Path::new("x.toml"), text, []).unwrap().config.naming()
        };
        let cluster = "[store]\ntype = \"kubernetes\"\n[kubernetes]\n";
        assert_eq!(naming(cluster), Some(Naming::default()));
        let labelled = naming(&format!("{cluster}labelled = [\"cm\"]\npods = [\"plant-*\"]\n"));
        let expected = Naming {
            labelled: vec!["ConfigMap".parse().unwrap()],
            pods: vec!["plant-*".parse().unwrap()],
            ..Naming::default()
        };
        assert_eq!(labelled, Some(expected));
        assert_eq!(naming(""), None, "authors of the embedded store are operators");
    }
}
