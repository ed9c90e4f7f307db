//! `edgesync check`: a doctor. One check per file, each with a result and the next step; none changes anything, none
//! needs the agent to run.
//!
//! Composes configuration, files, clock, database, TLS, link and the local API. What a check finds out is there for those
//! after it in [`Patient`].

mod report;

use std::path::PathBuf;

use crate::config::edge::Config;

pub use report::{Report, render};

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// As it should be; what was seen, in a few words.
    Ok(String),
    /// It works, but should be looked after.
    Warning {
        /// What was seen.
        seen: String,
        /// What to do.
        next: String,
    },
    /// Not checked, and why not.
    Skipped(String),
    /// It does not work.
    Failed {
        /// What was seen.
        seen: String,
        /// What to do.
        next: String,
    },
}

/// What is looked at, and what earlier checks found out.
#[derive(Debug, Default)]
pub struct Patient {
    /// The configuration file.
    pub config_path: PathBuf,
    /// The configuration, once it could be read.
    pub config: Option<Config>,
}

/// One check.
pub struct Check {
    /// Its id: `clock`, `database-integrity`.
    pub id: &'static str,
    /// What it is about, for people.
    pub title: &'static str,
}
