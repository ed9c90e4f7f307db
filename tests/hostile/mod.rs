//! Attacks on whole installations, with the means of a thief, a stranger or a compromised node:
//! each fails, and other nodes are unaffected.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod api;
mod crowd;
mod device;
mod flood;
mod helper;
mod intruder;
mod membership;
mod page;
mod shared_port;
