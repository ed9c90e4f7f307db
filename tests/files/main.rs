//! From the cloud to the files of programs on the device: agent, helper, cloud side and nginx as processes of their own.
#![cfg(feature = "cloud")]
#![allow(clippy::needless_pass_by_value, reason = "values are written as they come to hand")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../e2e/site/mod.rs"]
mod site;
#[path = "../support/mod.rs"]
mod support;

mod device;
mod effect;
mod nginx;
