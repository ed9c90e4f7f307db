//! One WebSocket: a message at a time goes out, in fragments, while messages come in. Decides nothing.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, Stream};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::connect::{FRAGMENT, WebSocket};
use edgesync_transport::link::handle::Shared;

/// A message of text.
pub(super) const TEXT_FRAME: OpCode = OpCode::Data(Data::Text);
/// A ping.
pub(super) const PING_FRAME: OpCode = OpCode::Control(Control::Ping);

/// A message of which some may have been sent.
struct Sending {
    rest: Bytes,
    /// Of the next fragment.
    kind: OpCode,
}

/// See the module.
pub(super) struct Socket {
    stream: WebSocket,
    shared: Arc<Shared>,
    sending: Option<Sending>,
    /// A ping of the link's own; it goes out before the next fragment.
    ping: Option<&'static [u8]>,
    flushed: bool,
    heard: Moved,
    progress: Moved,
}

/// When a counter of bytes has last moved.
struct Moved {
    at: Instant,
    bytes: u64,
}

impl Moved {
    fn look(&mut self, counter: &AtomicU64) {
        let bytes = counter.load(Ordering::Relaxed);
        if bytes != self.bytes {
            *self = Self { at: Instant::now(), bytes };
        }
    }
}

/// What became of a look at the socket.
pub(super) enum Event {
    /// A message came.
    Message(Message),
    /// The peer has closed.
    End,
    /// The message has been taken, or everything has been passed on to TCP.
    Wrote,
}

impl Socket {
    pub(super) fn new(stream: WebSocket, shared: Arc<Shared>) -> Self {
        let at = Instant::now();
        let heard = Moved { at, bytes: shared.counters.bytes_in.load(Ordering::Relaxed) };
        let progress = Moved { at, bytes: shared.counters.bytes_out.load(Ordering::Relaxed) };
        Self { stream, shared, sending: None, ping: None, flushed: true, heard, progress }
    }

    /// When the last byte came, whatever it was a part of, or reading was resumed.
    pub(super) fn heard(&self) -> Instant {
        self.heard.at
    }

    /// Reading is resumed: the silence until now was our own.
    pub(super) fn resume(&mut self) {
        self.heard.at = Instant::now();
    }

    /// Since when TCP takes nothing of what waits for it; none if nothing waits.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        (!self.is_clear()).then_some(self.progress.at)
    }

    /// Whether the next message can be given.
    pub(super) fn is_free(&self) -> bool {
        self.sending.is_none()
    }

    /// Whether TCP has everything.
    pub(super) fn is_clear(&self) -> bool {
        self.is_free() && self.ping.is_none() && self.flushed
    }

    /// Gives a message to be sent; only when it is free.
    pub(super) fn send(&mut self, kind: OpCode, payload: Vec<u8>) {
        self.begin();
        self.sending = Some(Sending { rest: payload.into(), kind });
    }

    /// Sends a ping of the link's own, between two fragments if need be; one that still waits is enough.
    pub(super) fn ping(&mut self, payload: &'static [u8]) {
        self.begin();
        self.ping = Some(payload);
    }

    fn begin(&mut self) {
        if self.is_clear() {
            self.progress.at = Instant::now();
        }
    }

    /// Moves bytes both ways until something has happened. Safe to cancel.
    pub(super) async fn next(&mut self, may_read: bool) -> Result<Event, Error> {
        poll_fn(|cx| {
            // Both directions at each turn: neither waits for the other.
            let wrote = self.poll_write(cx);
            if may_read {
                let read = Pin::new(&mut self.stream).poll_next(cx);
                self.heard.look(&self.shared.counters.bytes_in);
                match read {
                    Poll::Ready(Some(message)) => return Poll::Ready(message.map(Event::Message)),
                    Poll::Ready(None) => return Poll::Ready(Ok(Event::End)),
                    Poll::Pending => {}
                }
            }
            wrote.map_ok(|()| Event::Wrote)
        })
        .await
    }

    /// Writes a frame, or what is left of the one before; ready when it did.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let written = self.poll_frame(cx);
        self.progress.look(&self.shared.counters.bytes_out);
        written
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.ping.is_some() || self.sending.is_some() {
            ready!(Pin::new(&mut self.stream).poll_ready(cx))?;
            self.flushed = false;
            if let Some(frame) = self.next_frame() {
                return Poll::Ready(Pin::new(&mut self.stream).start_send(Message::Frame(frame)));
            }
        }
        if self.flushed {
            return Poll::Pending;
        }
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.flushed = true;
        Poll::Ready(Ok(()))
    }

    fn next_frame(&mut self) -> Option<Frame> {
        if let Some(payload) = self.ping.take() {
            return Some(Frame::ping(payload));
        }
        let Sending { mut rest, kind } = self.sending.take()?;
        if let OpCode::Control(_) = kind {
            return Some(Frame::ping(rest));
        }
        let part = rest.split_to(rest.len().min(FRAGMENT));
        let last = rest.is_empty();
        if !last {
            self.sending = Some(Sending { rest, kind: OpCode::Data(Data::Continue) });
        }
        Some(Frame::message(part, kind, last))
    }

    /// Closes in order: the close frame, then what still comes until the peer closes too. Returns whether it did.
    pub(super) async fn part(&mut self, within: Duration) -> bool {
        let parting = async {
            let close = CloseFrame { code: CloseCode::Normal, reason: Default::default() };
            let mut stream = Pin::new(&mut self.stream);
            if poll_fn(|cx| stream.as_mut().poll_ready(cx)).await.is_err() {
                return false;
            }
            // An error means that the peer was first; then our answer waits to be flushed.
            let _ = stream.as_mut().start_send(Message::Close(Some(close)));
            if poll_fn(|cx| stream.as_mut().poll_flush(cx)).await.is_err() {
                return false;
            }
            loop {
                match poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
                    Some(Ok(Message::Close(_))) | None => return true,
                    Some(Ok(_)) => {}
                    Some(Err(_)) => return false,
                }
            }
        };
        let answered = timeout(within, parting).await.unwrap_or(false);
        // The peer may be gone; then there is nobody to say it to.
        let _ = timeout(within, self.stream.get_mut().shutdown()).await;
        answered
    }
}
