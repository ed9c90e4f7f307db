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
    /// Whether received bytes are acknowledged without the delay of the kernel.
    ///
    /// Brokers such as mosquitto leave Nagle's algorithm on: the message that follows a PUBACK
    /// waits there until the PUBACK is acknowledged, which a Linux receiver delays by up to 40 ms
    /// (`TCP_QUICKACK` in tcp(7)). Bytes written in between carry the acknowledgement with them, so
    /// the option, which the kernel resets by itself, is set only before a read that follows
    /// another one.
    const PROMPT: bool;

    /// Returns the counter of received bytes.
    fn bytes_in(&self) -> &AtomicU64;
    /// Returns the counter of sent bytes.
    fn bytes_out(&self) -> &AtomicU64;
}

/// The acknowledgement of received bytes, which the kernel delays.
#[derive(Debug, Default)]
struct DelayedAck {
    is_owed: bool,
}

impl DelayedAck {
    fn received(&mut self, bytes: usize) {
        self.is_owed |= bytes > 0;
    }

    /// Records written bytes, which carry the acknowledgement.
    fn sent(&mut self, bytes: usize) {
        self.is_owed &= bytes == 0;
    }

    /// Returns whether to request the acknowledgement before the next read.
    fn take_owed(&mut self) -> bool {
        std::mem::take(&mut self.is_owed)
    }
}

/// A TCP stream that adds what it reads and writes to the counters.
pub struct Counted<C> {
    stream: TcpStream,
    counts: Arc<C>,
    ack: DelayedAck,
}

impl<C: Counts> Counted<C> {
    /// Wraps a connected socket.
    pub fn new(stream: TcpStream, counts: &Arc<C>) -> Self {
        Self { stream, counts: Arc::clone(counts), ack: DelayedAck::default() }
    }
}

impl<C: Counts> AsyncRead for Counted<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let is_owed = self.ack.take_owed();
        if C::PROMPT && is_owed {
            // On failure the connection is only slower.
            #[cfg(target_os = "linux")]
            let _ = self.stream.set_quickack(true);
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let count = buf.filled().len() - before;
        self.ack.received(count);
        add(self.counts.bytes_in(), count as u64);
        read
    }
}

impl<C: Counts> AsyncWrite for Counted<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &wrote {
            self.ack.sent(*count);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgement_is_requested_only_between_two_reads() {
        let mut ack = DelayedAck::default();
        assert!(!ack.take_owed(), "nothing was received");
        ack.received(4);
        ack.sent(4);
        assert!(!ack.take_owed(), "the answer carries it");
        ack.received(4);
        ack.sent(0);
        assert!(ack.take_owed(), "nothing was written");
        assert!(!ack.take_owed(), "once for the received bytes");
        ack.received(0);
        assert!(!ack.take_owed(), "nothing was received");
    }
}
