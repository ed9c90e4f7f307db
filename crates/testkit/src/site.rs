//! End to end: `edgesync-cloud run` and `edgesync run` as processes, with their own directory and
//! addresses; the objects of both sides are compared through their APIs.
//!
//! ```text
//! let site = Site::new();
//! let cloud = Cloud::start(&site).await;
//! let agent = Agent::start(&site, "edge-1", cloud.mqtt).await;
//! cloud.apply(objects(0..100)).await;
//! same_on_both_sides(&cloud, &agent).await;
//! ```

mod admin;
mod agent;
mod cloud;
mod compare;
mod database;
mod files;
pub mod fleet;
mod forger;
mod objects;
mod process;
mod scripted;

use std::time::Duration;

use tokio::time::Instant;

pub use admin::ask;
pub use agent::Agent;
pub use cloud::{Cloud, apply, path_of};
pub use compare::{
    LAST_APPLIED, differences, held, in_sync, is_same, same_on_both_sides, same_within, wanted,
};
pub use database::{Snapshot, edge_rows, recorded};
pub use files::{Settings, Site};
pub use forger::Forger;
pub use objects::{Random, changed, config_map, object, objects, secret, sized};
pub use process::Process;
pub use scripted::Scripted;

pub use crate::timing::PATIENCE;
use crate::timing::is_within;

/// Shortest polling interval of conditions. One that takes long is polled less often: it would take
/// the processor from the programs that it waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Asserts that a condition holds all the time.
pub async fn steadily(what: &str, during: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < during {
        assert!(condition().await, "not any more after {:?}: {what}", start.elapsed());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until a condition returns a value; fails with `what`.
pub async fn eventually<T>(what: &str, limit: Duration, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let asked = Instant::now();
        if let Some(found) = condition().await {
            return found;
        }
        let elapsed = start.elapsed();
        assert!(
            is_within(elapsed, limit),
            "{elapsed:?} instead of {limit:?} and this did not happen: {what}"
        );
        tokio::time::sleep(POLL_INTERVAL.max(asked.elapsed())).await;
    }
}
