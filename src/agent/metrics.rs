//! The numbers of the agent for Prometheus: what they are, and how `/metrics` shows them. Pure; the loop and
//! [`super::status`] fill them in when somebody asks. `docs/metrics.md` describes each.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{MetricsType as Type, MetricsWriter};
use crate::link::{Cause, Endings, Traffic};
use crate::store::edge::{EdgeStats, OutboxState, Writing};
use crate::sync::change::RejectReason;
use crate::sync::edge::{EdgeCounters, EdgePhase};
use crate::sync::kubeedge::{BridgeCounters, BridgeStatus};
use crate::sync::upload::Lane;

mod kubeedge;
mod lag;

use crate::process::metrics::{WriterFamilies, write_writer};
pub(super) use lag::Ages;

/// What the metrics of the agent show. Numbers of things that happened only grow while the agent runs.
#[derive(Clone, Debug, Default)]
pub struct AgentNumbers {
    /// The name of the node.
    pub node: String,
    /// Whether there is a connection to the broker.
    pub connected: bool,
    /// What the link counts.
    pub link: Traffic,
    /// Why its connections ended and its attempts failed.
    pub endings: Endings,
    /// Where the session with the cloud stands.
    pub phase: EdgePhase,
    /// The time from the last Hello to its Welcome.
    pub welcome_round_trip: Option<Duration>,
    /// Whether the node holds what it is to hold, and the cloud knows it.
    pub in_sync: bool,
    /// The age of the oldest change that the cloud has not confirmed; zero if there is none.
    pub lag: Duration,
    /// Changes that the cloud has not confirmed.
    pub unconfirmed: u64,
    /// Objects that the cloud has announced and that have not come yet.
    pub pending: u64,
    /// Removals that the cloud holds back.
    pub held_back: u64,
    /// Objects held.
    pub objects: u64,
    /// Objects that are rejected as of now, as far as they are remembered.
    pub rejected_now: u64,
    /// Objects rejected, by reason.
    pub rejections: Rejections,
    /// What the sync machine counts.
    pub sync: EdgeCounters,
    /// Frames that could not be read, by cause.
    pub bad_frames: BTreeMap<&'static str, u64>,
    /// Frames by direction and type.
    pub frames: Vec<Transferred>,
    /// Objects in frames by direction and kind; who counts them bounds the kinds.
    pub kinds: Vec<Transferred>,
    /// Bytes of TCP in both directions today (UTC).
    pub traffic_today: u64,
    /// The limit for them, if there is one.
    pub traffic_budget: Option<u64>,
    /// When the certificate ends, as Unix time; none before the node has joined.
    pub certificate_end: Option<i64>,
    /// The outbox as of the last commit.
    pub outbox: OutboxState,
    /// The age of the oldest item of each lane, in the order of [`Lane::ALL`]; zero if it is empty.
    pub outbox_ages: [Duration; Lane::ALL.len()],
    /// Events that the agent has made, repeats included.
    pub events_emitted: u64,
    /// Events that the agent has left out because there were too many.
    pub events_suppressed: u64,
    /// Limits that were hit and are counted nowhere else.
    pub limits: LimitsHit,
    /// The bridge to a CloudCore; none with another link.
    pub kubeedge: Option<(BridgeCounters, BridgeStatus)>,
    /// Sizes and counters of the store; none if it cannot be read.
    pub store: Option<EdgeStats>,
    /// Whether the store takes changes.
    pub writing: Writing,
    /// How often the database was lost or damaged since the agent was started.
    pub resets: u64,
}

/// Objects that were rejected, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejections([u64; Self::REASONS.len()]);

impl Rejections {
    /// The reasons, each with its word, which is the one in the protocol.
    const REASONS: [(RejectReason, &'static str); 5] = [
        (RejectReason::TooLarge, "TooLarge"),
        (RejectReason::Invalid, "Invalid"),
        (RejectReason::Stale, "Stale"),
        (RejectReason::StoreFull, "StoreFull"),
        (RejectReason::StoreUnavailable, "StoreUnavailable"),
    ];

    /// Counts an object.
    pub fn add(&mut self, reason: RejectReason) {
        let at = Self::REASONS.iter().position(|(known, _)| *known == reason);
        if let Some(count) = at.and_then(|at| self.0.get_mut(at)) {
            *count += 1;
        }
    }

    fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::REASONS.iter().map(|(_, word)| *word).zip(self.0)
    }
}

/// How often limits were hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsHit {
    /// Objects larger than `sync.max_object`.
    pub object_size: u64,
    /// Objects for which there was no room within `store.max_size` or on the disk.
    pub store_size: u64,
    /// Frames for which the link's queue had no room at once.
    pub link_queue: u64,
}

/// What went through the link under one label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transferred {
    /// `up` to the cloud, `down` from it.
    pub direction: &'static str,
    /// The type of frame, or the kind of object.
    pub label: String,
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The words for where a session stands.
const PHASES: [(EdgePhase, &str); 4] = [
    (EdgePhase::Down, "down"),
    (EdgePhase::Settling, "settling"),
    (EdgePhase::Greeting, "greeting"),
    (EdgePhase::Live, "live"),
];

/// The store of the agent.
const STORE: WriterFamilies = WriterFamilies {
    commits: "edgesync_agent_store_commits_total",
    durations: "edgesync_agent_store_commit_duration_seconds",
    fsyncs: "edgesync_agent_store_fsyncs_total",
    jobs: "edgesync_agent_store_jobs_total",
    rows: "edgesync_agent_store_written_rows_total",
    failures: "edgesync_agent_store_failed_transactions_total",
    checkpoints: "edgesync_agent_store_checkpoints_total",
};

/// Writes all families of the agent.
pub fn write(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    out.family("edgesync_agent_build_info", Type::Gauge, "Node and version; always 1.");
    out.sample("", &[("node", &*numbers.node), ("version", crate::VERSION)], 1.0);
    write_link(numbers, out);
    write_sync(numbers, out);
    if let Some((counters, status)) = &numbers.kubeedge {
        kubeedge::write(counters, status, out);
    }
    write_traffic(numbers, out);
    write_outbox(numbers, out);
    write_limits(numbers, out);
    write_store(numbers, out);
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

/// A gauge that has no value until something was measured.
fn optional(out: &mut MetricsWriter<'_>, name: &'static str, help: &str, value: Option<f64>) {
    out.family(name, Type::Gauge, help);
    if let Some(value) = value {
        out.sample("", &[], value);
    }
}

/// One gauge for each of several states, of which one is 1.
fn states<'s>(
    out: &mut MetricsWriter<'_>,
    name: &'static str,
    help: &str,
    label: &str,
    states: impl IntoIterator<Item = (&'s str, bool)>,
) {
    out.family(name, Type::Gauge, help);
    for (state, is_current) in states {
        out.sample("", &[(label, state)], flag(is_current));
    }
}

fn write_link(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let AgentNumbers { link, endings, .. } = numbers;
    let causes = |counts: [u64; Cause::COUNT]| Cause::LABELS.into_iter().zip(counts);
    out.gauge(
        "edgesync_agent_link_connected",
        "Whether there is a connection to the broker or CloudCore.",
        flag(numbers.connected),
    );
    out.counter("edgesync_agent_link_connections_total", "Connections made.", link.connected);
    out.counters(
        "edgesync_agent_link_disconnects_total",
        "Connections lost, by cause.",
        "cause",
        causes(endings.lost),
    );
    out.counters(
        "edgesync_agent_link_failed_attempts_total",
        "Attempts that led to no connection, by cause.",
        "cause",
        causes(endings.failed),
    );
    out.counter("edgesync_agent_link_received_bytes_total", "Bytes taken from TCP.", link.bytes_in);
    out.counter("edgesync_agent_link_sent_bytes_total", "Bytes handed to TCP.", link.bytes_out);
    out.counter("edgesync_agent_link_received_messages_total", "Messages received.", link.messages_in);
    out.counter("edgesync_agent_link_sent_messages_total", "Messages sent.", link.messages_out);
    out.gauge(
        "edgesync_agent_link_unacknowledged_messages",
        "Messages sent that the broker has not acknowledged.",
        link.unacknowledged as f64,
    );
    out.counter(
        "edgesync_agent_link_refused_messages_total",
        "Messages that the broker answered with an error.",
        link.not_taken,
    );
    out.counter(
        "edgesync_agent_link_unheard_messages_total",
        "Messages that nobody had subscribed to.",
        link.no_subscriber,
    );
    out.counter(
        "edgesync_agent_link_discarded_messages_total",
        "Messages thrown away because their connection ended; what matters is said again.",
        link.discarded,
    );
    out.counter(
        "edgesync_agent_link_rivals_total",
        "Signs of another client with the same identifier.",
        link.rivals,
    );
    optional(
        out,
        "edgesync_agent_link_round_trip_seconds",
        "The last measured time from a message to its acknowledgement by the broker.",
        link.round_trip.map(|time| time.as_secs_f64()),
    );
}

fn write_sync(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let sync = &numbers.sync;
    states(
        out,
        "edgesync_agent_session_status",
        "Where the session with the cloud stands: 1 for the phase of now.",
        "phase",
        PHASES.iter().map(|(phase, word)| (*word, *phase == numbers.phase)),
    );
    optional(
        out,
        "edgesync_agent_session_round_trip_seconds",
        "From the last Hello to the Welcome of the cloud.",
        numbers.welcome_round_trip.map(|time| time.as_secs_f64()),
    );
    out.counter("edgesync_agent_hellos_total", "Hellos said.", sync.hellos);
    out.counter(
        "edgesync_agent_foreign_session_frames_total",
        "Frames left aside because they were of another session.",
        sync.foreign_session,
    );
    out.counters(
        "edgesync_agent_bad_frames_total",
        "Frames that could not be read, by cause.",
        "cause",
        numbers.bad_frames.iter().map(|(cause, count)| (*cause, *count)),
    );
    out.gauge(
        "edgesync_agent_in_sync",
        "Whether the node holds what it is to hold and the cloud knows it.",
        flag(numbers.in_sync),
    );
    out.gauge(
        "edgesync_agent_sync_lag_seconds",
        "The age of the oldest change that the cloud has not confirmed; 0 if there is none.",
        numbers.lag.as_secs_f64(),
    );
    for (name, help, value) in [
        (
            "edgesync_agent_unconfirmed_changes",
            "Changes that the cloud has not confirmed.",
            numbers.unconfirmed,
        ),
        (
            "edgesync_agent_pending_objects",
            "Objects that the cloud has announced and not sent yet.",
            numbers.pending,
        ),
        ("edgesync_agent_held_back_objects", "Removals that the cloud holds back.", numbers.held_back),
        ("edgesync_agent_objects", "Objects held.", numbers.objects),
        (
            "edgesync_agent_rejected_objects",
            "Objects that are rejected now; 64 are remembered.",
            numbers.rejected_now,
        ),
    ] {
        out.gauge(name, help, value as f64);
    }
    out.counter("edgesync_agent_applied_changes_total", "Objects stored or removed.", sync.applied);
    out.counters(
        "edgesync_agent_rejections_total",
        "Objects rejected, by reason; each attempt counts.",
        "reason",
        numbers.rejections.by_reason(),
    );
    out.counter(
        "edgesync_agent_repeated_reports_total",
        "Reports said again because no Confirm came.",
        sync.repeated_reports,
    );
}

fn write_traffic(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let AgentNumbers { frames, kinds, .. } = numbers;
    let count = |one: &Transferred| one.count;
    let bytes = |one: &Transferred| one.bytes;
    transferred(out, "edgesync_agent_frames_total", "Frames by direction and type.", "type", frames, count);
    transferred(
        out,
        "edgesync_agent_frame_bytes_total",
        "Bytes of frames, as sent, by direction and type.",
        "type",
        frames,
        bytes,
    );
    transferred(
        out,
        "edgesync_agent_transferred_objects_total",
        "Objects in frames by direction and kind.",
        "kind",
        kinds,
        count,
    );
    transferred(
        out,
        "edgesync_agent_transferred_object_bytes_total",
        "Bytes of objects in frames, as JSON, by direction and kind.",
        "kind",
        kinds,
        bytes,
    );
    out.gauge(
        "edgesync_agent_traffic_today_bytes",
        "Bytes of TCP in both directions since the day (UTC) began.",
        numbers.traffic_today as f64,
    );
    optional(
        out,
        "edgesync_agent_traffic_budget_bytes",
        "The limit for them, if one is configured.",
        numbers.traffic_budget.map(|bytes| bytes as f64),
    );
    optional(
        out,
        "edgesync_agent_certificate_end_seconds",
        "When the certificate of the node ends, as Unix time.",
        numbers.certificate_end.map(|end| end as f64),
    );
}

fn transferred(
    out: &mut MetricsWriter<'_>,
    name: &'static str,
    help: &str,
    label: &str,
    all: &[Transferred],
    value: fn(&Transferred) -> u64,
) {
    out.family(name, Type::Counter, help);
    for one in all {
        out.sample("", &[("direction", one.direction), (label, &*one.label)], value(one) as f64);
    }
}

fn write_outbox(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let AgentNumbers { outbox, sync, .. } = numbers;
    let mut gauges = |name, help: &str, value: &dyn Fn(Lane) -> f64| {
        out.family(name, Type::Gauge, help);
        for lane in Lane::ALL {
            out.sample("", &[("lane", lane.name())], value(lane));
        }
    };
    gauges("edgesync_agent_outbox_items", "Items that wait for the cloud, by lane.", &|lane| {
        outbox.marks.rows.get(lane) as f64
    });
    gauges("edgesync_agent_outbox_bytes", "Bytes of these items.", &|lane| outbox.bytes.get(lane) as f64);
    gauges(
        "edgesync_agent_outbox_oldest_seconds",
        "The age of the oldest item that waits; 0 if there is none.",
        &|lane| numbers.outbox_ages.get(lane.index()).map_or(0.0, Duration::as_secs_f64),
    );
    out.counters(
        "edgesync_agent_outbox_dropped_items_total",
        "Items dropped: no room, or damaged.",
        "lane",
        Lane::ALL.map(|lane| (lane.name(), outbox.dropped.get(lane))),
    );
    for (name, help, value) in [
        ("edgesync_agent_uploads_sent_total", "Items of the outbox sent.", sync.uploads_sent),
        (
            "edgesync_agent_uploads_resent_total",
            "Items of the outbox sent again because no confirmation came.",
            sync.uploads_resent,
        ),
        (
            "edgesync_agent_uploads_refused_total",
            "Items of the outbox that the cloud refused.",
            sync.uploads_refused,
        ),
        ("edgesync_agent_leases_sent_total", "Renewals of the Lease sent.", sync.leases),
        (
            "edgesync_agent_events_emitted_total",
            "Events that the agent has made, repeats included.",
            numbers.events_emitted,
        ),
        (
            "edgesync_agent_events_suppressed_total",
            "Events that the agent has left out because there were too many.",
            numbers.events_suppressed,
        ),
    ] {
        out.counter(name, help, value);
    }
}

fn write_limits(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let AgentNumbers { limits, outbox, .. } = numbers;
    let outbox: u64 = Lane::ALL.iter().map(|lane| outbox.dropped.get(*lane)).sum();
    out.counters(
        "edgesync_agent_limits_hit_total",
        "How often a limit of the configuration, or a fixed one, was hit.",
        "limit",
        [
            ("object_size", limits.object_size),
            ("store_size", limits.store_size),
            ("link_queue", limits.link_queue),
            ("receiving", numbers.link.stalled),
            ("local_events", numbers.store.map_or(0, |store| store.events_dropped)),
            ("event_rate", numbers.events_suppressed),
            ("outbox", outbox),
        ],
    );
}

fn write_store(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let writing = &numbers.writing;
    states(
        out,
        "edgesync_agent_store_health",
        "Whether the store takes changes: 1 for the state of now.",
        "state",
        [
            ("works", matches!(writing, Writing::Works)),
            ("full", matches!(writing, Writing::Full)),
            ("fails", matches!(writing, Writing::Fails { .. })),
        ],
    );
    out.counter(
        "edgesync_agent_store_resets_total",
        "How often the database was damaged or lost, and made anew.",
        numbers.resets,
    );
    let size = |read: fn(&EdgeStats) -> u64| numbers.store.as_ref().map(|stats| read(stats) as f64);
    optional(
        out,
        "edgesync_agent_store_database_bytes",
        "Size of the database.",
        size(|stats| stats.database_bytes),
    );
    optional(
        out,
        "edgesync_agent_store_log_bytes",
        "Size of the write-ahead log.",
        size(|stats| stats.wal_bytes),
    );
    optional(
        out,
        "edgesync_agent_store_free_bytes",
        "Space within the database that is free for reuse.",
        size(|stats| stats.free_bytes),
    );
    let writer = numbers.store.map(|stats| stats.writer).unwrap_or_default();
    write_writer(&STORE, &writer, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::upload::Lanes;

    fn text(numbers: &AgentNumbers) -> String {
        let mut out = String::new();
        write(numbers, &mut MetricsWriter::new(&mut out));
        out
    }

    #[track_caller]
    fn shows(numbers: &AgentNumbers, lines: &[&str]) {
        let text = text(numbers);
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn each_rejection_counts_under_the_word_of_the_protocol() {
        let mut rejections = Rejections::default();
        for (reason, word) in Rejections::REASONS {
            assert_eq!(serde_json::to_value(reason).unwrap(), word);
            let before = rejections;
            rejections.add(reason);
            let grown: Vec<&str> = before
                .by_reason()
                .zip(rejections.by_reason())
                .filter(|(before, after)| before != after)
                .map(|(before, _)| before.0)
                .collect();
            assert_eq!(grown, [word]);
        }
    }

    #[test]
    fn exactly_one_phase_and_one_state_of_the_store_is_the_one_of_now() {
        for (phase, word) in PHASES {
            let numbers = AgentNumbers { phase, writing: Writing::Full, ..AgentNumbers::default() };
            let text = text(&numbers);
            let current = |family: &str| -> Vec<String> {
                let lines = text.lines().filter(|line| line.starts_with(family) && line.ends_with(" 1"));
                lines.map(str::to_owned).collect()
            };
            let expected = format!("edgesync_agent_session_status{{phase=\"{word}\"}} 1");
            assert_eq!(current("edgesync_agent_session_status{"), [expected]);
            assert_eq!(
                current("edgesync_agent_store_health{"),
                ["edgesync_agent_store_health{state=\"full\"} 1"]
            );
        }
    }

    #[test]
    fn what_was_never_measured_has_no_value() {
        let unknown = text(&AgentNumbers::default());
        let known = AgentNumbers {
            welcome_round_trip: Some(Duration::from_millis(1500)),
            traffic_budget: Some(1000),
            certificate_end: Some(2_000_000_000),
            store: Some(EdgeStats { free_bytes: 4096, ..EdgeStats::default() }),
            ..AgentNumbers::default()
        };
        for line in [
            "edgesync_agent_session_round_trip_seconds 1.5",
            "edgesync_agent_traffic_budget_bytes 1000",
            "edgesync_agent_certificate_end_seconds 2000000000",
            "edgesync_agent_store_free_bytes 4096",
        ] {
            let name = line.split(' ').next().unwrap();
            assert!(unknown.lines().all(|found| !found.starts_with(name)), "{unknown}");
            shows(&known, &[line]);
        }
    }

    #[test]
    fn lanes_and_limits_have_their_labels() {
        let lanes = Lanes { status: 1, events: 2, bulk: 3 };
        let mut numbers = AgentNumbers { events_suppressed: 5, ..AgentNumbers::default() };
        numbers.outbox.marks.rows = lanes;
        numbers.outbox.bytes = Lanes { bulk: 700, ..lanes };
        numbers.outbox.dropped = Lanes { status: 0, events: 1, bulk: 9 };
        numbers.outbox_ages = [Duration::ZERO, Duration::from_secs(60), Duration::from_millis(500)];
        numbers.limits.object_size = 4;
        shows(
            &numbers,
            &[
                "edgesync_agent_outbox_items{lane=\"events\"} 2",
                "edgesync_agent_outbox_bytes{lane=\"bulk\"} 700",
                "edgesync_agent_outbox_oldest_seconds{lane=\"events\"} 60",
                "edgesync_agent_outbox_oldest_seconds{lane=\"bulk\"} 0.5",
                "edgesync_agent_outbox_dropped_items_total{lane=\"bulk\"} 9",
                "edgesync_agent_limits_hit_total{limit=\"outbox\"} 10",
                "edgesync_agent_limits_hit_total{limit=\"event_rate\"} 5",
                "edgesync_agent_limits_hit_total{limit=\"object_size\"} 4",
            ],
        );
    }
}
