//! Entry point of `edgesync-demo`.

use std::process::ExitCode;

fn main() -> ExitCode {
    edgesync_demo::main()
}
