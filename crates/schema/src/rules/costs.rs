//! Estimated costs of rules, with the limits of Kubernetes. Pure.
//!
//! A rule costs what its expression costs for the largest value that the schema allows, for each
//! value that an object may contain. Without limits in the schema, the size of a request limits
//! both.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Limits, Schema, Type};
use edgesync_cel::Sizes;
use edgesync_object::status::Cause;

/// Size of the largest request of Kubernetes, in bytes.
const MAX_REQUEST: u64 = 3 << 20;
/// Maximum estimated cost of a rule or of its message.
const MAX_RULE: u64 = 10_000_000;
/// Maximum estimated cost of all rules of a schema.
const MAX_SCHEMA: u64 = 100_000_000;
/// Maximum number of rules that an exceeded total names.
const MAX_NAMED: usize = 4;
/// Maximum bytes of a character.
const CHARACTER: u64 = 4;
/// Maximum length of an object's name.
const MAX_NAME: u64 = 253;
/// Quotes, brackets or braces of a value.
const ENCLOSING: u64 = 2;

/// The extent of the values of a schema in JSON.
#[derive(Clone, Debug, Default)]
pub(super) struct Extent {
    pub(super) sizes: Arc<Sizes>,
    /// Minimum number of bytes.
    min_bytes: u64,
}

/// How many values of a schema an object may contain; `None` without limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count(Option<u64>);

impl Count {
    pub(super) const ONE: Self = Self(Some(1));

    /// Returns the count of the parts of each value.
    pub(super) fn times(self, parts: Option<u64>) -> Self {
        Self(self.0.zip(parts).map(|(count, parts)| count.saturating_mul(parts)))
    }

    /// Returns the number of values of this extent.
    fn of(self, extent: &Extent) -> u64 {
        // A comma separates two values.
        self.0.unwrap_or(MAX_REQUEST / (extent.min_bytes + 1))
    }
}

impl Extent {
    fn new(max: u64, min_bytes: u64) -> Self {
        Self { sizes: Arc::new(Sizes { max, ..Sizes::default() }), min_bytes }
    }

    /// Returns the extent of values without parts.
    pub(super) fn of_scalar(schema: &Schema) -> Self {
        let limits = schema.limits.as_deref();
        let max_length = limits.and_then(|limits| limits.max_length);
        let text = |min_bytes: u64| {
            let longest = || limits.and_then(longest_choice).filter(|_| schema.kind == Type::String);
            let max = max_length.map(|length| length.saturating_mul(CHARACTER)).or_else(longest);
            Self::new(max.unwrap_or(MAX_REQUEST - ENCLOSING), min_bytes)
        };
        match (schema.kind, &*schema.format) {
            (Type::IntOrString, _) => text(1),
            (Type::Boolean, _) => Self::new(0, 4),
            (Type::String, "byte") => Self::new(max_length.unwrap_or(MAX_REQUEST - ENCLOSING), ENCLOSING),
            (Type::String, "duration") => Self::new(32, 3),
            (Type::String, "date") => Self::new(12, 12),
            (Type::String, "date-time") => Self::new(32, 21),
            (Type::String, _) => text(ENCLOSING),
            _ => Self::new(0, 1),
        }
    }

    /// Returns the extent of a list of at most so many items.
    pub(super) fn of_list(item: Self, max: Option<u64>) -> Self {
        let max = max.unwrap_or((MAX_REQUEST - ENCLOSING) / (item.min_bytes + 1));
        let sizes = Sizes { max, items: Some(item.sizes), ..Sizes::default() };
        Self { sizes: Arc::new(sizes), min_bytes: ENCLOSING }
    }

    /// Returns the extent of a map of at most so many values.
    pub(super) fn of_map(value: Self, max: Option<u64>) -> Self {
        // Two bytes of a key, its quotes, a colon and a comma.
        let max = max.unwrap_or((MAX_REQUEST - ENCLOSING) / (value.min_bytes + 6));
        let sizes = Sizes { max, items: Some(value.sizes), is_map: true, ..Sizes::default() };
        Self { sizes: Arc::new(sizes), min_bytes: ENCLOSING }
    }
}

/// Returns the length of the longest allowed value, if only some are allowed.
fn longest_choice(limits: &Limits) -> Option<u64> {
    let length = |choice: &serde_json::Value| choice.as_str().map_or(0, str::len) as u64;
    limits.choices.iter().map(length).max()
}

/// The fields of an object, as they are declared.
#[derive(Default)]
pub(super) struct Fields {
    sizes: BTreeMap<Arc<str>, Arc<Sizes>>,
    /// Minimum number of bytes of the required fields.
    required_bytes: u64,
}

impl Fields {
    /// Adds a field. `escaped` is its name in expressions, if it has one. A default need not be
    /// sent.
    pub(super) fn add(&mut self, name: &str, escaped: Option<Arc<str>>, field: Extent, is_sent: bool) {
        if is_sent {
            // Quotes, a colon and a comma.
            self.required_bytes += name.len() as u64 + field.min_bytes + 4;
        }
        if let Some(escaped) = escaped {
            self.sizes.insert(escaped, field.sizes);
        }
    }

    /// Adds the fields of every object. Those named here are required.
    pub(super) fn add_object_fields(&mut self, required: &[Arc<str>]) {
        let mut metadata = Self::default();
        for (name, max) in [("name", MAX_NAME), ("generateName", MAX_NAME - 1)] {
            metadata.add(name, Some(name.into()), Extent::new(max * CHARACTER, ENCLOSING), false);
        }
        let text = || Extent::new(MAX_REQUEST - ENCLOSING, ENCLOSING);
        for (name, field) in [("apiVersion", text()), ("kind", text()), ("metadata", metadata.into_extent())]
        {
            let is_required = required.iter().any(|required| **required == *name);
            self.add(name, Some(name.into()), field, is_required);
        }
    }

    pub(super) fn into_extent(self) -> Extent {
        let sizes = Sizes { fields: self.sizes, ..Sizes::default() };
        Extent { sizes: Arc::new(sizes), min_bytes: ENCLOSING + self.required_bytes }
    }
}

/// Estimated costs of a rule and of its message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    /// For all values of an object.
    pub(super) rule: u64,
    /// For the message of one value.
    pub(super) message: u64,
}

impl Costs {
    pub(super) fn new(rule: u64, message: u64, count: Count, extent: &Extent) -> Self {
        Self { rule: rule.saturating_mul(count.of(extent)), message }
    }
}

/// The costs of all rules of a schema.
#[derive(Default)]
pub(super) struct Total {
    cost: u64,
    /// The path and cost of the most expensive rules.
    expensive: Vec<(String, u64)>,
    causes: Vec<Cause>,
}

impl Total {
    /// Adds a rule at a path.
    pub(super) fn add(&mut self, path: &str, costs: Costs) {
        for (keyword, cost) in [("rule", costs.rule), ("messageExpression", costs.message)] {
            let path = || format!("{path}.{keyword}");
            if cost > MAX_RULE {
                let what = format!("estimated {keyword} cost");
                self.causes.push(Cause::forbidden(&path(), &exceeded(&what, cost, MAX_RULE)));
            }
            self.cost = self.cost.saturating_add(cost);
            if cost >= MAX_SCHEMA / 100 {
                self.expensive.push((path(), cost));
            }
        }
    }

    /// Returns the exceeded limits of the schema at a path.
    pub(super) fn into_causes(mut self, path: &str) -> Vec<Cause> {
        if self.cost > MAX_SCHEMA {
            self.expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
            for (path, _) in self.expensive.iter().take(MAX_NAMED) {
                let message = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
                self.causes.push(Cause::forbidden(path, message));
            }
            let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
            self.causes.push(Cause::forbidden(path, &exceeded(what, self.cost, MAX_SCHEMA)));
        }
        self.causes
    }
}

fn exceeded(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        // Not "1.0x".
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, \
         maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests;
