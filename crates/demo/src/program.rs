//! The program `edgesync-demo`. Invoked as `edgesync` or `edgesync-cloud` it runs that program, so
//! that the demo works where the two were not built.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use super::{DemoOptions, run};
use edgesync_cli::program;

/// Shows the product: a cloud side and a node in a temporary directory, a killed agent, a cut link
#[derive(Parser, Clone, Copy, Debug, PartialEq, Eq)]
#[command(name = "edgesync-demo", version)]
struct Args {
    /// Number of objects to apply
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    objects: u32,
    /// Keep both sides running at the end, and print commands to inspect them
    #[arg(long)]
    keep: bool,
}

/// Runs the program that the process was invoked as.
#[must_use]
pub fn main() -> ExitCode {
    let args = std::env::args_os().collect::<Vec<_>>();
    match invoked_name(&args) {
        Some("edgesync") => edgesync::cli::edge::main(),
        Some("edgesync-cloud") => edgesync_cloud::cli::cloud::main(),
        _ => demo(args),
    }
}

/// Returns the name that the program was invoked as, without directories.
fn invoked_name(args: &[OsString]) -> Option<&str> {
    Path::new(args.first()?).file_name()?.to_str()
}

fn demo(args: Vec<OsString>) -> ExitCode {
    let Args { objects, keep } = match program::parse::<Args>(args) {
        Ok(args) => args,
        Err(code) => return ExitCode::from(code),
    };
    let mut out = io::stdout();
    let is_terminal = out.is_terminal();
    match program::wait(run(DemoOptions { objects, keep }, &mut out, is_terminal)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: start: {error}");
            ExitCode::from(edgesync_cli::EXIT_INTERNAL)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_objects_is_limited() {
        let parse = |args: &[&str]| Args::try_parse_from([&["edgesync-demo"], args].concat());
        assert_eq!(parse(&[]).unwrap(), Args { objects: 1000, keep: false });
        assert_eq!(parse(&["--objects", "20", "--keep"]).unwrap(), Args { objects: 20, keep: true });
        for wrong in ["1", "100001", "many"] {
            assert!(parse(&["--objects", wrong]).is_err(), "{wrong}");
        }
    }
}
