//! From `argv` to an exit code, for both programs.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Parser};
use clap_complete::Shell;
use tokio::runtime::Builder;

use super::groups::grouped;
use super::{CliError, EXIT_USAGE, Peer, Terminal, report};
use edgesync_config as config;
use edgesync_config::{ConfigErrors, Settings};
use edgesync_runtime::{Service, StartError};

/// Exit code for errors other than [`CliError`] and invalid configurations (`EX_SOFTWARE`).
pub const EXIT_INTERNAL: u8 = 70;
/// Exit code for an invalid configuration (`EX_CONFIG` of `sysexits.h`).
pub const EXIT_CONFIG: u8 = 78;
/// How long the shutdown waits for blocking work.
const LINGER: Duration = Duration::from_secs(5);

/// Parses the arguments; prints help, version and usage errors.
///
/// # Errors
/// The exit code, if the program is done.
pub fn parse<A: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<A, u8> {
    let mut command = grouped(A::command());
    let args: Vec<OsString> = args.into_iter().collect();
    let matches = command.try_get_matches_from_mut(&args);
    let parsed =
        matches.and_then(|found| A::from_arg_matches(&found).map_err(|error| error.format(&mut command)));
    parsed.map_err(|error| {
        // Printing fails only if the terminal is gone.
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                let _ = error.print();
                0
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                let _ = error.print();
                EXIT_USAGE
            }
            _ => {
                let _ = io::stderr().write_all(usage_error(&command, &args, &error).as_bytes());
                EXIT_USAGE
            }
        }
    })
}

/// Formats a usage error. Its hint is the help of the command that was meant, as far as it is
/// known.
fn usage_error(command: &Command, args: &[OsString], error: &clap::Error) -> String {
    /// The last line of clap, which does not name the command.
    const POINTER: &str = "For more information, try '--help'.";
    let text = error.render().to_string();
    let text = text.trim_end();
    let text = text.strip_suffix(POINTER).unwrap_or(text).trim_end();
    let mut words = vec![command.get_name()];
    let mut current = command;
    for arg in args.iter().skip(1) {
        let Some(subcommand) = current.find_subcommand(arg) else { break };
        words.push(subcommand.get_name());
        current = subcommand;
    }
    // The most similar one comes last.
    if let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand) {
        words.extend(similar.last().map(String::as_str));
    }
    format!("{text}\n\nhint: {} --help\n", words.join(" "))
}

/// Prints an error with all its causes, and returns the exit code of the program.
pub fn exit(result: anyhow::Result<u8>, peer: Peer) -> ExitCode {
    let code = result.unwrap_or_else(|error| match error.downcast_ref::<CliError>() {
        Some(error) => report(error, peer, &mut io::stderr()),
        None => {
            let wrong_config = is_wrong_config(&error);
            // Configuration problems carry their own positions; a prefix would hide the first.
            let text = if wrong_config { format!("{error:#}") } else { format!("error: {error:#}") };
            let _ = writeln!(io::stderr(), "{text}");
            if wrong_config { EXIT_CONFIG } else { EXIT_INTERNAL }
        }
    });
    ExitCode::from(code)
}

fn is_wrong_config(error: &anyhow::Error) -> bool {
    let config = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<ConfigErrors>() || matches!(cause.downcast_ref(), Some(StartError::Config(_)))
    };
    error.chain().any(config)
}

/// `check-config`: prints the effective configuration.
pub fn check_config<C: Settings>(path: &Path, quiet: bool) -> anyhow::Result<u8> {
    let loaded = config::load::<C>(path)?;
    for warning in &loaded.warnings {
        writeln!(io::stderr(), "warning: {warning}")?;
    }
    if !quiet {
        io::stdout().write_all(loaded.show().as_bytes()).map_err(CliError::Output)?;
    }
    Ok(0)
}

/// `completions`: prints shell completions.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions<A: CommandFactory>(shell: Shell) -> anyhow::Result<u8> {
    let mut command = A::command();
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    io::stdout().write_all(&text).map_err(CliError::Output)?;
    Ok(0)
}

/// The result of a successful command.
pub trait Exit {
    /// Returns the exit code.
    fn code(&self) -> u8;
}

impl Exit for () {
    fn code(&self) -> u8 {
        0
    }
}

/// Runs a command that queries a running process, and prints its output.
pub fn run_command<T: Exit>(
    command: impl AsyncFnOnce(&mut Terminal<'_>) -> Result<T, CliError>,
) -> anyhow::Result<u8> {
    let (mut input, mut err) = (io::stdin(), io::stderr());
    let mut out = io::BufWriter::new(io::stdout());
    let mut terminal = Terminal { input: &mut input, out: &mut out, err: &mut err };
    let outcome = wait(command(&mut terminal))??;
    out.flush().map_err(CliError::Output)?;
    Ok(outcome.code())
}

/// Runs a future to completion on this thread.
pub fn wait<T>(work: impl Future<Output = T>) -> io::Result<T> {
    Ok(Builder::new_current_thread().enable_all().build()?.block_on(work))
}

/// Threads for the tasks of a service; stores have their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread only: uses the least memory.
    One,
    /// Two worker threads, for the cloud side with its many nodes.
    Two,
}

/// Reads the configuration, opens the log and runs a service until it ends.
pub fn serve<C: Settings>(
    path: &Path,
    threads: Threads,
    run: impl AsyncFnOnce(Service<C>) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let service = Service::start(path)?;
    let mut builder = match threads {
        Threads::One => Builder::new_current_thread(),
        Threads::Two => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(2).thread_name("edgesync").enable_all().build()?;
    let result = runtime.block_on(run(service));
    // Blocking work was asked to stop before; the process must end regardless.
    runtime.shutdown_timeout(LINGER);
    result.map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn command() -> Command {
        let token = Command::new("token").subcommand_required(true);
        let token = token.subcommands(["create", "revoke"].map(Command::new));
        let get = Command::new("get").arg(Arg::new("KIND").required(true));
        Command::new("tool").subcommand_required(true).subcommands([get, token])
    }

    #[test]
    fn usage_errors_end_with_a_command_that_works() {
        for (typed, expected) in [
            ("", "tool --help"),
            ("zzz", "tool --help"),
            ("--zzz", "tool --help"),
            ("gett", "tool get --help"),
            ("get", "tool get --help"),
            ("token", "tool token --help"),
            ("token creat", "tool token create --help"),
            ("token create --node", "tool token create --help"),
        ] {
            let args: Vec<OsString> =
                ["tool"].into_iter().chain(typed.split_whitespace()).map(OsString::from).collect();
            let mut command = command();
            let error = command.try_get_matches_from_mut(&args).unwrap_err();
            let text = usage_error(&command, &args, &error);
            let (message, hint) = text.rsplit_once("\nhint: ").unwrap();
            assert_eq!(hint, format!("{expected}\n"), "{typed}");
            assert!(message.starts_with("error: ") && !message.contains("For more information"), "{text}");
            let help = command.try_get_matches_from_mut(hint.split_whitespace()).unwrap_err();
            assert_eq!(help.kind(), ErrorKind::DisplayHelp, "{hint}");
        }
    }
}
