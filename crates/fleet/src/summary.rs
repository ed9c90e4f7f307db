//! Overview of the whole fleet for pages: a row per node, the changes since a revision, and the
//! last hour. The fleet builds it once; all open pages share the same bytes.
//!
//! `docs/api.md` describes the format.

mod history;
mod past;
mod requests;
mod row;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{mpsc, watch};

use edgesync_admin::cloud::{SummaryLine, SummaryRow, SummaryRows, SummaryState};
use edgesync_object::NodeName;
use edgesync_object::status::Result;
pub(super) use history::{History, Sample};
pub(super) use past::{MinuteSample, Past};
pub(super) use requests::{ObjectFilter, RolloutAnswer, RolloutOf};
pub(super) use row::{Row, Tally};

/// Deltas kept for pages that reconnect: about five minutes.
const DELTAS: usize = 300;
/// Maximum bytes of all deltas.
const DELTA_BYTES: usize = 4 << 20;
/// Interval of keepalive lines in a stream.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Published overview, between the fleet and its readers.
#[derive(Debug)]
pub struct Board {
    /// Id of this start of the program: revisions of another start are invalid.
    start: String,
    published: Mutex<Published>,
    revision: watch::Sender<u64>,
    /// Number of requests so far; the fleet updates more often while it grows.
    requests: AtomicU64,
}

#[derive(Debug, Default)]
struct Published {
    rows: BTreeMap<NodeName, Row>,
    tally: Tally,
    revision: u64,
    at: i64,
    snapshot: Option<Bytes>,
    deltas: VecDeque<(u64, Bytes)>,
    delta_bytes: usize,
    history: History,
    history_text: Option<Bytes>,
}

/// Changes found by a pass over all nodes.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Rows of nodes that are new or have changed.
    pub(super) rows: Vec<(NodeName, Row)>,
    /// Nodes that no longer exist, whose rows are deleted.
    pub(super) gone: Vec<NodeName>,
}

impl Board {
    pub fn new(start: String) -> Arc<Self> {
        Arc::new(Self {
            start,
            published: Mutex::default(),
            revision: watch::channel(0).0,
            requests: AtomicU64::new(0),
        })
    }

    fn published(&self) -> std::sync::MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of open streams and the number of requests.
    pub(super) fn interest(&self) -> (usize, u64) {
        (self.revision.receiver_count(), self.requests.load(Ordering::Relaxed))
    }

    /// Publishes the changes of a pass, at a time in milliseconds. Creates a revision only if there
    /// are any, or none exists yet.
    pub(super) fn publish(&self, at: i64, found: Found) {
        let mut published = self.published();
        if found.rows.is_empty() && found.gone.is_empty() && published.revision > 0 {
            published.at = at;
            return;
        }
        let revision = published.publish(at, &self.start, found);
        drop(published);
        self.revision.send_replace(revision);
    }

    /// Adds a sample to the history.
    pub(super) fn sample(&self, sample: impl FnOnce(&Tally) -> Sample) {
        let mut published = self.published();
        let sample = sample(&published.tally);
        published.history.push(sample);
        published.history_text = None;
    }

    /// Returns the last published row of a node.
    pub(super) fn row(&self, name: &NodeName) -> Option<Row> {
        self.published().rows.get(name).copied()
    }

    /// Returns the names of all published rows.
    pub(super) fn names(&self) -> Vec<NodeName> {
        self.published().rows.keys().cloned().collect()
    }

    /// Returns the number of published rows.
    pub(super) fn len(&self) -> usize {
        self.published().rows.len()
    }

    /// Returns all rows as one line of JSON, cached until a row changes.
    pub(super) fn snapshot(&self) -> Bytes {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.published().snapshot(&self.start)
    }

    /// Returns the last hour.
    pub(super) fn history(&self) -> Bytes {
        let mut published = self.published();
        let made = published.history_text.take().unwrap_or_else(|| text(&published.history.show()).into());
        published.history_text = Some(made.clone());
        made
    }

    /// Streams lines: a snapshot first, unless `from` is a start and a revision from which the
    /// deltas are still kept.
    pub(super) fn watch(
        self: &Arc<Self>,
        from: Option<(&str, u64)>,
        stopping: watch::Receiver<bool>,
    ) -> mpsc::Receiver<Result<Bytes>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (sender, lines) = mpsc::channel(1);
        let known = from.filter(|(start, _)| *start == self.start).map(|(_, revision)| revision);
        tokio::spawn(Arc::clone(self).stream(known, sender, stopping));
        lines
    }

    async fn stream(
        self: Arc<Self>,
        mut known: Option<u64>,
        sender: mpsc::Sender<Result<Bytes>>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let mut revision = self.revision.subscribe();
        while !*stopping.borrow() {
            revision.mark_unchanged();
            let (lines, reached) = self.published().after(known, &self.start);
            known = Some(reached);
            for line in lines {
                if sender.send(Ok(line)).await.is_err() {
                    return;
                }
            }
            let changed = tokio::select! {
                changed = revision.changed() => changed.is_ok(),
                () = tokio::time::sleep(KEEPALIVE) => {
                    let alive = SummaryLine::Alive { at: self.published().at };
                    sender.send(Ok(line(&alive))).await.is_ok()
                }
                stopped = stopping.changed() => stopped.is_ok() && !*stopping.borrow(),
                () = sender.closed() => false,
            };
            if !changed {
                return;
            }
        }
    }
}

impl Published {
    fn publish(&mut self, at: i64, start: &str, found: Found) -> u64 {
        self.revision += 1;
        self.at = at;
        self.snapshot = None;
        for (name, row) in &found.rows {
            self.tally.add(row);
            if let Some(old) = self.rows.insert(name.clone(), *row) {
                self.tally.remove(&old);
            }
        }
        for name in &found.gone {
            if let Some(old) = self.rows.remove(name) {
                self.tally.remove(&old);
            }
        }
        let nodes = found.rows.iter().map(|(name, row)| row.with_name(name)).collect();
        let line = line(&SummaryLine::Changed(self.summary(start, nodes, found.gone)));
        self.delta_bytes += line.len();
        self.deltas.push_back((self.revision, line));
        while self.deltas.len() > DELTAS || self.delta_bytes > DELTA_BYTES && self.deltas.len() > 1 {
            let dropped = self.deltas.pop_front().map_or(0, |(_, line)| line.len());
            self.delta_bytes -= dropped;
        }
        self.revision
    }

    fn summary(&self, start: &str, nodes: Vec<SummaryRow>, gone: Vec<NodeName>) -> SummaryRows {
        SummaryRows {
            start: start.to_owned(),
            revision: self.revision,
            at: self.at,
            states: SummaryState::names(),
            counts: self.tally.counts.to_vec(),
            held: self.tally.held,
            desired: self.tally.desired,
            gone,
            nodes,
        }
    }

    fn snapshot(&mut self, start: &str) -> Bytes {
        if let Some(made) = &self.snapshot {
            return made.clone();
        }
        let nodes = self.rows.iter().map(|(name, row)| row.with_name(name)).collect();
        let made = line(&SummaryLine::Snapshot(self.summary(start, nodes, Vec::new())));
        self.snapshot = Some(made.clone());
        made
    }

    /// Returns the lines after a known revision, and the revision reached with them.
    fn after(&mut self, known: Option<u64>, start: &str) -> (Vec<Bytes>, u64) {
        let first = self.deltas.front().map_or(self.revision + 1, |(revision, _)| *revision);
        let lines = match known {
            Some(known) if known <= self.revision && known + 1 >= first => {
                let new = self.deltas.iter().filter(|(revision, _)| *revision > known);
                new.map(|(_, line)| line.clone()).collect()
            }
            _ => vec![self.snapshot(start)],
        };
        (lines, self.revision)
    }
}

/// Serializes an answer whose keys are all strings, which cannot fail.
fn text(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).unwrap_or_default()
}

fn line(line: &SummaryLine) -> Bytes {
    (text(line) + "\n").into()
}

#[cfg(test)]
mod tests;
