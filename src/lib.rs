//! A reliable sync agent for edge nodes and its cloud side.

#[cfg(feature = "cloud")]
pub mod broker;
pub mod link;
pub mod object;
pub mod sync;
