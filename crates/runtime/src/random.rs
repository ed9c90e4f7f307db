//! Random numbers without secrecy.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Step of SplitMix64, 2^64 divided by the golden ratio (Steele, Lea, Flood: "Fast splittable
/// pseudorandom number generators").
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a random number, sufficient for session ids and jitter. Only the first call asks the
/// system: the agent needs a number for each frame.
pub fn random() -> u64 {
    static STATE: LazyLock<AtomicU64> = LazyLock::new(|| {
        let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
        // The constant bits of a v4 UUID are not at the same places in both halves.
        AtomicU64::new(high ^ low.rotate_left(32))
    });
    mix(STATE.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP))
}

/// Spreads all bits of the state of SplitMix64 over its output.
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
        let outputs = [1, 2, 3].map(|step: u64| mix(1_234_567_u64.wrapping_add(STEP.wrapping_mul(step))));
        assert_eq!(
            outputs,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn numbers_differ_in_all_their_bits() {
        let numbers: Vec<u64> = (0..200).map(|_| random()).collect();
        assert_eq!(numbers.iter().fold(0, |all, number| all | number), u64::MAX);
        assert_eq!(numbers.iter().fold(u64::MAX, |all, number| all & number), 0);
    }
}
