//! What is kept in the database of the comparisons: when everything was compared, which rules have been carried out, and
//! whether the Lease is still to be told. What is lost of it leads to a question more, never to one less.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::lease::Marker;
use crate::outbound::Outbound;
use crate::types::BridgeEffect;

/// The version of the text.
const FORMAT: &str = "1";
/// The most rules that are kept; others are carried out again by the next run.
const MAX_RULES: usize = 1024;
/// What stands for a marker that is not there.
const NONE: &str = "none";

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// When everything held was compared last, by the clock on the wall.
    pub(super) compared_at: Option<i64>,
    /// If the marker of this database is not in the Lease yet although everything was compared: what was found there.
    pub(super) settled_over: Option<Option<Marker>>,
    /// The rules whose lists are stored, hashed.
    pub(super) carried_out: BTreeSet<u64>,
}

impl Memory {
    /// Reads what was kept; of what cannot be read nothing is known.
    pub(super) fn read(text: &str) -> Self {
        let mut words = text.split(' ');
        if words.next() != Some(FORMAT) {
            return Self::default();
        }
        let compared_at = words.next().and_then(|word| word.parse().ok());
        let settled_over = words.next().and_then(|word| match word {
            NONE => Some(None),
            word => Marker::parse(word).map(Some),
        });
        let carried_out = words.filter_map(|word| u64::from_str_radix(word, 16).ok()).collect();
        Self { compared_at, settled_over, carried_out }
    }

    /// Has it kept.
    pub(super) fn keep(&self, outbound: &mut Outbound) {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let compared_at = or_dash(self.compared_at.map(|at| at.to_string()));
        let over = |over: &Option<Marker>| over.as_ref().map_or_else(|| NONE.to_owned(), Marker::to_string);
        let mut text = format!("{FORMAT} {compared_at} {}", or_dash(self.settled_over.as_ref().map(over)));
        for rule in self.carried_out.iter().take(MAX_RULES) {
            text.push_str(&format!(" {rule:x}"));
        }
        outbound.effects.push_back(BridgeEffect::Remember(text));
    }

    /// Whether everything was compared after this was found in the Lease.
    pub(super) fn is_settled_over(&self, found: Option<&Marker>) -> bool {
        self.settled_over.as_ref().is_some_and(|over| over.as_ref() == found)
    }

    /// How long it is until everything is to be compared again. A clock that was wrong brings it forward, and puts it off
    /// by one interval at most.
    pub(super) fn due_in(&self, outbound: &Outbound) -> Option<Duration> {
        let interval = outbound.config.verify_interval;
        let ago = outbound.at.wall.checked_sub(self.compared_at?)?;
        let ago = u64::try_from(ago).map_or(interval, Duration::from_millis);
        Some(interval.saturating_sub(ago))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{WALL, outbound};

    fn kept(memory: &Memory) -> Memory {
        let mut outbound = outbound();
        memory.keep(&mut outbound);
        let Some(BridgeEffect::Remember(text)) = outbound.effects.pop_front() else {
            panic!("nothing is kept")
        };
        Memory::read(&text)
    }

    #[test]
    fn what_is_kept_is_read() {
        let marker = Marker::parse("0123456789abcdef0123456789abcdef.7");
        assert!(marker.is_some());
        for settled_over in [None, Some(None), Some(marker)] {
            for compared_at in [None, Some(-1), Some(WALL)] {
                let memory = Memory {
                    compared_at,
                    settled_over: settled_over.clone(),
                    carried_out: [1, u64::MAX].into(),
                };
                assert_eq!(kept(&memory), memory);
            }
        }
        for odd in ["", "2 1 none", "text"] {
            assert_eq!(Memory::read(odd), Memory::default());
        }
    }

    #[test]
    fn a_wrong_clock_puts_nothing_off_for_longer_than_one_interval() {
        let (outbound, hour) = (outbound(), 3_600_000);
        let due = |at: i64| Memory { compared_at: Some(at), ..Memory::default() }.due_in(&outbound);
        assert_eq!(due(WALL), Some(Duration::from_secs(3600)));
        assert_eq!(due(WALL - hour / 4), Some(Duration::from_secs(2700)));
        for past in [WALL - hour, WALL - 99 * hour, WALL + 1, WALL + 99 * hour] {
            assert_eq!(due(past), Some(Duration::ZERO), "{past}");
        }
    }
}
