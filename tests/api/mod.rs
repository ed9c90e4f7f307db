//! The API over HTTP: real clients, hostile clients, metrics and TLS.

mod attacks;
mod command_line;
mod fuzz;
mod http;
mod kube_client;
pub(crate) mod metrics;
mod read_only;
mod tls;
mod typed;
mod webhooks;
