//! The state of the comparisons kept in the database: the time of the last one, the completed
//! rules, and a marker that the Lease lacks. A lost part causes an additional query, never a
//! missing one.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::lease::Marker;
use crate::outbound::Outbound;
use crate::types::BridgeEffect;

/// The version of the text format.
const FORMAT: &str = "1";
/// The most rules stored; others are listed again by the next run.
const MAX_RULES: usize = 1024;
/// The text for an absent marker.
const NONE: &str = "none";

/// The persisted state of the rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedState {
    /// The wall-clock time of the last complete comparison.
    pub(super) compared_at: Option<i64>,
    /// The marker found in the Lease, if the comparison is complete and the marker of this database
    /// is not written yet.
    pub(super) compared_over: Option<Option<Marker>>,
    /// The rules whose lists are stored, hashed.
    pub(super) carried_out: BTreeSet<u64>,
}

impl SavedState {
    /// Parses the stored text; unreadable parts are treated as unknown.
    pub(super) fn read(text: &str) -> Self {
        let mut words = text.split(' ');
        if words.next() != Some(FORMAT) {
            return Self::default();
        }
        let compared_at = words.next().and_then(|word| word.parse().ok());
        let compared_over = words.next().and_then(|word| match word {
            NONE => Some(None),
            word => Marker::parse(word).map(Some),
        });
        let carried_out = words.filter_map(|word| u64::from_str_radix(word, 16).ok()).collect();
        Self { compared_at, compared_over, carried_out }
    }

    /// Emits the effect that stores the state.
    pub(super) fn keep(&self, outbound: &mut Outbound) {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let compared_at = or_dash(self.compared_at.map(|at| at.to_string()));
        let over = |over: &Option<Marker>| over.as_ref().map_or_else(|| NONE.to_owned(), Marker::to_string);
        let mut text = format!("{FORMAT} {compared_at} {}", or_dash(self.compared_over.as_ref().map(over)));
        for rule in self.carried_out.iter().take(MAX_RULES) {
            text.push_str(&format!(" {rule:x}"));
        }
        outbound.effects.push_back(BridgeEffect::SaveState(text));
    }

    /// Returns whether everything was compared after this marker was found in the Lease.
    pub(super) fn is_compared_over(&self, found: Option<&Marker>) -> bool {
        self.compared_over.as_ref().is_some_and(|over| over.as_ref() == found)
    }

    /// Returns the time until the next comparison is due. A wrong clock moves it forward, or delays
    /// it by at most one interval.
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

    fn kept(saved: &SavedState) -> SavedState {
        let mut outbound = outbound();
        saved.keep(&mut outbound);
        let Some(BridgeEffect::SaveState(text)) = outbound.effects.pop_front() else {
            panic!("nothing is kept")
        };
        SavedState::read(&text)
    }

    #[test]
    fn saved_state_roundtrips() {
        let marker = Marker::parse("0123456789abcdef0123456789abcdef.7");
        assert!(marker.is_some());
        for compared_over in [None, Some(None), Some(marker)] {
            for compared_at in [None, Some(-1), Some(WALL)] {
                let saved = SavedState {
                    compared_at,
                    compared_over: compared_over.clone(),
                    carried_out: [1, u64::MAX].into(),
                };
                assert_eq!(kept(&saved), saved);
            }
        }
        for odd in ["", "2 1 none", "text"] {
            assert_eq!(SavedState::read(odd), SavedState::default());
        }
    }

    #[test]
    fn a_wrong_clock_puts_nothing_off_for_longer_than_one_interval() {
        let (outbound, hour) = (outbound(), 3_600_000);
        let due = |at: i64| SavedState { compared_at: Some(at), ..SavedState::default() }.due_in(&outbound);
        assert_eq!(due(WALL), Some(Duration::from_secs(3600)));
        assert_eq!(due(WALL - hour / 4), Some(Duration::from_secs(2700)));
        for past in [WALL - hour, WALL - 99 * hour, WALL + 1, WALL + 99 * hour] {
            assert_eq!(due(past), Some(Duration::ZERO), "{past}");
        }
    }
}
