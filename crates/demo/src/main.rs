//! The product in under a minute: both sides as processes, and what happens between them.

use std::process::ExitCode;

fn main() -> ExitCode {
    edgesync_demo::main()
}
