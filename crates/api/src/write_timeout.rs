//! Connection wrapper with a write timeout: a write that makes no progress fails. Shutdown lingers,
//! so that a peer that is still sending receives the last response.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long unread input is drained after shutdown. Closing with unread bytes would make the kernel
/// reset the connection and discard the response in transit.
const LINGER: Duration = Duration::from_millis(500);

/// A connection with bounded writes. Reads are bounded elsewhere, by the timeouts of head and body.
pub(super) struct WriteTimeout<I> {
    io: I,
    timeout: Duration,
    /// Runs while a write is pending.
    write_timer: Option<Pin<Box<Sleep>>>,
    /// Runs after the shutdown.
    linger_timer: Option<Pin<Box<Sleep>>>,
}

impl<I> WriteTimeout<I> {
    pub(super) fn new(io: I, timeout: Duration) -> Self {
        Self { io, timeout, write_timer: None, linger_timer: None }
    }

    /// Passes on the result of a write, or fails one that has been pending for the whole timeout.
    fn bounded<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timer = None;
            return written;
        }
        let timeout = self.timeout;
        let write_timer = self.write_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(write_timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its response")))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for WriteTimeout<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteTimeout<I> {
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
        if self.linger_timer.is_none() {
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
        let linger_timer = self.linger_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        linger_timer.as_mut().poll(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn write_fails_when_the_peer_does_not_read() {
        let (ours, _theirs) = tokio::io::duplex(16);
        let mut ours = WriteTimeout::new(ours, Duration::from_secs(5));
        let failed = ours.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_peer_is_served_while_it_reads() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = WriteTimeout::new(ours, Duration::from_secs(5));
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
