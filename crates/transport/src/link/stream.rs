//! Outgoing streams: TCP with counted bytes, optionally with TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Cause;
use super::counted::Counted;
use super::handle::Shared;
use crate::tls::{Client, HandshakeError};

/// TCP, or TLS over TCP.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Address of a peer, TLS and time limit.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// Host name or IP address; with TLS also the name in the server's certificate.
    pub host: &'a str,
    /// TCP port of the peer.
    pub port: u16,
    /// TLS client; none for plain TCP.
    pub tls: Option<&'a Client>,
    /// Limit for everything up to the first message.
    pub within: Duration,
}

impl Target<'_> {
    /// Returns host and port, for messages.
    pub fn peer(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Runs an attempt to connect within the time limit. Success also confirms the client's
    /// certificate.
    pub async fn attempt<T>(&self, attempt: impl Future<Output = Result<T, Cause>>) -> Result<T, Cause> {
        let made = timeout(self.within, attempt).await.map_err(|_| self.late(self.within))??;
        if let Some(tls) = self.tls {
            tls.worked();
        }
        Ok(made)
    }

    /// Opens a connection: TCP, and TLS if configured.
    pub async fn open(&self, shared: &Arc<Shared>) -> Result<Box<dyn Stream>, Cause> {
        self.wrap(self.dial().await?, shared).await
    }

    fn late(&self, after: Duration) -> Cause {
        Cause::ConnectTimeout { peer: self.peer(), after }
    }

    /// Resolves the name and tries its addresses; each gets an equal share of the time.
    async fn dial(&self) -> Result<TcpStream, Cause> {
        let dns = |message: String| Cause::Dns { host: self.host.to_owned(), message };
        let found = tokio::net::lookup_host((self.host, self.port));
        let addresses: Vec<_> = found.await.map_err(|e| dns(e.to_string()))?.take(8).collect();
        let share = self.within / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        let mut last = dns("no address found".to_owned());
        for address in addresses {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Frames are written whole; delaying them to send more at once would only add
                    // latency.
                    stream.set_nodelay(true).map_err(|e| self.failed(&e))?;
                    return Ok(stream);
                }
                Ok(Err(error)) => last = self.failed(&error),
                Err(_) => last = self.late(share),
            }
        }
        Err(last)
    }

    /// Performs the TLS handshake over a TCP connection if TLS is configured.
    async fn wrap(&self, stream: TcpStream, shared: &Arc<Shared>) -> Result<Box<dyn Stream>, Cause> {
        let stream = Counted::new(stream, shared);
        let Some(tls) = self.tls else { return Ok(Box::new(stream)) };
        // Boxed, so that the link's task does not keep the memory of a handshake for its lifetime.
        match Box::pin(tls.connect(self.host, stream)).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(self.of_handshake(error)),
        }
    }

    /// Converts a failure of the stream. With TLS 1.3 a peer refuses a certificate after the
    /// handshake: then the alert arrives as the answer to the first bytes sent.
    pub fn failed(&self, error: &io::Error) -> Cause {
        if self.tls.is_some()
            && let Some(error) = HandshakeError::of_io(self.host, error)
        {
            return self.of_handshake(error);
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Cause::Refused { peer: self.peer() },
            _ => Cause::Network { peer: self.peer(), message: error.to_string() },
        }
    }

    fn of_handshake(&self, error: HandshakeError) -> Cause {
        let peer = self.peer();
        match error {
            HandshakeError::Network { problem, .. } => Cause::Network { peer, message: problem },
            error => {
                if let (HandshakeError::Refused { .. }, Some(tls)) = (&error, self.tls) {
                    tls.refused();
                }
                Cause::Tls { peer, kind: error.label(), message: error.to_string() }
            }
        }
    }
}
