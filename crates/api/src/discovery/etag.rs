//! Entity tags of documents. Pure.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

/// Digest of a document, computed in parts. Not collision-resistant: kinds are defined only by
/// administrators, who may change everything anyway.
#[derive(Default)]
pub(crate) struct Digest(SipHasher24);

impl Digest {
    pub(crate) fn add(&mut self, part: &str) {
        self.0.write(part.as_bytes());
    }

    /// Returns the digest in hexadecimal.
    pub(crate) fn hex(&self) -> String {
        format!("{:032X}", self.0.finish128().as_u128())
    }
}

/// Returns the `ETag` value of a text, with quotes.
pub(crate) fn etag(text: &str) -> String {
    let mut digest = Digest::default();
    digest.add(text);
    format!("\"{}\"", digest.hex())
}

/// Returns whether an `If-None-Match` header contains the tag, which means 304. Both with quotes;
/// weak tags match too.
pub(crate) fn matches_etag(if_none_match: &str, etag: &str) -> bool {
    let mut tags = if_none_match.split(',').map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_depends_on_the_text_not_on_its_parts() {
        let mut parts = Digest::default();
        parts.add("one ");
        parts.add("two");
        assert_eq!(format!("\"{}\"", parts.hex()), etag("one two"));
        assert_ne!(etag("one two"), etag("one  two"));
    }

    #[test]
    fn if_none_match_may_list_several_tags() {
        let tag = etag("x");
        assert!(matches_etag(&tag, &tag));
        assert!(matches_etag(&format!("\"a\", W/{tag}"), &tag));
        assert!(matches_etag("*", &tag));
        assert!(!matches_etag("", &tag));
        assert!(!matches_etag(tag.trim_matches('"'), &tag));
    }
}
