//! `edgesync backup`, `verify`, `repair` and `support-bundle`.

use std::path::Path;

use crate::api::Client;

/// Copies the database while the agent runs or not.
pub(super) fn backup(config: &Path, file: &Path) -> anyhow::Result<u8> {
    todo!()
}

/// Checks the database; with a client also against the cloud.
pub(super) fn verify(config: &Path, agent: Option<Client>) -> anyhow::Result<u8> {
    todo!()
}

/// Replaces a damaged database by what can be read of it.
pub(super) fn repair(config: &Path) -> anyhow::Result<u8> {
    todo!()
}

/// Collects what a report of a problem needs.
pub(super) fn support_bundle(config: &Path, file: Option<&Path>, agent: Client) -> anyhow::Result<u8> {
    todo!()
}
