//! The device's program `edgesync`: the agent's loop, the edge store, Events, the local API, the
//! checks (`edgesync check`) and the command line. It composes the crates of the device and, by its
//! `Cargo.toml`, cannot use those of the cloud side: fleet, placement, broker, enrollment. Read
//! [`agent`] first, then [`store`]; the protocol's rules are in [`edgesync_protocol`], not here.
//!
//! # Layout
//!
//! - [`agent`]: the loop (`agent/driver.rs`) owns the
//!   [`EdgeMachine`](edgesync_protocol::edge::EdgeMachine) and turns its effects into store writes,
//!   frames and timers. Around it: Events, the Node's report, identity renewal, traffic budget,
//!   metrics, and the objects behind the local API.
//! - [`store`]: the held objects in SQLite: rows, digest and revision in one transaction, the
//!   journal of unconfirmed changes, the outbox, Leases and Events of local programs, salvage of a
//!   damaged file.
//! - [`check`]: `edgesync check`, one file per check.
//! - [`cli`]: arguments and commands.
//!
//! `docs/architecture.md` has tasks, bounds and failures, `docs/protocol.md` the frames, and
//! `docs/guarantees.md` the possible losses, with the tests that show them.

pub mod agent;
pub mod check;
pub mod cli;
pub mod store;
