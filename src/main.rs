//! The agent: `edgesync run`, and the commands that ask it.

use std::process::ExitCode;

fn main() -> ExitCode {
    edgesync::cli::edge::main()
}
