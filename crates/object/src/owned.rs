//! A whole Kubernetes object as a JSON map, with typed accessors and validation worded as in the
//! API conventions.

use std::fmt;
use std::sync::OnceLock;

use super::meta::{MAX_DEPTH, too_deep};
use super::name::{Problem, check_label, check_label_key, check_label_value, check_object_name};
use super::resource::{Resource, Scope, split_api_version};
use super::selector::Labels;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum size of all annotations of an object in bytes, as in Kubernetes.
pub const MAX_ANNOTATIONS: usize = 256 * 1024;
/// Metadata that only the server sets: values from clients are replaced.
pub const SERVER_METADATA: [&str; 7] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];
/// Maximum number of problems listed per object.
const MAX_PROBLEMS: usize = 16;

/// A Kubernetes object. Keys are sorted, so equal objects have equal texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Object(Map<String, Value>);

/// Required fields of an entry of `metadata.ownerReferences`; none of them may be empty.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnerReference {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

/// A problem of one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldProblem {
    /// Path of the field, such as `metadata.name`.
    pub field: String,
    /// Requirement for the field, as a sentence without its name.
    pub message: Problem,
}

/// Problems of an object; at most 16 are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<FieldProblem>);

/// Reason why a text is no object.
#[derive(Debug, thiserror::Error)]
pub enum ParseObjectError {
    /// Not one JSON object.
    #[error("the body must be one JSON object: {0}")]
    Json(#[from] serde_json::Error),
    /// Nested more than [`MAX_DEPTH`] deep.
    #[error("the body must not nest deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

impl Object {
    /// Parses an object from JSON text.
    ///
    /// # Errors
    /// The text is not one JSON object, or it nests too deep.
    pub fn parse(json: &str) -> Result<Self, ParseObjectError> {
        let object = serde_json::from_str(json)?;
        if too_deep(json) { Err(ParseObjectError::TooDeep) } else { Ok(object) }
    }

    /// Returns the object as compact JSON text with sorted keys.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Cannot fail: the keys are strings, the values are JSON, and the text goes to memory.
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// Returns the fields of the object.
    #[must_use]
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Returns the fields of the object for changes.
    pub fn fields_mut(&mut self) -> &mut Map<String, Value> {
        &mut self.0
    }

    /// Returns the fields of the object, owned.
    #[must_use]
    pub fn into_fields(self) -> Map<String, Value> {
        self.0
    }

    /// Returns `apiVersion`, empty if absent.
    #[must_use]
    pub fn api_version(&self) -> &str {
        text_field(&self.0, "apiVersion")
    }

    /// Returns `kind`, empty if absent.
    #[must_use]
    pub fn kind(&self) -> &str {
        text_field(&self.0, "kind")
    }

    /// Returns `metadata`, if it is a map.
    #[must_use]
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.0.get("metadata").and_then(Value::as_object)
    }

    /// Sets a field of the metadata. Creates the metadata if absent or no map.
    pub fn set_metadata(&mut self, field: &str, value: impl Into<Value>) {
        let value = value.into();
        if let Some(Value::Object(metadata)) = self.0.get_mut("metadata") {
            metadata.insert(field.to_owned(), value);
        } else {
            let metadata = [(field.to_owned(), value)].into_iter().collect();
            self.0.insert("metadata".to_owned(), Value::Object(metadata));
        }
    }

    /// Removes a field of the metadata; returns its value.
    pub fn remove_metadata(&mut self, field: &str) -> Option<Value> {
        match self.0.get_mut("metadata") {
            Some(Value::Object(metadata)) => metadata.remove(field),
            _ => None,
        }
    }

    /// Sets an annotation, or removes it; others stay. Returns whether it changed.
    pub fn set_annotation(&mut self, key: &str, value: Option<&str>) -> bool {
        let mut annotations = match self.remove_metadata("annotations") {
            Some(Value::Object(annotations)) => annotations,
            _ => Map::new(),
        };
        let value = value.map(Value::from);
        let before = match value.clone() {
            Some(value) => annotations.insert(key.to_owned(), value),
            None => annotations.remove(key),
        };
        if !annotations.is_empty() {
            self.set_metadata("annotations", annotations);
        }
        before != value
    }

    fn meta_text(&self, field: &str) -> &str {
        self.metadata().map_or("", |metadata| text_field(metadata, field))
    }

    fn meta_map(&self, field: &str) -> Labels {
        let map = self.metadata().and_then(|metadata| metadata.get(field)).and_then(Value::as_object);
        let pairs = map.into_iter().flatten();
        pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    }

    /// Returns `metadata.name`, empty if absent.
    #[must_use]
    pub fn name(&self) -> &str {
        self.meta_text("name")
    }

    /// Returns `metadata.namespace`, empty if absent.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.meta_text("namespace")
    }

    /// Returns `metadata.uid`, empty if absent.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.meta_text("uid")
    }

    /// Returns `metadata.resourceVersion`, empty if absent.
    #[must_use]
    pub fn resource_version(&self) -> &str {
        self.meta_text("resourceVersion")
    }

    /// Returns `metadata.creationTimestamp`, empty if absent.
    #[must_use]
    pub fn creation_timestamp(&self) -> &str {
        self.meta_text("creationTimestamp")
    }

    /// Returns `metadata.deletionTimestamp`, if the object is being deleted.
    #[must_use]
    pub fn deletion_timestamp(&self) -> Option<&str> {
        Some(self.meta_text("deletionTimestamp")).filter(|time| !time.is_empty())
    }

    /// Returns `metadata.generation`, 0 if absent.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.metadata().and_then(|metadata| metadata.get("generation")).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Returns `metadata.labels`, without values that are no strings.
    #[must_use]
    pub fn labels(&self) -> Labels {
        self.meta_map("labels")
    }

    /// Returns `metadata.annotations`, without values that are no strings.
    #[must_use]
    pub fn annotations(&self) -> Labels {
        self.meta_map("annotations")
    }

    /// Returns whether finalizers hold the object, so that a delete only marks it. A Namespace also
    /// has some in its spec.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let some = |list: Option<&Value>| list.and_then(Value::as_array).is_some_and(|list| !list.is_empty());
        let namespace = self.kind() == "Namespace" && self.api_version() == "v1";
        some(self.metadata().and_then(|metadata| metadata.get("finalizers")))
            || (namespace && some(self.0.get("spec").and_then(|spec| spec.get("finalizers"))))
    }

    /// Removes `metadata.managedFields`: bookkeeping of writers, often half of an object.
    pub fn strip_managed_fields(&mut self) {
        self.remove_metadata("managedFields");
    }

    /// Checks the common fields: API version and kind of `resource`, names, labels, annotations,
    /// finalizers and owners.
    ///
    /// # Errors
    /// All problems, up to 16.
    pub fn validate(&self, resource: &Resource) -> Result<(), Problems> {
        let mut problems = Problems::default();
        problems.check("apiVersion", self.check_api_version(resource));
        let kind = self.0.get("kind").and_then(Value::as_str);
        problems
            .check("kind", must_be(kind == Some(&resource.kind), || format!("must be '{}'", resource.kind)));
        match self.0.get("metadata") {
            Some(Value::Object(metadata)) => check_metadata(metadata, resource, &mut problems),
            _ => problems.add("metadata", "must be an object".to_owned()),
        }
        if problems.0.is_empty() { Ok(()) } else { Err(problems) }
    }

    fn check_api_version(&self, resource: &Resource) -> Result<(), Problem> {
        let (group, version) = split_api_version(self.api_version());
        let fits = group == resource.group && !version.is_empty() && check_label(version).is_ok();
        must_be(fits, || format!("must be '{}'", resource.api_version()))
    }
}

/// Returns a field that is a string; empty if it is absent or of another type.
#[must_use]
pub fn text_field<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Returns a field that is an object; empty if it is absent or of another type.
#[must_use]
pub fn map_field<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a Map<String, Value> {
    static EMPTY: OnceLock<Map<String, Value>> = OnceLock::new();
    fields.get(name).and_then(Value::as_object).unwrap_or_else(|| EMPTY.get_or_init(Map::new))
}

fn must_be(fits: bool, message: impl FnOnce() -> Problem) -> Result<(), Problem> {
    if fits { Ok(()) } else { Err(message()) }
}

fn check_metadata(metadata: &Map<String, Value>, resource: &Resource, problems: &mut Problems) {
    problems.check("metadata.name", check_object_name(&resource.group, text_field(metadata, "name")));
    let namespace = text_field(metadata, "namespace");
    let namespace_check = match resource.scope {
        Scope::Namespaced => check_label(namespace),
        Scope::Cluster => must_be(namespace.is_empty(), || {
            format!("must be absent: objects of kind '{}' have no namespace", resource.kind)
        }),
    };
    problems.check("metadata.namespace", namespace_check);
    check_pairs(metadata, "labels", problems, check_label_value);
    let mut size = 0;
    check_pairs(metadata, "annotations", problems, |value| {
        size += value.len();
        Ok(())
    });
    let names = metadata.get("annotations").and_then(Value::as_object).into_iter().flatten();
    size += names.map(|(name, _)| name.len()).sum::<usize>();
    let fits = size <= MAX_ANNOTATIONS;
    let too_large = || format!("must be less than or equal to {MAX_ANNOTATIONS} bytes, are {size}");
    problems.check("metadata.annotations", must_be(fits, too_large));
    check_finalizers(metadata, problems);
    check_owners(metadata, problems);
}

/// Checks a map of qualified names to strings.
fn check_pairs(
    metadata: &Map<String, Value>,
    field: &str,
    problems: &mut Problems,
    mut check_value: impl FnMut(&str) -> Result<(), Problem>,
) {
    let path = format!("metadata.{field}");
    match metadata.get(field) {
        None | Some(Value::Null) => {}
        Some(Value::Object(pairs)) => {
            for (key, value) in pairs {
                problems.check(&path, check_label_key(key));
                match value {
                    Value::String(value) => problems.check(&format!("{path}[{key}]"), check_value(value)),
                    _ => problems.add(&format!("{path}[{key}]"), "must be a string".to_owned()),
                }
            }
        }
        Some(_) => problems.add(&path, "must be an object with strings as values".to_owned()),
    }
}

fn check_finalizers(metadata: &Map<String, Value>, problems: &mut Problems) {
    match metadata.get("finalizers") {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => {
            for (number, finalizer) in list.iter().enumerate() {
                let field = format!("metadata.finalizers[{number}]");
                problems.check(&field, check_label_key(finalizer.as_str().unwrap_or_default()));
            }
        }
        Some(_) => problems.add("metadata.finalizers", "must be a list of strings".to_owned()),
    }
}

fn check_owners(metadata: &Map<String, Value>, problems: &mut Problems) {
    match metadata.get("ownerReferences") {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => {
            for (number, owner) in list.iter().enumerate() {
                let owner = OwnerReference::deserialize(owner).ok();
                let complete = owner.is_some_and(|owner| {
                    let fields = [owner.api_version, owner.kind, owner.name, owner.uid];
                    fields.iter().all(|field| !field.is_empty())
                });
                let message = || "must have `apiVersion`, `kind`, `name` and `uid`".to_owned();
                problems.check(&format!("metadata.ownerReferences[{number}]"), must_be(complete, message));
            }
        }
        Some(_) => problems.add("metadata.ownerReferences", "must be a list of objects".to_owned()),
    }
}

impl Problems {
    /// Creates a list with one problem.
    #[must_use]
    pub fn one(field: &str, message: impl Into<Problem>) -> Self {
        Self(vec![FieldProblem { field: field.to_owned(), message: message.into() }])
    }

    fn add(&mut self, field: &str, message: Problem) {
        if self.0.len() < MAX_PROBLEMS {
            self.0.push(FieldProblem { field: shorten(field), message });
        }
    }

    fn check(&mut self, field: &str, result: Result<(), Problem>) {
        if let Err(message) = result {
            self.add(field, message);
        }
    }
}

/// Truncates a field path to 128 characters: it contains keys chosen by clients.
fn shorten(field: &str) -> String {
    match field.char_indices().nth(128) {
        Some((end, _)) => format!("{}…", field.get(..end).unwrap_or_default()),
        None => field.to_owned(),
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", problem.field, problem.message)?;
        }
        Ok(())
    }
}

impl From<Map<String, Value>> for Object {
    fn from(fields: Map<String, Value>) -> Self {
        Self(fields)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use serde_json::json;

    fn config_map() -> Resource {
        kinds::by_word("cm").unwrap().resource()
    }

    fn object(value: Value) -> Object {
        serde_json::from_value(value).unwrap()
    }

    fn problems(metadata: &Value) -> String {
        let object = object(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}));
        object.validate(&config_map()).map_or_else(|problems| problems.to_string(), |()| String::new())
    }

    #[test]
    fn metadata_is_typed() {
        let object = object(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 3,
            "labels": {"x": "y", "wrong": 1}, "annotations": {"k": "v"}, "deletionTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pu"}, {"kind": "Pod"}]}}));
        assert_eq!((object.name(), object.namespace(), object.uid()), ("a", "n", "u"));
        assert_eq!((object.resource_version(), object.generation()), ("7", 3));
        assert_eq!(object.labels(), Labels::from([("x".into(), "y".into())]));
        assert_eq!(object.annotations().len(), 1);
        assert_eq!(object.deletion_timestamp(), Some("2026-01-01T00:00:00Z"));
    }

    #[test]
    fn absent_and_mistyped_fields_are_empty() {
        for odd in [
            json!({}),
            json!({"metadata": 7}),
            json!({"metadata": {"name": 1, "labels": [], "generation": -1}}),
        ] {
            let object = object(odd);
            assert_eq!((object.name(), object.generation(), object.labels().len()), ("", 0, 0));
            assert_eq!(object.deletion_timestamp(), None);
        }
    }

    #[test]
    fn metadata_is_created_when_set() {
        let mut object = object(json!({"metadata": 7}));
        object.set_metadata("name", "a");
        object.set_metadata("managedFields", json!([1]));
        object.strip_managed_fields();
        assert_eq!(object.to_json(), r#"{"metadata":{"name":"a"}}"#);
    }

    #[test]
    fn valid_object_is_accepted() {
        assert_eq!(
            problems(&json!({"name": "a.b", "namespace": "n", "labels": {"a/b": ""}, "annotations": null,
                "finalizers": ["x.io/y"]})),
            ""
        );
    }

    #[test]
    fn problems_name_field_and_requirement() {
        for (metadata, expected) in [
            (json!({"name": "../x", "namespace": "n"}), "metadata.name: must be a DNS-1123 subdomain"),
            (json!({"name": "a"}), "metadata.namespace: must be a DNS-1123 label"),
            (
                json!({"name": "a", "namespace": "n", "labels": {"a": 1}}),
                "metadata.labels[a]: must be a string",
            ),
            (json!({"name": "a", "namespace": "n", "labels": {"-": ""}}), "metadata.labels: must be a name"),
            (json!({"name": "a", "namespace": "n", "labels": []}), "metadata.labels: must be an object"),
            (json!({"name": "a", "namespace": "n", "finalizers": [1]}), "metadata.finalizers[0]: must"),
            (
                json!({"name": "a", "namespace": "n", "ownerReferences": [{}]}),
                "metadata.ownerReferences[0]: must",
            ),
            (json!([]), "metadata: must be an object"),
        ] {
            let found = problems(&metadata);
            assert!(found.starts_with(expected), "{expected}: {found}");
        }
        let wrong_kind = object(
            json!({"apiVersion": "apps/v1", "kind": "X", "metadata": {"name": "a", "namespace": "n"}}),
        );
        let text = wrong_kind.validate(&config_map()).unwrap_err().to_string();
        assert_eq!(text, "apiVersion: must be 'v1'; kind: must be 'ConfigMap'");
    }

    #[test]
    fn cluster_scoped_object_must_not_have_a_namespace() {
        let node = kinds::by_word("nodes").unwrap().resource();
        let object =
            object(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "namespace": "n"}}));
        assert!(
            object.validate(&node).unwrap_err().to_string().starts_with("metadata.namespace: must be absent")
        );
    }

    #[test]
    fn problems_are_bounded_in_number_and_length() {
        let labels: Map<String, Value> =
            (0..100).map(|n| (format!("{n}{}", "ä".repeat(500)), json!(n))).collect();
        let text = problems(&json!({"name": "a", "namespace": "n", "labels": labels}));
        assert!(text.len() < 16 * 1024, "{}", text.len());
        let big = "x".repeat(MAX_ANNOTATIONS + 1);
        assert!(problems(&json!({"name": "a", "namespace": "n", "annotations": {"a": big}})).len() < 200);
        // Names count too.
        let full = "x".repeat(MAX_ANNOTATIONS - 1);
        assert!(problems(&json!({"name": "a", "namespace": "n", "annotations": {"a": full}})).is_empty());
        assert!(!problems(&json!({"name": "a", "namespace": "n", "annotations": {"ab": full}})).is_empty());
    }

    #[test]
    fn only_one_shallow_json_object_is_parsed() {
        assert!(matches!(Object::parse("[]"), Err(ParseObjectError::Json(_))));
        assert!(matches!(Object::parse("{} {}"), Err(ParseObjectError::Json(_))));
        let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(110), "]".repeat(110));
        assert!(matches!(Object::parse(&deep), Err(ParseObjectError::TooDeep)));
    }

    #[test]
    fn annotation_is_set_and_removed_beside_others() {
        let mut object = Object::from(serde_json::Map::new());
        assert!(object.set_annotation("a", Some("1")) && !object.set_annotation("a", Some("1")));
        object.set_metadata("annotations", json!({"a": "1", "number": 7}));
        assert!(object.set_annotation("a", Some("2")) && object.set_annotation("a", None));
        assert!(!object.set_annotation("a", None));
        assert_eq!(object.metadata().unwrap()["annotations"], json!({"number": 7}));
        assert!(object.set_annotation("number", None));
        assert!(!object.metadata().unwrap().contains_key("annotations"));
    }
}
