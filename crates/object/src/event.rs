//! Conversion between the two forms of Events, that of the core group and that of `events.k8s.io`,
//! with the same fields under different names. The fields swap names, also where an object has
//! both, so nothing is ever lost. Pure.

use std::hash::Hasher as _;

use serde_json::{Map, Value};
use siphasher::sip::SipHasher13;

use super::{Object, Resource};

/// The `apiVersion` under which Events are stored.
pub(crate) const STORAGE: &str = "events.k8s.io/v1";

/// Maximum length of the field `reportingInstance`, in characters.
const MAX_INSTANCE: usize = 128;

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

/// Returns the `reportingInstance` of a node's Events: its name, shortened if it is too long.
#[must_use]
pub fn reporting_instance(node: &str) -> String {
    shorten(node, MAX_INSTANCE)
}

/// Shortens a name of more than `max` bytes; it then ends in a hash of the whole.
#[must_use]
pub fn shorten(name: &str, max: usize) -> String {
    if name.len() <= max {
        return name.to_owned();
    }
    let mut hasher = SipHasher13::new();
    hasher.write(name.as_bytes());
    let head = &name[..name.floor_char_boundary(max.saturating_sub(9))];
    format!("{}-{:08x}", head.trim_end_matches(['.', '-']), hasher.finish() >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_node_name_is_shortened_and_stays_distinct() {
        let (one, other) = (format!("{}.one", "x".repeat(240)), format!("{}.two", "x".repeat(240)));
        assert_eq!(reporting_instance("edge-1"), "edge-1");
        let short = [reporting_instance(&one), reporting_instance(&other)];
        assert!(short.iter().all(|name| name.len() <= MAX_INSTANCE), "{short:?}");
        assert_ne!(short[0], short[1]);
    }
}
