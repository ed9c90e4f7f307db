//! Converts objects between the served version and the storage version. Pure.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::kind::Kind;
use super::rules;
use edgesync_object::status::{Cause, Result};
use edgesync_object::{Head, Object, Resource, Scope, Status};
use edgesync_schema as schema;

/// Maximum bytes of defaults added to an object that is read, beyond the length of its text: a
/// page has many objects.
const MAX_SHOWN_DEFAULTS: usize = 64 * 1024;

/// Returns whether the two versions differ in more than `apiVersion`.
fn is_event_view(kind: &Kind) -> bool {
    kind.resource.kind == "Event" && kind.resource.group != kind.stored_as.group
}

/// Converts a stored object to the version of the path.
pub(super) fn served(kind: &Kind, mut object: Object) -> Object {
    if is_event_view(kind) {
        rules::event_to_core(&mut object);
    }
    if object.api_version() != kind.resource.api_version() {
        object.fields_mut().insert("apiVersion".to_owned(), json!(kind.resource.api_version()));
    }
    object
}

/// Converts a custom object, possibly stored under an older schema, to the current one: adds
/// defaults up to `defaults` bytes and drops unknown fields. Other objects stay unchanged.
pub(super) fn to_current_schema(kind: &Kind, mut object: Object, defaults: usize) -> Object {
    if let Some(schema) = kind.schema.as_deref().filter(|_| kind.custom) {
        schema::prune(schema, object.fields_mut());
        schema::apply_defaults_within(schema, object.fields_mut(), defaults);
    }
    object
}

/// Converts an object to its storage version.
pub(super) fn stored(kind: &Kind, mut object: Object) -> Object {
    if is_event_view(kind) {
        rules::event_to_storage(&mut object);
    }
    if kind.resource != kind.stored_as {
        object.fields_mut().insert("apiVersion".to_owned(), json!(kind.stored_as.api_version()));
    }
    object
}

/// Converts stored texts to the version of the path.
#[derive(Clone, Debug)]
pub(super) struct Texts {
    kind: Arc<Kind>,
    api_version: String,
    /// Prefix of a text that needs no conversion, if its fields are sorted.
    prefix: String,
}

impl Texts {
    pub(super) fn new(kind: &Arc<Kind>) -> Self {
        let api_version = kind.resource.api_version();
        let prefix = format!("{{\"apiVersion\":\"{api_version}\",");
        Self { kind: Arc::clone(kind), api_version, prefix }
    }

    /// Converts the text of an object. A text in the right version is not parsed, unless the kind
    /// is custom: those get the defaults of the current schema and lose unknown fields.
    ///
    /// # Errors
    /// 500 if the text is not JSON.
    pub(super) fn served(&self, json: String) -> Result<String> {
        if self.kind.custom {
            let object: Object = serde_json::from_str(&json).map_err(Status::internal)?;
            let defaults = json.len().saturating_add(MAX_SHOWN_DEFAULTS);
            return Ok(to_current_schema(&self.kind, served(&self.kind, object), defaults).to_json());
        }
        if !is_event_view(&self.kind) {
            if json.starts_with(&self.prefix) {
                return Ok(json);
            }
            let head: Head<'_> = serde_json::from_str(&json).map_err(Status::internal)?;
            if head.api_version == self.api_version {
                return Ok(json);
            }
        }
        let object: Object = serde_json::from_str(&json).map_err(Status::internal)?;
        Ok(served(&self.kind, object).to_json())
    }
}

/// Checks that an object matches the path that it was sent to, and fills in what the path states
/// and the object omits.
pub(super) fn check_against_path(
    resource: &Resource,
    namespace: &str,
    name: Option<&str>,
    body: Value,
) -> Result<Object> {
    let Value::Object(mut object) = body else {
        let message = if body.is_null() {
            "the body is empty: an object is needed"
        } else {
            "the body is not an object"
        };
        return Err(Status::bad_request(message));
    };
    let api_version = resource.api_version();
    fill_in(&mut object, "apiVersion", &api_version).map_err(|sent| {
        Status::bad_request(format!(
            "the API version in the data ({sent}) does not match the expected API version ({api_version})"
        ))
    })?;
    fill_in(&mut object, "kind", &resource.kind).map_err(|sent| {
        Status::bad_request(format!(
            "the kind in the data ({sent}) does not match the expected kind ({})",
            resource.kind
        ))
    })?;
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(metadata) = metadata else {
        let causes = vec![Cause::wrong_type("metadata", "must be an object")];
        return Err(Status::invalid(&resource.group, &resource.kind, name.unwrap_or_default(), causes));
    };
    let matches = match resource.scope {
        Scope::Namespaced => fill_in(metadata, "namespace", namespace).is_ok(),
        Scope::Cluster => {
            // The field has no meaning here, and tools often set it.
            metadata.remove("namespace");
            true
        }
    };
    if !matches {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(message));
    }
    if let Some(name) = name {
        fill_in(metadata, "name", name).map_err(|sent| {
            Status::bad_request(format!(
                "the name of the object ({sent}) does not match the name on the URL ({name})"
            ))
        })?;
    }
    Ok(Object::from(object))
}

/// Sets a missing or empty field; returns a different value as an error.
fn fill_in(object: &mut Map<String, Value>, field: &str, value: &str) -> Result<(), String> {
    match object.get(field) {
        Some(Value::String(sent)) if sent == value => Ok(()),
        None | Some(Value::Null) => {
            object.insert(field.to_owned(), json!(value));
            Ok(())
        }
        Some(Value::String(sent)) if sent.is_empty() => {
            object.insert(field.to_owned(), json!(value));
            Ok(())
        }
        Some(Value::String(sent)) => Err(sent.chars().take(64).collect()),
        Some(_) => Err("not a string".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployments() -> Resource {
        Resource {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            plural: "deployments".into(),
            scope: Scope::Namespaced,
        }
    }

    #[test]
    fn missing_fields_are_filled_in_from_the_path() {
        let object = check_against_path(&deployments(), "ns", Some("d"), json!({"spec": 1})).unwrap();
        let expected = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "ns", "name": "d"}, "spec": 1
        });
        assert_eq!(Value::Object(object.into_fields()), expected);
        let nodes = Resource { scope: Scope::Cluster, ..deployments() };
        let object =
            check_against_path(&nodes, "", None, json!({"metadata": {"namespace": "", "name": "n"}}))
                .unwrap();
        assert_eq!(object.metadata(), json!({"name": "n"}).as_object());
    }

    #[test]
    fn object_of_another_path_is_refused() {
        let code = |body: Value| check_against_path(&deployments(), "ns", Some("d"), body).unwrap_err().code;
        assert_eq!(code(json!({"apiVersion": "v1"})), 400);
        assert_eq!(code(json!({"kind": "Pod"})), 400);
        assert_eq!(code(json!({"kind": 7})), 400);
        assert_eq!(code(json!({"metadata": {"namespace": "other"}})), 400);
        assert_eq!(code(json!({"metadata": {"name": "other"}})), 400);
        assert_eq!(code(json!({"metadata": []})), 422);
        assert_eq!(code(json!([])), 400);
        assert_eq!(code(Value::Null), 400);
        let cluster = Resource { scope: Scope::Cluster, ..deployments() };
        let object = check_against_path(&cluster, "", None, json!({"metadata": {"namespace": "x"}})).unwrap();
        assert_eq!(object.metadata(), json!({}).as_object());
    }

    /// Texts of a custom kind with this schema.
    fn custom(schema: &Value) -> Texts {
        let schema = Some(Arc::new(schema::read(schema, "schema").unwrap()));
        Texts::new(&Arc::new(Kind { schema, custom: true, ..Kind::without_schema(Arc::new(deployments())) }))
    }

    #[test]
    fn custom_object_is_read_by_the_current_schema() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer"}, "color": {"type": "string", "default": "blue"}}}}});
        let stored = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"shape":"round","size":1}}"#;
        let shown = custom(&schema).served(stored.to_owned()).unwrap();
        assert_eq!(shown, stored.replace(r#""shape":"round""#, r#""color":"blue""#));
    }

    #[test]
    fn defaults_cannot_multiply_the_size_of_an_object() {
        let text = json!({"type": "string", "default": "x".repeat(10_000)});
        let item = json!({"type": "object", "properties": {"text": text}});
        let schema = json!({"type": "object", "properties": {"spec": {"type": "array", "items": item}}});
        let texts = custom(&schema);
        let shown = |items: usize| {
            let stored =
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": vec![json!({}); items]});
            texts.served(stored.to_string()).unwrap().len()
        };
        assert!(shown(5) > 50_000, "{}", shown(5));
        assert!(shown(1000) < 100_000, "{}", shown(1000));
    }

    #[test]
    fn other_version_differs_in_api_version_only() {
        let mut kind = Kind::without_schema(Arc::new(Resource { version: "v2".into(), ..deployments() }));
        kind.stored_as = Arc::new(deployments());
        let object: Object = serde_json::from_str(r#"{"apiVersion":"apps/v1","kind":"Deployment"}"#).unwrap();
        let shown = served(&kind, object.clone());
        assert_eq!(shown.api_version(), "apps/v2");
        assert_eq!(stored(&kind, shown), object);
        let texts = Texts::new(&Arc::new(kind));
        let expected = r#"{"apiVersion":"apps/v2","kind":"Deployment"}"#;
        assert_eq!(texts.served(object.to_json()).unwrap(), expected);
        assert_eq!(texts.served(expected.to_owned()).unwrap(), expected);
        let unsorted = r#"{"kind":"Deployment","apiVersion":"apps/v2"}"#;
        assert_eq!(texts.served(unsorted.to_owned()).unwrap(), unsorted);
    }
}
