//! Metrics that the agent and the cloud side share: those of a store's writer and of a link.

use edgesync_api::{MetricsType as Type, MetricsWriter};
use edgesync_store::writer::{COMMIT_BOUNDS_MS, WriterStats};
use edgesync_transport::link::{Cause, Endings, Traffic};

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

/// Writes a link's metrics, under names with this prefix.
pub fn write_link(prefix: &str, link: &Traffic, endings: &Endings, out: &mut MetricsWriter<'_>) {
    let mut counter = |name: &str, help: &str, value: u64| {
        out.family(&format!("{prefix}_{name}_total"), Type::Counter, help);
        out.samples([], [([""; 0], value)]);
    };
    counter("connections", "Connections established.", link.connected);
    counter("received_bytes", "Bytes received over TCP.", link.bytes_in);
    counter("sent_bytes", "Bytes sent over TCP.", link.bytes_out);
    counter("received_messages", "Messages received.", link.messages_in);
    counter("sent_messages", "Messages sent.", link.messages_out);
    counter("refused_messages", "Messages that the broker answered with an error.", link.rejected);
    for (name, help, counts) in [
        ("disconnects", "Connections lost, by cause.", endings.lost),
        ("failed_attempts", "Failed connection attempts, by cause.", endings.failed),
    ] {
        out.family(&format!("{prefix}_{name}_total"), Type::Counter, help);
        out.samples(["cause"], Cause::LABELS.map(|label| [label]).into_iter().zip(counts));
    }
    let help = "Messages sent that the broker has not acknowledged.";
    out.family(&format!("{prefix}_unacknowledged_messages"), Type::Gauge, help);
    out.samples([], [([""; 0], link.unacknowledged)]);
    let help = "Last measured time from a message to its acknowledgement by the broker.";
    out.family(&format!("{prefix}_round_trip_seconds"), Type::Gauge, help);
    out.samples([], [([""; 0], link.round_trip)]);
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
