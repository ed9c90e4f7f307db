//! Random numbers without secrecy, from a seed.

use std::sync::atomic::{AtomicU64, Ordering};

/// Step of SplitMix64, 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators"): sufficient
/// for ids, jitter and simulations. Threads may share one.
///
/// ```
/// use edgesync_object::random::Random;
///
/// let (one, other) = (Random::seeded(7), Random::seeded(7));
/// assert_eq!(one.next_u64(), other.next_u64());
/// assert!((0.0..1.0).contains(&one.next_fraction()));
/// ```
#[derive(Debug)]
pub struct Random(AtomicU64);

impl Random {
    /// Creates a generator whose numbers follow from the seed.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Adds randomness to the state, without loss of that which it has.
    pub fn stir(&self, random: u64) {
        self.0.fetch_xor(random, Ordering::Relaxed);
    }

    /// Returns the next number.
    pub fn next_u64(&self) -> u64 {
        mix(self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP))
    }

    /// Returns a number in `[0, 1)`.
    pub fn next_fraction(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let fraction = (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        fraction
    }
}

/// Advances a state that is owned, and returns its next number: the same as [`Random`].
pub fn split_mix_64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    mix(*state)
}

/// Spreads all bits of the state over the output.
fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // The first outputs for the seed 1234567, as published with other implementations.
        let random = Random::seeded(1_234_567);
        let outputs = [random.next_u64(), random.next_u64(), random.next_u64()];
        assert_eq!(
            outputs,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        let mut state = 1_234_567;
        assert_eq!(outputs, [(); 3].map(|()| split_mix_64(&mut state)));
    }

    #[test]
    fn fractions_cover_the_whole_interval() {
        let random = Random::seeded(1);
        let fractions: Vec<f64> = (0..1000).map(|_| random.next_fraction()).collect();
        assert!(fractions.iter().all(|fraction| (0.0..1.0).contains(fraction)));
        for tenth in 0..10 {
            let (from, to) = (f64::from(tenth) / 10.0, f64::from(tenth + 1) / 10.0);
            assert!(fractions.iter().any(|fraction| (from..to).contains(fraction)), "{from}");
        }
    }

    #[test]
    fn stirring_changes_the_numbers() {
        let (one, other) = (Random::seeded(1), Random::seeded(1));
        other.stir(2);
        assert_ne!(one.next_u64(), other.next_u64());
    }
}
