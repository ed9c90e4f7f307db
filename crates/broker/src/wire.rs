//! What a client's connection runs over: TCP whose bytes are counted, with TLS over it where the endpoint has it, and
//! what its certificate says.

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
use edgesync_transport::link::counted::{Counted, Counts};
use edgesync_transport::tls::{Certificate, ServerStream};

/// A connection. The one with TLS is boxed: a task keeps the room for the larger of both.
pub(super) enum Wire {
    Plain(Counted<Hub>),
    Tls(Box<ServerStream<Counted<Hub>>>),
}

/// Whom the certificate of a connection names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bearer {
    /// There is no TLS: whoever is on this machine is believed.
    Local,
    /// There is TLS, and no certificate or one that is no node's.
    Stranger(String),
    /// A node, and the end of its certificate.
    Node { name: NodeName, until: Timestamp },
}

impl Bearer {
    fn of(certificate: Option<&Certificate>) -> Self {
        let Some(certificate) = certificate else {
            return Self::Stranger("without a certificate".to_owned());
        };
        if let Some(name) = certificate.node().and_then(|node| NodeName::parse(node).ok()) {
            return Self::Node { name, until: certificate.ends() };
        }
        let subject = certificate.subject();
        Self::Stranger(format!("'{}' of '{}'", brief(&subject.common_name), brief(&subject.organization)))
    }

    /// Until when the connection may last.
    pub(super) fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Node { until, .. } => Some(*until),
            Self::Local | Self::Stranger(_) => None,
        }
    }
}

/// The beginning of what somebody else wrote, fit for a log.
pub(super) fn brief(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// Begins a connection: the handshake of TLS, if the endpoint has it.
pub(super) async fn open(hub: &Arc<Hub>, stream: TcpStream) -> io::Result<(Wire, Bearer)> {
    let stream = Counted::new(stream, hub);
    let Some(tls) = &hub.options.tls else { return Ok((Wire::Plain(stream), Bearer::Local)) };
    let (stream, certificate) = Box::pin(tls.accept(stream)).await?;
    Ok((Wire::Tls(Box::new(stream)), Bearer::of(certificate.as_ref())))
}

impl Counts for Hub {
    const PROMPT: bool = false;

    fn bytes_in(&self) -> &AtomicU64 {
        &self.counters.bytes_in
    }

    fn bytes_out(&self) -> &AtomicU64 {
        &self.counters.bytes_out
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
