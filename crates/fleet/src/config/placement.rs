//! `[[placement]]`: the rules that place objects on nodes.

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use edgesync_config::slot::{Keys, Raw, Refusal, Slot, inline};
use edgesync_placement::rules::PlacementRule;

/// Maximum number of rules.
const MAX_RULES: usize = 1000;

/// The rules, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The parsed rules, at most 1000.
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
    /// Binds the key, which is at the top level.
    pub(super) fn bind(&mut self, keys: &mut dyn Keys) {
        keys.section("");
        keys.fixed("placement", Rules(self));
    }
}

struct Rules<'a>(&'a mut Placement);

impl Slot for Rules<'_> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusal> {
        let array = raw.rules("placement", MAX_RULES)?;
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
