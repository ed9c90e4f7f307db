//! Outgoing streams: TCP with counted bytes, optionally through a proxy, with TLS, in a WebSocket.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Cause;
use super::counted::Counted;
use super::handle::Shared;
use crate::dial::{DialError, Dialer};
use crate::proxy::authority;
use crate::tls::{Client, HandshakeError, Inner};
use crate::websocket::{self, UpgradeError};

/// TCP, TLS over TCP, or a WebSocket over either.
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
    /// Protocol of the connection.
    pub carries: Carries,
    /// Whether the peer has other addresses: then the one that worked last is remembered.
    pub is_one_of_several: bool,
    /// Limit for everything up to the first message.
    pub within: Duration,
    /// Opens the connection.
    pub dialer: &'a Dialer,
}

/// Protocol inside a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// MQTT.
    Mqtt,
    /// MQTT in a WebSocket.
    MqttOverWebSocket,
    /// A protocol whose caller makes the upgrade itself.
    Http,
}

impl Target<'_> {
    /// Returns host and port, for messages.
    pub fn peer(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Returns the address by which the last good one is remembered.
    fn address(&self) -> String {
        let scheme = match (self.carries, self.tls.is_some()) {
            (Carries::Mqtt, false) => "mqtt",
            (Carries::Mqtt, true) => "mqtts",
            (_, false) => "ws",
            (_, true) => "wss",
        };
        format!("{scheme}://{}", authority(self.host, self.port))
    }

    /// Runs an attempt to connect within the time limit. Success also confirms the client's
    /// certificate.
    pub async fn attempt<T>(&self, attempt: impl Future<Output = Result<T, Cause>>) -> Result<T, Cause> {
        let made = timeout(self.within, attempt).await.map_err(|_| self.late(self.within))??;
        if let Some(tls) = self.tls {
            tls.worked();
        }
        let address = self.is_one_of_several.then(|| self.address());
        self.dialer.worked(address.as_deref());
        Ok(made)
    }

    /// Opens a connection: TCP, the tunnel through a proxy, TLS and a WebSocket, as configured.
    pub async fn open(&self, shared: &Arc<Shared>) -> Result<Box<dyn Stream>, Cause> {
        shared.is_ending.store(false, Ordering::Relaxed);
        let stream = self.wrap(self.dial().await?, shared).await?;
        if self.carries != Carries::MqttOverWebSocket {
            return Ok(stream);
        }
        // Boxed, so that the link's task does not keep the memory of an upgrade for its lifetime.
        match Box::pin(websocket::connect(stream, &authority(self.host, self.port))).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(UpgradeError::Io(error)) => Err(self.failed(&error)),
            Err(error) => Err(Cause::Upgrade { peer: self.peer(), reason: error.to_string() }),
        }
    }

    fn late(&self, after: Duration) -> Cause {
        Cause::ConnectTimeout { peer: self.peer(), after }
    }

    /// Connects to the peer or to its proxy.
    async fn dial(&self) -> Result<TcpStream, Cause> {
        let dialed = self.dialer.connect(self.host, self.port, self.within).await;
        let stream = dialed.map_err(Self::of_dial)?;
        // Frames are written whole; delaying them to send more at once would only add latency.
        stream.set_nodelay(true).map_err(|e| self.failed(&e))?;
        Ok(stream)
    }

    fn of_dial(error: DialError) -> Cause {
        match error {
            DialError::Dns { host, message } => Cause::Dns { host, message },
            DialError::Refused { peer } => Cause::Refused { peer },
            DialError::TimedOut { peer, after } => Cause::ConnectTimeout { peer, after },
            DialError::Network { peer, message } => Cause::Network { peer, message },
            DialError::Proxy { proxy, problem } => Cause::Proxy { proxy, problem: problem.to_string() },
        }
    }

    /// Opens the tunnel over a connection to a proxy, and performs the TLS handshake if TLS is
    /// configured.
    async fn wrap(&self, stream: TcpStream, shared: &Arc<Shared>) -> Result<Box<dyn Stream>, Cause> {
        let mut stream = Counted::new(stream, shared);
        let tunneled = self.dialer.tunnel(&mut stream, self.host, self.port).await;
        tunneled.map_err(Self::of_dial)?;
        let Some(tls) = self.tls else { return Ok(Box::new(stream)) };
        let inner = match self.carries {
            Carries::Mqtt => Inner::Mqtt,
            Carries::MqttOverWebSocket | Carries::Http => Inner::Http,
        };
        // Boxed, so that the link's task does not keep the memory of a handshake for its lifetime.
        match Box::pin(tls.connect_for(inner, self.host, stream)).await {
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
            io::ErrorKind::InvalidData if self.carries == Carries::MqttOverWebSocket => {
                Cause::Protocol { detail: error.to_string() }
            }
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
