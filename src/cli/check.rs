//! The command `edgesync check`.

use std::path::Path;

pub(super) use edgesync_cli::check::{show, wait};
use edgesync_cli::output::Output;
use edgesync_cli::progress::Progress;

use crate::check;

/// Runs all checks. Exit code 0 without failures (warnings are none), else 1.
pub(super) fn run(config: &Path, output: Output) -> anyhow::Result<u8> {
    let report = Progress::during("running checks", |_| wait(check::run(config)))?;
    show(&report, output)
}
