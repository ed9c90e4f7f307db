//! Parses certificate requests (PKCS#10, DER) before they are trusted. Pure; accepts arbitrary
//! bytes.

use x509_parser::asn1_rs::{Any, DerParser, FromDer as _, SequenceIterator};
use x509_parser::certification_request::X509CertificationRequest;

use edgesync_transport::tls::Subject;

const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `id-at-commonName` and `id-at-organizationName` in DER.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];

/// The subject and the key of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestParts<'a> {
    pub(super) subject: Subject,
    /// The public key, with its algorithm.
    pub(super) key: &'a [u8],
}

/// Reason of a refused certificate request, in words for the requester.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    /// It is no PKCS#10, or something follows it.
    #[error("not a certificate request in DER (PKCS#10)")]
    NotDer,
    /// Programs may disagree about whom it names.
    #[error("ambiguous subject: each attribute must be there once, by itself, as text")]
    Subject,
    /// The library refuses it, such as for its signature.
    #[error("not supported: {0}")]
    Unsupported(rcgen::Error),
    /// Key and signature do not belong together, or have another algorithm.
    #[error("key must be P-256, P-384, Ed25519 or RSA, signed with SHA-256 (P-384: SHA-384)")]
    Key,
}

/// Parses a request. The subject must be unambiguous: each attribute once, in a separate set, as
/// text.
pub(super) fn read(der: &[u8]) -> Result<RequestParts<'_>, RequestError> {
    let Ok(([], request)) = X509CertificationRequest::from_der(der) else {
        return Err(RequestError::NotDer);
    };
    let info = request.certification_request_info;
    let subject = parse_name(info.subject.as_raw()).ok_or(RequestError::Subject)?;
    Ok(RequestParts { subject, key: info.subject_pki.raw })
}

/// Parses a `Name` to its last byte, which the library does not.
fn parse_name(name: &[u8]) -> Option<Subject> {
    let mut subject = Subject::default();
    let mut seen = Vec::new();
    for set in children(&Any::from_der(name).ok()?.1, SEQUENCE)? {
        let [attribute] = children(&set, SET)?.try_into().ok()?;
        let [kind, value]: [Any<'_>; 2] = children(&attribute, SEQUENCE)?.try_into().ok()?;
        if tag(&kind) != Some(OBJECT_IDENTIFIER) || seen.contains(&kind.data) {
            return None;
        }
        seen.push(kind.data);
        let is_text = matches!(tag(&value)?, UTF8_STRING | PRINTABLE_STRING | IA5_STRING);
        let text = std::str::from_utf8(value.data).ok().filter(|_| is_text)?;
        match kind.data {
            COMMON_NAME => text.clone_into(&mut subject.common_name),
            ORGANIZATION => text.clone_into(&mut subject.organization),
            _ => {}
        }
    }
    Some(subject)
}

/// The children of an element with this tag; `None` for another tag.
fn children<'a>(element: &Any<'a>, of: u8) -> Option<Vec<Any<'a>>> {
    let children = SequenceIterator::<Any<'a>, DerParser>::new(element.data);
    children.collect::<Result<_, _>>().ok().filter(|_| tag(element) == Some(of))
}

/// The tag byte with class and form; `None` for tags of several bytes.
fn tag(element: &Any<'_>) -> Option<u8> {
    match element.header.raw_tag() {
        Some(&[tag]) => Some(tag),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_fuzz::fuzz;
    use proptest::prelude::*;

    const BIT_STRING: u8 = 0x03;
    const BMP_STRING: u8 = 0x1e;
    /// `attributes` of a request.
    const CONTEXT_0: u8 = 0xa0;

    /// Encodes an element with this tag and content.
    fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = content.len();
        let mut out = vec![tag];
        match length {
            0..=0x7f => out.push(length as u8),
            0x80..=0xff => out.extend([0x81, length as u8]),
            _ => out.extend([0x82, (length >> 8) as u8, length as u8]),
        }
        out.extend(content);
        out
    }

    fn attribute(id: &[u8], tag: u8, text: &str) -> Vec<u8> {
        element(SEQUENCE, &[&element(OBJECT_IDENTIFIER, &[id]), &element(tag, &[text.as_bytes()])])
    }

    fn algorithm() -> Vec<u8> {
        element(SEQUENCE, &[&element(OBJECT_IDENTIFIER, &[&[0x2a, 3, 4]])])
    }

    fn key() -> Vec<u8> {
        element(SEQUENCE, &[&algorithm(), &element(BIT_STRING, &[&[0, 7]])])
    }

    fn csr(sets: &[Vec<u8>]) -> Vec<u8> {
        let name = element(SEQUENCE, &sets.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let info = element(SEQUENCE, &[&[2, 1, 0], &name, &key(), &element(CONTEXT_0, &[])]);
        element(SEQUENCE, &[&info, &algorithm(), &element(BIT_STRING, &[&[0]])])
    }

    fn set(parts: &[&[u8]]) -> Vec<u8> {
        element(SET, parts)
    }

    #[test]
    fn an_unambiguous_subject_is_read() {
        let node = attribute(COMMON_NAME, UTF8_STRING, &"n".repeat(200));
        let der = csr(&[set(&[&attribute(ORGANIZATION, PRINTABLE_STRING, "system:nodes")]), set(&[&node])]);
        let parts = read(&der).unwrap();
        assert_eq!(parts.subject.common_name, "n".repeat(200));
        assert_eq!(parts.subject.organization, "system:nodes");
        assert_eq!(parts.key, key());
    }

    #[test]
    fn an_ambiguous_subject_is_refused() {
        let a = attribute(COMMON_NAME, UTF8_STRING, "a");
        let b = attribute(COMMON_NAME, UTF8_STRING, "b");
        for sets in [
            vec![set(&[&a]), set(&[&b])],
            vec![set(&[&a, &attribute(ORGANIZATION, UTF8_STRING, "o")])],
            vec![set(&[])],
            vec![set(&[&attribute(COMMON_NAME, BMP_STRING, "\0a")])],
            vec![set(&[&attribute(COMMON_NAME, UTF8_STRING | 0x80, "a")])],
            vec![a.clone()],
            vec![set(&[&a]), b"\x0c".to_vec()],
            vec![set(&[&a, b"\x0c"])],
        ] {
            assert_eq!(read(&csr(&sets)), Err(RequestError::Subject), "{sets:?}");
        }
    }

    #[test]
    fn bytes_after_a_request_are_refused() {
        let mut der = csr(&[]);
        assert!(read(&der).is_ok());
        der.push(0);
        assert_eq!(read(&der), Err(RequestError::NotDer));
    }

    #[test]
    fn fuzz_certificate_requests() {
        let node = attribute(COMMON_NAME, UTF8_STRING, "edge-1");
        let organization = attribute(ORGANIZATION, UTF8_STRING, "system:nodes");
        let samples = [csr(&[]), csr(&[set(&[&organization]), set(&[&node])])];
        fuzz("certificate-request", &samples, |bytes| {
            let _ = read(bytes);
            let _ = super::super::authority::Authority::read_request(bytes);
        });
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
        }

        #[test]
        fn any_damage_to_a_request_is_parsed_without_panic(at in 0..200usize, to in any::<u8>()) {
            let node = attribute(COMMON_NAME, UTF8_STRING, "edge-1");
            let mut der = csr(&[set(&[&attribute(ORGANIZATION, UTF8_STRING, "system:nodes")]), set(&[&node])]);
            let at = at % der.len();
            der[at] = to;
            let _ = read(&der);
        }
    }
}
