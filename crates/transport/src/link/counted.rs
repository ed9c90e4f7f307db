//! A TCP stream that counts its bytes, those of TLS included, for the links and the endpoint, and
//! that decides when the kernel acknowledges and sends: a packet without a message costs 40 bytes
//! or more.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::counters::add;

/// Counters of a stream.
pub trait Counts {
    /// Returns whether received bytes are acknowledged without the delay of the kernel.
    ///
    /// Brokers such as mosquitto leave Nagle's algorithm on: the message that follows a PUBACK
    /// waits there until the PUBACK is acknowledged, which a Linux receiver delays by up to 40 ms
    /// (`TCP_QUICKACK` in tcp(7)). Bytes written in between carry the acknowledgement with them, so
    /// the option, which the kernel resets by itself, is set only before a read that follows
    /// another one.
    ///
    /// Agents and the endpoint write their messages whole and wait for no acknowledgement: between
    /// them it travels with the answer, also in the first moments of a connection, when Linux
    /// acknowledges each packet at once.
    fn is_prompt(&self) -> bool {
        false
    }

    /// Returns whether the connection is being closed: what is written waits for the end of the
    /// stream, and both leave in one packet.
    fn is_ending(&self) -> bool {
        false
    }

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
    is_corked: bool,
}

impl<C: Counts> Counted<C> {
    /// Wraps a connected socket.
    pub fn new(stream: TcpStream, counts: &Arc<C>) -> Self {
        if !counts.is_prompt() {
            acknowledge(&stream, false);
        }
        Self { stream, counts: Arc::clone(counts), ack: DelayedAck::default(), is_corked: false }
    }

    /// Makes the kernel keep the last bytes for the packet that ends the stream.
    fn cork_if_ending(&mut self) {
        if self.counts.is_ending() && !std::mem::replace(&mut self.is_corked, true) {
            // On failure they are sent in packets of their own.
            #[cfg(target_os = "linux")]
            let _ = socket2::SockRef::from(&self.stream).set_tcp_cork(true);
        }
    }

    fn wrote(&mut self, wrote: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = wrote {
            self.ack.sent(*count);
            add(self.counts.bytes_out(), *count as u64);
        }
    }
}

/// Makes the kernel acknowledge received bytes at once, or with the next bytes sent. On failure the
/// connection is slower, or sends more packets.
fn acknowledge(stream: &TcpStream, at_once: bool) {
    #[cfg(target_os = "linux")]
    let _ = stream.set_quickack(at_once);
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, at_once);
}

impl<C: Counts> AsyncRead for Counted<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let is_owed = self.ack.take_owed();
        if is_owed && self.counts.is_prompt() {
            acknowledge(&self.stream, true);
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
        self.cork_if_ending();
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(&wrote);
        wrote
    }

    /// Writes the records of a TLS flight at once, which would be packets of their own otherwise.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.cork_if_ending();
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(&wrote);
        wrote
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use socket2::SockRef;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// A peer of a chosen kind.
    #[derive(Default)]
    struct Peer {
        is_prompt: bool,
        is_ending: AtomicBool,
        bytes: [AtomicU64; 2],
    }

    impl Counts for Peer {
        fn is_prompt(&self) -> bool {
            self.is_prompt
        }

        fn is_ending(&self) -> bool {
            self.is_ending.load(Ordering::Relaxed)
        }

        fn bytes_in(&self) -> &AtomicU64 {
            &self.bytes[0]
        }

        fn bytes_out(&self) -> &AtomicU64 {
            &self.bytes[1]
        }
    }

    async fn connected(peer: &Arc<Peer>) -> (Counted<Peer>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        near.set_nodelay(true).unwrap();
        (Counted::new(near, peer), listener.accept().await.unwrap().0)
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn peer_that_answers_is_acknowledged_with_the_next_message() {
        for is_prompt in [true, false] {
            let peer = Arc::new(Peer { is_prompt, ..Peer::default() });
            let (stream, _far) = connected(&peer).await;
            assert_eq!(stream.stream.quickack().unwrap(), is_prompt);
        }
    }

    #[tokio::test]
    async fn records_of_a_flight_are_written_at_once() {
        let peer = Arc::new(Peer::default());
        let (mut stream, mut far) = connected(&peer).await;
        assert!(stream.is_write_vectored());
        let flight = [b"hello ", b"change", b"finish"].map(|record| IoSlice::new(record));
        assert_eq!(stream.write_vectored(&flight).await.unwrap(), 18);
        assert_eq!(peer.bytes_out().load(Ordering::Relaxed), 18);
        let mut received = [0; 18];
        far.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"hello changefinish");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn last_bytes_leave_with_the_end_of_the_stream() {
        let peer = Arc::new(Peer::default());
        let (mut stream, mut far) = connected(&peer).await;
        stream.write_all(b"message ").await.unwrap();
        assert!(!SockRef::from(&stream.stream).tcp_cork().unwrap());
        peer.is_ending.store(true, Ordering::Relaxed);
        stream.write_all(b"farewell").await.unwrap();
        assert!(SockRef::from(&stream.stream).tcp_cork().unwrap());
        stream.shutdown().await.unwrap();
        let mut received = String::new();
        far.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "message farewell");
    }

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
