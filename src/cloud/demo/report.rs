//! The numbers of the phases, the table that shows them, and the verdict on them. Pure.

use std::time::Duration;

use super::compare::Comparison;
use super::proxy::Passed;
use super::stage::{Counters, NodeView};
use super::{count, plural};

/// Spaces between the columns of the table.
const GAP: usize = 3;
/// What a reconnect with nothing changed may cost at most, in bytes both ways, whatever the node holds.
pub(super) const RECONNECT_LIMIT: u64 = 2_000;
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

/// One thing that has to be true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// What, as a sentence without its full stop.
    pub(super) claim: String,
    /// Whether it is.
    pub(super) holds: bool,
    /// What was found.
    pub(super) found: String,
}

impl Outcome {
    /// Everything that has to be true.
    pub(super) fn verdict(&self) -> Vec<Check> {
        let check = |claim: &str, holds: bool, found: String| Check { claim: claim.into(), holds, found };
        let objects = u64::from(self.objects);
        let (restart, unchanged, changes) = (&self.restart, &self.unchanged, &self.changes);
        let not_held = objects.saturating_sub(self.held_at_kill);
        let news = u64::from(CHANGED + RECREATED);
        let gone = u64::from(DELETED + RECREATED);
        let left = objects.saturating_sub(DELETED.into());
        let inventories = restart.inventories + unchanged.inventories + changes.inventories;
        let same = &self.comparison;
        let differences = format!("{} differ", count(same.differing as u64));
        vec![
            check(
                "Nothing that was reported before the kill was sent again",
                restart.sent <= not_held,
                format!("{} sent, {} were not held", count(restart.sent), count(not_held)),
            ),
            check(
                "A reconnect with nothing changed sends no object",
                (unchanged.sent, unchanged.removed, unchanged.reported) == (0, 0, 0),
                format!("{} sent, {} removed", count(unchanged.sent), count(unchanged.removed)),
            ),
            check(
                &format!(
                    "It costs less than {} bytes, however many objects there are",
                    count(RECONNECT_LIMIT)
                ),
                (1..RECONNECT_LIMIT).contains(&unchanged.bytes()),
                format!("{} bytes", count(unchanged.bytes())),
            ),
            check(
                &format!(
                    "After the changes exactly {news} objects are sent: {CHANGED} changed, {RECREATED} recreated"
                ),
                (changes.sent, changes.reported) == (news, news),
                format!("{} sent, {} reported", count(changes.sent), count(changes.reported)),
            ),
            check(
                &format!(
                    "and exactly {gone} are removed: {DELETED} deleted, {RECREATED} replaced by their namesakes"
                ),
                changes.removed == gone,
                format!("{} removed", count(changes.removed)),
            ),
            check(
                "Both sides always agreed on what the node holds: no inventory was needed",
                inventories == 0,
                format!("{} asked for", plural(inventories, "inventory", "inventories")),
            ),
            check(
                "All objects and all ObjectSync records are equal in the cloud and on the node",
                same.differing == 0 && (same.objects as u64, same.records as u64) == (left, left),
                format!(
                    "{} and {}, {differences}",
                    plural(same.objects as u64, "object", "objects"),
                    plural(same.records as u64, "record", "records")
                ),
            ),
        ]
    }

    /// The table of the phases.
    pub(super) fn table(&self) -> String {
        let headers =
            ["PHASE", "CHANGED", "SENT", "REMOVED", "REPORTED", "SKIPPED", "BYTES DOWN", "BYTES UP", "TIME"];
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
mod tests {
    use super::*;

    /// What a good run with 1,000 objects gives.
    fn good() -> Outcome {
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
            first: phase("apply", 1000, 560, 0, 540, None, 214_000, 30_123),
            restart: phase("restart", 0, 460, 0, 460, Some(540), 180_000, 1_234),
            unchanged: phase("reconnect", 0, 0, 0, 0, Some(1000), 150, 312),
            changes: phase("reconnect after changes", 12, 9, 5, 9, Some(988), 4_000, 800),
            comparison: Comparison { objects: 997, records: 997, ..Comparison::default() },
        }
    }

    fn failing(outcome: &Outcome) -> Vec<String> {
        outcome.verdict().into_iter().filter(|check| !check.holds).map(|check| check.found).collect()
    }

    #[test]
    fn the_table_is_aligned_and_its_numbers_can_be_read() {
        let expected = "\
PHASE                     CHANGED   SENT   REMOVED   REPORTED   SKIPPED   BYTES DOWN   BYTES UP     TIME
apply                       1,000    560         0        540         -      214,000     30,123   567 ms
restart                         0    460         0        460       540      180,000      1,234   467 ms
reconnect                       0      0         0          0     1,000          150        312     7 ms
reconnect after changes        12      9         5          9       988        4,000        800    16 ms
";
        assert_eq!(good().table(), expected);
    }

    #[test]
    fn a_good_run_passes_every_check() {
        assert_eq!(failing(&good()), Vec::<String>::new());
    }

    #[test]
    fn each_thing_that_can_go_wrong_fails_its_check() {
        let spoilt = |spoil: fn(&mut Outcome), found: &str| {
            let mut outcome = good();
            spoil(&mut outcome);
            assert_eq!(failing(&outcome), [found]);
        };
        spoilt(|outcome| outcome.restart.sent = 461, "461 sent, 460 were not held");
        spoilt(|outcome| outcome.unchanged.sent = 1, "1 sent, 0 removed");
        spoilt(|outcome| outcome.unchanged.passed.up = 2_000, "2,150 bytes");
        spoilt(|outcome| outcome.unchanged.passed = Passed::default(), "0 bytes");
        spoilt(|outcome| outcome.changes.sent = 10, "10 sent, 9 reported");
        spoilt(|outcome| outcome.changes.reported = 8, "9 sent, 8 reported");
        spoilt(|outcome| outcome.changes.removed = 3, "3 removed");
        spoilt(|outcome| outcome.restart.inventories = 1, "1 inventory asked for");
        spoilt(|outcome| outcome.comparison.differing = 1, "997 objects and 997 records, 1 differ");
        spoilt(|outcome| outcome.comparison.objects = 996, "996 objects and 997 records, 0 differ");
        spoilt(|outcome| outcome.comparison.records = 0, "997 objects and 0 records, 0 differ");
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
