//! The Kubernetes-style HTTP API, the same on both sides. Depends on `object` and on hyper; what
//! keeps the objects is behind the [`Objects`] trait.
//!
//! A request is parsed into a typed request (pure), dispatched to the trait, and answered
//! as JSON or YAML; whatever goes wrong is a `Status` object.

mod address;
mod client;
mod dispatch;
mod keeper;
mod kind;
mod listen;
mod listing;
mod media;
mod namespaces;
mod objects;
mod request;
mod response;
#[allow(dead_code, reason = "called where objects are written")]
mod rules;
mod server;
mod stall;

pub use address::{Address, AddressError};
pub use client::{Client, ClientError, MAX_ANSWER, collection_path, object_path};
pub use keeper::{
    Batch, Change, ChangeType, Cursor, Keeper, PAGE_ROWS, Page, PageQuery, RowFilter, Snapshot, Stored,
};
pub use kind::{Kind, PrinterColumn};
pub use listen::{ListenError, Listener};
pub use listing::ListWriter;
pub use media::Format;
pub use namespaces::{Namespaces, SYSTEM_NAMESPACES};
pub use objects::{Extension, ExtensionCall, ListOptions, ListPage, Objects, PAGE_ITEMS, Preconditions};
pub use request::encode;
pub use server::{Limits, Server};
