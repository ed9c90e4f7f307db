//! Authority of a node over its Events: it reports in its own name, about its own Node and the
//! objects that are placed on it, and never in the namespace of the system. Pure.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::references::Targets;
use super::{Refusal, invalid};
use edgesync_object::event::reporting_instance;
use edgesync_object::{NodeName, Object, ObjectKey, split_api_version};
use edgesync_protocol::upload::RefusedReason;

/// The namespace in which nodes create no Events: it has those of the control plane.
const SYSTEM_NAMESPACE: &str = "kube-system";
/// The fields of an Event that refer to objects; the first one is required.
const REFERENCES: [&str; 2] = ["regarding", "related"];

/// An object that an Event refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventReference {
    /// Empty if the Event names none.
    pub(super) uid: String,
    pub(super) key: ObjectKey,
}

impl EventReference {
    fn of(fields: &Map<String, Value>) -> Self {
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        let (group, _) = split_api_version(text("apiVersion"));
        Self {
            uid: text("uid").to_owned(),
            key: ObjectKey {
                group: group.into(),
                kind: text("kind").into(),
                namespace: text("namespace").into(),
                name: text("name").into(),
            },
        }
    }

    /// Returns whether it is the Node of this node.
    pub(super) fn is_node(&self, node: &NodeName) -> bool {
        let ObjectKey { group, kind, namespace, name } = &self.key;
        group.is_empty() && &**kind == "Node" && namespace.is_empty() && **name == **node
    }
}

/// Returns the references of an Event in either form; none if it is malformed.
pub(super) fn references(event: &str) -> impl Iterator<Item = EventReference> + use<> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Fields {
        regarding: Option<Map<String, Value>>,
        involved_object: Option<Map<String, Value>>,
        related: Option<Map<String, Value>>,
    }
    let Fields { regarding, involved_object, related } = serde_json::from_str(event).unwrap_or_default();
    [regarding, involved_object, related].into_iter().flatten().map(|fields| EventReference::of(&fields))
}

/// Attributes an Event in its stored form to a node, and replaces its references by those of the
/// objects as they are placed there.
///
/// # Errors
/// The Event is in the namespace of the system, or refers to another object. The words do not
/// depend on whether that object exists.
pub(super) fn attribute(event: &mut Object, node: &NodeName, targets: &Targets) -> Result<(), Refusal> {
    if event.namespace() == SYSTEM_NAMESPACE {
        return Err(invalid(format!("metadata.namespace: must not be '{SYSTEM_NAMESPACE}'")));
    }
    let fields = event.fields_mut();
    for field in REFERENCES {
        match fields.get_mut(field) {
            Some(Value::Object(reference)) => resolve(field, reference, node, targets)?,
            None | Some(Value::Null) if field != REFERENCES[0] => {}
            _ => return Err(foreign(field, node)),
        }
    }
    let instance = reporting_instance(node);
    if let Some(Value::Object(source)) = fields.get_mut("deprecatedSource") {
        source.insert("host".to_owned(), node.as_str().into());
    }
    fields.insert("reportingInstance".to_owned(), instance.into());
    Ok(())
}

fn resolve(
    field: &str,
    fields: &mut Map<String, Value>,
    node: &NodeName,
    targets: &Targets,
) -> Result<(), Refusal> {
    let reference = EventReference::of(fields);
    let (api_version, uid) = if reference.is_node(node) {
        // As kubelets do, which do not know the UID of their Node.
        ("v1", node.as_str())
    } else {
        let placed = targets.regarded(&reference.key).ok_or_else(|| foreign(field, node))?;
        (&*placed.object.api_version, &*placed.uid)
    };
    fields.insert("apiVersion".to_owned(), api_version.into());
    fields.insert("uid".to_owned(), uid.into());
    Ok(())
}

fn foreign(field: &str, node: &NodeName) -> Refusal {
    let message = format!("{field}: must be the Node '{node}' or an object that is placed on it");
    (RefusedReason::NotPlaced, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_name;
    use serde_json::json;

    #[test]
    fn references_are_found_in_either_form() {
        let of = |event: Value| references(&event.to_string()).map(|one| one.key.to_string()).collect();
        let new = json!({"regarding": {"kind": "Pod", "namespace": "shop", "name": "p", "uid": null},
            "related": {"kind": "Node", "name": "edge-1"}});
        let found: Vec<String> = of(new);
        assert_eq!(found, ["Pod 'shop/p'", "Node 'edge-1'"]);
        let core = json!({"involvedObject": {"kind": "Pod", "namespace": "shop", "name": "p"}});
        let found: Vec<String> = of(core);
        assert_eq!(found, ["Pod 'shop/p'"]);
        for malformed in [json!(7), json!({"regarding": 7}), json!({"regarding": null}), json!([])] {
            let found: Vec<String> = of(malformed);
            assert!(found.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn only_the_core_node_of_that_name_is_the_node() {
        let is_node =
            |fields: Value| EventReference::of(fields.as_object().unwrap()).is_node(&node_name("edge-1"));
        assert!(is_node(json!({"kind": "Node", "name": "edge-1"})));
        assert!(is_node(json!({"apiVersion": "v1", "kind": "Node", "name": "edge-1", "uid": "edge-1"})));
        for other in [
            json!({"kind": "Node", "name": "edge-2"}),
            json!({"kind": "Node", "name": "edge-1", "namespace": "default"}),
            json!({"apiVersion": "lab.io/v1", "kind": "Node", "name": "edge-1"}),
            json!({"kind": "Lease", "name": "edge-1"}),
            json!({}),
        ] {
            assert!(!is_node(other.clone()), "{other}");
        }
    }
}
