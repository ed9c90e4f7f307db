//! The schemas of CustomResourceDefinitions: reads `openAPIV3Schema` and refuses what is not structural.
//! Depends on `schema` alone.
//!
//! Structural means: every field has a type, and `allOf`, `anyOf`, `oneOf` and `not` only restrict what is said
//! outside of them. Rules in CEL (`x-kubernetes-validations`) are compiled; titles, examples and unknown keywords are
//! passed over. What a schema says of `apiVersion`, `kind` and `metadata` of a whole object is replaced by
//! what every object has.

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

/// How deep a schema may nest. Bodies of requests stop at [`edgesync_object::MAX_DEPTH`] before.
const MAX_NESTING: usize = 64;
/// How many schemas a schema may consist of.
const MAX_SCHEMAS: usize = 20_000;
/// How many rules a schema may have, and how many bytes of text all of them together: reading them takes time.
const MAX_RULES: usize = 2000;
const MAX_RULE_BYTES: usize = 500_000;
/// The most fields by which the items of a list are told apart.
const MAX_LIST_KEYS: usize = 64;
/// Keywords of OpenAPI and JSON Schema that structural schemas must not have.
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
/// What must be said outside of `allOf`, `anyOf`, `oneOf` and `not`.
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
/// The keyword of rules in CEL.
const RULES: &str = "x-kubernetes-validations";

/// Reads the schema of a version of a CustomResourceDefinition, which stands at the path `field` in it.
///
/// # Errors
/// All that is wrong with it, at most [`MAX_CAUSES`] causes with their paths.
pub fn read(openapi: &Value, field: &str) -> Result<Schema, Vec<Cause>> {
    let mut reader = Reader { path: field.to_owned(), ..Reader::default() };
    let mut schema = reader.schema(openapi, Place::Root);
    if schema.kind != Type::Object && reader.causes.is_empty() {
        reader.within("type", |reader| reader.invalid(&openapi["type"], "must be 'object' at the root"));
    }
    if reader.causes.is_empty() {
        add_object_fields(&mut schema.properties);
        rules::compile(&mut schema, reader.passed_over.split_off(0));
        reader.check_defaults(&schema);
    }
    if reader.causes.is_empty() { Ok(schema) } else { Err(reader.causes) }
}

/// Where a schema stands.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Root,
    /// A field, an item or a value of a map.
    Inner,
    /// Within `allOf`, `anyOf`, `oneOf` or `not`.
    Restriction,
    /// The same, of a value that is a whole number or a text: types can be told apart.
    IntOrString,
}

impl Place {
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
    /// How many of `anyOf`, `oneOf` and `not` the reader is in.
    choices: usize,
    /// Rules that stand where none are evaluated.
    passed_over: Vec<String>,
    patterns: PatternCheck,
    /// How many rules there are so far, and the bytes of their texts.
    rules: (usize, usize),
}

impl Reader {
    fn schema(&mut self, openapi: &Value, place: Place) -> Schema {
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
        self.forbidden(keywords, place);
        let mut schema = self.base(keywords, place);
        self.contents(keywords, place, &mut schema);
        self.ownership(keywords, &mut schema);
        let given = Keywords { keywords, reader: self }.values(RULES);
        if place.is_restriction() {
            self.pass_over(openapi, "rules within `allOf`");
        } else if !given.is_empty() && self.may_rule(&given) {
            schema.rules = Some(rules::given(given.into()));
        }
        let limits = self.limits(keywords, schema.kind, place);
        if limits != Limits::default() {
            if !place.is_restriction() {
                self.check_restrictions(&schema, &limits);
            }
            schema.limits = Some(Box::new(limits));
        }
        self.nesting -= 1;
        schema
    }

    /// Whether these rules are not too many, with those before.
    fn may_rule(&mut self, given: &[Value]) -> bool {
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

    fn forbidden(&mut self, keywords: &Map<String, Value>, place: Place) {
        for &name in FORBIDDEN.iter().filter(|&&name| keywords.contains_key(name)) {
            self.within(name, |reader| reader.forbid("must not be used in a structural schema"));
        }
        if !place.is_restriction() {
            return;
        }
        for &name in ONLY_OUTSIDE.iter().filter(|&&name| keywords.contains_key(name)) {
            let allowed = match name {
                "type" => place == Place::IntOrString,
                // Not evaluated, and no mistake: see `pass_over`.
                RULES => self.choices == 0,
                _ => false,
            };
            if !allowed {
                let message = "must not be used within `allOf`, `anyOf`, `oneOf` and `not`";
                self.within(name, |reader| reader.forbid(message));
            }
        }
    }

    fn base(&mut self, keywords: &Map<String, Value>, place: Place) -> Schema {
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
        let typed = kind != Type::Any || keywords.contains_key("type") || place.is_restriction();
        if int_or_string && keywords.contains_key("type") {
            self.within("type", |reader| {
                reader.forbid("must not be set together with `x-kubernetes-int-or-string`");
            });
        } else if !typed && (!preserve_unknown || place == Place::Root) {
            self.within("type", |reader| reader.require("must not be empty"));
        }
        schema
    }

    fn contents(&mut self, keywords: &Map<String, Value>, place: Place, schema: &mut Schema) {
        let inner = if place.is_restriction() { Place::Restriction } else { Place::Inner };
        match keywords.get("properties") {
            None => {}
            Some(Value::Object(fields)) => {
                for (name, field) in fields {
                    // Those of a whole object are known, see below.
                    let known = matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                    if known && (place == Place::Root || schema.embedded_resource) {
                        self.within("properties", |reader| {
                            reader.at(name, |reader| reader.pass_over_known(field));
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
            let whole = place == Place::Root || schema.embedded_resource;
            self.within("additionalProperties", |reader| match additional {
                _ if whole => reader.forbid("must not be used for a whole object"),
                // Other fields are kept as they are.
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
        } else if schema.kind == Type::Array && !place.is_restriction() {
            self.within("items", |reader| reader.require("must be specified"));
        }
        if schema.embedded_resource {
            if schema.kind != Type::Object {
                self.within("type", |reader| reader.require("must be 'object' for an embedded resource"));
            }
            add_object_fields(&mut schema.properties);
        }
    }

    /// Rules of `apiVersion`, `kind`, `metadata` and its fields, whose schemas are replaced.
    fn pass_over_known(&mut self, field: &Value) {
        let why = "rules of what every object has; those of the whole object can look at it";
        self.pass_over(field, why);
        for (name, field) in field.get("properties").and_then(Value::as_object).into_iter().flatten() {
            self.within("properties", |reader| reader.at(name, |reader| reader.pass_over(field, why)));
        }
    }

    /// Rules that are not evaluated where they stand.
    fn pass_over(&mut self, schema: &Value, why: &str) {
        let given = schema.get(RULES).and_then(Value::as_array);
        let left = MAX_CAUSES.saturating_sub(self.passed_over.len());
        for (number, rule) in given.into_iter().flatten().take(left).enumerate() {
            let text = rule.get("rule").and_then(Value::as_str).unwrap_or_default();
            let at = format!("{}.{RULES}[{number}].rule", self.path);
            self.passed_over.push(rules::lacking(&at, text, why));
        }
    }

    /// How an apply owns lists and objects.
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
            // Each item of a list is looked at for each of them.
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

    fn limits(&mut self, keywords: &Map<String, Value>, kind: Type, place: Place) -> Limits {
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
            Type::IntOrString => Place::IntOrString,
            _ if place == Place::IntOrString => place,
            _ => Place::Restriction,
        };
        limits.all_of = self.restrictions(keywords, "allOf", within);
        self.choices += 1;
        // What only says again that the value is a whole number or a text is not kept.
        let says_again = kind == Type::IntOrString && keywords.get("anyOf") == Some(&int_or_string());
        if !says_again {
            limits.any_of = self.restrictions(keywords, "anyOf", within);
        }
        limits.one_of = self.restrictions(keywords, "oneOf", within);
        limits.not =
            keywords.get("not").map(|not| Arc::new(self.within("not", |reader| reader.schema(not, within))));
        self.choices -= 1;
        limits
    }

    fn restrictions(&mut self, keywords: &Map<String, Value>, name: &str, place: Place) -> Vec<Arc<Schema>> {
        let schemas = Keywords { keywords, reader: self }.values(name);
        let read = |(index, schema): (usize, &Value)| {
            let read = self.within(&format!("{name}[{index}]"), |reader| reader.schema(schema, place));
            Arc::new(read)
        };
        schemas.iter().enumerate().map(read).collect()
    }

    /// Fields and items of restrictions must be known outside of them.
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

    /// Defaults must be as their schema says.
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

    /// Goes to a keyword.
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

    /// Goes to an entry of a map.
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
