//! Joining a cloud and keeping the membership: from a token to an identity, and its renewal.
//!
//! [`token`] is what the operator hands over, [`calls`] are KubeEdge's two calls and the one that tells the rest,
//! [`files`] puts key, certificates and configuration in place so that a power cut leaves either the old set or the
//! new one, [`settings`] edits the configuration, [`renewal`] says when to renew and does it, [`command`] is
//! `edgesync join`.
//!
//! May depend on [`edgesync_transport::tls`], [`edgesync_api`] (the exchange over HTTP), [`edgesync_config`] and [`edgesync_object`].

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
