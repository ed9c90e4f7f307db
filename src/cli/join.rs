//! `edgesync join`.

use std::path::Path;

use super::args_edge::JoinArgs;

/// Joins. Exit code 1 when the cloud or this device refuses, 69 when nobody answers.
pub(super) fn run(args: &JoinArgs, config: &Path) -> anyhow::Result<u8> {
    todo!()
}
