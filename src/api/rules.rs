//! stub
use serde_json::{Map, Value};
use crate::object::{Object, Resource};
use crate::object::status::Cause;
pub(super) fn event_to_core(_: &mut Map<String, Value>) {}
pub(super) fn event_to_storage(_: &mut Map<String, Value>) {}
pub(super) fn complete(_: &Resource, _: Option<&Object>, _: &mut Object, _: jiff::Timestamp) {}
pub(super) fn check_create(_: &Resource, _: &Object) -> Vec<Cause> { Vec::new() }
pub(super) fn check_update(_: &Resource, _: &Object, _: &Object) -> Vec<Cause> { Vec::new() }
