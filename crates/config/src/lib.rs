//! The configuration of both programs: TOML file, environment overrides, validation, and comparison on a reload. It knows the
//! settings of other crates only as plain values (names, rules of files, the KubeEdge link) and nothing that runs. Read
//! `section!` first: each section is a table of key, default, form and limits.
//!
//! From that table `section!` makes a struct with public fields, its `Default`, and a `bind` function that names the keys.
//! Parsing, `EDGESYNC_…` variables, printing and comparing are visitors of `bind`, so a key is described once. (Serde alone
//! stops at the first mistake and knows no variables; here all mistakes are reported together, each with its line.)

#![warn(missing_docs)]

mod document;
pub mod edge;
mod error;
pub mod files;
mod host;
mod kubeedge;
mod link;
mod log;
mod peer;
mod report;
pub mod slot;
pub mod units;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use document::{Document, Reader};
pub use error::{ConfigErrors, Place, Problem};
pub use files::Files;
pub use host::{JoinUrl, host_name};
pub use kubeedge::{CloudCoreUrl, KubeEdge, LinkType};
pub use link::{BrokerUrl, Link};
pub use log::{Format, Log};
pub use peer::Peer;
pub use report::{Difference, Setting, settings};
pub use slot::{Change, Keys, Raw, Refusal, Slot};

/// A whole configuration: what can be bound, completed and checked.
pub trait Settings: Default + Clone {
    /// What the name of each override starts with: `EDGESYNC_` on the edge.
    const ENV_PREFIX: &'static str;
    /// Variables that start with the prefix and belong to another program or to the command line.
    const ENV_OTHERS: &'static [&'static str];

    /// Names every key to `keys`, section by section.
    fn bind(&mut self, keys: &mut dyn Keys);

    /// Fills in values that come from others (the node name from the host name) and checks what
    /// concerns more than one key.
    fn complete(&mut self, review: &mut Review<'_>);

    /// What is logged and how.
    fn log(&self) -> &Log;
}

/// A configuration with where its values came from.
#[derive(Clone, Debug)]
pub struct Loaded<C> {
    /// The values in force.
    pub config: C,
    /// Where each value that is not built in came from, by `section.key`.
    pub sources: BTreeMap<String, Source>,
    /// What is odd and does not prevent running; for the log, once it is open.
    pub warnings: Vec<String>,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Line of the file, from 1.
    Line(usize),
    /// The environment variable of this name.
    Variable(String),
    /// Taken over from something else, which is named: "the host name".
    Derived(&'static str),
}

/// The view a configuration has of itself while it is completed and checked.
pub struct Review<'a> {
    document: &'a Document<'a>,
    sources: &'a mut BTreeMap<String, Source>,
    problems: &'a mut Vec<Problem>,
    warnings: &'a mut Vec<String>,
}

impl Review<'_> {
    /// Reports values that exclude one another. `keys` are `section.key`; the first one that was set
    /// by somebody is where the error points.
    pub fn conflict(&mut self, keys: &[&str], message: impl Into<String>) {
        let set = keys.iter().find_map(|key| Some((*key, self.sources.get(*key)?)));
        let place = match set {
            Some((_, Source::Variable(name))) => Place::Variable(name.clone()),
            Some((key, Source::Line(_))) => self.document.place_of(key),
            _ => Place::Whole,
        };
        self.problems.push(Problem { place, message: message.into() });
    }

    /// Notes that the value of `key` was taken over from something else.
    pub fn derived(&mut self, key: &str, from: &'static str) {
        self.sources.insert(key.to_owned(), Source::Derived(from));
    }

    /// Whether a file or a variable set `key`.
    #[must_use]
    pub fn is_set(&self, key: &str) -> bool {
        self.sources.contains_key(key)
    }

    /// Notes something odd that does not prevent running.
    pub fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }
}

/// Reads a configuration file and applies the overrides of this process's environment.
///
/// # Errors
/// All problems that were found, each with its line or variable.
pub fn load<C: Settings>(path: &Path) -> Result<Loaded<C>, ConfigErrors> {
    let text = document::read(path)?;
    parse(path, &text, std::env::vars_os())
}

/// Reads a configuration from text. `path` names it in errors, and relative paths count from its directory, so that the
/// same file means the same wherever the program is started.
///
/// # Errors
/// All problems that were found, each with its line or variable.
pub fn parse<C: Settings>(
    path: &Path,
    text: &str,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Loaded<C>, ConfigErrors> {
    let failed = |problems| ConfigErrors { path: path.to_owned(), problems };
    let document = Document::parse(text).map_err(failed)?;
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    let mut sources = BTreeMap::new();
    let mut config = C::default();

    let variables = document::variables::<C>(environment, &mut problems);
    let mut reader = Reader::new(&document, C::ENV_PREFIX, variables, &mut sources, &mut problems);
    config.bind(&mut reader);
    reader.finish(&mut warnings);
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        config.bind(&mut document::From(directory));
    }

    // Conflicts between values that were refused would only repeat the refusal.
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
