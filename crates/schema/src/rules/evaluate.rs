//! Holds objects against the rules of their schema. Pure, and bounded: each rule may cost so much, and all together.

use serde_json::{Map, Value};

use super::{Rule, Rules};
use crate::check::{ByKeys, default_value};
use crate::{MAX_DEFAULTS, Schema, Type};
use edgesync_cel::{Answer, Failure, Meter, Program, Regexes, Variable};
use edgesync_object::status::{Cause, MAX_CAUSES};

/// The most steps that one rule may cost for one value, and all rules for one object: the numbers of Kubernetes,
/// whose unit is about the same.
const MAX_STEPS: u64 = 1_000_000;
const MAX_STEPS_IN_ALL: u64 = 10_000_000;
/// The longest message that a rule makes, in bytes.
const MAX_MADE: usize = 5 * 1024;
/// What the root of an object is called in errors.
const ROOT: &str = "<nil>";

/// What an object does not comply with, of the rules of its schema; `old` is what it takes the place of. Who leaves a
/// value as it was does not answer for it, unless a rule is about the change.
#[must_use]
pub fn check_rules(schema: &Schema, old: Option<Map<String, Value>>, new: Map<String, Value>) -> Vec<Cause> {
    if !schema.ruled {
        return Vec::new();
    }
    // Rules see whole values.
    let (old, new) = (old.map(Value::Object), Value::Object(new));
    let mut judge = Judge { path: String::new(), causes: Vec::new(), left: MAX_STEPS_IN_ALL, over: false };
    let mut regexes = Regexes::default();
    judge.value(schema, &new, old.as_ref(), Place { root: true, unchanged: false }, &mut regexes);
    judge.causes
}

/// What the defaults of a schema, which stands at this path, do not comply with, each with what is missing within it.
/// All together may cost what one object may.
#[must_use]
pub fn check_defaults(schema: &Schema, path: &str) -> Vec<Cause> {
    let mut judge = Judge { path: path.to_owned(), causes: Vec::new(), left: MAX_STEPS_IN_ALL, over: false };
    let (mut left, mut regexes) = (MAX_DEFAULTS, Regexes::default());
    judge.defaults(schema, &mut left, &mut regexes);
    judge.causes
}

struct Judge {
    path: String,
    causes: Vec<Cause>,
    left: u64,
    /// Whether no further rule is looked at.
    over: bool,
}

/// Where a value stands.
#[derive(Clone, Copy)]
struct Place {
    /// Whether it is the whole object.
    root: bool,
    /// Whether it is known to be as it was, since what it is a part of is.
    unchanged: bool,
}

impl Judge {
    fn value(
        &mut self,
        schema: &Schema,
        new: &Value,
        old: Option<&Value>,
        Place { root, unchanged }: Place,
        regexes: &mut Regexes,
    ) {
        if !schema.ruled || self.over || new.is_null() {
            return;
        }
        // Only where it matters: what is compared at each level costs its size as often as it is deep.
        let matters = schema.rules.is_some() || schema.items.is_some();
        let unchanged = unchanged || matters && old == Some(new);
        let below = Place { root: false, unchanged };
        if let Some(rules) = &schema.rules {
            // Each look at a rule counts, also at one that is not evaluated.
            self.left = self.left.saturating_sub(rules.list.len() as u64);
            if self.left == 0 {
                self.run_out(schema.kind);
                return;
            }
            for rule in &rules.list {
                if !self.over && (!unchanged || rule.uses_old) {
                    self.rule(schema.kind, rules, rule, new, old, regexes);
                }
            }
        }
        match new {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let known = root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                    let Some(field) = schema.field(name).filter(|field| field.ruled && !known) else {
                        continue;
                    };
                    let old = old.and_then(|old| old.get(name)).filter(|old| !old.is_null());
                    let at = match schema.properties.contains_key(name.as_str()) {
                        true if self.path.is_empty() => name.clone(),
                        true => format!(".{name}"),
                        false => format!("[{name}]"),
                    };
                    self.at(&at, |judge| judge.value(field, value, old, below, regexes));
                }
            }
            Value::Array(items) => {
                let Some(of) = schema.items.as_deref().filter(|of| of.ruled) else { return };
                let before = Before::of(schema, old, unchanged);
                for (index, item) in items.iter().enumerate() {
                    let old = before.item(index, item);
                    self.at(&format!("[{index}]"), |judge| judge.value(of, item, old, below, regexes));
                }
            }
            _ => {}
        }
    }

    fn defaults(&mut self, schema: &Schema, left: &mut usize, regexes: &mut Regexes) {
        if !schema.ruled || self.over {
            return;
        }
        if let Some(default) = &schema.default {
            let mut value = default.clone();
            default_value(schema, &mut value, left);
            let place = Place { root: false, unchanged: false };
            self.at(".default", |judge| judge.value(schema, &value, None, place, regexes));
        }
        for (name, field) in &schema.properties {
            self.at(&format!(".properties[{name}]"), |judge| judge.defaults(field, left, regexes));
        }
        if let Some(additional) = &schema.additional {
            self.at(".additionalProperties", |judge| judge.defaults(additional, left, regexes));
        }
        if let Some(items) = &schema.items {
            self.at(".items", |judge| judge.defaults(items, left, regexes));
        }
    }

    fn at(&mut self, below: &str, judge: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push_str(below);
        judge(self);
        self.path.truncate(length);
    }

    fn rule(
        &mut self,
        kind: Type,
        rules: &Rules,
        rule: &Rule,
        new: &Value,
        old: Option<&Value>,
        regexes: &mut Regexes,
    ) {
        let Some((program, message)) = &rule.programs else { return };
        let old = if rule.uses_old { old } else { None };
        if rule.uses_old && !rule.optional_old && old.is_none() {
            return;
        }
        let old_type = if rule.optional_old { &rules.old } else { &rules.of };
        let variables = [("self", &rules.of, Some(new)), ("oldSelf", old_type, old)];
        let named = if rule.message.is_empty() { &rule.text } else { &rule.message };
        match self.run(program, &variables, regexes) {
            Ok(Answer::Bool(true)) => {}
            Ok(Answer::Bool(false)) => {
                let made =
                    message.as_ref().and_then(|message| match self.run(message, &variables, regexes) {
                        Ok(Answer::Text(text)) => Some(text.trim().to_owned()),
                        _ => None,
                    });
                let fits = |made: &String| {
                    !made.is_empty() && made.len() <= MAX_MADE && !made.contains(['\n', '\r'])
                };
                let message = made.filter(fits).unwrap_or_else(|| match rule.message.as_str() {
                    "" => format!("failed rule: {}", rule.text),
                    message => message.to_owned(),
                });
                self.report(kind, &rule.reason, &rule.path, &message);
            }
            Ok(_) => self.fail(kind, &format!("the rule has not come to true or false: {named}")),
            Err(Failure::Failed(error)) if error.starts_with("no such overload") => {
                let problem =
                    "call arguments did not match a supported operator, function or macro signature for rule";
                self.fail(kind, &format!("'{error}': {problem}: {named}"));
            }
            Err(Failure::Failed(error)) => self.fail(kind, &format!("{error} evaluating rule: {named}")),
            Err(Failure::Budget) if self.left > 0 => {
                let problem =
                    "no further validation rules will be run due to call cost exceeds limit for rule";
                self.fail(
                    kind,
                    &format!("'operation cancelled: actual cost limit exceeded': {problem}: {named}"),
                );
                self.over = true;
            }
            Err(Failure::Budget) => self.run_out(kind),
        }
    }

    fn run<'a>(
        &mut self,
        program: &'a Program,
        variables: &[Variable<'a>],
        regexes: &mut Regexes,
    ) -> Result<Answer, Failure> {
        let given = self.left.min(MAX_STEPS);
        let mut meter = Meter::new(given);
        let answer = program.run(variables, &mut meter, regexes);
        self.left -= given - meter.left();
        answer
    }

    /// All rules together have cost too much.
    fn run_out(&mut self, kind: Type) {
        let problem =
            "validation failed due to running out of cost budget, no further validation rules will be run";
        self.fail(kind, problem);
        self.over = true;
    }

    fn fail(&mut self, kind: Type, message: &str) {
        self.report(kind, "", "", message);
    }

    fn report(&mut self, kind: Type, reason: &str, below: &str, message: &str) {
        if self.causes.len() >= MAX_CAUSES {
            self.over = true;
            return;
        }
        let field = format!("{}{below}", self.path);
        let field = match field.trim_start_matches('.') {
            "" => ROOT,
            field => field,
        };
        let shown = type_name(kind);
        let message = match reason {
            "FieldValueForbidden" => format!("Forbidden: {message}"),
            "FieldValueRequired" => format!("Required value: {message}"),
            "FieldValueDuplicate" => format!("Duplicate value: {shown:?}"),
            _ => format!("Invalid value: {shown:?}: {message}"),
        };
        let reason = if reason.is_empty() { "FieldValueInvalid" } else { reason };
        self.causes.push(Cause { reason: reason.to_owned(), message, field: field.to_owned() });
    }
}

/// What stands for a value in errors.
fn type_name(kind: Type) -> &'static str {
    match kind {
        Type::Any | Type::IntOrString => "",
        Type::Object => "object",
        Type::Array => "array",
        Type::String => "string",
        Type::Integer => "integer",
        Type::Number => "number",
        Type::Boolean => "boolean",
    }
}

/// The items that a list had before.
enum Before<'a> {
    /// It cannot be told which was which.
    Unknown,
    /// All are as they were.
    Same(&'a [Value]),
    /// By the fields that tell them apart.
    ByKeys(ByKeys<'a>),
}

impl<'a> Before<'a> {
    fn of(schema: &'a Schema, old: Option<&'a Value>, unchanged: bool) -> Self {
        let Some(old) = old else { return Self::Unknown };
        match (ByKeys::of(schema, old), old) {
            (Some(items), _) => Self::ByKeys(items),
            (None, Value::Array(items)) if unchanged => Self::Same(items),
            _ => Self::Unknown,
        }
    }

    fn item(&self, index: usize, item: &Value) -> Option<&'a Value> {
        match self {
            Self::Unknown => None,
            Self::Same(items) => items.get(index),
            Self::ByKeys(items) => items.item(item),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_of_what_is_known_to_be_as_it_was_are_not_compared_again() {
        let rule = json!([{"rule": "self < 10"}]);
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "x-kubernetes-validations": rule}}});
        let schema = crate::read(&schema, "schema").unwrap();
        let causes = |unchanged| {
            let mut judge =
                Judge { path: String::new(), causes: Vec::new(), left: MAX_STEPS_IN_ALL, over: false };
            let place = Place { root: true, unchanged };
            // With what it was before, each would be compared and found to be another.
            judge.value(&schema, &json!({"a": 20}), Some(&json!({"a": 1})), place, &mut Regexes::default());
            judge.causes.len()
        };
        assert_eq!((causes(true), causes(false)), (0, 1));
    }
}
