//! Responses of a healthy agent.

use std::collections::BTreeMap;

use crate::agent::*;
use crate::check::{CheckCounts, CheckReport, CheckResult, CheckStatus};
use edgesync_object::ObjectRef;
use edgesync_object::urgency::Urgency;

const STARTED: &str = "2026-11-21T10:00:00Z";
const LATER: &str = "2026-11-21T10:00:01Z";
const NEXT_YEAR: &str = "2027-11-21T10:00:00Z";

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn condition(kind: &str, status: &str, message: &str) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: "AsExpected".to_owned(),
        message: message.to_owned(),
        last_transition_time: some(STARTED),
    }
}

fn object(name: &str) -> ObjectRef {
    ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "plant".into(),
        name: name.into(),
    }
}

/// Status of a healthy agent. Without rejected objects; [`rejected`] returns an entry.
#[must_use]
pub fn status() -> AgentStatus {
    AgentStatus {
        node: "edge-1".to_owned(),
        agent: Program { version: "0.1.0".to_owned(), started: STARTED.to_owned() },
        link: LinkStatus {
            state: LinkState::Connected,
            link_type: "mqtt".to_owned(),
            broker: "mqtts://b:8883".to_owned(),
            since: some(LATER),
            cause: None,
            retry_in_seconds: None,
            connections: 1,
            bytes_in: 1024,
            bytes_out: 1024,
            plan: some("every 6h"),
            next_check_in: None,
        },
        kubeedge: None,
        identity: Some(IdentityStatus {
            subject: "edge-1".to_owned(),
            serial: "01ab".to_owned(),
            not_before: STARTED.to_owned(),
            not_after: NEXT_YEAR.to_owned(),
            validity: "valid".to_owned(),
            renew_at: "2027-07-21T10:00:00Z".to_owned(),
            renewals: 0,
            renewal_failure: None,
        }),
        cloud: CloudStatus {
            state: CloudStatus::CONNECTED.to_owned(),
            incarnation: some("i-1"),
            session: some("s-1"),
            removed: false,
        },
        sync: SyncStatus {
            in_sync: true,
            in_sync_since: some(LATER),
            pending: 0,
            held_back: 0,
            unconfirmed: 0,
            last_confirm: some(LATER),
        },
        outbox: BTreeMap::from([("status".to_owned(), LaneStatus::default())]),
        conditions: vec![
            condition("edgesync.io/StoreHealthy", "True", "database writable"),
            condition("edgesync.io/DiskPressure", "False", "room"),
        ],
        traffic: TrafficToday { bytes_today: 2048, daily_budget: Some(4096), budget_spent: false },
        metered: None,
        objects: ObjectCounts { total: 3, kinds: BTreeMap::from([("v1/ConfigMap".to_owned(), 3)]) },
        store: StoreStatus {
            epoch: "e".to_owned(),
            digest: "d".to_owned(),
            revision: 3,
            confirmed: 3,
            writing: StoreStatus::WORKS.to_owned(),
            resets: 0,
            database_bytes: Some(4096),
            wal_bytes: Some(0),
            free_bytes: Some(1 << 30),
            commits: Some(3),
            seal: Some(seal()),
        },
        limits_hit: LimitsHit {
            objects_too_large: 0,
            store_full: 0,
            link_queue_full: 0,
            reading_stalled: 0,
            events_dropped: Some(0),
        },
        rejected: Vec::new(),
        counters: AgentCounters {
            bad_frames: BTreeMap::from([("protocol".to_owned(), 0)]),
            ..AgentCounters::default()
        },
        api: ListenStatus::Open { address: "127.0.0.1:10550".to_owned() },
        files: None,
    }
}

/// A status with every section: CloudCore, files, and a rejected object.
#[must_use]
pub fn full_status() -> AgentStatus {
    AgentStatus {
        kubeedge: Some(cloud_core()),
        files: Some(files_summary()),
        rejected: vec![rejected()],
        api: ListenStatus::Waiting { address: "127.0.0.1:10550".to_owned(), why: "in use".to_owned() },
        ..status()
    }
}

#[must_use]
pub fn rejected() -> RejectedObject {
    RejectedObject {
        uid: "u-1".to_owned(),
        object: Some(object("big")),
        resource_version: "7".to_owned(),
        reason: "TooLarge".to_owned(),
        message: "must be at most 9 bytes".to_owned(),
    }
}

/// Files in effect: 3 of 3 objects.
#[must_use]
pub fn files_summary() -> FilesSummary {
    FilesSummary {
        rules: 1,
        objects: Some(3),
        in_effect: Some(3),
        not_in_effect: Some(0),
        conflicts: Some(0),
        problem: None,
        helper_unreachable: false,
        waiting: Some(0),
        waits: Vec::new(),
        holds: Vec::new(),
    }
}

fn cloud_core() -> CloudCoreStatus {
    CloudCoreStatus {
        acknowledged: 9,
        unacknowledged: 0,
        acknowledged_at: some(LATER),
        rejected: 0,
        withheld: 0,
        lease: BridgeLease { resource_version: some("77"), acknowledged_at: some(LATER) },
        node: BridgeNode { uid: some("u"), resource_version: some("78"), acknowledged_at: some(LATER) },
        dynamic_controller: "unknown".to_owned(),
        round: Some(Round { reason: "lost".to_owned(), compared: 5 }),
        verified: Some(VerifiedRound {
            at: LATER.to_owned(),
            reason: "routine".to_owned(),
            compared: 10,
            differed: 1,
        }),
        missing: vec!["default/secret/a".to_owned()],
        missing_count: 1,
        counters: BridgeCounts::default(),
        denied: BTreeMap::from([("secrets".to_owned(), "forbidden".to_owned())]),
    }
}

/// Traffic by frame and kind, today and in total.
#[must_use]
pub fn traffic() -> Traffic {
    let frame = |frame: &str, messages, bytes| FrameTraffic {
        direction: Direction::Up,
        frame: frame.to_owned(),
        messages,
        bytes,
    };
    let deployment = KindTraffic {
        direction: Direction::Down,
        kind: "Deployment.apps".to_owned(),
        objects: 3,
        bytes: 4_000,
    };
    Traffic {
        day: "2026-11-21".to_owned(),
        today: TrafficSpan {
            bytes_up: 1_400_000,
            bytes_down: 1_000,
            transport_bytes: 499_880,
            frames: vec![frame("Lease", 8_640, 900_000)],
            kinds: Vec::new(),
        },
        total: TrafficSince {
            since: "2026-11-01T00:00:00Z".to_owned(),
            span: TrafficSpan {
                bytes_up: 14_000_000,
                bytes_down: 9_000,
                transport_bytes: 5_006_338,
                frames: vec![frame("Hello", 20, 2_662), frame("Lease", 90_000, 9_000_000)],
                kinds: vec![deployment],
            },
        },
        metered: None,
    }
}

/// One key that is not wrapped.
#[must_use]
pub fn seal() -> SealStatus {
    SealStatus { keys: 1, wrapped: false, newest: STARTED.to_owned(), sealed_objects: 1 }
}

/// A rule with an object that is not in effect.
#[must_use]
pub fn files() -> FilesList {
    let object = FilesObject {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        namespace: "plant".to_owned(),
        name: "web".to_owned(),
        sealed: false,
        version: some("7"),
        desired: some("8"),
        state: FilesState::NotInEffect,
        message: "nginx: exit status: 1:\n[emerg] no".to_owned(),
        rolled_back: true,
        since: 1_700_000_000_000_000,
        seq: 2,
        reason: None,
        until: None,
    };
    FilesList {
        rules: vec![FilesRule {
            name: "nginx".to_owned(),
            in_effect: 0,
            not_in_effect: 1,
            conflicts: 0,
            reloads: 3,
            rollbacks: 1,
            files: 2,
            output: "[emerg]\u{1b} no".to_owned(),
            objects: vec![object],
            waiting: 0,
            wait: None,
        }],
        holds: Vec::new(),
    }
}

/// A rule that would remove a file, and one without steps.
#[must_use]
pub fn files_check() -> FilesCheck {
    let steps = |name: &str, steps: &[&str]| RulePlan {
        name: name.to_owned(),
        steps: steps.iter().map(|&step| step.to_owned()).collect(),
    };
    FilesCheck { rules: vec![steps("a", &["remove /x"]), steps("b", &[])] }
}

/// A passed and a failed check.
#[must_use]
pub fn check_report() -> CheckReport {
    let check = |id: &str, title: &str, status, message: &str, next_step: Option<&str>| CheckResult {
        id: id.to_owned(),
        title: title.to_owned(),
        status,
        message: message.to_owned(),
        next_step: next_step.map(str::to_owned),
    };
    CheckReport {
        version: "0.1.0".to_owned(),
        result: CheckStatus::Failed,
        counts: CheckCounts { ok: 1, failed: 1, ..CheckCounts::default() },
        checks: vec![
            check("clock", "Clock", CheckStatus::Ok, "set", None),
            check("tcp", "TCP", CheckStatus::Failed, "connection refused", Some("start the broker")),
        ],
    }
}

/// A verification without differences.
#[must_use]
pub fn verification() -> Verification {
    Verification {
        store: VerifiedStore::Checked(CheckedRows {
            rows: 3,
            removed: 0,
            local_removed: 0,
            outbox_removed: 0,
            renewed: false,
            problem: None,
        }),
        cloud: VerifiedCloud { in_sync: true, differed: false, applied: 0, problem: None },
    }
}

/// A metered link with objects that wait for its budget.
#[must_use]
pub fn metered() -> MeteredStatus {
    MeteredStatus {
        metered: true,
        because: "interface wwan0".to_owned(),
        min_urgency: Urgency::Normal,
        max_object: Some(65_536),
        day: Some(BudgetStatus { limit: 204_800, used: 198_000 }),
        month: None,
        spent_until: some(NEXT_YEAR),
        waiting: waiting_for_link(),
    }
}

#[must_use]
pub fn waiting_for_link() -> WaitingForLink {
    WaitingForLink { urgency: 3, size: 1, budget: 12 }
}
