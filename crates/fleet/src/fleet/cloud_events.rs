//! Events that the cloud side itself reports.

use jiff::Timestamp;
use serde_json::{Value, json};

use edgesync_object::Object;
use edgesync_object::time::rfc3339_micros;

/// Component that reports them.
const CONTROLLER: &str = "edgesync.io/cloud";
const INSTANCE: &str = "edgesync-cloud";

/// Content of an Event.
pub(super) struct CloudEvent<'a> {
    pub(super) name: String,
    pub(super) namespace: &'a str,
    /// Reference to the object that it is about.
    pub(super) regarding: Value,
    pub(super) action: &'a str,
    pub(super) reason: &'a str,
    pub(super) note: String,
    pub(super) is_warning: bool,
}

impl CloudEvent<'_> {
    /// Returns the Event as an object of `events.k8s.io/v1`.
    pub(super) fn at(self, now: Timestamp) -> Object {
        let fields = [
            ("apiVersion", json!("events.k8s.io/v1")),
            ("kind", json!("Event")),
            ("metadata", json!({"name": self.name, "namespace": self.namespace})),
            ("eventTime", json!(rfc3339_micros(now))),
            ("reportingController", json!(CONTROLLER)),
            ("reportingInstance", json!(INSTANCE)),
            ("action", json!(self.action)),
            ("reason", json!(self.reason)),
            ("regarding", self.regarding),
            ("note", json!(self.note)),
            ("type", json!(if self.is_warning { "Warning" } else { "Normal" })),
        ];
        let mut event = Object::default();
        event.fields_mut().extend(fields.map(|(name, value)| (name.to_owned(), value)));
        event
    }
}
