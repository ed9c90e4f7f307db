//! The task that writes Events. It receives occurrences, has [`Correlator`] decide, and writes the
//! results in batches, one transaction each. While the store fails, they wait and are retried.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use super::correlate::{Correlator, EventState, Occurrence, Suppression, until};
use super::object::{self, ClockSet, Corrections, MAX_CORRECTIONS, Names};
use super::pending::{Item, Pending};
use super::sink::{Entry, Sink};
use super::{LastRun, QUEUE, Shared, run};
use edgesync_object::NodeName;
use edgesync_object::time::rounded;
use edgesync_runtime::VERSION;
use edgesync_store::StoreError;

/// Maximum number of Events in one transaction.
pub(super) const MAX_BATCH: usize = 64;
/// Backoff after a failure of the store: first and maximum delay.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// A command to the task.
#[derive(Debug)]
pub(super) enum Command {
    Begin(oneshot::Sender<LastRun>),
    End(oneshot::Sender<()>),
    /// The clock was wrong and was set.
    ClockSet(ClockSet),
}

/// Schedule of the next retry.
#[derive(Debug, Default)]
struct Retry {
    at: Option<Instant>,
    wait: Duration,
}

impl Retry {
    fn failed(&mut self) {
        self.wait = (self.wait * 2).clamp(RETRY_MIN, RETRY_MAX);
        self.at = Some(Instant::now() + self.wait);
    }

    fn is_waiting(&self) -> bool {
        self.at.is_some_and(|at| at > Instant::now())
    }
}

/// State of the task.
#[derive(Debug)]
pub(super) struct Writer<S> {
    sink: S,
    shared: Arc<Shared>,
    names: Names,
    correlator: Correlator,
    pending: Pending,
    corrections: Corrections,
    /// Corrections not yet applied to the store.
    to_correct: VecDeque<ClockSet>,
    retry: Retry,
}

impl<S: Sink> Writer<S> {
    pub(super) fn new(sink: S, node: &NodeName, shared: Arc<Shared>) -> Self {
        let correlator = Correlator::new(shared.limits());
        Self {
            sink,
            shared,
            names: Names::new(node),
            correlator,
            pending: Pending::default(),
            corrections: Corrections::default(),
            to_correct: VecDeque::new(),
            retry: Retry::default(),
        }
    }

    /// Runs until all handles are dropped, then writes what is left.
    pub(super) async fn run(
        mut self,
        mut queue: mpsc::Receiver<Occurrence>,
        mut commands: mpsc::Receiver<Command>,
    ) {
        loop {
            let wake = self.wake();
            tokio::select! {
                command = commands.recv() => match command {
                    // Earlier occurrences precede the command.
                    Some(command) => {
                        self.drain(&mut queue);
                        self.execute(command).await;
                    }
                    None => break,
                },
                Some(occurrence) = queue.recv() => self.occurred(occurrence),
                () = sleep_until(wake), if wake.is_some() => {}
            }
            self.drain(&mut queue);
            self.correlator.tick(self.shared.now().at.since_boot);
            self.collect();
            self.write().await;
        }
        self.drain(&mut queue);
        self.finish().await;
    }

    /// Returns when to wake without new input.
    fn wake(&self) -> Option<Instant> {
        let now = self.shared.now().at.since_boot;
        let due = self.correlator.deadline().map(|due| Instant::now() + until(now, due));
        let retry = self.retry.at.filter(|_| self.has_work());
        due.into_iter().chain(retry).min()
    }

    fn has_work(&self) -> bool {
        !self.pending.is_empty() || !self.to_correct.is_empty()
    }

    fn drain(&mut self, queue: &mut mpsc::Receiver<Occurrence>) {
        for _ in 0..QUEUE {
            match queue.try_recv() {
                Ok(occurrence) => self.occurred(occurrence),
                Err(_) => break,
            }
        }
    }

    fn occurred(&mut self, occurrence: Occurrence) {
        self.correlator.set_limits(self.shared.limits());
        let counters = &self.shared.counters;
        match self.correlator.occurred(occurrence, fresh_id) {
            None => {}
            Some(Suppression::Source) => {
                counters.source.fetch_add(1, Relaxed);
            }
            Some(Suppression::Reason) => {
                counters.reason.fetch_add(1, Relaxed);
            }
        }
    }

    async fn execute(&mut self, command: Command) {
        self.collect();
        match command {
            Command::Begin(answer) => {
                let _ = answer.send(self.begin().await);
            }
            Command::End(answer) => {
                let (state, note) = run::end(VERSION, self.shared.now(), fresh_id());
                self.correlator.finish();
                self.collect();
                self.add(state, Some(note));
                self.finish().await;
                let _ = answer.send(());
            }
            Command::ClockSet(set) => {
                self.corrections.add(set);
                if self.to_correct.len() >= MAX_CORRECTIONS {
                    self.to_correct.pop_front();
                }
                self.to_correct.push_back(set);
            }
        }
    }

    async fn begin(&mut self) -> LastRun {
        let note = self.sink.last_run().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "record of the last run unreadable");
            None
        });
        let (last, state, note) = run::begin(note.as_deref(), VERSION, self.shared.now(), fresh_id());
        self.add(state, Some(note));
        self.write().await;
        last
    }

    /// Moves the decided Events to the queue.
    fn collect(&mut self) {
        for state in self.correlator.take() {
            self.add(state, None);
        }
    }

    fn add(&mut self, state: EventState, run: Option<String>) {
        let gone = self.pending.add(state, run);
        self.shared.counters.unwritten.fetch_add(gone, Relaxed);
    }

    /// Writes everything, and gives up what fails at the first attempt.
    async fn finish(&mut self) {
        self.correlator.finish();
        self.collect();
        self.retry = Retry::default();
        self.write().await;
        if self.has_work() {
            tracing::warn!(events = self.pending.len(), "Events lost at shutdown");
        }
    }

    /// Writes the queue, unless a retry is pending.
    async fn write(&mut self) {
        if !self.has_work() || self.retry.is_waiting() {
            return;
        }
        match self.try_write().await {
            Ok(()) => self.retry = Retry::default(),
            Err(error) => {
                self.retry.failed();
                tracing::debug!(%error, wait = %rounded(self.retry.wait), "Events queued, store unavailable");
            }
        }
    }

    async fn try_write(&mut self) -> Result<(), StoreError> {
        // First of all: Events still in the queue are corrected when their objects are built, and
        // must not be corrected twice.
        while let Some(ClockSet { before, forward_ms, .. }) = self.to_correct.front().copied() {
            match self.sink.correct_times(before, forward_ms).await {
                Ok(corrected) => tracing::info!(corrected, forward_ms, "times of Events corrected"),
                Err(error) if is_transient(&error) => return Err(error),
                Err(error) => tracing::warn!(%error, "times of Events not corrected"),
            }
            self.to_correct.pop_front();
        }
        let mut most = MAX_BATCH;
        while !self.pending.is_empty() {
            let count = self.pending.len().min(most);
            match self.sink.post(self.entries(count)).await {
                Ok(()) => self.pending.remove_first(count),
                Err(error) if is_transient(&error) => return Err(error),
                // One of them must be the cause: it must not block the others.
                Err(_) if count > 1 => most = 1,
                Err(error) => {
                    tracing::warn!(%error, "Event not written");
                    self.pending.remove_first(1);
                    self.shared.counters.unwritten.fetch_add(1, Relaxed);
                }
            }
        }
        Ok(())
    }

    fn entries(&self, count: usize) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(count + 1);
        for Item { state, run } in self.pending.first(count) {
            entries.push(Entry::Event(object::record(state, &self.names, &self.corrections)));
            entries.extend(run.clone().map(Entry::Run));
        }
        entries
    }
}

/// Returns whether a retry may succeed.
fn is_transient(error: &StoreError) -> bool {
    error.ends_transaction() || matches!(error, StoreError::Closed | StoreError::Replaced)
}

fn fresh_id() -> u128 {
    Uuid::new_v4().as_u128()
}

async fn sleep_until(wake: Option<Instant>) {
    if let Some(wake) = wake {
        tokio::time::sleep_until(wake).await;
    }
}
