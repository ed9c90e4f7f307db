//! ObjectSync and ClusterObjectSync (`reliablesyncs.kubeedge.io/v1alpha1`): the version of an
//! object that a node has persisted.
//!
//! Name = `<node>.<uid>`. Node names may contain dots, UIDs may not ([`check_uid`]), so the last
//! dot separates the two. The record of a namespaced object is an ObjectSync in the object's
//! namespace, that of a cluster-scoped object a ClusterObjectSync.
//!
//! The types borrow their strings and list their fields in alphabetical order: parsing allocates
//! almost nothing, and writing is a single pass that yields the text of a sorted JSON map.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::name::{self, MAX_SUBDOMAIN, Problem, check_subdomain, check_uid};
use super::resource::{ObjectKey, Resource, split_api_version};

/// API group of both kinds.
pub const GROUP: &str = "reliablesyncs.kubeedge.io";
/// The `apiVersion` of both kinds.
pub const API_VERSION: &str = "reliablesyncs.kubeedge.io/v1alpha1";
/// Kind of the records of namespaced objects.
pub const OBJECT_SYNC: &str = "ObjectSync";
/// Label of a record with the version in effect on the node, which its programs use.
pub const IN_EFFECT_LABEL: &str = "edgesync.io/in-effect";
/// Label of a record with the state of the newest version: `InEffect`, `NotInEffect`, `Conflict`,
/// `Waiting`.
/// Absent if no rule for files selects the object.
pub const EFFECT_STATE_LABEL: &str = "edgesync.io/effect-state";
/// Annotation of a record of which the newest version waits: for what, until when, and who holds
/// it.
pub const EFFECT_WAIT_ANNOTATION: &str = "edgesync.io/effect-wait";
/// Kind of the records of cluster-scoped objects.
pub const CLUSTER_OBJECT_SYNC: &str = "ClusterObjectSync";

type Text<'a> = Cow<'a, str>;
type Map<'a> = BTreeMap<Text<'a>, Text<'a>>;

/// Record of an object that a node has persisted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectSync<'a> {
    /// API version of the record, [`API_VERSION`].
    #[serde(borrow)]
    pub api_version: Text<'a>,
    /// [`OBJECT_SYNC`] for a namespaced object, [`CLUSTER_OBJECT_SYNC`] for a cluster-scoped one.
    #[serde(borrow)]
    pub kind: Text<'a>,
    /// Metadata of the record itself.
    #[serde(borrow)]
    pub metadata: SyncMeta<'a>,
    /// Object that the record refers to.
    #[serde(borrow, default)]
    pub spec: SyncSpec<'a>,
    /// Version that the node has persisted.
    #[serde(borrow, default)]
    pub status: SyncStatus<'a>,
}

/// Metadata of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncMeta<'a> {
    /// Annotations of the record.
    #[serde(borrow, default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: Map<'a>,
    /// Creation time of the record, RFC 3339 in UTC.
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub creation_timestamp: Text<'a>,
    /// Increments when the spec changes.
    #[serde(default)]
    pub generation: u64,
    /// Labels of the record.
    #[serde(borrow, default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Map<'a>,
    /// Name in the form `<node>.<uid>`.
    #[serde(borrow)]
    pub name: Text<'a>,
    /// Namespace of the object, empty for a ClusterObjectSync.
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub namespace: Text<'a>,
    /// Version of the record (not of the object).
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub resource_version: Text<'a>,
    /// UID of the record (not of the object).
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub uid: Text<'a>,
}

/// Object of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncSpec<'a> {
    /// `apiVersion` of the object.
    #[serde(rename = "objectAPIVersion", borrow, default)]
    pub object_api_version: Text<'a>,
    /// `kind` of the object.
    #[serde(rename = "objectKind", borrow, default)]
    pub object_kind: Text<'a>,
    /// `metadata.name` of the object.
    #[serde(rename = "objectName", borrow, default)]
    pub object_name: Text<'a>,
}

/// Version of the object that the node has persisted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncStatus<'a> {
    /// `metadata.resourceVersion` of the object.
    #[serde(borrow, default)]
    pub object_resource_version: Text<'a>,
}

/// Reference to an object, as in a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// `apiVersion` of the object: `group/version`, or only the version in the core group.
    pub api_version: Arc<str>,
    /// Kind in CamelCase, such as `ConfigMap`.
    pub kind: Arc<str>,
    /// Namespace, empty for cluster-scoped objects.
    #[serde(default = "empty", skip_serializing_if = "str::is_empty")]
    pub namespace: Arc<str>,
    /// Name of the object.
    pub name: Arc<str>,
}

fn empty() -> Arc<str> {
    "".into()
}

/// Checks all parts that are used in paths and queries.
///
/// # Errors
/// A field is invalid, with the requirement.
pub fn check_reference(api_version: &str, kind: &str, namespace: &str, name: &str) -> Result<(), Problem> {
    let (group, version) = split_api_version(api_version);
    name::check_label(version).map_err(|problem| format!("`apiVersion` {problem}"))?;
    if !group.is_empty() {
        name::check_subdomain(group).map_err(|problem| format!("`apiVersion` {problem}"))?;
    }
    name::check_label(&kind.to_ascii_lowercase()).map_err(|problem| format!("`kind` {problem}"))?;
    name::check_object_name(group, name).map_err(|problem| format!("`metadata.name` {problem}"))?;
    if !namespace.is_empty() {
        name::check_label(namespace).map_err(|problem| format!("`metadata.namespace` {problem}"))?;
    }
    Ok(())
}

impl ObjectRef {
    /// Checks all parts that are used in paths and queries.
    ///
    /// # Errors
    /// A field is invalid, with the requirement.
    pub fn check(&self) -> Result<(), Problem> {
        check_reference(&self.api_version, &self.kind, &self.namespace, &self.name)
    }

    /// Returns the identity by name, without the API version.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        let (group, _) = split_api_version(&self.api_version);
        ObjectKey {
            group: group.into(),
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// Returns whether the record of this object is a ClusterObjectSync.
    #[must_use]
    pub fn is_cluster_scoped(&self) -> bool {
        self.namespace.is_empty()
    }
}

impl<'a> ObjectSync<'a> {
    /// Creates the record of `object` at `version`, under `name` (see [`sync_name`]), without the
    /// metadata that a store assigns.
    #[must_use]
    pub fn new(name: &'a str, object: &'a ObjectRef, version: &'a str) -> Self {
        let kind = if object.is_cluster_scoped() { CLUSTER_OBJECT_SYNC } else { OBJECT_SYNC };
        Self {
            api_version: API_VERSION.into(),
            kind: kind.into(),
            metadata: SyncMeta {
                name: name.into(),
                namespace: (&*object.namespace).into(),
                generation: 1,
                ..SyncMeta::default()
            },
            spec: SyncSpec {
                object_api_version: (&*object.api_version).into(),
                object_kind: (&*object.kind).into(),
                object_name: (&*object.name).into(),
            },
            status: SyncStatus { object_resource_version: version.into() },
        }
    }

    /// Parses a record from JSON text, borrowing from it.
    ///
    /// # Errors
    /// A field is missing or has a wrong type.
    pub fn parse(json: &'a str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    /// Appends the record as JSON text to `out`.
    ///
    /// # Errors
    /// None when writing to memory.
    pub fn write_json(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(out, self)
    }

    /// Returns node and object UID, if the name has the form `<node>.<uid>`.
    #[must_use]
    pub fn node_and_uid(&self) -> Option<(&str, &str)> {
        split_sync_name(&self.metadata.name)
    }

    /// Returns the recorded object.
    #[must_use]
    pub fn object(&self) -> ObjectRef {
        ObjectRef {
            api_version: (&*self.spec.object_api_version).into(),
            kind: (&*self.spec.object_kind).into(),
            namespace: (&*self.metadata.namespace).into(),
            name: (&*self.spec.object_name).into(),
        }
    }

    /// Returns whether the record refers to this object.
    #[must_use]
    pub fn is_about(&self, object: &ObjectRef) -> bool {
        *self.spec.object_name == *object.name
            && *self.metadata.namespace == *object.namespace
            && *self.spec.object_kind == *object.kind
            && *self.spec.object_api_version == *object.api_version
    }
}

/// Returns whether a resource is one of the two kinds.
#[must_use]
pub fn is_sync_record(resource: &Resource) -> bool {
    resource.group == GROUP && matches!(resource.kind.as_str(), OBJECT_SYNC | CLUSTER_OBJECT_SYNC)
}

/// Returns whether objects of a kind can be placed on nodes. Records and Events come from nodes,
/// Leases and Nodes describe them: sending those back would cause a loop. Placements control what
/// is placed.
#[must_use]
pub fn is_placeable(resource: &Resource) -> bool {
    !is_sync_record(resource)
        && !is_placement(resource)
        && !matches!(
            (resource.group.as_str(), resource.kind.as_str()),
            ("" | "events.k8s.io", "Event") | ("coordination.k8s.io", "Lease") | ("", "Node")
        )
}

/// Returns whether a kind controls placement: Placement and ClusterPlacement.
#[must_use]
pub fn is_placement(resource: &Resource) -> bool {
    resource.group == "edgesync.io" && matches!(resource.kind.as_str(), "Placement" | "ClusterPlacement")
}

/// Returns the name of an object's record for a node.
///
/// # Errors
/// Node name or UID is invalid, or both together do not fit into a name.
pub fn sync_name(node: &str, uid: &str) -> Result<String, Problem> {
    check_subdomain(node).map_err(|problem| format!("the node name {problem}"))?;
    check_uid(uid).map_err(|problem| format!("the uid {problem}"))?;
    if node.len() + 1 + uid.len() > MAX_SUBDOMAIN {
        return Err(format!("node name and uid together must be less than {MAX_SUBDOMAIN} bytes"));
    }
    Ok(format!("{node}.{uid}"))
}

/// Returns the UID of a record where no store assigns one: derived from the name, in the form of a
/// UUID of version 8 (RFC 9562).
#[must_use]
pub fn record_uid(name: &str) -> String {
    let mut hasher = SipHasher24::new_with_keys(0x6564_6765_7379_6e63, 2);
    hasher.write(name.as_bytes());
    let bits = hasher.finish128().as_u128();
    let bits = bits & !(0xf << 76) | 8 << 76;
    let bits = bits & !(0b11 << 62) | 0b10 << 62;
    let hex = format!("{bits:032x}");
    let part = |range| hex.get(range).unwrap_or_default();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}

/// Splits a record's name at its last dot into node name and object UID.
#[must_use]
pub fn split_sync_name(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('.').filter(|(node, uid)| check_subdomain(node).is_ok() && check_uid(uid).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use proptest::prelude::*;

    fn web_conf() -> ObjectRef {
        ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "lab".into(),
            name: "web-conf".into(),
        }
    }

    /// A record as written by KubeEdge's cloud, in the key order of a sorted map.
    const KUBEEDGE: &str = concat!(
        r#"{"apiVersion":"reliablesyncs.kubeedge.io/v1alpha1","kind":"ObjectSync","metadata":{"#,
        r#""creationTimestamp":"2026-11-21T01:45:34Z","generation":1,"#,
        r#""name":"edgea.378a3009-7d52-41cd-a470-814c2700b0bd","namespace":"lab","resourceVersion":"464","#,
        r#""uid":"07184353-fc6f-4653-a93e-0b02f9814357"},"spec":{"objectAPIVersion":"v1","#,
        r#""objectKind":"ConfigMap","objectName":"web-conf"},"status":{"objectResourceVersion":"455"}}"#
    );

    #[test]
    fn kubeedge_record_survives_a_round_trip() {
        let record = ObjectSync::parse(KUBEEDGE).unwrap();
        assert_eq!(record.node_and_uid(), Some(("edgea", "378a3009-7d52-41cd-a470-814c2700b0bd")));
        assert!(record.is_about(&web_conf()));
        assert_eq!(record.object(), web_conf());
        let mut text = Vec::new();
        record.write_json(&mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), KUBEEDGE);
        let sorted: serde_json::Value = serde_json::from_str(KUBEEDGE).unwrap();
        assert_eq!(sorted.to_string(), KUBEEDGE);
    }

    #[test]
    fn cluster_scoped_object_gets_a_cluster_object_sync() {
        let node = ObjectRef {
            api_version: "v1".into(),
            kind: "Node".into(),
            namespace: "".into(),
            name: "edgea".into(),
        };
        let mut text = Vec::new();
        ObjectSync::new("edgea.u", &node, "372").write_json(&mut text).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["kind"], "ClusterObjectSync");
        assert_eq!(value["metadata"].get("namespace"), None);
        assert_eq!(value["status"]["objectResourceVersion"], "372");
    }

    #[test]
    fn labels_and_annotations_of_a_record_are_kept() {
        let text = KUBEEDGE
            .replace(r#"{"creationTimestamp""#, r#"{"annotations":{"a":"\"ä\""},"creationTimestamp""#)
            .replace(r#""name":"edgea"#, r#""labels":{"site":"x"},"name":"edgea"#);
        let mut out = Vec::new();
        ObjectSync::parse(&text).unwrap().write_json(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }

    #[test]
    fn record_uid_is_derived_from_the_name() {
        let uid = record_uid("edgea.u-1");
        assert_eq!(uid, record_uid("edgea.u-1"));
        assert_ne!(uid, record_uid("edgeb.u-1"));
        assert_eq!((uid.len(), &uid[14..15]), (36, "8"));
        assert!(matches!(&uid[19..20], "8" | "9" | "a" | "b"), "{uid}");
        assert!(check_uid(&uid).is_ok());
    }

    #[test]
    fn last_dot_separates_node_and_uid() {
        assert_eq!(split_sync_name("edge.site-1.example.u-1"), Some(("edge.site-1.example", "u-1")));
        for bad in ["", ".", "u", ".u", "edge.", "Edge.u", "a..u"] {
            assert_eq!(split_sync_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn invalid_record_names_are_refused() {
        assert!(sync_name("edge", "a.b").is_err());
        assert!(sync_name("Edge", "u").is_err());
        assert!(sync_name(&"n".repeat(252), "u").is_err());
        assert!(sync_name(&"n".repeat(251), "u").is_ok());
    }

    proptest! {
        #[test]
        fn record_names_survive_a_round_trip(node in "[a-z0-9]{1,8}(\\.[a-z0-9]{1,8}){0,3}", uid in "[a-zA-Z0-9_-]{1,40}") {
            let name = sync_name(&node, &uid).unwrap();
            prop_assert_eq!(split_sync_name(&name), Some((node.as_str(), uid.as_str())));
        }

        #[test]
        fn any_strings_produce_valid_json(name in ".*", version in ".*") {
            let object = ObjectRef { name: name.as_str().into(), ..web_conf() };
            let mut text = Vec::new();
            ObjectSync::new("n.u", &object, &version).write_json(&mut text).unwrap();
            let back = serde_json::from_slice::<ObjectSync<'_>>(&text).unwrap();
            prop_assert_eq!(&*back.object().name, name.as_str());
            prop_assert_eq!(&back.status.object_resource_version, &version);
        }
    }

    #[test]
    fn kinds_from_nodes_are_not_placeable() {
        for word in ["objectsyncs", "clusterobjectsyncs", "events", "events.events.k8s.io", "leases", "nodes"]
        {
            assert!(!is_placeable(&kinds::by_word(word).unwrap().resource()), "{word}");
        }
        for word in ["cm", "pods", "deploy", "ns", "crd"] {
            assert!(is_placeable(&kinds::by_word(word).unwrap().resource()), "{word}");
        }
    }
}
