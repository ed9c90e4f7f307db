//! What the command lines of both programs share: arguments, `get` and `apply`, tables and JSON output, the framework of
//! `check` and of support bundles, exit codes. It reaches a running process only through the client of [`edgesync_api`] and
//! knows neither the agent nor the fleet. Read [`Terminal`] and [`CliError`] first: a command takes its streams as the one and
//! returns the other.

pub mod apply;
pub mod args;
pub mod bundle;
pub mod check;
mod columns;
pub mod get;
pub mod maintenance;
mod manifest;
pub mod output;
pub mod program;
pub mod records;
mod resolve;

use std::io::{self, Read, Write};

pub use program::{EXIT_CONFIG, EXIT_INTERNAL};

pub use manifest::{Manifest, ManifestError, Origin};
pub use resolve::Kinds;

use edgesync_admin::Unreadable;
use edgesync_api::ClientError;
use edgesync_object::Status;
use edgesync_runtime::{chain, systemd};
use edgesync_store::durable::FileError;

/// The arguments make no sense (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;
/// The process to talk to is not there (`EX_UNAVAILABLE`).
pub const EXIT_UNAVAILABLE: u8 = 69;
/// What scripts can rely on, in the words of `--help`.
pub const EXIT_CODES: &str = "Exit codes: 0 done, 1 refused or failed, 64 wrong usage, 69 nobody answers, \
                              70 internal error, 78 wrong configuration.";
/// Something was refused or failed.
pub const EXIT_FAILED: u8 = 1;

/// The streams of a command.
pub struct Terminal<'a> {
    /// What `-f -` reads.
    pub input: &'a mut dyn Read,
    /// Results.
    pub out: &'a mut dyn Write,
    /// Errors and remarks.
    pub err: &'a mut dyn Write,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The arguments make no sense.
    #[error("{0}")]
    Usage(String),
    /// Neither the table of kinds nor the server knows a kind.
    #[error("the server doesn't have a resource type \"{word}\"")]
    UnknownKind {
        /// What was written.
        word: String,
    },
    /// The request failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The answer is that of another version.
    #[error(transparent)]
    Answer(#[from] Unreadable),
    /// Manifests cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Standard output or error cannot be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
    /// A Kubernetes cluster does not serve.
    #[error("{0}")]
    Cluster(String),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// What is to be shown cannot be.
    #[error("cannot show the result: {0}")]
    Show(String),
}

/// Who is on the other side, for the advice when it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What it is called, such as `the agent`.
    pub name: &'static str,
    /// Its systemd unit.
    pub unit: &'static str,
}

impl Peer {
    /// The agent on the edge.
    pub const AGENT: Self = Self { name: "the agent", unit: "edgesync.service" };
    /// The cloud side.
    pub const CLOUD: Self = Self { name: "the cloud side", unit: "edgesync-cloud.service" };
}

impl CliError {
    /// The exit code of the command.
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

/// Prints an error with its causes and what to do about it, and returns the exit code. A closed pipe,
/// as `… | head` leaves it, is no error.
pub fn report(error: &CliError, peer: Peer, err: &mut dyn Write) -> u8 {
    match error {
        CliError::Output(closed) if closed.kind() == io::ErrorKind::BrokenPipe => return 0,
        CliError::Client(ClientError::Api(status)) => {
            let reason = status.reason.as_ref().map_or("Unknown", |reason| reason.as_str());
            let _ = writeln!(err, "Error from server ({reason}): {}", status.message);
            if status.message == Status::no_such_path().message {
                let _ = writeln!(err, "hint: is it {} that answers there?", peer.name);
            }
        }
        _ => {
            let _ = writeln!(err, "error: {}", chain(error));
        }
    }
    if let CliError::Client(ClientError::Connect { source, .. }) = error {
        let _ = match source.kind() {
            io::ErrorKind::PermissionDenied => {
                writeln!(
                    err,
                    "hint: run the command as root or as a member of the group that owns the socket"
                )
            }
            _ if systemd::manages() => {
                writeln!(err, "hint: is {} running? see: systemctl status {}", peer.name, peer.unit)
            }
            _ => writeln!(err, "hint: is {} running?", peer.name),
        };
    }
    error.exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_api::Address;

    fn reported(error: &CliError) -> (u8, String) {
        let mut err = Vec::new();
        let code = report(error, Peer::AGENT, &mut err);
        (code, String::from_utf8(err).unwrap())
    }

    #[test]
    fn an_agent_that_is_not_running_is_named_with_socket_and_unit() {
        let address = Address::Unix("/run/edgesync/agent.sock".into());
        let connect = |kind: io::ErrorKind| {
            let source = io::Error::from(kind);
            CliError::Client(ClientError::Connect { address: address.clone(), source })
        };
        let (code, text) = reported(&connect(io::ErrorKind::NotFound));
        assert_eq!(code, EXIT_UNAVAILABLE);
        assert_eq!(
            text,
            format!(
                "error: cannot connect to unix:/run/edgesync/agent.sock: entity not found\n\
                 hint: is the agent running?{}\n",
                if systemd::manages() { " see: systemctl status edgesync.service" } else { "" }
            )
        );
        assert!(reported(&connect(io::ErrorKind::PermissionDenied)).1.contains("group"));
    }

    #[test]
    fn a_refusal_of_the_api_shows_reason_and_message() {
        let status = Status::bad_request("no such thing");
        let (code, text) = reported(&CliError::Client(ClientError::Api(status)));
        assert_eq!((code, text.as_str()), (EXIT_FAILED, "Error from server (BadRequest): no such thing\n"));
    }

    #[test]
    fn whoever_asks_the_other_side_is_asked_whom_it_meant() {
        let (code, text) = reported(&CliError::Client(ClientError::Api(Status::no_such_path())));
        assert_eq!(code, EXIT_FAILED);
        assert!(text.ends_with("\nhint: is it the agent that answers there?\n"), "{text}");
    }

    #[test]
    fn a_pipe_that_was_closed_is_no_error() {
        let closed = CliError::Output(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(reported(&closed), (0, String::new()));
        assert_eq!(reported(&CliError::Usage("no file".into())).0, EXIT_USAGE);
    }
}
