//! The random numbers of the process.

use std::sync::LazyLock;

use edgesync_object::random::Random;
use uuid::Uuid;

/// Returns the generator of the process, for session ids and jitter. Only its first use asks the
/// system: the agent needs a number for each frame.
pub(crate) fn generator() -> &'static Random {
    static GENERATOR: LazyLock<Random> = LazyLock::new(|| {
        let (high, low) = Uuid::new_v4().as_u64_pair();
        // The constant bits of a v4 UUID are not at the same places in both halves.
        Random::seeded(high ^ low.rotate_left(32))
    });
    &GENERATOR
}

/// Returns a random number, sufficient for session ids and jitter.
pub fn random() -> u64 {
    generator().next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_in_all_their_bits() {
        let numbers: Vec<u64> = (0..200).map(|_| random()).collect();
        assert_eq!(numbers.iter().fold(0, |all, number| all | number), u64::MAX);
        assert_eq!(numbers.iter().fold(u64::MAX, |all, number| all & number), 0);
    }
}
