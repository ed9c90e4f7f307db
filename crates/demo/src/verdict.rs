//! The checks that must pass after the demo. Pure.

use super::compare::Comparison;
use super::report::{CHANGED, DELETED, Outcome, Phase, RECREATED};
use super::{count, plural};

/// Limit of a reconnect without changes, in bytes both ways, regardless of the number of objects.
const RECONNECT_LIMIT: u64 = 2_000;

/// A claim and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// The claim, as a sentence without its full stop.
    pub(super) claim: String,
    /// Whether the claim is true.
    pub(super) holds: bool,
    /// Observed numbers, printed after the claim if it does not hold.
    pub(super) found: String,
}

impl Outcome {
    /// Checks every claim; the demo succeeds if all hold.
    pub(super) fn verdict(&self) -> Vec<Check> {
        vec![self.kill(), self.quiet_reconnect(), self.exact_changes(), self.agreement(), self.equality()]
    }

    fn kill(&self) -> Check {
        let (sent, new) = (self.restart.sent, self.new_to_node);
        let missing = u64::from(self.objects).saturating_sub(self.held_at_kill);
        Check {
            claim: format!("Restart after the kill: all of the {} sent were new to the node", objects(sent)),
            holds: sent == new && sent <= missing,
            found: format!("{} were, and {} were not reported before", count(new), count(missing)),
        }
    }

    fn quiet_reconnect(&self) -> Check {
        let Phase { sent, removed, reported, .. } = self.unchanged;
        let bytes = self.unchanged.bytes();
        Check {
            claim: format!("Reconnect with nothing changed: {} bytes and no object", count(bytes)),
            holds: (sent, removed, reported) == (0, 0, 0) && (1..RECONNECT_LIMIT).contains(&bytes),
            found: format!("{} sent, {} removed, {} reported", count(sent), count(removed), count(reported)),
        }
    }

    fn exact_changes(&self) -> Check {
        let Phase { sent, removed, reported, .. } = self.changes;
        let (expected_sent, expected_removed) =
            (u64::from(CHANGED + RECREATED), u64::from(DELETED + RECREATED));
        Check {
            claim: format!(
                "Reconnect after the changes: exactly {expected_sent} objects sent, {expected_removed} removed"
            ),
            holds: (sent, reported, removed) == (expected_sent, expected_sent, expected_removed),
            found: format!("{} sent, {} reported, {} removed", count(sent), count(reported), count(removed)),
        }
    }

    fn agreement(&self) -> Check {
        let inventories = self.restart.inventories + self.unchanged.inventories + self.changes.inventories;
        Check {
            claim: "Both sides agreed on the held objects at each connection".into(),
            holds: inventories == 0,
            found: plural(inventories, "inventory sent", "inventories sent"),
        }
    }

    fn equality(&self) -> Check {
        let Comparison { objects: held, records, differing, .. } = self.comparison;
        let (held, records, differing) = (held as u64, records as u64, differing as u64);
        let left = u64::from(self.objects).saturating_sub(DELETED.into());
        let compared = format!("{} and {}", objects(held), plural(records, "record", "records"));
        Check {
            claim: "Every object and every ObjectSync record is equal on both sides".into(),
            holds: differing == 0 && (held, records) == (left, left),
            found: format!("{compared} compared, {} differ", count(differing)),
        }
    }
}

fn objects(number: u64) -> String {
    plural(number, "object", "objects")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::Transferred;
    use crate::report::tests::successful;

    fn failing(outcome: &Outcome) -> Vec<String> {
        outcome.verdict().into_iter().filter(|check| !check.holds).map(|check| check.found).collect()
    }

    #[test]
    fn successful_run_passes_every_check() {
        assert_eq!(failing(&successful()), Vec::<String>::new());
    }

    #[test]
    fn each_deviation_fails_its_check() {
        let spoilt = |spoil: fn(&mut Outcome), found: &str| {
            let mut outcome = successful();
            spoil(&mut outcome);
            assert_eq!(failing(&outcome), [found]);
        };
        spoilt(|outcome| outcome.restart.sent = 461, "460 were, and 460 were not reported before");
        spoilt(|outcome| outcome.held_at_kill = 541, "460 were, and 459 were not reported before");
        spoilt(|outcome| outcome.unchanged.sent = 1, "1 sent, 0 removed, 0 reported");
        spoilt(|outcome| outcome.unchanged.transferred.up = 2_000, "0 sent, 0 removed, 0 reported");
        spoilt(
            |outcome| outcome.unchanged.transferred = Transferred::default(),
            "0 sent, 0 removed, 0 reported",
        );
        spoilt(|outcome| outcome.changes.sent = 10, "10 sent, 9 reported, 5 removed");
        spoilt(|outcome| outcome.changes.reported = 8, "9 sent, 8 reported, 5 removed");
        spoilt(|outcome| outcome.changes.removed = 3, "9 sent, 9 reported, 3 removed");
        spoilt(|outcome| outcome.restart.inventories = 1, "1 inventory sent");
        spoilt(|outcome| outcome.comparison.differing = 1, "997 objects and 997 records compared, 1 differ");
        spoilt(|outcome| outcome.comparison.objects = 996, "996 objects and 997 records compared, 0 differ");
        spoilt(|outcome| outcome.comparison.records = 0, "997 objects and 0 records compared, 0 differ");
    }
}
