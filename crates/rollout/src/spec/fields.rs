//! Reads the fields of a JSON object, and collects all problems with their paths.

use std::ops::RangeInclusive;
use std::time::Duration;

use edgesync_object::Problems;
use serde_json::{Map, Value};

/// Limit of the listed problems.
const MAX_PROBLEMS: usize = 16;
/// Limit of the characters of a name in a problem.
const MAX_NAME: usize = 64;
/// Units of durations in milliseconds, as in the configuration.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const DURATION: &str = "must be a duration: a whole number with the unit ms, s, m, h or d, such as \"30m\"";

/// Adds a problem, unless there are many.
pub(super) fn problem(problems: &mut Problems, path: &str, must: &str) {
    if problems.0.len() < MAX_PROBLEMS {
        problems.0.extend(Problems::one(path, must).0);
    }
}

/// The fields of an object. Each is taken once; [`Fields::end`] refuses the others.
pub(super) struct Fields<'a, 'p> {
    map: &'a Map<String, Value>,
    path: String,
    taken: Vec<&'static str>,
    problems: &'p mut Problems,
}

impl<'a, 'p> Fields<'a, 'p> {
    /// Returns the fields; `None` with a problem if the value is no object.
    pub(super) fn of(value: &'a Value, path: &str, problems: &'p mut Problems) -> Option<Self> {
        match value {
            Value::Object(map) => Some(Self { map, path: path.to_owned(), taken: Vec::new(), problems }),
            _ => {
                problem(problems, path, &format!("must be an object with fields, not {}", kind(value)));
                None
            }
        }
    }

    /// Returns the path of a field.
    pub(super) fn path(&self, field: &str) -> String {
        format!("{}.{field}", self.path)
    }

    /// Takes a field; `None` if it is absent or null.
    pub(super) fn take(&mut self, field: &'static str) -> Option<&'a Value> {
        self.taken.push(field);
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// Adds the problem of a field.
    pub(super) fn check(&mut self, field: &str, result: Result<(), String>) {
        if let Err(must) = result {
            problem(self.problems, &self.path(field), &must);
        }
    }

    fn refuse(&mut self, field: &str, must: String) {
        self.check(field, Err(must));
    }

    pub(super) fn text(&mut self, field: &'static str) -> Option<&'a str> {
        match self.take(field)? {
            Value::String(text) => Some(text),
            other => {
                self.refuse(field, format!("must be a text, not {}", kind(other)));
                None
            }
        }
    }

    pub(super) fn switch(&mut self, field: &'static str) -> bool {
        match self.take(field) {
            None => false,
            Some(Value::Bool(value)) => *value,
            Some(other) => {
                self.refuse(field, format!("must be true or false, not {}", kind(other)));
                false
            }
        }
    }

    pub(super) fn optional_whole(&mut self, field: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let value = self.take(field)?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let valid = number.filter(|number| range.contains(number));
        if valid.is_none() {
            let (least, most) = range.into_inner();
            let found = if value.is_number() { value.to_string() } else { kind(value).to_owned() };
            self.refuse(field, format!("must be a whole number from {least} to {most}, not {found}"));
        }
        valid
    }

    pub(super) fn whole(&mut self, field: &'static str, absent: u32, range: RangeInclusive<u32>) -> u32 {
        self.optional_whole(field, range).unwrap_or(absent)
    }

    pub(super) fn duration(
        &mut self,
        field: &'static str,
        absent: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let Some(value) = self.take(field) else { return absent };
        match value.as_str().and_then(parse_duration) {
            None => self.refuse(field, DURATION.to_owned()),
            Some(found) if range.contains(&found) => return found,
            Some(found) => {
                let (least, most) = range.into_inner();
                let (least, most, found) = (show(least), show(most), show(found));
                self.refuse(field, format!("must be between {least} and {most}, not {found}"));
            }
        }
        absent
    }

    pub(super) fn word<T: Copy + Default, const N: usize>(
        &mut self,
        field: &'static str,
        words: [(&str, T); N],
    ) -> T {
        let Some(value) = self.take(field) else { return T::default() };
        let found = value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
        match found {
            Some((_, value)) => *value,
            None => {
                self.refuse(field, format!("must be {}", words.map(|(word, _)| word).join(" or ")));
                T::default()
            }
        }
    }

    /// Reads a field that is an object itself.
    pub(super) fn inner<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Fields<'_, '_>) -> T,
    ) -> Option<T> {
        let value = self.take(field)?;
        let path = self.path(field);
        let mut fields = Fields::of(value, &path, self.problems)?;
        let read = read(&mut fields);
        fields.end();
        Some(read)
    }

    /// Refuses fields that were not taken.
    pub(super) fn end(self) {
        let Self { map, path, taken, problems } = self;
        for name in map.keys().filter(|name| !taken.contains(&name.as_str())) {
            let name: String = name.chars().take(MAX_NAME).collect();
            problem(
                problems,
                &format!("{path}.{name}"),
                &format!("is unknown; the fields are {}", taken.join(", ")),
            );
        }
    }
}

/// Returns the kind of a value, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor).map(Duration::from_millis)
}

/// Formats a duration in the largest unit that divides it.
fn show(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    match UNITS.iter().find(|(_, factor)| millis != 0 && millis.is_multiple_of(*factor)) {
        Some((unit, factor)) => format!("{}{unit}", millis / factor),
        None => "0s".to_owned(),
    }
}
