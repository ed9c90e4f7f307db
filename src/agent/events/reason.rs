//! The reasons for Events. docs/events.md explains each; a test compares its table with this enum.

/// Reason of an Event, with its type and action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::agent) enum EventReason {
    /// The agent has started, after a clean stop or for the first time.
    AgentStarted,
    /// The agent has started after a run that ended without a stop signal.
    AgentRestartedUncleanly,
    /// The agent was stopped by a signal.
    AgentStopped,
    /// A changed configuration was rejected.
    ConfigurationRejected,
    /// An object was rejected.
    ObjectRejected,
    /// The database was damaged or lost; readable rows are kept.
    StoreSalvaged,
    /// The database or its disk is full.
    StoreFull,
    /// The database cannot be written.
    StoreFailing,
    /// The database accepts changes again.
    StoreRecovered,
    /// The disk of the database is almost full.
    DiskPressure,
    /// The disk of the database has free space again.
    DiskPressureOver,
    /// The broker answers, the cloud does not.
    CloudUnreachable,
    /// The cloud answers again.
    CloudReachable,
    /// The cloud's store was replaced by another one.
    CloudIncarnationChanged,
    /// The cloud's records differed from what the node holds, and are corrected.
    RecordsDiffered,
    /// The cloud holds back deletions that look like a loss of its store.
    DeletionsHeldBack,
    /// Another client has connected under this node's name.
    SessionTakenOver,
    /// The wall clock was set.
    ClockJumped,
    /// A limit of the configuration was hit.
    LimitHit,
    /// Items of the outbox were dropped.
    OutboxOverflow,
    /// The cloud refused the status of an object.
    StatusRefused,
    /// The day's budget of bytes is spent.
    TrafficBudgetSpent,
    /// A new day has begun, with a new budget of bytes.
    TrafficBudgetRenewed,
    /// Objects wait for the metered link.
    ObjectsWaiting,
    /// No object waits for the metered link any more.
    ObjectsArrived,
    /// An operator has removed the node from the fleet.
    NodeRemoved,
    /// The certificate was renewed.
    CertificateRenewed,
    /// The certificate could not be renewed.
    CertificateRenewalFailed,
    /// Less than a tenth of the certificate's lifetime is left.
    CertificateExpiring,
    /// The certificate has expired.
    CertificateExpired,
    /// The credential that wraps the keys of sealed objects was missing.
    SealCredentialMissing,
    /// An object is in effect in files.
    InEffect,
    /// An object is not in effect in files.
    NotInEffect,
    /// The files of an object were changed by others.
    Conflict,
    /// A program rejected the files of an object, and the previous ones were restored.
    RolledBack,
}

/// The field `type` of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum EventType {
    /// No action is required.
    Normal,
    /// An operator should act.
    Warning,
}

impl EventType {
    /// Returns the value of the field.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl EventReason {
    /// All reasons, each at the index of its number.
    pub(super) const ALL: [Self; 35] = [
        Self::AgentStarted,
        Self::AgentRestartedUncleanly,
        Self::AgentStopped,
        Self::ConfigurationRejected,
        Self::ObjectRejected,
        Self::StoreSalvaged,
        Self::StoreFull,
        Self::StoreFailing,
        Self::StoreRecovered,
        Self::DiskPressure,
        Self::DiskPressureOver,
        Self::CloudUnreachable,
        Self::CloudReachable,
        Self::CloudIncarnationChanged,
        Self::RecordsDiffered,
        Self::DeletionsHeldBack,
        Self::SessionTakenOver,
        Self::ClockJumped,
        Self::LimitHit,
        Self::OutboxOverflow,
        Self::StatusRefused,
        Self::TrafficBudgetSpent,
        Self::TrafficBudgetRenewed,
        Self::ObjectsWaiting,
        Self::ObjectsArrived,
        Self::NodeRemoved,
        Self::CertificateRenewed,
        Self::CertificateRenewalFailed,
        Self::CertificateExpiring,
        Self::CertificateExpired,
        Self::SealCredentialMissing,
        Self::InEffect,
        Self::NotInEffect,
        Self::Conflict,
        Self::RolledBack,
    ];

    /// Returns the field `reason`.
    pub(in crate::agent) fn name(self) -> &'static str {
        self.words().0
    }

    /// Returns the field `action`: the agent's operation.
    pub(in crate::agent) fn action(self) -> &'static str {
        self.words().1
    }

    /// Returns the field `type`.
    pub(in crate::agent) fn kind(self) -> EventType {
        self.words().2
    }

    fn words(self) -> (&'static str, &'static str, EventType) {
        use EventType::{Normal, Warning};
        match self {
            Self::AgentStarted => ("AgentStarted", "Start", Normal),
            Self::AgentRestartedUncleanly => ("AgentRestartedUncleanly", "Start", Warning),
            Self::AgentStopped => ("AgentStopped", "Stop", Normal),
            Self::ConfigurationRejected => ("ConfigurationRejected", "Reload", Warning),
            Self::ObjectRejected => ("ObjectRejected", "Apply", Warning),
            Self::StoreSalvaged => ("StoreSalvaged", "Salvage", Warning),
            Self::StoreFull => ("StoreFull", "Write", Warning),
            Self::StoreFailing => ("StoreFailing", "Write", Warning),
            Self::StoreRecovered => ("StoreRecovered", "Write", Normal),
            Self::DiskPressure => ("DiskPressure", "CheckDisk", Warning),
            Self::DiskPressureOver => ("DiskPressureOver", "CheckDisk", Normal),
            Self::CloudUnreachable => ("CloudUnreachable", "Connect", Warning),
            Self::CloudReachable => ("CloudReachable", "Connect", Normal),
            Self::CloudIncarnationChanged => ("CloudIncarnationChanged", "Synchronize", Warning),
            Self::RecordsDiffered => ("RecordsDiffered", "Synchronize", Warning),
            Self::DeletionsHeldBack => ("DeletionsHeldBack", "Synchronize", Warning),
            Self::SessionTakenOver => ("SessionTakenOver", "Connect", Warning),
            Self::ClockJumped => ("ClockJumped", "CheckClock", Warning),
            Self::LimitHit => ("LimitHit", "Limit", Warning),
            Self::OutboxOverflow => ("OutboxOverflow", "Drop", Warning),
            Self::StatusRefused => ("StatusRefused", "ReportStatus", Warning),
            Self::TrafficBudgetSpent => ("TrafficBudgetSpent", "MeterTraffic", Warning),
            Self::TrafficBudgetRenewed => ("TrafficBudgetRenewed", "MeterTraffic", Normal),
            Self::ObjectsWaiting => ("ObjectsWaiting", "Synchronize", Normal),
            Self::ObjectsArrived => ("ObjectsArrived", "Synchronize", Normal),
            Self::NodeRemoved => ("NodeRemoved", "Register", Warning),
            Self::CertificateRenewed => ("CertificateRenewed", "Renew", Normal),
            Self::CertificateRenewalFailed => ("CertificateRenewalFailed", "Renew", Warning),
            Self::CertificateExpiring => ("CertificateExpiring", "Renew", Warning),
            Self::CertificateExpired => ("CertificateExpired", "Renew", Warning),
            Self::SealCredentialMissing => ("SealCredentialMissing", "OpenKeys", Warning),
            Self::InEffect => ("InEffect", "WriteFiles", Normal),
            Self::NotInEffect => ("NotInEffect", "WriteFiles", Warning),
            Self::Conflict => ("Conflict", "WriteFiles", Warning),
            Self::RolledBack => ("RolledBack", "WriteFiles", Warning),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_unique_camel_case_name_and_index() {
        let is_camel = |word: &str| {
            word.starts_with(|c: char| c.is_ascii_uppercase())
                && word.chars().all(|c| c.is_ascii_alphanumeric())
        };
        for (place, reason) in EventReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place, "{reason:?}");
            assert_eq!(reason.name(), format!("{reason:?}"));
            assert!(is_camel(reason.name()) && is_camel(reason.action()), "{reason:?}");
        }
    }

    #[test]
    fn the_docs_list_exactly_the_reasons() {
        let page = include_str!("../../../docs/events.md");
        let section = page.split("\n## ").find(|section| section.starts_with("Reasons\n")).unwrap();
        let rows: Vec<Vec<&str>> = section
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        let state = |cells: &Vec<&'static str>| [0, 1, 2].map(|cell| cells[cell].trim_matches('`'));
        let state: Vec<_> = rows.iter().map(state).collect();
        assert_eq!(
            state,
            EventReason::ALL.map(|reason| [reason.name(), reason.kind().name(), reason.action()])
        );
        for cells in rows {
            assert_eq!(cells.len(), 6, "{cells:?}");
            assert!(cells[4].len() > 20 && cells[5].len() > 3, "{cells:?}");
        }
    }
}
