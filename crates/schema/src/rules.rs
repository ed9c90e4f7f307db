//! CEL validation rules of schemas (`x-kubernetes-validations`): compiled with the schema,
//! evaluated on objects. Depends on `schema` and `cel`.
//!
//! An invalid rule, or one with unsupported features, stays in its schema and is reported by
//! [`rule_problems`] to the author of the definition; objects are not checked against it.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::{ListType, Schema, Type};
use costs::{Costs, Count, Extent, Fields, Total};
use edgesync_cel as cel;
use edgesync_cel::{FieldOf, ListOf, Merge, ObjectOf, Program};
use edgesync_object::status::Cause;

mod costs;
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
    costs: Costs,
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
    /// Exceeded limits of estimated costs. Such rules are evaluated nevertheless.
    pub costs: Vec<Cause>,
}

/// Returns the problems of the rules in a schema at a path.
#[must_use]
pub fn rule_problems(schema: &Schema, path: &str) -> RuleProblems {
    let (mut problems, mut total) = (RuleProblems::default(), Total::default());
    problems.of(schema, path, &mut total);
    problems.costs = total.into_causes(path);
    problems.lacking.extend(schema.rules.iter().flat_map(|rules| rules.skipped.clone()));
    problems
}

impl RuleProblems {
    /// Adds the problems of another schema.
    pub fn add(&mut self, other: Self) {
        self.causes.extend(other.causes);
        self.lacking.extend(other.lacking);
        self.costs.extend(other.costs);
    }

    fn of(&mut self, schema: &Schema, path: &str, total: &mut Total) {
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
            let at = format!("{path}.x-kubernetes-validations[{number}]");
            total.add(&at, rule.costs);
            for problem in &rule.problems {
                let at = match problem.keyword {
                    "" => at.clone(),
                    keyword => format!("{at}.{keyword}"),
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
            self.of(field, &format!("{path}.properties[{name}]"), total);
        }
        if let Some(additional) = &schema.additional {
            self.of(additional, &format!("{path}.additionalProperties"), total);
        }
        if let Some(items) = &schema.items {
            self.of(items, &format!("{path}.items"), total);
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
    declare(schema, true, Correlated::Yes, Count::ONE);
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

/// Compiles the rules of a schema recursively. `count` is how many of its values an object may
/// contain. Returns the type and extent of its values; `None` if it declares none.
fn declare(
    schema: &mut Schema,
    root: bool,
    correlated: Correlated,
    count: Count,
) -> Option<(cel::Type, Extent)> {
    let whole = root || schema.embedded_resource;
    let mut ruled = schema.rules.is_some();
    let mut within = |child: &mut Arc<Schema>, correlated: Correlated, count: Count| {
        // Schemas shared by all objects have no rules.
        let child = Arc::get_mut(child)?;
        let declared = declare(child, false, correlated, count);
        ruled |= child.ruled;
        declared
    };
    let limits = schema.limits.as_deref();
    let max_items = limits.and_then(|limits| limits.max_items);
    let max_properties = limits.and_then(|limits| limits.max_properties);
    let correlated_fields = if schema.atomic_map { Correlated::No } else { correlated };
    let (mut fields, mut extents) = (std::collections::BTreeMap::new(), Fields::default());
    for (name, field) in &mut schema.properties {
        if whole && matches!(&**name, "apiVersion" | "kind" | "metadata") {
            continue;
        }
        let Some((of, extent)) = within(field, correlated_fields, count) else { continue };
        let escaped: Option<Arc<str>> = cel::escape(name).map(Into::into);
        let is_sent = schema.required.contains(name) && field.default.is_none();
        extents.add(name, escaped.clone(), extent, is_sent);
        if let Some(escaped) = escaped {
            fields.insert(escaped, FieldOf { name: Arc::clone(name), of });
        }
    }
    let count_values = count.times(max_properties);
    let additional =
        schema.additional.as_mut().map(|additional| within(additional, correlated_fields, count_values));
    let keyed = matches!(schema.list, ListType::Map(_));
    let correlated_items = if keyed { correlated } else { Correlated::No };
    let count_items = count.times(max_items);
    let items = schema.items.as_mut().and_then(|items| within(items, correlated_items, count_items));
    let scalar = |of: cel::Type| Some((of, Extent::of_scalar(schema)));
    let declared = match schema.kind {
        Type::Any => None,
        Type::IntOrString => scalar(cel::Type::Dyn),
        Type::Boolean => scalar(cel::Type::Bool),
        Type::Integer => scalar(cel::Type::Int),
        Type::Number => scalar(cel::Type::Double),
        Type::String => scalar(match &*schema.format {
            "byte" => cel::Type::Bytes,
            "duration" => cel::Type::Span,
            "date" | "date-time" => cel::Type::Time,
            _ => cel::Type::Text,
        }),
        Type::Array => items.map(|(item, extent)| {
            let of = cel::Type::List(Arc::new(ListOf { item, merge: merge(&schema.list) }));
            (of, Extent::of_list(extent, max_items))
        }),
        Type::Object => match additional {
            Some(value) => value.map(|(of, extent)| {
                (cel::Type::map(cel::Type::Text, of), Extent::of_map(extent, max_properties))
            }),
            None => {
                if whole {
                    add_object_fields(&mut fields);
                    extents.add_object_fields(&schema.required);
                }
                Some((cel::Type::Object(Arc::new(ObjectOf { fields })), extents.into_extent()))
            }
        },
    };
    if let Some(rules) = schema.rules.take() {
        let (of, extent) = declared.clone().unwrap_or((cel::Type::Dyn, Extent::default()));
        schema.rules = Some(Arc::new(read(&rules.given, of, schema, correlated, (count, &extent))));
    }
    schema.ruled = ruled;
    declared
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

fn read(
    given: &Value,
    of: cel::Type,
    schema: &Schema,
    correlated: Correlated,
    values: (Count, &Extent),
) -> Rules {
    let old = |optional: bool| if optional { cel::Type::optional(of.clone()) } else { of.clone() };
    let rules = given.as_array().into_iter().flatten().take(MAX_RULES);
    let list = rules.map(|rule| read_one(rule, &of, &old, schema, correlated, values)).collect();
    Rules { given: given.clone(), old: old(true), of, list, skipped: Vec::new() }
}

fn read_one(
    given: &Value,
    of: &cel::Type,
    old: &impl Fn(bool) -> cel::Type,
    schema: &Schema,
    correlated: Correlated,
    (count, extent): (Count, &Extent),
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
        costs: Costs::default(),
        problems: Vec::new(),
    };
    let mut problems = Problems(Vec::new());
    problems.of_texts(&rule);
    let variables = [("self", of.clone()), ("oldSelf", old(rule.optional_old))];
    let declared = (&variables[..], &*extent.sizes);
    let (program, cost) = problems.compile("rule", &rule.text, declared, &cel::Type::Bool).unzip();
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
    let (message, message_cost) =
        problems.compile("messageExpression", &expression, declared, &cel::Type::Text).unzip();
    if program.is_some() {
        rule.costs = Costs::new(cost.unwrap_or(0), message_cost.unwrap_or(0), count, extent);
    }
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
        (variables, sizes): (&[(&str, cel::Type)], &cel::Sizes),
        expected: &cel::Type,
    ) -> Option<(Program, u64)> {
        if text.is_empty() {
            return None;
        }
        let problem = match Program::compile_and_estimate(text, variables, sizes) {
            Ok((program, cost)) if program.of() == expected || *program.of() == cel::Type::Dyn => {
                return Some((program, cost));
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
