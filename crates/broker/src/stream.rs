//! The stream of a client's connection, and the identity in the certificate: TCP with counted
//! bytes, optionally with TLS; or a connection of a shared listener, optionally with a WebSocket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};

use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::hub::Hub;
use edgesync_object::NodeName;
use edgesync_transport::link::add;
use edgesync_transport::link::counted::{Counted, Counts};
use edgesync_transport::link::stream::Stream;
use edgesync_transport::shared::Arrival;
use edgesync_transport::tls::{Certificate, Server, ServerStream};
use edgesync_transport::websocket;

/// A plain or TLS stream. The TLS variant is boxed, because a task reserves memory for the larger
/// one.
pub(super) enum ClientStream {
    Plain(Counted<Hub>),
    Tls(Box<ServerStream<Counted<Hub>>>),
    Shared(Box<dyn Stream>),
}

/// A connection before its first packet.
pub(super) enum Incoming {
    Tcp(TcpStream),
    /// A connection of a shared listener, and the TLS whose rule its client must satisfy.
    Shared(Box<Arrival>, Server),
}

/// Identity that a connection's certificate proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PeerIdentity {
    /// No TLS: programs on this machine are trusted.
    Local,
    /// A certificate that is no node's.
    Unknown(String),
    /// No certificate, or one that the rule of the endpoint refuses: the reason.
    Refused(String),
    /// A node, and the end of its certificate.
    Node { name: NodeName, until: Timestamp },
}

impl PeerIdentity {
    fn of(certificate: Option<&Certificate>) -> Self {
        let Some(certificate) = certificate else {
            return Self::Unknown("without a certificate".to_owned());
        };
        if let Some(name) = certificate.node().and_then(|node| NodeName::parse(node).ok()) {
            return Self::Node { name, until: certificate.ends() };
        }
        let subject = certificate.subject();
        Self::Unknown(format!(
            "'{}' of '{}'",
            truncated(&subject.common_name),
            truncated(&subject.organization)
        ))
    }

    /// Returns the time at which the connection must end.
    pub(super) fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Node { until, .. } => Some(*until),
            Self::Local | Self::Unknown(_) | Self::Refused(_) => None,
        }
    }
}

/// Returns the beginning of a peer's text, safe to log.
pub(super) fn truncated(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// Opens a connection: performs the TLS handshake, if the endpoint has TLS.
pub(super) async fn open(hub: &Arc<Hub>, stream: TcpStream) -> io::Result<(ClientStream, PeerIdentity)> {
    let stream = Counted::new(stream, hub);
    let Some(tls) = &hub.options.tls else { return Ok((ClientStream::Plain(stream), PeerIdentity::Local)) };
    let (stream, certificate) = Box::pin(tls.accept(stream)).await?;
    Ok((ClientStream::Tls(Box::new(stream)), PeerIdentity::of(certificate.as_ref())))
}

/// Takes over a connection of a shared listener. Its handshake did not require a certificate, or
/// was completed before the last revocation, so the rule of the endpoint decides here.
pub(super) async fn adopt(
    hub: &Arc<Hub>,
    arrival: Box<Arrival>,
    tls: &Server,
) -> Result<(ClientStream, PeerIdentity), websocket::ServeError> {
    arrival.count_for(&hub.shared_bytes);
    let identity = match tls.admit(&arrival.presented) {
        Ok(certificate) => PeerIdentity::of(certificate.as_ref()),
        Err(error) => {
            add(&hub.counters.tls, 1);
            PeerIdentity::Refused(error.to_string())
        }
    };
    let stream: Box<dyn Stream> = match arrival.web_socket {
        true => Box::new(websocket::serve(arrival.stream).await?),
        false => arrival.stream,
    };
    Ok((ClientStream::Shared(stream), identity))
}

impl Counts for Hub {
    fn bytes_in(&self) -> &AtomicU64 {
        &self.counters.bytes_in
    }

    fn bytes_out(&self) -> &AtomicU64 {
        &self.counters.bytes_out
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Shared(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Shared(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Shared(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Shared(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
