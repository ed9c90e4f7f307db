//! What a store's writer counts, shown alike for both sides.

use crate::api::{MetricsType as Type, MetricsWriter};
use crate::store::writer::{COMMIT_BUCKETS, WriterStats};

/// The names of the families of one writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterFamilies {
    pub(crate) commits: &'static str,
    pub(crate) durations: &'static str,
    pub(crate) fsyncs: &'static str,
    pub(crate) jobs: &'static str,
    pub(crate) rows: &'static str,
    pub(crate) failures: &'static str,
    pub(crate) checkpoints: &'static str,
}

/// Writes what a writer has done.
pub(crate) fn write_writer(names: &WriterFamilies, stats: &WriterStats, out: &mut MetricsWriter<'_>) {
    out.family(names.durations, Type::Histogram, "Seconds that commits took.");
    out.histogram(&[], &COMMIT_BUCKETS, stats.commit_buckets.into_iter(), stats.commit_ns as f64 / 1e9);
    // A commit syncs the log; copying it into the database syncs both.
    let fsyncs = stats.commits + 2 * stats.checkpoints;
    for (name, help, value) in [
        (names.commits, "Transactions committed.", stats.commits),
        (names.fsyncs, "Syncs of files: one for each commit, two for each checkpoint.", fsyncs),
        (names.jobs, "Pieces of work that were committed, several at a time.", stats.jobs),
        (names.rows, "Rows inserted, updated or deleted.", stats.rows),
        (names.failures, "Transactions given up.", stats.failures),
        (names.checkpoints, "Copies of the write-ahead log into the database.", stats.checkpoints),
    ] {
        out.counter(name, help, value);
    }
}
