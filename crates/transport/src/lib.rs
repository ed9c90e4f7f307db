//! Connections: TLS with certificates from files, the MQTT v5 client, and limits for whoever connects.
//!
//! The crate carries bytes and knows nothing of objects or frames. Read [`link`] first.

#![warn(missing_docs)]

pub mod gate;
pub mod link;
pub mod tls;
