//! Permission for objects to name the nodes on which they are placed.

use std::collections::BTreeSet;

use super::rules::{Glob, KindMatch};
use super::summary::Summary;
use edgesync_object::NodeName;

/// The objects that may name their own nodes, in a store with authors who do not choose nodes.
/// Other objects reach nodes by rules and references of Pods only, whatever names they contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// Kinds placed by the label `edgesync.io/node`.
    pub labelled: Vec<KindMatch>,
    /// Kinds placed by the annotation `edgesync.io/nodes`.
    pub annotated: Vec<KindMatch>,
    /// Namespaces whose Pods are placed by `spec.nodeName`.
    pub pods: Vec<Glob>,
}

impl Naming {
    /// Returns the nodes that an object names in permitted ways, in order.
    pub(crate) fn nodes_of<'o>(&self, object: &'o Summary) -> BTreeSet<&'o NodeName> {
        let is_one_of = |kinds: &[KindMatch]| kinds.iter().any(|kind| kind.matches(&object.resource));
        let label = object.nodes.label.iter().filter(|_| is_one_of(&self.labelled));
        let annotation = object.nodes.annotation.iter().filter(|_| is_one_of(&self.annotated));
        let in_namespace = |namespace: &Glob| namespace.matches(&object.namespace);
        let pod = object.nodes.pod.iter().filter(|_| self.pods.iter().any(in_namespace));
        label.chain(annotation).chain(pod).collect()
    }
}
