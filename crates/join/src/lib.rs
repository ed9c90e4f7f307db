//! The device's side of enrollment: `edgesync join` turns a token into an identity, and a running
//! agent renews it. Independent of the agent, its store and its link; speaks HTTPS to the join
//! service of either cloud side. Read [`command`] first.
//!
//! [`token`] parses tokens, [`calls`] are the HTTP calls, [`brokers`] the addresses that they
//! return, [`files`] replaces key, certificates and configuration so that a power cut leaves the
//! old set or the new one, [`settings`] edits the configuration, [`renewal`] schedules renewals.

pub mod brokers;
pub mod calls;
pub mod command;
pub mod files;
pub mod renewal;
pub mod settings;
pub mod token;

#[cfg(test)]
mod tests;

use brokers::AdvertisedBroker;
use serde::{Deserialize, Serialize};

/// Settings from the cloud side for an enrolled node: `GET /edgesync/v1/join` with its certificate.
/// A CloudCore of KubeEdge answers 404.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// Name of the node in its certificate.
    pub node: String,
    /// Address of the broker: `mqtts://host:port`. An empty host means that of the join service.
    pub broker: String,
    /// All addresses of the broker, the preferred one first. Nodes that do not know the list use
    /// `broker`. Empty from a cloud side without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "brokers::known")]
    pub brokers: Vec<AdvertisedBroker>,
    /// Prefix of all topics.
    pub prefix: String,
    /// Time of the cloud (RFC 3339), for a message about a wrong clock.
    pub time: String,
    /// Whether the node was removed from the fleet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}
