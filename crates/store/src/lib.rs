//! SQLite: one engine that both sides share, and the stores of the edge and of the embedded cloud on top.
//!
//! May depend on [`edgesync_object`] and [`edgesync_protocol`], on rusqlite and on the channels of tokio; knows
//! neither links nor HTTP nor the agent.
//!
//! # Layout
//! - [`durable`] writes small private files, for everybody above too.
//! - [`engine`] opens connections and sets everything that durability depends on.
//! - [`migrate`] brings a file to the schema of the program, or refuses it.
//! - [`writer`] owns the write connection in a thread of its own and groups jobs into commits.
//! - [`reader`] runs reads in snapshots, on connections and threads of their own.
//! - [`seal`] keeps Secrets unreadable on the disk.
//! - [`snapshots`] keeps a commit readable between reads, for lists in several pages.
//! - [`edge`] is what an edge node holds, on top of these.
//! - `cache` is a copy of what is elsewhere, on top of these too (feature `kubernetes`).
//! - `cloud` is what the embedded cloud keeps, on top of these too (feature `cloud`).
//! - [`StoreError`] classifies what can go wrong by what the caller can do about it.

#![warn(missing_docs)]

pub mod checksum;
pub mod durable;
pub mod engine;
mod error;
pub mod mark;
pub mod migrate;
pub mod reader;
pub mod seal;
pub mod snapshots;
pub mod writer;

pub use error::{Cause, StoreError};
