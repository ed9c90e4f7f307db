//! Permits of a client connection. A connection holds a permit of its listener; it is busy while a
//! request is answered, and an idle one may be closed. A watch exchanges the permit for a watch
//! permit.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};

use super::response::ResponseBody;
use edgesync_object::Status;
use edgesync_object::status::Result;
use edgesync_transport::admission::{Busy, ConnectionLimiter, Permit, Suspended};

/// The permits of one connection.
pub(super) struct ConnectionPermit {
    permit: Arc<Permit>,
    watches: Arc<ConnectionLimiter>,
    has_requested: AtomicBool,
}

/// Marks a connection as busy until its request is answered.
pub(super) enum RequestPermit {
    Short {
        _busy: Busy,
    },
    /// The suspended permit of the connection, and the watch permit.
    Watch {
        _suspended: Suspended,
        _busy: Busy,
    },
}

impl ConnectionPermit {
    pub(super) fn new(permit: Permit, watches: Arc<ConnectionLimiter>) -> Self {
        Self { permit: Arc::new(permit), watches, has_requested: AtomicBool::new(false) }
    }

    /// Records that a request has begun.
    pub(super) fn request_started(&self) {
        self.has_requested.store(true, Ordering::Relaxed);
    }

    /// Marks the connection as busy with a request.
    ///
    /// # Errors
    /// 429 if the limit of watches is reached, in all or for this origin.
    pub(super) fn for_request(&self, is_watch: bool) -> Result<RequestPermit> {
        if !is_watch {
            return Ok(RequestPermit::Short { _busy: self.permit.busy() });
        }
        let watch = self.watches.try_acquire(self.permit.origin());
        let watch = watch.ok_or_else(|| Status::too_many_requests("too many watches", 5))?;
        Ok(RequestPermit::Watch { _suspended: self.permit.suspend(), _busy: Arc::new(watch).busy() })
    }

    /// Completes when the connection must close: its permit was revoked, or no request began within
    /// `first`.
    pub(super) async fn must_close(&self, first: Duration) {
        let no_request = async {
            tokio::time::sleep(first).await;
            if self.has_requested.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.permit.evicted() => {}
            () = no_request => {}
        }
    }
}

/// State kept until the end of a response body.
#[derive(Default)]
pub(super) struct Lasting {
    pub(super) permit: Option<RequestPermit>,
    /// Ends the body early: the credential of its caller ends.
    pub(super) ends: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// A response body with the permit of its request, released at the end of the body.
pub(super) struct PermitBody {
    pub(super) body: ResponseBody,
    pub(super) lasting: Lasting,
}

impl Body for PermitBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        let Self { body, lasting } = self.get_mut();
        let has_ended = lasting.ends.as_mut().is_some_and(|ends| ends.as_mut().poll(cx).is_ready());
        let polled = if has_ended { Poll::Ready(None) } else { Pin::new(body).poll_frame(cx) };
        if matches!(polled, Poll::Ready(None)) {
            *lasting = Lasting::default();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
