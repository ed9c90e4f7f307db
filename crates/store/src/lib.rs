//! The SQLite engine that the stores of both sides are built on: durable connections, migrations, group commit, readers,
//! sealed bodies, checksums, and small private files. It knows no tables of its own, and no links, HTTP or agent: the edge
//! store is in the package `edgesync`, the cloud's in `edgesync-cloud-store`. Read [`engine`] first, then [`writer`].
//!
//! # Layout
//! - [`durable`] writes small private files atomically.
//! - [`engine`] opens connections and sets everything that durability depends on.
//! - [`migrate`] brings a file to the schema of the program, or refuses it.
//! - [`writer`] owns the write connection in a thread and groups jobs into commits.
//! - [`reader`] runs reads in snapshots, on connections and threads of their own.
//! - [`seal`] encrypts bodies of Secrets.
//! - [`snapshots`] keeps a commit readable between the pages of a list.
//! - [`StoreError`] classifies failures by what the caller can do about them.

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
