//! A stream that remembers the first bytes it has read, to name a peer that does not speak TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Number of remembered bytes: the beginning of an HTTP response.
const KEPT: usize = 5;

/// A stream with its first bytes.
#[derive(Debug)]
pub struct FirstBytes<S> {
    stream: S,
    bytes: [u8; KEPT],
    length: usize,
}

impl<S> FirstBytes<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, bytes: [0; KEPT], length: 0 }
    }

    /// Returns whether the peer has sent an HTTP response.
    pub(super) fn are_http(&self) -> bool {
        self.bytes.get(..self.length) == Some(&b"HTTP/"[..])
    }

    fn keep(&mut self, read: &[u8]) {
        for byte in read.iter().take(KEPT - self.length) {
            self.bytes[self.length] = *byte;
            self.length += 1;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytes<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.keep(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytes<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
