//! Connections: TLS with certificates that are reloaded from files, the MQTT v5 client, and limits for unauthenticated
//! connections. It carries opaque bytes and knows neither objects nor frames. Read [`link`] first.

#![warn(missing_docs)]

pub mod gate;
pub mod link;
pub mod tls;
