//! What a store's writer counts, shown alike for both sides.

use crate::api::{MetricsType as Type, MetricsWriter};
use crate::store::writer::{COMMIT_BOUNDS_MS, WriterStats};

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
    let bounds = COMMIT_BOUNDS_MS.map(|bound| bound as f64 / 1e3);
    out.histogram(&[], &bounds, stats.commit_times.into_iter(), stats.commit_ns as f64 / 1e9);
    for (name, help, value) in [
        (names.commits, "Transactions committed.", stats.commits),
        (names.fsyncs, "Syncs of files, by commits and checkpoints.", stats.syncs),
        (names.jobs, "Pieces of work that were committed, several at a time.", stats.jobs),
        (names.rows, "Rows inserted, updated or deleted.", stats.rows),
        (names.failures, "Transactions given up.", stats.failures),
        (names.checkpoints, "Copies of the write-ahead log into the database.", stats.checkpoints),
    ] {
        out.counter(name, help, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_shown_by_seconds() {
        let names = WriterFamilies {
            commits: "c",
            durations: "d",
            fsyncs: "f",
            jobs: "j",
            rows: "r",
            failures: "x",
            checkpoints: "p",
        };
        let commit_times = std::array::from_fn(|at| at as u64);
        let stats =
            WriterStats { commit_times, commit_ns: 1_500_000_000, syncs: 7, ..WriterStats::default() };
        let mut text = String::new();
        write_writer(&names, &stats, &mut MetricsWriter::new(&mut text));
        for line in [
            "d_bucket{le=\"0.001\"} 0",
            "d_bucket{le=\"0.005\"} 3",
            "d_bucket{le=\"1\"} 45",
            "d_bucket{le=\"+Inf\"} 55",
            "d_sum 1.5",
            "f 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
