//! Checks the repository: layers, documents, configuration files, examples and command lines.

mod advice;
mod cli;
mod comments;
mod config;
mod crates;
mod documents;
mod figures;
mod frames;
mod generated;
mod limits;
mod log;
mod manifests;
mod metrics;
mod page;
mod protocol_examples;
mod sources;
mod strings;
mod unused;
