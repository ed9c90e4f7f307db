//! Structural schemas of built-in kinds and of CustomResourceDefinitions: validation, defaults,
//! list topology, CEL validation rules, Protocol Buffers of built-in kinds, and OpenAPI output.
//! Pure, without HTTP and storage. Read [`Schema`] first.
//!
//! The vocabulary is that of OpenAPI v3 as Kubernetes restricts and extends it (`x-kubernetes-…`).
//! Schemas are trees without cycles: where a type contains itself (JSONSchemaProps), the inner one
//! is [`Type::Any`] with unknown fields preserved.

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

/// Type of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Type {
    /// Any value, unchecked: the schema has no `type`.
    #[default]
    Any,
    /// An object with `properties` or `additional`.
    Object,
    /// A list of `items`.
    Array,
    /// A string of any length.
    String,
    /// A whole number, possibly written as `1.0`.
    Integer,
    /// A number, whole or not.
    Number,
    /// `true` or `false`, unquoted.
    Boolean,
    /// A whole number or a string (`x-kubernetes-int-or-string`), as in ports and quantities.
    IntOrString,
}

/// Ownership of a list, and identity of its items (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// The list is one value.
    #[default]
    Atomic,
    /// Unique scalars, each owned separately.
    Set,
    /// Objects identified by these fields (`x-kubernetes-list-map-keys`).
    Map(Vec<Arc<str>>),
}

/// Treatment by a strategic merge patch (`x-kubernetes-patch-strategy`,
/// `x-kubernetes-patch-merge-key`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PatchStrategy {
    /// Objects are merged, lists replaced.
    #[default]
    Default,
    /// A list whose items are merged: objects by this key, scalars as a set without one.
    Merge {
        /// The field that identifies an item.
        key: Option<Arc<str>>,
        /// Whether `$retainKeys` is supported within.
        retain_keys: bool,
    },
    /// An object that keeps only the fields listed in `$retainKeys`.
    RetainKeys,
}

/// Formats of times in built-in kinds, with whole seconds and with microseconds. Clients see
/// `date-time`, which in custom kinds is any such time and stays as written.
const TIME: &str = "date-time/0";
const MICRO_TIME: &str = "date-time/6";

/// Structural schema of a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// Type of the value.
    pub kind: Type,
    /// Description for `kubectl explain`; may be empty.
    pub description: Arc<str>,
    /// `int32`, `int64`, `date-time`, `byte`, …; may be empty.
    pub format: Arc<str>,
    /// Fields of an object.
    pub properties: BTreeMap<Arc<str>, Arc<Schema>>,
    /// Schema of a map's values; `None` if only `properties` are allowed.
    pub additional: Option<Arc<Schema>>,
    /// Schema of a list's items.
    pub items: Option<Arc<Schema>>,
    /// Names of required fields.
    pub required: Vec<Arc<str>>,
    /// Names of fields where an empty value (zero, false, an empty object) means the same as an
    /// absent one.
    pub omitted: Vec<Arc<str>>,
    /// Default of a missing field.
    pub default: Option<Value>,
    /// Whether `null` is allowed.
    pub nullable: bool,
    /// Whether unknown fields are preserved (`x-kubernetes-preserve-unknown-fields`).
    pub preserve_unknown: bool,
    /// Whether it is a whole object with `apiVersion`, `kind`, `metadata`
    /// (`x-kubernetes-embedded-resource`).
    pub embedded_resource: bool,
    /// Ownership of a list's items by apply.
    pub list: ListType,
    /// Whether apply treats an object as one value (`x-kubernetes-map-type: atomic`).
    pub atomic_map: bool,
    /// Treatment by a strategic merge patch.
    pub patch: PatchStrategy,
    /// Limits of values; boxed, because most schemas have none.
    pub limits: Option<Box<Limits>>,
    /// CEL rules on this value itself (`x-kubernetes-validations`).
    pub rules: Option<Arc<Rules>>,
    /// Whether this schema or one below has rules.
    pub ruled: bool,
}

/// Limits of values; absent ones do not apply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Allowed values; empty for all.
    pub choices: Vec<Value>,
    /// Regular expression that must match a part of the string.
    pub pattern: Option<Arc<str>>,
    /// Minimum length of a string in characters.
    pub min_length: Option<u64>,
    /// Maximum length of a string in characters.
    pub max_length: Option<u64>,
    /// Minimum number of items.
    pub min_items: Option<u64>,
    /// Maximum number of items.
    pub max_items: Option<u64>,
    /// Minimum number of fields.
    pub min_properties: Option<u64>,
    /// Maximum number of fields.
    pub max_properties: Option<u64>,
    /// Whether items must be unique.
    pub unique_items: bool,
    /// Minimum of a number, and whether it is exclusive.
    pub minimum: Option<(f64, bool)>,
    /// Maximum of a number, and whether it is exclusive.
    pub maximum: Option<(f64, bool)>,
    /// Divisor: the value must be a multiple of it.
    pub multiple_of: Option<f64>,
    /// Schemas that must all hold.
    pub all_of: Vec<Arc<Schema>>,
    /// At least one of these schemas must hold, if there are any.
    pub any_of: Vec<Arc<Schema>>,
    /// Exactly one of these schemas must hold, if there are any.
    pub one_of: Vec<Arc<Schema>>,
    /// Schema that must not hold.
    pub not: Option<Arc<Schema>>,
}

impl Schema {
    /// Returns the schema of a field: that of the property, or that of a map's values.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Arc<Schema>> {
        self.properties.get(name).or(self.additional.as_ref())
    }
}
