//! Progress of a replica through the uploads of a node, where no transaction covers an effect and
//! its number.

use crate::upload::{IngestCursor, Lane, Refused, RefusedReason};

/// The numbers that have taken effect at this replica, and the refusals not answered yet.
///
/// The numbers start at those that the node calls confirmed, so a replica that takes over a node
/// may repeat unconfirmed effects of its predecessor.
#[derive(Debug, Default)]
pub struct IngestProgress {
    cursor: IngestCursor,
    /// Refusals of a batch that failed later, returned with the next batch.
    refused: Vec<(Lane, Refused)>,
}

impl IngestProgress {
    /// Begins a batch.
    pub fn begin(&mut self, outbox: &str, lane: Lane, confirmed: u64) {
        self.cursor.begin(outbox, lane, confirmed);
    }

    /// Returns whether an item has taken effect or was refused.
    #[must_use]
    pub fn is_done(&self, outbox: &str, lane: Lane, seq: u64) -> bool {
        // The node may have started another outbox since the batch began.
        self.cursor.outbox == outbox && seq <= self.cursor.last.get(lane)
    }

    /// Records that an item has taken effect, or was refused permanently.
    pub fn record(
        &mut self,
        outbox: &str,
        (lane, seq): (Lane, u64),
        refusal: Option<(RefusedReason, String)>,
    ) {
        if self.cursor.outbox == outbox
            && self.cursor.accept(lane, seq)
            && let Some((reason, message)) = refusal
        {
            self.refused.push((lane, Refused { seq, reason, message }));
        }
    }

    /// Ends a batch whose items are all recorded. Returns the numbers and the refusals of its lane.
    pub fn finish(&mut self, lane: Lane, confirmed: u64) -> (IngestCursor, Vec<Refused>) {
        let refused = self.refused.extract_if(.., |(of, _)| *of == lane).map(|(_, refused)| refused);
        let refused = refused.filter(|refused| refused.seq > confirmed).collect();
        (self.cursor.clone(), refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal() -> Option<(RefusedReason, String)> {
        Some((RefusedReason::Invalid, "wrong".to_owned()))
    }

    #[test]
    fn refusals_survive_the_failure_of_a_later_item() {
        let mut progress = IngestProgress::default();
        progress.begin("a", Lane::Status, 3);
        assert!(progress.is_done("a", Lane::Status, 3) && !progress.is_done("a", Lane::Status, 4));
        progress.record("a", (Lane::Status, 4), refusal());
        // The next item fails, and the node sends both again.
        progress.begin("a", Lane::Status, 3);
        assert!(progress.is_done("a", Lane::Status, 4));
        progress.record("a", (Lane::Status, 5), None);
        let (cursor, refused) = progress.finish(Lane::Status, 3);
        assert_eq!((cursor.last.status, refused.len()), (5, 1));
        assert_eq!(progress.finish(Lane::Status, 3).1.len(), 0, "it is answered once");
    }

    #[test]
    fn another_outbox_ends_the_progress_of_a_batch() {
        let mut progress = IngestProgress::default();
        progress.begin("a", Lane::Status, 0);
        progress.begin("b", Lane::Status, 0);
        progress.record("a", (Lane::Status, 1), refusal());
        assert!(!progress.is_done("a", Lane::Status, 1) && !progress.is_done("b", Lane::Status, 1));
        assert_eq!(progress.finish(Lane::Status, 0).1.len(), 0);
    }
}
