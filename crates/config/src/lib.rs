//! Configuration of both programs: TOML file, environment overrides, validation, and comparison on
//! a reload. It holds the settings of other crates as plain values (names, rules of files, the
//! KubeEdge link), without their behaviour. Read `section!` first: each section is a table of key,
//! default, form and limits.
//!
//! From that table `section!` generates a struct with public fields, its `Default`, and a `bind`
//! function that visits the keys. Parsing, `EDGESYNC_…` variables, printing and comparing are
//! visitors of `bind`, so each key is described once. (Serde alone stops at the first error and
//! ignores variables; here all errors are reported together, each with its line.)

#![warn(missing_docs)]

mod binding;
mod broker;
mod connect;
mod document;
pub mod edge;
mod error;
pub mod files;
pub mod host;
mod kubeedge;
mod link;
mod log;
mod metered;
mod peer;
mod proxy;
mod report;
pub mod rules;
pub mod selection;
pub mod units;
mod windows;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;

pub use binding::{Binding, Change, Keys, Raw, Refusal, Refusals};
pub use broker::{BrokerUrl, Brokers};
pub use connect::ConnectPlan;
use document::{Document, Reader};
pub use error::{ConfigErrors, Place, Problem};
pub use files::Files;
pub use host::{JoinUrl, host_name};
pub use kubeedge::{CloudCoreUrl, KubeEdge, LinkType};
pub use link::Link;
pub use log::{Format, Log};
pub use metered::Metered;
pub use peer::Peer;
pub use proxy::ProxySetting;
pub use report::{Difference, Setting, settings};

/// A whole configuration that can be bound, completed and validated.
pub trait Settings: Default + Clone {
    /// Prefix of the overrides' names: `EDGESYNC_` on the edge.
    const ENV_PREFIX: &'static str;
    /// Variables with the prefix that belong to another program or to the command line.
    const ENV_OTHERS: &'static [&'static str];

    /// Earlier names of sections, each with its current name. A file or a variable with an earlier
    /// name still works, and causes a warning.
    const RENAMED_SECTIONS: &'static [(&'static str, &'static str)] = &[];

    /// Visits every key, section by section.
    fn bind(&mut self, keys: &mut dyn Keys);

    /// Derives values from others (such as the node name from the host name), and validates
    /// dependencies between keys.
    fn complete(&mut self, review: &mut Review<'_>);

    /// Returns the settings of the log.
    fn log(&self) -> &Log;
}

/// A configuration with the source of each value.
#[derive(Clone, Debug)]
pub struct Loaded<C> {
    /// Configuration with all effective values.
    pub config: C,
    /// Source of each value that is not a default, by `section.key`.
    pub sources: BTreeMap<String, Source>,
    /// Warnings, to be logged once the log is open.
    pub warnings: Vec<String>,
}

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Line number in the file, from 1.
    Line(usize),
    /// The environment variable of this name.
    Variable(String),
    /// Derived from something else, which is named: "the host name".
    Derived(&'static str),
}

/// Access to sources and problems while a configuration is completed and validated.
pub struct Review<'a> {
    document: &'a Document<'a>,
    sources: &'a mut BTreeMap<String, Source>,
    problems: &'a mut Vec<Problem>,
    warnings: &'a mut Vec<String>,
}

impl Review<'_> {
    /// Reports values that exclude one another. `keys` are `section.key`; the error points at the
    /// first one that was set explicitly.
    pub fn conflict(&mut self, keys: &[&str], message: impl Into<String>) {
        let set = keys.iter().find_map(|key| Some((*key, self.sources.get(*key)?)));
        let place = match set {
            Some((_, Source::Variable(name))) => Place::Variable(name.clone()),
            Some((key, Source::Line(_))) => self.document.place_of(key),
            _ => Place::Whole,
        };
        self.problems.push(Problem { place, message: message.into() });
    }

    /// Records that the value of `key` was derived from something else.
    pub fn derived(&mut self, key: &str, from: &'static str) {
        self.sources.insert(key.to_owned(), Source::Derived(from));
    }

    /// Returns whether a file or a variable sets `key`.
    #[must_use]
    pub fn is_set(&self, key: &str) -> bool {
        self.sources.contains_key(key)
    }

    /// Adds a warning for the log.
    pub fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }
}

/// Loads a configuration file and applies the overrides of this process's environment.
///
/// # Errors
/// All problems, each with its line or variable.
pub fn load<C: Settings>(path: &Path) -> Result<Loaded<C>, ConfigErrors> {
    load_opened(path, File::open(path))
}

/// The same, from an opened file: what the caller has learned about it holds for what is read.
///
/// # Errors
/// All problems, each with its line or variable.
pub fn load_opened<C: Settings>(path: &Path, opened: io::Result<File>) -> Result<Loaded<C>, ConfigErrors> {
    let text = document::read(path, opened)?;
    parse(path, &text, std::env::vars_os())
}

/// Parses a configuration. `path` names it in errors, and relative paths are relative to its
/// directory, so the same file means the same in every working directory.
///
/// # Errors
/// All problems, each with its line or variable.
pub fn parse<C: Settings>(
    path: &Path,
    text: &str,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Loaded<C>, ConfigErrors> {
    let failed = |problems| ConfigErrors { path: path.to_owned(), problems };
    let mut document = Document::parse(text).map_err(failed)?;
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    let mut sources = BTreeMap::new();
    let mut config = C::default();

    document.rename_sections(C::RENAMED_SECTIONS, &mut problems, &mut warnings);
    let variables = document::variables::<C>(environment, &mut problems, &mut warnings);
    let mut reader = Reader::new(&document, C::ENV_PREFIX, variables, &mut sources, &mut problems);
    config.bind(&mut reader);
    reader.finish(&mut warnings);
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        config.bind(&mut document::From(directory));
    }

    // With invalid values, errors about dependencies would be misleading.
    if problems.is_empty() {
        config.complete(&mut Review {
            document: &document,
            sources: &mut sources,
            problems: &mut problems,
            warnings: &mut warnings,
        });
    }
    if problems.is_empty() { Ok(Loaded { config, sources, warnings }) } else { Err(failed(problems)) }
}
