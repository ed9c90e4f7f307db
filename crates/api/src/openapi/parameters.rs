//! Path and query parameters, described once per document. Pure.

use serde_json::{Map, Value, json};

use super::Dialect;

/// A parameter: name, type, description.
type Parameter = (&'static str, &'static str, &'static str);

const IN_PATH: &[Parameter] =
    &[("name", "string", "Name of the object."), ("namespace", "string", "Namespace of the object.")];

const IN_QUERY: &[Parameter] = &[
    ("allowWatchBookmarks", "boolean", "Whether a watch gets bookmarks."),
    ("continue", "string", "The token of the previous page, after which the list continues."),
    ("dryRun", "string", "With 'All' the request is validated and nothing is stored."),
    ("fieldManager", "string", "The client that makes the change, and owns the fields that it sets."),
    ("fieldSelector", "string", "Restricts the list to objects with these fields."),
    (
        "fieldValidation",
        "string",
        "Treatment of unknown and duplicate fields: 'Ignore', 'Warn' or 'Strict' (an error).",
    ),
    ("force", "boolean", "Whether an apply takes over fields of other managers."),
    ("gracePeriodSeconds", "integer", "Seconds before the object is deleted."),
    ("labelSelector", "string", "Restricts the list to objects with these labels."),
    ("limit", "integer", "Maximum number of objects in a response."),
    ("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    ("pretty", "string", "With 'true' the response is indented."),
    (
        "propagationPolicy",
        "string",
        "Treatment of the dependents of the object: 'Orphan', 'Background' or 'Foreground'.",
    ),
    ("resourceVersion", "string", "The version to read, or to watch from."),
    ("resourceVersionMatch", "string", "How resourceVersion is applied: 'Exact' or 'NotOlderThan'."),
    ("sendInitialEvents", "boolean", "Whether a watch begins with the existing objects."),
    ("timeoutSeconds", "integer", "Seconds after which a watch ends."),
    ("watch", "boolean", "Whether to watch for changes."),
];

/// Query parameters of reading an object.
pub(super) const GET: &[&str] = &["pretty", "resourceVersion"];
/// Query parameters of a list or a watch.
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
/// Query parameters of a create or a replace.
pub(super) const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "pretty"];
/// Query parameters of a patch.
pub(super) const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force", "pretty"];
/// Query parameters of a delete.
pub(super) const DELETE: &[&str] =
    &["dryRun", "gracePeriodSeconds", "orphanDependents", "pretty", "propagationPolicy"];
/// Query parameters of deleting a collection.
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

/// Returns all parameters by name.
pub(super) fn definitions(dialect: Dialect) -> Map<String, Value> {
    let path = IN_PATH.iter().map(|parameter| (parameter, "path"));
    let query = IN_QUERY.iter().map(|parameter| (parameter, "query"));
    path.chain(query)
        .map(|(parameter, location)| (parameter.0.to_owned(), value(dialect, *parameter, location)))
        .collect()
}

/// Returns references to the parameters of an operation. Those that clients look for are inlined:
/// kubectl does not follow references of OpenAPI 3.
pub(super) fn references(dialect: Dialect, names: &[&str]) -> Vec<Value> {
    let reference = |name: &&str| {
        let inlined = matches!(*name, "dryRun" | "fieldValidation");
        match IN_QUERY.iter().find(|parameter| inlined && parameter.0 == *name) {
            Some(parameter) => value(dialect, *parameter, "query"),
            None => dialect.parameter(name),
        }
    };
    names.iter().map(reference).collect()
}

fn value(dialect: Dialect, (name, kind, description): Parameter, location: &str) -> Value {
    let mut value = json!({ "name": name, "in": location, "description": description });
    match dialect {
        Dialect::V2 => value["type"] = json!(kind),
        Dialect::V3 => value["schema"] = json!({ "type": kind }),
    }
    if location == "path" {
        value["required"] = json!(true);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_of_an_operation_is_described() {
        let known = definitions(Dialect::V3);
        for name in [GET, LIST, WRITE, PATCH, DELETE, DELETE_COLLECTION].concat() {
            assert!(known.contains_key(name), "{name} is not described");
        }
        assert_eq!(known["name"]["required"], true);
        assert_eq!(known["limit"]["schema"]["type"], "integer");
        assert_eq!(definitions(Dialect::V2)["limit"]["type"], "integer");
    }
}
