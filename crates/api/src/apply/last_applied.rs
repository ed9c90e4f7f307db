//! The annotation in which `kubectl apply` keeps its last configuration. It lets a user migrate to
//! server-side apply and back without conflicts with their own fields. Pure.

use super::compare::compare;
use super::fieldset::FieldSet;
use super::shape::fields_of;
use edgesync_object::{MAX_ANNOTATIONS, Object};
use edgesync_schema::Schema;

/// The manager that uses the annotation.
pub(super) const KUBECTL: &str = "kubectl";
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns the fields that still have their value from the last client-side apply.
pub(super) fn unchanged_fields(live: &Object, schema: Option<&Schema>) -> FieldSet {
    let Some(last) = annotation(live).and_then(|text| Object::parse(text).ok()) else {
        return FieldSet::default();
    };
    if last.api_version() != live.api_version() {
        return FieldSet::default();
    }
    let diff = compare(last.fields(), live.fields(), schema);
    let mut fields = fields_of(&last.into_fields().into(), schema);
    for set in [&diff.changed, &diff.added, &diff.removed] {
        fields.subtract(set);
    }
    fields
}

/// Updates an existing annotation with the configuration applied on the server. Removes it if it
/// would become too large, as kubectl does.
pub(super) fn refresh(object: &mut Object, applied: &Object) {
    if annotation(object).is_none() {
        return;
    }
    let mut configuration = applied.clone();
    set_annotation(&mut configuration, None);
    let text = format!("{}\n", configuration.to_json());
    let others: usize =
        object.annotations().iter().filter(|(key, _)| *key != ANNOTATION).map(|(_, value)| value.len()).sum();
    let fits = others + text.len() <= MAX_ANNOTATIONS;
    set_annotation(object, fits.then_some(text));
}

fn annotation(object: &Object) -> Option<&str> {
    let text = object.metadata()?.get("annotations")?.get(ANNOTATION)?.as_str()?;
    Some(text).filter(|text| !text.is_empty())
}

fn set_annotation(object: &mut Object, text: Option<String>) {
    let metadata = object.fields_mut().get_mut("metadata");
    let annotations = metadata.and_then(|metadata| metadata.get_mut("annotations"));
    if let Some(annotations) = annotations.and_then(|annotations| annotations.as_object_mut()) {
        match text {
            Some(text) => annotations.insert(ANNOTATION.to_owned(), text.into()),
            None => annotations.remove(ANNOTATION),
        };
    }
}
