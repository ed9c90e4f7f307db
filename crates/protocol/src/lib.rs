//! The sync protocol: two pure state machines (edge and cloud), their frames, and the rules both share.
//!
//! Nothing here does I/O, reads a clock or draws a random number: time and randomness come in as
//! arguments, effects go out as values. May depend on [`edgesync_object`] only.

#![warn(missing_docs)]

pub mod change;
pub mod cloud;
pub mod compression;
pub mod digest;
pub mod edge;
#[cfg(any(test, feature = "simulation"))]
pub mod fault;
pub mod frame;
pub mod message;
pub mod node;
mod parts;
pub mod replica;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
pub mod timing;
pub mod upload;
mod wait;
