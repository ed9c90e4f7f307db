//! Kubernetes API machinery over HTTP: discovery, get, list, watch, write, patch, server-side
//! apply, Table output, OpenAPI, and a client. Objects are stored behind the [`Storage`] trait,
//! which the cloud side implements over its store or a cluster, and the agent over the edge
//! store. Read [`Storage`] first, then `dispatch`.
//!
//! # Layout
//! - connection to request: `listen`, `server`, `permit`, `limits`, `write_timeout`, `auth`,
//!   `browser`, `compress`, `metrics`; memory of bodies: `body`, `weight`, `memory_budget`;
//! - request line to typed request (pure): `request`, `media`;
//! - verbs: `dispatch`, then `read` (with `snapshots`), `watch`, `write`, or a document
//!   (`discovery`, `openapi`);
//! - effect of a write on an object (pure): `write/prepare`, `patch`, `apply`, `rules`,
//!   `duplicates`;
//! - representation for the client (pure): `convert`, `select`, `table`, `listing`, `response`;
//! - storage: `storage`, and `watch_cache`.
//!
//! Every error is answered as a `Status` object.

#![warn(missing_docs)]

mod accept;
mod address;
mod apply;
mod audit;
mod auth;
mod body;
mod browser;
mod client;
mod connection;
mod convert;
mod cost_meter;
mod discovery;
mod dispatch;
mod duplicates;
mod events;
pub mod exchange;
mod extension;
mod field_path;
mod health;
mod kind;
mod kubeconfig;
mod limits;
mod listen;
mod listing;
mod media;
mod memory_budget;
mod metrics;
mod namespaces;
mod object_locks;
mod openapi;
mod patch;
mod permit;
mod read;
mod request;
mod response;
mod reviews;
mod rules;
mod scale;
mod secure;
mod select;
mod server;
mod snapshots;
mod storage;
mod table;
mod watch;
mod watch_cache;
mod weight;
mod write;
mod write_timeout;

pub use address::{Address, AddressError};
pub use audit::AUDIT;
pub use auth::{Access, Caller, Credential, Operators, Peer, Role};
pub use auth::{PageKeyHolder, PageKeys};
pub use client::{Client, ClientError, collection_path, object_path};
pub use events::check_event;
pub use extension::{Extension, ExtensionCall};
pub use extension::{PageFile, Prebuilt};
pub use kind::{Kind, PrinterColumn, ScalePaths, Writable};
pub use kubeconfig::Kubeconfig;
pub use limits::Limits;
pub use listen::{ListenError, Listener, own_uid};
pub use listing::ListWriter;
pub use media::Format;
pub use metrics::{MetricsWriter, Type as MetricsType};
pub use namespaces::{MissingNamespace, Namespaces, SYSTEM_NAMESPACES};
pub use server::Server;
pub use storage::{
    Batch, Change, ChangeType, Cursor, PAGE_ROWS, Page, PageQuery, RowFilter, Snapshot, Storage, Stored,
};
pub use watch_cache::{MAX_BATCH, WatchCache};

/// Validates an object by the rules of its kind, as a create or as an update of `old`. For tests of
/// components that write past the API.
#[cfg(any(test, feature = "testing"))]
pub fn broken_rules(
    kind: &edgesync_object::Resource,
    old: Option<&edgesync_object::Object>,
    object: &edgesync_object::Object,
) -> Vec<edgesync_object::status::Cause> {
    let schema = edgesync_schema::builtin(&kind.group, &kind.version, &kind.kind);
    let mut causes =
        schema.map(|schema| edgesync_schema::validate(&schema, object.fields())).unwrap_or_default();
    causes.extend(match old {
        None => rules::check_create(kind, object),
        Some(old) => rules::check_update(kind, old, object),
    });
    causes
}
