//! Structural schemas of built-in kinds and of CustomResourceDefinitions: validation, defaults, list topology, validation
//! rules in CEL, Protocol Buffers of built-in kinds, and OpenAPI output. It is pure and knows neither HTTP nor storage. Read
//! [`Schema`] first.
//!
//! The vocabulary is that of OpenAPI v3 as Kubernetes restricts and extends it (`x-kubernetes-…`). Schemas are trees without
//! cycles: where a type contains itself (JSONSchemaProps), the inner one is [`Type::Any`] with unknown fields preserved.

#![warn(missing_docs)]

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

mod builtin;
mod check;
mod custom;
mod openapi;
mod rules;

pub use builtin::{Content, Found, Many, Message, MessageField, Within, message, message_of_kind};
pub use builtin::{builtin, object_meta};
pub use check::apply_defaults_within;
pub use check::{
    MAX_DEFAULTS, MAX_UNKNOWN, apply_defaults, keep_empty, prune, validate, validate_change, wrong_types,
};
pub use custom::read;
pub use openapi::to_openapi;
pub use rules::{RuleProblems, Rules, check_defaults, check_rules, rule_problems};

/// What a value may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Type {
    /// Anything, unchecked.
    #[default]
    Any,
    /// An object: `properties` and `additional` say of what.
    Object,
    /// A list: `items` says of what.
    Array,
    /// A text.
    String,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// True or false.
    Boolean,
    /// A whole number or a text (`x-kubernetes-int-or-string`), as in ports and quantities.
    IntOrString,
}

/// Who owns what in a list, and what identifies an item (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// The list is one value.
    #[default]
    Atomic,
    /// Scalars, each at most once.
    Set,
    /// Objects, told apart by these fields (`x-kubernetes-list-map-keys`).
    Map(Vec<Arc<str>>),
}

/// How a strategic merge patch treats a field (`x-kubernetes-patch-strategy`, `x-kubernetes-patch-merge-key`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PatchStrategy {
    /// Objects are merged, lists replaced.
    #[default]
    Default,
    /// A list whose items are merged: objects by this key, scalars as a set if there is none.
    Merge {
        /// The field that identifies an item.
        key: Option<Arc<str>>,
        /// Whether `$retainKeys` is understood within.
        retain_keys: bool,
    },
    /// An object of which only the fields in `$retainKeys` survive.
    RetainKeys,
}

/// The format of times that built-in kinds have, with whole seconds and with six digits of the second. Clients are told
/// `date-time`, which in custom kinds is any such time and stays as it was written.
const TIME: &str = "date-time/0";
const MICRO_TIME: &str = "date-time/6";

/// What a value must be like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// Its type.
    pub kind: Type,
    /// What people read in `kubectl explain`; empty if nothing is said.
    pub description: Arc<str>,
    /// `int32`, `int64`, `date-time`, `byte`, …; empty if nothing is said.
    pub format: Arc<str>,
    /// The fields of an object.
    pub properties: BTreeMap<Arc<str>, Arc<Schema>>,
    /// The values of a map; `None` if only `properties` are known.
    pub additional: Option<Arc<Schema>>,
    /// The items of a list.
    pub items: Option<Arc<Schema>>,
    /// Fields that must be there.
    pub required: Vec<Arc<str>>,
    /// Fields that mean the same with an empty value as without: nought, no, nothing, an empty object.
    pub omitted: Vec<Arc<str>>,
    /// What a missing field becomes.
    pub default: Option<Value>,
    /// Whether `null` is a value.
    pub nullable: bool,
    /// Whether fields that are not known are kept (`x-kubernetes-preserve-unknown-fields`).
    pub preserve_unknown: bool,
    /// Whether this is a whole object with `apiVersion`, `kind`, `metadata` (`x-kubernetes-embedded-resource`).
    pub embedded_resource: bool,
    /// How a list is owned and merged by an apply.
    pub list: ListType,
    /// Whether an object is one value for an apply (`x-kubernetes-map-type: atomic`).
    pub atomic_map: bool,
    /// How a strategic merge patch treats it.
    pub patch: PatchStrategy,
    /// Limits of values; boxed, because most schemas have none.
    pub limits: Option<Box<Limits>>,
    /// Rules in CEL (`x-kubernetes-validations`).
    pub rules: Option<Arc<Rules>>,
    /// Whether there are rules here or below.
    pub ruled: bool,
}

/// Limits of values, each absent if there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// The values that are allowed; empty for all.
    pub choices: Vec<Value>,
    /// A regular expression that texts must match somewhere.
    pub pattern: Option<Arc<str>>,
    /// Shortest text, in characters.
    pub min_length: Option<u64>,
    /// Longest text, in characters.
    pub max_length: Option<u64>,
    /// Fewest items.
    pub min_items: Option<u64>,
    /// Most items.
    pub max_items: Option<u64>,
    /// Fewest fields.
    pub min_properties: Option<u64>,
    /// Most fields.
    pub max_properties: Option<u64>,
    /// Whether items must differ.
    pub unique_items: bool,
    /// Smallest number, and whether it is itself too small.
    pub minimum: Option<(f64, bool)>,
    /// Largest number, and whether it is itself too large.
    pub maximum: Option<(f64, bool)>,
    /// A number of which values must be a multiple.
    pub multiple_of: Option<f64>,
    /// All, any, exactly one or none of further schemas must hold.
    pub all_of: Vec<Arc<Schema>>,
    /// At least one of these must hold, if there are any.
    pub any_of: Vec<Arc<Schema>>,
    /// Exactly one of these must hold, if there are any.
    pub one_of: Vec<Arc<Schema>>,
    /// This must not hold.
    pub not: Option<Arc<Schema>>,
}

impl Schema {
    /// The schema of a field: that of the property, or that of the values of a map.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Arc<Schema>> {
        self.properties.get(name).or(self.additional.as_ref())
    }
}
