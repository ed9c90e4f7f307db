//! Validation of values against their schema. Depends on `schema`; regular expressions only on the
//! cloud side, which alone has schemas with patterns.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Number, Value};

use super::format::{number_problem, text_problem, whole};
use super::{is_object_field, weight};
use crate::{Limits, ListType, Schema, Type};
use edgesync_object::status::Cause;

mod pattern;

pub(crate) use pattern::PatternCheck;

/// Maximum number of problems listed.
const MAX_PROBLEMS: usize = 64;
/// Maximum number of schema checks per object.
const MAX_STEPS: usize = 10_000_000;
/// Number of comparisons with a list in the schema that count as one step.
const COMPARISONS_PER_STEP: usize = 16;
/// Maximum length of a value in messages, in characters.
const MAX_SHOWN: usize = 64;

/// Returns the problems of an object, at most 64. Ignores `metadata`, whose rules are the same for
/// all kinds. The reasons of the causes are those of Kubernetes, such as `FieldValueRequired`.
#[must_use]
pub fn validate(schema: &Schema, object: &Map<String, Value>) -> Vec<Cause> {
    let mut checker = Checker::new(false);
    checker.object(schema, object, None, true);
    checker.causes
}

/// Returns the problems of an update. Earlier problems are tolerated, because the schema may have
/// become stricter: unchanged values, and fields that were already missing. Items of a list are
/// matched by its keys; other lists are unchanged only as a whole.
#[must_use]
pub fn validate_change(
    schema: &Schema,
    old: Option<&Map<String, Value>>,
    object: &Map<String, Value>,
) -> Vec<Cause> {
    let found = validate(schema, object);
    if found.is_empty() || old.is_none() {
        return found;
    }
    // The old object is compared only now, because problems are rare.
    let mut checker = Checker::new(false);
    checker.object(schema, object, old, true);
    checker.causes
}

/// Returns the fields whose type differs from the schema (`FieldValueTypeInvalid`), at most 64. An
/// object of a built-in kind with such fields cannot be decoded at all.
#[must_use]
pub fn wrong_types(schema: &Schema, object: &Map<String, Value>) -> Vec<Cause> {
    let mut checker = Checker::new(true);
    checker.object(schema, object, None, true);
    checker.causes
}

/// Returns the problems of a value at a path.
pub(crate) fn value_problems(schema: &Schema, value: &Value, path: &str) -> Vec<Cause> {
    let mut checker = Checker::new(false);
    checker.path.push_str(path);
    checker.value(schema, value, None);
    checker.causes
}

struct Checker {
    /// Whether only types are checked.
    types_only: bool,
    path: String,
    causes: Vec<Cause>,
    steps: usize,
    patterns: pattern::Patterns,
}

impl Checker {
    fn new(types_only: bool) -> Self {
        Self {
            types_only,
            path: String::new(),
            causes: Vec::new(),
            steps: 0,
            patterns: pattern::Patterns::default(),
        }
    }

    /// Checks a value; an unchanged one has no problems.
    fn value(&mut self, schema: &Schema, value: &Value, before: Option<&Value>) {
        let known = self.causes.len();
        self.check_value(schema, value, before);
        if self.causes.len() > known && before.is_some() {
            self.steps += weight(value) / COMPARISONS_PER_STEP;
            if before == Some(value) {
                self.causes.truncate(known);
            }
        }
    }

    fn check_value(&mut self, schema: &Schema, value: &Value, before: Option<&Value>) {
        if self.exhausted() || (value.is_null() && schema.nullable) {
            return;
        }
        if !has_type(schema, value) {
            let message = format!("Invalid value: {}: must be {}", show(value), type_name(schema));
            return self.report("FieldValueTypeInvalid", message);
        }
        match value {
            Value::Object(fields) => self.object(schema, fields, before.and_then(Value::as_object), false),
            Value::Array(items) => self.array(schema, items, before),
            Value::String(text) if !self.types_only => self.text(schema, text),
            Value::Number(number) if !self.types_only => self.number(schema, number),
            _ => {}
        }
        if let Some(limits) = schema.limits.as_deref().filter(|_| !self.types_only) {
            self.choices(limits, value);
            self.combined(limits, value, before);
        }
    }

    /// Counts a step; returns whether a limit is reached. The object is then refused as too
    /// complex, unless it is refused already.
    fn exhausted(&mut self) -> bool {
        self.steps += 1;
        if self.steps > MAX_STEPS && self.causes.is_empty() {
            self.report("FieldValueInvalid", "Invalid value: is too complex to be checked".to_owned());
        }
        self.steps > MAX_STEPS || self.causes.len() >= MAX_PROBLEMS
    }

    fn object(
        &mut self,
        schema: &Schema,
        fields: &Map<String, Value>,
        before: Option<&Map<String, Value>>,
        root: bool,
    ) {
        let required = if self.types_only { &[][..] } else { &schema.required };
        self.steps += required.len() / COMPARISONS_PER_STEP;
        for name in required {
            let nullable = || schema.properties.get(name).is_some_and(|field| field.nullable);
            let known = root && is_object_field(name);
            let there = |fields: &Map<String, Value>| {
                fields.get(name.as_ref()).is_some_and(|value| !value.is_null() || nullable())
            };
            if !known && !there(fields) && before.is_none_or(there) {
                self.within(name, |checker| {
                    checker.report("FieldValueRequired", "Required value: must be given".to_owned());
                });
            }
        }
        for (name, value) in fields {
            if root && is_object_field(name) {
                continue;
            }
            let property = schema.properties.get(name.as_str());
            let Some(field) = property.or(schema.additional.as_ref()) else { continue };
            if value.is_null() && property.is_some() {
                continue;
            }
            let before = before.and_then(|before| before.get(name));
            self.within(name, |checker| checker.value(field, value, before));
        }
        if let Some(limits) = schema.limits.as_deref().filter(|_| !self.types_only) {
            self.count(fields.len(), limits.min_properties, limits.max_properties, "field");
        }
    }

    fn array(&mut self, schema: &Schema, items: &[Value], before: Option<&Value>) {
        if let Some(of) = &schema.items {
            let before = before.and_then(|before| ByKeys::of(schema, before));
            for (index, item) in items.iter().enumerate() {
                let before = before.as_ref().and_then(|before| before.item(item));
                self.at(index, |checker| checker.value(of, item, before));
            }
        }
        if self.types_only {
            return;
        }
        let limits = schema.limits.as_deref();
        if let Some(limits) = limits {
            self.count(items.len(), limits.min_items, limits.max_items, "item");
        }
        let unique = limits.is_some_and(|limits| limits.unique_items);
        match &schema.list {
            ListType::Map(keys) => self.duplicates(items, |item| identity(item, keys)),
            ListType::Set => self.duplicates(items, Cow::Borrowed),
            ListType::Atomic if unique => self.duplicates(items, Cow::Borrowed),
            ListType::Atomic => {}
        }
    }

    fn duplicates<'a>(&mut self, items: &'a [Value], identity: impl Fn(&'a Value) -> Cow<'a, Value>) {
        let mut seen = HashSet::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let identity = identity(item);
            if !seen.insert(identity.to_string()) {
                let message = format!("Duplicate value: {}", show(&identity));
                self.at(index, |checker| checker.report("FieldValueDuplicate", message));
            }
        }
    }

    fn text(&mut self, schema: &Schema, text: &str) {
        if let Some(problem) = text_problem(&schema.format, text) {
            self.invalid(text, problem);
        }
        let Some(limits) = schema.limits.as_deref() else { return };
        if limits.min_length.is_some() || limits.max_length.is_some() {
            let length = text.chars().count();
            self.count(length, limits.min_length, limits.max_length, "character");
        }
        if let Some(pattern) = &limits.pattern
            && !self.patterns.matches(pattern, text)
        {
            self.invalid(text, &format!("must match the regular expression '{pattern}'"));
        }
    }

    fn number(&mut self, schema: &Schema, number: &Number) {
        if let Some(problem) = number_problem(&schema.format, number) {
            self.invalid(number, problem);
        }
        let (Some(limits), Some(value)) = (schema.limits.as_deref(), number.as_f64()) else { return };
        if let Some((least, exclusive)) = limits.minimum
            && (value < least || (exclusive && value <= least))
        {
            let or_equal = if exclusive { "" } else { " or equal to" };
            self.invalid(number, &format!("must be greater than{or_equal} {least}"));
        }
        if let Some((most, exclusive)) = limits.maximum
            && (value > most || (exclusive && value >= most))
        {
            let or_equal = if exclusive { "" } else { " or equal to" };
            self.invalid(number, &format!("must be less than{or_equal} {most}"));
        }
        if let Some(factor) = limits.multiple_of
            && !is_multiple(value, factor)
        {
            self.invalid(number, &format!("must be a multiple of {factor}"));
        }
    }

    fn choices(&mut self, limits: &Limits, value: &Value) {
        self.steps += limits.choices.len() / COMPARISONS_PER_STEP;
        if limits.choices.is_empty() || limits.choices.contains(value) {
            return;
        }
        let mut choices: Vec<String> = limits.choices.iter().take(MAX_SHOWN).map(show).collect();
        if limits.choices.len() > MAX_SHOWN {
            choices.push("…".to_owned());
        }
        let message = format!("Unsupported value: {}: supported values: {}", show(value), choices.join(", "));
        self.report("FieldValueNotSupported", message);
    }

    /// Checks the combined schemas.
    fn combined(&mut self, limits: &Limits, value: &Value, before: Option<&Value>) {
        for schema in &limits.all_of {
            self.check_value(schema, value, before);
        }
        let holding = |checker: &mut Self, schemas: &[Arc<Schema>]| {
            schemas.iter().filter(|schema| checker.holds(schema, value)).count()
        };
        if !limits.any_of.is_empty() && holding(self, &limits.any_of) == 0 {
            self.invalid(value, "must validate at least one schema (anyOf)");
        }
        if !limits.one_of.is_empty() && holding(self, &limits.one_of) != 1 {
            self.invalid(value, "must validate one and only one schema (oneOf)");
        }
        if limits.not.as_ref().is_some_and(|schema| self.holds(schema, value)) {
            self.invalid(value, "must not validate the schema (not)");
        }
    }

    /// Returns whether a value matches a schema, without reporting problems.
    fn holds(&mut self, schema: &Schema, value: &Value) -> bool {
        let reported = std::mem::take(&mut self.causes);
        self.value(schema, value, None);
        std::mem::replace(&mut self.causes, reported).is_empty()
    }

    fn count(&mut self, count: usize, least: Option<u64>, most: Option<u64>, what: &str) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let plural = |number: u64| if number == 1 { "" } else { "s" };
        if let Some(least) = least.filter(|&least| count < least) {
            self.invalid(count, &format!("must have at least {least} {what}{}", plural(least)));
        }
        if let Some(most) = most.filter(|&most| count > most) {
            let message = format!("must have at most {most} {what}{}", plural(most));
            match what {
                "character" => self.report("FieldValueTooLong", format!("Too long: {message}")),
                _ => self.report("FieldValueTooMany", format!("Too many: {count}: {message}")),
            }
        }
    }

    fn invalid(&mut self, value: impl Into<Shown>, problem: &str) {
        let Shown(shown) = value.into();
        self.report("FieldValueInvalid", format!("Invalid value: {shown}: {problem}"));
    }

    fn report(&mut self, reason: &str, message: String) {
        if self.causes.len() < MAX_PROBLEMS {
            self.causes.push(Cause { reason: reason.to_owned(), message, field: self.path.clone() });
        }
    }

    fn within(&mut self, name: &str, check: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        check(self);
        self.path.truncate(length);
    }

    fn at(&mut self, index: usize, check: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push_str(&format!("[{index}]"));
        check(self);
        self.path.truncate(length);
    }
}

/// A value formatted for messages.
struct Shown(String);

impl From<&str> for Shown {
    fn from(text: &str) -> Self {
        let mut shown: String = text.chars().take(MAX_SHOWN).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        Self(format!("{shown:?}"))
    }
}

impl From<&Number> for Shown {
    fn from(number: &Number) -> Self {
        Self(number.to_string())
    }
}

impl From<u64> for Shown {
    fn from(number: u64) -> Self {
        Self(number.to_string())
    }
}

impl From<&Value> for Shown {
    fn from(value: &Value) -> Self {
        Self(show(value))
    }
}

/// Formats a value for a message: scalars as they are, identities of items as JSON, other values by
/// their type.
fn show(value: &Value) -> String {
    match value {
        Value::String(text) => Shown::from(text.as_str()).0,
        Value::Array(_) => "an array".to_owned(),
        Value::Object(fields) if fields.values().any(|field| field.is_object() || field.is_array()) => {
            "an object".to_owned()
        }
        Value::Object(fields) if fields.len() > 4 => "an object".to_owned(),
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, field)| format!("{}:{}", Shown::from(name.as_str()).0, show(field)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

fn has_type(schema: &Schema, value: &Value) -> bool {
    match schema.kind {
        Type::Any => true,
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
        Type::String => value.is_string(),
        Type::Integer => value.as_number().is_some_and(|number| whole(number).is_some()),
        Type::Number => value.is_number(),
        Type::Boolean => value.is_boolean(),
        Type::IntOrString if &*schema.format == "quantity" => value.is_string() || value.is_number(),
        Type::IntOrString => {
            value.is_string() || value.as_number().is_some_and(|number| whole(number).is_some())
        }
    }
}

fn type_name(schema: &Schema) -> &'static str {
    match schema.kind {
        Type::Any => "anything",
        Type::Object => "an object",
        Type::Array => "an array",
        Type::String => "a string",
        Type::Integer => "an integer",
        Type::Number => "a number",
        Type::Boolean => "a boolean",
        Type::IntOrString if &*schema.format == "quantity" => "a quantity, a number or a string",
        Type::IntOrString => "an integer or a string",
    }
}

/// Returns the fields that identify an item of a list.
fn identity<'a>(item: &'a Value, keys: &[Arc<str>]) -> Cow<'a, Value> {
    let Value::Object(fields) = item else { return Cow::Borrowed(item) };
    let keys = keys.iter().filter_map(|key| Some((key.to_string(), fields.get(key.as_ref())?.clone())));
    Cow::Owned(Value::Object(keys.collect()))
}

/// Items of a keyed list, by their keys.
pub(crate) struct ByKeys<'a> {
    keys: &'a [Arc<str>],
    items: HashMap<String, &'a Value>,
}

impl<'a> ByKeys<'a> {
    /// Indexes a list; `None` if it has no keys.
    pub(crate) fn of(schema: &'a Schema, list: &'a Value) -> Option<Self> {
        let (ListType::Map(keys), Value::Array(items)) = (&schema.list, list) else { return None };
        let items = items.iter().map(|item| (identity(item, keys).to_string(), item)).collect();
        Some(Self { keys, items })
    }

    /// Returns the item with the same keys.
    pub(crate) fn item(&self, item: &Value) -> Option<&'a Value> {
        self.items.get(&identity(item, self.keys).to_string()).copied()
    }
}

/// Returns whether a number is a multiple of another, tolerating binary rounding errors.
fn is_multiple(value: f64, factor: f64) -> bool {
    let quotient = value / factor;
    (quotient - quotient.round()).abs() <= 1e-9 * quotient.abs().max(1.0)
}
