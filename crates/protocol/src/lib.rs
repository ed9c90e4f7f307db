//! The sync protocol: state machines of both sides, frames, the digest, and the rules by which a
//! change alters the rows of a node. The crate does no I/O and knows no runtime and no database:
//! time and random numbers are arguments, effects are values. Read [`edge::EdgeMachine`] first,
//! then [`cloud::CloudMachine`] and [`frame`].
//!
//! # Layout
//!
//! - [`frame`], [`message`], [`upload`]: the wire format; `docs/protocol.md` specifies it
//! - [`parts`]: messages larger than a frame
//! - [`patch`]: updates as the difference from the version that the node holds
//! - [`renewal`]: renewals of the Lease, planned absences
//! - [`metered`]: links that are paid by the byte
//! - [`edge`]: the state machine of the node
//! - [`cloud`]: the state machine of the cloud side, one per node
//! - [`apply`]: applies changes to the rows of a node
//! - [`replicas`]: rules for several replicas of the cloud side over one API server
//! - [`digest`]: the keyed digest by which both sides compare what a node holds

#![warn(missing_docs)]

pub mod apply;
pub mod body;
pub mod change;
pub mod cloud;
pub mod compression;
pub mod digest;
pub mod edge;
#[cfg(any(test, feature = "simulation"))]
pub mod fault;
pub mod frame;
pub mod message;
pub mod metered;
pub mod node;
pub mod parts;
pub mod patch;
pub mod renewal;
pub mod replicas;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
pub mod timing;
pub mod upload;
mod wait;
