//! Listeners: TCP on loopback, TLS on any address, connections of a shared TLS listener, and Unix
//! sockets with their files.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::address::Address;
use edgesync_transport::admission::{self, Origin};
use edgesync_transport::shared::{Arrival, Inlet};
use edgesync_transport::tls;

/// Permissions of a socket: its owner and group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Permissions of the socket's directory, if it is created.
const DIRECTORY_MODE: u32 = 0o755;
/// Maximum length of a socket path, in bytes (`sun_path` without its final zero).
const MAX_SOCKET_PATH: usize = 107;
/// Time limit of the probe for a process behind an existing socket.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Error of binding a listener.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Without TLS any host that reaches the address could read and write.
    #[error(
        "listen on {address}: without TLS only loopback is allowed; hint: use 127.0.0.1, ::1 or a Unix socket"
    )]
    NotLoopback {
        /// The address to listen on.
        address: SocketAddr,
    },
    /// The client form of an address.
    #[error("listen on {address}: this is the form for clients; hint: use IP:PORT and a certificate")]
    ForClients {
        /// The address to listen on.
        address: Address,
    },
    /// The system refuses the TCP address.
    #[error("listen on {address}")]
    Tcp {
        /// The address to listen on.
        address: SocketAddr,
        /// Cause of the failure.
        source: io::Error,
    },
    /// The system refuses the socket.
    #[error("create socket {}", path.display())]
    Unix {
        /// The path of the socket.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// Another process answers on the socket.
    #[error("the socket {} is in use by another process; hint: stop that process, or choose another path", path.display())]
    InUse {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The path is occupied by a file that is not a socket.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The path does not fit into a socket address.
    #[error("the socket path {} is longer than {MAX_SOCKET_PATH} bytes", path.display())]
    PathTooLong {
        /// The path of the socket.
        path: PathBuf,
    },
}

/// An open listener. A Unix socket's file is removed on drop.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    pub(super) inner: Inner,
    _file: Option<SocketFile>,
}

#[derive(Debug)]
pub(super) enum Inner {
    /// With the TLS acceptor for clients that begin with a handshake.
    Tcp(TcpListener, Option<tls::Local>),
    Tls(TcpListener, tls::Server),
    /// With the TLS whose rule the clients must satisfy.
    Shared(Inlet, tls::Server),
    Unix(UnixListener),
}

pub(super) enum Accepted {
    Tcp(TcpStream, SocketAddr, Option<tls::Local>),
    /// A connection before its TLS handshake.
    Tls(TcpStream, SocketAddr, tls::Server),
    /// A connection after the handshake of a shared listener.
    Shared(Box<Arrival>, tls::Server),
    /// With the user of the peer, if the system reports it.
    Unix(UnixStream, Option<u32>),
}

impl Accepted {
    /// Returns the origin that connection limits count by.
    pub(super) fn origin(&self) -> Origin {
        match self {
            Self::Tcp(_, from, _) => Origin::of(from.ip()),
            Self::Tls(_, from, _) => Origin::of(from.ip()),
            Self::Shared(arrival, _) => arrival.origin(),
            Self::Unix(_, uid) => Origin::User(*uid),
        }
    }
}

/// A socket whose client may have sent nothing yet.
enum Silent<'a> {
    Tcp(&'a TcpStream),
    Unix(&'a UnixStream),
}

impl admission::Visitor for Accepted {
    fn readable(&self) -> impl Future<Output = ()> + Send {
        let silent = match self {
            Self::Tcp(stream, ..) | Self::Tls(stream, ..) => Some(Silent::Tcp(stream)),
            Self::Unix(stream, _) => Some(Silent::Unix(stream)),
            // Its request has begun.
            Self::Shared(..) => None,
        };
        async move {
            // An error appears again when the connection is read.
            match silent {
                Some(Silent::Tcp(stream)) => drop(stream.peek(&mut [0]).await),
                Some(Silent::Unix(stream)) => {
                    let peek = || SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]);
                    drop(stream.async_io(Interest::READABLE, peek).await);
                }
                None => {}
            }
        }
    }
}

impl Listener {
    /// Listens on a loopback TCP address or a Unix socket.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub async fn bind(address: &Address) -> Result<Self, ListenError> {
        match address {
            Address::Tcp(address) => Self::bind_tcp(*address).await,
            Address::Tls { .. } => Err(ListenError::ForClients { address: address.clone() }),
            Address::Unix(path) => Self::bind_unix(path).await,
        }
    }

    /// Listens without TLS on any address, for data that every host there may read.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub async fn bind_open(address: SocketAddr) -> Result<Self, ListenError> {
        let (listener, bound) = listen(address).await?;
        Ok(Self { address: Address::Tcp(bound), inner: Inner::Tcp(listener, None), _file: None })
    }

    /// Listens with TLS on any address. Handshakes run in the task of their connection.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub async fn bind_tls(address: SocketAddr, tls: tls::Server) -> Result<Self, ListenError> {
        let (listener, bound) = listen(address).await?;
        let address = Address::Tls { host: bound.ip().to_string(), port: bound.port() };
        Ok(Self { address, inner: Inner::Tls(listener, tls), _file: None })
    }

    /// Takes the connections of a shared listener, from clients that satisfy the rule of this
    /// TLS; others get 401.
    #[must_use]
    pub fn shared(inlet: Inlet, tls: tls::Server) -> Self {
        let bound = inlet.address();
        let address = Address::Tls { host: bound.ip().to_string(), port: bound.port() };
        Self { address, inner: Inner::Shared(inlet, tls), _file: None }
    }

    /// Accepts TLS as well on a TCP listener: the first byte of a connection decides.
    #[must_use]
    pub fn with_local_tls(mut self, local: tls::Local) -> Self {
        if let Inner::Tcp(_, tls) = &mut self.inner {
            *tls = Some(local);
        }
        self
    }

    /// Returns the address listened on, with the port that the system chose.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    async fn bind_tcp(address: SocketAddr) -> Result<Self, ListenError> {
        if !address.ip().is_loopback() {
            return Err(ListenError::NotLoopback { address });
        }
        let (listener, bound) = listen(address).await?;
        Ok(Self { address: Address::Tcp(bound), inner: Inner::Tcp(listener, None), _file: None })
    }

    async fn bind_unix(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Unix { path: path.to_owned(), source };
        // The socket is created under a temporary name and renamed once its permissions are set: no
        // client can connect before, and a stale file is replaced atomically.
        let mut staged = path.as_os_str().to_owned();
        staged.push(format!(".{}", std::process::id()));
        let staged = PathBuf::from(staged);
        if staged.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(ListenError::PathTooLong { path: path.to_owned() });
        }
        make_directory(path).map_err(failed)?;
        refuse_if_live(path).await?;
        remove_if_there(&staged).map_err(failed)?;
        let listener = UnixListener::bind(&staged).map_err(failed)?;
        let renamed = std::fs::set_permissions(&staged, std::fs::Permissions::from_mode(SOCKET_MODE))
            .and_then(|()| std::fs::rename(&staged, path))
            .and_then(|()| SocketFile::of(path));
        match renamed {
            Ok(file) => {
                let address = Address::Unix(path.to_owned());
                Ok(Self { address, inner: Inner::Unix(listener), _file: Some(file) })
            }
            Err(source) => {
                let _ = std::fs::remove_file(&staged);
                Err(failed(source))
            }
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match &self.inner {
            Inner::Tcp(listener, tls) => {
                let (stream, from) = listener.accept().await?;
                // Responses are small and written whole; Nagle's algorithm would only delay them.
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, from, tls.clone()))
            }
            Inner::Tls(listener, tls) => {
                let (stream, from) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Accepted::Tls(stream, from, tls.clone()))
            }
            Inner::Shared(inlet, tls) => Ok(Accepted::Shared(Box::new(inlet.next().await), tls.clone())),
            Inner::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                Ok(Accepted::Unix(stream, uid))
            }
        }
    }
}

/// Returns the effective user of this process, as peers see it.
#[must_use]
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Listens on a TCP address; returns the port that the system chose with it.
async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ListenError> {
    let failed = |source| ListenError::Tcp { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn make_directory(path: &Path) -> io::Result<()> {
    let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) else {
        return Ok(());
    };
    if directory.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(directory)?;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(DIRECTORY_MODE))
}

/// Refuses a path on which a process answers, or that is not a socket.
async fn refuse_if_live(path: &Path) -> Result<(), ListenError> {
    let failed = |source| ListenError::Unix { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match tokio::time::timeout(PROBE_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error))
            if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
        {
            Ok(())
        }
        Ok(Err(error)) => Err(failed(error)),
        // A process too busy to accept is alive too.
        Ok(Ok(_)) | Err(_) => Err(ListenError::InUse { path: path.to_owned() }),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The file of this listener's socket. Removed on drop unless another process has replaced it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

/// Returns the device and inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(path: &Path) -> Address {
        Address::Unix(path.to_owned())
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn socket_is_created_with_its_directory_and_removed_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/a.sock");
        let listener = Listener::bind(&unix(&path)).await.unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (SOCKET_MODE, DIRECTORY_MODE));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn stale_socket_is_replaced_and_a_live_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves the file behind");
        let _live = Listener::bind(&unix(&path)).await.unwrap();
        let refused = Listener::bind(&unix(&path)).await.unwrap_err();
        assert!(matches!(refused, ListenError::InUse { .. }), "{refused}");
        UnixStream::connect(&path).await.expect("the refused attempt leaves the live socket alone");
    }

    #[tokio::test]
    async fn file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        std::fs::write(&path, "keep").unwrap();
        let refused = Listener::bind(&unix(&path)).await.unwrap_err();
        assert!(matches!(refused, ListenError::NotASocket { .. }), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "keep");
    }

    #[tokio::test]
    async fn socket_file_of_another_process_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let listener = Listener::bind(&unix(&path)).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn unusable_addresses_are_refused_with_a_reason() {
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
        let refused = Listener::bind(&unix(&long)).await.unwrap_err();
        assert!(matches!(refused, ListenError::PathTooLong { .. }), "{refused}");
        let public = Address::Tcp(([0, 0, 0, 0], 0).into());
        let refused = Listener::bind(&public).await.unwrap_err();
        assert!(matches!(refused, ListenError::NotLoopback { .. }), "{refused}");
        let client_form = Address::Tls { host: "127.0.0.1".into(), port: 1 };
        let refused = Listener::bind(&client_form).await.unwrap_err();
        assert!(matches!(refused, ListenError::ForClients { .. }), "{refused}");
    }

    #[tokio::test]
    async fn port_zero_gives_the_chosen_port() {
        let listener = Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).await.unwrap();
        assert!(matches!(listener.address(), Address::Tcp(address) if address.port() != 0));
    }
}
