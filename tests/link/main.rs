//! The links and the endpoint, against real and scripted peers.

#[cfg(feature = "cloud")]
#[path = "../cloudcore/mod.rs"]
mod cloudcore;
#[path = "../support/mod.rs"]
mod support;

mod client;
mod cloudcore_replay;
mod cloudcore_server;
mod endpoint;
mod endpoint_raw;
mod kubeedge;
mod mosquitto;
mod tls;
