//! What tests of several programs share.

// Each program uses a part of it.
#![allow(dead_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[cfg(feature = "cloud")]
pub(crate) mod authority;
#[cfg(feature = "cloud")]
pub(crate) mod fleet;
#[cfg(feature = "cloud")]
pub(crate) mod line;
pub(crate) mod links;
pub(crate) mod log;
pub(crate) mod mosquitto;
#[cfg(feature = "cloud")]
pub(crate) mod node;
pub(crate) mod proxy;
pub(crate) mod relay;
pub(crate) mod scripted_broker;
pub(crate) mod websocket;
