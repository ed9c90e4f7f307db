//! The command line of the agent.

pub mod args_edge;
mod check;
pub mod edge;
mod events;
mod files;
mod holds;
mod join;
mod maintenance;
mod seal;
pub mod status;
mod sync;
mod traffic;
