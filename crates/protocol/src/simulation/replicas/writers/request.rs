//! Requests of a replica, and its tasks: futures that wait for one answer at a time.
//!
//! A task asks through [`Io`]. The world executes the request at the API server and polls the task
//! again with the answer. Nothing else wakes a task.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::server::{Base, Change, Failure, Key, Lease, Object, Stored, Value};
use crate::change::Uid;
use crate::timing::Now;

/// A request to the API server, or to the clock.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Sleep(Duration),
    /// Quorum reads.
    Lease {
        node: usize,
        is_cached: bool,
    },
    Object(Uid),
    Record(usize, Uid),
    Event(usize, u64),
    /// The ObjectSyncs of these nodes.
    Records(Vec<usize>),
    /// The newest version of all.
    Reached,
    /// All objects.
    Objects {
        is_cached: bool,
    },
    /// The changes of objects after a version, as soon as there are some. A watch that has begun
    /// does not expire.
    Watch {
        after: u64,
        has_begun: bool,
    },
    Write {
        node: usize,
        key: Key,
        base: Base,
        value: Value,
        /// The time at which the API server has answered the check of the Lease.
        checked: Now,
    },
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Slept,
    /// The Lease, and the time of the read.
    Lease(Option<Lease>, Now),
    Object(Option<Object>),
    Stored(Option<Stored>),
    Records(Vec<(usize, Uid, Stored)>),
    Reached(u64),
    /// All objects, with the version of the list.
    Objects(u64, Vec<Object>),
    Changes(Vec<Change>),
    /// The watch has ended.
    Closed,
    Written(u64),
    Failed(Failure),
}

/// The connection of tasks with the world.
#[derive(Default)]
pub(super) struct Io {
    pub(super) now: Cell<Now>,
    asked: Cell<Option<Request>>,
    answer: Cell<Option<Answer>>,
}

struct Asking {
    io: Rc<Io>,
    request: Option<Request>,
}

impl Future for Asking {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Answer> {
        let it = self.get_mut();
        if let Some(request) = it.request.take() {
            it.io.asked.set(Some(request));
            return Poll::Pending;
        }
        it.io.answer.take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Sends a request and waits for its answer.
pub(super) fn ask(io: &Rc<Io>, request: Request) -> impl Future<Output = Answer> + use<> {
    Asking { io: Rc::clone(io), request: Some(request) }
}

/// The job of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Follow,
    Claim(usize),
    Renew(usize),
    Ingest(usize),
    ListRecords,
    WriteRecords,
}

/// A task of a replica.
pub(super) struct Task {
    pub(super) replica: usize,
    pub(super) kind: Kind,
    /// The session of the node that it works for; 0 without one.
    pub(super) session: u64,
    io: Rc<Io>,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

impl Task {
    pub(super) fn new(
        (replica, kind, session): (usize, Kind, u64),
        io: &Rc<Io>,
        future: impl Future<Output = ()> + 'static,
    ) -> Self {
        Self { replica, kind, session, io: Rc::clone(io), future: Box::pin(future) }
    }

    /// Runs the task up to its next request; `None` if it has ended.
    pub(super) fn poll(&mut self, now: Now, answer: Option<Answer>) -> Option<Request> {
        self.io.now.set(now);
        self.io.answer.set(answer);
        match self.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(()) => None,
            Poll::Pending => self.io.asked.take(),
        }
    }
}
