//! Numbers of the cloud side for Prometheus, and their families in `/metrics`. Pure: the fleet and
//! [`super::admin`] fill them in per request. `docs/metrics.md` describes each.

use std::collections::BTreeMap;
use std::time::Duration;

use edgesync_api::{MetricsWriter, families};
use edgesync_broker::BrokerTraffic;
use edgesync_cloud_store::EffectCounts;
use edgesync_protocol::cloud::CloudCounters;
use edgesync_runtime::metrics::{write_link, write_writer};
use edgesync_store::writer::WriterStats;
use edgesync_transport::link::{Endings, Traffic};
use edgesync_transport::shared::SharedTraffic;

/// Numbers behind the metrics of the cloud side. Counters only grow while it runs.
#[derive(Clone, Debug, Default)]
pub struct CloudNumbers {
    /// Sums over all nodes.
    pub nodes: Totals,
    /// Each node, if `nodes.metrics_per_node` is set.
    pub each: Vec<NodeNumbers>,
    /// Placeable objects in the store.
    pub objects: u64,
    /// Rejected frames, by cause.
    pub bad_frames: BTreeMap<&'static str, u64>,
    /// Items of outboxes that took effect.
    pub uploads_taken: u64,
    /// Items of outboxes that were refused.
    pub uploads_refused: u64,
    /// Renewals of Leases received.
    pub leases_renewed: u64,
    /// Leases written to the store: fewer, because only the last renewal of each is written.
    pub leases_written: u64,
    /// Events deleted after `nodes.event_ttl` without a change.
    pub events_expired: u64,
    /// Events of nodes evicted by newer ones beyond `nodes.max_events`.
    pub events_dropped: u64,
    /// Roll-outs of rules.
    pub rollouts: Vec<RolloutNumbers>,
    /// Bodies of objects in flight to nodes.
    pub bodies: BodyNumbers,
    /// Patches in memory.
    pub patches: PatchNumbers,
    /// Counters of the store's writer.
    pub store: WriterStats,
    /// Size of the database, in bytes.
    pub database_bytes: u64,
    /// Size of its write-ahead log, in bytes.
    pub log_bytes: u64,
    /// Requests to the cluster that stores the objects; `None` with a store of this process.
    pub cluster: Option<ClusterNumbers>,
    /// Counters of the embedded endpoint; `None` with an external broker.
    pub endpoint: Option<BrokerTraffic>,
    /// Counters of the port that services share; `None` if it is not configured.
    pub shared: Option<SharedTraffic>,
    /// Counters of the link to an external broker; `None` with the embedded endpoint.
    pub link: Option<(Traffic, Endings)>,
}

/// Numbers of the roll-out of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolloutNumbers {
    /// `NAME`, or `NAMESPACE/NAME`.
    pub rule: String,
    /// Number of the newest revision.
    pub revision: u64,
    /// Number of waves that it is open for.
    pub waves_open: u64,
    /// Whether the roll-out is paused.
    pub is_paused: bool,
    /// Whether something is wrong.
    pub is_degraded: bool,
    /// Nodes of open waves that have succeeded.
    pub good: u64,
    /// Those that have failed.
    pub failed: u64,
    /// Those that are waited for.
    pub awaited: u64,
    /// Those that are not waited for.
    pub away: u64,
}

/// Bodies of objects in flight to nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyNumbers {
    /// Number of bodies in memory.
    pub count: u64,
    /// Their size in bytes, which `sync.bodies` limits.
    pub bytes: u64,
    /// Bodies read from the store.
    pub read: u64,
    /// Bodies that were in memory, or being read, when another node needed them.
    pub shared: u64,
    /// Number of waits of nodes because `sync.bodies` was reached.
    pub delayed: u64,
}

/// Numbers of the patches in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchNumbers {
    /// Number of pairs of versions in memory.
    pub count: u64,
    /// Their size in bytes, which `sync.patches` limits.
    pub bytes: u64,
    /// Patches made.
    pub made: u64,
    /// Pairs of versions without a patch: the earlier one is unknown, or too little would be saved.
    pub skipped: u64,
    /// Pairs that were in memory, or being made, when another node needed them.
    pub shared: u64,
}

/// Requests of a replica to its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterNumbers {
    /// Requests on which callers wait, or that expire soon: Leases, Nodes, statuses, Events.
    pub urgent_requests: u64,
    /// Requests with lower priority: ObjectSyncs, the status of rules.
    pub background_requests: u64,
    /// Urgent requests that wait for the rate limiter.
    pub waiting_requests: u64,
    /// ObjectSyncs that wait to be written.
    pub waiting_syncs: u64,
    /// Whether this replica is the leader.
    pub is_leader: bool,
}

/// Sums over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Nodes by the state that `edgesync-cloud nodes` shows.
    pub states: BTreeMap<&'static str, u64>,
    /// Nodes with a connection to this replica.
    pub connected: u64,
    /// Nodes with a valid Lease.
    pub ready: u64,
    /// Nodes with an expired Lease.
    pub not_ready: u64,
    /// Longest time for which a node is overdue.
    pub overdue: Duration,
    /// Nodes that wait for their records to be read.
    pub waiting: u64,
    /// ObjectSync records: the held objects of all nodes.
    pub records: u64,
    /// Desired objects of all nodes.
    pub desired: u64,
    /// Objects still to be sent or removed.
    pub pending: u64,
    /// Objects that nodes currently reject.
    pub rejected: u64,
    /// Removals held back until an operator confirms them.
    pub held_back: u64,
    /// Objects that wait for the link of their node.
    pub waiting_for_link: u64,
    /// Objects under rules for files, by their state of effect.
    pub files: EffectCounts,
    /// Counters of the nodes' machines, including those of removed nodes.
    pub counters: CloudCounters,
}

/// Numbers of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeNumbers {
    pub name: String,
    /// The state that `edgesync-cloud nodes` shows.
    pub state: &'static str,
    /// Whether it is connected.
    pub connected: bool,
    /// Whether its Lease is valid; `None` if it has never renewed it.
    pub ready: Option<bool>,
    /// Whether it holds all desired objects at their latest version.
    pub in_sync: bool,
    /// Time for which it has not been in sync; zero if it is.
    pub lag: Duration,
    /// ObjectSync records of the node: the objects that it holds.
    pub records: u64,
    /// Objects that are placed on the node.
    pub desired: u64,
    /// Objects still to be sent or removed.
    pub pending: u64,
    /// Objects that it currently rejects.
    pub rejected: u64,
    /// Removals held back until an operator confirms them.
    pub held_back: u64,
    /// Objects that wait for the link of their node.
    pub waiting_for_link: u64,
    /// Objects under rules for files, by their state of effect.
    pub files: EffectCounts,
    /// Usual time from sending an object to its report.
    pub round_trip: Option<Duration>,
    /// Time since the last renewal of its Lease.
    pub lease_age: Option<Duration>,
    /// Time since its last report.
    pub report_age: Option<Duration>,
    /// Time since the check-in that it has missed.
    pub overdue: Option<Duration>,
    /// Counters of its machine.
    pub counters: CloudCounters,
}

/// States of nodes, so that each has a value even without a node in it.
const STATES: [&str; 10] = [
    "offline",
    "connecting",
    "repairing",
    "syncing",
    "waiting",
    "held back",
    "live",
    "in sync",
    "away",
    "overdue",
];

impl Totals {
    /// Adds a node to the sums.
    pub fn add(&mut self, node: &NodeNumbers) {
        *self.states.entry(node.state).or_default() += 1;
        self.connected += u64::from(node.connected);
        self.ready += u64::from(node.ready == Some(true));
        self.not_ready += u64::from(node.ready == Some(false));
        self.overdue = self.overdue.max(node.overdue.unwrap_or_default());
        self.records += node.records;
        self.desired += node.desired;
        self.pending += node.pending;
        self.rejected += node.rejected;
        self.held_back += node.held_back;
        self.waiting_for_link += node.waiting_for_link;
        self.files.in_effect += node.files.in_effect;
        self.files.not_in_effect += node.files.not_in_effect;
        self.files.conflicts += node.files.conflicts;
        self.files.waiting += node.files.waiting;
        add_counters(&mut self.counters, &node.counters);
    }
}

/// Adds the counters of a machine. Those of removed nodes must be kept: a decreasing sum looks like
/// a restart to Prometheus.
pub(crate) fn add_counters(sum: &mut CloudCounters, one: &CloudCounters) {
    let CloudCounters {
        hellos,
        sent,
        removals_sent,
        patches_sent,
        patches_refused,
        patch_bytes_saved,
        resent,
        reports,
        reported,
        rejected,
        repairs,
        foreign_session,
        over_quota,
        leases,
        uploads,
        upload_items,
        uploads_refused,
    } = one;
    sum.hellos += hellos;
    sum.sent += sent;
    sum.removals_sent += removals_sent;
    sum.patches_sent += patches_sent;
    sum.patches_refused += patches_refused;
    sum.patch_bytes_saved += patch_bytes_saved;
    sum.resent += resent;
    sum.reports += reports;
    sum.reported += reported;
    sum.rejected += rejected;
    sum.repairs += repairs;
    sum.foreign_session += foreign_session;
    sum.over_quota += over_quota;
    sum.leases += leases;
    sum.uploads += uploads;
    sum.upload_items += upload_items;
    sum.uploads_refused += uploads_refused;
}

/// Writes all families of the cloud side.
pub fn write(numbers: &CloudNumbers, out: &mut MetricsWriter<'_>) {
    let CloudNumbers { nodes, each, cluster, endpoint, shared, link, .. } = numbers;
    families! { out; Gauge edgesync_cloud_build_info[version] = [(edgesync_runtime::VERSION, true)], "Version; always 1."; }
    write_fleet(nodes, out);
    write_sync(numbers, out);
    if !each.is_empty() {
        write_each(each, out);
    }
    families! { out;
        Counter edgesync_cloud_uploads_taken_total = numbers.uploads_taken,
            "Outbox items applied.";
        Counter edgesync_cloud_uploads_refused_total = numbers.uploads_refused,
            "Outbox items refused.";
        Counter edgesync_cloud_leases_renewed_total = numbers.leases_renewed,
            "Renewals of Leases received.";
        Counter edgesync_cloud_leases_written_total = numbers.leases_written, "Leases written to the store.";
        Counter edgesync_cloud_events_expired_total = numbers.events_expired,
            "Events deleted after nodes.event_ttl.";
        Counter edgesync_cloud_events_dropped_total = numbers.events_dropped,
            "Events evicted for newer ones of the same node.";
        Gauge edgesync_cloud_store_database_bytes = numbers.database_bytes, "Size of the database.";
        Gauge edgesync_cloud_store_log_bytes = numbers.log_bytes, "Size of the write-ahead log.";
    }
    if !numbers.rollouts.is_empty() {
        write_rollouts(&numbers.rollouts, out);
    }
    write_writer("edgesync_cloud_store", &numbers.store, out);
    if let Some(cluster) = cluster {
        write_cluster(cluster, out);
    }
    if let Some(endpoint) = endpoint {
        write_endpoint(endpoint, out);
    }
    if let Some(shared) = shared {
        write_shared(shared, out);
    }
    if let Some((link, endings)) = link {
        write_link("edgesync_cloud_link", link, endings, out);
    }
}

fn write_fleet(nodes: &Totals, out: &mut MetricsWriter<'_>) {
    let others = nodes.states.keys().copied().filter(|state| !STATES.contains(state));
    let count = |state| nodes.states.get(state).copied().unwrap_or_default();
    let states = STATES.into_iter().chain(others).map(|state| (state.replace(' ', "_"), count(state)));
    families! { out;
        Gauge edgesync_cloud_nodes[state] = states, "Nodes by state.";
        Gauge edgesync_cloud_connected_nodes = nodes.connected, "Connected nodes.";
        Gauge edgesync_cloud_ready_nodes = nodes.ready, "Nodes with a valid Lease.";
        Gauge edgesync_cloud_not_ready_nodes = nodes.not_ready, "Nodes with an expired Lease.";
        Gauge edgesync_cloud_longest_overdue_seconds = nodes.overdue,
            "Longest time since the planned check-in of an overdue node; 0 if none is overdue.";
        Gauge edgesync_cloud_waiting_nodes = nodes.waiting,
            "Connected nodes that wait for memory for their differences.";
    }
}

fn write_sync(numbers: &CloudNumbers, out: &mut MetricsWriter<'_>) {
    let (nodes, counters) = (&numbers.nodes, &numbers.nodes.counters);
    families! { out;
        Gauge edgesync_cloud_objects = numbers.objects, "Objects of placeable kinds in the store.";
        Gauge edgesync_cloud_records = nodes.records, "ObjectSyncs of all nodes.";
        Gauge edgesync_cloud_desired_objects = nodes.desired, "Objects desired on all nodes.";
        Gauge edgesync_cloud_pending_objects = nodes.pending, "Objects still to be sent or removed.";
        Gauge edgesync_cloud_rejected_objects = nodes.rejected, "Objects that nodes currently reject.";
        Gauge edgesync_cloud_held_back_objects = nodes.held_back, "Removals held back until confirmed.";
        Gauge edgesync_cloud_waiting_objects = nodes.waiting_for_link,
            "Objects that wait for the metered link of their node.";
        Gauge edgesync_cloud_file_objects[state] = [
            ("in_effect", nodes.files.in_effect),
            ("not_in_effect", nodes.files.not_in_effect),
            ("conflict", nodes.files.conflicts),
            ("waiting", nodes.files.waiting),
        ], "Objects selected by file rules on nodes, by state.";
        Gauge edgesync_cloud_bodies = numbers.bodies.count, "Bodies of objects in memory, in flight to nodes.";
        Gauge edgesync_cloud_bodies_bytes = numbers.bodies.bytes, "Bytes of the bodies in memory.";
        Counter edgesync_cloud_bodies_read_total = numbers.bodies.read, "Bodies read from the store.";
        Counter edgesync_cloud_bodies_shared_total = numbers.bodies.shared,
            "Bodies that were in memory, or being read, when another node needed them.";
        Counter edgesync_cloud_bodies_delayed_total = numbers.bodies.delayed,
            "Waits of nodes because sync.bodies was reached.";
        Gauge edgesync_cloud_patches = numbers.patches.count, "Pairs of versions in memory, with or without a patch.";
        Gauge edgesync_cloud_patches_bytes = numbers.patches.bytes, "Bytes of the patches in memory.";
        Counter edgesync_cloud_patches_made_total = numbers.patches.made,
            "Patches made, one for each pair of versions.";
        Counter edgesync_cloud_patches_skipped_total = numbers.patches.skipped,
            "Pairs of versions without a patch: the earlier one is unknown, or too little would be saved.";
        Counter edgesync_cloud_patches_shared_total = numbers.patches.shared,
            "Needs of nodes for a patch that was in memory or being made.";
        Counter edgesync_cloud_hellos_total = counters.hellos, "Hellos received.";
        Counter edgesync_cloud_sent_objects_total = counters.sent, "Objects sent, each attempt counted.";
        Counter edgesync_cloud_sent_removals_total = counters.removals_sent,
            "Removals sent, each attempt counted.";
        Counter edgesync_cloud_sent_patches_total = counters.patches_sent,
            "Objects sent as patches, each attempt counted.";
        Counter edgesync_cloud_refused_patches_total = counters.patches_refused,
            "Patches that the node could not apply; the whole object was sent instead.";
        Counter edgesync_cloud_patches_saved_bytes_total = counters.patch_bytes_saved,
            "Bytes that sent patches saved, compared with the compressed objects.";
        Counter edgesync_cloud_resent_objects_total = counters.resent, "Objects resent because no report arrived.";
        Counter edgesync_cloud_reports_total = counters.reports, "Reports applied.";
        Counter edgesync_cloud_reported_objects_total = counters.reported, "Objects reported as held.";
        Counter edgesync_cloud_rejections_total = counters.rejected,
            "Objects reported as rejected, each attempt counted.";
        Counter edgesync_cloud_repairs_total = counters.repairs,
            "Inventories requested because records and held objects differed.";
        Counter edgesync_cloud_foreign_session_frames_total = counters.foreign_session,
            "Frames of another session, ignored.";
        Counter edgesync_cloud_quota_refusals_total = counters.over_quota,
            "Sessions ended because the node reported more unknown objects than sync.max_unknown.";
        Counter edgesync_cloud_bad_frames_total[cause] =
            numbers.bad_frames.iter().map(|(cause, count)| (*cause, *count)),
            "Invalid frames, by cause.";
    }
}

fn write_each(nodes: &[NodeNumbers], out: &mut MetricsWriter<'_>) {
    /// Yields a value of each node.
    fn each<V>(nodes: &[NodeNumbers], value: fn(&NodeNumbers) -> V) -> impl Iterator<Item = (&str, V)> {
        nodes.iter().map(move |node| (&*node.name, value(node)))
    }
    families! { out;
        Gauge edgesync_cloud_node_connected[node] = each(nodes, |node| node.connected),
            "Whether the node is connected.";
        Gauge edgesync_cloud_node_ready[node] = each(nodes, |node| node.ready),
            "Whether the Lease of the node is valid.";
        Gauge edgesync_cloud_node_in_sync[node] = each(nodes, |node| node.in_sync),
            "Whether the node holds all desired objects.";
        Gauge edgesync_cloud_node_lag_seconds[node] = each(nodes, |node| node.lag),
            "Time that the node has been out of sync; 0 if it is in sync.";
        Gauge edgesync_cloud_node_records[node] = each(nodes, |node| node.records), "ObjectSyncs of the node.";
        Gauge edgesync_cloud_node_desired_objects[node] = each(nodes, |node| node.desired),
            "Objects desired on the node.";
        Gauge edgesync_cloud_node_pending_objects[node] = each(nodes, |node| node.pending),
            "Objects still to be sent or removed.";
        Gauge edgesync_cloud_node_rejected_objects[node] = each(nodes, |node| node.rejected),
            "Objects that the node currently rejects.";
        Gauge edgesync_cloud_node_held_back_objects[node] = each(nodes, |node| node.held_back),
            "Removals held back until confirmed.";
        Gauge edgesync_cloud_node_waiting_objects[node] = each(nodes, |node| node.waiting_for_link),
            "Objects that wait for the metered link of the node.";
        Gauge edgesync_cloud_node_file_objects_in_effect[node] = each(nodes, |node| node.files.in_effect),
            "Objects selected by file rules on the node, and in effect.";
        Gauge edgesync_cloud_node_file_objects_not_in_effect[node] =
            each(nodes, |node| node.files.not_in_effect + node.files.conflicts + node.files.waiting),
            "Objects selected by file rules on the node, and not in effect.";
        Gauge edgesync_cloud_node_round_trip_seconds[node] = each(nodes, |node| node.round_trip),
            "Smoothed time from sending an object to its report.";
        Gauge edgesync_cloud_node_lease_age_seconds[node] = each(nodes, |node| node.lease_age),
            "Time since the last renewal of the Lease of the node.";
        Gauge edgesync_cloud_node_report_age_seconds[node] = each(nodes, |node| node.report_age),
            "Time since the last report of the node.";
    }
}

fn write_rollouts(rollouts: &[RolloutNumbers], out: &mut MetricsWriter<'_>) {
    /// Yields a value of each roll-out.
    fn each<V>(
        rollouts: &[RolloutNumbers],
        value: fn(&RolloutNumbers) -> V,
    ) -> impl Iterator<Item = (&str, V)> {
        rollouts.iter().map(move |rollout| (&*rollout.rule, value(rollout)))
    }
    families! { out;
        Gauge edgesync_cloud_rollout_revision[rule] = each(rollouts, |rollout| rollout.revision),
            "Number of the newest revision of a rule with a roll-out.";
        Gauge edgesync_cloud_rollout_open_waves[rule] = each(rollouts, |rollout| rollout.waves_open),
            "Number of waves that the newest revision is open for.";
        Gauge edgesync_cloud_rollout_paused[rule] = each(rollouts, |rollout| rollout.is_paused),
            "Whether the roll-out is paused.";
        Gauge edgesync_cloud_rollout_degraded[rule] = each(rollouts, |rollout| rollout.is_degraded),
            "Whether something is wrong with the roll-out.";
        Gauge edgesync_cloud_rollout_good_nodes[rule] = each(rollouts, |rollout| rollout.good),
            "Nodes of open waves that have succeeded.";
        Gauge edgesync_cloud_rollout_failed_nodes[rule] = each(rollouts, |rollout| rollout.failed),
            "Nodes of open waves that have failed.";
        Gauge edgesync_cloud_rollout_awaited_nodes[rule] = each(rollouts, |rollout| rollout.awaited),
            "Nodes of open waves that are waited for.";
        Gauge edgesync_cloud_rollout_away_nodes[rule] = each(rollouts, |rollout| rollout.away),
            "Nodes of open waves that are not waited for.";
    }
}

fn write_cluster(cluster: &ClusterNumbers, out: &mut MetricsWriter<'_>) {
    families! { out;
        Counter edgesync_cloud_cluster_requests_total[urgency] =
            [("urgent", cluster.urgent_requests), ("background", cluster.background_requests)],
            "Requests to the cluster, except lists and watches.";
        Gauge edgesync_cloud_cluster_waiting_requests = cluster.waiting_requests,
            "Urgent requests queued by the rate limiter.";
        Gauge edgesync_cloud_cluster_waiting_object_syncs = cluster.waiting_syncs,
            "ObjectSyncs queued for writing.";
        Gauge edgesync_cloud_cluster_leader = cluster.is_leader, "Whether this replica is the leader.";
    }
}

fn write_endpoint(endpoint: &BrokerTraffic, out: &mut MetricsWriter<'_>) {
    families! { out;
        Gauge edgesync_cloud_endpoint_connections = endpoint.open,
            "Nodes connected to the embedded MQTT endpoint.";
        Counter edgesync_cloud_endpoint_connections_ended_total[cause] = [
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
        ], "Connections refused or ended by the endpoint, by cause.";
        Counter edgesync_cloud_endpoint_accepted_total = endpoint.accepted, "TCP connections accepted.";
        Counter edgesync_cloud_endpoint_connected_total = endpoint.connected, "MQTT connections made.";
        Counter edgesync_cloud_endpoint_unauthorized_total = endpoint.unauthorized,
            "Publishes and subscriptions that were not allowed.";
        Counter edgesync_cloud_endpoint_received_messages_total = endpoint.messages_in,
            "MQTT messages from nodes.";
        Counter edgesync_cloud_endpoint_sent_messages_total = endpoint.messages_out,
            "MQTT messages to nodes.";
        Counter edgesync_cloud_endpoint_received_bytes_total = endpoint.bytes_in, "Bytes received over TCP.";
        Counter edgesync_cloud_endpoint_sent_bytes_total = endpoint.bytes_out, "Bytes sent over TCP.";
        Counter edgesync_cloud_endpoint_queue_full_total = endpoint.queue_full,
            "Messages delayed because the queue of their node was full.";
    }
}

fn write_shared(shared: &SharedTraffic, out: &mut MetricsWriter<'_>) {
    families! { out;
        Counter edgesync_cloud_shared_accepted_total = shared.accepted, "TCP connections to listen.address.";
        Counter edgesync_cloud_shared_passed_total = shared.passed, "Connections passed to their service.";
        Counter edgesync_cloud_shared_refused_total = shared.refused,
            "Connections refused before their service was known.";
        Counter edgesync_cloud_shared_over_limit_total = shared.over_limit,
            "Connections closed because too many waited.";
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
    fn totals_sum_all_nodes() {
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
    fn per_node_metrics_are_written_only_if_given() {
        let all = text(&CloudNumbers::default());
        assert!(!all.contains("edgesync_cloud_node_"), "{all}");
        let numbers = CloudNumbers {
            each: vec![
                NodeNumbers { ready: Some(false), lag: Duration::from_secs(90), ..node("a", "offline") },
                node("b", "offline"),
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
