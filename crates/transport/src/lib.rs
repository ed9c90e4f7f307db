//! Connections: TLS with certificates that are reloaded from files, HTTP proxies, WebSocket
//! framing, the MQTT v5 client, a listener that services share, and limits for unauthenticated
//! connections. Carries opaque bytes, without knowledge of objects and frames. Read [`link`]
//! first.

#![warn(missing_docs)]

pub mod accepted;
pub mod admission;
pub mod connect;
pub mod dial;
pub mod link;
pub mod proxy;
mod random;
mod response_head;
pub mod shared;
pub mod tls;
pub mod websocket;

pub use random::random;
