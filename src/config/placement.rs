//! `[[placement]]`: the rules by which objects get to nodes.

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::slot::{Keys, Raw, Refusal, Slot, toml_string};
use crate::placement::rules::PlacementRule;

/// The most rules that are read.
const MAX_RULES: usize = 1000;

/// The rules, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// What selects which objects for which nodes.
    pub rules: Vec<PlacementRule>,
    /// The rules as they were written, on one line.
    text: String,
}

impl Default for Placement {
    fn default() -> Self {
        Self { rules: Vec::new(), text: "[]".into() }
    }
}

impl Placement {
    /// Names the key; it stands at the top level.
    pub(super) fn bind(&mut self, keys: &mut dyn Keys) {
        keys.section("");
        keys.fixed("placement", Rules(self));
    }
}

struct Rules<'a>(&'a mut Placement);

impl Slot for Rules<'_> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusal> {
        let array = match raw {
            Raw::Toml(DeValue::Array(array)) if array.len() <= MAX_RULES => array,
            Raw::Toml(DeValue::Array(array)) => {
                return Err(format!("must be at most {MAX_RULES} rules, not {}", array.len()).into());
            }
            Raw::Toml(_) => return Err(raw.expected("a list of rules, each written [[placement]]")),
            Raw::Variable(_) => {
                return Err("must be given in the file: no variable can hold rules".to_owned().into());
            }
        };
        self.0.rules = array.iter().map(rule).collect::<Result<_, _>>()?;
        self.0.text = match raw {
            Raw::Toml(value) => inline(value),
            Raw::Variable(_) => String::new(),
        };
        Ok(())
    }

    fn show(&self) -> String {
        self.0.text.clone()
    }
}

fn rule(value: &Spanned<DeValue<'_>>) -> Result<PlacementRule, Refusal> {
    PlacementRule::deserialize(ValueDeserializer::from(value.clone())).map_err(|error| Refusal {
        message: error.message().to_owned(),
        span: Some(error.span().unwrap_or_else(|| value.span())),
    })
}

/// A value on one line of TOML.
fn inline(value: &DeValue<'_>) -> String {
    let list = |parts: Vec<String>| parts.join(", ");
    match value {
        DeValue::String(text) => toml_string(text),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(date) => date.to_string(),
        DeValue::Array(array) => format!("[{}]", list(array.iter().map(|v| inline(v.get_ref())).collect())),
        DeValue::Table(table) if table.is_empty() => "{}".into(),
        DeValue::Table(table) => {
            let pair = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                let key: &std::borrow::Cow<'_, str> = key.get_ref();
                let bare = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
                    && !key.is_empty();
                let key = if bare { key.to_string() } else { toml_string(key) };
                format!("{key} = {}", inline(value.get_ref()))
            };
            format!("{{ {} }}", list(table.iter().map(pair).collect()))
        }
    }
}
