//! Field selectors (`metadata.name=a,spec.nodeName!=b`): parsing, the selectable fields of each
//! kind, and matching.

mod table;

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::resource::split_api_version;

/// Maximum length of a field selector in bytes.
pub(crate) const MAX_FIELD_SELECTOR: usize = 4 << 10;

/// Requirements for fields. The empty selector selects everything.
///
/// Parsing accepts any field; [`FieldSelector::check`] verifies that a kind supports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    field: String,
    equal: bool,
    value: String,
}

/// Reason why a field selector was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    /// Longer than [`MAX_FIELD_SELECTOR`] bytes; the text is not parsed.
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
    /// A field that is not selectable.
    #[error("field label not supported: {0}")]
    Field(String),
}

impl FieldSelector {
    /// Returns whether everything is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether there are only requirements for name and namespace, so that
    /// [`FieldSelector::matches_names`] decides.
    #[must_use]
    pub fn is_only_names(&self) -> bool {
        self.0.iter().all(|requirement| own(&requirement.field).is_some())
    }

    /// Adds the requirement that objects have this name.
    pub fn select_name(&mut self, name: &str) {
        let requirement =
            Requirement { field: "metadata.name".to_owned(), equal: true, value: name.to_owned() };
        self.0.push(requirement);
    }

    /// Checks that the fields are selectable for a kind. `extra` are the selectable fields of a
    /// custom kind's definition, such as `spec.color`.
    ///
    /// # Errors
    /// The first field that is not selectable.
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

    /// Returns whether an object is selected. Name and namespace (empty for cluster-scoped objects)
    /// are parameters, because they are known before the object is parsed. An Event may be in
    /// either form, regardless of the selector's.
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

    /// Returns whether name and namespace match. Other fields are ignored.
    #[must_use]
    pub fn matches_names(&self, namespace: &str, name: &str) -> bool {
        self.0.iter().all(|requirement| match own(&requirement.field) {
            Some(Own::Name) => requirement.accepts(name),
            Some(Own::Namespace) => requirement.accepts(namespace),
            None => true,
        })
    }

    /// Returns the only namespace that can match, if there is one.
    #[must_use]
    pub fn only_namespace(&self) -> Option<&str> {
        self.only(Own::Namespace)
    }

    /// Returns the only name that can match, if there is one.
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

/// The two fields of every kind.
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

/// Returns the text of a field, from the first of its paths with a value.
fn value<'a>(object: &'a Map<String, Value>, field: &str) -> Cow<'a, str> {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let (group, _) = split_api_version(text("apiVersion"));
    let Some(known) = table::find(group, text("kind"), field) else {
        return at(object, field).unwrap_or_default();
    };
    let mut found = known.places.iter().filter_map(|place| at(object, place));
    found.find(|text| !text.is_empty()).unwrap_or(Cow::Borrowed(known.absent))
}

/// Returns the scalar at a dotted path, as text.
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

/// Splits at the first operator (`=`, `==`, `!=`) into field, equality, and value.
fn split_operator(part: &str) -> Option<(&str, bool, &str)> {
    let (field, rest) = part.split_once('=')?;
    match field.strip_suffix('!') {
        Some(field) => Some((field, false, rest)),
        None => Some((field, true, rest.strip_prefix('=').unwrap_or(rest))),
    }
}

/// Splits at the commas without a preceding backslash.
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

/// Decodes a value: `\\`, `\,` and `\=` stand for the second character.
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
