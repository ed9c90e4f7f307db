//! Paths and operations of a kind. Pure.

use serde_json::{Map, Value, json};

use super::{Dialect, names, parameters, takes_strategic_patches};
use crate::kind::{Kind, Writable};
use edgesync_object::Scope;

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
/// Media types of patches; the last one for some kinds only.
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
];

/// An operation of a path.
#[derive(Clone, Copy)]
struct Operation {
    /// The HTTP method in lower case.
    method: &'static str,
    /// Prefix of the operation ID.
    name: &'static str,
    /// The verb in `x-kubernetes-action`.
    action: &'static str,
    parameters: &'static [&'static str],
    body: Content,
    answer: Content,
    code: &'static str,
}

/// The content of a request or a response.
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

/// Returns the paths of a kind.
pub(super) fn paths(kind: &Kind, dialect: Dialect) -> Map<String, Value> {
    let resource = &kind.resource;
    let root = root(&resource.group, &resource.version);
    let namespaced = resource.scope == Scope::Namespaced;
    let mut paths = Map::new();
    let mut collection = format!("{root}/{}", resource.plural);
    let mut in_path: &[&str] = &[];
    if namespaced {
        let all = KindPath { kind, dialect, namespaced: false, suffix: "ForAllNamespaces" };
        paths.insert(collection, all.path(&[], &[LIST]));
        collection = format!("{root}/namespaces/{{namespace}}/{}", resource.plural);
        in_path = &["namespace"];
    }
    let kind_path = KindPath { kind, dialect, namespaced, suffix: "" };
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
    let finalize = format!("{object}/finalize");
    paths.insert(collection, kind_path.path(in_path, &writable(LIST, whole)));
    let in_path = &[in_path, &["name"]].concat();
    paths.insert(object, kind_path.path(in_path, &writable(GET, &[REPLACE, PATCH, DELETE])));
    if kind.is_finalized() {
        let kind_path = KindPath { suffix: "Finalize", ..kind_path };
        paths.insert(finalize, kind_path.path(in_path, &[REPLACE]));
    }
    if kind.status_subresource {
        let kind_path = KindPath { suffix: "Status", ..kind_path };
        paths.insert(
            status,
            kind_path.path(in_path, &with(GET, &[REPLACE, PATCH], kind.writable != Writable::Nothing)),
        );
    }
    paths
}

/// Returns the root path of a group and version.
pub(super) fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// A path of a kind.
#[derive(Clone, Copy)]
struct KindPath<'k> {
    kind: &'k Kind,
    dialect: Dialect,
    namespaced: bool,
    /// Suffix of the operation IDs.
    suffix: &'static str,
}

impl KindPath<'_> {
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
