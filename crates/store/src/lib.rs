//! The SQLite engine shared by the stores of both sides: durable connections, migrations, group
//! commit, readers, sealed bodies, checksums, and small private files. The crate defines no
//! tables. The edge store is in the package `edgesync`, the cloud's in `edgesync-cloud-store`.
//! Read [`engine`] first, then [`writer`].
//!
//! # Layout
//! - [`durable`] writes small private files atomically.
//! - [`engine`] opens connections with all durability settings.
//! - [`migrate`] brings a file to the schema of the program, or refuses it.
//! - [`writer`] owns the write connection in a thread and groups jobs into commits.
//! - [`random`] makes bytes for keys and tokens.
//! - [`reader`] runs reads in snapshots, on their own connections and threads.
//! - [`seal`] encrypts bodies of Secrets.
//! - [`snapshots`] keeps a commit readable between the pages of a list.
//! - [`wal`] reads the identity and the rows of a write-ahead log.
//! - [`StoreError`] classifies failures by the caller's options.

#![warn(missing_docs)]

pub mod checksum;
pub mod durable;
pub mod engine;
mod error;
pub mod mark;
pub mod migrate;
pub mod random;
pub mod reader;
pub mod seal;
pub mod snapshots;
pub mod wal;
pub mod writer;

pub use error::{Cause, StoreError};
