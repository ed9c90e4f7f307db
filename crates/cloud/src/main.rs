//! The cloud side: `edgesync-cloud run`, and the commands that ask it.

use std::process::ExitCode;

fn main() -> ExitCode {
    edgesync_cloud::cli::cloud::main()
}
