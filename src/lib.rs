//! A reliable sync agent for edge nodes and its cloud side.

pub mod api;
pub mod cli;
#[cfg(feature = "cloud")]
pub mod cloud;
pub mod config;
pub mod memory;
pub mod object;
pub mod store;
pub mod sync;
pub mod systemd;
pub mod telemetry;
