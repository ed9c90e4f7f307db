//! Checksums of rows against damage of the medium.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

/// Returns a 64-bit checksum over several byte strings, signed as SQLite stores integers.
///
/// It detects damage, not tampering: the key is fixed. The length of each part is hashed as eight
/// little-endian bytes, so parts do not run together and a card may move between machines.
#[must_use]
pub fn checksum64(parts: &[&[u8]]) -> i64 {
    let mut hasher = SipHasher24::new_with_keys(0x6564_6765_7379_6e63, 1);
    for part in parts {
        hasher.write(&(part.len() as u64).to_le_bytes());
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

    #[test]
    fn a_checksum_is_the_same_on_every_machine() {
        let long = "\u{e4}".repeat(1000);
        let golden: [(&[&[u8]], i64); 6] = [
            (&[], -899_282_996_587_023_288),
            (&[b""], 943_722_756_207_604_103),
            (&[b"a"], -9_168_853_924_552_564_824),
            (&[b"ab", b"c"], 1_889_726_152_205_359_809),
            (&[b"a", b"bc"], 8_806_619_073_699_555_528),
            (&[long.as_bytes(), b"x"], 8_153_665_748_105_322_552),
        ];
        for (parts, expected) in golden {
            assert_eq!(checksum64(parts), expected, "{parts:?}");
        }
    }
}
