//! A client of the API as the gate of its listener sees it. A connection has a place there until its request is answered;
//! one that waits for nothing may have to go. A watch gives the place back, and takes one among the watches.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};

use super::response::ResponseBody;
use edgesync_object::Status;
use edgesync_object::status::Result;
use edgesync_transport::admission::{Aside, Busy, ConnectionLimiter, Permit};

/// See the module.
pub(super) struct Visitor {
    permit: Arc<Permit>,
    watches: Arc<ConnectionLimiter>,
    has_asked: AtomicBool,
}

/// Keeps a connection, as long as its request is answered.
pub(super) enum Stay {
    Short(#[expect(dead_code, reason = "it is held")] Busy),
    Watch(
        #[expect(dead_code, reason = "it is held")] Aside,
        #[expect(dead_code, reason = "it is held")] Busy,
    ),
}

impl Visitor {
    pub(super) fn new(permit: Permit, watches: Arc<ConnectionLimiter>) -> Self {
        Self { permit: Arc::new(permit), watches, has_asked: AtomicBool::new(false) }
    }

    /// A request has begun.
    pub(super) fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// Its request is answered from now on.
    ///
    /// # Errors
    /// 429: there are too many watches, or too many of this origin.
    pub(super) fn stay(&self, is_watch: bool) -> Result<Stay> {
        if !is_watch {
            return Ok(Stay::Short(self.permit.busy()));
        }
        let watch = self.watches.try_enter(self.permit.origin());
        let watch = watch.ok_or_else(|| Status::too_many_requests("there are too many watches", 5))?;
        Ok(Stay::Watch(self.permit.aside(), Arc::new(watch).busy()))
    }

    /// Returns when it has to go: others wait, or it has asked nothing for so long.
    pub(super) async fn must_go(&self, first: Duration) {
        let silent = async {
            tokio::time::sleep(first).await;
            if self.has_asked.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.permit.must_go() => {}
            () = silent => {}
        }
    }
}

/// The body of a response, and the stay of the connection that it goes over.
pub(super) struct Kept {
    pub(super) body: ResponseBody,
    pub(super) stay: Option<Stay>,
}

impl Body for Kept {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        let kept = self.get_mut();
        let polled = Pin::new(&mut kept.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) {
            kept.stay = None;
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
