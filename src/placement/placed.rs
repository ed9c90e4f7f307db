//! What the index keeps of an object, and what it says of one node.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Idle, Named, NodeName, Placement, Summary, Uid};
use crate::object::{ObjectRef, Reference, Resource, ResourceVersion, Target};

/// An object as the index keeps it. Its labels are not: they were compared with the rules when it came.
#[derive(Debug, PartialEq, Eq)]
pub struct Placed {
    /// The UID.
    pub uid: Uid,
    /// The version.
    pub version: ResourceVersion,
    /// Which object it is.
    pub object: Arc<ObjectRef>,
    /// The kind.
    pub resource: Arc<Resource>,
    /// The length of its JSON text in bytes; zero if nobody has counted.
    pub size: usize,
    /// The nodes that the object itself names.
    pub(super) nodes: Box<[NodeName]>,
    /// What a Pod needs in its namespace.
    pub(super) references: Box<[Reference]>,
}

/// Words that many objects share, each kept once. As many as there are kinds and namespaces.
#[derive(Debug, Default)]
pub(super) struct Words {
    shared: HashSet<Arc<str>>,
    /// Of each kind its API version and its name.
    kinds: HashMap<Arc<Resource>, (Arc<str>, Arc<str>)>,
}

impl Words {
    fn share(&mut self, word: &str) -> Arc<str> {
        if let Some(known) = self.shared.get(word) {
            return known.clone();
        }
        let word: Arc<str> = word.into();
        self.shared.insert(word.clone());
        word
    }

    /// The name under which Pods refer to an object, if they do to its kind.
    pub(super) fn name(&mut self, object: &Summary) -> Option<Named> {
        let target = Target::of(&object.resource)?;
        Some(Named { target, namespace: self.share(&object.namespace), name: object.name.clone() })
    }

    fn reference(&mut self, resource: &Arc<Resource>, namespace: &str, name: Arc<str>) -> Arc<ObjectRef> {
        let (api_version, kind) = match self.kinds.get(resource) {
            Some(words) => words.clone(),
            None => {
                let words = (resource.api_version().into(), resource.kind.as_str().into());
                self.kinds.insert(resource.clone(), words.clone());
                words
            }
        };
        let namespace = self.share(namespace);
        Arc::new(ObjectRef { api_version, kind, namespace, name })
    }

    pub(super) fn placed(&mut self, object: Summary) -> Placed {
        let Summary { uid, version, resource, namespace, name, nodes, references, size, .. } = object;
        Placed {
            uid,
            version,
            object: self.reference(&resource, &namespace, name),
            resource,
            size,
            nodes: nodes.into_iter().collect(),
            references: references.into_iter().collect(),
        }
    }

    /// A Pod has come to refer to an object.
    pub(super) fn awoken(&mut self, name: &Named, idle: Idle) -> Placed {
        let Idle { uid, version, resource, size } = idle;
        Placed {
            uid,
            version,
            object: self.reference(&resource, &name.namespace, name.name.clone()),
            resource,
            size: size as usize,
            nodes: Box::default(),
            references: Box::default(),
        }
    }
}

/// What one node is to hold, seen through the index.
#[derive(Clone, Copy, Debug)]
pub struct OnNode<'a> {
    pub(super) placement: &'a Placement,
    pub(super) direct: Option<&'a HashMap<Uid, u32>>,
    /// The rules that select the node, ascending.
    pub(super) rules: &'a [usize],
}

impl<'a> OnNode<'a> {
    /// The object, if the node is to hold it.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&'a Arc<Placed>> {
        let entry = self.placement.objects.get(uid)?;
        let wanted = self.is_direct(uid) || self.rules.iter().any(|number| entry.rules.contains(number));
        wanted.then_some(&entry.object)
    }

    /// Everything that the node is to hold, each object once, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &'a Arc<Placed>> + use<'a> {
        let Self { placement, direct, rules } = *self;
        let named = direct.into_iter().flat_map(|uids| uids.keys());
        let named = named.filter_map(|uid| placement.objects.get(uid));
        let ruled = rules.iter().enumerate().flat_map(move |(place, number)| {
            let earlier = rules.get(..place).unwrap_or_default();
            let uids = placement.rules.get(*number).into_iter().flat_map(|rule| &rule.objects);
            uids.filter(move |uid| direct.is_none_or(|direct| !direct.contains_key(*uid)))
                .filter_map(|uid| placement.objects.get(uid))
                .filter(move |entry| !entry.rules.iter().any(|number| earlier.contains(number)))
        });
        named.chain(ruled).map(|entry| &entry.object)
    }

    /// How many objects the node is to hold for other reasons than a rule.
    #[must_use]
    pub fn direct_count(&self) -> usize {
        self.direct.map_or(0, HashMap::len)
    }

    fn is_direct(&self, uid: &str) -> bool {
        self.direct.is_some_and(|uids| uids.contains_key(uid))
    }
}
