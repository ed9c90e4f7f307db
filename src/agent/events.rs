//! Events of the agent (`events.k8s.io/v1`): conditions that an operator must know, stored on the
//! node and sent to the cloud through the outbox. Repeats become a series; each source has a token
//! bucket. See docs/events.md.
//!
//! [`Events::emit`] queues an occurrence. One task decides (`correlate`), builds objects (`object`)
//! and writes them (`writer`), through a trait (`sink`) that the edge's store implements.

mod correlate;
mod object;
mod pending;
mod reason;
mod run;
mod sink;
mod writer;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use crate::store::{EdgeStore, MonotonicTime};
use correlate::{Occurrence, Stamp};
use edgesync_object::{NodeName, ObjectRef};
use edgesync_protocol::change::Uid;
use object::ClockSet;
use sink::Sink;
use writer::{Command, Writer};

pub(super) use reason::EventReason;

/// Occurrences that may queue for the task.
const QUEUE: usize = 256;
/// Commands that may queue for the task.
const COMMANDS: usize = 8;

/// The object that an Event regards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Regarding {
    #[default]
    Node,
    /// An object. The UID may be empty.
    Object(ObjectRef, Uid),
}

/// Rate limit of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventLimits {
    /// Maximum number of Events at once.
    pub(super) burst: u32,
    /// Time after which one more is allowed.
    pub(super) refill: Duration,
}

/// End of the agent's last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastRun {
    /// There was no run.
    None,
    /// Stopped by a signal.
    Clean,
    /// Crashed or killed, or the device lost power.
    Unclean,
}

/// Suppressed occurrences, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SuppressedCounts {
    /// Over the limit of their source.
    pub(super) source: u64,
    /// Over the common limit of all sources of their reason.
    pub(super) reason: u64,
    /// The queue was full.
    pub(super) queue: u64,
    /// Replaced by newer Events while the store failed, or refused by it.
    pub(super) unwritten: u64,
}

impl SuppressedCounts {
    pub(super) fn total(&self) -> u64 {
        self.source + self.reason + self.queue + self.unwritten
    }
}

/// Emits Events; cheap to clone. Never waits: occurrences that find the queue full are counted.
#[derive(Clone, Debug)]
pub(super) struct Events {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Occurrence>,
    commands: mpsc::Sender<Command>,
}

#[derive(Debug, Default)]
struct Counters {
    emitted: AtomicU64,
    source: AtomicU64,
    reason: AtomicU64,
    queue: AtomicU64,
    unwritten: AtomicU64,
}

/// State shared by handles and task.
struct Shared {
    clock: Box<dyn Fn() -> Stamp + Send + Sync>,
    limits: watch::Sender<EventLimits>,
    pub counters: Counters,
}

impl Shared {
    fn now(&self) -> Stamp {
        (self.clock)()
    }

    fn limits(&self) -> EventLimits {
        *self.limits.borrow()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("limits", &self.limits()).field("counters", &self.counters).finish()
    }
}

impl Events {
    /// Starts the task that writes Events. It ends when all handles are dropped. `clocked` returns
    /// the monotonic time.
    pub(super) fn start(
        store: EdgeStore,
        node: &NodeName,
        limits: EventLimits,
        clocked: impl Fn() -> MonotonicTime + Send + Sync + 'static,
    ) -> Self {
        let clock = move || Stamp { wall: Timestamp::now(), at: clocked() };
        Self::with_sink(store, node, limits, Box::new(clock))
    }

    fn with_sink(
        sink: impl Sink,
        node: &NodeName,
        limits: EventLimits,
        clock: Box<dyn Fn() -> Stamp + Send + Sync>,
    ) -> Self {
        let (queue, occurrences) = mpsc::channel(QUEUE);
        let (commands, asked) = mpsc::channel(COMMANDS);
        let limits = watch::Sender::new(limits);
        let shared = Arc::new(Shared { clock, limits, counters: Counters::default() });
        let writer = Writer::new(sink, node, Arc::clone(&shared));
        tokio::spawn(writer.run(occurrences, asked));
        Self { shared, queue, commands }
    }

    /// Emits an Event. `note` is text for people; it is truncated to 1,024 bytes.
    pub(super) fn emit(&self, reason: EventReason, regarding: Regarding, note: String) {
        self.shared.counters.emitted.fetch_add(1, Relaxed);
        let note = Arc::from(object::truncate(note));
        let occurrence =
            Occurrence { reason, regarding: object::validated(regarding), note, stamp: self.shared.now() };
        if self.queue.try_send(occurrence).is_err() {
            self.shared.counters.queue.fetch_add(1, Relaxed);
        }
    }

    /// Records in the database that the agent runs, in one transaction with the Event that says so.
    /// Returns how the last run ended. If the database fails, both stay pending.
    pub(super) async fn begin_run(&self) -> LastRun {
        let (answer, answered) = oneshot::channel();
        // The task outlives all handles.
        let _ = self.commands.send(Command::Begin(answer)).await;
        answered.await.unwrap_or(LastRun::None)
    }

    /// Records in the database that the agent stops, in one transaction with the Event that says
    /// so, and waits until all Events are written. If the database fails, it does not wait.
    pub(super) async fn end_run(&self) {
        let (answer, answered) = oneshot::channel();
        let _ = self.commands.send(Command::End(answer)).await;
        let _ = answered.await;
    }

    /// Corrects the times of earlier pending Events, here and in the outbox: the wall clock was
    /// wrong until `before` and was then set forward by so many milliseconds. Call it once the
    /// clock is right.
    pub(super) fn clock_set(&self, before: MonotonicTime, forward_ms: i64) {
        let set = ClockSet { before, forward_ms, now: self.shared.now() };
        if self.commands.try_send(Command::ClockSet(set)).is_err() {
            tracing::warn!(forward_ms, "clock set too often: times of Events not corrected");
        }
    }

    pub(super) fn set_limits(&self, limits: EventLimits) {
        self.shared.limits.send_replace(limits);
    }

    /// Returns the number of occurrences, suppressed ones included; without those for begin and end
    /// of the run.
    pub(super) fn emitted(&self) -> u64 {
        self.shared.counters.emitted.load(Relaxed)
    }

    /// Returns the suppressed occurrences by cause: rate limits, full queue, failing store.
    pub(super) fn suppressed_counts(&self) -> SuppressedCounts {
        let counters = &self.shared.counters;
        SuppressedCounts {
            source: counters.source.load(Relaxed),
            reason: counters.reason.load(Relaxed),
            queue: counters.queue.load(Relaxed),
            unwritten: counters.unwritten.load(Relaxed),
        }
    }

    /// Returns the sum of [`Events::suppressed_counts`].
    pub(super) fn suppressed(&self) -> u64 {
        self.suppressed_counts().total()
    }
}

#[cfg(test)]
mod tests;
