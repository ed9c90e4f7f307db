//! The parsed TOML file, the environment, and the visitor that reads both into bindings.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::binding::{Binding, Change, Keys, Raw, Refusal, nearest, unknown};
use super::{ConfigErrors, Place, Problem, Settings, Source};

/// Maximum size of a configuration file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// A parsed configuration file.
#[derive(Debug)]
pub(super) struct Document<'t> {
    text: &'t str,
    table: DeTable<'t>,
}

/// Reads the file as text.
pub(super) fn read(path: &Path, opened: io::Result<File>) -> Result<String, ConfigErrors> {
    let failed = |message: String| {
        let problems = vec![Problem { place: Place::Whole, message }];
        ConfigErrors { path: path.to_owned(), problems }
    };
    let mut bytes = Vec::new();
    opened
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|error| failed(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(failed(format!("exceeds {MAX_FILE} bytes")));
    }
    String::from_utf8(bytes)
        .map_err(|error| failed(format!("invalid UTF-8 at byte offset {}", error.utf8_error().valid_up_to())))
}

impl<'t> Document<'t> {
    /// Parses TOML; on failure returns the first syntax error of each line.
    pub(super) fn parse(text: &'t str) -> Result<Self, Vec<Problem>> {
        let (table, errors) = DeTable::parse_recoverable(text);
        if errors.is_empty() {
            return Ok(Self { text, table: table.into_inner() });
        }
        let mut problems: Vec<(usize, Problem)> = Vec::new();
        for error in errors {
            let span = error.span().unwrap_or(0..0);
            let place = Place::of_span(text, &span);
            let Place::Line { line, .. } = place else { continue };
            if problems.iter().all(|(other, _)| *other != line) {
                problems.push((line, Problem { place, message: error.message().to_owned() }));
            }
        }
        Err(problems.into_iter().map(|(_, problem)| problem).collect())
    }

    /// Gives the sections with an earlier name their current one.
    pub(super) fn rename_sections(
        &mut self,
        renamed: &[(&str, &'static str)],
        problems: &mut Vec<Problem>,
        warnings: &mut Vec<String>,
    ) {
        for &(earlier, current) in renamed {
            let Some((name, value)) = self.table.remove_entry(earlier) else { continue };
            if self.table.contains_key(current) {
                let message = format!(
                    "section [{earlier}] beside [{current}], its current name; hint: move its keys to [{current}]"
                );
                problems.push(Problem { place: Place::of_span(self.text, &name.span()), message });
            } else {
                warnings.push(format!("section [{earlier}] is deprecated; hint: rename it to [{current}]"));
                self.table.insert(Spanned::new(name.span(), Cow::Borrowed(current)), value);
            }
        }
    }

    fn section(&self, name: &str) -> Option<&Spanned<DeValue<'t>>> {
        self.table.get(name)
    }

    fn value(&self, section: &str, key: &str) -> Option<&Spanned<DeValue<'t>>> {
        if section.is_empty() {
            return self.table.get(key);
        }
        self.section(section)?.get_ref().as_table()?.get(key)
    }

    /// Returns the position of the value of `section.key`.
    pub(super) fn place_of(&self, dotted: &str) -> Place {
        let (section, key) = dotted.split_once('.').unwrap_or(("", dotted));
        self.value(section, key).map_or(Place::Whole, |value| Place::of_span(self.text, &value.span()))
    }
}

/// An override in the environment.
#[derive(Debug)]
pub(super) struct Variable {
    /// The name as given, possibly with the earlier name of its section.
    name: String,
    value: String,
}

/// Returns the overrides of `C` among the variables, by their current names.
pub(super) fn variables<C: Settings>(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<String>,
) -> BTreeMap<String, Variable> {
    let mut found = BTreeMap::<String, Variable>::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(C::ENV_PREFIX)) else { continue };
        if C::ENV_OTHERS
            .iter()
            .any(|other| name == *other || (other.ends_with('_') && name.starts_with(other)))
        {
            continue;
        }
        let Ok(value) = value.into_string() else {
            let place = Place::Variable(name.to_owned());
            problems.push(Problem { place, message: "must be UTF-8 text".into() });
            continue;
        };
        let current = current_name::<C>(name);
        if current != name {
            warnings.push(format!("environment variable {name} is deprecated; hint: rename it to {current}"));
        }
        let variable = Variable { name: name.to_owned(), value };
        if let Some(other) = found.insert(current.clone(), variable) {
            let earlier = if other.name == current { name } else { other.name.as_str() };
            let message = format!("set beside {current}, its current name; hint: unset {earlier}");
            problems.push(Problem { place: Place::Variable(earlier.to_owned()), message });
        }
    }
    found
}

/// Returns the name of a variable with the current name of its section.
fn current_name<C: Settings>(name: &str) -> String {
    let key = name.strip_prefix(C::ENV_PREFIX).unwrap_or(name);
    let renamed = C::RENAMED_SECTIONS.iter().find_map(|(earlier, current)| {
        let key = key.strip_prefix(&earlier.to_uppercase())?.strip_prefix('_')?;
        Some(format!("{}{}_{key}", C::ENV_PREFIX, current.to_uppercase()))
    });
    renamed.unwrap_or_else(|| name.to_owned())
}

/// Visitor that fills bindings from file and environment, and collects problems.
pub(super) struct Reader<'a> {
    document: &'a Document<'a>,
    prefix: &'static str,
    variables: BTreeMap<String, Variable>,
    sources: &'a mut BTreeMap<String, Source>,
    problems: &'a mut Vec<Problem>,
    section: &'static str,
    known: BTreeMap<&'static str, Vec<&'static str>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        document: &'a Document<'a>,
        prefix: &'static str,
        variables: BTreeMap<String, Variable>,
        sources: &'a mut BTreeMap<String, Source>,
        problems: &'a mut Vec<Problem>,
    ) -> Self {
        Self { document, prefix, variables, sources, problems, section: "", known: BTreeMap::new() }
    }

    /// Reports keys and variables that no binding used: unknown keys are errors, unknown variables
    /// warnings.
    pub(super) fn finish(mut self, warnings: &mut Vec<String>) {
        let document = self.document;
        for (name, value) in &document.table {
            let section = name.get_ref().as_ref();
            if self.known.get("").is_some_and(|keys| keys.contains(&section)) {
                continue;
            }
            match (self.known.get(section).cloned(), value.get_ref()) {
                (Some(keys), DeValue::Table(table)) => {
                    for key in table.keys().filter(|key| !keys.contains(&key.get_ref().as_ref())) {
                        self.unknown(&format!("key in [{section}]"), key, &keys);
                    }
                }
                (Some(_), _) => {
                    let message = format!("{section} must be a section, written [{section}]");
                    self.problem(&value.span(), message);
                }
                (None, _) => {
                    let mut names =
                        self.known.keys().copied().filter(|name| !name.is_empty()).collect::<Vec<_>>();
                    names.extend(self.known.get("").into_iter().flatten());
                    self.unknown("section", name, &names);
                }
            }
        }
        for (current, Variable { name, .. }) in &self.variables {
            let known = self
                .known
                .iter()
                .flat_map(|(section, keys)| keys.iter().map(|key| self.name_of(section, key)));
            let hint = nearest(current, known.collect::<Vec<_>>().iter().map(String::as_str))
                .map_or(String::new(), |near| format!("; did you mean {near}?"));
            warnings.push(format!("environment variable {name} ignored: no such key{hint}"));
        }
        let order = |problem: &Problem| match problem.place {
            Place::Whole => (0, 0),
            Place::Line { line, column, .. } => (line, column),
            Place::Variable(_) => (usize::MAX, 0),
        };
        self.problems.sort_by_key(order);
    }

    fn unknown(&mut self, what: &str, name: &Spanned<Cow<'_, str>>, known: &[&str]) {
        self.problem(&name.span(), unknown(what, name.get_ref(), known));
    }

    fn problem(&mut self, span: &std::ops::Range<usize>, message: String) {
        self.problems.push(Problem { place: Place::of_span(self.document.text, span), message });
    }

    /// Returns the name of the override, such as `EDGESYNC_LINK_KEEPALIVE`.
    fn name_of(&self, section: &str, key: &str) -> String {
        let between = if section.is_empty() { "" } else { "_" };
        format!("{}{section}{between}{key}", self.prefix).to_uppercase()
    }
}

impl Keys for Reader<'_> {
    fn section(&mut self, name: &'static str) {
        self.section = name;
        self.known.entry(name).or_default();
    }

    fn key(&mut self, name: &'static str, _: Change, binding: &mut dyn Binding) {
        self.known.entry(self.section).or_default().push(name);
        let dotted = dotted(self.section, name);
        if let Some(value) = self.document.value(self.section, name) {
            match binding.set(Raw::Toml(value.get_ref())) {
                Ok(()) => {
                    let place = Place::of_span(self.document.text, &value.span());
                    let line = if let Place::Line { line, .. } = place { line } else { 0 };
                    self.sources.insert(dotted.clone(), Source::Line(line));
                }
                Err(refusals) => {
                    for refusal in refusals {
                        let span = refusal.span.clone().unwrap_or_else(|| value.span());
                        self.problem(&span, described(&dotted, &refusal));
                    }
                }
            }
        }
        if let Some(variable) = self.variables.remove(&self.name_of(self.section, name)) {
            match binding.set(Raw::Variable(&variable.value)) {
                Ok(()) => {
                    self.sources.insert(dotted, Source::Variable(variable.name));
                }
                Err(refusals) => {
                    for refusal in refusals {
                        let place = Place::Variable(variable.name.clone());
                        self.problems.push(Problem { place, message: described(&dotted, &refusal) });
                    }
                }
            }
        }
    }
}

/// Visitor that makes relative paths relative to a directory.
pub(super) struct From<'a>(pub(super) &'a Path);

impl Keys for From<'_> {
    fn section(&mut self, _: &'static str) {}

    fn key(&mut self, _: &'static str, _: Change, binding: &mut dyn Binding) {
        if !binding.is_path() {
            return;
        }
        if let Ok(shown) = DeValue::parse(&binding.show())
            && let DeValue::String(path) = shown.get_ref()
            && !path.is_empty()
        {
            // Joining leaves an absolute path unchanged; a binding can parse what it shows.
            let _ = binding.set(Raw::Variable(&self.0.join(&**path).display().to_string()));
        }
    }
}

/// Returns `section.key`, or the key alone at the top level.
pub(super) fn dotted(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

/// Formats a refusal of a key, or of a part of its value.
fn described(key: &str, refusal: &Refusal) -> String {
    let dot = if refusal.key.is_empty() { "" } else { "." };
    format!("{key}{dot}{}: {}", refusal.key, refusal.message)
}

#[cfg(test)]
mod tests {
    use super::super::binding::distance;
    use super::*;

    #[test]
    fn typos_are_recognised() {
        let known = ["keepalive", "backoff_min", "backoff_max"];
        assert_eq!(nearest("keep_alive", known.into_iter()), Some("keepalive"));
        assert_eq!(nearest("backof_max", known.into_iter()), Some("backoff_max"));
        assert_eq!(nearest("colour", known.into_iter()), None);
    }

    #[test]
    fn distance_is_symmetric_and_zero_only_for_equal_names() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("sitting", "kitten"), 3);
        assert_eq!(distance("ä", "ä"), 0);
    }
}
