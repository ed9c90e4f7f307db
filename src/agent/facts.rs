//! What the device tells of itself: the Node's labels, `nodeInfo`, capacity and addresses, as far as the system says
//! them, and the conditions that the node alone can know.

use std::path::Path;

use crate::config::edge::Config;
use crate::object::{Condition, NodeReport};
use crate::store::edge::Health;

/// Free space of a disk below which it is under pressure: the smaller of a tenth of it and this.
pub(super) const LOW_DISK_BYTES: u64 = 256 << 20;

/// Reads everything. Blocks for a moment: files under `/proc`, `/sys` and `/etc`.
pub(super) fn report(_config: &Config, _conditions: Vec<Condition>) -> NodeReport {
    todo!()
}

/// Whether the store takes changes.
pub(super) fn store_condition(_health: &Health) -> Condition {
    todo!()
}

/// Whether the disk of the database, or the database within its limit, is almost full. `before` is the condition as
/// it was: it changes with some distance, so that it does not flap.
pub(super) fn disk_condition(
    _database: &Path,
    _database_bytes: u64,
    _max_bytes: u64,
    _before: Option<&Condition>,
) -> Condition {
    todo!()
}
