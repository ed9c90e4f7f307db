//! The listening socket: passed by systemd, or created by the helper itself.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use edgesync_runtime::systemd::{Request, Signals};
use listenfd::ListenFd;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::{HelperError, owner};

/// Permissions of the agent's socket, as `SocketMode=` of the packaged unit: its owner may connect.
pub(super) const MODE: u32 = 0o600;
/// Permissions of the socket of holds: its group may connect.
pub(super) const GROUP_MODE: u32 = 0o660;
/// Name of the socket of holds in `LISTEN_FDNAMES`, as `FileDescriptorName=` of the packaged unit.
const HOLDS: &str = "hold";
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The sockets of socket activation.
#[derive(Debug)]
pub(super) struct Activated {
    pub(super) agent: UnixListener,
    pub(super) holds: Option<UnixListener>,
}

/// Returns the sockets of socket activation: file descriptors from 3 on with `LISTEN_FDS`, as
/// sd_listen_fds(3) describes, else standard input. The socket of holds has a name.
///
/// # Errors
/// The agent's is no listening Unix socket, or there are others.
pub(super) fn activated() -> Result<Activated, HelperError> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let holds = names.split(':').position(|name| name == HOLDS);
    let mut passed = ListenFd::from_env();
    let (agent, holds) = match passed.len() {
        0 => (io::stdin().as_fd().try_clone_to_owned().ok().map(UnixListener::from), None),
        count => {
            let (agent, holds) = assign(count, holds)?;
            let mut take = |at: usize| passed.take_unix_listener(at).ok().flatten();
            (take(agent), holds.and_then(&mut take))
        }
    };
    // Standard input may be any file.
    let is_listener = |of: &UnixListener| SockRef::from(of).is_listener().unwrap_or(false);
    let agent = agent.filter(is_listener).ok_or(HelperError::NoSocket)?;
    Ok(Activated { agent, holds: holds.filter(is_listener) })
}

/// Returns which of `count` sockets is the agent's, and which that of holds, by the place of its
/// name. Alone, the latter is not the agent's: others may connect to it.
fn assign(count: usize, holds: Option<usize>) -> Result<(usize, Option<usize>), HelperError> {
    match (count, holds) {
        (1, Some(0)) => Err(HelperError::NoSocket),
        (1, _) => Ok((0, None)),
        (2, Some(holds @ (0 | 1))) => Ok((1 - holds, Some(holds))),
        (more, _) => Err(HelperError::SocketCount(more)),
    }
}

/// A socket that the helper created. Its file is removed on drop.
#[derive(Debug)]
pub(super) struct Created {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode: another process may have replaced the file.
    identity: (u64, u64),
}

impl Created {
    /// Listens on `path`, with these permission bits, for root, the user of this process, and
    /// `user` or `user:group`.
    ///
    /// # Errors
    /// The path is in use or not a socket, the user does not exist, or those of the system.
    pub(super) fn new(path: &Path, owner: &str, mode: u32) -> Result<Self, HelperError> {
        let failed = |source| HelperError::Listen { path: path.to_owned(), source };
        let (user, group) = owner::find(owner, Path::new("/etc"))
            .map_err(|error| failed(io::Error::new(ErrorKind::InvalidInput, error)))?;
        refuse_if_live(path).map_err(failed)?;
        let mut staged = path.as_os_str().to_owned();
        staged.push(format!(".{}", std::process::id()));
        let staged = PathBuf::from(staged);
        remove(&staged).map_err(failed)?;
        let created = bind(&staged, user, group, mode).and_then(|socket| {
            socket.listen(BACKLOG)?;
            std::fs::rename(&staged, path)?;
            Ok((OwnedFd::from(socket).into(), identity(path)?))
        });
        match created {
            Ok((listener, identity)) => Ok(Self { listener, path: path.to_owned(), identity }),
            Err(source) => {
                let _ = std::fs::remove_file(&staged);
                Err(failed(source))
            }
        }
    }

    /// Makes SIGTERM and SIGINT end the accept loop after the current request.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn stop_on_signal(&self) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let mut signals = runtime.block_on(async { Signals::new() })?;
        let wait = async move {
            loop {
                if signals.next().await == Request::Stop {
                    // Wakes the accept loop: a listener that is shut down accepts nothing more.
                    let _ = SockRef::from(&listener).shutdown(Shutdown::Both);
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(wait))?;
        Ok(())
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds a socket, and gives its file an owner and permissions. No client can connect before it
/// listens.
fn bind(path: &Path, user: Option<u32>, group: Option<u32>, mode: u32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    std::os::unix::fs::chown(path, user, group)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(socket)
}

/// Returns the device and inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Refuses a path on which a process listens, or that is not a socket.
fn refuse_if_live(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "the file exists and is not a socket"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another process listens on it")),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Accepts a connection; none if the client has given up.
pub(super) fn accept(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_of_holds_is_never_the_agents() {
        assert_eq!(assign(1, None).unwrap(), (0, None));
        assert_eq!(assign(2, Some(0)).unwrap(), (1, Some(0)));
        assert_eq!(assign(2, Some(1)).unwrap(), (0, Some(1)));
        assert!(matches!(assign(1, Some(0)), Err(HelperError::NoSocket)));
        assert!(matches!(assign(2, None), Err(HelperError::SocketCount(2))));
        assert!(matches!(assign(3, Some(2)), Err(HelperError::SocketCount(3))));
    }

    #[test]
    fn socket_is_for_its_owner_and_removed_on_drop() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("files.sock");
        let created = Created::new(&path, "", MODE).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, MODE);
        drop(created);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    /// It listened before its mode and its group were set.
    #[test]
    fn clients_cannot_connect_before_the_permissions_are_set() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("files.sock");
        let bound = bind(&path, None, None, GROUP_MODE).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, GROUP_MODE);
        // Not even root.
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        bound.listen(1).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn stale_socket_is_replaced_and_a_live_one_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("files.sock");
        drop(UnixListener::bind(&path).unwrap());
        let created = Created::new(&path, "", MODE).unwrap();
        let refused = edgesync_runtime::chain(&Created::new(&path, "", MODE).unwrap_err());
        assert!(refused.contains("another process listens"), "{refused}");
        UnixStream::connect(&path).unwrap();
        drop(created);
        std::fs::write(&path, "theirs").unwrap();
        let refused = edgesync_runtime::chain(&Created::new(&path, "", MODE).unwrap_err());
        assert!(refused.contains("not a socket"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
    }

    #[test]
    fn replaced_socket_stays_when_the_first_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("files.sock");
        let first = Created::new(&path, "", MODE).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = Created::new(&path, "", MODE).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
        drop(second);
    }

    #[test]
    fn unknown_owner_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("files.sock");
        let refused = edgesync_runtime::chain(&Created::new(&path, "no-such-user", MODE).unwrap_err());
        assert!(refused.contains("no-such-user") && !path.exists(), "{refused}");
    }
}
