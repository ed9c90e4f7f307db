//! The admin protocol: routes, requests and responses under `/edgesync/v1/` of the agent and of
//! the cloud side. Servers build these types and clients parse them, so that each key has one
//! spelling; the crate does no I/O. Read [`Route`] first, then [`Answer`] and the responses in
//! [`agent`] and [`cloud`].
//!
//! A key is required unless some server omits it: an unknown value is `null`, and a missing key is
//! an error that names it.
//!
//! # Layout
//! - [`route`]: paths, for servers and clients.
//! - [`agent`]: responses of the agent: status, traffic, files, seal, verification.
//! - [`check`]: report of the checks of both programs.
//! - [`cloud`]: responses of the cloud side: the fleet and its nodes, objects, roll-outs,
//!   enrollment.
//! - [`read`]: parsing of responses.
//!
//! A test writes the documents in `tests/fixtures/admin` from these types.

pub mod agent;
mod answer;
pub mod check;
pub mod cloud;
pub mod route;
#[cfg(any(test, feature = "testing"))]
pub mod samples;

pub use answer::{Answer, InvalidResponse, read, write};
pub use route::{Method, NodeAction, PREFIX, RolloutSubject, Route};

#[cfg(test)]
mod tests;
