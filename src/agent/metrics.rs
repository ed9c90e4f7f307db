//! The agent's metrics for Prometheus, and their output at `/metrics`. Pure: the loop and
//! [`super::status`] collect the values on each request. `docs/metrics.md` describes each.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::store::{EdgeStats, OutboxState, Writing};
use edgesync_admin::agent::MeteredStatus;
use edgesync_api::{MetricsWriter, families};
use edgesync_kubeedge::{BridgeCounters, BridgeStatus};
use edgesync_protocol::change::RejectReason;
use edgesync_protocol::edge::{EdgeCounters, EdgePhase};
use edgesync_protocol::node::FilesSummary;
use edgesync_protocol::upload::{Lane, Lanes};
use edgesync_transport::link::{Endings, Traffic};

mod kubeedge;
mod lag;

use edgesync_runtime::metrics::{write_link, write_writer};
pub(super) use lag::Ages;

/// Values of the agent's metrics. Counters only grow while the agent runs.
#[derive(Clone, Debug, Default)]
pub struct AgentNumbers {
    /// Name of the node.
    pub node: String,
    /// The link.
    pub link: LinkNumbers,
    /// The session with the cloud.
    pub session: SessionNumbers,
    /// The held and the rejected objects.
    pub objects: ObjectNumbers,
    /// Frames, objects and bytes transferred.
    pub traffic: TrafficNumbers,
    /// End of the certificate, as Unix time; `None` until the node has joined.
    pub certificate_end: Option<i64>,
    /// The outbox.
    pub outbox: OutboxNumbers,
    /// Events of the agent.
    pub events: EventNumbers,
    /// Limits hit that have no other counter.
    pub limits: LimitsHit,
    /// The bridge to a CloudCore; `None` with another link.
    pub kubeedge: Option<(BridgeCounters, BridgeStatus)>,
    /// Results of the rules for files; `None` without rules.
    pub files: Option<FilesNumbers>,
    /// The database.
    pub store: StoreNumbers,
}

/// The link to the broker or CloudCore.
#[derive(Clone, Debug, Default)]
pub struct LinkNumbers {
    /// Whether it is connected.
    pub connected: bool,
    /// Bytes and messages.
    pub traffic: Traffic,
    /// Ended connections and failed attempts, by cause.
    pub endings: Endings,
}

/// The session with the cloud.
#[derive(Clone, Debug, Default)]
pub struct SessionNumbers {
    /// Its phase.
    pub phase: EdgePhase,
    /// Time from the last Hello to its Welcome.
    pub welcome_round_trip: Option<Duration>,
    /// Whether the node holds the desired objects and the cloud has confirmed it.
    pub in_sync: bool,
    /// Age of the oldest change that the cloud has not confirmed; zero if there is none.
    pub lag: Duration,
    /// Changes that the cloud has not yet confirmed.
    pub unconfirmed: u64,
    /// Objects that the cloud has announced and not yet sent.
    pub pending: u64,
    /// Deletions that the cloud holds back.
    pub held_back: u64,
    /// Counters of the sync machine.
    pub counters: EdgeCounters,
    /// Unreadable frames, by cause.
    pub bad_frames: BTreeMap<&'static str, u64>,
}

/// The held and the rejected objects.
#[derive(Clone, Debug, Default)]
pub struct ObjectNumbers {
    /// Objects held.
    pub held: u64,
    /// Objects rejected now, up to the number that is remembered.
    pub rejected_now: u64,
    /// Rejections by reason; each attempt counts.
    pub rejections: Rejections,
}

/// Frames, objects and bytes transferred.
#[derive(Clone, Debug, Default)]
pub struct TrafficNumbers {
    /// Frames by direction and type.
    pub frames: Vec<Transferred>,
    /// Objects in frames by direction and kind; the meter bounds the kinds.
    pub kinds: Vec<Transferred>,
    /// Bytes of TCP in both directions today (UTC).
    pub today: u64,
    /// Daily limit of these bytes; `None` if not configured.
    pub budget: Option<u64>,
    /// The metered link; `None` without limits for it.
    pub metered: Option<MeteredStatus>,
}

/// The outbox.
#[derive(Clone, Debug, Default)]
pub struct OutboxNumbers {
    /// Its state as of the last commit.
    pub state: OutboxState,
    /// Age of the oldest item of each lane, in the order of [`Lane::ALL`]; zero if it is empty.
    pub ages: [Duration; Lane::ALL.len()],
}

/// Events of the agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventNumbers {
    /// Events emitted, repeats included.
    pub emitted: u64,
    /// Events suppressed by the rate limit.
    pub suppressed: u64,
}

/// The database.
#[derive(Clone, Debug, Default)]
pub struct StoreNumbers {
    /// Sizes and counters; `None` if it cannot be read.
    pub stats: Option<EdgeStats>,
    /// Whether it accepts changes.
    pub writing: Writing,
    /// Losses of it or damage to it since the start.
    pub resets: u64,
}

/// Results of the rules for files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesNumbers {
    /// Rules, and objects by state.
    pub summary: FilesSummary,
    /// Reloads of programs after changes of their files.
    pub reloads: u64,
    /// Rollbacks of files after a failed check or reload.
    pub rollbacks: u64,
    /// Files that the rules have written and that exist.
    pub files: u64,
    /// Whether the helper completed its last request.
    pub works: bool,
    /// Holds in force.
    pub holds: u64,
}

/// Counts of rejected objects, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejections([u64; Self::REASONS.len()]);

impl Rejections {
    /// The reasons, each with its name in the protocol.
    const REASONS: [(RejectReason, &'static str); 5] = [
        (RejectReason::TooLarge, "TooLarge"),
        (RejectReason::Invalid, "Invalid"),
        (RejectReason::Stale, "Stale"),
        (RejectReason::StoreFull, "StoreFull"),
        (RejectReason::StoreUnavailable, "StoreUnavailable"),
    ];

    /// Counts one rejection; reasons without a row are ignored.
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

/// Counts of limits hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsHit {
    /// Objects larger than `sync.max_object`.
    pub object_size: u64,
    /// Objects that did not fit `store.max_size` or the disk.
    pub store_size: u64,
    /// Frames that found the link's queue full.
    pub link_queue: u64,
}

/// Traffic of the link under one label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transferred {
    /// `up` to the cloud, `down` from it.
    pub direction: &'static str,
    /// Type of frame, or kind of object.
    pub label: String,
    /// Number of frames or objects.
    pub count: u64,
    pub bytes: u64,
}

impl Transferred {
    fn counted(&self) -> ([&str; 2], u64) {
        ([self.direction, &self.label], self.count)
    }

    fn sized(&self) -> ([&str; 2], u64) {
        ([self.direction, &self.label], self.bytes)
    }
}

/// The names of the phases of a session.
const PHASES: [(EdgePhase, &str); 4] = [
    (EdgePhase::Down, "down"),
    (EdgePhase::Settling, "settling"),
    (EdgePhase::Greeting, "greeting"),
    (EdgePhase::Live, "live"),
];

/// Writes all metric families of the agent.
pub fn write(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    families! { out;
        Gauge edgesync_agent_build_info[node, version] = [([&*numbers.node, edgesync_runtime::VERSION], true)],
            "Node and version; always 1.";
    }
    write_link_state(numbers, out);
    write_sync(numbers, out);
    if let Some((counters, status)) = &numbers.kubeedge {
        kubeedge::write(counters, status, out);
    }
    write_traffic(numbers, out);
    write_outbox(numbers, out);
    if let Some(files) = &numbers.files {
        write_files(files, out);
    }
    write_store(numbers, out);
}

fn write_link_state(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let LinkNumbers { connected, traffic: link, endings } = &numbers.link;
    families! { out;
        Gauge edgesync_agent_link_connected = *connected,
            "Whether there is a connection to the broker or CloudCore.";
        Counter edgesync_agent_link_unheard_messages_total = link.no_subscriber,
            "Messages without a subscriber.";
        Counter edgesync_agent_link_discarded_messages_total = link.discarded,
            "Messages discarded because their connection ended.";
        Counter edgesync_agent_link_rivals_total = link.rivals,
            "Signs of another client with the same identifier.";
    }
    write_link("edgesync_agent_link", link, endings, out);
}

fn write_sync(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let AgentNumbers { session, objects, .. } = numbers;
    let sync = &session.counters;
    families! { out;
        Gauge edgesync_agent_session_status[phase] =
            PHASES.map(|(phase, word)| (word, phase == session.phase)),
            "Phase of the session with the cloud: 1 for the current one.";
        Gauge edgesync_agent_session_round_trip_seconds = session.welcome_round_trip,
            "Time from the last Hello to its Welcome.";
        Counter edgesync_agent_hellos_total = sync.hellos, "Hellos sent.";
        Counter edgesync_agent_foreign_session_frames_total = sync.foreign_session,
            "Frames ignored because they belonged to another session.";
        Counter edgesync_agent_bad_frames_total[cause] =
            session.bad_frames.iter().map(|(cause, count)| (*cause, *count)),
            "Frames that could not be read, by cause.";
        Gauge edgesync_agent_in_sync = session.in_sync,
            "Whether the node holds all desired objects, and the cloud has confirmed it.";
        Gauge edgesync_agent_sync_lag_seconds = session.lag,
            "The age of the oldest unconfirmed change; 0 if there is none.";
        Gauge edgesync_agent_unconfirmed_changes = session.unconfirmed,
            "Changes that the cloud has not yet confirmed.";
        Gauge edgesync_agent_pending_objects = session.pending,
            "Objects that the cloud has announced and that have not arrived.";
        Gauge edgesync_agent_held_back_objects = session.held_back, "Removals that the cloud holds back until an operator confirms them.";
        Gauge edgesync_agent_objects = objects.held, "Objects held.";
        Gauge edgesync_agent_rejected_objects = objects.rejected_now,
            "Objects currently rejected; at most 64 are tracked.";
        Counter edgesync_agent_applied_changes_total = sync.applied, "Objects stored or removed.";
        Counter edgesync_agent_patches_applied_total = sync.patched, "Objects stored by patches.";
        Counter edgesync_agent_patches_refused_total = sync.unpatched,
            "Patches that could not be applied; the cloud sent the whole object instead.";
        Counter edgesync_agent_rejections_total[reason] = objects.rejections.by_reason(),
            "Objects rejected, each attempt counted, by reason.";
        Counter edgesync_agent_repeated_reports_total = sync.repeated_reports,
            "Reports sent again because no Confirm came.";
    }
}

fn write_traffic(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let TrafficNumbers { frames, kinds, today, budget, metered } = &numbers.traffic;
    let budgets = metered.iter().flat_map(|metered| [("day", metered.day), ("month", metered.month)]);
    let budgets = budgets.filter_map(|(period, budget)| {
        let budget = budget?;
        Some((period, budget.limit.saturating_sub(budget.used)))
    });
    let waiting = metered.as_ref().map(|metered| metered.waiting);
    let waiting = waiting.map(|it| [("urgency", it.urgency), ("size", it.size), ("budget", it.budget)]);
    families! { out;
        Counter edgesync_agent_frames_total[direction, type] = frames.iter().map(Transferred::counted),
            "Frames by direction and type.";
        Counter edgesync_agent_frame_bytes_total[direction, type] = frames.iter().map(Transferred::sized),
            "Bytes of frames, as they were sent, by direction and type.";
        Counter edgesync_agent_transferred_objects_total[direction, kind] =
            kinds.iter().map(Transferred::counted),
            "Objects in frames by direction and kind.";
        Counter edgesync_agent_transferred_object_bytes_total[direction, kind] =
            kinds.iter().map(Transferred::sized),
            "Bytes of objects in frames, as JSON before compression, by direction and kind.";
        Gauge edgesync_agent_traffic_today_bytes = *today,
            "Bytes of TCP in both directions since the day (UTC) began.";
        Gauge edgesync_agent_traffic_budget_bytes = *budget,
            "The daily traffic budget, if one is configured.";
        Gauge edgesync_agent_metered_remaining_bytes[period] = budgets,
            "Bytes left of the hard budgets of metered links.";
        Gauge edgesync_agent_waiting_objects[reason] = waiting.into_iter().flatten(),
            "Objects that wait for the metered link, by what they wait for.";
        Gauge edgesync_agent_certificate_end_seconds = numbers.certificate_end,
            "When the certificate of the node expires, as Unix time.";
    }
}

fn write_outbox(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let AgentNumbers { outbox: OutboxNumbers { state: outbox, ages }, session, events, limits, .. } = numbers;
    let sync = &session.counters;
    let lanes = |lanes: &Lanes| Lane::ALL.map(|lane| (lane.name(), lanes.get(lane)));
    let dropped = lanes(&outbox.dropped);
    families! { out;
        Gauge edgesync_agent_outbox_items[lane] = lanes(&outbox.marks.rows),
            "Items queued for the cloud, by lane.";
        Gauge edgesync_agent_outbox_bytes[lane] = lanes(&outbox.bytes), "Bytes of queued items, by lane.";
        Gauge edgesync_agent_outbox_oldest_seconds[lane] =
            Lane::ALL.map(Lane::name).into_iter().zip(*ages),
            "The age of the oldest queued item; 0 if there is none.";
        Counter edgesync_agent_outbox_dropped_items_total[lane] = dropped,
            "Items dropped: outbox full, damaged, or sealed with a lost key.";
        Counter edgesync_agent_uploads_sent_total = sync.uploads_sent, "Items of the outbox sent.";
        Counter edgesync_agent_uploads_resent_total = sync.uploads_resent,
            "Items of the outbox sent again because no confirmation came.";
        Counter edgesync_agent_uploads_refused_total = sync.uploads_refused,
            "Items of the outbox that the cloud refused.";
        Counter edgesync_agent_leases_sent_total = sync.leases, "Renewals of the Lease sent.";
        Counter edgesync_agent_events_emitted_total = events.emitted,
            "Events created by the agent, repeats included.";
        Counter edgesync_agent_events_suppressed_total = events.suppressed,
            "Events dropped by the agent's rate limiter.";
        Counter edgesync_agent_limits_hit_total[limit] = [
            ("object_size", limits.object_size),
            ("store_size", limits.store_size),
            ("link_queue", limits.link_queue),
            ("receiving", numbers.link.traffic.stalled),
            ("local_events", numbers.store.stats.map_or(0, |store| store.events_dropped)),
            ("event_rate", events.suppressed),
            ("outbox", dropped.iter().map(|(_, count)| count).sum()),
        ], "Number of times a limit was hit.";
    }
}

fn write_files(files: &FilesNumbers, out: &mut MetricsWriter<'_>) {
    let summary = &files.summary;
    let objects = summary.objects.map(|counts| {
        [
            ("in_effect", counts.in_effect),
            ("not_in_effect", counts.not_in_effect),
            ("conflict", counts.conflicts),
            ("waiting", counts.waiting),
        ]
    });
    families! { out;
        Gauge edgesync_agent_files_rules = summary.rules, "Rules that write objects to files.";
        Gauge edgesync_agent_files_objects[state] = objects.into_iter().flatten(), "Objects selected by file rules, by state.";
        Gauge edgesync_agent_files_written = files.files, "Files written by rules and present.";
        Gauge edgesync_agent_files_holds = files.holds, "Holds of programs on the device on file rules.";
        Gauge edgesync_agent_files_helper_works = files.works,
            "Whether the last request to the helper succeeded.";
        Counter edgesync_agent_files_reloads_total = files.reloads,
            "Number of times programs were reloaded.";
        Counter edgesync_agent_files_rollbacks_total = files.rollbacks,
            "Number of times files were rolled back because a program rejected the new ones.";
    }
}

fn write_store(numbers: &AgentNumbers, out: &mut MetricsWriter<'_>) {
    let StoreNumbers { stats: store, writing, resets } = &numbers.store;
    families! { out;
        Gauge edgesync_agent_store_health[state] = [
            ("works", matches!(writing, Writing::Works)),
            ("full", matches!(writing, Writing::Full)),
            ("fails", matches!(writing, Writing::Fails { .. })),
        ], "Whether the store is writable: 1 for the current state.";
        Counter edgesync_agent_store_resets_total = *resets,
            "Number of times the database was damaged or lost, and rebuilt from the readable rows.";
        Gauge edgesync_agent_store_database_bytes = store.map(|stats| stats.database_bytes),
            "Size of the database.";
        Gauge edgesync_agent_store_log_bytes = store.map(|stats| stats.wal_bytes),
            "Size of the write-ahead log.";
        Gauge edgesync_agent_store_free_bytes = store.map(|stats| stats.free_bytes),
            "Space within the database that is free for reuse.";
    }
    write_writer("edgesync_agent_store", &store.map(|stats| stats.writer).unwrap_or_default(), out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_protocol::node::FilesCounts;

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
    fn rejections_count_under_the_protocols_reason() {
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
    fn exactly_one_phase_and_one_store_state_is_current() {
        for (phase, word) in PHASES {
            let mut numbers = AgentNumbers::default();
            numbers.session.phase = phase;
            numbers.store.writing = Writing::Full;
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
    fn values_never_measured_are_absent() {
        let unknown = text(&AgentNumbers::default());
        let mut known = AgentNumbers { certificate_end: Some(2_000_000_000), ..AgentNumbers::default() };
        known.session.welcome_round_trip = Some(Duration::from_millis(1500));
        known.traffic.budget = Some(1000);
        known.store.stats = Some(EdgeStats { free_bytes: 4096, ..EdgeStats::default() });
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

    /// The numbers were 0 until the helper had answered.
    #[test]
    fn files_are_not_counted_until_the_helper_reports() {
        let numbers = |objects| {
            let files = FilesNumbers {
                summary: FilesSummary { rules: 1, objects, ..FilesSummary::default() },
                works: true,
                ..FilesNumbers::default()
            };
            AgentNumbers { files: Some(files), ..AgentNumbers::default() }
        };
        let unknown = text(&numbers(None));
        assert!(unknown.contains("edgesync_agent_files_rules 1\n"), "{unknown}");
        assert!(!unknown.contains("edgesync_agent_files_objects{"), "{unknown}");
        let counts = FilesCounts { in_effect: 1, not_in_effect: 0, conflicts: 2, waiting: 3 };
        shows(
            &numbers(Some(counts)),
            &[
                "edgesync_agent_files_objects{state=\"in_effect\"} 1",
                "edgesync_agent_files_objects{state=\"not_in_effect\"} 0",
                "edgesync_agent_files_objects{state=\"conflict\"} 2",
                "edgesync_agent_files_objects{state=\"waiting\"} 3",
            ],
        );
    }

    #[test]
    fn lanes_and_limits_have_their_labels() {
        let lanes = Lanes { status: 1, events: 2, bulk: 3 };
        let mut numbers = AgentNumbers::default();
        numbers.events.suppressed = 5;
        numbers.outbox.state.marks.rows = lanes;
        numbers.outbox.state.bytes = Lanes { bulk: 700, ..lanes };
        numbers.outbox.state.dropped = Lanes { status: 0, events: 1, bulk: 9 };
        numbers.outbox.ages = [Duration::ZERO, Duration::from_secs(60), Duration::from_millis(500)];
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
