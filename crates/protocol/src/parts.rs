//! Reassembles messages that were too large for one frame.

use std::collections::VecDeque;

use edgesync_object::ResourceVersion;

use super::change::{RejectReason, Rejected, Uid};
use super::frame::Part;

/// The largest number of messages in reassembly at one time.
const MAX_OPEN: usize = 2;
/// Allowance for header and route around the object, in bytes.
const ENVELOPE: u64 = 4096;

/// The outcome of one part.
#[derive(Debug)]
pub(super) enum Assembled {
    /// More parts are needed; `received` bytes have arrived without a gap.
    Waiting { received: u64 },
    /// The message is complete.
    Message(String),
    /// The message exceeds the size limit.
    Rejected(Rejected),
}

#[derive(Debug)]
struct Open {
    uid: Uid,
    version: ResourceVersion,
    total: u64,
    text: String,
}

/// The messages in reassembly, bounded in number and size.
#[derive(Debug)]
pub(super) struct Assembler {
    open: VecDeque<Open>,
    max_object: u64,
}

impl Assembler {
    pub(super) fn new(max_object: usize) -> Self {
        Self { open: VecDeque::new(), max_object: max_object as u64 }
    }

    /// Discards all partial messages: a new session sends from the start.
    pub(super) fn clear(&mut self) {
        self.open.clear();
    }

    /// Takes the next part. A part that does not continue the message is dropped; the sender learns
    /// how much has arrived and resumes there.
    pub(super) fn take(&mut self, part: Part) -> Assembled {
        // A part without data is an announcement: the sender knows the limit and requests the
        // rejection.
        if part.total > self.max_object.saturating_add(ENVELOPE) || part.data.is_empty() {
            return Assembled::Rejected(Rejected {
                uid: part.uid,
                resource_version: part.resource_version,
                reason: RejectReason::TooLarge,
                message: format!("must be at most {} bytes, has {}", self.max_object, part.total),
                object: part.object,
            });
        }
        let same = |open: &Open| open.uid == part.uid && open.version == part.resource_version;
        if part.offset == 0 {
            self.open.retain(|open| open.uid != part.uid);
            if self.open.len() == MAX_OPEN {
                self.open.pop_front();
            }
            self.open.push_back(Open {
                uid: part.uid.clone(),
                version: part.resource_version.clone(),
                total: part.total,
                text: String::new(),
            });
        }
        let Some((at, open)) = self.open.iter_mut().enumerate().find(|(_, open)| same(open)) else {
            return Assembled::Waiting { received: 0 };
        };
        let received = open.text.len() as u64;
        let end = received + part.data.len() as u64;
        if part.offset != received || end > open.total {
            return Assembled::Waiting { received };
        }
        open.text.push_str(&part.data);
        if end < open.total {
            return Assembled::Waiting { received: end };
        }
        match self.open.remove(at) {
            Some(open) => Assembled::Message(open.text),
            None => Assembled::Waiting { received: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(uid: &str, offset: usize, total: usize, data: &str) -> Part {
        Part {
            session: "s".into(),
            receipt: 0,
            uid: uid.into(),
            resource_version: 1.into(),
            offset: offset as u64,
            total: total as u64,
            data: data.into(),
            object: None,
        }
    }

    #[test]
    fn parts_in_order_make_the_message() {
        let mut parts = Assembler::new(100);
        assert!(matches!(parts.take(part("a", 0, 6, "ab")), Assembled::Waiting { received: 2 }));
        assert!(matches!(parts.take(part("b", 0, 2, "x")), Assembled::Waiting { .. }));
        assert!(matches!(parts.take(part("a", 2, 6, "cd")), Assembled::Waiting { received: 4 }));
        let Assembled::Message(text) = parts.take(part("a", 4, 6, "ef")) else { panic!("complete") };
        assert_eq!(text, "abcdef");
        let Assembled::Message(text) = parts.take(part("b", 1, 2, "y")) else { panic!("complete") };
        assert_eq!(text, "xy");
    }

    #[test]
    fn gaps_repeats_and_overruns_are_dropped() {
        let mut parts = Assembler::new(100);
        assert!(matches!(parts.take(part("a", 2, 6, "cd")), Assembled::Waiting { .. }));
        parts.take(part("a", 0, 4, "ab"));
        assert!(matches!(parts.take(part("a", 3, 4, "d")), Assembled::Waiting { .. }));
        assert!(matches!(parts.take(part("a", 2, 4, "cdefgh")), Assembled::Waiting { .. }));
        let Assembled::Message(text) = parts.take(part("a", 2, 4, "cd")) else { panic!("complete") };
        assert_eq!(text, "abcd");
    }

    #[test]
    fn a_too_large_message_is_rejected_at_its_first_part() {
        let mut parts = Assembler::new(100);
        let Assembled::Rejected(rejected) = parts.take(part("a", 0, 20_000_000, "")) else {
            panic!("must be refused");
        };
        assert_eq!(rejected.reason, RejectReason::TooLarge);
    }

    #[test]
    fn the_number_of_open_messages_is_bounded() {
        let mut parts = Assembler::new(100);
        for n in 0..100 {
            parts.take(part(&format!("u{n}"), 0, 10, "x"));
        }
        assert_eq!(parts.open.len(), MAX_OPEN);
    }
}
