//! Attacks on whole installations, with what a thief, a stranger or a node that was taken over has in hand: none may work, and
//! good nodes beside them do not notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod api;
mod crowd;
mod device;
mod flood;
mod intruder;
mod membership;
mod page;
