//! The command line of the cloud side.

pub mod args_cloud;
pub mod cloud;
mod enrollment;
mod explain;
mod maintenance_cloud;
pub mod nodes;
mod rollout;
mod server;
