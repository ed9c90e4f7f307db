//! Encodes bytes in hexadecimal, and texts for a URI (RFC 3986).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Everything but unreserved characters (RFC 3986, section 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Encodes bytes in lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|nibble| char::from(DIGITS[usize::from(nibble)]))
        .collect()
}

/// Percent-encodes text as one path segment or one query value.
#[must_use]
pub fn percent(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_two_lower_case_digits_each() {
        assert_eq!(hex(&[0, 9, 0x1f, 0xab, 0xff]), "00091fabff");
        assert_eq!(hex(&[]), "");
    }

    #[test]
    fn unreserved_characters_alone_stay_as_they_are() {
        assert_eq!(percent("AZaz09-._~"), "AZaz09-._~");
        assert_eq!(percent("a/b c%+?&=:ä"), "a%2Fb%20c%25%2B%3F%26%3D%3A%C3%A4");
    }
}
