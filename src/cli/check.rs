//! `edgesync check`.

use std::path::Path;

use super::output::Output;

/// Runs all checks. Exit code 0 without failures (warnings are none), else 1.
pub(super) fn run(config: &Path, output: Output) -> anyhow::Result<u8> {
    todo!()
}
