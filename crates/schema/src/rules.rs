//! CEL validation rules of schemas (`x-kubernetes-validations`): compiled with the schema,
//! evaluated on objects. Depends on `schema` and `cel`.
//!
//! An invalid rule, or one with unsupported features, stays in its schema and is reported by
//! [`rule_problems`] to the author of the definition; objects are not checked against it.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::{ListType, Schema, Type};
use edgesync_cel as cel;
use edgesync_cel::{FieldOf, ListOf, Merge, ObjectOf, Program};
use edgesync_object::status::Cause;

mod evaluate;

pub use evaluate::{check_defaults, check_rules};

/// Maximum number of rules at one position of a schema.
const MAX_RULES: usize = 256;
/// Maximum length of a message in characters.
const MAX_MESSAGE: usize = 2048;
/// Allowed reasons of a rule.
const REASONS: [&str; 4] =
    ["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"];
/// Maximum length of a rule in messages, in characters.
const MAX_SHOWN: usize = 120;

/// Rules of one schema.
pub struct Rules {
    /// The rules as written.
    pub(super) given: Value,
    /// CEL type of the value, which is the variable `self`.
    of: cel::Type,
    old: cel::Type,
    list: Vec<Rule>,
    /// For a whole object: reports of rules at positions where none are evaluated, as [`lacking`]
    /// formats them.
    skipped: Vec<String>,
}

/// Rules with the same text are equal if their schemas are.
impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        self.given == other.given
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.given.fmt(f)
    }
}

struct Rule {
    text: String,
    message: String,
    /// Programs of the rule and of its message; `None` if it cannot be evaluated.
    programs: Option<(Program, Option<Program>)>,
    reason: String,
    /// Suffix for the value's path in an error.
    path: String,
    uses_old: bool,
    optional_old: bool,
    problems: Vec<Problem>,
}

/// A problem of a rule.
struct Problem {
    keyword: &'static str,
    /// Reason and message of an error; `Err` names an unsupported feature.
    what: Result<(&'static str, String), String>,
}

/// Problems of a schema's rules.
#[derive(Debug, Default, PartialEq)]
pub struct RuleProblems {
    /// Errors in rules, each with the path of the rule or of its keyword.
    pub causes: Vec<Cause>,
    /// Rules that are not evaluated, each with its path and the unsupported feature.
    pub lacking: Vec<String>,
}

/// Returns the problems of the rules in a schema at a path.
#[must_use]
pub fn rule_problems(schema: &Schema, path: &str) -> RuleProblems {
    let mut problems = RuleProblems::default();
    problems.of(schema, path);
    problems.lacking.extend(schema.rules.iter().flat_map(|rules| rules.skipped.clone()));
    problems
}

impl RuleProblems {
    /// Adds the problems of another schema.
    pub fn add(&mut self, other: Self) {
        self.causes.extend(other.causes);
        self.lacking.extend(other.lacking);
    }

    fn of(&mut self, schema: &Schema, path: &str) {
        if !schema.ruled {
            return;
        }
        let given: usize = schema.rules.iter().filter_map(|rules| rules.given.as_array()).map(Vec::len).sum();
        if given > MAX_RULES {
            self.causes.push(Cause {
                reason: "FieldValueTooMany".to_owned(),
                message: format!("Too many: {given}: must have at most {MAX_RULES} items"),
                field: format!("{path}.x-kubernetes-validations"),
            });
        }
        for (number, rule) in schema.rules.iter().flat_map(|rules| rules.list.iter().enumerate()) {
            for problem in &rule.problems {
                let at = match problem.keyword {
                    "" => format!("{path}.x-kubernetes-validations[{number}]"),
                    keyword => format!("{path}.x-kubernetes-validations[{number}].{keyword}"),
                };
                match &problem.what {
                    Ok((reason, message)) => self.causes.push(Cause {
                        reason: (*reason).to_owned(),
                        message: message.clone(),
                        field: at,
                    }),
                    Err(what) => self.lacking.push(lacking(&at, &rule.text, what)),
                }
            }
        }
        for (name, field) in &schema.properties {
            self.of(field, &format!("{path}.properties[{name}]"));
        }
        if let Some(additional) = &schema.additional {
            self.of(additional, &format!("{path}.additionalProperties"));
        }
        if let Some(items) = &schema.items {
            self.of(items, &format!("{path}.items"));
        }
    }
}

/// Formats the report of a rule that is not evaluated.
pub(super) fn lacking(at: &str, rule: &str, what: &str) -> String {
    format!("{at}: {:?} is not evaluated here: {what}", shown(rule))
}

fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// Creates uncompiled rules: their types depend on the schemas below them.
pub(super) fn given(rules: Value) -> Arc<Rules> {
    let (of, old) = (cel::Type::Dyn, cel::Type::Dyn);
    Arc::new(Rules { given: rules, of, old, list: Vec::new(), skipped: Vec::new() })
}

/// Compiles the rules of a whole object's schema, and stores the reports of skipped ones.
pub(super) fn compile(schema: &mut Schema, skipped: Vec<String>) {
    declare(schema, true, Correlated::Yes);
    if !skipped.is_empty() {
        let rules = schema.rules.get_or_insert_with(|| given(Value::Null));
        if let Some(rules) = Arc::get_mut(rules) {
            rules.skipped = skipped;
        }
    }
}

/// Whether a value can be matched with its previous one.
#[derive(Clone, Copy, PartialEq)]
enum Correlated {
    Yes,
    No,
}

/// Compiles the rules of a schema recursively. Returns the type of its values; `None` if it
/// declares none.
fn declare(schema: &mut Schema, root: bool, correlated: Correlated) -> Option<cel::Type> {
    let whole = root || schema.embedded_resource;
    let mut ruled = schema.rules.is_some();
    let mut within = |child: &mut Arc<Schema>, correlated: Correlated| {
        // Schemas shared by all objects have no rules.
        let child = Arc::get_mut(child)?;
        let of = declare(child, false, correlated);
        ruled |= child.ruled;
        of
    };
    let correlated_fields = if schema.atomic_map { Correlated::No } else { correlated };
    let mut fields = std::collections::BTreeMap::new();
    for (name, field) in &mut schema.properties {
        if whole && matches!(&**name, "apiVersion" | "kind" | "metadata") {
            continue;
        }
        let of = within(field, correlated_fields);
        if let (Some(escaped), Some(of)) = (cel::escape(name), of) {
            fields.insert(escaped.into(), FieldOf { name: Arc::clone(name), of });
        }
    }
    let additional = schema.additional.as_mut().map(|additional| within(additional, correlated_fields));
    let keyed = matches!(schema.list, ListType::Map(_));
    let correlated_items = if keyed { correlated } else { Correlated::No };
    let items = schema.items.as_mut().and_then(|items| within(items, correlated_items));
    let of = match schema.kind {
        Type::Any => None,
        Type::IntOrString => Some(cel::Type::Dyn),
        Type::Boolean => Some(cel::Type::Bool),
        Type::Integer => Some(cel::Type::Int),
        Type::Number => Some(cel::Type::Double),
        Type::String => Some(match &*schema.format {
            "byte" => cel::Type::Bytes,
            "duration" => cel::Type::Span,
            "date" | "date-time" => cel::Type::Time,
            _ => cel::Type::Text,
        }),
        Type::Array => {
            items.map(|item| cel::Type::List(Arc::new(ListOf { item, merge: merge(&schema.list) })))
        }
        Type::Object => match additional {
            Some(of) => of.map(|of| cel::Type::map(cel::Type::Text, of)),
            None => {
                if whole {
                    add_object_fields(&mut fields);
                }
                Some(cel::Type::Object(Arc::new(ObjectOf { fields })))
            }
        },
    };
    if let Some(rules) = schema.rules.take() {
        let of = of.clone().unwrap_or(cel::Type::Dyn);
        schema.rules = Some(Arc::new(read(&rules.given, of, schema, correlated)));
    }
    schema.ruled = ruled;
    of
}

fn merge(list: &ListType) -> Merge {
    match list {
        ListType::Atomic => Merge::Atomic,
        ListType::Set => Merge::Set,
        ListType::Map(keys) => Merge::Map(keys.clone()),
    }
}

/// Adds the fields of every object that rules may use.
fn add_object_fields(fields: &mut std::collections::BTreeMap<Arc<str>, FieldOf>) {
    let text = |name: &str| (name.into(), FieldOf { name: name.into(), of: cel::Type::Text });
    let metadata = ObjectOf { fields: ["name", "generateName"].into_iter().map(text).collect() };
    fields.extend(["apiVersion", "kind"].into_iter().map(text));
    let of = cel::Type::Object(Arc::new(metadata));
    fields.insert("metadata".into(), FieldOf { name: "metadata".into(), of });
}

fn read(given: &Value, of: cel::Type, schema: &Schema, correlated: Correlated) -> Rules {
    let old = |optional: bool| if optional { cel::Type::optional(of.clone()) } else { of.clone() };
    let rules = given.as_array().into_iter().flatten().take(MAX_RULES);
    let list = rules.map(|rule| read_one(rule, &of, &old, schema, correlated)).collect();
    Rules { given: given.clone(), old: old(true), of, list, skipped: Vec::new() }
}

fn read_one(
    given: &Value,
    of: &cel::Type,
    old: &impl Fn(bool) -> cel::Type,
    schema: &Schema,
    correlated: Correlated,
) -> Rule {
    let text = |name: &str| given.get(name).and_then(Value::as_str).unwrap_or_default().trim().to_owned();
    let optional_old = given.get("optionalOldSelf").and_then(Value::as_bool);
    let mut rule = Rule {
        text: text("rule"),
        message: text("message"),
        programs: None,
        reason: text("reason"),
        path: String::new(),
        uses_old: false,
        optional_old: optional_old == Some(true),
        problems: Vec::new(),
    };
    let mut problems = Problems(Vec::new());
    problems.of_texts(&rule);
    let variables = [("self", of.clone()), ("oldSelf", old(rule.optional_old))];
    let program = problems.compile("rule", &rule.text, &variables, &cel::Type::Bool);
    if let Some(program) = &program {
        rule.uses_old = program.names("oldSelf");
        if rule.uses_old && correlated == Correlated::No {
            let message = "oldSelf cannot be used on the uncorrelatable portion of the schema";
            problems.invalid("rule", &rule.text, message);
        }
        if !rule.uses_old && optional_old.is_some() {
            let message = "may not be set if oldSelf is not used in rule";
            let what = format!("Invalid value: {}: {message}", rule.optional_old);
            problems.0.push(Problem { keyword: "optionalOldSelf", what: Ok(("FieldValueInvalid", what)) });
        }
    }
    let expression = text("messageExpression");
    let message = (!expression.is_empty())
        .then(|| problems.compile("messageExpression", &expression, &variables, &cel::Type::Text))
        .flatten();
    if message.as_ref().is_some_and(|message| message.names("oldSelf")) && !rule.uses_old && program.is_some()
    {
        let problem = "messageExpression may not use oldSelf if the rule does not";
        problems.invalid("messageExpression", &expression, problem);
    }
    match path(&text("fieldPath"), schema) {
        Ok(path) => rule.path = path,
        Err(problem) => problems.invalid("fieldPath", &text("fieldPath"), &problem),
    }
    // If a message program is invalid, the default message is used.
    let is_usable = problems.0.iter().all(|problem| problem.keyword == "messageExpression");
    rule.programs = program.filter(|_| is_usable).map(|program| (program, message));
    rule.problems = problems.0;
    rule
}

struct Problems(Vec<Problem>);

impl Problems {
    fn invalid(&mut self, keyword: &'static str, value: &str, message: &str) {
        let what = format!("Invalid value: {:?}: {message}", shown(value));
        self.0.push(Problem { keyword, what: Ok(("FieldValueInvalid", what)) });
    }

    fn of_texts(&mut self, rule: &Rule) {
        if rule.text.is_empty() {
            let what = "Required value: rule is not specified".to_owned();
            self.0.push(Problem { keyword: "rule", what: Ok(("FieldValueRequired", what)) });
        }
        if rule.text.contains(['\n', '\r']) && rule.message.is_empty() {
            let what = "Required value: message must be specified if rule contains line breaks".to_owned();
            self.0.push(Problem { keyword: "message", what: Ok(("FieldValueRequired", what)) });
        }
        if rule.message.contains(['\n', '\r']) {
            self.invalid("message", &rule.message, "message must not contain line breaks");
        }
        if rule.message.chars().count() > MAX_MESSAGE {
            let message = format!("message must have a maximum length of {MAX_MESSAGE} characters");
            self.invalid("message", &rule.message, &message);
        }
        if !rule.reason.is_empty() && !REASONS.contains(&&*rule.reason) {
            let reasons = REASONS.map(|reason| format!("{reason:?}")).join(", ");
            let what = format!("Unsupported value: {:?}: supported values: {reasons}", shown(&rule.reason));
            self.0.push(Problem { keyword: "reason", what: Ok(("FieldValueNotSupported", what)) });
        }
    }

    fn compile(
        &mut self,
        keyword: &'static str,
        text: &str,
        variables: &[(&str, cel::Type)],
        expected: &cel::Type,
    ) -> Option<Program> {
        if text.is_empty() {
            return None;
        }
        let problem = match Program::compile(text, variables) {
            Ok(program) if program.of() == expected || *program.of() == cel::Type::Dyn => {
                return Some(program);
            }
            Ok(_) if *expected == cel::Type::Bool => "cel expression must evaluate to a bool".to_owned(),
            Ok(_) => "messageExpression must evaluate to a string".to_owned(),
            Err(cel::Fault::Lacking(what)) => {
                self.0.push(Problem { keyword, what: Err(what) });
                return None;
            }
            Err(fault) => format!("compilation failed: {}", fault.message(text)),
        };
        self.invalid(keyword, text, &problem);
        None
    }
}

/// Converts `fieldPath` into the suffix of an error's path: fields as `.name` or `['name']`, keys
/// of maps as the latter.
fn path(given: &str, schema: &Schema) -> Result<String, String> {
    let mut rest = given;
    let mut at = schema;
    let mut path = String::new();
    let wrong = |what: &str| Err(format!("fieldPath must be a valid path: {what}"));
    while !rest.is_empty() {
        let (name, after) = if let Some(quoted) = rest.strip_prefix("['") {
            let Some(parts) = quoted.split_once("']") else { return wrong("a bracket is open") };
            parts
        } else if let Some(plain) = rest.strip_prefix('.') {
            plain.split_at(plain.find(['.', '[']).unwrap_or(plain.len()))
        } else {
            return wrong("expected [ or . but got something else");
        };
        match (at.properties.get(name), &at.additional) {
            (Some(field), _) => {
                path.push('.');
                path.push_str(name);
                at = field;
            }
            (None, Some(additional)) => {
                path.push_str(&format!("[{name}]"));
                at = additional;
            }
            (None, None) => return wrong("does not refer to a valid field"),
        }
        rest = after;
    }
    Ok(path)
}

#[cfg(test)]
mod tests;
