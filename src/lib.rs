//! A reliable sync agent for edge nodes and its cloud side.

pub mod object;
pub mod store;
pub mod sync;
