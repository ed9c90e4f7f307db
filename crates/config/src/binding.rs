//! Keys and bindings: typed access to configuration values.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeValue};

/// Time at which a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// On a reload (SIGHUP).
    Live,
    /// After a restart; a reload logs the change and keeps the old value.
    Restart,
}

/// A value as given, before a [`Binding`] parses it.
#[derive(Clone, Copy, Debug)]
pub enum Raw<'a> {
    /// Value in the file.
    Toml(&'a DeValue<'a>),
    /// Value of an environment variable.
    Variable(&'a str),
}

/// Reason why a value, or a part of it, was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Dotted path of the wrong part within the value; empty for the value itself.
    pub key: String,
    /// Requirement for the value, and the actual value.
    pub message: String,
    /// Wrong part of the file, if it is not the whole value.
    pub span: Option<Range<usize>>,
}

/// Maximum number of reported reasons for one value; further ones are found when these are
/// corrected.
const MAX_REFUSALS: usize = 100;

/// All reasons why a value was refused; empty only while it is being read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(Vec<Refusal>);

impl Refusals {
    /// Adds the reasons why a part of the value was refused, if it was. `key` is empty for an item
    /// of a list.
    pub(crate) fn add(&mut self, key: &str, span: &Range<usize>, read: Result<(), impl Into<Self>>) {
        let Err(refused) = read else { return };
        let refused: Self = refused.into();
        for refusal in refused.0 {
            let key = match (key, refusal.key.as_str()) {
                (key, "") => key.to_owned(),
                ("", inner) => inner.to_owned(),
                (key, inner) => format!("{key}.{inner}"),
            };
            let span = refusal.span.or_else(|| Some(span.clone()));
            self.push(Refusal { key, message: refusal.message, span });
        }
    }

    /// Adds a key that the table may not have.
    pub(crate) fn unknown(&mut self, key: &Spanned<Cow<'_, str>>, known: &[&str]) {
        let message = unknown("key", key.get_ref(), known);
        self.push(Refusal { key: String::new(), message, span: Some(key.span()) });
    }

    fn push(&mut self, refusal: Refusal) {
        if self.0.len() < MAX_REFUSALS {
            self.0.push(refusal);
        }
    }

    /// Returns whether the part of this name was refused.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|refusal| refusal.key == key)
    }

    /// Ends the value.
    ///
    /// # Errors
    /// A part of it was refused.
    pub fn result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl FromIterator<Refusal> for Refusals {
    fn from_iter<I: IntoIterator<Item = Refusal>>(refusals: I) -> Self {
        Self(refusals.into_iter().take(MAX_REFUSALS).collect())
    }
}

impl IntoIterator for Refusals {
    type Item = Refusal;
    type IntoIter = std::vec::IntoIter<Refusal>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl From<Refusal> for Refusals {
    fn from(refusal: Refusal) -> Self {
        Self(vec![refusal])
    }
}

impl From<String> for Refusals {
    fn from(message: String) -> Self {
        Refusal::from(message).into()
    }
}

/// A binding for one value: parses it, and shows it as in the file.
pub trait Binding {
    /// Parses and stores a value.
    ///
    /// # Errors
    /// The value, or parts of it, have the wrong type or are out of range; the binding keeps its
    /// old value.
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals>;

    /// Returns the value as TOML.
    fn show(&self) -> String;

    /// Returns whether it is a path, which may be relative to the directory of the file.
    fn is_path(&self) -> bool {
        false
    }
}

/// A visitor of all keys of a configuration.
pub trait Keys {
    /// Starts the section `[name]`; the empty name is the top level.
    fn section(&mut self, name: &'static str);

    /// Visits a key of the current section.
    fn key(&mut self, name: &'static str, change: Change, binding: &mut dyn Binding);
}

impl dyn Keys + '_ {
    /// Visits a key that a reload changes.
    pub fn live(&mut self, name: &'static str, mut binding: impl Binding) {
        self.key(name, Change::Live, &mut binding);
    }

    /// Visits a key that needs a restart.
    pub fn fixed(&mut self, name: &'static str, mut binding: impl Binding) {
        self.key(name, Change::Restart, &mut binding);
    }
}

/// Declares a section: its name in the file, then for each key the default, whether it is `live` or
/// `fixed`, and its form and limits.
#[macro_export]
macro_rules! section {
    ($(#[$about:meta])* pub struct $name:ident in $section:literal;
     $($(#[$doc:meta])* $key:ident: $type:ty = $default:expr, $change:ident $binding:expr;)*) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$doc])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default),* }
            }
        }

        impl $name {
            /// Visits the keys of the section.
            pub fn bind(&mut self, keys: &mut dyn $crate::Keys) {
                let Self { $($key),* } = self;
                keys.section($section);
                $(keys.$change(stringify!($key).trim_start_matches("r#"), $binding);)*
            }
        }
    };
}

impl<'a> Raw<'a> {
    /// Returns the rules written as `[[section]]`.
    ///
    /// # Errors
    /// The value is no list of rules, or has more than `most`.
    pub(crate) fn rules(&self, section: &str, most: usize) -> Result<&'a DeArray<'a>, Refusal> {
        match self {
            Self::Toml(DeValue::Array(rules)) if rules.len() <= most => Ok(rules),
            Self::Toml(DeValue::Array(rules)) => {
                Err(format!("must be at most {most} rules, not {}", rules.len()).into())
            }
            Self::Toml(_) => Err(self.expected(&format!("a list of rules, each written [[{section}]]"))),
            Self::Variable(_) => Err("must be set in the file, not by a variable".to_owned().into()),
        }
    }

    /// Describes the value for an error message: `the integer 20`.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Variable(text) => quote(text),
            Self::Toml(DeValue::String(text)) => quote(text),
            Self::Toml(DeValue::Integer(number)) => format!("the integer {number}"),
            Self::Toml(DeValue::Float(number)) => format!("the number {number}"),
            Self::Toml(DeValue::Boolean(flag)) => flag.to_string(),
            Self::Toml(DeValue::Datetime(_)) => "a date".into(),
            Self::Toml(DeValue::Array(_)) => "an array".into(),
            Self::Toml(DeValue::Table(_)) => "a table".into(),
        }
    }

    /// Returns the refusal of a value that does not have the expected form.
    #[must_use]
    pub fn expected(&self, what: &str) -> Refusal {
        format!("must be {what}, not {}", self.describe()).into()
    }
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self { key: String::new(), message, span: None }
    }
}

/// Quotes a string as TOML does; truncates it if it is very long.
#[must_use]
pub(crate) fn quote(text: &str) -> String {
    const SHOWN: usize = 200;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("\"{}…\"", text[..end].escape_debug()),
        None => toml_string(text),
    }
}

/// Formats a string as a basic TOML string.
#[must_use]
pub(crate) fn toml_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Formats a value on one line of TOML.
#[must_use]
pub(crate) fn inline(value: &DeValue<'_>) -> String {
    inline_without(value, &[])
}

/// The same, without these keys of the outermost table.
pub(crate) fn inline_without(value: &DeValue<'_>, left_out: &[&str]) -> String {
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
                let key: &Cow<'_, str> = key.get_ref();
                let bare = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
                    && !key.is_empty();
                let key = if bare { key.to_string() } else { toml_string(key) };
                format!("{key} = {}", inline(value.get_ref()))
            };
            let shown = |(key, _): &(&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
                let key: &str = key.get_ref();
                !left_out.contains(&key)
            };
            format!("{{ {} }}", list(table.iter().filter(shown).map(pair).collect()))
        }
    }
}

/// Formats the error for an unknown name, with the one that it may stand for.
pub(super) fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let hint = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean '{near}'?"),
        None => format!(
            "must be one of {}; hint: remove it, or install the version that has it",
            known.join(", ")
        ),
    };
    format!("unknown {what}: {}; {hint}", quote(name))
}

/// Returns the most similar known name, if it is similar enough for a typo.
pub(super) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let (distance, near) = known.map(|other| (distance(name, other), other)).min()?;
    (distance <= (near.len() / 3).max(1)).then_some(near)
}

/// Returns the edit distance of two names.
pub(super) fn distance(a: &str, b: &str) -> usize {
    /// Longer names are no typos, and the table below grows with the length.
    const LONGEST: usize = 80;
    if a.len().max(b.len()) > LONGEST {
        return LONGEST;
    }
    let mut row = (0..=b.chars().count()).collect::<Vec<_>>();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let cost = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.chars().count()]
}
