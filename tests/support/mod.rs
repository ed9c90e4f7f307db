//! What tests of several programs share.

// Each program uses a part of it.
#![allow(dead_code)]

#[cfg(feature = "cloud")]
pub(crate) mod authority;
#[cfg(feature = "cloud")]
pub(crate) mod fleet;
pub(crate) mod links;
pub(crate) mod mosquitto;
pub(crate) mod proxy;
pub(crate) mod relay;
pub(crate) mod scripted_broker;
pub(crate) mod websocket;
