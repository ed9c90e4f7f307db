//! Schemas of CustomResourceDefinitions: parses `openAPIV3Schema`, and refuses non-structural
//! schemas. Depends on `schema` only.
//!
//! Structural means that every field has a type, and `allOf`, `anyOf`, `oneOf` and `not` only
//! restrict what is specified outside of them. CEL rules (`x-kubernetes-validations`) are compiled;
//! titles, examples and unknown keywords are ignored. Specifications of `apiVersion`, `kind` and
//! `metadata` of a whole object are replaced by the common ones.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::builtin::add_object_fields;
use super::check::{PatternCheck, value_problems};
use super::openapi::int_or_string;
use super::rules;
use super::{Limits, ListType, Schema, Type};
use edgesync_object::status::{Cause, MAX_CAUSES};

mod keywords;

use keywords::Keywords;

/// Maximum nesting of a schema. Request bodies are limited before, by
/// [`edgesync_object::MAX_DEPTH`].
const MAX_NESTING: usize = 64;
/// Maximum number of schemas within a schema.
const MAX_SCHEMAS: usize = 20_000;
/// Maximum number of rules in a schema, and of bytes in their texts: compiling takes time.
const MAX_RULES: usize = 2000;
const MAX_RULE_BYTES: usize = 500_000;
/// Maximum number of keys that identify the items of a list.
const MAX_LIST_KEYS: usize = 64;
/// OpenAPI and JSON Schema keywords that structural schemas must not have.
const FORBIDDEN: &[&str] = &[
    "$ref",
    "definitions",
    "dependencies",
    "deprecated",
    "discriminator",
    "id",
    "patternProperties",
    "readOnly",
    "writeOnly",
    "xml",
];
/// Keywords that must be outside of `allOf`, `anyOf`, `oneOf` and `not`.
const ONLY_OUTSIDE: &[&str] = &[
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "type",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    RULES,
];
/// Keyword of CEL rules.
const RULES: &str = "x-kubernetes-validations";

/// Parses the schema of a CustomResourceDefinition's version, located at the path `field` in it.
///
/// # Errors
/// All problems, at most [`MAX_CAUSES`] causes with their paths.
pub fn read(openapi: &Value, field: &str) -> Result<Schema, Vec<Cause>> {
    let mut reader = Reader { path: field.to_owned(), ..Reader::default() };
    let mut schema = reader.schema(openapi, Position::Root);
    if schema.kind != Type::Object && reader.causes.is_empty() {
        reader.within("type", |reader| reader.invalid(&openapi["type"], "must be 'object' at the root"));
    }
    if reader.causes.is_empty() {
        add_object_fields(&mut schema.properties);
        rules::compile(&mut schema, reader.skipped.split_off(0));
        reader.check_defaults(&schema);
    }
    if reader.causes.is_empty() { Ok(schema) } else { Err(reader.causes) }
}

/// Position of a schema.
#[derive(Clone, Copy, PartialEq)]
enum Position {
    Root,
    /// A field, an item or a value of a map.
    Inner,
    /// Within `allOf`, `anyOf`, `oneOf` or `not`.
    Restriction,
    /// Within a restriction of an int-or-string value, where types may be distinguished.
    IntOrString,
}

impl Position {
    fn is_restriction(self) -> bool {
        matches!(self, Self::Restriction | Self::IntOrString)
    }
}

#[derive(Default)]
struct Reader {
    path: String,
    causes: Vec<Cause>,
    schemas: usize,
    nesting: usize,
    /// Nesting depth within `anyOf`, `oneOf` and `not`.
    choices: usize,
    /// Rules at positions where none are evaluated.
    skipped: Vec<String>,
    patterns: PatternCheck,
    /// Number of rules so far, and bytes of their texts.
    rules: (usize, usize),
}

impl Reader {
    fn schema(&mut self, openapi: &Value, position: Position) -> Schema {
        self.schemas += 1;
        let Value::Object(keywords) = openapi else {
            self.invalid(openapi, "must be a schema, an object");
            return Schema::default();
        };
        if self.nesting >= MAX_NESTING || self.schemas > MAX_SCHEMAS {
            if self.schemas <= MAX_SCHEMAS + 1 {
                let message =
                    format!("must not consist of more than {MAX_SCHEMAS} schemas, {MAX_NESTING} deep");
                self.invalid(&Value::Null, &message);
            }
            return Schema::default();
        }
        self.nesting += 1;
        self.forbidden(keywords, position);
        let mut schema = self.base(keywords, position);
        self.contents(keywords, position, &mut schema);
        self.ownership(keywords, &mut schema);
        let given = Keywords { keywords, reader: self }.values(RULES);
        if position.is_restriction() {
            self.skip_rules(openapi, "rules within `allOf`");
        } else if !given.is_empty() && self.count_rules(&given) {
            schema.rules = Some(rules::given(given.into()));
        }
        let limits = self.limits(keywords, schema.kind, position);
        if limits != Limits::default() {
            if !position.is_restriction() {
                self.check_restrictions(&schema, &limits);
            }
            schema.limits = Some(Box::new(limits));
        }
        self.nesting -= 1;
        schema
    }

    /// Returns whether the rules, with all earlier ones, are within the limits.
    fn count_rules(&mut self, given: &[Value]) -> bool {
        let texts = given.iter().filter_map(Value::as_object).flat_map(Map::values).filter_map(Value::as_str);
        let before = self.rules;
        self.rules = (before.0 + given.len(), before.1 + texts.map(str::len).sum::<usize>());
        let fit = |(rules, bytes)| rules <= MAX_RULES && bytes <= MAX_RULE_BYTES;
        if fit(before) && !fit(self.rules) {
            let message =
                format!("must not have more than {MAX_RULES} rules of {MAX_RULE_BYTES} bytes in a schema");
            self.within(RULES, |reader| reader.forbid(&message));
        }
        fit(self.rules)
    }

    fn forbidden(&mut self, keywords: &Map<String, Value>, position: Position) {
        for &name in FORBIDDEN.iter().filter(|&&name| keywords.contains_key(name)) {
            self.within(name, |reader| reader.forbid("must not be used in a structural schema"));
        }
        if !position.is_restriction() {
            return;
        }
        for &name in ONLY_OUTSIDE.iter().filter(|&&name| keywords.contains_key(name)) {
            let allowed = match name {
                "type" => position == Position::IntOrString,
                // Not evaluated, and no error: see `skip_rules`.
                RULES => self.choices == 0,
                _ => false,
            };
            if !allowed {
                let message = "must not be used within `allOf`, `anyOf`, `oneOf` and `not`";
                self.within(name, |reader| reader.forbid(message));
            }
        }
    }

    fn base(&mut self, keywords: &Map<String, Value>, position: Position) -> Schema {
        let mut read = Keywords { keywords, reader: self };
        let preserve_unknown = read.flag("x-kubernetes-preserve-unknown-fields");
        let int_or_string = read.flag("x-kubernetes-int-or-string");
        let kind = match read.text("type").as_deref() {
            _ if int_or_string => Type::IntOrString,
            None => Type::Any,
            Some("object") => Type::Object,
            Some("array") => Type::Array,
            Some("string") => Type::String,
            Some("integer") => Type::Integer,
            Some("number") => Type::Number,
            Some("boolean") => Type::Boolean,
            Some(other) => {
                let message = "must be 'object', 'array', 'string', 'integer', 'number' or 'boolean'";
                read.invalid("type", &Value::from(other), message);
                Type::Any
            }
        };
        let schema = Schema {
            kind,
            description: read.text("description").unwrap_or_default(),
            format: read.text("format").unwrap_or_default(),
            required: read.texts("required"),
            default: keywords.get("default").filter(|default| !default.is_null()).cloned(),
            nullable: read.flag("nullable"),
            preserve_unknown,
            embedded_resource: read.flag("x-kubernetes-embedded-resource"),
            ..Schema::default()
        };
        let typed = kind != Type::Any || keywords.contains_key("type") || position.is_restriction();
        if int_or_string && keywords.contains_key("type") {
            self.within("type", |reader| {
                reader.forbid("must not be set together with `x-kubernetes-int-or-string`");
            });
        } else if !typed && (!preserve_unknown || position == Position::Root) {
            self.within("type", |reader| reader.require("must not be empty"));
        }
        schema
    }

    fn contents(&mut self, keywords: &Map<String, Value>, position: Position, schema: &mut Schema) {
        let inner = if position.is_restriction() { Position::Restriction } else { Position::Inner };
        match keywords.get("properties") {
            None => {}
            Some(Value::Object(fields)) => {
                for (name, field) in fields {
                    // Those of a whole object are common, see below.
                    let known = matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                    if known && (position == Position::Root || schema.embedded_resource) {
                        self.within("properties", |reader| {
                            reader.at(name, |reader| reader.skip_object_field_rules(field));
                        });
                        continue;
                    }
                    let field = self
                        .within("properties", |reader| reader.at(name, |reader| reader.schema(field, inner)));
                    schema.properties.insert(name.as_str().into(), Arc::new(field));
                }
            }
            Some(other) => self.within("properties", |reader| reader.invalid(other, "must be an object")),
        }
        if let Some(additional) = keywords.get("additionalProperties") {
            let whole = position == Position::Root || schema.embedded_resource;
            self.within("additionalProperties", |reader| match additional {
                _ if whole => reader.forbid("must not be used for a whole object"),
                // Additional fields are preserved.
                Value::Bool(true) if keywords.contains_key("properties") => schema.preserve_unknown = true,
                _ if keywords.contains_key("properties") => {
                    reader.forbid("must not be used together with `properties`");
                }
                Value::Bool(false) => reader.forbid("must not be false: fields are closed anyway"),
                Value::Bool(true) => {
                    let anything = Schema { preserve_unknown: true, ..Schema::default() };
                    schema.additional = Some(Arc::new(anything));
                }
                _ => schema.additional = Some(Arc::new(reader.schema(additional, inner))),
            });
        }
        if let Some(items) = keywords.get("items") {
            let items = self.within("items", |reader| reader.schema(items, inner));
            schema.items = Some(Arc::new(items));
        } else if schema.kind == Type::Array && !position.is_restriction() {
            self.within("items", |reader| reader.require("must be specified"));
        }
        if schema.embedded_resource {
            if schema.kind != Type::Object {
                self.within("type", |reader| reader.require("must be 'object' for an embedded resource"));
            }
            add_object_fields(&mut schema.properties);
        }
    }

    /// Skips rules of `apiVersion`, `kind`, `metadata` and its fields, whose schemas are replaced.
    fn skip_object_field_rules(&mut self, field: &Value) {
        let why = "rules of `metadata`; hint: use rules of the whole object";
        self.skip_rules(field, why);
        for (name, field) in field.get("properties").and_then(Value::as_object).into_iter().flatten() {
            self.within("properties", |reader| reader.at(name, |reader| reader.skip_rules(field, why)));
        }
    }

    /// Records rules that are not evaluated at their position.
    fn skip_rules(&mut self, schema: &Value, why: &str) {
        let given = schema.get(RULES).and_then(Value::as_array);
        let left = MAX_CAUSES.saturating_sub(self.skipped.len());
        for (number, rule) in given.into_iter().flatten().take(left).enumerate() {
            let text = rule.get("rule").and_then(Value::as_str).unwrap_or_default();
            let at = format!("{}.{RULES}[{number}].rule", self.path);
            self.skipped.push(rules::lacking(&at, text, why));
        }
    }

    /// Parses the ownership of lists and objects for apply.
    fn ownership(&mut self, keywords: &Map<String, Value>, schema: &mut Schema) {
        let mut read = Keywords { keywords, reader: self };
        let keys = read.texts("x-kubernetes-list-map-keys");
        let map_type = read.text("x-kubernetes-map-type");
        match map_type.as_deref() {
            None | Some("granular") => {}
            Some("atomic") => schema.atomic_map = true,
            Some(other) => {
                read.invalid("x-kubernetes-map-type", &Value::from(other), "must be 'atomic' or 'granular'");
            }
        }
        let list_type = read.text("x-kubernetes-list-type");
        if list_type.is_some() && schema.kind != Type::Array {
            let message = "must not be used for anything but arrays";
            self.within("x-kubernetes-list-type", |reader| reader.forbid(message));
            return;
        }
        match list_type.as_deref() {
            None | Some("atomic") => {}
            Some("set") => schema.list = ListType::Set,
            Some("map") => {
                self.check_keys(&keys, schema);
                schema.list = ListType::Map(keys);
                return;
            }
            Some(other) => {
                let other = Value::from(other);
                self.within("x-kubernetes-list-type", |reader| {
                    reader.invalid(&other, "must be 'atomic', 'set' or 'map'");
                });
            }
        }
        if !keys.is_empty() {
            self.within("x-kubernetes-list-map-keys", |reader| {
                reader.forbid("must not be set unless `x-kubernetes-list-type` is 'map'");
            });
        }
    }

    fn check_keys(&mut self, keys: &[Arc<str>], schema: &Schema) {
        let Some(items) = schema.items.as_deref() else { return };
        if keys.is_empty() {
            self.within("x-kubernetes-list-map-keys", |reader| {
                reader.require("must name at least one field");
            });
        }
        if keys.len() > MAX_LIST_KEYS {
            // Each item of a list is checked for each key.
            return self.within("x-kubernetes-list-map-keys", |reader| {
                reader.invalid(&keys.len().into(), &format!("must name at most {MAX_LIST_KEYS} fields"));
            });
        }
        for (index, key) in keys.iter().enumerate() {
            let field = items.properties.get(key);
            let scalar = field.is_some_and(|field| {
                !matches!(field.kind, Type::Any | Type::Object | Type::Array) && !field.nullable
            });
            let given = items.required.contains(key) || field.is_some_and(|field| field.default.is_some());
            let message = if !scalar {
                "must be a scalar field of the items"
            } else if !given {
                "must be required in the items or have a default"
            } else {
                continue;
            };
            let key = Value::from(&**key);
            self.within(&format!("x-kubernetes-list-map-keys[{index}]"), |reader| {
                reader.invalid(&key, message);
            });
        }
    }

    fn limits(&mut self, keywords: &Map<String, Value>, kind: Type, position: Position) -> Limits {
        let mut read = Keywords { keywords, reader: self };
        let mut limits = Limits {
            choices: read.values("enum"),
            pattern: read.text("pattern"),
            min_length: read.count("minLength"),
            max_length: read.count("maxLength"),
            min_items: read.count("minItems"),
            max_items: read.count("maxItems"),
            min_properties: read.count("minProperties"),
            max_properties: read.count("maxProperties"),
            unique_items: read.flag("uniqueItems"),
            minimum: read.bound("minimum", "exclusiveMinimum"),
            maximum: read.bound("maximum", "exclusiveMaximum"),
            multiple_of: read.number("multipleOf"),
            ..Limits::default()
        };
        if limits.unique_items {
            let message = "must not be true: use `x-kubernetes-list-type` 'set' or 'map'";
            self.within("uniqueItems", |reader| reader.forbid(message));
        }
        if let Some(factor) = limits.multiple_of.filter(|&factor| factor <= 0.0) {
            self.within("multipleOf", |reader| reader.invalid(&factor.into(), "must be greater than 0"));
        }
        let checked = limits.pattern.as_deref().map(|pattern| self.patterns.check(pattern));
        if let Some(Err(problem)) = checked {
            let pattern = limits.pattern.as_deref().map_or(Value::Null, Value::from);
            self.within("pattern", |reader| reader.invalid(&pattern, &problem));
        }
        let within = match kind {
            Type::IntOrString => Position::IntOrString,
            _ if position == Position::IntOrString => position,
            _ => Position::Restriction,
        };
        limits.all_of = self.restrictions(keywords, "allOf", within);
        self.choices += 1;
        // The redundant form of int-or-string is dropped.
        let is_redundant = kind == Type::IntOrString && keywords.get("anyOf") == Some(&int_or_string());
        if !is_redundant {
            limits.any_of = self.restrictions(keywords, "anyOf", within);
        }
        limits.one_of = self.restrictions(keywords, "oneOf", within);
        limits.not =
            keywords.get("not").map(|not| Arc::new(self.within("not", |reader| reader.schema(not, within))));
        self.choices -= 1;
        limits
    }

    fn restrictions(
        &mut self,
        keywords: &Map<String, Value>,
        name: &str,
        position: Position,
    ) -> Vec<Arc<Schema>> {
        let schemas = Keywords { keywords, reader: self }.values(name);
        let read = |(index, schema): (usize, &Value)| {
            let read = self.within(&format!("{name}[{index}]"), |reader| reader.schema(schema, position));
            Arc::new(read)
        };
        schemas.iter().enumerate().map(read).collect()
    }

    /// Checks that fields and items of restrictions are also specified outside of them.
    fn check_restrictions(&mut self, outside: &Schema, limits: &Limits) {
        let several = [("allOf", &limits.all_of), ("anyOf", &limits.any_of), ("oneOf", &limits.one_of)];
        for (name, schemas) in several {
            for (index, schema) in schemas.iter().enumerate() {
                self.within(&format!("{name}[{index}]"), |reader| reader.check_restriction(outside, schema));
            }
        }
        if let Some(not) = &limits.not {
            self.within("not", |reader| reader.check_restriction(outside, not));
        }
    }

    fn check_restriction(&mut self, outside: &Schema, inside: &Schema) {
        let message = "must also be specified outside of `allOf`, `anyOf`, `oneOf` and `not`";
        for (name, field) in &inside.properties {
            self.within("properties", |reader| {
                reader.at(name, |reader| match outside.field(name) {
                    Some(known) => reader.check_restriction(known, field),
                    None if outside.preserve_unknown => {}
                    None => reader.require(message),
                });
            });
        }
        if let Some(items) = &inside.items {
            self.within("items", |reader| match &outside.items {
                Some(known) => reader.check_restriction(known, items),
                None if outside.preserve_unknown => {}
                None => reader.require(message),
            });
        }
        if let Some(limits) = &inside.limits {
            self.check_restrictions(outside, limits);
        }
    }

    /// Checks that defaults comply with their schema.
    fn check_defaults(&mut self, schema: &Schema) {
        if let Some(default) = &schema.default {
            let problems = value_problems(schema, default, &format!("{}.default", self.path));
            let left = MAX_CAUSES.saturating_sub(self.causes.len());
            self.causes.extend(problems.into_iter().take(left));
        }
        for (name, field) in &schema.properties {
            self.within("properties", |reader| reader.at(name, |reader| reader.check_defaults(field)));
        }
        if let Some(additional) = &schema.additional {
            self.within("additionalProperties", |reader| reader.check_defaults(additional));
        }
        if let Some(items) = &schema.items {
            self.within("items", |reader| reader.check_defaults(items));
        }
    }

    fn invalid(&mut self, value: &Value, problem: &str) {
        let shown: String = value.to_string().chars().take(64).collect();
        self.report("FieldValueInvalid", format!("Invalid value: {shown}: {problem}"));
    }

    fn forbid(&mut self, problem: &str) {
        self.report("FieldValueForbidden", format!("Forbidden: {problem}"));
    }

    fn require(&mut self, problem: &str) {
        self.report("FieldValueRequired", format!("Required value: {problem}"));
    }

    fn report(&mut self, reason: &str, message: String) {
        if self.causes.len() < MAX_CAUSES {
            self.causes.push(Cause { reason: reason.to_owned(), message, field: self.path.clone() });
        }
    }

    /// Appends a keyword to the path of reported problems while `go` runs.
    fn within<T>(&mut self, name: &str, go: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        let result = go(self);
        self.path.truncate(length);
        result
    }

    /// Visits an entry of a map.
    fn at<T>(&mut self, key: &str, go: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push_str(&format!("[{key}]"));
        let result = go(self);
        self.path.truncate(length);
        result
    }
}

#[cfg(test)]
mod tests;
