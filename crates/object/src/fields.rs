//! Field selectors (`metadata.name=a,spec.nodeName!=b`): the text form, which fields a kind has for them, and
//! whether an object is selected.

mod table;

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::resource::split_api_version;

/// The longest field selector, in bytes.
pub(crate) const MAX_FIELD_SELECTOR: usize = 4 << 10;

/// What fields must be. The empty selector selects everything.
///
/// Reading one asks nothing of its fields: whether a kind has them is what [`FieldSelector::check`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    field: String,
    equal: bool,
    value: String,
}

/// Why a field selector was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    /// Longer than [`MAX_FIELD_SELECTOR`].
    #[error("the field selector must be less than or equal to {MAX_FIELD_SELECTOR} bytes")]
    TooLong,
    /// A part without an operator, or with an operator in its value.
    #[error("invalid field selector part '{0}': expected field=value or field!=value")]
    Syntax(String),
    /// A backslash before something else than `\`, `,` and `=`.
    #[error(
        "invalid field selector part '{0}': a backslash must be followed by a backslash, a comma or an equals sign"
    )]
    Escape(String),
    /// A field that cannot be selected by.
    #[error("field label not supported: {0}")]
    Field(String),
}

impl FieldSelector {
    /// Whether everything is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether only name and namespace are asked for, so that [`FieldSelector::matches_names`] decides.
    #[must_use]
    pub fn is_only_names(&self) -> bool {
        self.0.iter().all(|requirement| own(&requirement.field).is_some())
    }

    /// Selects only objects of this name, beside what is asked for already.
    pub fn select_name(&mut self, name: &str) {
        let requirement =
            Requirement { field: "metadata.name".to_owned(), equal: true, value: name.to_owned() };
        self.0.push(requirement);
    }

    /// Checks that objects of the kind can be selected by these fields. `extra` are the fields that the definition
    /// of a custom kind adds, such as `spec.color`.
    ///
    /// # Errors
    /// The first field that cannot be selected by.
    pub fn check(&self, group: &str, kind: &str, extra: &[Arc<str>]) -> Result<(), FieldSelectorError> {
        let known = |field: &str| {
            own(field).is_some()
                || extra.iter().any(|extra| **extra == *field)
                || table::is_served(group, kind, field)
        };
        match self.0.iter().find(|requirement| !known(&requirement.field)) {
            Some(requirement) => Err(FieldSelectorError::Field(shown(&requirement.field))),
            None => Ok(()),
        }
    }

    /// Whether an object is selected. Name and namespace (empty for cluster-scoped objects) are given apart, because
    /// they are known before the object is read. An Event may be in either of its forms, whatever form the
    /// selector is for.
    #[must_use]
    pub fn matches(&self, namespace: &str, name: &str, object: &Map<String, Value>) -> bool {
        self.0.iter().all(|requirement| {
            let actual = match own(&requirement.field) {
                Some(Own::Name) => Cow::Borrowed(name),
                Some(Own::Namespace) => Cow::Borrowed(namespace),
                None => value(object, &requirement.field),
            };
            requirement.accepts(&actual)
        })
    }

    /// Whether name and namespace are as asked for. Other fields are not looked at.
    #[must_use]
    pub fn matches_names(&self, namespace: &str, name: &str) -> bool {
        self.0.iter().all(|requirement| match own(&requirement.field) {
            Some(Own::Name) => requirement.accepts(name),
            Some(Own::Namespace) => requirement.accepts(namespace),
            None => true,
        })
    }

    /// The only namespace that can be selected, if there is one.
    #[must_use]
    pub fn only_namespace(&self) -> Option<&str> {
        self.only(Own::Namespace)
    }

    /// The only name that can be selected, if there is one.
    #[must_use]
    pub fn only_name(&self) -> Option<&str> {
        self.only(Own::Name)
    }

    fn only(&self, field: Own) -> Option<&str> {
        let mut equal = self.0.iter().filter(|requirement| requirement.equal);
        let requirement = equal.find(|requirement| own(&requirement.field) == Some(field));
        requirement.map(|requirement| requirement.value.as_str())
    }
}

impl Requirement {
    fn accepts(&self, actual: &str) -> bool {
        (actual == self.value) == self.equal
    }

    fn read(part: &str) -> Result<Self, FieldSelectorError> {
        let (field, equal, value) =
            split_operator(part).ok_or_else(|| FieldSelectorError::Syntax(shown(part)))?;
        let value = unescape(value.trim(), part)?;
        Ok(Self { field: field.trim().to_owned(), equal, value })
    }
}

/// The two fields that every kind has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Name,
    Namespace,
}

fn own(field: &str) -> Option<Own> {
    match field {
        "metadata.name" => Some(Own::Name),
        "metadata.namespace" => Some(Own::Namespace),
        _ => None,
    }
}

/// The text of a field, in the first of its places that has one.
fn value<'a>(object: &'a Map<String, Value>, field: &str) -> Cow<'a, str> {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let (group, _) = split_api_version(text("apiVersion"));
    let Some(known) = table::find(group, text("kind"), field) else {
        return at(object, field).unwrap_or_default();
    };
    let mut found = known.places.iter().filter_map(|place| at(object, place));
    found.find(|text| !text.is_empty()).unwrap_or(Cow::Borrowed(known.absent))
}

/// The scalar under a dotted path, as text.
fn at<'a>(object: &'a Map<String, Value>, path: &str) -> Option<Cow<'a, str>> {
    let mut steps = path.split('.');
    let first = object.get(steps.next()?)?;
    match steps.try_fold(first, |value, step| value.get(step))? {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Bool(value) => Some(Cow::Borrowed(if *value { "true" } else { "false" })),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Field, whether it must be equal, and value: split at the first operator (`=`, `==`, `!=`).
fn split_operator(part: &str) -> Option<(&str, bool, &str)> {
    let (field, rest) = part.split_once('=')?;
    match field.strip_suffix('!') {
        Some(field) => Some((field, false, rest)),
        None => Some((field, true, rest.strip_prefix('=').unwrap_or(rest))),
    }
}

/// The parts between the commas that no backslash precedes.
fn split_parts(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.extend(text.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.extend(text.get(start..));
    parts
}

/// The value that is meant: `\\`, `\,` and `\=` stand for the second character.
fn unescape(value: &str, part: &str) -> Result<String, FieldSelectorError> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                _ => return Err(FieldSelectorError::Escape(shown(part))),
            },
            '=' => return Err(FieldSelectorError::Syntax(shown(part))),
            _ => plain.push(c),
        }
    }
    Ok(plain)
}

impl FromStr for FieldSelector {
    type Err = FieldSelectorError;

    fn from_str(text: &str) -> Result<Self, FieldSelectorError> {
        if text.len() > MAX_FIELD_SELECTOR {
            return Err(FieldSelectorError::TooLong);
        }
        let parts = split_parts(text).into_iter().map(str::trim).filter(|part| !part.is_empty());
        parts.map(Requirement::read).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests;
