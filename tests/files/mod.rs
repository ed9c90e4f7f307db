//! From the cloud to the files of programs on the device: agent, helper, cloud side and nginx as
//! processes.
#![allow(clippy::needless_pass_by_value, reason = "values are written as they come to hand")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod device;
mod effect;
mod nginx;
mod rollouts;
mod sockets;
