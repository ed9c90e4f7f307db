//! A Kubernetes cluster as the store of the cloud side.

use std::path::PathBuf;

use edgesync_config::section;
use edgesync_config::units;
use edgesync_object::name;
use edgesync_placement::rules::{GlobError, KindError};
use edgesync_placement::{Glob, KindMatch};

section! {
    /// The cluster, where `store.type` is `"kubernetes"`.
    #[derive(Eq)]
    pub struct Kubernetes in "kubernetes";
    /// The kubeconfig; none for the service account of the Pod, else that of the user.
    kubeconfig: Option<PathBuf> = None, fixed units::optional_path(kubeconfig);
    /// The namespace of what replicas keep for themselves.
    namespace: String = "edgesync".to_owned(), fixed units::text(namespace, NAMESPACE, namespace_name, String::clone);
    /// The copy of what nodes are to hold; after loading never empty.
    cache: PathBuf = PathBuf::new(), fixed units::path_or_derived(cache);
    /// Kinds whose objects may name their node with the label.
    labelled: Vec<KindMatch> = vec![config_maps()], fixed units::list(labelled, KINDS, kind);
    /// Kinds whose objects may name their nodes with the annotation.
    annotated: Vec<KindMatch> = Vec::new(), fixed units::list(annotated, KINDS, kind);
    /// Namespaces whose Pods get to the nodes that they name, with what they refer to.
    pods: Vec<Glob> = Vec::new(), fixed units::list(pods, PODS, glob);
    /// Which ObjectSyncs are written.
    objectsyncs: ObjectSyncs = ObjectSyncs::All, fixed units::choice(objectsyncs, OBJECT_SYNCS);
    /// Requests in a second with which a replica writes, over a longer time.
    qps: u32 = 100, fixed units::count(qps, 1..=100_000);
    /// Requests that it may make at once after a pause.
    burst: u32 = 200, fixed units::count(burst, 1..=100_000);
}

/// Which ObjectSyncs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectSyncs {
    /// One of each object on each node.
    #[default]
    All,
    /// Of those objects that a node holds and that are not as they are to be.
    Differences,
    /// None.
    Off,
}

const OBJECT_SYNCS: &[(&str, ObjectSyncs)] =
    &[("all", ObjectSyncs::All), ("differences", ObjectSyncs::Differences), ("off", ObjectSyncs::Off)];

const NAMESPACE: &str = "the name of a namespace such as \"edgesync\"";
const KINDS: &str = "a list of kinds such as [\"configmaps\", \"widgets.example.com\"]";
const PODS: &str = "a list of namespaces, with * and ? as in [[placement]], such as [\"plant-*\"]";

fn config_maps() -> KindMatch {
    KindMatch::Known { group: String::new(), kind: "ConfigMap".to_owned() }
}

fn namespace_name(text: &str) -> Result<String, String> {
    let checked = name::check_label(text).map(|()| text.to_owned());
    checked.map_err(|problem| format!("must be {NAMESPACE}: {text:?} {problem}"))
}

fn kind(text: &str) -> Result<KindMatch, String> {
    text.parse().map_err(|problem: KindError| problem.to_string())
}

fn glob(text: &str) -> Result<Glob, String> {
    text.parse().map_err(|problem: GlobError| problem.to_string())
}
