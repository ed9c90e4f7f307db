//! Validation and defaulting of CustomResourceDefinitions. Pure.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::read::is_established;
use super::{CLEANUP, list, map, schema, text};
use edgesync_object::Object;
use edgesync_object::name::{Problem, check_label, check_subdomain};
use edgesync_object::status::{Cause, MAX_CAUSES};

/// Maximum number of selectable fields of a version.
const MAX_SELECTABLE: usize = 8;
/// Annotation required for kinds in the groups of Kubernetes.
const APPROVED: &str = "api-approved.kubernetes.io";

/// Sets the names derived from others, and the finalizer that keeps the definition until its
/// objects are deleted.
pub(super) fn complete(object: &mut Object) {
    if let Some(Value::Object(spec)) = object.fields_mut().get_mut("spec") {
        if let Some(Value::Object(names)) = spec.get_mut("names") {
            let kind = text(names, "kind").to_owned();
            default(names, "singular", kind.to_ascii_lowercase());
            default(names, "listKind", format!("{kind}List"));
        }
        spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    }
    if object.deletion_timestamp().is_none() {
        let metadata = object.metadata();
        let given = metadata.and_then(|metadata| metadata.get("finalizers")).and_then(Value::as_array);
        let mut finalizers = given.cloned().unwrap_or_default();
        if !finalizers.iter().any(|finalizer| finalizer == CLEANUP) {
            finalizers.push(CLEANUP.into());
            object.set_metadata("finalizers", finalizers);
        }
    }
}

fn default(fields: &mut Map<String, Value>, name: &str, value: String) {
    if text(fields, name).is_empty() {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Returns all problems of a definition beyond the schema of its kind, and the rules of its schemas
/// that are not evaluated here.
pub(super) fn check(old: Option<&Object>, object: &Object) -> (Vec<Cause>, Vec<String>) {
    let spec = map(object.fields(), "spec");
    let mut causes = Vec::new();
    check_group(object, spec, &mut causes);
    check_names(object, spec, &mut causes);
    let before = old.map(|old| map(old.fields(), "spec"));
    let mut problems = check_versions(before, spec, &mut causes);
    if let Some(before) = before {
        // Existing problems may stay: they may have been accepted before rules were validated.
        let before = rule_problems(before).causes;
        problems.causes.retain(|cause| !before.contains(cause));
    }
    let of_rules = problems.causes.into_iter().chain(problems.costs);
    causes.extend(of_rules.take(MAX_CAUSES.saturating_sub(causes.len())));
    let strategy = text(map(spec, "conversion"), "strategy");
    if !matches!(strategy, "" | "None") {
        let must = "must be 'None': conversion webhooks are not supported";
        causes.push(Cause::invalid("spec.conversion.strategy", strategy, must));
    }
    if spec.get("preserveUnknownFields").and_then(Value::as_bool) == Some(true) {
        let must = "must be false: use `x-kubernetes-preserve-unknown-fields` in the schema";
        causes.push(Cause::invalid("spec.preserveUnknownFields", "true", must));
    }
    if let Some(old) = old {
        check_unchanged(old, object, &mut causes);
    }
    (causes, problems.lacking)
}

/// Returns the problems with the rules of all versions that have a schema.
fn rule_problems(spec: &Map<String, Value>) -> schema::RuleProblems {
    let mut all = schema::RuleProblems::default();
    for (number, version) in list(spec, "versions").enumerate() {
        let at = format!("spec.versions[{number}].schema.openAPIV3Schema");
        let given = map(version, "schema").get("openAPIV3Schema");
        if let Some(Ok(read)) = given.map(|given| schema::read(given, &at)) {
            all.add(problems_of(&read, &at));
        }
    }
    all
}

/// Returns the problems with the rules of a schema, and with defaults that violate them.
fn problems_of(read: &schema::Schema, at: &str) -> schema::RuleProblems {
    let mut problems = schema::rule_problems(read, at);
    problems.causes.extend(schema::check_defaults(read, at));
    problems
}

fn named(causes: &mut Vec<Cause>, field: &str, value: &str, check: impl Fn(&str) -> Result<(), Problem>) {
    if value.is_empty() {
        causes.push(Cause::required(field, "must not be empty"));
    } else if let Err(problem) = check(value) {
        causes.push(Cause::invalid(field, value, &problem));
    }
}

/// Validates a DNS-1035 label: one that starts with a letter.
fn check_word(value: &str) -> Result<(), Problem> {
    check_label(value)?;
    let letter = value.starts_with(|c: char| c.is_ascii_lowercase());
    if letter { Ok(()) } else { Err("must start with a lower-case letter".to_owned()) }
}

fn check_kind(value: &str) -> Result<(), Problem> {
    check_word(&value.to_ascii_lowercase())
}

fn check_group(object: &Object, spec: &Map<String, Value>, causes: &mut Vec<Cause>) {
    let group = text(spec, "group");
    named(causes, "spec.group", group, |group| {
        check_subdomain(group)?;
        let dotted = group.contains('.');
        if dotted { Ok(()) } else { Err("must be a domain with at least one dot".to_owned()) }
    });
    let within =
        |domain: &str| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    if (within("k8s.io") || within("kubernetes.io"))
        && object.annotations().get(APPROVED).is_none_or(String::is_empty)
    {
        let message = "protected groups must have this annotation with the URL of the approval";
        causes.push(Cause::required(&format!("metadata.annotations[{APPROVED}]"), message));
    }
    let scope = text(spec, "scope");
    if !matches!(scope, "Namespaced" | "Cluster") {
        causes.push(Cause::invalid("spec.scope", scope, "must be 'Namespaced' or 'Cluster'"));
    }
}

fn check_names(object: &Object, spec: &Map<String, Value>, causes: &mut Vec<Cause>) {
    let names = map(spec, "names");
    let (plural, kind) = (text(names, "plural"), text(names, "kind"));
    named(causes, "spec.names.plural", plural, check_word);
    named(causes, "spec.names.singular", text(names, "singular"), check_word);
    named(causes, "spec.names.kind", kind, check_kind);
    named(causes, "spec.names.listKind", text(names, "listKind"), check_kind);
    if !kind.is_empty() && kind == text(names, "listKind") {
        causes.push(Cause::invalid("spec.names.listKind", kind, "must differ from `kind`"));
    }
    for field in ["shortNames", "categories"] {
        let words = names.get(field).and_then(Value::as_array);
        for (number, word) in words.into_iter().flatten().enumerate() {
            let path = format!("spec.names.{field}[{number}]");
            named(causes, &path, word.as_str().unwrap_or_default(), check_word);
        }
    }
    let expected = format!("{plural}.{}", text(spec, "group"));
    if object.name() != expected {
        let must = format!("must be '{expected}': `spec.names.plural`, a dot, and `spec.group`");
        causes.push(Cause::invalid("metadata.name", object.name(), &must));
    }
}

/// Validates the versions. Returns the problems with their rules. The costs of a schema that stays
/// the same are no problem: it may have been accepted before costs were limited.
fn check_versions(
    before: Option<&Map<String, Value>>,
    spec: &Map<String, Value>,
    causes: &mut Vec<Cause>,
) -> schema::RuleProblems {
    let mut rules = schema::RuleProblems::default();
    let mut seen = HashSet::new();
    let mut stored = 0;
    for (number, version) in list(spec, "versions").enumerate() {
        let at = format!("spec.versions[{number}]");
        let name = text(version, "name");
        named(causes, &format!("{at}.name"), name, check_word);
        if !name.is_empty() && !seen.insert(name) {
            causes.push(Cause::invalid(&format!("{at}.name"), name, "must be unique"));
        }
        stored += u32::from(version.get("storage").and_then(Value::as_bool).unwrap_or_default());
        let at_schema = format!("{at}.schema.openAPIV3Schema");
        match map(version, "schema").get("openAPIV3Schema") {
            None | Some(Value::Null) => {
                causes.push(Cause::required(&at_schema, "every version must have a schema"));
            }
            Some(given) => match schema::read(given, &at_schema) {
                Ok(read) => {
                    let mut problems = problems_of(&read, &at_schema);
                    if before.is_some_and(|before| schema_of(before, name) == Some(given)) {
                        problems.costs.clear();
                    }
                    rules.add(problems);
                }
                Err(wrong) => causes.extend(wrong),
            },
        }
        check_columns(&at, version, causes);
        check_selectable(&at, version, causes);
    }
    if stored != 1 {
        let shown = format!("{stored} versions with `storage`");
        causes.push(Cause::invalid(
            "spec.versions",
            &shown,
            "must have exactly one version with `storage: true`",
        ));
    }
    rules
}

/// Returns the schema of the version with this name.
fn schema_of<'a>(spec: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let version = list(spec, "versions").find(|version| text(version, "name") == name)?;
    map(version, "schema").get("openAPIV3Schema")
}

fn check_columns(at: &str, version: &Map<String, Value>, causes: &mut Vec<Cause>) {
    for (number, column) in list(version, "additionalPrinterColumns").enumerate() {
        let at = format!("{at}.additionalPrinterColumns[{number}]");
        if text(column, "name").is_empty() {
            causes.push(Cause::required(&format!("{at}.name"), "must not be empty"));
        }
        let kind = text(column, "type");
        if !["integer", "number", "string", "boolean", "date"].contains(&kind) {
            let must = "must be 'integer', 'number', 'string', 'boolean' or 'date'";
            causes.push(Cause::invalid(&format!("{at}.type"), kind, must));
        }
        let path = text(column, "jsonPath");
        if !path.starts_with(['.', '[', '{']) {
            causes.push(Cause::invalid(
                &format!("{at}.jsonPath"),
                path,
                "must be a JSON path such as '.spec.x'",
            ));
        }
    }
}

fn check_selectable(at: &str, version: &Map<String, Value>, causes: &mut Vec<Cause>) {
    let mut seen = HashSet::new();
    for (number, field) in list(version, "selectableFields").enumerate() {
        let at = format!("{at}.selectableFields[{number}].jsonPath");
        let path = text(field, "jsonPath");
        let plain =
            |step: &str| !step.is_empty() && step.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let simple = path.strip_prefix('.').is_some_and(|path| path.split('.').all(plain));
        if !simple || path.starts_with(".metadata") {
            let must = "must be the simple path of a field outside of `metadata`, such as '.spec.x'";
            causes.push(Cause::invalid(&at, path, must));
        } else if !seen.insert(path) {
            causes.push(Cause::invalid(&at, path, "must be unique"));
        } else if seen.len() > MAX_SELECTABLE {
            let must = format!("must be one of at most {MAX_SELECTABLE} fields");
            causes.push(Cause::invalid(&at, path, &must));
        }
    }
}

/// Validates immutable parts: the group; once established also kind, plural and scope; and stored
/// versions.
fn check_unchanged(old: &Object, new: &Object, causes: &mut Vec<Cause>) {
    let (before, after) = (map(old.fields(), "spec"), map(new.fields(), "spec"));
    let status = map(old.fields(), "status");
    let mut fixed = vec![("spec.group", text(before, "group"), text(after, "group"))];
    if is_established(status) {
        let (before_names, after_names) = (map(before, "names"), map(after, "names"));
        fixed.push(("spec.scope", text(before, "scope"), text(after, "scope")));
        fixed.push(("spec.names.plural", text(before_names, "plural"), text(after_names, "plural")));
        fixed.push(("spec.names.kind", text(before_names, "kind"), text(after_names, "kind")));
    }
    for (field, before, after) in fixed {
        if before != after {
            causes.push(Cause::invalid(field, after, "field is immutable"));
        }
    }
    let stored = status.get("storedVersions").and_then(Value::as_array);
    for version in stored.into_iter().flatten().filter_map(Value::as_str) {
        if !list(after, "versions").any(|kept| text(kept, "name") == version) {
            let must = "must keep every version of `status.storedVersions`";
            causes.push(Cause::invalid("spec.versions", version, must));
        }
    }
}
