//! Effective settings, and the differences that a reload makes.

use std::collections::BTreeMap;

use super::document::dotted;
use super::{Binding, Change, Keys, Loaded, Raw, Settings, Source};

/// A key of a configuration with its effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the section, empty for the top level.
    pub section: &'static str,
    /// Key within the section.
    pub key: &'static str,
    /// Effective value as TOML, from [`Binding::show`].
    pub value: String,
    /// Whether a reload applies changes of it.
    pub change: Change,
}

/// A key whose value differs between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the key as `section.key`.
    pub key: String,
    /// Old value as TOML.
    pub old: String,
    /// New value as TOML.
    pub new: String,
    /// Whether a reload is sufficient.
    pub change: Change,
}

/// Returns all settings of a configuration in the order of their binding.
#[must_use]
pub fn settings<C: Settings>(config: &C) -> Vec<Setting> {
    struct Lister(&'static str, Vec<Setting>);
    impl Keys for Lister {
        fn section(&mut self, name: &'static str) {
            self.0 = name;
        }
        fn key(&mut self, key: &'static str, change: Change, binding: &mut dyn Binding) {
            self.1.push(Setting { section: self.0, key, value: binding.show(), change });
        }
    }
    let mut lister = Lister("", Vec::new());
    config.clone().bind(&mut lister);
    lister.1
}

/// Visitor that restores the old values of some keys.
struct Restore {
    section: &'static str,
    values: BTreeMap<String, String>,
}

impl Keys for Restore {
    fn section(&mut self, name: &'static str) {
        self.section = name;
    }

    fn key(&mut self, key: &'static str, _: Change, binding: &mut dyn Binding) {
        let Some(value) = self.values.get(&dotted(self.section, key)) else { return };
        let parsed = toml::de::DeValue::parse(value).ok();
        let restored = parsed.as_ref().is_some_and(|value| binding.set(Raw::Toml(value.get_ref())).is_ok());
        // A binding can parse what it shows; a test verifies it for every key.
        debug_assert!(restored, "{key} = {value}");
    }
}

impl<C: Settings> Loaded<C> {
    /// Returns the effective configuration after a reload, in which keys that need a restart keep
    /// their values, and all differences.
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

    /// Formats the effective configuration as TOML, with the source of each value.
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
