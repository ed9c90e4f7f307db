//! The parameters of paths and queries, described once for each document. Pure.

use serde_json::{Map, Value, json};

use super::Dialect;

/// A parameter: its name, its type, and what it does.
struct Parameter {
    name: &'static str,
    kind: &'static str,
    description: &'static str,
}

const fn parameter(name: &'static str, kind: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind, description }
}

/// The parameters that are part of the path.
const IN_PATH: &[Parameter] = &[
    parameter("name", "string", "Name of the object."),
    parameter("namespace", "string", "Namespace of the object."),
];

/// The parameters of queries.
const IN_QUERY: &[Parameter] = &[
    parameter("allowWatchBookmarks", "boolean", "Whether a watch gets bookmarks."),
    parameter("continue", "string", "The token that came with the page before: the list goes on behind it."),
    parameter("dryRun", "string", "With 'All' everything is checked and nothing is stored."),
    parameter("fieldManager", "string", "Who makes the change; owns the fields that are set."),
    parameter("fieldSelector", "string", "Only objects whose fields are like this."),
    parameter(
        "fieldValidation",
        "string",
        "What unknown and duplicate fields are: 'Ignore', 'Warn' or 'Strict' (an error).",
    ),
    parameter("force", "boolean", "Whether an apply takes fields away from their owners."),
    parameter("gracePeriodSeconds", "integer", "Seconds until the object is to be gone."),
    parameter("labelSelector", "string", "Only objects with labels like this."),
    parameter("limit", "integer", "The most objects of an answer."),
    parameter("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    parameter("pretty", "string", "With 'true' the answer is indented."),
    parameter(
        "propagationPolicy",
        "string",
        "What becomes of objects that the object owns: 'Orphan', 'Background' or 'Foreground'.",
    ),
    parameter("resourceVersion", "string", "The version to read, or to watch from."),
    parameter("resourceVersionMatch", "string", "How the version counts: 'Exact' or 'NotOlderThan'."),
    parameter("sendInitialEvents", "boolean", "Whether a watch begins with the objects that there are."),
    parameter("timeoutSeconds", "integer", "Seconds after which a watch ends."),
    parameter("watch", "boolean", "Whether changes are sent as they happen."),
];

/// The names for an operation that reads an object.
pub(super) const GET: &[&str] = &["pretty", "resourceVersion"];
/// The names for an operation that lists or watches.
pub(super) const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "pretty",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
/// The names for an operation that creates or replaces.
pub(super) const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "pretty"];
/// The names for an operation that patches.
pub(super) const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force", "pretty"];
/// The names for an operation that deletes an object.
pub(super) const DELETE: &[&str] =
    &["dryRun", "gracePeriodSeconds", "orphanDependents", "pretty", "propagationPolicy"];
/// The names for an operation that deletes a collection.
pub(super) const DELETE_COLLECTION: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "timeoutSeconds",
];

/// Every parameter by its name.
pub(super) fn definitions(dialect: Dialect) -> Map<String, Value> {
    let path = IN_PATH.iter().map(|parameter| (parameter, "path"));
    let query = IN_QUERY.iter().map(|parameter| (parameter, "query"));
    path.chain(query)
        .map(|(parameter, place)| (parameter.name.to_owned(), value(dialect, parameter, place)))
        .collect()
}

/// References to parameters, for an operation. Those of which clients want to know whether they are there are
/// written out: kubectl does not follow references of OpenAPI 3.
pub(super) fn references(dialect: Dialect, names: &[&str]) -> Vec<Value> {
    let reference = |name: &&str| {
        let asked_for = matches!(*name, "dryRun" | "fieldValidation");
        match IN_QUERY.iter().find(|parameter| asked_for && parameter.name == *name) {
            Some(parameter) => value(dialect, parameter, "query"),
            None => dialect.parameter(name),
        }
    };
    names.iter().map(reference).collect()
}

fn value(dialect: Dialect, parameter: &Parameter, place: &str) -> Value {
    let mut value = json!({ "name": parameter.name, "in": place, "description": parameter.description });
    match dialect {
        Dialect::V2 => value["type"] = json!(parameter.kind),
        Dialect::V3 => value["schema"] = json!({ "type": parameter.kind }),
    }
    if place == "path" {
        value["required"] = json!(true);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_an_operation_is_described() {
        let known = definitions(Dialect::V3);
        for name in [GET, LIST, WRITE, PATCH, DELETE, DELETE_COLLECTION].concat() {
            assert!(known.contains_key(name), "{name} is not described");
        }
        assert_eq!(known["name"]["required"], true);
        assert_eq!(known["limit"]["schema"]["type"], "integer");
        assert_eq!(definitions(Dialect::V2)["limit"]["type"], "integer");
    }
}
