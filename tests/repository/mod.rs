//! The repository itself: layers, documents, configuration files, examples, command lines.

mod advice;
mod cli;
mod config;
mod documents;
mod figures;
mod frames;
mod imports;
mod layers;
mod limits;
mod log;
mod manifests;
mod protocol_examples;
