//! A scripted CloudCore: the model of one, and a server around it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "values are written as they come to hand")]

pub(crate) mod model;
pub(crate) mod server;
