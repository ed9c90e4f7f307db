//! Entity tags: whether a client already has a document. Pure.

use std::hash::Hasher;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use siphasher::sip128::{Hasher128, SipHasher24};

/// A digest of a document that comes in parts. It tells contents apart that nobody made to collide:
/// kinds are defined by those who may change everything anyway.
#[derive(Default)]
pub(crate) struct Digest(SipHasher24);

impl Digest {
    /// Adds a part.
    pub(crate) fn add(&mut self, part: &str) {
        self.0.write(part.as_bytes());
    }

    /// The digest in hexadecimal digits.
    pub(crate) fn hex(&self) -> String {
        format!("{:032X}", self.0.finish128().as_u128())
    }

    /// Half of the digest in base64.
    pub(crate) fn short(&self) -> String {
        STANDARD.encode(self.0.finish128().h1.to_be_bytes())
    }
}

/// The value of an `ETag` header for a text, quotes included.
pub(crate) fn etag(text: &str) -> String {
    let mut digest = Digest::default();
    digest.add(text);
    format!("\"{}\"", digest.hex())
}

/// Whether an `If-None-Match` header names the tag: the answer is 304 then. Both with quotes; weak tags
/// count as well.
pub(crate) fn matches_etag(if_none_match: &str, etag: &str) -> bool {
    let mut tags = if_none_match.split(',').map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_depends_on_the_text_and_not_on_its_parts() {
        let mut parts = Digest::default();
        parts.add("one ");
        parts.add("two");
        assert_eq!(format!("\"{}\"", parts.hex()), etag("one two"));
        assert_ne!(etag("one two"), etag("one  two"));
    }

    #[test]
    fn a_client_may_name_several_tags() {
        let tag = etag("x");
        assert!(matches_etag(&tag, &tag));
        assert!(matches_etag(&format!("\"a\", W/{tag}"), &tag));
        assert!(matches_etag("*", &tag));
        assert!(!matches_etag("", &tag));
        assert!(!matches_etag(tag.trim_matches('"'), &tag));
    }
}
