//! Checksums of rows.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

/// A 64-bit checksum over parts of bytes, as SQLite stores integers. It finds damage, it proves nothing
/// to an adversary: the key is fixed. The length of each part goes in, so parts do not run together.
#[must_use]
pub fn checksum64(parts: &[&[u8]]) -> i64 {
    let mut hasher = SipHasher24::new_with_keys(0x6564_6765_7379_6e63, 1);
    for part in parts {
        hasher.write_usize(part.len());
        hasher.write(part);
    }
    hasher.finish().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_checksum_do_not_run_together() {
        assert_ne!(checksum64(&[b"ab", b"c"]), checksum64(&[b"a", b"bc"]));
    }
}
