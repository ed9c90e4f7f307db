//! The bridge's part of the status.

use super::Bridge;
use super::types::BridgeStatus;

/// The most missing names in the status.
const MAX_MISSING: usize = 16;

pub(super) fn status(bridge: &Bridge) -> BridgeStatus {
    let (missing, missing_count) = bridge.queries.missing(MAX_MISSING);
    let (lease_version, lease_at) = bridge.lease.answered.clone().unzip();
    let (node_version, node_at) = bridge.uploads.node.clone().unzip();
    BridgeStatus {
        unacknowledged: bridge.delivery.pending(),
        acknowledged_at: bridge.delivery.acknowledged_at,
        lease_version,
        lease_at,
        node_uid: bridge.uploads.node_uid().map(str::to_owned),
        node_version,
        node_at,
        dynamic_controller: bridge.rounds.dynamic,
        round: bridge.rounds.current(),
        verified: bridge.rounds.verified,
        missing,
        missing_count,
    }
}
