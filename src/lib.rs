//! A reliable sync agent for edge nodes and its cloud side.
//!
//! Kubernetes objects travel over MQTT from `edgesync-cloud` to `edgesync`, are persisted there in SQLite and
//! reported back as ObjectSync records, so that after any interruption only what is newer is sent again.
//! `README.md` shows it, `docs/protocol.md` has the frames, `docs/architecture.md` tasks, bounds and failures.
//!
//! # Layout
//!
//! The floors of the house. A part imports parts on lower floors only:
//!
//! ```text floors
//! 9  bin
//! 8  demo                              — both programs in one story that ends well
//! 7  cli                               — the command lines
//! 6  agent  cloud  check  helper       — the node; the fleet; the doctor; who writes files and reloads programs
//! 5  join                              — becoming a member of a fleet, and staying one
//! 4  process                           — the skeleton of a service: systemd, log, memory, connections
//! 3  broker  config                    — the MQTT endpoint of the cloud side; TOML and environment
//! 2  store  link  api  cluster         — SQLite; MQTT and WebSocket clients; Kubernetes-style HTTP; a Kubernetes cluster
//! 1  sync  placement  files  tls  gate — the protocol; what belongs on which node, and in which file; certificates; doors
//! 0  object                            — Kubernetes objects
//! ```
//!
//! - Protocol: [`sync::edge`] and [`sync::cloud`] are the two state machines, [`sync::frame`] what they say to each other,
//!   [`sync::kubeedge`] the same for a stock CloudCore.
//! - Store: [`store::edge`] of a node, `store::cloud` of the cloud side: one writer thread with group commit, readers in
//!   snapshots; damage never stops it. [`store::durable`] writes the small private files of everybody.
//! - Link: [`link`] carries bytes and is made again whenever it is lost.
//! - API: [`api`] serves Kubernetes-style HTTP over whoever keeps the objects, and has its client.
//! - Cluster: `cluster` follows a Kubernetes cluster, what is wanted of it, as it changes, and writes single objects.
//! - Files: [`files`] decides what becomes of objects outside the database, [`helper`] does it, with rights that the agent
//!   does not have.
//! - Node: [`agent`]. Fleet: `cloud`, which brings each node to what `placement` says.
//!
//! `broker`, `cloud`, `placement`, `demo` and `store::cloud` belong to the feature `cloud`, which is on by default; `cluster`
//! and `store::cache` to the feature `kubernetes`, which is not.
//!
//! # The dependency rule
//!
//! [`object`], [`sync`], [`files`] and `placement` know no runtime, database, network, file, clock or random number: time and randomness
//! come in as arguments, effects go out as values. One crate, one place: rusqlite in [`store`],
//! rumqttc in [`link`] and `broker`, rustls and rcgen in [`tls`], ring in [`tls`] and where secrets are sealed or tokens
//! signed, hyper in [`api`], kube in `cluster`, backoff in [`link::retry`], clap in [`cli`], anyhow there and in what it runs.
//! `tests/repository/layers.rs` reads this picture and every import of the sources, and fails where one does not hold.
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
//! `docs/guarantees.md` says of each what can be lost nevertheless, and which tests show it.

pub mod agent;
pub mod check;
pub mod cli;
pub mod store;
