//! A reliable sync agent for edge nodes and its cloud side.

pub mod api;
pub mod object;
pub mod sync;
