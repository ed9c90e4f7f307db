//! Parsers of single schema keywords, which report malformed ones.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Reader;

/// Keywords of one schema, and the reader that collects errors.
pub(super) struct Keywords<'a> {
    pub(super) keywords: &'a Map<String, Value>,
    pub(super) reader: &'a mut Reader,
}

impl Keywords<'_> {
    pub(super) fn invalid(&mut self, name: &str, value: &Value, problem: &str) {
        self.reader.within(name, |reader| reader.invalid(value, problem));
    }

    /// Parses a keyword with `read`; `null` counts as absent.
    fn get<T>(&mut self, name: &str, problem: &str, read: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        let value = self.keywords.get(name).filter(|value| !value.is_null())?;
        let result = read(value);
        if result.is_none() {
            self.invalid(name, value, problem);
        }
        result
    }

    pub(super) fn flag(&mut self, name: &str) -> bool {
        self.get(name, "must be true or false", Value::as_bool).unwrap_or_default()
    }

    /// Parses a string; an empty one counts as absent.
    pub(super) fn text(&mut self, name: &str) -> Option<Arc<str>> {
        let text = self.get(name, "must be a string", |value| value.as_str().map(Arc::from));
        text.filter(|text: &Arc<str>| !text.is_empty())
    }

    pub(super) fn texts(&mut self, name: &str) -> Vec<Arc<str>> {
        let read =
            |value: &Value| value.as_array()?.iter().map(|text| text.as_str().map(Arc::from)).collect();
        self.get(name, "must be an array of strings", read).unwrap_or_default()
    }

    pub(super) fn values(&mut self, name: &str) -> Vec<Value> {
        self.get(name, "must be an array", |value| value.as_array().cloned()).unwrap_or_default()
    }

    pub(super) fn count(&mut self, name: &str) -> Option<u64> {
        self.get(name, "must be an integer greater than or equal to 0", Value::as_u64)
    }

    pub(super) fn number(&mut self, name: &str) -> Option<f64> {
        self.get(name, "must be a number", Value::as_f64)
    }

    /// Parses a limit of numbers, and whether it is exclusive.
    pub(super) fn bound(&mut self, name: &str, exclusive: &str) -> Option<(f64, bool)> {
        let exclusive = self.flag(exclusive);
        Some((self.number(name)?, exclusive))
    }
}
