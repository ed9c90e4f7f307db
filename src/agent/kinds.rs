//! The kinds that the local API serves: those of held objects, the common built-in ones, the sync
//! records, and the Leases and Events of local programs. Of objects from the cloud only the status
//! is writable here.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::store::LocalKind;
use edgesync_api::{Kind, Writable};
use edgesync_object::kinds::KnownKind;
use edgesync_object::{ObjectKey, Resource, Scope, kinds, objectsync};
use edgesync_schema as schema;
use edgesync_schema::Schema;
use edgesync_store::seal::SealOptions;

/// Hint for a write to an object from the cloud.
const SYNCED_HINT: &str =
    "read-only on this node; hint: change it on the cloud side with kubectl or edgesync-cloud apply";
/// Hint for a write to a record.
const RECORD_HINT: &str =
    "read-only record of what this node holds; hint: change the object on the cloud side";

/// Built-in groups that the discovery always includes.
const COMMON_GROUPS: [&str; 3] = ["", "apps", "batch"];
/// Kinds of these groups that no node holds.
const VIRTUAL: [&str; 2] = ["Binding", "ComponentStatus"];
/// Kinds that `kubectl get all` includes.
const ALL: [&str; 9] = [
    "Pod",
    "ReplicationController",
    "Service",
    "DaemonSet",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "CronJob",
    "Job",
];

type Path = (String, String, String);

/// Kinds by group, version and plural.
#[derive(Debug, Default)]
pub(super) struct KindRegistry {
    known: RwLock<RegistryState>,
    /// Kinds that are sealed on this node: readable only with access to Secrets.
    sealed: Option<SealOptions>,
}

#[derive(Debug, Default)]
struct RegistryState {
    version: u64,
    held: HashMap<Path, Arc<Resource>>,
    /// Cache of kinds, filled on first use; includes built-in ones outside the discovery.
    kinds: HashMap<Path, Arc<Kind>>,
    served: Option<Vec<Arc<Kind>>>,
}

fn path(resource: &Resource) -> Path {
    (resource.group.clone(), resource.version.clone(), resource.plural.clone())
}

impl KindRegistry {
    /// Creates an empty set, with the kinds that are sealed.
    pub(super) fn sealing(sealed: SealOptions) -> Self {
        Self { sealed: Some(sealed), ..Self::default() }
    }

    pub(super) fn register_all(&self, held: Vec<Arc<Resource>>) {
        for resource in held {
            self.register(&resource);
        }
    }

    fn read<T>(&self, read: impl FnOnce(&RegistryState) -> T) -> T {
        read(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, write: impl FnOnce(&mut RegistryState) -> T) -> T {
        write(&mut self.known.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds the kind of a held object.
    pub(super) fn register(&self, resource: &Arc<Resource>) {
        let path = path(resource);
        if self.read(|known| known.held.contains_key(&path)) {
            return;
        }
        self.write(|known| {
            known.version += 1;
            known.held.insert(path, resource.clone());
            // The preferred version may change.
            (known.kinds, known.served) = (HashMap::new(), None);
        });
    }

    /// Returns a version that changes with each new kind.
    pub(super) fn version(&self) -> u64 {
        self.read(|known| known.version)
    }

    /// Returns whether objects of a kind are sealed.
    pub(super) fn seals(&self, resource: &Resource) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.covers(resource))
    }

    /// Returns whether a held kind among those that `takes` accepts is sealed.
    pub(super) fn seals_any(&self, takes: impl Fn(&Resource) -> bool) -> bool {
        let Some(sealed) = &self.sealed else { return false };
        self.read(|known| known.held.values().any(|resource| takes(resource) && sealed.covers(resource)))
    }

    /// Returns whether reports about an object require access to Secrets.
    pub(super) fn is_sealed(&self, object: &ObjectKey) -> bool {
        let covers = |sealed: &SealOptions| {
            self.read(|known| sealed.covers_object(object, known.held.values().map(|kind| &**kind)))
        };
        self.sealed.as_ref().is_some_and(covers)
    }

    /// Returns the kind served under a path: one of held objects, or a built-in one.
    pub(super) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let path = (group.to_owned(), version.to_owned(), plural.to_owned());
        let held = self.read(|known| known.held.get(&path).cloned());
        held.or_else(|| kinds::by_plural(group, version, plural).map(|known| Arc::new(known.resource())))
    }

    /// Like [`KindRegistry::find`], with everything that the API needs.
    pub(super) fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        let path = (group.to_owned(), version.to_owned(), plural.to_owned());
        if let Some(kind) = self.read(|known| known.kinds.get(&path).cloned()) {
            return Some(kind);
        }
        let resource = self.find(group, version, plural)?;
        Some(self.write(|known| {
            let mut kind = known.make(&resource);
            let covers = |sealed: &SealOptions| sealed.covers(&resource) || sealed.covers(&kind.stored_as);
            kind.secret |= self.sealed.as_ref().is_some_and(covers);
            let kind = Arc::new(kind);
            known.kinds.insert(path, kind.clone());
            kind
        }))
    }

    /// Returns the kinds of the discovery, by group, version and plural.
    pub(super) fn served(&self) -> Vec<Arc<Kind>> {
        let (version, served) = self.read(|known| (known.version, known.served.clone()));
        if let Some(served) = served {
            return served;
        }
        let built_in = kinds::KINDS.iter().filter(|known| is_common(known)).map(KnownKind::resource);
        let mut resources: Vec<Resource> = built_in.collect();
        resources
            .extend(self.read(|known| known.held.values().map(|held| (**held).clone()).collect::<Vec<_>>()));
        resources.sort_by(|a, b| (&a.group, &a.version, &a.plural).cmp(&(&b.group, &b.version, &b.plural)));
        resources.dedup_by(|a, b| path(a) == path(b));
        let found = |resource: &Resource| self.kind(&resource.group, &resource.version, &resource.plural);
        let served: Vec<_> = resources.iter().filter_map(found).collect();
        self.write(|known| {
            // Unless a kind was added meanwhile.
            if known.version == version {
                known.served = Some(served.clone());
            }
        });
        served
    }
}

impl RegistryState {
    fn make(&self, resource: &Arc<Resource>) -> Kind {
        let mut kind = Kind::without_schema(resource.clone());
        if let Some(known) = kinds::by_kind(&resource.api_version(), &resource.kind) {
            kind.singular = known.singular.to_owned();
            kind.short_names = known.short.iter().map(ToString::to_string).collect();
        }
        if COMMON_GROUPS.contains(&&*resource.group) && ALL.contains(&&*resource.kind) {
            kind.categories = vec!["all".to_owned()];
        }
        if is_core_event(resource) {
            kind.stored_as = local_resource(LocalKind::Event);
        }
        kind.schema = schema_of(resource);
        kind.status_subresource = has_status(resource);
        kind.writable = writable(&kind);
        kind.read_only_hint =
            (kind.writable != Writable::Everything).then(|| read_only_hint(resource).into());
        kind.preferred = !self.held.values().any(|other| is_preferred(other, resource));
        kind
    }
}

/// Returns what is writable here: local objects, and the status of objects from the cloud.
fn writable(kind: &Kind) -> Writable {
    if local_kind(&kind.stored_as).is_some() {
        Writable::Everything
    } else if kind.status_subresource
        && objectsync::is_placeable(&kind.resource)
        && SynthesizedKind::of(&kind.resource).is_none()
    {
        Writable::Status
    } else {
        Writable::Nothing
    }
}

/// Returns whether the status of a kind is a subresource. The node has no custom resource
/// definitions, so every custom kind may have one; the cloud refuses what does not fit.
fn has_status(resource: &Resource) -> bool {
    let named = |known: &&KnownKind| known.group == resource.group && known.kind == resource.kind;
    kinds::KINDS.iter().find(named).is_none_or(KnownKind::has_status)
}

fn schema_of(resource: &Resource) -> Option<Arc<Schema>> {
    schema::builtin(&resource.group, &resource.version, &resource.kind)
}

/// Returns whether the discovery includes a built-in kind without held objects.
fn is_common(known: &KnownKind) -> bool {
    let resource = known.resource();
    let common = COMMON_GROUPS.contains(&known.group) && !VIRTUAL.contains(&known.kind);
    common || objectsync::is_sync_record(&resource) || local_kind(&resource).is_some()
}

/// Returns whether one kind is a preferred version of another.
fn is_preferred(one: &Resource, other: &Resource) -> bool {
    one.group == other.group
        && one.plural == other.plural
        && compare_versions(&one.version, &other.version) == Ordering::Greater
}

/// Compares API versions in the order of Kubernetes: `v2`, `v1`, `v1beta1`, `v1alpha2`, then all
/// others.
fn compare_versions(one: &str, other: &str) -> Ordering {
    let known = parse_version(one).cmp(&parse_version(other));
    // Unknown forms sort in alphabetical order.
    known.then_with(|| if parse_version(one).is_none() { other.cmp(one) } else { Ordering::Equal })
}

/// Returns stability, major and minor number.
fn parse_version(version: &str) -> Option<(u8, u32, u32)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (major, stage) = rest.split_at_checked(digits)?;
    let major = major.parse().ok()?;
    if stage.is_empty() {
        return Some((2, major, 0));
    }
    let minor = |name: &str| stage.strip_prefix(name)?.parse().ok();
    minor("beta").map(|minor| (1, major, minor)).or_else(|| minor("alpha").map(|minor| (0, major, minor)))
}

fn is_core_event(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.kind == "Event"
}

/// Returns the resource of the sync records of a scope.
pub(super) fn object_syncs(scope: Scope) -> Arc<Resource> {
    static RECORDS: LazyLock<[Arc<Resource>; 2]> = LazyLock::new(|| {
        let resource = |kind| Arc::new(kinds::guess(objectsync::API_VERSION, kind, false));
        [objectsync::OBJECT_SYNC, objectsync::CLUSTER_OBJECT_SYNC].map(resource)
    });
    let [namespaced, cluster] = &*RECORDS;
    match scope {
        Scope::Namespaced => namespaced.clone(),
        Scope::Cluster => cluster.clone(),
    }
}

/// Returns the local kind of a resource, if it is one. Such objects from the cloud are held and
/// reported but not served: the name belongs to the local ones.
pub(super) fn local_kind(resource: &Resource) -> Option<LocalKind> {
    [LocalKind::Lease, LocalKind::Event].into_iter().find(|kind| *local_resource(*kind) == *resource)
}

/// Returns the resource under which local objects of a kind are stored.
pub(super) fn local_resource(kind: LocalKind) -> Arc<Resource> {
    static LOCAL: LazyLock<[Arc<Resource>; 2]> = LazyLock::new(|| {
        let resource = |(api_version, kind)| Arc::new(kinds::guess(api_version, kind, true));
        [("coordination.k8s.io/v1", "Lease"), ("events.k8s.io/v1", "Event")].map(resource)
    });
    let [lease, event] = &*LOCAL;
    match kind {
        LocalKind::Lease => lease.clone(),
        LocalKind::Event => event.clone(),
    }
}

/// The kinds whose objects the agent synthesizes: see [`super::objects`].
#[derive(Clone, Copy, Debug)]
pub(super) enum SynthesizedKind {
    Node,
    Namespace,
}

impl SynthesizedKind {
    pub(super) fn of(resource: &Resource) -> Option<Self> {
        match (&*resource.group, &*resource.kind) {
            ("", "Node") => Some(Self::Node),
            ("", "Namespace") => Some(Self::Namespace),
            _ => None,
        }
    }
}

/// Returns the hint for a write to a kind that is read-only here.
pub(super) fn read_only_hint(resource: &Resource) -> &'static str {
    if objectsync::is_sync_record(resource) { RECORD_HINT } else { SYNCED_HINT }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_store::seal::KeySource;

    fn custom(version: &str) -> Arc<Resource> {
        Arc::new(Resource {
            group: "plant.example".into(),
            version: version.into(),
            kind: "Robot".into(),
            plural: "robots".into(),
            scope: Scope::Namespaced,
        })
    }

    fn paths(known: &KindRegistry) -> Vec<String> {
        let path = |kind: &Arc<Kind>| format!("{}/{}", kind.resource.api_version(), kind.resource.plural);
        known.served().iter().map(path).collect()
    }

    #[test]
    fn sealed_kinds_require_access_to_secrets() {
        let kinds = ["configmaps", "robots.plant.example", "events.events.k8s.io"].map(str::to_owned).into();
        let known = KindRegistry::sealing(SealOptions { kinds, keys: KeySource::default() });
        known.register(&custom("v1"));
        let secret = |group: &str, plural: &str| known.kind(group, "v1", plural).unwrap().secret;
        assert!(secret("", "configmaps") && secret("plant.example", "robots") && secret("", "secrets"));
        assert!(secret("", "events") && secret("events.k8s.io", "events"), "one under two names");
        assert!(!secret("", "pods") && !secret("apps", "deployments"));
        assert!(!KindRegistry::default().kind("", "v1", "configmaps").unwrap().secret);
    }

    #[test]
    fn an_empty_node_serves_the_common_kinds() {
        let known = KindRegistry::default();
        let paths = paths(&known);
        for expected in [
            "v1/configmaps",
            "v1/events",
            "v1/nodes",
            "apps/v1/deployments",
            "events.k8s.io/v1/events",
            "coordination.k8s.io/v1/leases",
            "reliablesyncs.kubeedge.io/v1alpha1/objectsyncs",
            "reliablesyncs.kubeedge.io/v1alpha1/clusterobjectsyncs",
        ] {
            assert!(paths.iter().any(|path| path == expected), "{expected}: {paths:?}");
        }
        assert!(!paths.iter().any(|path| path.contains("bindings") || path.contains("ingresses")));
        assert!(known.kind("networking.k8s.io", "v1", "ingresses").is_some(), "known by heart");
        assert!(known.kind("plant.example", "v1", "robots").is_none());
    }

    #[test]
    fn a_registered_kind_is_served_and_changes_the_version() {
        let known = KindRegistry::default();
        let (before, version) = (known.served().len(), known.version());
        known.register(&custom("v1beta1"));
        known.register(&custom("v1beta1"));
        assert_eq!((known.served().len(), known.version()), (before + 1, version + 1));
        assert!(known.kind("plant.example", "v1beta1", "robots").unwrap().preferred);
        known.register(&custom("v1"));
        assert!(!known.kind("plant.example", "v1beta1", "robots").unwrap().preferred);
        assert!(known.kind("plant.example", "v1", "robots").unwrap().preferred);
        assert!(paths(&known).is_sorted_by_key(|path| path.contains('.')), "the core group comes first");
    }

    #[test]
    fn local_kinds_are_writable_synced_ones_in_their_status() {
        let known = KindRegistry::default();
        known.register(&custom("v1"));
        for kind in known.served() {
            let expected = match &*kind.resource.kind {
                "Lease" | "Event" => Writable::Everything,
                "DaemonSet"
                | "Deployment"
                | "ReplicaSet"
                | "StatefulSet"
                | "CronJob"
                | "Job"
                | "PersistentVolume"
                | "PersistentVolumeClaim"
                | "Pod"
                | "ReplicationController"
                | "ResourceQuota"
                | "Service"
                | "Robot" => Writable::Status,
                _ => Writable::Nothing,
            };
            assert_eq!(kind.writable, expected, "{kind:?}");
            assert_eq!(kind.read_only_hint.is_none(), expected == Writable::Everything, "{kind:?}");
        }
        for (plural, expected) in [("configmaps", false), ("secrets", false), ("nodes", true)] {
            assert_eq!(known.kind("", "v1", plural).unwrap().status_subresource, expected, "{plural}");
        }
        let older = Resource {
            version: "v1beta1".into(),
            ..kinds::guess("networking.k8s.io/v1", "NetworkPolicy", true)
        };
        assert!(!has_status(&older), "known in another version");
        let events = known.kind("", "v1", "events").unwrap();
        assert_eq!((&*events.resource.group, &*events.stored_as.group), ("", "events.k8s.io"));
        assert_eq!(known.kind("", "v1", "pods").unwrap().categories, ["all"]);
        assert_eq!(known.kind("", "v1", "configmaps").unwrap().short_names, ["cm"]);
    }

    #[test]
    fn versions_sort_in_the_order_of_kubernetes() {
        let order = [
            "zoo", "alpha", "v1alpha1", "v1alpha2", "v2alpha1", "v1beta1", "v2beta1", "v2beta10", "v1", "v2",
            "v10",
        ];
        for pair in order.windows(2) {
            assert_eq!(compare_versions(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(compare_versions(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(compare_versions("v1", "v1"), Ordering::Equal);
    }
}
