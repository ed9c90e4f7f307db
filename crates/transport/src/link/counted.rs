//! A TCP stream that counts its bytes, those of TLS included, for the links and the endpoint.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::counters::add;

/// Counters of a stream.
pub trait Counts {
    /// Whether received bytes are acknowledged at once.
    ///
    /// Brokers such as mosquitto leave Nagle's algorithm on: the message that follows a PUBACK
    /// waits there until the PUBACK is acknowledged, which a Linux receiver delays by up to 40 ms
    /// (`TCP_QUICKACK` in tcp(7)). The kernel resets the option by itself, so it is set after every
    /// read.
    const PROMPT: bool;

    /// Returns the counter of received bytes.
    fn bytes_in(&self) -> &AtomicU64;
    /// Returns the counter of sent bytes.
    fn bytes_out(&self) -> &AtomicU64;
}

/// A TCP stream that adds what it reads and writes to the counters.
pub struct Counted<C> {
    stream: TcpStream,
    counts: Arc<C>,
}

impl<C: Counts> Counted<C> {
    /// Wraps a connected socket.
    pub fn new(stream: TcpStream, counts: &Arc<C>) -> Self {
        Self { stream, counts: Arc::clone(counts) }
    }
}

impl<C: Counts> AsyncRead for Counted<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        add(self.counts.bytes_in(), (buf.filled().len() - before) as u64);
        #[cfg(target_os = "linux")]
        if C::PROMPT && read.is_ready() {
            // On failure the connection is only slower.
            let _ = self.stream.set_quickack(true);
        }
        read
    }
}

impl<C: Counts> AsyncWrite for Counted<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &wrote {
            add(self.counts.bytes_out(), *count as u64);
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
