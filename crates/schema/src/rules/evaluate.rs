//! Evaluation of rules on objects. Pure, with a cost limit per rule and in all.

use serde_json::{Map, Value};

use super::{Rule, Rules};
use crate::check::{ByKeys, default_value};
use crate::{MAX_DEFAULTS, Schema, Type};
use edgesync_cel::{Answer, Failure, Meter, Program, Regexes, Variable};
use edgesync_object::status::{Cause, MAX_CAUSES};

/// Maximum cost of one rule for one value, and of all rules for one object: Kubernetes' limits, in
/// approximately the same unit.
const MAX_STEPS: u64 = 1_000_000;
const MAX_TOTAL_STEPS: u64 = 10_000_000;
/// Maximum length of a computed message in bytes.
const MAX_COMPUTED_MESSAGE: usize = 5 * 1024;
/// Name of the root object in errors.
const ROOT: &str = "<nil>";

/// Evaluates the rules of a schema on an object; `old` is its previous version. Unchanged values
/// are not checked, unless a rule is about the change.
#[must_use]
pub fn check_rules(schema: &Schema, old: Option<Map<String, Value>>, new: Map<String, Value>) -> Vec<Cause> {
    if !schema.ruled {
        return Vec::new();
    }
    // Rules access whole values.
    let (old, new) = (old.map(Value::Object), Value::Object(new));
    let mut evaluator =
        Evaluator { path: String::new(), causes: Vec::new(), left: MAX_TOTAL_STEPS, over: false };
    let mut regexes = Regexes::default();
    evaluator.value(schema, &new, old.as_ref(), Position { root: true, unchanged: false }, &mut regexes);
    evaluator.causes
}

/// Evaluates the rules on the defaults of a schema at a path, with nested defaults applied. All
/// together have the cost limit of one object.
#[must_use]
pub fn check_defaults(schema: &Schema, path: &str) -> Vec<Cause> {
    let mut evaluator =
        Evaluator { path: path.to_owned(), causes: Vec::new(), left: MAX_TOTAL_STEPS, over: false };
    let (mut left, mut regexes) = (MAX_DEFAULTS, Regexes::default());
    evaluator.defaults(schema, &mut left, &mut regexes);
    evaluator.causes
}

struct Evaluator {
    path: String,
    causes: Vec<Cause>,
    left: u64,
    /// Whether no further rules are evaluated.
    over: bool,
}

/// Position of a value.
#[derive(Clone, Copy)]
struct Position {
    /// Whether it is the whole object.
    root: bool,
    /// Whether it is known to be unchanged, because a value that contains it is.
    unchanged: bool,
}

impl Evaluator {
    fn value(
        &mut self,
        schema: &Schema,
        new: &Value,
        old: Option<&Value>,
        Position { root, unchanged }: Position,
        regexes: &mut Regexes,
    ) {
        if !schema.ruled || self.over || new.is_null() {
            return;
        }
        // Compared only if needed: comparing at each level would cost the size times the depth.
        let matters = schema.rules.is_some() || schema.items.is_some();
        let unchanged = unchanged || matters && old == Some(new);
        let below = Position { root: false, unchanged };
        if let Some(rules) = &schema.rules {
            // Each rule counts, even one that is not evaluated.
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
                    self.at(&at, |evaluator| evaluator.value(field, value, old, below, regexes));
                }
            }
            Value::Array(items) => {
                let Some(of) = schema.items.as_deref().filter(|of| of.ruled) else { return };
                let before = OldItems::of(schema, old, unchanged);
                for (index, item) in items.iter().enumerate() {
                    let old = before.item(index, item);
                    self.at(&format!("[{index}]"), |evaluator| {
                        evaluator.value(of, item, old, below, regexes);
                    });
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
            let position = Position { root: false, unchanged: false };
            self.at(".default", |evaluator| evaluator.value(schema, &value, None, position, regexes));
        }
        for (name, field) in &schema.properties {
            self.at(&format!(".properties[{name}]"), |evaluator| evaluator.defaults(field, left, regexes));
        }
        if let Some(additional) = &schema.additional {
            self.at(".additionalProperties", |evaluator| evaluator.defaults(additional, left, regexes));
        }
        if let Some(items) = &schema.items {
            self.at(".items", |evaluator| evaluator.defaults(items, left, regexes));
        }
    }

    fn at(&mut self, below: &str, evaluator: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push_str(below);
        evaluator(self);
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
                let computed =
                    message.as_ref().and_then(|message| match self.run(message, &variables, regexes) {
                        Ok(Answer::Text(text)) => Some(text.trim().to_owned()),
                        _ => None,
                    });
                let fits = |computed: &String| {
                    !computed.is_empty()
                        && computed.len() <= MAX_COMPUTED_MESSAGE
                        && !computed.contains(['\n', '\r'])
                };
                let message = computed.filter(fits).unwrap_or_else(|| match rule.message.as_str() {
                    "" => format!("failed rule: {}", rule.text),
                    message => message.to_owned(),
                });
                self.report(kind, &rule.reason, &rule.path, &message);
            }
            Ok(_) => self.fail(kind, &format!("the rule did not evaluate to a bool: {named}")),
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

    /// Reports that all rules together exceed the cost limit.
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

/// Returns what errors show instead of the value.
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

/// Previous items of a list.
enum OldItems<'a> {
    /// Items cannot be matched.
    Unknown,
    /// All items are unchanged.
    Same(&'a [Value]),
    /// Items are matched by their keys.
    ByKeys(ByKeys<'a>),
}

impl<'a> OldItems<'a> {
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
    fn parts_of_an_unchanged_value_are_not_compared() {
        let rule = json!([{"rule": "self < 10"}]);
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "x-kubernetes-validations": rule}}});
        let schema = crate::read(&schema, "schema").unwrap();
        let causes = |unchanged| {
            let mut evaluator =
                Evaluator { path: String::new(), causes: Vec::new(), left: MAX_TOTAL_STEPS, over: false };
            let position = Position { root: true, unchanged };
            // If they were compared with the previous value, each would differ.
            evaluator.value(
                &schema,
                &json!({"a": 20}),
                Some(&json!({"a": 1})),
                position,
                &mut Regexes::default(),
            );
            evaluator.causes.len()
        };
        assert_eq!((causes(true), causes(false)), (0, 1));
    }
}
