//! The numbers of the phases, and the table that shows them. Pure.

use std::time::Duration;

use super::compare::Comparison;
use super::count;
use super::proxy::Passed;
use super::stage::{Counters, NodeView};

/// Spaces between the columns of the table.
const GAP: usize = 2;
/// Objects that are changed, deleted and recreated while the link is cut.
pub(super) const CHANGED: u32 = 7;
/// See [`CHANGED`].
pub(super) const DELETED: u32 = 3;
/// See [`CHANGED`].
pub(super) const RECREATED: u32 = 2;

/// What happened in one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Phase {
    /// Its name.
    pub(super) name: &'static str,
    /// Objects applied, changed, deleted or recreated in the cloud.
    pub(super) changed: u64,
    /// Objects sent to the node.
    pub(super) sent: u64,
    /// Removals sent to the node.
    pub(super) removed: u64,
    /// Objects that the node reported as persisted.
    pub(super) reported: u64,
    /// Objects that were not sent because the node already held them; `None` if it held none before.
    pub(super) skipped: Option<u64>,
    /// Inventories that had to be compared.
    pub(super) inventories: u64,
    /// What passed the link.
    pub(super) passed: Passed,
    /// How long it took.
    pub(super) time: Duration,
}

/// Where a phase begins.
#[derive(Clone, Debug, Default)]
pub(super) struct Mark {
    /// What the cloud side said.
    pub(super) view: NodeView,
    /// What had passed the link.
    pub(super) passed: Passed,
}

impl Phase {
    /// The phase between two marks.
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
            passed: Passed {
                down: to.passed.down.saturating_sub(from.passed.down),
                up: to.passed.up.saturating_sub(from.passed.up),
            },
            time,
        }
    }

    /// Bytes in both directions.
    pub(super) fn bytes(&self) -> u64 {
        self.passed.down + self.passed.up
    }
}

/// Everything that the demo measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Objects applied at first.
    pub(super) objects: u32,
    /// Objects that were recorded as held when the agent had been killed.
    pub(super) held_at_kill: u64,
    /// Objects that the agent wrote to its database after it was started again.
    pub(super) new_to_node: u64,
    /// From the first object to the kill.
    pub(super) first: Phase,
    /// From the restart to in sync.
    pub(super) restart: Phase,
    /// A cut with nothing changed.
    pub(super) unchanged: Phase,
    /// A cut with a few changes.
    pub(super) changes: Phase,
    /// Both sides, compared.
    pub(super) comparison: Comparison,
}

impl Outcome {
    /// The table of the phases.
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
                count(phase.passed.down),
                count(phase.passed.up),
                seconds(phase.time),
            ]);
        }
        aligned(&lines)
    }
}

/// Lines with columns: the first one starts at the left, the numbers end at the right.
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

/// A time as people read it.
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

    /// What a good run with 1,000 objects gives.
    pub(crate) fn good() -> Outcome {
        let phase = |name, changed, sent, removed, reported, skipped, down, up| Phase {
            name,
            changed,
            sent,
            removed,
            reported,
            skipped,
            inventories: 0,
            passed: Passed { down, up },
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
    fn the_table_is_aligned_and_its_numbers_can_be_read() {
        let expected = "\
PHASE        CHANGED  SENT  REMOVED  REPORTED  SKIPPED     DOWN      UP    TIME
1 apply        1,000   560        0       540        -  214,000  30,123  567 ms
2 restart          0   460        0       460      540  180,000   1,234  467 ms
3 reconnect        0     0        0         0    1,000      150     312    7 ms
4 changes         12     9        5         9      988    4,000     800   16 ms
";
        assert_eq!(good().table(), expected);
    }

    #[test]
    fn a_phase_is_what_happened_between_two_marks() {
        let mark = |objects, desired, sent, down| Mark {
            view: NodeView {
                objects,
                desired,
                counters: Counters { objects_sent: sent, ..Counters::default() },
                ..NodeView::default()
            },
            passed: Passed { down, up: 1 },
        };
        let (from, to) = (mark(540, 1000, 560, 10), mark(1000, 1000, 1020, 30));
        let phase = Phase::between("x", 0, (&from, &to), Duration::ZERO);
        assert_eq!((phase.sent, phase.skipped, phase.bytes()), (460, Some(540), 20));
        let first = Phase::between("x", 0, (&Mark::default(), &from), Duration::ZERO);
        assert_eq!(first.skipped, None);
    }

    #[test]
    fn times_are_told_with_the_digits_that_matter() {
        for (milliseconds, expected) in [(0, "1 ms"), (42, "42 ms"), (1_234, "1.23 s"), (12_345, "12.3 s")] {
            assert_eq!(seconds(Duration::from_millis(milliseconds)), expected);
        }
    }
}
