//! History of the whole fleet over the last hour, with a sample every ten seconds.

use std::collections::VecDeque;

use super::row::Tally;
use edgesync_admin::cloud::{FleetHistory, SummaryState};

/// Maximum number of samples: an hour.
const SAMPLES: usize = 360;

/// Numbers of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Time in seconds since 1970.
    pub(crate) at: i64,
    /// Nodes by state, with sums of their objects.
    pub(crate) tally: Tally,
    /// Bytes of frames to nodes since the start.
    pub(crate) sent: u64,
    /// Bytes of frames from nodes since the start.
    pub(crate) received: u64,
}

/// Ring of samples; about 36 KB.
#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Sample>);

impl History {
    pub(crate) fn push(&mut self, sample: Sample) {
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Returns a column per number, which is shorter than a record per sample.
    pub(crate) fn show(&self) -> FleetHistory {
        let column = |number: &dyn Fn(&Sample) -> u64| self.0.iter().map(number).collect::<Vec<_>>();
        let of = |state: SummaryState| column(&|sample| sample.tally.counts[state as usize]);
        FleetHistory {
            states: SummaryState::names(),
            at: self.0.iter().map(|sample| sample.at).collect(),
            counts: SummaryState::ALL.into_iter().map(of).collect(),
            held: column(&|sample| sample.tally.held),
            desired: column(&|sample| sample.tally.desired),
            bytes_sent: column(&|sample| sample.sent),
            bytes_received: column(&|sample| sample.received),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_sample_is_dropped_after_an_hour() {
        let mut history = History::default();
        for at in 0..400 {
            history.push(Sample { at, sent: 10 * u64::try_from(at).unwrap(), ..Sample::default() });
        }
        let shown = history.show();
        assert_eq!(shown.at.len(), SAMPLES);
        assert_eq!((shown.at[0], shown.at[359]), (40, 399));
        assert_eq!(shown.bytes_sent[359], 3990);
        assert_eq!(shown.counts.len(), SummaryState::ALL.len());
    }
}
