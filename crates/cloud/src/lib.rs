//! The program `edgesync-cloud`: command line, checks, support bundle, and the wiring of fleet, endpoint, API, enrollment and
//! store into tasks. It contains no rules of its own, and it alone on the cloud side knows all parts. Read `service` first: it
//! starts everything in order.

mod bundle;
mod check;
pub mod cli;
mod service;
