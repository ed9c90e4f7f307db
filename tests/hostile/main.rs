//! Attacks on whole installations, with what a thief, a stranger or a node that was taken over has in hand: none may work, and
//! good nodes beside them do not notice.
#![cfg(feature = "cloud")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../e2e/site/mod.rs"]
mod site;
#[path = "../support/mod.rs"]
mod support;

mod api;
mod crowd;
mod device;
mod flood;
mod intruder;
mod membership;
mod page;
