//! A reliable sync agent for edge nodes and its cloud side.

pub mod config;
pub mod memory;
pub mod object;
pub mod sync;
pub mod systemd;
pub mod telemetry;
