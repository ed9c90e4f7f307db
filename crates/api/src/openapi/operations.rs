//! The paths of a kind and what can be done there. Pure.

use serde_json::{Map, Value, json};

use super::{Dialect, names, parameters, takes_strategic_patches};
use crate::kind::{Kind, Writable};
use edgesync_object::Scope;

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
/// The media types of patches, the last one only for some kinds.
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
];

/// What can be done at a path.
#[derive(Clone, Copy)]
struct Operation {
    /// The HTTP method in lower case.
    method: &'static str,
    /// The start of its name.
    name: &'static str,
    /// The verb, as `x-kubernetes-action` has it.
    action: &'static str,
    parameters: &'static [&'static str],
    body: Content,
    answer: Content,
    code: &'static str,
}

/// What is sent or answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    Object,
    List,
    Patch,
    DeleteOptions,
    Status,
}

const LIST: Operation = Operation {
    method: "get",
    name: "list",
    action: "list",
    parameters: parameters::LIST,
    body: Content::Nothing,
    answer: Content::List,
    code: "200",
};
const CREATE: Operation = Operation {
    method: "post",
    name: "create",
    action: "post",
    parameters: parameters::WRITE,
    body: Content::Object,
    answer: Content::Object,
    code: "201",
};
const DELETE_COLLECTION: Operation = Operation {
    method: "delete",
    name: "deleteCollection",
    action: "deletecollection",
    parameters: parameters::DELETE_COLLECTION,
    body: Content::DeleteOptions,
    answer: Content::Status,
    code: "200",
};
const GET: Operation = Operation {
    method: "get",
    name: "read",
    action: "get",
    parameters: parameters::GET,
    body: Content::Nothing,
    answer: Content::Object,
    code: "200",
};
const REPLACE: Operation = Operation { method: "put", name: "replace", action: "put", code: "200", ..CREATE };
const PATCH: Operation = Operation {
    method: "patch",
    name: "patch",
    action: "patch",
    parameters: parameters::PATCH,
    body: Content::Patch,
    ..REPLACE
};
const DELETE: Operation =
    Operation { name: "delete", action: "delete", parameters: parameters::DELETE, ..DELETE_COLLECTION };

/// The paths of a kind.
pub(super) fn paths(kind: &Kind, dialect: Dialect) -> Map<String, Value> {
    let resource = &kind.resource;
    let root = root(&resource.group, &resource.version);
    let namespaced = resource.scope == Scope::Namespaced;
    let mut paths = Map::new();
    let mut collection = format!("{root}/{}", resource.plural);
    let mut in_path: &[&str] = &[];
    if namespaced {
        let all = Place { kind, dialect, namespaced: false, suffix: "ForAllNamespaces" };
        paths.insert(collection, all.path(&[], &[LIST]));
        collection = format!("{root}/namespaces/{{namespace}}/{}", resource.plural);
        in_path = &["namespace"];
    }
    let place = Place { kind, dialect, namespaced, suffix: "" };
    let with = |read, write: &[Operation], allowed: bool| {
        let mut operations = vec![read];
        operations.extend(write.iter().filter(|_| allowed));
        operations
    };
    let writable = |read, write| with(read, write, kind.writable == Writable::Everything);
    let whole: &[Operation] =
        if kind.deletes_collections() { &[CREATE, DELETE_COLLECTION] } else { &[CREATE] };
    let object = format!("{collection}/{{name}}");
    let status = format!("{object}/status");
    paths.insert(collection, place.path(in_path, &writable(LIST, whole)));
    let in_path = &[in_path, &["name"]].concat();
    paths.insert(object, place.path(in_path, &writable(GET, &[REPLACE, PATCH, DELETE])));
    if kind.status_subresource {
        let place = Place { suffix: "Status", ..place };
        paths.insert(
            status,
            place.path(in_path, &with(GET, &[REPLACE, PATCH], kind.writable != Writable::Nothing)),
        );
    }
    paths
}

/// Where the resources of a group and version are.
pub(super) fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// A path of a kind.
#[derive(Clone, Copy)]
struct Place<'k> {
    kind: &'k Kind,
    dialect: Dialect,
    namespaced: bool,
    /// The end of the names of operations.
    suffix: &'static str,
}

impl Place<'_> {
    fn path(self, in_path: &[&str], operations: &[Operation]) -> Value {
        let mut path: Map<String, Value> = operations
            .iter()
            .map(|operation| (operation.method.to_owned(), self.operation(operation)))
            .collect();
        if !in_path.is_empty() {
            path.insert("parameters".into(), parameters::references(self.dialect, in_path).into());
        }
        Value::Object(path)
    }

    fn operation(self, operation: &Operation) -> Value {
        let resource = &self.kind.resource;
        let mut parameters = parameters::references(self.dialect, operation.parameters);
        let answer = self.schema(operation.answer).unwrap_or_default();
        let mut value = json!({
            "operationId": names::operation(operation.name, self.kind, self.namespaced, self.suffix),
            "x-kubernetes-action": operation.action,
            "x-kubernetes-group-version-kind":
                { "group": resource.group, "version": resource.version, "kind": resource.kind },
        });
        let response = match self.dialect {
            Dialect::V2 => {
                value["produces"] = json!([JSON, YAML]);
                json!({ "description": "OK", "schema": answer })
            }
            Dialect::V3 => json!({ "description": "OK", "content": { JSON: { "schema": answer } } }),
        };
        let code = operation.code;
        value["responses"] = json!({ code: response });
        if let Some(schema) = self.schema(operation.body) {
            let required = operation.body != Content::DeleteOptions;
            let types = self.media_types(operation.body);
            match self.dialect {
                Dialect::V2 => {
                    value["consumes"] = json!(types);
                    let body =
                        json!({ "name": "body", "in": "body", "required": required, "schema": schema });
                    parameters.push(body);
                }
                Dialect::V3 => {
                    let content: Map<String, Value> =
                        types.iter().map(|name| ((*name).to_owned(), json!({ "schema": schema }))).collect();
                    value["requestBody"] = json!({ "content": content, "required": required });
                }
            }
        }
        value["parameters"] = parameters.into();
        value
    }

    fn schema(self, content: Content) -> Option<Value> {
        let name = match content {
            Content::Nothing => return None,
            Content::Object => names::schema(self.kind),
            Content::List => names::list(self.kind),
            Content::Patch => names::meta("Patch"),
            Content::DeleteOptions => names::meta("DeleteOptions"),
            Content::Status => names::meta("Status"),
        };
        Some(self.dialect.schema(&name))
    }

    fn media_types(self, body: Content) -> &'static [&'static str] {
        match body {
            Content::Patch if takes_strategic_patches(self.kind) => &PATCHES,
            Content::Patch => PATCHES.split_last().map_or(&[], |(_, others)| others),
            _ => &[JSON, YAML],
        }
    }
}
