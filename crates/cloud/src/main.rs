//! Entry point of `edgesync-cloud`.

use std::process::ExitCode;

fn main() -> ExitCode {
    edgesync_cloud::cli::cloud::main()
}
