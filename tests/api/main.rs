//! The API over HTTP, with real clients and hostile ones.
#![cfg(feature = "cloud")]

#[path = "../support/mod.rs"]
mod support;

mod attacks;
mod command_line;
mod fuzz;
mod http;
mod kube_client;
mod metrics;
mod serving;
mod tls;
mod typed;
