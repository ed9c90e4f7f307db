//! The Common Expression Language, in which schemas have rules: reads expressions, finds out their types, and works
//! them out over JSON. Pure; depends on `object::name`, and on `regex-lite` for regular expressions.
//!
//! What is declared is checked before anything is worked out: a field that does not exist, a function that there is
//! not, operands that do not go together. Working out costs steps, which a [`Meter`] counts: an expression that
//! costs more than there are ends with an error, whatever the size of the values.

#![warn(missing_docs)]

use serde_json::Value;

mod call;
mod check;
mod convert;
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

pub use meter::{Failure, Meter};
pub use regexes::{Pattern, Regexes, pattern};
pub use types::{FieldOf, ListOf, Merge, ObjectOf, Type, escape};

use value::Val;

/// What checking an expression may cost, besides some steps for each byte of it.
const CHECK_STEPS: u64 = 100_000;
/// The most of a line that is shown around a mistake, in characters.
const MAX_SHOWN: usize = 200;

/// Why an expression cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// It is wrong, at a byte of it.
    Wrong { at: usize, message: String },
    /// It uses something of Kubernetes that is not evaluated here.
    Lacking(String),
}

impl Fault {
    fn at(at: usize, message: impl Into<String>) -> Self {
        Self::Wrong { at, message: message.into() }
    }

    /// What is said to the author of an expression.
    pub fn message(&self, text: &str) -> String {
        match self {
            Self::Lacking(what) => format!("{what} is not evaluated"),
            Self::Wrong { at, message } => {
                let before = text.get(..*at).unwrap_or(text);
                let line = before.matches('\n').count();
                let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
                // Of a long line, what is around the place.
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

/// An expression that can be worked out.
#[derive(Debug)]
pub struct Program {
    root: tree::Node,
    of: Type,
    sums: check::Sums,
}

/// What an expression comes to, of what rules and messages are.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Bool(bool),
    Text(String),
    /// Something else, by the name of its type.
    Other(&'static str),
}

/// A variable, its type, and its value: the value of an optional one may be absent.
pub type Variable<'a> = (&'a str, &'a Type, Option<&'a Value>);

impl Program {
    /// Reads an expression over variables of these types.
    ///
    /// # Errors
    /// What is wrong with it, or not evaluated.
    pub fn compile(text: &str, variables: &[(&str, Type)]) -> Result<Self, Fault> {
        let root = parse::parse(text)?;
        let (of, sums) = check::check(&root, variables, CHECK_STEPS + 20 * text.len() as u64)?;
        Ok(Self { root, of, sums })
    }

    /// The type of what it comes to.
    pub fn of(&self) -> &Type {
        &self.of
    }

    /// Whether it names a variable.
    pub fn names(&self, variable: &str) -> bool {
        self.root.names(variable)
    }

    /// Works it out.
    ///
    /// # Errors
    /// There is no value, or it costs too much.
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

#[cfg(test)]
mod tests;
