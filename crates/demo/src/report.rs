//! Figures of the phases, and the table that shows them. Pure.

use std::time::Duration;

use super::compare::Comparison;
use super::count;
use super::proxy::Transferred;
use super::stage::{Counters, NodeView};

/// Spaces between the columns of the table.
const GAP: usize = 2;
/// Objects changed while the link is cut.
pub(super) const CHANGED: u32 = 7;
/// Objects deleted while the link is cut.
pub(super) const DELETED: u32 = 3;
/// Objects recreated while the link is cut.
pub(super) const RECREATED: u32 = 2;

/// Figures of one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// Objects applied, changed, deleted or recreated in the cloud.
    pub(super) changed: u64,
    /// Objects sent to the node.
    pub(super) sent: u64,
    /// Removals sent to the node.
    pub(super) removed: u64,
    /// Objects that the node reported as persisted.
    pub(super) reported: u64,
    /// Objects not sent because the node already held them; `None` if it held none before.
    pub(super) skipped: Option<u64>,
    /// Inventories that had to be compared.
    pub(super) inventories: u64,
    /// Bytes that passed the link.
    pub(super) transferred: Transferred,
    /// Duration of the phase.
    pub(super) time: Duration,
}

/// Counters at the start or end of a phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Mark {
    /// The cloud side's view of the node.
    pub(super) view: NodeView,
    /// Bytes that have passed the link.
    pub(super) transferred: Transferred,
}

impl Phase {
    /// Computes the figures between two marks.
    pub(super) fn between(
        name: &'static str,
        changed: u32,
        (from, to): (&Mark, &Mark),
        time: Duration,
    ) -> Self {
        let since =
            |field: fn(&Counters) -> u64| field(&to.view.counters).saturating_sub(field(&from.view.counters));
        let sent = since(|counters| counters.objects_sent);
        Self {
            name,
            changed: changed.into(),
            sent,
            removed: since(|counters| counters.removals_sent),
            reported: since(|counters| counters.objects_reported),
            skipped: (from.view.objects > 0).then(|| to.view.desired.saturating_sub(sent)),
            inventories: since(|counters| counters.inventories),
            transferred: Transferred {
                down: to.transferred.down.saturating_sub(from.transferred.down),
                up: to.transferred.up.saturating_sub(from.transferred.up),
            },
            time,
        }
    }

    /// Returns the bytes in both directions.
    pub(super) fn bytes(&self) -> u64 {
        self.transferred.down + self.transferred.up
    }
}

/// All measurements of the demo.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Number of applied objects.
    pub(super) objects: u32,
    /// Objects recorded as held when the agent had been killed.
    pub(super) held_at_kill: u64,
    /// Objects that the agent wrote to its database after its restart.
    pub(super) new_to_node: u64,
    /// From the first object to the kill.
    pub(super) first: Phase,
    /// From the restart to in sync.
    pub(super) restart: Phase,
    /// A cut without changes.
    pub(super) unchanged: Phase,
    /// A cut with a few changes.
    pub(super) changes: Phase,
    /// The comparison of both sides.
    pub(super) comparison: Comparison,
}

impl Outcome {
    /// Formats the table of the phases.
    pub(super) fn table(&self) -> String {
        let headers = ["PHASE", "CHANGED", "SENT", "REMOVED", "REPORTED", "SKIPPED", "DOWN", "UP", "TIME"];
        let mut lines = vec![headers.map(str::to_owned)];
        for phase in [&self.first, &self.restart, &self.unchanged, &self.changes] {
            lines.push([
                phase.name.to_owned(),
                count(phase.changed),
                count(phase.sent),
                count(phase.removed),
                count(phase.reported),
                phase.skipped.map_or_else(|| "-".to_owned(), count),
                count(phase.transferred.down),
                count(phase.transferred.up),
                seconds(phase.time),
            ]);
        }
        aligned(&lines)
    }
}

/// Formats aligned columns: the first one to the left, numbers to the right.
fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = String::new();
    for line in lines {
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            let cell = match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{:GAP$}{cell:>width$}", ""),
            };
            out.push_str(&cell);
        }
        out.push('\n');
    }
    out
}

/// Formats a duration for people.
pub(super) fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        short if short < 1.0 => format!("{:.0} ms", (short * 1000.0).max(1.0)),
        long if long < 10.0 => format!("{long:.2} s"),
        long => format!("{long:.1} s"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Figures of a successful run with 1,000 objects.
    pub(crate) fn successful() -> Outcome {
        let phase = |name, changed, sent, removed, reported, skipped, down, up| Phase {
            name,
            changed,
            sent,
            removed,
            reported,
            skipped,
            inventories: 0,
            transferred: Transferred { down, up },
            time: Duration::from_millis(sent + 7),
        };
        Outcome {
            objects: 1000,
            held_at_kill: 540,
            new_to_node: 460,
            first: phase("1 apply", 1000, 560, 0, 540, None, 214_000, 30_123),
            restart: phase("2 restart", 0, 460, 0, 460, Some(540), 180_000, 1_234),
            unchanged: phase("3 reconnect", 0, 0, 0, 0, Some(1000), 150, 312),
            changes: phase("4 changes", 12, 9, 5, 9, Some(988), 4_000, 800),
            comparison: Comparison { objects: 997, records: 997, ..Comparison::default() },
        }
    }

    #[test]
    fn table_is_aligned_and_readable() {
        let expected = "\
PHASE        CHANGED  SENT  REMOVED  REPORTED  SKIPPED     DOWN      UP    TIME
1 apply        1,000   560        0       540        -  214,000  30,123  567 ms
2 restart          0   460        0       460      540  180,000   1,234  467 ms
3 reconnect        0     0        0         0    1,000      150     312    7 ms
4 changes         12     9        5         9      988    4,000     800   16 ms
";
        assert_eq!(successful().table(), expected);
    }

    #[test]
    fn phase_has_the_figures_between_two_marks() {
        let mark = |objects, desired, sent, down| Mark {
            view: NodeView {
                objects,
                desired,
                counters: Counters { objects_sent: sent, ..Counters::default() },
                ..NodeView::default()
            },
            transferred: Transferred { down, up: 1 },
        };
        let (from, to) = (mark(540, 1000, 560, 10), mark(1000, 1000, 1020, 30));
        let phase = Phase::between("x", 0, (&from, &to), Duration::ZERO);
        assert_eq!((phase.sent, phase.skipped, phase.bytes()), (460, Some(540), 20));
        let first = Phase::between("x", 0, (&Mark::default(), &from), Duration::ZERO);
        assert_eq!(first.skipped, None);
    }

    #[test]
    fn durations_are_formatted_with_significant_digits() {
        for (milliseconds, expected) in [(0, "1 ms"), (42, "42 ms"), (1_234, "1.23 s"), (12_345, "12.3 s")] {
            assert_eq!(seconds(Duration::from_millis(milliseconds)), expected);
        }
    }
}
