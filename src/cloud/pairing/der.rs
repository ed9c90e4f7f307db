//! Just enough DER (X.690) to look into certificates and requests: which elements there are, not what all of them mean.
//! Pure; takes any bytes.

use crate::tls::Subject;

const BOOLEAN: u8 = 0x01;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `version` of a certificate.
const CONTEXT_0: u8 = 0xa0;
/// `extensions` of a certificate.
const CONTEXT_3: u8 = 0xa3;

const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
const SUBJECT_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 0x0e];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];

/// One element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    /// With tag and length.
    pub(super) whole: &'a [u8],
}

/// What is of interest in a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CertificateParts<'a> {
    /// Whoever signed it, as it is written there.
    pub(super) issuer: &'a [u8],
    /// Whom it is for, as it is written there.
    pub(super) subject: &'a [u8],
    /// Whether it is of a CA.
    pub(super) is_ca: bool,
    /// The subject's key identifier.
    pub(super) key_id: Option<&'a [u8]>,
}

/// What is of interest in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestParts<'a> {
    /// Who asks.
    pub(super) subject: Subject,
    /// The public key, with its algorithm.
    pub(super) key: &'a [u8],
}

/// Reads the first element, and gives what comes after it.
fn take(bytes: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    // Tags of several bytes are in none of what is read here.
    if tag & 0x1f == 0x1f {
        return None;
    }
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, after) = rest.split_at_checked(length)?;
    let (whole, _) = bytes.split_at_checked(bytes.len() - after.len())?;
    Some((Element { tag, content, whole }, after))
}

/// Reads bytes that are one element and nothing else.
fn only(bytes: &[u8]) -> Option<Element<'_>> {
    take(bytes).filter(|(_, after)| after.is_empty()).map(|(element, _)| element)
}

impl<'a> Element<'a> {
    /// What is in it, if it is of this tag.
    fn children(self, tag: u8) -> Option<Vec<Element<'a>>> {
        if self.tag != tag {
            return None;
        }
        let (mut children, mut rest) = (Vec::new(), self.content);
        while !rest.is_empty() {
            let (child, after) = take(rest)?;
            children.push(child);
            rest = after;
        }
        Some(children)
    }

    fn text(self) -> Option<&'a str> {
        match self.tag {
            UTF8_STRING | PRINTABLE_STRING | IA5_STRING => std::str::from_utf8(self.content).ok(),
            _ => None,
        }
    }
}

/// Looks into a certificate.
pub(super) fn certificate(der: &[u8]) -> Option<CertificateParts<'_>> {
    let signed = *only(der)?.children(SEQUENCE)?.first()?;
    let fields = signed.children(SEQUENCE)?;
    // Serial number, algorithm, issuer, validity, subject.
    let after_version = usize::from(fields.first()?.tag == CONTEXT_0);
    let (issuer, subject) = (fields.get(after_version + 2)?, fields.get(after_version + 4)?);
    let mut parts =
        CertificateParts { issuer: issuer.whole, subject: subject.whole, is_ca: false, key_id: None };
    let Some(extensions) = fields.iter().find(|field| field.tag == CONTEXT_3) else { return Some(parts) };
    for extension in only(extensions.content)?.children(SEQUENCE)? {
        let extension = extension.children(SEQUENCE)?;
        let value = || only(extension.last()?.content);
        match extension.first()?.content {
            BASIC_CONSTRAINTS => {
                let first = value()?.children(SEQUENCE)?.first().copied();
                parts.is_ca = first.is_some_and(|first| first.tag == BOOLEAN && first.content == [0xff]);
            }
            SUBJECT_KEY_IDENTIFIER => parts.key_id = Some(value()?.content),
            _ => {}
        }
    }
    Some(parts)
}

/// Looks into a request (PKCS#10). The subject must be plain: each attribute once, by itself, in letters; so everybody
/// reads the same in it.
pub(super) fn request(der: &[u8]) -> Result<RequestParts<'_>, &'static str> {
    const NONE: &str = "it is no certificate request in DER (PKCS#10)";
    let fields = || only(der)?.children(SEQUENCE)?.first()?.children(SEQUENCE);
    let fields = fields().ok_or(NONE)?;
    let (Some(subject), Some(key)) = (fields.get(1), fields.get(2)) else { return Err(NONE) };
    let subject = plain_subject(*subject)
        .ok_or("its subject is not plain: each attribute must be there once, by itself, as a text")?;
    Ok(RequestParts { subject, key: key.whole })
}

fn plain_subject(name: Element<'_>) -> Option<Subject> {
    let mut subject = Subject::default();
    let mut seen: Vec<&[u8]> = Vec::new();
    for set in name.children(SEQUENCE)? {
        let [attribute] = set.children(SET)?.try_into().ok()?;
        let [id, value]: [Element<'_>; 2] = attribute.children(SEQUENCE)?.try_into().ok()?;
        if id.tag != OBJECT_IDENTIFIER || seen.contains(&id.content) {
            return None;
        }
        seen.push(id.content);
        let text = value.text()?;
        match id.content {
            COMMON_NAME => text.clone_into(&mut subject.common_name),
            ORGANIZATION => text.clone_into(&mut subject.organization),
            _ => {}
        }
    }
    Some(subject)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An element of this tag with these parts.
    fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = content.len();
        let mut out = vec![tag];
        match length {
            0..=0x7f => out.push(length as u8),
            _ => out.extend([0x82, (length >> 8) as u8, length as u8]),
        }
        out.extend(content);
        out
    }

    fn attribute(id: &[u8], tag: u8, text: &str) -> Vec<u8> {
        element(SEQUENCE, &[&element(OBJECT_IDENTIFIER, &[id]), &element(tag, &[text.as_bytes()])])
    }

    fn asked(sets: &[Vec<u8>]) -> Vec<u8> {
        let name = element(SEQUENCE, &sets.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let info = element(SEQUENCE, &[&[2, 1, 0], &name, &element(SEQUENCE, &[b"\x05\x00"])]);
        element(SEQUENCE, &[&info, b"\x05\x00"])
    }

    fn set(parts: &[&[u8]]) -> Vec<u8> {
        element(SET, parts)
    }

    #[test]
    fn a_plain_subject_is_read() {
        let node = attribute(COMMON_NAME, UTF8_STRING, &"n".repeat(200));
        let der = asked(&[set(&[&attribute(ORGANIZATION, PRINTABLE_STRING, "system:nodes")]), set(&[&node])]);
        let parts = request(&der).unwrap();
        assert_eq!(parts.subject.common_name, "n".repeat(200));
        assert_eq!(parts.subject.organization, "system:nodes");
        assert_eq!(parts.key, [SEQUENCE, 2, 5, 0]);
    }

    #[test]
    fn a_subject_that_could_be_read_in_two_ways_is_refused() {
        let a = attribute(COMMON_NAME, UTF8_STRING, "a");
        let b = attribute(COMMON_NAME, UTF8_STRING, "b");
        for sets in [
            vec![set(&[&a]), set(&[&b])],
            vec![set(&[&a, &attribute(ORGANIZATION, UTF8_STRING, "o")])],
            vec![set(&[])],
            vec![set(&[&attribute(COMMON_NAME, 0x1e, "\0a")])],
            vec![a.clone()],
        ] {
            assert!(request(&asked(&sets)).unwrap_err().contains("not plain"), "{sets:?}");
        }
    }

    #[test]
    fn what_comes_after_a_request_is_not_overlooked() {
        let mut der = asked(&[]);
        assert!(request(&der).is_ok());
        der.push(0);
        assert!(request(&der).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = request(&bytes);
            let _ = certificate(&bytes);
        }

        #[test]
        fn any_damage_to_a_request_is_taken(at in 0..200usize, to in any::<u8>()) {
            let node = attribute(COMMON_NAME, UTF8_STRING, "edge-1");
            let mut der = asked(&[set(&[&attribute(ORGANIZATION, UTF8_STRING, "system:nodes")]), set(&[&node])]);
            let at = at % der.len();
            der[at] = to;
            let _ = request(&der);
        }
    }
}
