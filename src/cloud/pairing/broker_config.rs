//! `edgesync-cloud broker-config`: everything an external broker needs so that nodes are told apart by their
//! certificates: its configuration, access rules, CA, certificate, key, revocation list.

use std::collections::BTreeMap;

use super::Pairing;
use crate::object::status::Result;

/// For which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavor {
    /// Eclipse Mosquitto 2.0 or newer.
    Mosquitto,
    /// EMQX 5.
    Emqx,
}

/// What the files are made from.
#[derive(Clone, Debug)]
pub(crate) struct BrokerConfig {
    /// For which broker.
    pub(crate) flavor: Flavor,
    /// Where the files will be, as the broker sees it: `/etc/mosquitto/edgesync`.
    pub(crate) directory: String,
    /// Host names and addresses that nodes use for the broker.
    pub(crate) names: Vec<String>,
    /// The port that it listens on.
    pub(crate) port: u16,
    /// The topics' prefix.
    pub(crate) prefix: String,
    /// The largest packet, in bytes.
    pub(crate) max_packet: u32,
}

/// The files by name: the configuration first to be looked at, with comments on how to install them all.
///
/// # Errors
/// Names that cannot be in a certificate; the library's.
pub(crate) fn files(pairing: &Pairing, wanted: &BrokerConfig) -> Result<BTreeMap<String, String>> {
    todo!()
}
