//! Kinds that the cloud serves: built-in ones, those of CustomResourceDefinitions, and those found
//! in the store without a definition.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::definitions;
use edgesync_api::{Kind, ScalePaths, Writable};
use edgesync_object::kinds::{KINDS, KnownKind};
use edgesync_object::{Resource, objectsync};
use edgesync_schema as schema;
use edgesync_schema::Schema;

/// Reason why clients cannot write records. They are the ledger of sent objects: a forged or
/// deleted one would make the cloud send too little or too much until the node's digest reveals it.
const RECORDS_HINT: &str = "records of what nodes report are read-only; change the object instead";

/// Table of kinds. Readers clone an `Arc` of the whole table; writers replace it.
pub(super) struct Kinds {
    table: RwLock<Arc<Table>>,
}

struct Table {
    version: u64,
    built_in: Vec<Arc<Kind>>,
    custom: Vec<Arc<Kind>>,
    learnt: Vec<Arc<Kind>>,
    all: Vec<Arc<Kind>>,
    by_path: HashMap<String, Arc<Kind>>,
}

impl Kinds {
    /// Creates the table of the built-in kinds and those found in the store.
    pub(super) fn new(met: Vec<Resource>) -> Self {
        let built_in = KINDS.iter().filter(|known| is_served(known)).map(built_in);
        let built_in: Vec<_> = built_in.chain(definitions::own().into_iter().map(Arc::new)).collect();
        let met = met.into_iter().map(|resource| Arc::new(learnt(resource)));
        let learnt = met.filter(|kind| !is_covered(&kind.resource, &built_in)).collect();
        let table = Table::new(1, built_in, Vec::new(), learnt);
        Self { table: RwLock::new(Arc::new(table)) }
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn get(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        self.table().by_path.get(&path(group, version, plural)).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Kind>> {
        self.table().all.clone()
    }

    pub(super) fn version(&self) -> u64 {
        self.table().version
    }

    /// Replaces the custom kinds. Permanently drops a learnt kind of the same group with the same
    /// kind or plural, and ignores a custom kind that is also built in. Custom kinds are ordered by
    /// group and plural.
    pub(super) fn set_custom(&self, custom: &[Arc<Kind>]) {
        self.change(|table| {
            let covered = |kind: &Arc<Kind>| is_covered(&kind.resource, custom);
            let learnt = table.learnt.iter().filter(|kind| !covered(kind)).cloned().collect();
            let own = |kind: &Arc<Kind>| !is_covered(&kind.resource, &table.built_in);
            let mut custom: Vec<_> = custom.iter().filter(|kind| own(kind)).cloned().collect();
            let place = |kind: &Arc<Kind>| (kind.resource.group.clone(), kind.resource.plural.clone());
            custom.sort_by_cached_key(place);
            Some((custom, learnt))
        });
    }

    fn change(&self, new: impl FnOnce(&Table) -> Option<(Vec<Arc<Kind>>, Vec<Arc<Kind>>)>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some((custom, learnt)) = new(&table)
            && (custom != table.custom || learnt != table.learnt)
        {
            *table = Arc::new(Table::new(table.version + 1, table.built_in.clone(), custom, learnt));
        }
    }
}

impl Table {
    fn new(
        version: u64,
        built_in: Vec<Arc<Kind>>,
        custom: Vec<Arc<Kind>>,
        mut learnt: Vec<Arc<Kind>>,
    ) -> Self {
        learnt.sort_by(|a, b| a.resource.cmp(&b.resource));
        let all: Vec<_> = built_in.iter().chain(&custom).chain(&learnt).cloned().collect();
        let entry = |kind: &Arc<Kind>| {
            let Resource { group, version, plural, .. } = &*kind.resource;
            (path(group, version, plural), Arc::clone(kind))
        };
        let by_path = all.iter().map(entry).collect();
        Self { version, built_in, custom, learnt, all, by_path }
    }
}

fn path(group: &str, version: &str, plural: &str) -> String {
    format!("{group}/{version}/{plural}")
}

/// Returns whether one of the kinds has the same objects or the same paths, in any version.
fn is_covered(resource: &Resource, kinds: &[Arc<Kind>]) -> bool {
    kinds.iter().map(|kind| &kind.resource).any(|known| {
        known.group == resource.group && (known.kind == resource.kind || known.plural == resource.plural)
    })
}

/// Returns whether objects of a known kind can be stored, and in this version.
fn is_served(known: &KnownKind) -> bool {
    !matches!(
        (known.group, known.version, known.kind),
        ("", _, "Binding" | "ComponentStatus") | ("autoscaling", "v1", _)
    )
}

fn learnt(resource: Resource) -> Kind {
    Kind { writable: Writable::Everything, ..Kind::without_schema(Arc::new(resource)) }
}

fn built_in(known: &KnownKind) -> Arc<Kind> {
    let resource = Arc::new(known.resource());
    let is_record = objectsync::is_sync_record(&resource);
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    let kind = Kind {
        stored_as: storage(&resource),
        schema: schema(&resource),
        singular: known.singular.to_owned(),
        short_names: texts(known.short),
        categories: texts(categories(known)),
        status_subresource: known.has_status(),
        scale: scale(known),
        writable: if is_record { Writable::Nothing } else { Writable::Everything },
        read_only_hint: is_record.then(|| RECORDS_HINT.into()),
        ..Kind::without_schema(resource)
    };
    Arc::new(kind)
}

/// Returns the schema of a built-in kind; the only caller of the schemas in the cloud.
fn schema(resource: &Resource) -> Option<Arc<Schema>> {
    schema::builtin(&resource.group, &resource.version, &resource.kind)
}

/// Maps Events of the core group to their own group, in which all are stored.
fn storage(resource: &Arc<Resource>) -> Arc<Resource> {
    if resource.group.is_empty() && resource.kind == "Event" {
        Arc::new(Resource { group: "events.k8s.io".to_owned(), ..Resource::clone(resource) })
    } else {
        Arc::clone(resource)
    }
}

/// Returns the scale subresource of kinds that run a number of equal Pods.
fn scale(known: &KnownKind) -> Option<Arc<ScalePaths>> {
    let scales = matches!(
        (known.group, known.kind),
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet") | ("", "ReplicationController")
    );
    scales.then(|| {
        Arc::new(ScalePaths {
            replicas: "spec.replicas".to_owned(),
            status: "status.replicas".to_owned(),
            selector: Some("spec.selector".to_owned()),
        })
    })
}

fn categories(known: &KnownKind) -> &'static [&'static str] {
    match (known.group, known.kind) {
        ("", "Pod" | "Service" | "ReplicationController")
        | ("apps", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet")
        | ("batch", "Job" | "CronJob")
        | ("autoscaling", "HorizontalPodAutoscaler") => &["all"],
        ("admissionregistration.k8s.io" | "apiextensions.k8s.io" | "apiregistration.k8s.io", _) => {
            &["api-extensions"]
        }
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds::guess;

    fn custom(kind: &str, version: &str) -> Arc<Kind> {
        let resource = Arc::new(guess(&format!("lab.io/{version}"), kind, true));
        Arc::new(Kind { custom: true, writable: Writable::Everything, ..Kind::without_schema(resource) })
    }

    #[test]
    fn built_in_kinds_are_served_with_kubectl_metadata() {
        let kinds = Kinds::new(Vec::new());
        let pods = kinds.get("", "v1", "pods").unwrap();
        assert_eq!(
            (pods.short_names.as_slice(), pods.categories.as_slice()),
            (&["po".into()][..], &["all".into()][..])
        );
        assert!(
            pods.status_subresource
                && pods.writable == Writable::Everything
                && pods.stored_as == pods.resource
        );
        assert!(!kinds.get("", "v1", "configmaps").unwrap().status_subresource);
        let events = kinds.get("", "v1", "events").unwrap();
        assert_eq!((&*events.resource.group, &*events.stored_as.group), ("", "events.k8s.io"));
        assert_eq!(*events.stored_as, *kinds.get("events.k8s.io", "v1", "events").unwrap().resource);
        for missing in ["bindings", "componentstatuses", "widgets"] {
            assert!(kinds.get("", "v1", missing).is_none(), "{missing}");
        }
        assert!(kinds.get("autoscaling", "v2", "horizontalpodautoscalers").is_some());
    }

    #[test]
    fn learnt_kind_yields_to_a_definition() {
        let kinds = Kinds::new(vec![
            guess("lab.io/v1", "Widget", true),
            guess("autoscaling/v1", "HorizontalPodAutoscaler", true),
        ]);
        let before = kinds.version();
        assert!(
            kinds
                .get("lab.io", "v1", "widgets")
                .is_some_and(|kind| kind.writable == Writable::Everything && !kind.custom)
        );
        assert!(kinds.get("autoscaling", "v1", "horizontalpodautoscalers").is_none());
        kinds.set_custom(&[custom("Widget", "v2")]);
        assert!(kinds.get("lab.io", "v1", "widgets").is_none());
        assert!(kinds.get("lab.io", "v2", "widgets").unwrap().custom);
        assert_eq!(kinds.version(), before + 1);
        kinds.set_custom(&[]);
        assert!(kinds.all().iter().all(|kind| kind.resource.group != "lab.io"));
    }

    #[test]
    fn discovery_is_in_the_order_of_kubernetes() {
        let kinds = Kinds::new(Vec::new());
        let resource = |group: &str, kind: &str| {
            let resource = Arc::new(guess(&format!("{group}/v1"), kind, true));
            Arc::new(Kind { custom: true, ..Kind::without_schema(resource) })
        };
        kinds.set_custom(&[resource("b.io", "Y"), resource("a.io", "Z"), resource("b.io", "X")]);
        let all = kinds.all();
        let names = all.iter().map(|kind| (&*kind.resource.group, &*kind.resource.plural));
        let names: Vec<(&str, &str)> = names.collect();
        let mut groups: Vec<&str> = names.iter().map(|(group, _)| *group).collect();
        groups.dedup();
        assert_eq!(
            groups[..6],
            ["", "apiregistration.k8s.io", "apps", "events.k8s.io", "autoscaling", "batch"]
        );
        assert_eq!(groups.iter().collect::<std::collections::HashSet<_>>().len(), groups.len(), "{groups:?}");
        assert_eq!(names[names.len() - 3..], [("a.io", "zes"), ("b.io", "xes"), ("b.io", "ys")]);
        for pair in names.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            assert!(pair[0].1 < pair[1].1, "{pair:?}");
        }
    }

    #[test]
    fn kinds_version_changes_only_with_the_kinds() {
        let kinds = Kinds::new(Vec::new());
        let before = kinds.version();
        kinds.set_custom(&[]);
        assert_eq!(kinds.version(), before);
        kinds.set_custom(&[custom("Widget", "v1")]);
        kinds.set_custom(&[custom("Widget", "v1")]);
        assert_eq!(kinds.version(), before + 1);
    }

    #[test]
    fn definition_does_not_replace_a_built_in_kind() {
        let kinds = Kinds::new(Vec::new());
        let pods = kinds.get("", "v1", "pods").unwrap();
        kinds.set_custom(&[Arc::new(Kind { custom: true, ..Kind::clone(&pods) })]);
        assert!(!kinds.get("", "v1", "pods").unwrap().custom);
    }
}
