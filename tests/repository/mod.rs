//! Checks the repository: layers, documents, configuration files, examples and command lines.

mod advice;
// Packages have Helm for this architecture only.
#[cfg(target_arch = "x86_64")]
mod chart;
mod cli;
mod comments;
mod commits;
mod conditions;
mod config;
mod crates;
mod documents;
mod figures;
mod frames;
mod generated;
mod image;
mod limits;
mod log;
mod manifests;
mod metrics;
mod page;
mod protocol_examples;
mod releases;
mod sources;
mod strings;
mod unused;
