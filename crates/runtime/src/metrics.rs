//! Metrics of a store's writer, the same for both sides.

use edgesync_api::{MetricsType as Type, MetricsWriter};
use edgesync_store::writer::{COMMIT_BOUNDS_MS, WriterStats};

/// Writes a writer's metrics, under names with this prefix.
pub fn write_writer(prefix: &str, stats: &WriterStats, out: &mut MetricsWriter<'_>) {
    let durations = format!("{prefix}_commit_duration_seconds");
    out.family(&durations, Type::Histogram, "Duration of commits.");
    let bounds = COMMIT_BOUNDS_MS.map(|bound| bound as f64 / 1e3);
    out.histogram(&[], &bounds, stats.commit_times.into_iter(), stats.commit_ns as f64 / 1e9);
    for (name, help, value) in [
        ("commits", "Transactions committed.", stats.commits),
        ("fsyncs", "Syncs of files, by commits and checkpoints.", stats.syncs),
        ("jobs", "Jobs committed; a transaction has one or more.", stats.jobs),
        ("written_rows", "Rows inserted, updated or deleted.", stats.rows),
        ("failed_transactions", "Transactions that failed.", stats.failures),
        ("checkpoints", "Copies of the write-ahead log into the database.", stats.checkpoints),
    ] {
        out.family(&format!("{prefix}_{name}_total"), Type::Counter, help);
        out.samples([], [([""; 0], value)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_shown_by_seconds() {
        let commit_times = std::array::from_fn(|at| at as u64);
        let stats =
            WriterStats { commit_times, commit_ns: 1_500_000_000, syncs: 7, ..WriterStats::default() };
        let mut text = String::new();
        write_writer("s", &stats, &mut MetricsWriter::new(&mut text));
        for line in [
            "s_commit_duration_seconds_bucket{le=\"0.001\"} 0",
            "s_commit_duration_seconds_bucket{le=\"0.005\"} 3",
            "s_commit_duration_seconds_bucket{le=\"1\"} 45",
            "s_commit_duration_seconds_bucket{le=\"+Inf\"} 55",
            "s_commit_duration_seconds_sum 1.5",
            "s_fsyncs_total 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
