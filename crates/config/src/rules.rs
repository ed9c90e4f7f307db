//! Lists of rules, each written as `[[section]]`.

use toml::Spanned;
use toml::de::DeValue;

use super::binding::{Binding, Raw, Refusals, inline};

/// Rules in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleList<T> {
    /// Parsed rules.
    pub rules: Vec<T>,
    /// The rules as they were written, on one line.
    text: String,
}

impl<T> Default for RuleList<T> {
    fn default() -> Self {
        Self { rules: Vec::new(), text: "[]".into() }
    }
}

/// Reads one rule. It may depend on the rules before it.
pub type ReadRule<T> = fn(&Spanned<DeValue<'_>>, &[T]) -> Result<T, Refusals>;

struct Rules<'a, T> {
    list: &'a mut RuleList<T>,
    section: &'static str,
    most: usize,
    read: ReadRule<T>,
}

/// Binding for at most `most` rules of a section.
pub fn rules<'a, T>(
    list: &'a mut RuleList<T>,
    section: &'static str,
    most: usize,
    read: ReadRule<T>,
) -> impl Binding + use<'a, T> {
    Rules { list, section, most, read }
}

impl<T> Binding for Rules<'_, T> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals> {
        let array = raw.rules(self.section, self.most)?;
        let (mut rules, mut refusals) = (Vec::with_capacity(array.len()), Refusals::default());
        for value in array {
            let read = (self.read)(value, &rules);
            refusals.add("", &value.span(), read.map(|rule| rules.push(rule)));
        }
        refusals.result()?;
        self.list.rules = rules;
        if let Raw::Toml(value) = raw {
            self.list.text = inline(value);
        }
        Ok(())
    }

    fn show(&self) -> String {
        self.list.text.clone()
    }
}
