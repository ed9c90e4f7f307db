//! The privileged helper: writes files and reloads programs on behalf of the unprivileged agent. It
//! trusts its configuration file, provided that only root can write it, and nothing else: the agent
//! sends the name of a rule and objects, never paths or commands. It is independent of cloud,
//! network and database. Read `serve` first.
//!
//! It executes the plans of [`edgesync_files`]: [`disk`] lays out files, `hook` runs programs,
//! `records` persists the state. Requests are serial, so no two programs run at once. It exits when
//! idle, and systemd starts it on demand.

pub mod disk;
mod hook;
#[cfg(test)]
mod hostile;
mod owner;
#[cfg(test)]
mod power;
mod records;
mod serve;
#[cfg(test)]
mod served;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use edgesync_config as config;
use edgesync_config::ConfigErrors;
use edgesync_config::edge::Config;
use edgesync_store::durable::FileError;

/// Idle time after which the helper exits.
const IDLE: Duration = Duration::from_secs(60);

/// Reason why the helper does not run.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The configuration or its directory is writable by others, or belongs to another user.
    #[error("{} can be written by others than its owner, or belongs to another user: rules are taken from root alone", .0.display())]
    NotOurs(PathBuf),
    /// Records cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The socket cannot be used.
    #[error("the socket cannot be used")]
    Socket(#[source] io::Error),
}

/// Serves until it is idle, or on its own socket until the process ends.
///
/// # Errors
/// The socket cannot be used. Errors of the configuration are sent to the agent.
pub fn run(config_path: &Path, socket: Option<&Path>) -> Result<(), HelperError> {
    let listener = match socket {
        Some(path) => listen(path).map_err(HelperError::Socket)?,
        // systemd passes the listening socket as standard input.
        None => {
            let socket = io::stdin().as_fd().try_clone_to_owned().map_err(HelperError::Socket)?;
            UnixListener::from(socket)
        }
    };
    let idle = socket.is_none().then_some(IDLE);
    serve::serve(&listener, config_path, idle).map_err(HelperError::Socket)
}

/// Loads the configuration if its owner is root or the user of this process, and no other user can
/// write it.
fn rules(path: &Path) -> Result<Config, HelperError> {
    let own = rustix::process::geteuid().as_raw();
    let directory = edgesync_store::durable::directory_of(path);
    for looked_at in [path, directory] {
        let ours = std::fs::metadata(looked_at)
            .is_ok_and(|found| (found.uid() == 0 || found.uid() == own) && found.mode() & 0o022 == 0);
        if looked_at.exists() && !ours {
            return Err(HelperError::NotOurs(looked_at.to_owned()));
        }
    }
    Ok(config::load::<Config>(path)?.config)
}

/// Creates a socket for the user of this process.
fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
