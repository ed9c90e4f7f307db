//! The format of the key file: one line per key, the newest last, and a checksum over all.
//!
//! ```text
//! edgesync-seal 1
//! key 2943785110 2026-11-21T13:40:00Z plain <base64>
//! key 1193046471 2026-11-22T13:40:00Z wrapped <base64>
//! sum <SHA-256 of all above, hex>
//! ```
//!
//! Any deviation counts as damage of the whole file: keys that open half of the rows would hide the
//! loss of the others.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use ring::digest;

use edgesync_object::encoding::hex;

const TITLE: &str = "edgesync-seal 1\n";
/// The most keys in a file; a rotation needs two.
const MAX_KEYS: usize = 64;

/// One key line of the file.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// The key's number, random.
    pub(super) number: u32,
    /// The creation time in RFC 3339.
    pub(super) made: String,
    /// Whether `bytes` are wrapped.
    pub(super) wrapped: bool,
    /// The key, or nonce, wrapped key and tag.
    pub(super) bytes: Vec<u8>,
}

/// Prints no key bytes.
impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("number", &self.number).finish_non_exhaustive()
    }
}

pub(super) fn render(lines: &[Line]) -> String {
    let mut text = TITLE.to_owned();
    for Line { number, made, wrapped, bytes } in lines {
        let how = if *wrapped { "wrapped" } else { "plain" };
        text += &format!("key {number} {made} {how} {}\n", BASE64.encode(bytes));
    }
    let sum = sum(&text);
    text + "sum " + &sum + "\n"
}

/// Parses the text; `None` if it differs from the output of [`render`].
pub(super) fn parse(text: &str) -> Option<Vec<Line>> {
    let (body, sum_line) = text.split_at_checked(text.rfind("sum ")?)?;
    if sum_line.strip_prefix("sum ")?.strip_suffix('\n')? != sum(body) {
        return None;
    }
    let lines: Option<Vec<Line>> = body.strip_prefix(TITLE)?.lines().map(parse_line).collect();
    lines.filter(|lines| (1..=MAX_KEYS).contains(&lines.len()))
}

fn parse_line(line: &str) -> Option<Line> {
    let mut words = line.strip_prefix("key ")?.split(' ');
    let (number, made, how, bytes) = (words.next()?, words.next()?, words.next()?, words.next()?);
    if words.next().is_some() {
        return None;
    }
    let wrapped = match how {
        "wrapped" => true,
        "plain" => false,
        _ => return None,
    };
    let bytes = BASE64.decode(bytes).ok()?;
    Some(Line { number: number.parse().ok()?, made: made.to_owned(), wrapped, bytes })
}

fn sum(text: &str) -> String {
    hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line() -> impl Strategy<Value = Line> {
        let made = "[0-9TZ:.-]{1,30}";
        (any::<u32>(), made, any::<bool>(), prop::collection::vec(any::<u8>(), 0..70))
            .prop_map(|(number, made, wrapped, bytes)| Line { number, made, wrapped, bytes })
    }

    proptest! {
        #[test]
        fn a_rendered_file_is_parsed(lines in prop::collection::vec(line(), 1..4)) {
            prop_assert_eq!(parse(&render(&lines)), Some(lines));
        }

        #[test]
        fn no_text_panics(text in any::<String>(), body in "(edgesync-seal 1\n)?(key [0-9]{0,12} [a-z]{0,9} (plain|wrapped)? ?[a-zA-Z0-9+/ ]{0,9}\n){0,3}") {
            prop_assert_eq!(parse(&text), None);
            prop_assert_eq!(parse(&body), None);
            // Even with a matching checksum, only well-formed lines are accepted.
            let summed = format!("{body}sum {}\n", sum(&body));
            if let Some(lines) = parse(&summed) {
                prop_assert!(!lines.is_empty());
            }
        }

        #[test]
        fn one_changed_byte_is_noticed(lines in prop::collection::vec(line(), 1..3), at in any::<prop::sample::Index>(), change in 1u8..128) {
            let mut bytes = render(&lines).into_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            if let Ok(text) = String::from_utf8(bytes) {
                prop_assert_eq!(parse(&text), None);
            }
        }
    }

    #[test]
    fn a_file_that_was_cut_off_anywhere_is_damaged() {
        let lines = [1, 2].map(|number| Line {
            number,
            made: "2026-11-21T00:00:00Z".into(),
            wrapped: false,
            bytes: vec![7; 32],
        });
        let text = render(&lines);
        for length in 0..text.len() {
            assert_eq!(parse(&text[..length]), None, "{length} bytes");
        }
        assert_eq!(parse(&(text.clone() + "\n")), None);
        assert_eq!(parse(&render(&[])), None);
    }
}
