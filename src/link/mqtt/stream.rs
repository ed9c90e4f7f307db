//! What a connection runs over: TCP whose bytes are counted, with TLS over it where that is asked for.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::link::counters::add;
use crate::link::handle::Shared;
use crate::link::{Cause, LinkOptions};
use crate::tls::HandshakeError;

/// TCP, or TLS over TCP.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Makes TLS over a TCP connection if the options ask for it.
pub(super) async fn wrap(
    options: &LinkOptions,
    stream: TcpStream,
    shared: &Arc<Shared>,
) -> Result<Box<dyn Stream>, Cause> {
    let stream = Prompt { stream, shared: Arc::clone(shared) };
    let Some(tls) = &options.tls else { return Ok(Box::new(stream)) };
    // Boxed, so that the task of the link does not keep the room for a handshake all its life.
    match Box::pin(tls.connect(&options.host, stream)).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(of_handshake(options, error)),
    }
}

/// A failure of the stream as a cause. With TLS 1.3 a peer refuses a certificate after the handshake: then the alert
/// is the answer to what was sent first.
pub(super) fn failed(options: &LinkOptions, error: &io::Error) -> Cause {
    let peer = options.peer();
    if options.tls.is_some() {
        if let Some(error) = HandshakeError::of_io(&options.host, error) {
            return of_handshake(options, error);
        }
        // What TCP gives as an end is an error above TLS if nobody said good-bye.
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Cause::Closed;
        }
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Cause::Refused { peer },
        _ => Cause::Network { peer, message: error.to_string() },
    }
}

fn of_handshake(options: &LinkOptions, error: HandshakeError) -> Cause {
    let peer = options.peer();
    match error {
        HandshakeError::Network { problem, .. } => Cause::Network { peer, message: problem },
        error => {
            if let (HandshakeError::Refused { .. }, Some(tls)) = (&error, &options.tls) {
                tls.refused();
            }
            Cause::Tls { peer, kind: error.label(), message: error.to_string() }
        }
    }
}

/// TCP that acknowledges at once what it has read, and whose bytes are counted: those of TLS, where there is TLS.
///
/// Brokers such as mosquitto leave Nagle's algorithm on: the message that follows a PUBACK waits there until
/// the PUBACK is acknowledged, which a Linux receiver delays by up to 40 ms (`TCP_QUICKACK` in tcp(7); the
/// kernel takes the setting back by itself, so it is renewed with every read).
struct Prompt {
    stream: TcpStream,
    shared: Arc<Shared>,
}

impl AsyncRead for Prompt {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        add(&self.shared.counters.bytes_in, (buf.filled().len() - before) as u64);
        #[cfg(target_os = "linux")]
        if read.is_ready() {
            // Without it the connection is only slower.
            let _ = self.stream.set_quickack(true);
        }
        read
    }
}

impl AsyncWrite for Prompt {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &wrote {
            add(&self.shared.counters.bytes_out, *count as u64);
        }
        wrote
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
