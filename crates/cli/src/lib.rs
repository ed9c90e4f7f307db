//! Command-line framework of both programs: arguments, `get` and `apply`, tables and JSON output,
//! `check`, support bundles, exit codes. It reaches a running process only through the client of
//! [`edgesync_api`] and depends on neither the agent nor the fleet. Read [`Terminal`] and
//! [`CliError`] first: commands write to the former and return the latter.

pub mod apply;
pub mod args;
pub mod bundle;
pub mod check;
mod columns;
pub mod get;
pub mod groups;
pub mod maintenance;
mod manifest;
pub mod output;
pub mod program;
pub mod progress;
pub mod records;
mod resolve;

use std::io::{self, Read, Write};

pub use program::{EXIT_CONFIG, EXIT_INTERNAL};

pub use manifest::{Manifest, ManifestError, Origin};
pub use resolve::Kinds;

use edgesync_admin::InvalidResponse;
use edgesync_api::{Address, ClientError};
use edgesync_object::Status;
use edgesync_runtime::{chain, systemd};
use edgesync_store::durable::FileError;

/// Exit code for invalid arguments (`EX_USAGE` of `sysexits.h`).
pub const EXIT_USAGE: u8 = 64;
/// The process is unreachable (`EX_UNAVAILABLE`).
pub const EXIT_UNAVAILABLE: u8 = 69;
/// Exit codes that scripts can rely on, as shown by `--help`.
pub const EXIT_CODES: &str = "Exit codes: 0 success, 1 refused or failed, 64 usage error, 69 unreachable, \
                              70 internal error, 78 invalid configuration.";
/// Exit code for a refused or failed request, and for any error without a specific code.
pub const EXIT_FAILED: u8 = 1;

/// The standard streams of a command.
pub struct Terminal<'a> {
    /// Input of `-f -`.
    pub input: &'a mut dyn Read,
    /// Results, for people or programs.
    pub out: &'a mut dyn Write,
    /// Errors, and notes for people.
    pub err: &'a mut dyn Write,
}

/// Error of a command.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Invalid arguments; the program exits with [`EXIT_USAGE`].
    #[error("{0}")]
    Usage(String),
    /// The kind is neither built in nor known to the server.
    #[error("the server doesn't have a resource type \"{word}\"")]
    UnknownKind {
        /// The word that was typed.
        word: String,
    },
    /// The request failed; without a connection the program exits with [`EXIT_UNAVAILABLE`].
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The response belongs to another version.
    #[error(transparent)]
    Answer(#[from] InvalidResponse),
    /// A manifest cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Standard output or error cannot be written.
    #[error("write output")]
    Output(#[from] io::Error),
    /// A Kubernetes cluster is unavailable.
    #[error("{0}")]
    Cluster(String),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The result cannot be formatted.
    #[error("format result: {0}")]
    Show(String),
}

/// The process that a command talks to, for hints in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name for people, such as `the agent`.
    pub name: &'static str,
    /// Command that starts it where systemd manages the services, in quotes.
    start: &'static str,
    /// Command that runs it elsewhere, in quotes.
    run: &'static str,
}

impl Peer {
    pub const AGENT: Self =
        Self { name: "the agent", start: "'systemctl start edgesync'", run: "'edgesync run'" };
    pub const CLOUD: Self = Self {
        name: "the cloud side",
        start: "'systemctl start edgesync-cloud'",
        run: "'edgesync-cloud run'",
    };

    /// Returns the command that starts the process here, in quotes.
    #[must_use]
    pub fn start_command(self) -> &'static str {
        systemd::advice(self.start, self.run)
    }
}

impl CliError {
    /// Returns the exit code of the command.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => EXIT_USAGE,
            Self::Client(ClientError::Connect { .. } | ClientError::Tls { .. }) => EXIT_UNAVAILABLE,
            Self::Cluster(_) => EXIT_UNAVAILABLE,
            _ => EXIT_FAILED,
        }
    }
}

/// Prints an error with its causes and a hint, and returns the exit code. A closed pipe, as left by
/// `… | head`, is not an error.
pub fn report(error: &CliError, peer: Peer, err: &mut dyn Write) -> u8 {
    match error {
        CliError::Output(closed) if closed.kind() == io::ErrorKind::BrokenPipe => return 0,
        CliError::Client(ClientError::Api(status)) => {
            let reason = status.reason.as_ref().map_or("Unknown", |reason| reason.as_str());
            let _ = writeln!(err, "Error from server ({reason}): {}", status.message);
            if status.message == Status::no_such_path().message {
                let _ = writeln!(err, "hint: is this the address of {}?", peer.name);
            }
        }
        _ => {
            let _ = writeln!(err, "error: {}", chain(error));
        }
    }
    if let CliError::Client(ClientError::Connect { address, source }) = error {
        let _ = match source.kind() {
            // The address may be of another machine.
            _ if matches!(address, Address::Tls { .. }) => writeln!(
                err,
                "hint: is {} running at this address? api.listen may be \"off\" or a loopback address",
                peer.name
            ),
            io::ErrorKind::PermissionDenied => {
                writeln!(
                    err,
                    "hint: run the command as root or as a member of the group that owns the socket"
                )
            }
            _ => writeln!(err, "hint: {}", peer.start_command()),
        };
    }
    error.exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_of(error: &CliError) -> (u8, String) {
        let mut err = Vec::new();
        let code = report(error, Peer::AGENT, &mut err);
        (code, String::from_utf8(err).unwrap())
    }

    #[test]
    fn stopped_agent_is_named_with_socket_and_command() {
        let address = Address::Unix("/run/edgesync/edgesync.sock".into());
        let connect = |kind: io::ErrorKind| {
            let source = io::Error::from(kind);
            CliError::Client(ClientError::Connect { address: address.clone(), source })
        };
        let (code, text) = report_of(&connect(io::ErrorKind::NotFound));
        assert_eq!(code, EXIT_UNAVAILABLE);
        assert_eq!(
            text,
            format!(
                "error: connect to unix:/run/edgesync/edgesync.sock: entity not found\n\
                 hint: {}\n",
                systemd::advice("'systemctl start edgesync'", "'edgesync run'")
            )
        );
        assert!(report_of(&connect(io::ErrorKind::PermissionDenied)).1.contains("group"));
    }

    #[test]
    fn refused_tls_address_hints_at_its_setting() {
        let address = Address::Tls { host: "cloud.example".to_owned(), port: 10551 };
        let source = io::Error::from(io::ErrorKind::ConnectionRefused);
        let mut err = Vec::new();
        report(&CliError::Client(ClientError::Connect { address, source }), Peer::CLOUD, &mut err);
        let text = String::from_utf8(err).unwrap();
        assert!(text.contains("hint: is the cloud side running at this address? api.listen may be \"off\""));
    }

    #[test]
    fn api_refusal_shows_reason_and_message() {
        let status = Status::bad_request("no such thing");
        let (code, text) = report_of(&CliError::Client(ClientError::Api(status)));
        assert_eq!((code, text.as_str()), (EXIT_FAILED, "Error from server (BadRequest): no such thing\n"));
    }

    #[test]
    fn unknown_path_hints_at_the_wrong_process() {
        let (code, text) = report_of(&CliError::Client(ClientError::Api(Status::no_such_path())));
        assert_eq!(code, EXIT_FAILED);
        assert!(text.ends_with("\nhint: is this the address of the agent?\n"), "{text}");
    }

    #[test]
    fn closed_pipe_is_no_error() {
        let closed = CliError::Output(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(report_of(&closed), (0, String::new()));
        assert_eq!(report_of(&CliError::Usage("no file".into())).0, EXIT_USAGE);
    }
}
