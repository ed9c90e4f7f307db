//! The Kubernetes-style HTTP API, the same on both sides. Depends on `object` and on hyper; what
//! keeps the objects is behind the [`Objects`] trait.
//!
//! A request is parsed into a typed `Request` (pure), dispatched to the trait, and answered
//! as JSON or YAML; whatever goes wrong is a `Status` object.

mod media;
mod objects;
mod request;
mod response;

pub use objects::{Extension, ExtensionCall, ListOptions, ListPage, Objects, PAGE_ITEMS, Preconditions};
