//! The API over HTTP, with real clients and hostile ones.

mod attacks;
mod command_line;
mod fuzz;
mod http;
mod kube_client;
mod metrics;
mod tls;
mod typed;
