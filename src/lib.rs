//! A reliable sync agent for edge nodes and its cloud side.

pub mod agent;
pub mod api;
#[cfg(feature = "cloud")]
pub mod broker;
pub mod cli;
#[cfg(feature = "cloud")]
pub mod cloud;
pub mod config;
pub mod link;
pub mod memory;
pub mod object;
pub mod store;
pub mod sync;
pub mod systemd;
pub mod telemetry;
