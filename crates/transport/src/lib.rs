//! Connections: TLS with certificates that are reloaded from files, the MQTT v5 client, and limits
//! for unauthenticated connections. Carries opaque bytes, without knowledge of objects and frames.
//! Read [`link`] first.

#![warn(missing_docs)]

pub mod accepted;
pub mod admission;
pub mod connect;
pub mod link;
mod response_head;
pub mod shared;
pub mod tls;
pub mod websocket;
