//! Conversion between the two forms of Events, that of the core group and that of `events.k8s.io`,
//! with the same fields under different names. The fields swap names, also where an object has
//! both, so nothing is ever lost. Pure.

use serde_json::{Map, Value};

use super::{Object, Resource};

/// The `apiVersion` under which Events are stored.
pub(crate) const STORAGE: &str = "events.k8s.io/v1";

/// Names of fields in the core group and in `events.k8s.io`.
pub const PAIRS: [(&str, &str); 7] = [
    ("message", "note"),
    ("involvedObject", "regarding"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Returns whether objects of a kind are Events, in either form.
#[must_use]
pub fn is_event(resource: &Resource) -> bool {
    resource.kind == "Event" && matches!(&*resource.group, "" | "events.k8s.io")
}

/// Converts an Event of the core group into its stored form. Other objects are unchanged.
pub fn event_to_storage(event: &mut Object) {
    if event.kind() == "Event" && event.api_version() == "v1" {
        swap(event.fields_mut(), STORAGE);
    }
}

/// Converts a stored Event into the form of the core group. Other objects are unchanged.
pub fn event_to_core(event: &mut Object) {
    if event.kind() == "Event" && event.api_version() == STORAGE {
        swap(event.fields_mut(), "v1");
    }
}

fn swap(event: &mut Map<String, Value>, api_version: &str) {
    event.insert("apiVersion".to_owned(), api_version.into());
    for (core, new) in PAIRS {
        let (from_core, from_new) = (event.remove(core), event.remove(new));
        event.extend(from_core.map(|value| (new.to_owned(), value)));
        event.extend(from_new.map(|value| (core.to_owned(), value)));
    }
}
