//! `edgesync check`.

use std::io::{self, Write as _};
use std::path::Path;

use tokio::runtime::Builder;

use super::output::{self, Output};
use super::{CliError, EXIT_FAILED};
use crate::check::{self, Report};

/// Runs all checks. Exit code 0 without failures (warnings are none), else 1.
pub(super) fn run(config: &Path, output: Output) -> anyhow::Result<u8> {
    show(&wait(check::run(config))?, output)
}

fn show(report: &Report, output: Output) -> anyhow::Result<u8> {
    let text = match output {
        Output::Yaml | Output::Json => output::render(&report.to_json(), output)?,
        Output::Table | Output::Wide | Output::Name => check::render(report),
    };
    io::stdout().write_all(text.as_bytes()).map_err(CliError::Output)?;
    Ok(if report.is_good() { 0 } else { EXIT_FAILED })
}

/// The same for the cloud side.
#[cfg(feature = "cloud")]
pub(super) fn run_cloud(config: &Path, output: Output) -> anyhow::Result<u8> {
    show(&wait(check::cloud_side::run(config))?, output)
}

/// Runs a future to its end, and then waits for no thread that hangs at a disk.
pub(super) fn wait<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(result)
}
