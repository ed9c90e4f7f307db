//! The privileged helper: writes files and reloads programs on behalf of the unprivileged agent. It
//! trusts its configuration file, provided that only root can write it, and nothing else: the agent
//! sends the name of a rule and objects, never paths or commands. It is independent of cloud,
//! network and database. Read `serve` first.
//!
//! It executes the plans of [`edgesync_files`]: [`disk`] lays out files, `hook` runs programs,
//! `sandbox` confines those that check files, `records` persists the state. Requests are serial, so
//! no two programs run at once. It exits when idle, and systemd starts it on demand.
//!
//! It also decides when changes wait: [`edgesync_files::gate`] by windows and holds, `gate` by what
//! the device says. `holds` serves the programs that hold a rule, on a socket of their own,
//! whose connections are `callers`.

mod callers;
mod check;
pub mod disk;
mod executor;
mod gate;
mod hold_state;
mod holds;
mod hook;
#[cfg(test)]
mod hostile;
mod kept;
mod listen;
mod owner;
#[cfg(test)]
mod power;
mod records;
mod sandbox;
mod serve;
#[cfg(test)]
mod served;
#[cfg(test)]
mod tests;

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use edgesync_config as config;
use edgesync_config::ConfigErrors;
use edgesync_config::edge::Config;
use edgesync_runtime::systemd;
use edgesync_store::durable::{self, FileError};
use edgesync_store::random::NoRandomness;

/// Idle time after which the helper exits.
const IDLE: Duration = Duration::from_secs(60);
/// Maximum number of links that lead to the configuration, as in the kernel.
const MAX_LINKS: usize = 40;

/// Reason why the helper does not run.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The configuration or its directory is writable by others, or belongs to another user.
    #[error("read rules from {}: file or directory writable by other users, or not owned by root or this user", .0.display())]
    Untrusted(PathBuf),
    /// Records cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// No key for digests of files can be created.
    #[error("create a key for digests of files")]
    NoKey(#[from] NoRandomness),
    /// Neither socket activation nor a path of a socket.
    #[error(
        "no listening Unix socket as file descriptor 3 (LISTEN_FDS) or standard input; \
         hint: 'edgesync files-helper --socket /run/edgesync-files.sock'"
    )]
    NoSocket,
    /// Socket activation passed several sockets.
    #[error(
        "socket activation passed {0} sockets (LISTEN_FDS); expected 1, or 2 with one named 'hold' (LISTEN_FDNAMES)"
    )]
    SocketCount(usize),
    /// The socket cannot be created.
    #[error("listen on {}", path.display())]
    Listen {
        /// Path of the socket.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// The holds cannot be read, so whether a rule is held is unknown.
    #[error("read holds {}: {cause}; hint: remove the file, which ends all holds", path.display())]
    Holds {
        /// Path of their file.
        path: PathBuf,
        /// Cause of the failure.
        cause: io::Error,
    },
    /// Connections of the agent cannot be accepted.
    #[error("accept connections of the agent")]
    Accept(#[source] io::Error),
}

/// Sockets that the helper creates, and who may connect to them.
#[derive(Clone, Copy, Debug)]
pub struct OwnSockets<'a> {
    /// The agent's socket.
    pub agent: &'a Path,
    /// `user` or `user:group` that owns it; the helper's if empty.
    pub owner: &'a str,
    /// The socket of holds; none if holds are not served.
    pub holds: Option<&'a Path>,
    /// Group that may make holds; only root may if empty.
    pub holds_group: &'a str,
}

/// Serves the agent, and programs that hold rules, on sockets of systemd until idle for a minute;
/// with `sockets`, on sockets of its own until SIGTERM.
///
/// # Errors
/// There is no socket, or it cannot be used. Errors of the configuration are sent to the agent.
pub fn run(config_path: &Path, sockets: Option<OwnSockets<'_>>) -> Result<(), HelperError> {
    let Some(OwnSockets { agent, owner, holds, holds_group }) = sockets else {
        let listen::Activated { agent, holds } = listen::activated()?;
        return serve::serve(&agent, holds.as_ref(), config_path, Some(IDLE)).map_err(HelperError::Accept);
    };
    let created = listen::Created::new(agent, owner, listen::MODE)?;
    let group = if holds_group.is_empty() { String::new() } else { format!("root:{holds_group}") };
    let holds = holds.map(|path| listen::Created::new(path, &group, listen::GROUP_MODE)).transpose()?;
    created.stop_on_signal().map_err(HelperError::Accept)?;
    tracing::info!(socket = %agent.display(), "files helper listening");
    let holds = holds.as_ref().map(|created| &created.listener);
    serve::serve(&created.listener, holds, config_path, None).map_err(HelperError::Accept)
}

/// Returns the command that starts the helper at this socket, in quotes.
#[must_use]
pub fn start_command(socket: &Path) -> String {
    let elsewhere = format!("'edgesync files-helper --socket {}'", socket.display());
    systemd::advice("'systemctl enable --now edgesync-files.socket'", &elsewhere).to_owned()
}

/// Loads the configuration if its owner is root or the user of this process, and no other user can
/// write it, its directory, or that of a link to it.
fn rules(path: &Path) -> Result<Config, HelperError> {
    let own = rustix::process::geteuid().as_raw();
    let is_trusted = |found: Metadata| (found.uid() == 0 || found.uid() == own) && found.mode() & 0o022 == 0;
    let opened = File::open(path);
    if let Ok(file) = &opened {
        if !file.metadata().is_ok_and(is_trusted) {
            return Err(HelperError::Untrusted(path.to_owned()));
        }
        for directory in directories_of(path).map_err(FileError::tried("read", path))? {
            if !std::fs::metadata(&directory).is_ok_and(is_trusted) {
                return Err(HelperError::Untrusted(directory));
            }
        }
    }
    Ok(config::load_opened::<Config>(path, opened)?.config)
}

/// Returns the directories of a file and of all links that lead to it.
fn directories_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut at, mut directories) = (path.to_owned(), Vec::new());
    while directories.len() <= MAX_LINKS {
        let directory = durable::directory_of(&at).to_owned();
        let target = std::fs::read_link(&at);
        directories.push(directory.clone());
        match target {
            Ok(target) => at = directory.join(target),
            // Not a link.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(directories),
            Err(error) => return Err(error),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Returns the wall clock in microseconds since 1970.
fn now() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}
