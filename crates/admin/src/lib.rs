//! The admin protocol: every route, request and answer under `/edgesync/v1/` of the agent and of the cloud side.
//!
//! The server builds these types and the clients read them, so that a key has one spelling. A key is required unless some
//! server leaves it out: a value that is not known is `null`, and a missing key is an error that names it.
//!
//! # Layout
//! - [`route`]: the paths, for servers and clients.
//! - [`agent`]: what the agent answers: status, traffic, files, seal, verification.
//! - [`cloud`]: what the cloud side answers: the fleet and its nodes, objects, roll-outs, enrollment.
//! - [`read`]: how a client reads an answer.
//!
//! The documents in `tests/fixtures/admin` are written from these types by a test.

pub mod agent;
mod answer;
pub mod cloud;
pub mod route;
#[cfg(any(test, feature = "testing"))]
pub mod samples;

pub use answer::{Answer, Unreadable, read, write};
pub use route::{Method, NodeAction, PREFIX, RolloutSubject, Route};

#[cfg(test)]
mod tests;
