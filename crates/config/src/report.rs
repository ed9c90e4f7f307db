//! What is in force, and what a reload changes.

use std::collections::BTreeMap;

use super::document::dotted;
use super::{Change, Keys, Loaded, Raw, Settings, Slot, Source};

/// One key as it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Section, empty for the top level.
    pub section: &'static str,
    /// Key within the section.
    pub key: &'static str,
    /// Value as TOML.
    pub value: String,
    /// Whether a reload changes it.
    pub change: Change,
}

/// One key whose value two configurations do not share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// `section.key`.
    pub key: String,
    /// Value before, as TOML.
    pub old: String,
    /// Value after, as TOML.
    pub new: String,
    /// Whether a reload is enough.
    pub change: Change,
}

/// All keys of a configuration with their values, in the order in which they are bound.
#[must_use]
pub fn settings<C: Settings>(config: &C) -> Vec<Setting> {
    struct Lister(&'static str, Vec<Setting>);
    impl Keys for Lister {
        fn section(&mut self, name: &'static str) {
            self.0 = name;
        }
        fn key(&mut self, key: &'static str, change: Change, slot: &mut dyn Slot) {
            self.1.push(Setting { section: self.0, key, value: slot.show(), change });
        }
    }
    let mut lister = Lister("", Vec::new());
    config.clone().bind(&mut lister);
    lister.1
}

/// Puts the values of some keys back to what they were.
struct Restore {
    section: &'static str,
    values: BTreeMap<String, String>,
}

impl Keys for Restore {
    fn section(&mut self, name: &'static str) {
        self.section = name;
    }

    fn key(&mut self, key: &'static str, _: Change, slot: &mut dyn Slot) {
        let Some(value) = self.values.get(&dotted(self.section, key)) else { return };
        let parsed = toml::de::DeValue::parse(value).ok();
        let restored = parsed.as_ref().is_some_and(|value| slot.set(Raw::Toml(value.get_ref())).is_ok());
        // What a slot shows it can read; a test proves it for every key.
        debug_assert!(restored, "{key} = {value}");
    }
}

impl<C: Settings> Loaded<C> {
    /// The configuration in force after a reload: `next` with every key that needs a restart left as
    /// it is here, and all differences between the two.
    #[must_use]
    pub fn reloaded(&self, next: &C) -> (C, Vec<Difference>) {
        let differences = settings(&self.config)
            .into_iter()
            .zip(settings(next))
            .filter(|(old, new)| old.value != new.value)
            .map(|(old, new)| Difference {
                key: dotted(old.section, old.key),
                old: old.value,
                new: new.value,
                change: old.change,
            })
            .collect::<Vec<_>>();
        let kept = differences.iter().filter(|difference| difference.change == Change::Restart);
        let values = kept.map(|difference| (difference.key.clone(), difference.old.clone())).collect();
        let mut config = next.clone();
        config.bind(&mut Restore { section: "", values });
        (config, differences)
    }

    /// The effective configuration as TOML, each value with where it came from.
    #[must_use]
    pub fn show(&self) -> String {
        let mut out = String::new();
        let mut section = "";
        for setting in settings(&self.config) {
            if setting.section != section {
                section = setting.section;
                out.push_str(&format!("\n[{section}]\n"));
            }
            let origin = match self.sources.get(&dotted(section, setting.key)) {
                None => "default".to_owned(),
                Some(Source::Line(line)) => format!("line {line}"),
                Some(Source::Variable(name)) => name.clone(),
                Some(Source::Derived(from)) => format!("default: {from}"),
            };
            let assignment = format!("{} = {}", setting.key, setting.value);
            out.push_str(&format!("{assignment:<48} # {origin}\n"));
        }
        out.trim_start().to_owned()
    }
}
