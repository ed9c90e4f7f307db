//! Validation of Events received other than by a request, by the rules of requests. Pure.

use super::rules;
use edgesync_object::status::Cause;
use edgesync_object::{Object, Problems, Resource, kinds};
use edgesync_schema as schema;
use edgesync_schema::Schema;

/// Metadata accepted from the sender; the store provides the rest.
const METADATA: [&str; 4] = ["name", "namespace", "labels", "annotations"];

/// Checks a new Event and converts it to the storage version (`events.k8s.io/v1`). A core-group
/// Event may already be in that form, as the API stores it.
///
/// # Errors
/// The causes of the refusal.
pub fn check_event(mut event: Object) -> Result<Object, Vec<Cause>> {
    for version in ["events.k8s.io/v1", "v1"] {
        if event.api_version() == version && event.kind() == "Event" {
            restrict_metadata(&mut event);
            rules::event_to_storage(&mut event);
            return check_version_of_origin(event);
        }
    }
    Err(vec![Cause::invalid("kind", event.kind(), "must be 'Event' of 'events.k8s.io/v1' or 'v1'")])
}

fn restrict_metadata(event: &mut Object) {
    if let Some(metadata) = event.fields_mut().get_mut("metadata").and_then(|value| value.as_object_mut()) {
        metadata.retain(|field, _| METADATA.contains(&field.as_str()));
    }
}

/// Fields of core-group Events only, by their names in `events.k8s.io`.
const DEPRECATED: [&str; 4] =
    ["deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount", "deprecatedSource"];

/// Checks an Event in the version that it was created in: core if it has no `eventTime`, or a
/// deprecated field.
fn check_version_of_origin(mut event: Object) -> Result<Object, Vec<Cause>> {
    let is_set = |field: &str| event.fields().get(field).is_some_and(|value| !value.is_null());
    if is_set("eventTime") && !DEPRECATED.into_iter().any(is_set) {
        check_in_version("events.k8s.io/v1", &mut event)?;
    } else {
        rules::event_to_core(&mut event);
        check_in_version("v1", &mut event)?;
        rules::event_to_storage(&mut event);
    }
    Ok(event)
}

/// Checks in the order of a write: types, unknown fields, defaults, rules.
fn check_in_version(api_version: &str, event: &mut Object) -> Result<(), Vec<Cause>> {
    let resource = kinds::guess(api_version, "Event", true);
    let schema = schema::builtin(&resource.group, &resource.version, &resource.kind);
    if let Some(schema) = schema.as_deref() {
        let wrong = schema::wrong_types(schema, event.fields());
        if !wrong.is_empty() {
            return Err(wrong);
        }
        schema::prune(schema, event.fields_mut());
        schema::apply_defaults(schema, event.fields_mut());
    }
    let found = problems(&resource, schema.as_deref(), event);
    if found.is_empty() { Ok(()) } else { Err(found) }
}

fn problems(resource: &Resource, schema: Option<&Schema>, event: &Object) -> Vec<Cause> {
    if let Err(Problems(problems)) = event.validate(resource) {
        let cause = |problem: edgesync_object::FieldProblem| Cause {
            reason: "FieldValueInvalid".to_owned(),
            message: problem.message,
            field: problem.field,
        };
        return problems.into_iter().map(cause).collect();
    }
    let found = schema.map(|schema| schema::validate(schema, event.fields())).unwrap_or_default();
    if found.is_empty() { rules::check_create(resource, event) } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[allow(clippy::needless_pass_by_value, reason = "values are written as they come to hand")]
    fn object(value: Value) -> Object {
        Object::from(value.as_object().unwrap().clone())
    }

    fn current_event() -> Value {
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "e", "namespace": "shop", "uid": "made-up", "finalizers": ["x/y"]},
            "eventTime": "2024-01-02T00:00:00.000000Z", "type": "Normal", "reason": "Started",
            "action": "Start", "reportingController": "lab.io/x", "reportingInstance": "x-1",
            "regarding": {"kind": "Pod", "namespace": "shop", "name": "p"}, "note": "well", "nonsense": 1,
        })
    }

    fn core_event() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "shop"},
            "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "p"},
            "type": "Warning", "reason": "BackOff", "message": "again", "count": 3,
            "source": {"component": "x"}, "firstTimestamp": "2024-01-02T00:00:00Z",
            "lastTimestamp": "2024-01-02T00:00:01Z",
        })
    }

    #[test]
    fn events_of_both_versions_are_stored_in_one() {
        let kept = check_event(object(current_event())).unwrap();
        assert_eq!((kept.api_version(), kept.name(), kept.uid()), ("events.k8s.io/v1", "e", ""));
        assert!(kept.metadata().unwrap().get("finalizers").is_none());
        assert!(!kept.fields().contains_key("nonsense"));
        let kept = check_event(object(core_event())).unwrap();
        assert_eq!(
            (kept.api_version(), kept.fields().get("note")),
            ("events.k8s.io/v1", Some(&json!("again")))
        );
        assert_eq!(kept.fields().get("deprecatedCount"), Some(&json!(3)));
        assert_eq!(check_event(kept.clone()), Ok(kept), "what was kept once is accepted");
    }

    #[test]
    fn invalid_events_are_refused_with_the_field() {
        for (field, value, named) in [
            ("type", json!("Bad"), "type"),
            ("reason", json!("x".repeat(200)), "reason"),
            ("note", json!("x".repeat(2000)), "note"),
            ("eventTime", json!("soon"), "eventTime"),
            ("series", json!({"count": 1}), "series"),
            ("regarding", json!({"namespace": "other"}), "regarding.namespace"),
            ("metadata", json!({"name": "E/", "namespace": "shop"}), "metadata.name"),
            ("metadata", json!({"name": "e"}), "metadata.namespace"),
            ("metadata", json!([]), "metadata"),
            ("kind", json!("Pod"), "kind"),
            ("apiVersion", json!("events.k8s.io/v2"), "kind"),
        ] {
            let mut event = current_event();
            event[field] = value.clone();
            let causes = check_event(object(event)).unwrap_err();
            assert!(causes[0].field.starts_with(named), "{field}={value}: {causes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_field_panics(field in "[a-z]{1,12}", text in ".{0,40}", number: i64) {
            for value in [json!(text), json!(number), json!([text]), json!({"a": number})] {
                for mut event in [current_event(), core_event()] {
                    event[&field] = value.clone();
                    let _ = check_event(object(event));
                }
            }
        }
    }
}
