//! Events in the form of the core group, where the API server accepts those of all recorders.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::requests::Requests;
use crate::cluster::Failure;
use edgesync_fleet::source::Result;
use edgesync_object::event::event_to_core;
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Object, kinds};

/// Creates an Event of the cloud side, with background priority. One that has the name already was
/// created before: it stays as it is.
///
/// # Errors
/// The cluster refused the Event, or is unreachable.
pub(super) async fn emit(requests: &Requests, mut event: Object) -> Result<()> {
    let (requests, resource) = (requests.in_background(), kinds::guess("v1", "Event", true));
    event_to_core(&mut event);
    let mut created = requests.create(&resource, &event).await;
    if matches!(created, Err(Failure::Invalid(_))) && make_legacy(&mut event, None) {
        created = requests.create(&resource, &event).await;
    }
    match created {
        Ok(_) | Err(Failure::Conflict(_)) => Ok(()),
        Err(failure) => Err(failure.into()),
    }
}

/// Converts an Event about a cluster-scoped object, in the form of the core group, to the form
/// without `eventTime`. Older servers, such as 1.20, refuse one with it outside of `kube-system`,
/// where edgesync creates none. Returns whether the Event is such a one.
pub(super) fn make_legacy(event: &mut Object, host: Option<&NodeName>) -> bool {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let fields = event.fields();
    let regarding = fields.get("involvedObject");
    let is_namespaced = !text(regarding.and_then(|regarding| regarding.get("namespace"))).is_empty();
    let Ok(first) = text(fields.get("eventTime")).parse::<Timestamp>() else { return false };
    if is_namespaced {
        return false;
    }
    let series = fields.get("series");
    let last = text(series.and_then(|series| series.get("lastObservedTime"))).parse().unwrap_or(first);
    let count = series.and_then(|series| series.get("count")).cloned().unwrap_or_else(|| json!(1));
    let component = text(fields.get("reportingComponent"));
    let mut source = json!({ "component": component });
    if let Some(host) = host {
        source["host"] = json!(host);
    }
    let fields = event.fields_mut();
    for field in ["eventTime", "series"] {
        fields.remove(field);
    }
    let legacy = [
        ("firstTimestamp", json!(rfc3339(first))),
        ("lastTimestamp", json!(rfc3339(last))),
        ("count", count),
        ("source", source),
    ];
    fields.extend(legacy.map(|(field, value)| (field.to_owned(), value)));
    true
}

#[cfg(test)]
mod tests;
