//! Random numbers without secrecy.

/// Returns a random number, sufficient for session ids and jitter.
pub fn random() -> u64 {
    let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
    // The version bits of a v4 UUID are constant; the mixing spreads the others over them.
    high.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ high.rotate_left(29)
}
