//! One TLS listener for several services: MQTT, also over WebSocket, joining, and the API.
//!
//! The [`SharedListener`] accepts connections, completes their handshakes and chooses the service
//! (`route`). A service receives its connections from an [`Inlet`], as from a listener of its
//! own, and applies its own limits to them: the listener's limits end where theirs begin.
//!
//! # Client certificates
//! A handshake can require a certificate only where the ClientHello shows the service: by the
//! ALPN name of MQTT, or a host name of MQTT or the API. In all others the certificate is
//! optional, and may have expired within the grace of renewals. So a service must not rely on
//! the handshake: it passes what the client presented to
//! [`Server::admit`](crate::tls::Server::admit) of its own TLS.

mod arrival;
mod counters;
mod line;
mod listener;
mod replayed;
mod route;

pub use arrival::{Arrival, Inlet};
pub use counters::{SharedCounters, SharedTraffic};
pub use line::Bytes;
pub use listener::{SharedListener, SharedOptions};
pub use route::{Routes, Service};
