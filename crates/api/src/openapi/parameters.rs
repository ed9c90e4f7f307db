//! The parameters of paths and queries, described once for each document. Pure.

use serde_json::{Map, Value, json};

use super::Dialect;

/// A parameter: its name, its type, and what it does.
type Parameter = (&'static str, &'static str, &'static str);

/// The parameters that are part of the path.
const IN_PATH: &[Parameter] =
    &[("name", "string", "Name of the object."), ("namespace", "string", "Namespace of the object.")];

/// The parameters of queries.
const IN_QUERY: &[Parameter] = &[
    ("allowWatchBookmarks", "boolean", "Whether a watch gets bookmarks."),
    ("continue", "string", "The token that came with the page before: the list goes on behind it."),
    ("dryRun", "string", "With 'All' everything is checked and nothing is stored."),
    ("fieldManager", "string", "Who makes the change; owns the fields that are set."),
    ("fieldSelector", "string", "Only objects whose fields are like this."),
    (
        "fieldValidation",
        "string",
        "What unknown and duplicate fields are: 'Ignore', 'Warn' or 'Strict' (an error).",
    ),
    ("force", "boolean", "Whether an apply takes fields away from their owners."),
    ("gracePeriodSeconds", "integer", "Seconds until the object is to be gone."),
    ("labelSelector", "string", "Only objects with labels like this."),
    ("limit", "integer", "The most objects of an answer."),
    ("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    ("pretty", "string", "With 'true' the answer is indented."),
    (
        "propagationPolicy",
        "string",
        "What becomes of objects that the object owns: 'Orphan', 'Background' or 'Foreground'.",
    ),
    ("resourceVersion", "string", "The version to read, or to watch from."),
    ("resourceVersionMatch", "string", "How the version counts: 'Exact' or 'NotOlderThan'."),
    ("sendInitialEvents", "boolean", "Whether a watch begins with the objects that there are."),
    ("timeoutSeconds", "integer", "Seconds after which a watch ends."),
    ("watch", "boolean", "Whether changes are sent as they happen."),
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
        .map(|(parameter, place)| (parameter.0.to_owned(), value(dialect, *parameter, place)))
        .collect()
}

/// References to parameters, for an operation. Those of which clients want to know whether they are there are
/// written out: kubectl does not follow references of OpenAPI 3.
pub(super) fn references(dialect: Dialect, names: &[&str]) -> Vec<Value> {
    let reference = |name: &&str| {
        let asked_for = matches!(*name, "dryRun" | "fieldValidation");
        match IN_QUERY.iter().find(|parameter| asked_for && parameter.0 == *name) {
            Some(parameter) => value(dialect, *parameter, "query"),
            None => dialect.parameter(name),
        }
    };
    names.iter().map(reference).collect()
}

fn value(dialect: Dialect, (name, kind, description): Parameter, place: &str) -> Value {
    let mut value = json!({ "name": name, "in": place, "description": description });
    match dialect {
        Dialect::V2 => value["type"] = json!(kind),
        Dialect::V3 => value["schema"] = json!({ "type": kind }),
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
