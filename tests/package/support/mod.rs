//! Packages in a throw-away root, and services that run as their units define.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod root;
mod service;
mod systemd;
mod unit;

use std::time::{Duration, Instant};

use edgesync_testkit::timing::is_within;
pub(crate) use root::{Owner, Root, packages};
pub(crate) use service::Service;
pub(crate) use systemd::Systemd;
pub(crate) use unit::Unit;

/// Maximum duration of a step on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The polling interval of `eventually`.
const LOOK: Duration = Duration::from_millis(200);

/// Waits until `condition` returns a value; panics with `what` on a timeout.
pub(crate) fn eventually<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<T, String>,
) -> T {
    let start = Instant::now();
    loop {
        match condition() {
            Ok(found) => return found,
            Err(seen) if !is_within(start.elapsed(), limit) => {
                panic!("within {limit:?} this did not happen: {what}; seen last: {seen}")
            }
            Err(_) => std::thread::park_timeout(LOOK),
        }
    }
}
