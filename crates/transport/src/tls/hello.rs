//! The first half of a handshake: the ClientHello, by which a listener of several services
//! chooses the [`Server`](super::Server) that completes it.

use std::io;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

/// A connection whose ClientHello has been read.
pub(crate) struct Hello<S> {
    pub(super) start: StartHandshake<S>,
}

/// The part of a ClientHello that names a service. Nothing in it is authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Host name that the client connects to (SNI), in lower case.
    pub(crate) server_name: Option<String>,
    /// Protocols that the client speaks (ALPN), in its order; `None` without that extension.
    pub(crate) protocols: Option<Vec<Vec<u8>>>,
}

impl<S> std::fmt::Debug for Hello<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hello(..)")
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Hello<S> {
    /// Reads the ClientHello of a connection. The caller limits the time.
    ///
    /// # Errors
    /// The network fails, or the bytes are no ClientHello: the client gets a TLS alert.
    pub(crate) async fn read(stream: S) -> io::Result<Self> {
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        Ok(Self { start })
    }

    /// Returns the names that the client sent.
    pub(crate) fn offer(&self) -> Offer {
        let hello = self.start.client_hello();
        let protocols = hello.alpn().map(|protocols| protocols.map(<[u8]>::to_vec).collect());
        Offer { server_name: hello.server_name().map(str::to_ascii_lowercase), protocols }
    }
}
