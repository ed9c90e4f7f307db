//! The numbers of the cloud side for Prometheus: what they are, and how `/metrics` shows them. Pure; the fleet and
//! [`super::admin`] fill them in when somebody asks. `docs/metrics.md` describes each.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{MetricsType as Type, MetricsWriter};
use crate::broker::BrokerTraffic;
use crate::link::{Cause, Endings, Traffic};
use crate::process::metrics::{WriterFamilies, write_writer};
use crate::store::writer::WriterStats;
use crate::sync::cloud::CloudCounters;

/// What the metrics of the cloud side show. Numbers of things that happened only grow while it runs.
#[derive(Clone, Debug, Default)]
pub struct CloudNumbers {
    /// All nodes put together.
    pub nodes: Totals,
    /// Each node, if the configuration wants to see them (`nodes.metrics_per_node`).
    pub each: Vec<NodeNumbers>,
    /// Objects in the store that can be placed on nodes.
    pub objects: u64,
    /// Frames that could not be read, by cause.
    pub bad_frames: BTreeMap<&'static str, u64>,
    /// Items of the nodes' outboxes that have taken effect.
    pub uploads_taken: u64,
    /// Items of the nodes' outboxes that were refused.
    pub uploads_refused: u64,
    /// Renewals of Leases that arrived.
    pub leases_renewed: u64,
    /// Leases written to the store: fewer, because only the last renewal of each counts.
    pub leases_written: u64,
    /// Events deleted because nobody had changed them for `nodes.event_ttl`.
    pub events_expired: u64,
    /// What the store's writer has done.
    pub store: WriterStats,
    /// The size of the database.
    pub database_bytes: u64,
    /// The size of its write-ahead log.
    pub log_bytes: u64,
    /// What the embedded endpoint counts; none with an external broker.
    pub endpoint: Option<BrokerTraffic>,
    /// What the link to an external broker counts; none with the embedded endpoint.
    pub link: Option<(Traffic, Endings)>,
}

/// All nodes put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Nodes by the state that `edgesync-cloud nodes` shows.
    pub states: BTreeMap<&'static str, u64>,
    /// Nodes that are connected.
    pub connected: u64,
    /// Nodes whose Lease is good.
    pub ready: u64,
    /// Nodes whose Lease has run out.
    pub not_ready: u64,
    /// ObjectSync records: what the nodes hold.
    pub records: u64,
    /// What the nodes are to hold.
    pub desired: u64,
    /// What is still to be sent or removed.
    pub pending: u64,
    /// Objects that nodes reject now.
    pub rejected: u64,
    /// Removals that are held back.
    pub held_back: u64,
    /// What the machines of the nodes count, and counted of nodes that are gone.
    pub counters: CloudCounters,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeNumbers {
    /// Its name.
    pub name: String,
    /// The state that `edgesync-cloud nodes` shows.
    pub state: &'static str,
    /// Whether it is connected.
    pub connected: bool,
    /// Whether its Lease is good; none if it has never renewed it.
    pub ready: Option<bool>,
    /// Whether it holds what it is to hold.
    pub in_sync: bool,
    /// For how long it has not been in sync; zero if it is.
    pub lag: Duration,
    /// What it holds.
    pub records: u64,
    /// What it is to hold.
    pub desired: u64,
    /// What is still to be sent or removed.
    pub pending: u64,
    /// Objects that it rejects now.
    pub rejected: u64,
    /// Removals that are held back.
    pub held_back: u64,
    /// How long it usually takes from an object that is sent to its report.
    pub round_trip: Option<Duration>,
    /// The time since its Lease was renewed last.
    pub lease_age: Option<Duration>,
    /// The time since its last report.
    pub report_age: Option<Duration>,
    /// What its machine counts.
    pub counters: CloudCounters,
}

/// The states in which nodes can be, so that each has a value even when no node is in it.
const STATES: [&str; 8] =
    ["loading", "offline", "connecting", "repairing", "syncing", "held back", "live", "in sync"];

impl Totals {
    /// Adds a node.
    pub fn add(&mut self, node: &NodeNumbers) {
        *self.states.entry(node.state).or_default() += 1;
        self.connected += u64::from(node.connected);
        self.ready += u64::from(node.ready == Some(true));
        self.not_ready += u64::from(node.ready == Some(false));
        self.records += node.records;
        self.desired += node.desired;
        self.pending += node.pending;
        self.rejected += node.rejected;
        self.held_back += node.held_back;
        add_counters(&mut self.counters, &node.counters);
    }
}

/// Adds what a machine has counted. Of a node that goes the counters are to be kept: sums that fall would look like
/// a restart.
pub fn add_counters(sum: &mut CloudCounters, one: &CloudCounters) {
    let CloudCounters {
        hellos,
        sent,
        removals_sent,
        resent,
        reports,
        reported,
        rejected,
        repairs,
        foreign_session,
        leases,
        uploads,
        upload_items,
        uploads_refused,
    } = one;
    sum.hellos += hellos;
    sum.sent += sent;
    sum.removals_sent += removals_sent;
    sum.resent += resent;
    sum.reports += reports;
    sum.reported += reported;
    sum.rejected += rejected;
    sum.repairs += repairs;
    sum.foreign_session += foreign_session;
    sum.leases += leases;
    sum.uploads += uploads;
    sum.upload_items += upload_items;
    sum.uploads_refused += uploads_refused;
}

/// The store of the cloud side.
const STORE: WriterFamilies = WriterFamilies {
    commits: "edgesync_cloud_store_commits_total",
    durations: "edgesync_cloud_store_commit_duration_seconds",
    fsyncs: "edgesync_cloud_store_fsyncs_total",
    jobs: "edgesync_cloud_store_jobs_total",
    rows: "edgesync_cloud_store_written_rows_total",
    failures: "edgesync_cloud_store_failed_transactions_total",
    checkpoints: "edgesync_cloud_store_checkpoints_total",
};

/// Writes all families of the cloud side.
pub fn write(numbers: &CloudNumbers, out: &mut MetricsWriter<'_>) {
    out.family("edgesync_cloud_build_info", Type::Gauge, "Version; always 1.");
    out.sample("", &[("version", crate::VERSION)], 1.0);
    write_fleet(&numbers.nodes, out);
    write_sync(numbers, out);
    write_each(&numbers.each, out);
    write_upstream(numbers, out);
    write_store(numbers, out);
    write_endpoint(numbers.endpoint.as_ref(), out);
    write_link(numbers.link.as_ref(), out);
}

fn write_fleet(nodes: &Totals, out: &mut MetricsWriter<'_>) {
    out.family("edgesync_cloud_nodes", Type::Gauge, "Nodes by state.");
    let others = nodes.states.keys().copied().filter(|state| !STATES.contains(state));
    for state in STATES.into_iter().chain(others) {
        let count = nodes.states.get(state).copied().unwrap_or_default();
        out.sample("", &[("state", &state.replace(' ', "_"))], count as f64);
    }
    for (name, help, value) in [
        ("edgesync_cloud_connected_nodes", "Nodes that are connected.", nodes.connected),
        ("edgesync_cloud_ready_nodes", "Nodes whose Lease is good.", nodes.ready),
        ("edgesync_cloud_not_ready_nodes", "Nodes whose Lease has run out.", nodes.not_ready),
    ] {
        out.gauge(name, help, value as f64);
    }
}

fn write_sync(numbers: &CloudNumbers, out: &mut MetricsWriter<'_>) {
    let (nodes, counters) = (&numbers.nodes, &numbers.nodes.counters);
    for (name, help, value) in [
        ("edgesync_cloud_objects", "Objects in the store that can be placed on nodes.", numbers.objects),
        ("edgesync_cloud_records", "ObjectSync records: what all nodes hold.", nodes.records),
        ("edgesync_cloud_desired_objects", "What all nodes are to hold.", nodes.desired),
        ("edgesync_cloud_pending_objects", "What is still to be sent or removed.", nodes.pending),
        ("edgesync_cloud_rejected_objects", "Objects that nodes reject now.", nodes.rejected),
        ("edgesync_cloud_held_back_objects", "Removals that wait to be confirmed.", nodes.held_back),
    ] {
        out.gauge(name, help, value as f64);
    }
    for (name, help, value) in [
        ("edgesync_cloud_hellos_total", "Hellos received.", counters.hellos),
        ("edgesync_cloud_sent_objects_total", "Objects sent; each attempt counts.", counters.sent),
        ("edgesync_cloud_sent_removals_total", "Removals sent; each attempt counts.", counters.removals_sent),
        ("edgesync_cloud_resent_objects_total", "Objects sent again: no report came.", counters.resent),
        ("edgesync_cloud_reports_total", "Reports taken.", counters.reports),
        ("edgesync_cloud_reported_objects_total", "Objects reported as held.", counters.reported),
        (
            "edgesync_cloud_rejections_total",
            "Objects reported as rejected; each attempt counts.",
            counters.rejected,
        ),
        (
            "edgesync_cloud_repairs_total",
            "Inventories asked for because records and node differed.",
            counters.repairs,
        ),
        (
            "edgesync_cloud_foreign_session_frames_total",
            "Frames left aside because they were of another session.",
            counters.foreign_session,
        ),
    ] {
        out.counter(name, help, value);
    }
    out.counters(
        "edgesync_cloud_bad_frames_total",
        "Frames that could not be read, by cause.",
        "cause",
        numbers.bad_frames.iter().map(|(cause, count)| (*cause, *count)),
    );
}

/// A value of a node, if it has one.
type NodeValue = fn(&NodeNumbers) -> Option<f64>;

/// The gauges of each node.
const EACH: [(&str, &str, NodeValue); 12] = [
    ("edgesync_cloud_node_connected", "Whether the node is connected.", |node| flag(node.connected)),
    ("edgesync_cloud_node_ready", "Whether the Lease of the node is good.", |node| flag(node.ready?)),
    ("edgesync_cloud_node_in_sync", "Whether the node holds what it is to hold.", |node| flag(node.in_sync)),
    ("edgesync_cloud_node_lag_seconds", "For how long the node has not been in sync; 0 if it is.", |node| {
        Some(node.lag.as_secs_f64())
    }),
    ("edgesync_cloud_node_records", "What the node holds.", |node| Some(node.records as f64)),
    ("edgesync_cloud_node_desired_objects", "What the node is to hold.", |node| Some(node.desired as f64)),
    ("edgesync_cloud_node_pending_objects", "What is still to be sent or removed.", |node| {
        Some(node.pending as f64)
    }),
    ("edgesync_cloud_node_rejected_objects", "Objects that the node rejects now.", |node| {
        Some(node.rejected as f64)
    }),
    ("edgesync_cloud_node_held_back_objects", "Removals that wait to be confirmed.", |node| {
        Some(node.held_back as f64)
    }),
    ("edgesync_cloud_node_round_trip_seconds", "From an object that is sent to its report.", |node| {
        node.round_trip.map(|time| time.as_secs_f64())
    }),
    ("edgesync_cloud_node_lease_age_seconds", "Since the Lease of the node was renewed.", |node| {
        node.lease_age.map(|age| age.as_secs_f64())
    }),
    ("edgesync_cloud_node_report_age_seconds", "Since the last report of the node.", |node| {
        node.report_age.map(|age| age.as_secs_f64())
    }),
];

#[expect(clippy::unnecessary_wraps, reason = "one of the values in a table, of which others may be missing")]
fn flag(value: bool) -> Option<f64> {
    Some(f64::from(u8::from(value)))
}

fn write_each(nodes: &[NodeNumbers], out: &mut MetricsWriter<'_>) {
    if nodes.is_empty() {
        return;
    }
    for (name, help, value) in EACH {
        out.family(name, Type::Gauge, help);
        for node in nodes {
            if let Some(value) = value(node) {
                out.sample("", &[("node", &*node.name)], value);
            }
        }
    }
}

fn write_upstream(numbers: &CloudNumbers, out: &mut MetricsWriter<'_>) {
    for (name, help, value) in [
        (
            "edgesync_cloud_uploads_taken_total",
            "Items of outboxes that have taken effect.",
            numbers.uploads_taken,
        ),
        (
            "edgesync_cloud_uploads_refused_total",
            "Items of outboxes that were refused.",
            numbers.uploads_refused,
        ),
        ("edgesync_cloud_leases_renewed_total", "Renewals of Leases that arrived.", numbers.leases_renewed),
        ("edgesync_cloud_leases_written_total", "Leases written to the store.", numbers.leases_written),
        (
            "edgesync_cloud_events_expired_total",
            "Events deleted after their time to live.",
            numbers.events_expired,
        ),
    ] {
        out.counter(name, help, value);
    }
}

fn write_store(numbers: &CloudNumbers, out: &mut MetricsWriter<'_>) {
    out.gauge("edgesync_cloud_store_database_bytes", "Size of the database.", numbers.database_bytes as f64);
    out.gauge("edgesync_cloud_store_log_bytes", "Size of the write-ahead log.", numbers.log_bytes as f64);
    write_writer(&STORE, &numbers.store, out);
}

fn write_endpoint(endpoint: Option<&BrokerTraffic>, out: &mut MetricsWriter<'_>) {
    let Some(endpoint) = endpoint else { return };
    out.gauge(
        "edgesync_cloud_endpoint_connections",
        "Nodes connected to the embedded MQTT endpoint.",
        endpoint.open as f64,
    );
    out.counters(
        "edgesync_cloud_endpoint_connections_ended_total",
        "Connections that were refused or ended by the endpoint, by cause.",
        "cause",
        [
            ("over_limit", endpoint.over_limit),
            ("refused", endpoint.refused),
            ("malformed", endpoint.malformed),
            ("taken_over", endpoint.taken_over),
            ("not_reading", endpoint.not_reading),
            ("silent", endpoint.silent),
            ("tls", endpoint.tls),
            ("identity", endpoint.identity),
            ("expired", endpoint.expired),
            ("revoked", endpoint.revoked),
        ],
    );
    for (name, help, value) in [
        ("edgesync_cloud_endpoint_accepted_total", "TCP connections accepted.", endpoint.accepted),
        ("edgesync_cloud_endpoint_connected_total", "MQTT connections made.", endpoint.connected),
        (
            "edgesync_cloud_endpoint_unauthorized_total",
            "Messages and subscriptions that were not allowed.",
            endpoint.unauthorized,
        ),
        (
            "edgesync_cloud_endpoint_received_messages_total",
            "MQTT messages from nodes.",
            endpoint.messages_in,
        ),
        ("edgesync_cloud_endpoint_sent_messages_total", "MQTT messages to nodes.", endpoint.messages_out),
        ("edgesync_cloud_endpoint_received_bytes_total", "Bytes taken from TCP.", endpoint.bytes_in),
        ("edgesync_cloud_endpoint_sent_bytes_total", "Bytes handed to TCP.", endpoint.bytes_out),
        (
            "edgesync_cloud_endpoint_queue_full_total",
            "Messages that had to wait because the queue of their node was full.",
            endpoint.queue_full,
        ),
    ] {
        out.counter(name, help, value);
    }
}

fn write_link(link: Option<&(Traffic, Endings)>, out: &mut MetricsWriter<'_>) {
    let Some((link, endings)) = link else { return };
    out.counters(
        "edgesync_cloud_link_disconnects_total",
        "Connections to the external broker lost, by cause.",
        "cause",
        Cause::LABELS.into_iter().zip(endings.lost),
    );
    out.counters(
        "edgesync_cloud_link_failed_attempts_total",
        "Attempts that led to no connection, by cause.",
        "cause",
        Cause::LABELS.into_iter().zip(endings.failed),
    );
    for (name, help, value) in [
        ("edgesync_cloud_link_connections_total", "Connections made.", link.connected),
        ("edgesync_cloud_link_received_messages_total", "MQTT messages received.", link.messages_in),
        ("edgesync_cloud_link_sent_messages_total", "MQTT messages sent.", link.messages_out),
        ("edgesync_cloud_link_received_bytes_total", "Bytes taken from TCP.", link.bytes_in),
        ("edgesync_cloud_link_sent_bytes_total", "Bytes handed to TCP.", link.bytes_out),
        (
            "edgesync_cloud_link_refused_messages_total",
            "Messages that the broker answered with an error.",
            link.not_taken,
        ),
    ] {
        out.counter(name, help, value);
    }
    out.gauge(
        "edgesync_cloud_link_unacknowledged_messages",
        "Messages sent that the broker has not acknowledged.",
        link.unacknowledged as f64,
    );
    out.family(
        "edgesync_cloud_link_round_trip_seconds",
        Type::Gauge,
        "The last measured time from a message to its acknowledgement by the broker.",
    );
    if let Some(time) = link.round_trip {
        out.sample("", &[], time.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, state: &'static str) -> NodeNumbers {
        NodeNumbers { name: name.into(), state, pending: 3, ..NodeNumbers::default() }
    }

    fn text(numbers: &CloudNumbers) -> String {
        let mut out = String::new();
        write(numbers, &mut MetricsWriter::new(&mut out));
        out
    }

    #[test]
    fn nodes_add_up() {
        let counters = CloudCounters { resent: 2, ..CloudCounters::default() };
        let mut totals = Totals::default();
        totals.add(&NodeNumbers { ready: Some(true), connected: true, counters, ..node("a", "in sync") });
        totals.add(&NodeNumbers { ready: Some(false), counters, ..node("b", "offline") });
        totals.add(&node("c", "offline"));
        let text = text(&CloudNumbers { nodes: totals, ..CloudNumbers::default() });
        for line in [
            "edgesync_cloud_nodes{state=\"in_sync\"} 1",
            "edgesync_cloud_nodes{state=\"offline\"} 2",
            "edgesync_cloud_nodes{state=\"held_back\"} 0",
            "edgesync_cloud_connected_nodes 1",
            "edgesync_cloud_ready_nodes 1",
            "edgesync_cloud_not_ready_nodes 1",
            "edgesync_cloud_pending_objects 9",
            "edgesync_cloud_resent_objects_total 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn nodes_have_values_of_their_own_only_if_they_are_given() {
        let all = text(&CloudNumbers::default());
        assert!(!all.contains("edgesync_cloud_node_"), "{all}");
        let numbers = CloudNumbers {
            each: vec![
                NodeNumbers { ready: Some(false), lag: Duration::from_secs(90), ..node("a", "offline") },
                node("b", "loading"),
            ],
            ..CloudNumbers::default()
        };
        let each = text(&numbers);
        let lines: Vec<&str> = each.lines().filter(|line| line.starts_with("edgesync_cloud_node_")).collect();
        for line in [
            "edgesync_cloud_node_ready{node=\"a\"} 0",
            "edgesync_cloud_node_lag_seconds{node=\"a\"} 90",
            "edgesync_cloud_node_pending_objects{node=\"b\"} 3",
        ] {
            assert!(lines.contains(&line), "{line} is missing in {lines:?}");
        }
        let unknown = lines.iter().any(|line| line.starts_with("edgesync_cloud_node_ready{node=\"b\"}"));
        assert!(!unknown, "a node that has never renewed its Lease is neither");
    }
}
