//! Writes the manual pages and shell completions of both programs from their command lines:
//! `cargo run -p edgesync-tests --example manuals -- DIRECTORY`. The same code gives the same
//! bytes.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use edgesync::cli::args_edge::EdgeArgs;
use edgesync_cloud::cli::args_cloud::CloudArgs;

/// The manual page of the plugin of kubectl, which has the commands of the cloud side.
const PLUGIN: (&str, &str) = ("kubectl-edgesync.1", ".so man1/edgesync-cloud.1\n");

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        let _ = writeln!(io::stderr(), "usage: manuals DIRECTORY");
        return ExitCode::from(64);
    };
    let written = [EdgeArgs::command(), CloudArgs::command()]
        .into_iter()
        .try_for_each(|command| write(&command, &directory.join(command.get_name())))
        .and_then(|()| fs::write(directory.join("edgesync-cloud/man").join(PLUGIN.0), PLUGIN.1));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: cannot write to {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

/// The pages of a program go to `man`, one for each subcommand, its completions to `completions`.
fn write(command: &Command, directory: &Path) -> io::Result<()> {
    let (pages, completions) = (directory.join("man"), directory.join("completions"));
    // Pages of an earlier version that this one no longer has must not stay.
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    clap_mangen::generate_to(command.clone(), &pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command.clone(), command.get_name(), &completions)?;
    }
    Ok(())
}
