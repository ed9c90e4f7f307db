//! A real Kubernetes API server with etcd: that it is one, and what this program makes of it.
//!
//! `tests/cluster/run` prepares it, says what it does not do, and runs this.

mod access;
mod afar;
mod api;
mod broker;
mod cache;
mod costs;
mod feed;
mod gate;
mod install;
mod joining;
mod kubernetes;
mod replicas;
mod server;
mod setup;
mod trouble;
