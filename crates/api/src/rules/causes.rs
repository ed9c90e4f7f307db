//! A bounded list of validation errors, and field paths. Pure.

use std::collections::HashSet;
use std::fmt;

use serde_json::{Map, Value};

use edgesync_object::name::Problem;
use edgesync_object::status::Cause;

/// Maximum number of causes collected per object.
const MAX_COLLECTED: usize = 64;

/// A path such as `spec.containers[0].name`.
#[derive(Clone, Debug)]
pub(super) struct Path(String);

impl Path {
    pub(super) fn new(path: &str) -> Self {
        Self(path.to_owned())
    }

    pub(super) fn field(&self, name: &str) -> Self {
        if self.0.is_empty() { Self::new(name) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// Returns the path of an item of the list in a field.
    pub(super) fn item(&self, name: &str, number: usize) -> Self {
        Self(format!("{}[{number}]", self.field(name)))
    }

    /// Returns the path of a value of the map in a field. Keys are truncated to 128 characters.
    pub(super) fn key(&self, name: &str, key: &str) -> Self {
        let key: String = key.chars().take(128).collect();
        Self(format!("{}[{key}]", self.field(name)))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// At most [`MAX_COLLECTED`] causes.
#[derive(Debug, Default)]
pub(super) struct Causes(Vec<Cause>);

impl Causes {
    pub(super) fn add(&mut self, cause: Cause) {
        if self.0.len() < MAX_COLLECTED {
            self.0.push(cause);
        }
    }

    pub(super) fn required(&mut self, at: &Path, message: &str) {
        self.add(Cause::required(&at.0, message));
    }

    pub(super) fn invalid(&mut self, at: &Path, value: &str, message: &str) {
        self.add(Cause::invalid(&at.0, value, message));
    }

    pub(super) fn forbidden(&mut self, at: &Path, message: &str) {
        self.add(Cause::forbidden(&at.0, message));
    }

    pub(super) fn duplicate(&mut self, at: &Path, value: &str) {
        let shown: String = value.chars().take(64).collect();
        self.add(Cause {
            reason: "FieldValueDuplicate".to_owned(),
            message: format!("Duplicate value: {shown:?}"),
            field: at.0.clone(),
        });
    }

    /// Reports a change of an immutable field.
    pub(super) fn immutable(&mut self, at: &Path, value: Option<&Value>) {
        let shown = value.map(ToString::to_string).unwrap_or_default();
        self.invalid(at, &shown, "field is immutable");
    }

    /// Reports a value refused by a name check.
    pub(super) fn name(&mut self, at: &Path, value: &str, checked: Result<(), Problem>) {
        if let Err(problem) = checked {
            self.invalid(at, value, &problem);
        }
    }

    /// Checks a required name that must be unique among its items.
    pub(super) fn unique_name<'a>(
        &mut self,
        at: &Path,
        value: &'a str,
        seen: &mut HashSet<&'a str>,
        check: impl Fn(&str) -> Result<(), Problem>,
    ) {
        if value.is_empty() {
            self.required(at, "must not be empty");
        } else if seen.insert(value) {
            self.name(at, value, check(value));
        } else {
            self.duplicate(at, value);
        }
    }

    /// Checks that a field is one of some words; absent is accepted.
    pub(super) fn choice(&mut self, at: &Path, fields: &Map<String, Value>, name: &str, words: &[&str]) {
        let Some(value) = fields.get(name).and_then(Value::as_str) else { return };
        if !words.contains(&value) {
            let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
            let shown: String = value.chars().take(64).collect();
            self.add(Cause {
                reason: "FieldValueNotSupported".to_owned(),
                message: format!("Unsupported value: {shown:?}: must be one of {}", quoted.join(", ")),
                field: at.field(name).0,
            });
        }
    }

    /// Checks that a number is within bounds; absent is accepted.
    pub(super) fn range(
        &mut self,
        at: &Path,
        fields: &Map<String, Value>,
        name: &str,
        range: std::ops::RangeInclusive<i64>,
    ) {
        let Some(value) = fields.get(name).and_then(Value::as_i64) else { return };
        if range.contains(&value) {
            return;
        }
        let (least, most) = (range.start(), range.end());
        let must = if *most == i64::MAX {
            format!("must be greater than or equal to {least}")
        } else {
            format!("must be between {least} and {most}, inclusive")
        };
        self.invalid(&at.field(name), &value.to_string(), &must);
    }

    /// Checks that a number is not negative; absent is accepted.
    pub(super) fn not_negative(&mut self, at: &Path, fields: &Map<String, Value>, name: &str) {
        self.range(at, fields, name, 0..=i64::MAX);
    }
}

impl From<Causes> for Vec<Cause> {
    fn from(causes: Causes) -> Self {
        causes.0
    }
}
