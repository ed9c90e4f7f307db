//! The command `edgesync join`.

use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Read, Write as _};
use std::path::Path;

use super::args_edge::JoinArgs;
use edgesync_cli::program::wait;
use edgesync_cli::progress::Progress;
use edgesync_cli::{CliError, EXIT_FAILED, EXIT_UNAVAILABLE};
use edgesync_join::command::{self, JoinError, JoinOptions};
use edgesync_join::files::FilesError;
use edgesync_join::token::{MAX_TOKEN, Token};
use edgesync_object::name;

/// The value of `--token` that reads the token from standard input.
const READ_TOKEN: &str = "-";

/// Joins a cloud. Exit code 1 if the cloud or this device refuses, 69 if the service is
/// unreachable.
pub(super) fn run(args: &JoinArgs, config: &Path) -> anyhow::Result<u8> {
    if args.token == READ_TOKEN && io::stdin().is_terminal() {
        let _ = write!(io::stderr(), "Token: ");
    }
    let options = options(args, config, &mut io::stdin().lock())?;
    let joined = Progress::during("joining", |progress| {
        wait(command::run(&options, &mut progress.lines(io::stdout())))
    });
    match joined? {
        Ok(()) => Ok(0),
        Err(JoinError::Config(errors)) => Err(errors.into()),
        Err(error) => {
            // Write errors are ignored: the terminal may be closed.
            let _ = writeln!(io::stderr(), "error: {error}");
            if let Some(advice) = error.advice() {
                let _ = writeln!(io::stderr(), "hint: {advice}");
            }
            Ok(exit_code(&error))
        }
    }
}

/// Converts the arguments; reads the token from `input` if requested.
fn options(args: &JoinArgs, config: &Path, input: &mut dyn Read) -> Result<JoinOptions, CliError> {
    if let Some(Err(problem)) = args.node.as_deref().map(name::check_subdomain) {
        return Err(CliError::Usage(format!("--node {problem}")));
    }
    let token = match args.token.as_str() {
        READ_TOKEN => read_line(input)
            .map_err(|error| CliError::Usage(format!("read token from standard input: {error}")))?,
        token => token.to_owned(),
    };
    let token = token.parse::<Token>().map_err(|error| CliError::Usage(format!("--token: {error}")))?;
    Ok(JoinOptions {
        cloud: args.cloud.clone(),
        token,
        cloudcore: args.cloudcore.clone(),
        node: args.node.clone(),
        config: config.to_owned(),
        force: args.force,
    })
}

/// Reads the first line, up to the length of a token. Does not wait for the end of the input, which
/// a terminal sends separately.
fn read_line(input: &mut dyn Read) -> io::Result<String> {
    let mut text = String::new();
    BufReader::new(input.take(MAX_TOKEN as u64 + 2)).read_line(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn exit_code(error: &JoinError) -> u8 {
    match error {
        error if error.is_unreachable() => EXIT_UNAVAILABLE,
        JoinError::Config(_) | JoinError::Files(FilesError::Settings { .. }) => edgesync_cli::EXIT_CONFIG,
        _ => EXIT_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff.a.b.c";

    fn args(token: &str, node: Option<&str>) -> JoinArgs {
        let cloud = "https://cloud.example".parse().unwrap();
        JoinArgs { cloud, token: token.into(), node: node.map(str::to_owned), cloudcore: None, force: false }
    }

    fn read(args: &JoinArgs, input: &str) -> Result<JoinOptions, CliError> {
        options(args, Path::new("/x.toml"), &mut input.as_bytes())
    }

    #[test]
    fn the_token_comes_from_the_argument_or_from_standard_input() {
        let given = read(&args(TOKEN, Some("pump-7")), "").unwrap();
        assert_eq!(given.token.bearer(), "a.b.c");
        assert_eq!(given.node.as_deref(), Some("pump-7"));
        let read_in = read(&args("-", None), &format!("{TOKEN}\nmore\n")).unwrap();
        assert_eq!(read_in.token, given.token);
    }

    /// Input whose first read is its first line, and that fails after it.
    struct Terminal(Option<String>);

    impl Read for Terminal {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let line = self.0.take().ok_or(io::ErrorKind::WouldBlock)?;
            line.as_bytes().read(buffer)
        }
    }

    #[test]
    fn token_is_read_without_waiting_for_the_end_of_the_input() {
        let mut terminal = Terminal(Some(format!("{TOKEN}\n")));
        let read = options(&args("-", None), Path::new("/x.toml"), &mut terminal).unwrap();
        assert_eq!(read.token.bearer(), "a.b.c");
    }

    #[test]
    fn invalid_arguments_are_usage_errors_and_show_no_token() {
        for (args, input, words) in [
            (args("-", None), "", "it is empty"),
            (args("-", None), "secret.x", "64 hexadecimal digits"),
            (args("secret", None), "", "no dot"),
            (args(TOKEN, Some("Pump_7")), "", "--node must be a DNS-1123 subdomain"),
        ] {
            let error = read(&args, input).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.exit_code(), edgesync_cli::EXIT_USAGE);
            assert!(text.contains(words) && !text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn exit_codes_distinguish_refusal_silence_and_configuration() {
        let broker = || "mqtts://b:8883".to_owned();
        let problem = || "x".to_owned();
        for (error, code) in [
            (JoinError::Other(problem()), 1),
            (JoinError::Broker { broker: broker(), problem: problem() }, 1),
            (JoinError::BrokerSilent { broker: broker(), problem: problem() }, 69),
            (JoinError::Files(FilesError::Settings { path: "/x".into(), problem: problem() }), 78),
        ] {
            assert_eq!(exit_code(&error), code, "{error}");
        }
    }
}
