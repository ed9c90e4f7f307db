//! `edgesync check`.

use std::io::{self, Write as _};
use std::path::Path;

use tokio::runtime::Builder;

use super::output::{self, Output};
use super::{CliError, EXIT_FAILED};
use crate::check;

/// Runs all checks. Exit code 0 without failures (warnings are none), else 1.
pub(super) fn run(config: &Path, output: Output) -> anyhow::Result<u8> {
    let report = wait(check::run(config))?;
    let text = match output {
        Output::Yaml | Output::Json => output::render(&report.to_json(), output)?,
        Output::Table | Output::Wide | Output::Name => check::render(&report),
    };
    io::stdout().write_all(text.as_bytes()).map_err(CliError::Output)?;
    Ok(if report.is_good() { 0 } else { EXIT_FAILED })
}

/// Runs a future to its end, and then waits for no thread that hangs at a disk.
pub(super) fn wait<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(result)
}
