//! Typed evaluation of the Common Expression Language (CEL) over JSON, for Kubernetes validation
//! rules (`x-kubernetes-validations`), with a bound on the cost of each evaluation. An expression
//! is type-checked against the declared types of its variables when it is compiled; it runs over
//! borrowed [`serde_json::Value`]s, without copying them. No I/O and no clock. The crate is
//! independent of schemas and objects: the caller translates a schema into [`Type`]s.
//!
//! Read [`Program`] first, then [`Type`] and [`Meter`]. The crate's README lists the functions that
//! are evaluated.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//!
//! use edgesync_cel::{Answer, FieldOf, Meter, ObjectOf, Program, Regexes, Type};
//! use serde_json::json;
//!
//! // The schema of `self`: an object with two integers.
//! let field = |name: &str| (Arc::from(name), FieldOf { name: Arc::from(name), of: Type::Int });
//! let fields = [field("minReplicas"), field("replicas")].into_iter().collect();
//! let spec = Type::Object(Arc::new(ObjectOf { fields }));
//!
//! // A misspelt field is found when the rule is compiled, not when an object is written.
//! let misspelt = Program::compile("self.replica >= 1", &[("self", spec.clone())]);
//! assert!(misspelt.is_err());
//!
//! let rule = Program::compile("self.replicas >= self.minReplicas", &[("self", spec.clone())]).unwrap();
//! let value = json!({"minReplicas": 2, "replicas": 3});
//! let mut meter = Meter::new(1_000);
//! let answer = rule.run(&[("self", &spec, Some(&value))], &mut meter, &mut Regexes::default());
//! assert_eq!(answer, Ok(Answer::Bool(true)));
//! assert!(meter.left() < 1_000);
//! ```
//!
//! # Cost
//!
//! Compiling is bounded by the length of the expression. Running spends steps of a [`Meter`]: an
//! evaluation that needs more than are left ends with [`Failure::Budget`], whatever the size of the
//! values.
//!
//! ```
//! use edgesync_cel::{Failure, Meter, Program, Regexes, Type};
//! use serde_json::json;
//!
//! let ports = Type::list(Type::Int);
//! // Quadratic in the length of the list.
//! let rule = Program::compile("self.all(x, self.exists_one(y, x == y))", &[("self", ports.clone())]).unwrap();
//! let value = json!((0..1_000).collect::<Vec<u32>>());
//! let mut meter = Meter::new(10_000);
//! let answer = rule.run(&[("self", &ports, Some(&value))], &mut meter, &mut Regexes::default());
//! assert_eq!(answer, Err(Failure::Budget));
//! assert_eq!(meter.left(), 0);
//! ```
//!
//! [`Program::compile_and_estimate`] also returns the estimate by which an API server of Kubernetes
//! refuses expensive rules.

#![warn(missing_docs)]

use serde_json::Value;

mod call;
mod check;
mod convert;
mod estimate;
mod lists;
mod meter;
mod named;
mod net;
mod operate;
mod parse;
mod quantity;
pub mod quantity_text;
mod regexes;
mod run;
mod semver;
mod signatures;
mod spans;
mod texts;
mod times;
mod token;
mod tree;
mod types;
mod value;

pub use estimate::Sizes;
pub use meter::{Failure, Meter};
pub use regexes::{Pattern, Regexes, pattern};
pub use types::{FieldOf, ListOf, Merge, ObjectOf, Type, escape};

use value::Val;

/// Steps that type-checking an expression may take, in addition to 20 for each byte of its text.
const CHECK_STEPS: u64 = 100_000;
/// Characters of the source line that an error message shows.
const MAX_SHOWN: usize = 200;

/// Reason why an expression does not compile.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A syntax or type error of the author.
    Wrong {
        /// Byte offset into the expression.
        at: usize,
        /// The error without its position; [`Fault::message`] adds that.
        message: String,
    },
    /// The expression may be valid in Kubernetes but uses a function or an argument that this crate
    /// does not evaluate; the text names it. Callers usually warn instead of refusing the schema.
    Lacking(String),
}

impl Fault {
    fn at(at: usize, message: impl Into<String>) -> Self {
        Self::Wrong { at, message: message.into() }
    }

    /// Formats the error for the author of the expression, with line, column and a caret as
    /// `kubectl` shows it. `text` is the expression that was compiled.
    pub fn message(&self, text: &str) -> String {
        match self {
            Self::Lacking(what) => format!("{what} is not evaluated"),
            Self::Wrong { at, message } => {
                let before = text.get(..*at).unwrap_or(text);
                let line = before.matches('\n').count();
                let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
                // A long line is cut to the part around the error.
                let hidden = column.saturating_sub(MAX_SHOWN / 2);
                let shown = text.split('\n').nth(line).unwrap_or_default();
                let shown: String = shown.chars().skip(hidden).take(MAX_SHOWN).collect();
                format!(
                    "ERROR: <input>:{}:{}: {message}\n | {shown}\n | {}^",
                    line + 1,
                    column + 1,
                    ".".repeat(column - hidden)
                )
            }
        }
    }
}

/// A compiled expression. It is immutable: one program can run over many values.
#[derive(Debug)]
pub struct Program {
    root: tree::Node,
    of: Type,
    sums: check::Sums,
}

/// The result of an evaluation. Rules give a `bool` and message expressions a `string`; no other
/// value leaves the evaluator.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// A rule's result: whether the value complies.
    Bool(bool),
    /// A message expression's result.
    Text(String),
    /// A value of another type, by CEL's name of that type, such as `int` or `list`.
    Other(&'static str),
}

/// A variable of an evaluation: name, type and value. The type must be the one the program was
/// compiled with. The value may be absent only if the type is [`Type::Optional`]; for any other
/// type an absent value reads as null.
pub type Variable<'a> = (&'a str, &'a Type, Option<&'a Value>);

impl Program {
    /// Parses an expression and checks its types against those of the variables.
    ///
    /// # Errors
    /// The first syntax or type error, a function that is not evaluated here, or an expression
    /// beyond the limits: 100,000 bytes, 100 levels of nesting, and a number of checking steps that
    /// grows with its length.
    pub fn compile(text: &str, variables: &[(&str, Type)]) -> Result<Self, Fault> {
        let root = parse::parse(text)?;
        let (of, sums) = check::check(&root, variables, steps(text), None)?;
        Ok(Self { root, of, sums })
    }

    /// Compiles an expression, and estimates the maximum cost of an evaluation from the maximum
    /// sizes of the variables: as an API server of Kubernetes does, in its units. They have no
    /// relation to the steps of a [`Meter`].
    ///
    /// # Errors
    /// Those of [`Program::compile`].
    pub fn compile_and_estimate(
        text: &str,
        variables: &[(&str, Type)],
        sizes: &Sizes,
    ) -> Result<(Self, u64), Fault> {
        let root = parse::parse(text)?;
        let mut types = check::Types::new();
        let (of, sums) = check::check(&root, variables, steps(text), Some(&mut types))?;
        let cost = estimate::estimate(&root, &types, sizes);
        Ok((Self { root, of, sums }, cost))
    }

    /// Returns the static type of the result: [`Type::Dyn`] if it is known only at run time.
    pub fn of(&self) -> &Type {
        &self.of
    }

    /// Returns whether the expression uses a variable, such as `oldSelf`: a rule with it is a
    /// transition rule.
    pub fn names(&self, variable: &str) -> bool {
        self.root.names(variable)
    }

    /// Evaluates the expression. `meter` is spent as it runs; `regexes` keeps compiled patterns for
    /// the next run.
    ///
    /// # Errors
    /// [`Failure::Failed`] where CEL has no value, such as an absent field, an index out of range
    /// or a division by zero; [`Failure::Budget`] if the meter has too few steps left.
    pub fn run<'a>(
        &'a self,
        variables: &[Variable<'a>],
        meter: &mut Meter,
        regexes: &mut Regexes,
    ) -> Result<Answer, Failure> {
        let mut scope = Vec::with_capacity(variables.len());
        for (name, of, value) in variables {
            let value = match (of, value) {
                (Type::Optional(of), Some(value)) => Val::some(Val::view(value, of, meter)?),
                (Type::Optional(_), None) => Val::Optional(None),
                (of, value) => Val::view(value.unwrap_or(&Value::Null), of, meter)?,
            };
            scope.push((*name, value));
        }
        let mut runner = run::Runner { tools: regexes::Tools { meter, regexes }, scope, sums: &self.sums };
        Ok(match runner.node(&self.root)? {
            Val::Bool(value) => Answer::Bool(value),
            Val::Text(text) => Answer::Text(text.to_string()),
            other => Answer::Other(other.kind()),
        })
    }
}

/// Returns the steps that checking an expression may take.
fn steps(text: &str) -> u64 {
    CHECK_STEPS + 20 * text.len() as u64
}

/// The README's example, compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
