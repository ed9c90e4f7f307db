//! The device's side of enrollment: `edgesync join` turns a token into an identity, and a running agent renews it. It does not
//! know the agent, its store or its link, and speaks HTTPS to the join service of either cloud side. Read [`command`] first.
//!
//! [`token`] parses tokens, [`calls`] are the HTTP calls, [`files`] replaces key, certificates and configuration so that a power
//! cut leaves the old set or the new one, [`settings`] edits the configuration, [`renewal`] decides when to renew.

pub mod calls;
pub mod command;
pub mod files;
pub mod renewal;
pub mod settings;
pub mod token;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// What the cloud side tells a node that has its certificate: `GET /edgesync/v1/join` with that certificate. A
/// CloudCore of KubeEdge answers 404.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// The node, as the certificate names it.
    pub node: String,
    /// Where the broker is: `mqtts://host:port`. An empty host stands for the one that was asked.
    pub broker: String,
    /// The first segments of every topic.
    pub prefix: String,
    /// The cloud's clock (RFC 3339), for a message about a wrong one here.
    pub time: String,
    /// Whether the node was removed from the fleet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}
