//! Test fixtures with real parts: sites of processes, mosquitto, kubectl, proxies that stall and
//! cut, a scripted broker and a scripted CloudCore. A dev-dependency of tests and benchmarks, part
//! of no program. Read [`site`] first.
//!
//! Everything listens on port 0, waits for events instead of times, and ends when its handle is
//! dropped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(
    clippy::new_without_default,
    clippy::should_implement_trait,
    reason = "what is made here is started"
)]
#![allow(clippy::needless_pass_by_value, reason = "values are written as they come to hand")]

pub mod alpn;
pub mod authority;
pub mod cloudcore;
pub mod fleet;
pub mod haproxy;
pub mod http_proxy;
pub mod image;
pub mod kubectl;
pub mod line;
pub mod links;
mod listening;
pub mod log;
pub mod mitmproxy;
pub mod mosquitto;
pub mod netns;
pub mod node;
pub mod programs;
pub mod proxy;
pub mod relay;
pub mod scripted_broker;
pub mod serving;
pub mod site;
pub mod timing;
pub mod websocket;
