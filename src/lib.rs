//! A reliable sync agent for edge nodes and its cloud side.
//!
//! Kubernetes objects travel over MQTT from `edgesync-cloud` to `edgesync`, are persisted there in SQLite and
//! reported back as ObjectSync records, so that after any interruption only what is newer is sent again.
//! `README.md` shows it, `docs/protocol.md` has the frames, `docs/architecture.md` tasks, bounds and failures.
//!
//! # Layout
//!
//! From the bottom up:
//!
//! - [`object`]: Kubernetes objects, versions, names, selectors, ObjectSync, Status. Pure.
//! - [`sync`]: the protocol as two state machines, its frames, and the rules of a change. Pure.
//! - [`store`]: SQLite. One writer thread with group commit, readers in snapshots; damage never stops it.
//! - [`tls`]: certificates, keys, TLS for clients and servers.
//! - [`link`]: the MQTT v5 client. `broker`: the MQTT v5 endpoint of the cloud side. Both carry bytes.
//! - [`api`]: Kubernetes-style HTTP over whoever keeps the objects, and its client.
//! - [`config`]: TOML and environment, checked; [`telemetry`]: logs; [`systemd`]: readiness, watchdog, signals;
//!   [`memory`]: the allocator's settings.
//! - [`join`]: becoming a member of a fleet and staying one. [`check`]: what is wrong with a node.
//! - [`agent`]: the node. `cloud`: the fleet. They alone know all of the above.
//! - [`cli`]: the command lines of both programs; `src/bin` only calls it.
//!
//! `broker`, `cloud` and `store::cloud` belong to the feature `cloud`, which is on by default.
//!
//! # The dependency rule
//!
//! [`object`] and [`sync`] know no runtime, database, network, file, clock or random number: time and randomness
//! come in as arguments, effects go out as values. [`store`], [`link`], `broker` and [`api`] do not know one
//! another, but that the broker uses the link's topics, queue and framing. One crate, one place: rusqlite in [`store`],
//! rumqttc in [`link`] and `broker`, rustls and rcgen in [`tls`], ring in [`tls`] and where secrets are sealed or tokens
//! signed, hyper in [`api`], backoff in [`link::retry`], clap and anyhow in [`cli`] and in
//! what it runs. `tests/layers.rs` reads the sources and fails where this does not hold.
//!
//! # Guarantees
//!
//! - **Durable before reported**: a version is reported after the commit that holds it has returned.
//! - **No regress**: a stored object is never replaced by an older version of its UID, unless the cloud names the newer
//!   one that it replaces on purpose.
//! - **Identity is the UID**: a delete removes the UID it names; a recreated object replaces the old one in one
//!   transaction.
//! - **Equality is proven**: before anything is sent, the cloud's records equal what the node holds, by digest.
//! - **Only what is newer** is sent after a reconnect, each object once, in its latest version.
//! - **Convergence**: while the link is up, the node comes to hold what it is to hold.
//! - **Isolation**: an object that cannot be applied is rejected with a reason; all others go on.
//! - **Bounded**: every queue, window, frame, body and file has a limit.
//! - **Self-healing**: a lost or damaged database is replaced; the cloud refills it.
//! - **Full disk**: nothing unsaved is reported; reads go on; no restart is needed.
//!
//! The README says of each what can be lost nevertheless, and which tests show it.

pub mod agent;
pub mod api;
#[cfg(feature = "cloud")]
pub mod broker;
pub mod check;
pub mod cli;
#[cfg(feature = "cloud")]
pub mod cloud;
pub mod config;
pub mod join;
pub mod link;
pub mod memory;
pub mod object;
pub mod store;
pub mod sync;
pub mod systemd;
pub mod telemetry;
pub mod tls;
