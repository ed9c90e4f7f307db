//! Checks the metrics against the conventions of Prometheus, the dashboard and the alerts.
// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use edgesync_testkit::serving;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use edgesync::agent::metrics::{
    self as agent, AgentNumbers, EventNumbers, FilesNumbers, LimitsHit, LinkNumbers, ObjectNumbers,
    OutboxNumbers, Rejections, SessionNumbers, StoreNumbers, TrafficNumbers, Transferred,
};
use edgesync::store::{EdgeStats, OutboxState, Writing};
use edgesync_admin::agent::{BudgetStatus, MeteredStatus, WaitingForLink};
use edgesync_api::{Limits, MetricsWriter};
use edgesync_broker::BrokerTraffic;
use edgesync_cloud_store::EffectCounts;
use edgesync_fleet::metrics::{
    self as cloud, BodyNumbers, CloudNumbers, ClusterNumbers, NodeNumbers, PatchNumbers, RolloutNumbers,
};
use edgesync_kubeedge::{BridgeCounters, BridgeStatus, DynamicController};
use edgesync_object::urgency::Urgency;
use edgesync_protocol::change::RejectReason;
use edgesync_protocol::cloud::CloudCounters;
use edgesync_protocol::edge::{EdgeCounters, EdgePhase, OutboxMarks};
use edgesync_protocol::node::{FilesCounts, FilesSummary};
use edgesync_protocol::upload::Lanes;
use edgesync_store::writer::WriterStats;
use edgesync_transport::link::{Endings, Traffic};
use edgesync_transport::shared::SharedTraffic;
use serde_json::Value;
use serving::{Running, config_map, send};

/// A metric family, written or documented.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
}

type Families = BTreeMap<String, Family>;

fn read(path: &str) -> String {
    fs::read_to_string(edgesync_testkit::programs::root().join(path)).unwrap()
}

/// Parses Prometheus' text format; each family must be described once, before its samples.
fn families(text: &str) -> Families {
    let mut found = Families::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap();
            let family = Family { kind: kind.to_owned(), labels: BTreeSet::new() };
            assert!(found.insert(name.to_owned(), family).is_none(), "{name} is written twice");
            current = name.to_owned();
        } else if !line.starts_with('#') {
            let end = line.find(['{', ' ']).unwrap();
            let suffix =
                line[..end].strip_prefix(&*current).unwrap_or_else(|| panic!("{line} is not of {current}"));
            assert!(["", "_bucket", "_sum", "_count"].contains(&suffix), "{line}");
            let labels = &mut found.get_mut(&current).unwrap().labels;
            labels.extend(labels_of(&line[end..]).into_iter().filter(|label| label != "le"));
        }
    }
    found
}

/// Returns the label names of a sample, from the text after its name.
fn labels_of(rest: &str) -> Vec<String> {
    let Some((labels, _)) = rest.strip_prefix('{').and_then(|rest| rest.rsplit_once('}')) else {
        return Vec::new();
    };
    labels.split("\",").filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned()).collect()
}

/// Distinct counters of a link.
fn traffic() -> Traffic {
    Traffic {
        bytes_in: 101,
        bytes_out: 102,
        messages_in: 103,
        messages_out: 104,
        rejected: 105,
        no_subscriber: 106,
        unacknowledged: 107,
        discarded: 108,
        connected: 109,
        disconnected: 110,
        stalled: 111,
        rivals: 112,
        round_trip: Some(Duration::from_millis(40)),
    }
}

/// Distinct counters of the reasons for lost connections.
fn endings() -> Endings {
    Endings {
        lost: std::array::from_fn(|at| 200 + at as u64),
        failed: std::array::from_fn(|at| 300 + at as u64),
    }
}

/// Distinct counters of a store's writer.
fn writer() -> WriterStats {
    WriterStats {
        commits: 401,
        commit_ns: 402_500_000_000,
        commit_times: std::array::from_fn(|at| 400 + at as u64),
        syncs: 403,
        jobs: 404,
        rows: 405,
        failures: 406,
        checkpoints: 407,
    }
}

/// Agent metrics with every optional value present and all numbers distinct.
fn agent_numbers() -> AgentNumbers {
    let transferred = |label: &str, count| {
        vec![
            Transferred { direction: "up", label: label.into(), count, bytes: count + 10 },
            Transferred { direction: "down", label: label.into(), count: count + 1, bytes: count + 11 },
        ]
    };
    let lanes = |status| Lanes { status, events: status + 1, bulk: status + 2 };
    let mut rejections = Rejections::default();
    for (times, reason) in [
        RejectReason::TooLarge,
        RejectReason::Invalid,
        RejectReason::Stale,
        RejectReason::StoreFull,
        RejectReason::StoreUnavailable,
    ]
    .into_iter()
    .enumerate()
    {
        (0..=times).for_each(|_| rejections.add(reason));
    }
    let objects = Some(FilesCounts { in_effect: 722, not_in_effect: 723, conflicts: 724, waiting: 728 });
    let summary = FilesSummary { rules: 720, objects, failed: 0, blocked: None };
    AgentNumbers {
        files: Some(FilesNumbers {
            summary,
            reloads: 725,
            rollbacks: 726,
            files: 727,
            works: true,
            holds: 729,
        }),
        node: "edge-1".into(),
        link: LinkNumbers { connected: true, traffic: traffic(), endings: endings() },
        session: SessionNumbers {
            phase: EdgePhase::Greeting,
            welcome_round_trip: Some(Duration::from_millis(90)),
            in_sync: true,
            lag: Duration::from_millis(501_500),
            unconfirmed: 502,
            pending: 503,
            held_back: 504,
            counters: EdgeCounters {
                hellos: 507,
                applied: 508,
                rejected: 509,
                foreign_session: 510,
                repeated_reports: 511,
                uploads_sent: 512,
                uploads_resent: 513,
                uploads_refused: 514,
                leases: 515,
                patched: 518,
                unpatched: 519,
            },
            bad_frames: BTreeMap::from([("json", 516), ("type", 517)]),
        },
        objects: ObjectNumbers { held: 505, rejected_now: 506, rejections },
        traffic: TrafficNumbers {
            frames: transferred("Hello", 520),
            kinds: transferred("ConfigMap", 540),
            today: 560,
            budget: Some(561),
            metered: Some(MeteredStatus {
                metered: true,
                because: "configuration".into(),
                min_urgency: Urgency::Normal,
                max_object: Some(562),
                day: Some(BudgetStatus { limit: 1126, used: 563 }),
                month: Some(BudgetStatus { limit: 1130, used: 565 }),
                spent_until: None,
                waiting: WaitingForLink { urgency: 567, size: 568, budget: 569 },
            }),
        },
        certificate_end: Some(2_000_000_000),
        outbox: OutboxNumbers {
            state: OutboxState {
                marks: OutboxMarks { rows: lanes(570), ..OutboxMarks::default() },
                bytes: lanes(573),
                dropped: lanes(576),
            },
            ages: [Duration::ZERO, Duration::from_secs(60), Duration::from_millis(500)],
        },
        events: EventNumbers { emitted: 580, suppressed: 581 },
        limits: LimitsHit { object_size: 582, store_size: 583, link_queue: 584 },
        kubeedge: Some((
            BridgeCounters {
                received: 601,
                acknowledged: 602,
                rejected: 603,
                withheld: 604,
                repeated: 605,
                bad: 606,
                ignored: 607,
                unwanted: 608,
                unclear: 609,
                errors: 610,
                asked: 611,
                answered: 612,
                unanswered: 613,
                differed: 614,
                rounds: 615,
            },
            BridgeStatus {
                unacknowledged: 616,
                dynamic_controller: DynamicController::On,
                missing_count: 617,
                ..BridgeStatus::default()
            },
        )),
        store: StoreNumbers {
            stats: Some(EdgeStats {
                database_bytes: 701,
                wal_bytes: 702,
                free_bytes: 703,
                events_dropped: 704,
                writer: writer(),
            }),
            writing: Writing::Full,
            resets: 705,
        },
    }
}

pub(crate) fn agent_text() -> String {
    let mut text = String::new();
    agent::write(&agent_numbers(), &mut MetricsWriter::new(&mut text));
    text
}

/// Cloud metrics with every optional value present, and both kinds of broker.
fn cloud_numbers() -> CloudNumbers {
    let counters = CloudCounters {
        hellos: 801,
        sent: 802,
        removals_sent: 803,
        patches_sent: 815,
        patches_refused: 816,
        patch_bytes_saved: 817,
        resent: 804,
        reports: 805,
        reported: 806,
        rejected: 807,
        repairs: 808,
        foreign_session: 809,
        over_quota: 814,
        leases: 810,
        uploads: 811,
        upload_items: 812,
        uploads_refused: 813,
    };
    let node = NodeNumbers {
        name: "edge-1".into(),
        state: "held back",
        connected: true,
        ready: Some(true),
        in_sync: true,
        lag: Duration::from_millis(1500),
        records: 821,
        desired: 822,
        pending: 823,
        rejected: 824,
        held_back: 825,
        waiting_for_link: 829,
        files: EffectCounts { in_effect: 826, not_in_effect: 827, conflicts: 828, waiting: 1 },
        round_trip: Some(Duration::from_millis(40)),
        lease_age: Some(Duration::from_secs(3)),
        report_age: Some(Duration::from_secs(5)),
        overdue: Some(Duration::from_secs(848)),
        counters,
    };
    let other = NodeNumbers { name: "edge-2".into(), state: "of later", ready: Some(false), ..node.clone() };
    let third = NodeNumbers { name: "edge-3".into(), state: "in sync", ..NodeNumbers::default() };
    let mut numbers = CloudNumbers {
        each: vec![node, other, third],
        objects: 831,
        bad_frames: BTreeMap::from([("json", 832), ("node", 833)]),
        uploads_taken: 834,
        uploads_refused: 835,
        leases_renewed: 836,
        leases_written: 837,
        events_expired: 838,
        events_dropped: 846,
        rollouts: vec![RolloutNumbers {
            rule: "web".into(),
            revision: 881,
            waves_open: 882,
            is_paused: true,
            is_degraded: true,
            good: 883,
            failed: 884,
            awaited: 885,
            away: 886,
        }],
        bodies: BodyNumbers { count: 841, bytes: 842, read: 843, shared: 844, delayed: 845 },
        patches: PatchNumbers { count: 847, bytes: 848, made: 849, skipped: 850, shared: 851 },
        store: writer(),
        database_bytes: 839,
        log_bytes: 840,
        cluster: Some(ClusterNumbers {
            urgent_requests: 41,
            background_requests: 42,
            waiting_requests: 43,
            waiting_syncs: 44,
            is_leader: true,
        }),
        endpoint: Some(BrokerTraffic {
            accepted: 851,
            connected: 852,
            over_limit: 853,
            refused: 854,
            malformed: 855,
            unauthorized: 856,
            taken_over: 857,
            not_reading: 858,
            silent: 859,
            messages_in: 860,
            messages_out: 861,
            bytes_in: 862,
            bytes_out: 863,
            queue_full: 864,
            tls: 865,
            identity: 866,
            expired: 867,
            revoked: 868,
            open: 869,
        }),
        shared: Some(SharedTraffic { accepted: 871, passed: 872, refused: 873, over_limit: 874 }),
        link: Some((traffic(), endings())),
        ..CloudNumbers::default()
    };
    numbers.each.iter().for_each(|node| numbers.nodes.add(node));
    numbers
}

pub(crate) fn cloud_text() -> String {
    let mut text = String::new();
    cloud::write(&cloud_numbers(), &mut MetricsWriter::new(&mut text));
    text
}

/// Returns the metrics of a server after some requests: its API and the process.
pub(crate) async fn api_text() -> String {
    let running = Running::cloud(Limits::cloud()).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let created = send(&running.tcp, "POST", path, "", &config_map("a", "1")).await;
    assert_eq!(created.code, 201, "{}", created.body);
    let answer = send(&running.tcp, "GET", "/metrics", "", "").await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    running.stopped().await;
    answer.body
}

async fn written() -> Families {
    let texts = [agent_text(), cloud_text(), api_text().await];
    let mut all = Families::new();
    for text in texts {
        for (name, family) in families(&text) {
            assert!(all.insert(name.clone(), family).is_none(), "{name} is written by two");
        }
    }
    all
}

/// Returns the metrics that a PromQL expression or any text names; parts of histograms count as
/// their family.
fn named(text: &str, families: &Families) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("edgesync_") || word.starts_with("process_"));
    let family = |word: &str| {
        let parts = ["_bucket", "_sum", "_count"].iter().filter_map(|part| word.strip_suffix(part));
        let mut histograms =
            parts.filter(|name| families.get(*name).is_some_and(|it| it.kind == "histogram"));
        histograms.next().unwrap_or(word).to_owned()
    };
    metrics.map(family).collect()
}

/// Compares metrics with the recorded text, on which users' dashboards and alerts rely. With
/// `EDGESYNC_TEST_RECORD_METRICS=1` the text is recorded instead.
#[track_caller]
fn same(path: &str, text: &str) {
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    if std::env::var_os("EDGESYNC_TEST_RECORD_METRICS").is_some() {
        fs::write(
            edgesync_testkit::programs::root().join(path),
            text.replace(&version, "version=\"VERSION\""),
        )
        .unwrap();
        return;
    }
    let expected = read(path).replace("version=\"VERSION\"", &version);
    for (at, (found, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of {path}", at + 1);
    }
    assert_eq!(text.len(), expected.len(), "{path} has more lines, or fewer");
}

#[test]
fn metrics_have_the_recorded_names_types_and_labels() {
    same("tests/fixtures/metrics/agent.txt", &agent_text());
    same("tests/fixtures/metrics/cloud.txt", &cloud_text());
}

#[test]
fn families_without_a_value_have_no_sample() {
    let mut text = String::new();
    agent::write(&AgentNumbers::default(), &mut MetricsWriter::new(&mut text));
    same("tests/fixtures/metrics/agent_unknown.txt", &text);
    let mut text = String::new();
    let numbers = CloudNumbers { link: Some(Default::default()), ..CloudNumbers::default() };
    cloud::write(&numbers, &mut MetricsWriter::new(&mut text));
    same("tests/fixtures/metrics/cloud_unknown.txt", &text);
}

#[tokio::test]
async fn metric_names_follow_the_conventions_of_prometheus() {
    let abbreviations =
        ["ms", "millis", "milliseconds", "kb", "kib", "mb", "mib", "percent", "minutes", "msgs", "conns"];
    for (name, family) in written().await {
        assert!(
            name.starts_with("edgesync_agent_")
                || name.starts_with("edgesync_cloud_")
                || name.starts_with("edgesync_api_")
                || name.starts_with("process_"),
            "{name} has no prefix of this program"
        );
        let words: Vec<&str> = name.split('_').collect();
        assert!(
            words.iter().all(|word| !word.is_empty() && !abbreviations.contains(word)),
            "{name}: base units, no abbreviations"
        );
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert_eq!(family.kind == "counter", name.ends_with("_total"), "{name} is a {}", family.kind);
        for part in ["_bucket", "_sum", "_count"] {
            assert!(!name.ends_with(part), "{name} looks like a part of a histogram");
        }
        if let Some(at) = words.iter().position(|word| ["seconds", "bytes", "ratio"].contains(word)) {
            let rest: Vec<&str> = words[at + 1..].to_vec();
            assert!(rest.is_empty() || rest == ["total"], "{name}: the unit comes last");
        }
        for label in &family.labels {
            let last = words.iter().rev().find(|word| **word != "total").unwrap();
            assert!(label != last && *label != name, "{name} repeats its label {label}");
            assert!(
                !["le", "quantile", "job", "instance"].contains(&label.as_str()),
                "{name}: {label} is taken"
            );
        }
    }
}

#[tokio::test]
async fn metrics_named_in_documents_and_alerts_exist() {
    let written = written().await;
    let mut expressions = 0;
    for document in [
        "packaging/alerts.yaml",
        "docs/metrics.md",
        "docs/operations.md",
        "docs/api.md",
        "docs/architecture.md",
        "README.md",
    ] {
        let text = read(document);
        expressions += text.lines().filter(|line| line.trim_start().starts_with("expr: ")).count();
        // A prefix, as in "names begin with", ends in an underscore.
        for name in named(&text, &written).iter().filter(|name| !name.ends_with('_')) {
            let is_metric = name.starts_with("process_") || name.matches('_').count() >= 2;
            assert!(!is_metric || written.contains_key(name), "{document}: {name} does not exist");
        }
    }
    assert!(expressions >= 10, "the alerts were not found");
}

/// Collects all objects below a value that have a field.
fn with_field<'v>(value: &'v Value, field: &str, found: &mut Vec<&'v Value>) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key(field) {
                found.push(value);
            }
            fields.values().for_each(|value| with_field(value, field, found));
        }
        Value::Array(items) => items.iter().for_each(|value| with_field(value, field, found)),
        _ => {}
    }
}

#[tokio::test]
async fn dashboard_shows_most_metrics_and_no_unknown_ones() {
    let written = written().await;
    let dashboard: Value = serde_json::from_str(&read("packaging/grafana-dashboard.json")).unwrap();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(39));
    let variables: Vec<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(variables, ["datasource", "cloud", "node", "agent"]);

    let (mut targets, mut queries) = (Vec::new(), Vec::new());
    with_field(&dashboard["panels"], "expr", &mut targets);
    with_field(&dashboard["templating"], "definition", &mut queries);
    let expressions = targets.iter().map(|it| it["expr"].as_str().unwrap());
    let expressions: Vec<&str> =
        expressions.chain(queries.iter().map(|it| it["definition"].as_str().unwrap())).collect();
    let mut shown = BTreeSet::new();
    for expression in expressions {
        let names = named(expression, &written);
        assert!(!names.is_empty(), "{expression} asks for nothing");
        for name in &names {
            let family = written.get(name).unwrap_or_else(|| panic!("{expression}: {name} does not exist"));
            if family.kind == "counter" {
                let sped = expression.contains("rate(") || expression.contains("increase(");
                assert!(sped, "{expression}: a counter is of use only by its growth");
            }
        }
        for open in ["(", "[", "{"] {
            let close = match open {
                "(" => ")",
                "[" => "]",
                _ => "}",
            };
            assert_eq!(expression.matches(open).count(), expression.matches(close).count(), "{expression}");
        }
        shown.extend(names);
    }
    assert!(shown.len() * 10 >= written.len() * 7, "only {} of {} are shown", shown.len(), written.len());
}

#[tokio::test]
async fn alerts_use_only_existing_metrics() {
    let written = written().await;
    let text = read("packaging/alerts.yaml");
    let expressions: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert_eq!(expressions.len(), text.matches("- alert: ").count());
    assert!(expressions.len() >= 15, "{expressions:#?}");
    for expression in expressions {
        let names = named(expression, &written);
        assert!(!names.is_empty(), "{expression} asks for nothing");
        for name in &names {
            let family = written.get(name).unwrap_or_else(|| panic!("{expression}: {name} does not exist"));
            let sped = ["rate(", "increase(", "absent("].iter().any(|word| expression.contains(word));
            assert!(family.kind != "counter" || sped, "{expression}: a counter is of use only by its growth");
        }
    }
}

#[tokio::test]
async fn alert_summaries_use_only_labels_of_their_metrics() {
    let written = written().await;
    let text = read("packaging/alerts.yaml");
    for rule in text.split("- alert: ").skip(1) {
        let (name, rest) = rule.split_once('\n').unwrap();
        let field = |key: &str| {
            let mut values = rest.lines().filter_map(|line| line.trim().strip_prefix(key));
            values.next().unwrap_or_else(|| panic!("{name} has no {key}"))
        };
        // Prometheus adds the instance.
        let mut labels = BTreeSet::from(["instance"]);
        let metrics = named(field("expr: "), &written);
        labels.extend(metrics.iter().flat_map(|metric| written[metric].labels.iter().map(String::as_str)));
        for used in field("summary: ").split("$labels.").skip(1) {
            let label = used.split(' ').next().unwrap_or_default();
            assert!(labels.contains(label), "{name}: its metrics have no label '{label}'");
        }
    }
}

#[test]
fn dashboard_has_its_rows_and_no_overlapping_panels() {
    let dashboard: Value = serde_json::from_str(&read("packaging/grafana-dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let rows: Vec<&str> =
        panels.iter().filter(|it| it["type"] == "row").map(|it| it["title"].as_str().unwrap()).collect();
    assert_eq!(
        rows,
        [
            "Fleet",
            "Node $node",
            "Link of $node",
            "Store",
            "Outbox of $node",
            "API and processes",
            "Files of $node",
            "A Kubernetes cluster as the store",
            "Roll-outs"
        ]
    );
    let mut taken = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}: an id twice");
        let at = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{}: too wide", panel["title"]);
        for (x, y) in
            (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            let below = taken.insert((x, y), panel["title"].clone());
            assert_eq!(below, None, "{} lies on another panel", panel["title"]);
        }
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
            assert!(!panel["targets"].as_array().unwrap().is_empty(), "{}", panel["title"]);
        }
    }
}

#[test]
fn agent_metrics_stay_small() {
    let text = agent_text();
    println!("{} bytes, {} lines", text.len(), text.lines().count());
    assert!(text.len() < 20 << 10, "{} bytes", text.len());
}
