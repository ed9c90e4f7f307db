//! MQTT over WebSocket: a stream of bytes in the binary messages of a WebSocket, for both sides.
//!
//! After the upgrade a [`WebSocket`] reads and writes like the stream below it, so that the MQTT of
//! link and endpoint is the same on both. The peer is not trusted: a frame takes no memory by the
//! length that it announces, and pings without data end the connection.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use uuid::Uuid;

mod codec;
mod serve;
mod upgrade;

use crate::response_head::{self, HeadError};
pub use codec::Role;
use codec::{Decoder, Item};
pub use serve::{ServeError, serve};
use upgrade::ResponseError;
pub use upgrade::{RequestError, accept};

/// Path of MQTT over WebSocket.
pub const PATH: &str = "/mqtt";
/// Subprotocol of MQTT over WebSocket, as registered with IANA.
pub(crate) const SUBPROTOCOL: &str = "mqtt";

/// Size of a read, and the maximum payload of a sent frame, in bytes.
const CHUNK: usize = 16 * 1024;
/// Close code of an orderly end.
const NORMAL: u16 = 1000;
/// Close code of a peer that goes away, such as a server that stops.
const AWAY: u16 = 1001;
/// Close code of a violation of the protocol.
const VIOLATION: u16 = 1002;

/// Reason why a server did not accept the upgrade.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    /// The connection failed.
    #[error("{0}")]
    Io(io::Error),
    /// The answer is not an HTTP response.
    #[error("{0}")]
    Head(HeadError),
    /// The answer is another response.
    #[error("{0}")]
    Response(#[from] ResponseError),
}

/// Requests an upgrade of a connection to `authority`, a host with its port.
///
/// # Errors
/// The server does not accept MQTT over WebSocket. The caller bounds the time.
pub(crate) async fn connect<S>(mut stream: S, authority: &str) -> Result<WebSocket<S>, UpgradeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let key = generate_key();
    let request = upgrade::request(authority, &key);
    stream.write_all(request.as_bytes()).await.map_err(UpgradeError::Io)?;
    stream.flush().await.map_err(UpgradeError::Io)?;
    let (head, rest) = response_head::read(&mut stream).await.map_err(|error| match error {
        HeadError::Io(error) => UpgradeError::Io(error),
        other => UpgradeError::Head(other),
    })?;
    upgrade::check(&head, &key)?;
    Ok(WebSocket::new(stream, Role::Client, rest))
}

/// A stream of bytes in the messages of a WebSocket.
#[derive(Debug)]
pub struct WebSocket<S> {
    stream: S,
    role: Role,
    decoder: Decoder,
    /// Received bytes that are not decoded.
    received: BytesMut,
    /// Decoded bytes that are not read.
    payload: BytesMut,
    /// Whole frames that the stream has not accepted, at most one of data and two of control.
    out: BytesMut,
    /// Answer to the last ping, which may replace those to earlier ones.
    pong: Option<BytesMut>,
    /// Whether the stream may hold bytes that are not flushed.
    is_unflushed: bool,
    /// Whether a write waits for the stream: then it writes the answers to pings too.
    write_waits: bool,
    /// Whether nothing more will be read.
    is_ended: bool,
    /// Whether the close frame was queued.
    is_closed: bool,
}

impl<S> WebSocket<S> {
    /// Wraps a stream after the upgrade. `received` has the bytes that followed the peer's head.
    pub fn new(stream: S, role: Role, received: BytesMut) -> Self {
        Self {
            stream,
            role,
            decoder: Decoder::new(role),
            received,
            payload: BytesMut::new(),
            out: BytesMut::new(),
            pong: None,
            is_unflushed: false,
            write_waits: false,
            is_ended: false,
            is_closed: false,
        }
    }

    /// Returns a mask for one frame, if this side masks its frames.
    fn mask(&self) -> Option<[u8; 4]> {
        match self.role {
            // The first four bytes of a UUID of version 4 are random.
            Role::Client => Uuid::new_v4().as_bytes().first_chunk().copied(),
            Role::Server => None,
        }
    }

    /// Queues the close frame, once.
    fn queue_close(&mut self, code: u16) {
        if !self.is_closed {
            self.is_closed = true;
            let mask = self.mask();
            codec::encode_close(code, mask, &mut self.out);
        }
    }

    /// Ends reading after a close frame; an error if the peer has a complaint.
    fn end(&mut self, closing: Option<(u16, String)>) -> io::Result<()> {
        self.is_ended = true;
        let (code, reason) = closing.unwrap_or((NORMAL, String::new()));
        self.queue_close(if code == AWAY { NORMAL } else { code });
        match code {
            NORMAL | AWAY => Ok(()),
            _ => {
                let text = format!("WebSocket closed by the peer: {code} {reason}");
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, text.trim_end().to_owned()))
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// Passes queued frames to the stream.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.out.is_empty() {
                // Nothing may follow the close frame.
                let pong = self.pong.take().filter(|_| !self.is_closed);
                let Some(payload) = pong else { return Poll::Ready(Ok(())) };
                let mask = self.mask();
                codec::encode_pong(&payload, mask, &mut self.out);
            }
            self.is_unflushed = true;
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.advance(count);
            if self.out.is_empty() {
                // Most connections are idle most of the time, and keep no buffer.
                self.out = BytesMut::new();
            }
        }
    }

    fn poll_flushed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_out(cx))?;
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.is_unflushed = false;
        Poll::Ready(Ok(()))
    }

    /// Sends what a read has queued, as far as the stream accepts it. A failure is that of the next
    /// write or read too.
    fn answer(&mut self, cx: &mut Context<'_>) {
        if !self.write_waits && (self.is_unflushed || self.pong.is_some() || !self.out.is_empty()) {
            let _ = self.poll_flushed(cx);
        }
    }

    /// Reads available bytes; returns their number, 0 at the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.received.is_empty() {
            self.received = BytesMut::new();
        }
        let mut chunk = [MaybeUninit::uninit(); CHUNK];
        let mut read = ReadBuf::uninit(&mut chunk);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
        self.received.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// Decodes the next bytes of the stream into `payload`; leaves it empty at the end.
    fn poll_payload(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.payload.is_empty() && !self.is_ended {
            match self.decoder.decode(&mut self.received) {
                Ok(Some(Item::Data(payload))) => self.payload = payload,
                Ok(Some(Item::Ping(payload))) => {
                    self.pong = Some(payload);
                    self.answer(cx);
                }
                Ok(Some(Item::Close(closing))) => {
                    let ended = self.end(closing);
                    self.answer(cx);
                    return Poll::Ready(ended);
                }
                Ok(None) => {
                    if ready!(self.poll_fill(cx))? == 0 {
                        self.is_ended = true;
                        let is_cut = self.decoder.is_within_frame() || !self.received.is_empty();
                        let end = if is_cut { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) };
                        return Poll::Ready(end);
                    }
                }
                Err(error) => {
                    self.is_ended = true;
                    self.queue_close(VIOLATION);
                    self.answer(cx);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.answer(cx);
        ready!(this.poll_payload(cx))?;
        let count = this.payload.len().min(buf.remaining());
        buf.put_slice(&this.payload.split_to(count));
        if this.payload.is_empty() {
            this.payload = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocket<S> {
    /// Sends one frame; at most one waits for the stream.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = this.poll_out(cx);
        this.write_waits = written.is_pending();
        ready!(written)?;
        let count = bytes.len().min(CHUNK);
        if count > 0 {
            let mask = this.mask();
            codec::encode_data(&bytes[..count], mask, &mut this.out);
            // The rest, which the stream does not accept now, is written with the next frame, or
            // flushed.
            if let Poll::Ready(Err(error)) = this.poll_out(cx) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = this.poll_flushed(cx);
        this.write_waits = flushed.is_pending();
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.queue_close(NORMAL);
        let flushed = this.poll_flushed(cx);
        this.write_waits = flushed.is_pending();
        ready!(flushed)?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
