//! The program `edgesync-cloud`: command line, checks, and the wiring of its parts.

mod bundle;
mod check;
pub mod cli;
mod service;
