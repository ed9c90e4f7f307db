//! History of one node over the last hour: a sample per minute, with two bytes per number, because
//! there may be a hundred thousand nodes.

use edgesync_admin::cloud::NodeHistory;

/// Maximum number of samples: an hour. They take 360 bytes per node.
const SAMPLES: usize = 60;

/// Floating-point number of 16 bits: the first twelve bits of a number and the count of bits
/// omitted. The error is less than a thousandth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Coarse(u16);

impl Coarse {
    fn of(number: u64) -> Self {
        let shift = (52_u32).saturating_sub(number.leading_zeros()).min(15);
        let bits = u16::try_from((number >> shift).min(0xfff)).unwrap_or(0xfff);
        Self((u16::try_from(shift).unwrap_or(15) << 12) | bits)
    }

    fn number(self) -> u64 {
        u64::from(self.0 & 0xfff) << (self.0 >> 12)
    }
}

/// Numbers of a node at one moment. Bytes are counted from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MinuteSample {
    /// Report latency in milliseconds; zero if unknown.
    pub(crate) latency: u64,
    /// Bytes of frames sent to the node.
    pub(crate) sent: u64,
    /// Bytes of frames received from it.
    pub(crate) received: u64,
}

/// Ring of samples; see the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    samples: Option<Box<[[Coarse; 3]; SAMPLES]>>,
    /// Number of samples, up to [`SAMPLES`].
    count: u16,
    next: u16,
    before: MinuteSample,
}

impl Past {
    /// Adds the sample of a minute. Allocates nothing for a node that was never connected.
    pub(crate) fn push(&mut self, seen: MinuteSample) {
        if self.samples.is_none() && seen == MinuteSample::default() {
            return;
        }
        let samples = self.samples.get_or_insert_with(|| Box::new([[Coarse::default(); 3]; SAMPLES]));
        let sent = seen.sent.saturating_sub(self.before.sent);
        let received = seen.received.saturating_sub(self.before.received);
        if let Some(place) = samples.get_mut(usize::from(self.next)) {
            *place = [Coarse::of(seen.latency), Coarse::of(sent), Coarse::of(received)];
        }
        self.next = (self.next + 1) % SAMPLES as u16;
        self.count = (self.count + 1).min(SAMPLES as u16);
        self.before = seen;
    }

    /// Returns the samples, oldest first; `last` is the time of the newest, in seconds since 1970.
    pub(crate) fn show(&self, last: i64) -> NodeHistory {
        let (count, next) = (usize::from(self.count), usize::from(self.next));
        let places = (0..count).map(|number| (next + SAMPLES - count + number) % SAMPLES);
        let samples = self.samples.as_deref();
        let taken: Vec<[Coarse; 3]> =
            places.filter_map(|place| samples.and_then(|all| all.get(place)).copied()).collect();
        let column = |which: usize| taken.iter().map(|sample| sample[which].number()).collect::<Vec<_>>();
        NodeHistory {
            last,
            seconds: 60,
            latency_milliseconds: column(0),
            bytes_sent: column(1),
            bytes_received: column(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_keep_a_precision_of_a_thousandth() {
        for number in [0, 1, 99, 4095, 4096, 10_000, 65_536, 1_234_567, 100_000_000] {
            let kept = Coarse::of(number).number();
            assert!(number - kept <= number / 1000, "{number} became {kept}");
        }
        assert!(Coarse::of(u64::MAX).number() > 100 << 20, "what is too large is a large number");
    }

    #[test]
    fn samples_keep_their_order() {
        let mut past = Past::default();
        past.push(MinuteSample::default());
        assert!(past.samples.is_none());
        for minute in 1..=70 {
            past.push(MinuteSample { latency: minute, sent: 100 * minute, received: 7 });
        }
        let shown = past.show(5);
        let latency: Vec<u64> = (11..=70).collect();
        assert_eq!(shown.latency_milliseconds, latency);
        assert_eq!(shown.bytes_sent, [100; 60]);
        assert_eq!(shown.bytes_received[59], 0);
        let mut young = Past::default();
        young.push(MinuteSample { latency: 3, sent: 50, received: 60 });
        young.push(MinuteSample { latency: 4, sent: 55, received: 60 });
        let shown = young.show(5);
        assert_eq!((shown.bytes_sent, shown.bytes_received), (vec![50, 5], vec![60, 0]));
    }
}
