//! The sync protocol: the state machines of both sides, their frames, the digest, and the rules by which a change alters what
//! a node holds. It is pure: it knows no I/O, runtime or database, and time and random numbers are arguments, effects are
//! values. Read [`frame`] first, then [`edge`] and [`cloud`]; `docs/protocol.md` specifies it.

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
