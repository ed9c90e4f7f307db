//! A connection whose peer must keep reading: a write that makes no progress for a while fails. Its peer hears the last
//! answer even if it is still sending.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long what the peer still sends is read after the connection was shut: closing with bytes unread would make the
/// system throw away the answer that is on its way.
const LINGER: Duration = Duration::from_millis(500);

/// Wraps a connection; reading is bounded elsewhere, by the timeouts of head and body.
pub(super) struct NoStall<I> {
    io: I,
    patience: Duration,
    /// Runs while a write waits for the peer.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Runs once it is shut.
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<I> NoStall<I> {
    pub(super) fn new(io: I, patience: Duration) -> Self {
        Self { io, patience, waiting: None, lingering: None }
    }

    /// Passes on the outcome of a write, or fails once it has been pending for too long.
    fn bounded<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its response")))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for NoStall<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for NoStall<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.bounded(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.bounded(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.bounded(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let shut = Pin::new(&mut self.io).poll_shutdown(cx);
            ready!(self.bounded(cx, shut))?;
        }
        let mut unread = [MaybeUninit::uninit(); 4096];
        loop {
            let mut read = ReadBuf::uninit(&mut unread);
            match Pin::new(&mut self.io).poll_read(cx, &mut read) {
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        let lingering = self.lingering.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        lingering.as_mut().poll(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_ends_the_connection() {
        let (ours, _theirs) = tokio::io::duplex(16);
        let mut ours = NoStall::new(ours, Duration::from_secs(5));
        let failed = ours.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_is_served_as_long_as_it_reads() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = NoStall::new(ours, Duration::from_secs(5));
        let reader = tokio::spawn(async move {
            let mut got = 0;
            while got < 64 {
                tokio::time::sleep(Duration::from_secs(4)).await;
                let mut part = [0; 16];
                got += theirs.read(&mut part).await.unwrap();
            }
        });
        ours.write_all(&[0; 64]).await.unwrap();
        reader.await.unwrap();
    }
}
