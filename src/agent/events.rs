//! Events of the agent (`events.k8s.io/v1`): what an operator must know, kept on the node and sent to the cloud
//! through the outbox. Repeats become a series; each source has a bucket of tokens. See docs/events.md.
//!
//! [`Events::emit`] puts an occurrence into a queue. One task takes them out, decides (`correlate`), makes objects of
//! them (`object`) and writes them (`writer`), through a trait (`sink`) that the edge's store implements.

mod correlate;
mod object;
mod pending;
mod run;
mod sink;
mod why;
mod writer;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use crate::store::{Clocked, EdgeStore};
use correlate::{Occurrence, Stamp};
use edgesync_object::ObjectRef;
use edgesync_protocol::change::Uid;
use object::ClockSet;
use sink::Sink;
use writer::{Command, Writer};

pub(super) use why::Why;

/// Occurrences that wait for the task.
const QUEUE: usize = 256;
/// Other things that the task is asked to do.
const COMMANDS: usize = 8;

/// What an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Regarding {
    /// The Node.
    #[default]
    Node,
    /// An object. The UID may be empty.
    Object(ObjectRef, Uid),
}

/// How many Events a source may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventLimits {
    /// At once.
    pub(super) burst: u32,
    /// After how long one more.
    pub(super) refill: Duration,
}

/// How the last run of the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastRun {
    /// There was none.
    None,
    /// It was told to stop.
    Clean,
    /// It was not.
    Unclean,
}

/// What was left out, by its cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Occurrences whose source made too many.
    pub(super) source: u64,
    /// Occurrences of which all sources of one reason together made too many.
    pub(super) reason: u64,
    /// Occurrences that found the queue full.
    pub(super) queue: u64,
    /// Events that gave way to newer ones while the store took none, or that it refused.
    pub(super) unwritten: u64,
}

impl LeftOut {
    /// All together.
    pub(super) fn total(&self) -> u64 {
        self.source + self.reason + self.queue + self.unwritten
    }
}

/// Makes Events; cheap to clone. Never waits: what a full queue does not take is counted.
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

/// What handles and task share.
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
    /// Starts the task that writes Events. It ends when all handles are dropped. `clocked` tells the time by the
    /// clock that never jumps.
    pub(super) fn start(
        store: EdgeStore,
        node: &str,
        limits: EventLimits,
        clocked: impl Fn() -> Clocked + Send + Sync + 'static,
    ) -> Self {
        let clock = move || Stamp { wall: Timestamp::now(), at: clocked() };
        Self::with_sink(store, node, limits, Box::new(clock))
    }

    fn with_sink(
        sink: impl Sink,
        node: &str,
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

    /// Makes an Event. `note` is for people, at most 1,024 bytes; what is longer is cut.
    pub(super) fn emit(&self, why: Why, regarding: Regarding, note: String) {
        self.shared.counters.emitted.fetch_add(1, Relaxed);
        let note = Arc::from(object::cut(note));
        let occurrence =
            Occurrence { why, regarding: object::sound(regarding), note, stamp: self.shared.now() };
        if self.queue.try_send(occurrence).is_err() {
            self.shared.counters.queue.fetch_add(1, Relaxed);
        }
    }

    /// Notes in the database that the agent runs, along with the Event that says so, and says how the last run
    /// ended. If the database takes nothing both wait.
    pub(super) async fn begin_run(&self) -> LastRun {
        let (answer, answered) = oneshot::channel();
        // The task ends after all handles.
        let _ = self.commands.send(Command::Begin(answer)).await;
        answered.await.unwrap_or(LastRun::None)
    }

    /// Notes in the database that the agent was told to stop, along with the Event that says so, and waits
    /// until all Events are written. If the database takes nothing it does not wait for that.
    pub(super) async fn end_run(&self) {
        let (answer, answered) = oneshot::channel();
        let _ = self.commands.send(Command::End(answer)).await;
        let _ = answered.await;
    }

    /// The wall clock was wrong until `before` and was then set forward by so many milliseconds: corrects the times
    /// of Events that were made before and wait, here and in the outbox. To be called when the clock is right.
    pub(super) fn clock_set(&self, before: Clocked, forward_ms: i64) {
        let set = ClockSet { before, forward_ms, now: self.shared.now() };
        if self.commands.try_send(Command::ClockSet(set)).is_err() {
            tracing::warn!(forward_ms, "the clock is set too often: times of Events stay as they are");
        }
    }

    /// Other limits.
    pub(super) fn set_limits(&self, limits: EventLimits) {
        self.shared.limits.send_replace(limits);
    }

    /// Occurrences, also those that were left out; without those of begin and end of the run.
    pub(super) fn emitted(&self) -> u64 {
        self.shared.counters.emitted.load(Relaxed)
    }

    /// What was left out: because there were too many, because the queue was full, and because the store took none.
    pub(super) fn left_out(&self) -> LeftOut {
        let counters = &self.shared.counters;
        LeftOut {
            source: counters.source.load(Relaxed),
            reason: counters.reason.load(Relaxed),
            queue: counters.queue.load(Relaxed),
            unwritten: counters.unwritten.load(Relaxed),
        }
    }

    /// The sum of [`Events::left_out`].
    pub(super) fn suppressed(&self) -> u64 {
        self.left_out().total()
    }
}

#[cfg(test)]
mod tests;
