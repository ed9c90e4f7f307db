//! The program `edgesync-cloud`: command line, checks, support bundle, and the wiring of fleet,
//! endpoint, API, enrollment and store into tasks. It contains no rules itself. Alone on the
//! cloud side it depends on all parts. Read `service` first: it starts them in order.

mod bundle;
mod check;
pub mod cli;
mod service;
