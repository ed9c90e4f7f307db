//! Documents as Secrets of a Kubernetes cluster, all in one namespace.
//!
//! Write access to them decides who belongs to the fleet: it revives revoked certificates, changes
//! the labels of nodes, and frees names. It creates no certificate, because that needs the keys,
//! which are in another namespace. Read access is not enough to join: a Secret does not contain
//! the signature of its token.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::documents::{DocumentStore, Found, Record, RecordError, Revision, parse};
use super::{MembershipError, Result};
use crate::object_store::{Failure, ObjectStore, Pending, Precondition};
use edgesync_cloud_store::{Document, NodeEffect};
use edgesync_object::node_labels::has_reported;
use edgesync_object::{NodeName, Object, Resource, ResourceVersion, kinds};
use edgesync_transport::tls::certificate::sha256_hex;

/// Label of all these objects: the kind of the document.
pub(super) const LABEL: &str = "edgesync.io/pairing";
/// Label with the node that an object is for, as a hash: names may be longer than label values.
const NODE_HASH: &str = "edgesync.io/pairing-node";
/// The beginning of the `type` of the Secrets, before the kind of the document.
const TYPE_PREFIX: &str = "edgesync.io/";
/// Maximum length of an id in the name of an object. Names of objects and of nodes both have up to
/// 253 characters.
const MAX_ID: usize = 200;

/// Documents in a namespace of a cluster.
pub(super) struct ClusterDocuments {
    pub(super) cluster: Arc<dyn ObjectStore>,
    pub(super) namespace: String,
    pub(super) secrets: Resource,
    nodes: Resource,
}

impl fmt::Debug for ClusterDocuments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, namespace, .. } = self;
        f.debug_struct("ClusterDocuments").field("cluster", cluster).field("namespace", namespace).finish()
    }
}

impl ClusterDocuments {
    pub(super) fn new(cluster: Arc<dyn ObjectStore>, namespace: &str) -> Self {
        let kind = |kind: &str, is_namespaced| kinds::guess("v1", kind, is_namespaced);
        let (secrets, nodes) = (kind("Secret", true), kind("Node", false));
        Self { cluster, namespace: namespace.to_owned(), secrets, nodes }
    }
}

impl DocumentStore for ClusterDocuments {
    fn name(&self, kind: &str, id: &str) -> String {
        name(kind, id)
    }

    fn damaged(&self, _: &str, name: &str, why: RecordError) -> MembershipError {
        MembershipError::Damaged { key: self.secrets.key(&self.namespace, name), why }
    }

    fn get<'a>(&'a self, kind: &'static str, id: &'a str) -> Pending<'a, Result<Option<Found>>> {
        Box::pin(async move {
            let object = self.cluster.get(&self.secrets, &self.namespace, &name(kind, id)).await?;
            Ok(object.map(|object| found(kind, object)))
        })
    }

    fn list<'a>(&'a self, kind: &'static str, node: Option<&'a NodeName>) -> Pending<'a, Result<Vec<Found>>> {
        Box::pin(async move {
            let selector = selector(kind, node);
            let objects = self.cluster.list(&self.secrets, Some(&self.namespace), &selector).await?;
            Ok(objects.into_iter().map(|object| found(kind, object)).collect())
        })
    }

    fn put(
        &self,
        document: Document,
        replaces: Revision,
        _: NodeEffect,
    ) -> Pending<'_, Result<Option<ResourceVersion>>> {
        Box::pin(async move {
            let is_new = matches!(replaces, Revision::Row(_));
            let written = match replaces {
                Revision::Row(_) => {
                    let object = new_object(&document, &self.namespace);
                    self.cluster.create(&self.secrets, &object).await
                }
                Revision::Object(mut object) => {
                    write(&mut object, &document);
                    self.cluster.replace(&self.secrets, &object).await
                }
            };
            match written {
                Ok(object) => Ok(Some(object.resource_version().into())),
                Err(Failure::Conflict(_)) => Ok(None),
                // A deleted object has changed too.
                Err(Failure::NotFound(_)) if !is_new => Ok(None),
                Err(failure) => Err(failure.into()),
            }
        })
    }

    fn delete<'a>(&'a self, _: &'static str, _: &'a str, revision: Revision) -> Pending<'a, Result<bool>> {
        Box::pin(async move {
            let Revision::Object(object) = revision else { return Ok(false) };
            let precondition =
                Precondition { uid: Some(object.uid()), version: Some(object.resource_version()) };
            let key = (&*self.namespace, object.name());
            match self.cluster.delete(&self.secrets, key, precondition).await {
                Err(Failure::Conflict(_)) => Ok(false),
                deleted => Ok(deleted?),
            }
        })
    }

    fn is_node<'a>(&'a self, name: &'a NodeName) -> Pending<'a, Result<bool>> {
        Box::pin(async move {
            let node = self.cluster.get(&self.nodes, "", name).await?;
            Ok(node.is_some_and(|node| has_reported(&node) || has_kubelet(&node)))
        })
    }
}

/// Whether another program than this one, a kubelet, runs the node.
fn has_kubelet(node: &Object) -> bool {
    let version =
        node.fields().get("status").and_then(|status| status.get("nodeInfo")?.get("kubeletVersion"));
    version.and_then(Value::as_str).is_some_and(|version| !version.is_empty())
}

/// The name of a document's object.
pub(super) fn name(kind: &str, id: &str) -> String {
    if id.len() <= MAX_ID {
        format!("edgesync-{kind}.{id}")
    } else {
        format!("edgesync-{kind}-by-hash.{}", sha256_hex(id.as_bytes()))
    }
}

/// Selects the objects of a kind of document, or those for a node.
fn selector(kind: &str, node: Option<&NodeName>) -> String {
    let of_node = node.map(|node| format!(",{NODE_HASH}={}", hash(node)));
    format!("{LABEL}={kind}{}", of_node.unwrap_or_default())
}

/// 128 bits of the hash: label values have at most 63 characters.
fn hash(node: &NodeName) -> String {
    sha256_hex(node.as_bytes()).chars().take(32).collect()
}

/// Whether an object holds a document of this kind.
pub(super) fn is_of(object: &Object, kind: &str) -> bool {
    object.labels().get(LABEL).is_some_and(|value| value == kind)
}

/// Builds the object of a new document.
fn new_object(document: &Document, namespace: &str) -> Object {
    let mut labels = BTreeMap::from([(LABEL, document.kind.to_owned())]);
    labels.extend(document.node.as_ref().map(|node| (NODE_HASH, hash(node))));
    let mut object = object(&name(document.kind, &document.id), namespace);
    object.set_metadata("labels", json!(labels));
    object.fields_mut().insert("type".to_owned(), secret_type(document.kind).into());
    write(&mut object, document);
    object
}

/// The `type` of the Secrets with this value of the label.
pub(super) fn secret_type(kind: &str) -> String {
    format!("{TYPE_PREFIX}{kind}")
}

/// Writes a document into its object and keeps the other fields.
fn write(object: &mut Object, document: &Document) {
    let data = BTreeMap::from([(format!("{}.json", document.kind), BASE64_STANDARD.encode(&document.text))]);
    object.fields_mut().insert("data".to_owned(), json!(data));
}

fn found(kind: &str, object: Object) -> Found {
    Found {
        name: object.name().to_owned(),
        text: read(kind, &object),
        revision: Revision::Object(object.into()),
    }
}

/// Parses the record in an object.
///
/// # Errors
/// See [`RecordError`].
pub(super) fn record<T: Record>(object: &Object) -> Result<T, RecordError> {
    parse(&read(T::KIND, object)?, |value: &T| name(T::KIND, value.id()) == object.name())
}

fn read(kind: &str, object: &Object) -> Result<String, RecordError> {
    let key = format!("{kind}.json");
    let read = String::from_utf8(secret(object, &key)?);
    read.map_err(|error| RecordError::NotText { key, problem: error.utf8_error() })
}

/// Decodes the value of a key of a Secret.
///
/// # Errors
/// The key is missing, or its value is no base64.
pub(crate) fn secret(object: &Object, key: &str) -> Result<Vec<u8>, RecordError> {
    let text = object.fields().get("data").and_then(|data| data.get(key)?.as_str());
    let text = text.ok_or_else(|| RecordError::NoKey(key.to_owned()))?;
    let decoded = BASE64_STANDARD.decode(text);
    decoded.map_err(|problem| RecordError::NotBase64 { key: key.to_owned(), problem })
}

/// Builds a Secret with this data.
pub(crate) fn secret_object((namespace, name): (&str, &str), kind: &str, data: &[(&str, &[u8])]) -> Object {
    let mut object = object(name, namespace);
    object.fields_mut().insert("type".to_owned(), kind.into());
    let data: BTreeMap<_, _> =
        data.iter().map(|(key, bytes)| (*key, BASE64_STANDARD.encode(bytes))).collect();
    object.fields_mut().insert("data".to_owned(), json!(data));
    object
}

/// Builds an object with name and namespace.
pub(super) fn object(name: &str, namespace: &str) -> Object {
    let mut object = Object::default();
    object.set_metadata("name", name);
    object.set_metadata("namespace", namespace);
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::documents::write as document;
    use crate::membership::member::Member;
    use crate::membership::records::{OperatorRecord, TokenRecord};
    use crate::node_name;
    use edgesync_object::Labels;
    use edgesync_object::name::{MAX_SUBDOMAIN, check_label_value, check_subdomain};
    use jiff::Timestamp;

    fn token(node: Option<&NodeName>) -> TokenRecord {
        TokenRecord {
            id: "0011223344556677".into(),
            node: node.cloned(),
            created: Timestamp::UNIX_EPOCH,
            expires: Timestamp::from_second(60).unwrap(),
            uses: 2,
            used: 1,
            revoked: None,
            labels: Labels::from([("site".into(), "north".into())]),
        }
    }

    fn object_of<T: Record>(value: &T) -> Object {
        new_object(&document(value), "edgesync")
    }

    #[test]
    fn a_token_object_round_trips_and_is_selected_by_its_node() {
        let node = node_name(&"n".repeat(253));
        let object = object_of(&token(Some(&node)));
        check_subdomain(object.name()).unwrap();
        object.labels().values().for_each(|value| check_label_value(value).unwrap());
        assert_eq!(record(&object), Ok(token(Some(&node))));
        assert!(selector(TokenRecord::KIND, Some(&node)).contains(&object.labels()[NODE_HASH]));
        assert!(!object_of(&token(None)).labels().contains_key(NODE_HASH));
    }

    #[test]
    fn an_object_with_another_name_or_without_data_is_rejected() {
        let mut other = object_of(&token(None));
        other.set_metadata("name", name(TokenRecord::KIND, "7"));
        let id = "0011223344556677".to_owned();
        assert_eq!(record::<TokenRecord>(&other), Err(RecordError::OtherRecord(id)));
        let mut nothing = object_of(&token(None));
        nothing.fields_mut().remove("data");
        let no_key = |key: &str| RecordError::NoKey(key.to_owned());
        assert_eq!(record::<TokenRecord>(&nothing), Err(no_key("token.json")));
        assert_eq!(record::<OperatorRecord>(&nothing), Err(no_key("operator.json")));
    }

    #[test]
    fn each_name_has_its_own_object_with_a_valid_name() {
        let long = |last: &str| format!("{}.{last}", "n".repeat(MAX_SUBDOMAIN - 2));
        let names = ["a".to_owned(), "by-hash.a".to_owned(), "n".repeat(MAX_ID), long("a"), long("b")]
            .map(|name| node_name(&name));
        let mut objects = std::collections::BTreeSet::new();
        for node in &names {
            let object = object_of(&Member::new(node));
            check_subdomain(object.name()).unwrap();
            assert_eq!(record(&object), Ok(Member::new(node)));
            objects.insert(object.name().to_owned());
        }
        assert_eq!(objects.len(), names.len());
    }

    #[test]
    fn an_object_with_the_record_of_another_node_is_rejected() {
        let mut object = object_of(&Member::new(&node_name("a")));
        write(&mut object, &document(&Member::new(&node_name("b"))));
        assert_eq!(record::<Member>(&object), Err(RecordError::OtherRecord("b".to_owned())));
        let problem = |data: &str| {
            let mut damaged = object.clone();
            damaged.fields_mut().insert("data".to_owned(), json!({ "member.json": data }));
            record::<Member>(&damaged).unwrap_err().to_string()
        };
        assert!(problem(&BASE64_STANDARD.encode("{")).starts_with("'member.json': EOF"));
        assert!(problem(&BASE64_STANDARD.encode([0xff_u8])).starts_with("'member.json': invalid utf-8"));
        assert!(problem("?").starts_with("decode 'member.json': "));
        object.fields_mut().remove("data");
        let missing = record::<Member>(&object).unwrap_err();
        assert_eq!(missing.to_string(), "no key 'member.json'");
    }
}
