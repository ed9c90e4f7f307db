//! One WebSocket: sends one message at a time, in fragments, while receiving. Makes no decisions.

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

/// The frame type of text messages.
pub(super) const TEXT_FRAME: OpCode = OpCode::Data(Data::Text);
/// The frame type of pings.
pub(super) const PING_FRAME: OpCode = OpCode::Control(Control::Ping);

/// A partially sent message.
struct Sending {
    rest: Bytes,
    /// The frame type of the next fragment.
    kind: OpCode,
}

/// The WebSocket with the message being sent.
pub(super) struct Socket {
    stream: WebSocket,
    shared: Arc<Shared>,
    sending: Option<Sending>,
    /// A ping of the link itself, sent before the next fragment.
    ping: Option<&'static [u8]>,
    flushed: bool,
    last_received: Moved,
    progress: Moved,
}

/// The last change of a byte counter.
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

/// The outcome of polling the socket.
pub(super) enum Event {
    /// A message was received.
    Message(Message),
    /// The peer has closed.
    End,
    /// The message was accepted, or everything was passed to TCP.
    Wrote,
}

impl Socket {
    pub(super) fn new(stream: WebSocket, shared: Arc<Shared>) -> Self {
        let at = Instant::now();
        let last_received = Moved { at, bytes: shared.counters.bytes_in.load(Ordering::Relaxed) };
        let progress = Moved { at, bytes: shared.counters.bytes_out.load(Ordering::Relaxed) };
        Self { stream, shared, sending: None, ping: None, flushed: true, last_received, progress }
    }

    /// Returns the time of the last received byte, or of the last resumed read.
    pub(super) fn last_received(&self) -> Instant {
        self.last_received.at
    }

    /// Resumes reading: the silence until now was this side's.
    pub(super) fn resume(&mut self) {
        self.last_received.at = Instant::now();
    }

    /// Returns the time since which TCP accepts nothing; `None` if nothing waits.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        (!self.is_clear()).then_some(self.progress.at)
    }

    /// Returns whether the next message can be sent.
    pub(super) fn is_free(&self) -> bool {
        self.sending.is_none()
    }

    /// Returns whether everything was passed to TCP.
    pub(super) fn is_clear(&self) -> bool {
        self.is_free() && self.ping.is_none() && self.flushed
    }

    /// Starts to send a message; the socket must be free.
    pub(super) fn send(&mut self, kind: OpCode, payload: Vec<u8>) {
        self.begin();
        self.sending = Some(Sending { rest: payload.into(), kind });
    }

    /// Sends a ping of the link itself, between two fragments if necessary; replaces one that still
    /// waits.
    pub(super) fn ping(&mut self, payload: &'static [u8]) {
        self.begin();
        self.ping = Some(payload);
    }

    fn begin(&mut self) {
        if self.is_clear() {
            self.progress.at = Instant::now();
        }
    }

    /// Moves bytes both ways until an event occurs. Cancel-safe.
    pub(super) async fn next(&mut self, may_read: bool) -> Result<Event, Error> {
        poll_fn(|cx| {
            // Both directions at each poll: neither waits for the other.
            let wrote = self.poll_write(cx);
            if may_read {
                let read = Pin::new(&mut self.stream).poll_next(cx);
                self.last_received.look(&self.shared.counters.bytes_in);
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

    /// Writes a frame, or the rest of the previous one; ready after progress.
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
        let close = rest.split_to(rest.len().min(FRAGMENT));
        let last = rest.is_empty();
        if !last {
            self.sending = Some(Sending { rest, kind: OpCode::Data(Data::Continue) });
        }
        Some(Frame::message(close, kind, last))
    }

    /// Closes cleanly: sends the close frame, then reads until the peer closes too. Returns whether
    /// it did.
    pub(super) async fn close(&mut self, within: Duration) -> bool {
        let closing = async {
            let close = CloseFrame { code: CloseCode::Normal, reason: Default::default() };
            let mut stream = Pin::new(&mut self.stream);
            if poll_fn(|cx| stream.as_mut().poll_ready(cx)).await.is_err() {
                return false;
            }
            // An error means that the peer has closed first; the answer waits to be flushed.
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
        let answered = timeout(within, closing).await.unwrap_or(false);
        // The peer may be gone already.
        let _ = timeout(within, self.stream.get_mut().shutdown()).await;
        answered
    }
}
