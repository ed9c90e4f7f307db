//! Parsers of certificates, keys and PEM: accepted input, and robustness against any input.

use proptest::prelude::*;
use rcgen::{CertificateSigningRequestParams, DnValue};

use super::*;
use edgesync_fuzz::fuzz;

fn key_pem() -> &'static str {
    include_str!("fixtures/pkcs8.pem")
}

fn subject(common_name: &str, organization: &str) -> Subject {
    Subject { common_name: common_name.to_owned(), organization: organization.to_owned() }
}

#[test]
fn node_needs_a_valid_name_and_organization() {
    assert_eq!(subject("node-a.site-1", NODES).node(), Some("node-a.site-1"));
    for (name, organization) in [
        ("node-a", OPERATORS),
        ("node-a", ""),
        ("", NODES),
        (CLOUD, NODES),
        ("system:node:node-a", NODES),
        ("Node-A", NODES),
        ("node-a\0", NODES),
        ("node-a\n", NODES),
        (" node-a", NODES),
        ("nöde", NODES),
        ("node-\u{fffd}", NODES),
    ] {
        assert_eq!(subject(name, organization).node(), None, "{name:?} {organization}");
    }
}

#[test]
fn request_names_a_node_with_or_without_the_prefix() {
    assert_eq!(subject("system:node:node-a", NODES).requested_node(), Some("node-a"));
    assert_eq!(subject("node-a", NODES).requested_node(), Some("node-a"));
    for (name, organization) in [
        ("system:node:node-a", "system:bootstrappers"),
        ("system:node:system:node:node-a", NODES),
        ("system:node:", NODES),
        ("system:nodes:node-a", NODES),
        (CLOUD, NODES),
    ] {
        assert_eq!(subject(name, organization).requested_node(), None, "{name:?} {organization}");
    }
}

#[test]
fn request_equals_that_of_kubeedge() {
    let key = Key::generate().unwrap();
    let der = key.node_request("node-a").unwrap();
    // Its signature is verified here.
    let request = CertificateSigningRequestParams::from_der(&der.into()).unwrap();
    let subject = request.params.distinguished_name.iter().map(|(kind, value)| {
        let value = match value {
            DnValue::Utf8String(text) => text.as_str().to_owned(),
            DnValue::PrintableString(text) => text.as_str().to_owned(),
            other => panic!("{other:?}"),
        };
        (kind.clone(), value)
    });
    let expected = [
        (DnType::CountryName, "CN"),
        (DnType::OrganizationName, "system:nodes"),
        (DnType::LocalityName, "Hangzhou"),
        (DnType::StateOrProvinceName, "Zhejiang"),
        (DnType::CommonName, "system:node:node-a"),
    ];
    assert_eq!(subject.collect::<Vec<_>>(), expected.map(|(kind, value)| (kind, value.to_owned())));
    assert!(request.params.subject_alt_names.is_empty());
}

#[test]
fn key_survives_a_round_trip() {
    let key = Key::generate().unwrap();
    assert_eq!(Key::from_pem("key", &key.to_pem()).unwrap().to_pem(), key.to_pem());
    assert_ne!(Key::generate().unwrap().to_pem(), key.to_pem());
}

#[test]
fn foreign_key_does_not_match_the_certificate() {
    let authority = Authority::new("Fleet");
    let (one, other) = (authority.node(), authority.node());
    let mixed = one.certificate().to_pem() + &other.key().to_pem();
    let expected = Err(TlsError::OtherKey { what: "node.pem".to_owned() });
    assert_eq!(Identity::from_pem("node.pem", &mixed).map(drop), expected);
    let put_together = Identity::new("node.pem", one.chain().to_vec(), other.key().clone());
    assert_eq!(put_together.map(drop), expected);
    let nothing = Identity::new("node.pem", Vec::new(), one.key().clone()).map(drop);
    assert_eq!(nothing.unwrap_err().to_string(), "parse certificate from node.pem: no certificate found");
}

#[test]
fn times_before_and_after_2050_are_parsed() {
    let authority = Authority::new("Fleet");
    for (from, until) in [
        ("1999-12-31T23:59:59Z", "2049-12-31T23:59:59Z"),
        ("2000-01-01T00:00:00Z", "2050-01-01T00:00:00Z"),
        ("2050-01-01T00:00:00Z", "9999-01-01T00:00:00Z"),
    ] {
        let identity = authority.identity(Wish { from: at(from), until: at(until), ..Wish::default() });
        let certificate = identity.certificate();
        assert_eq!((certificate.not_before(), certificate.not_after()), (at(from), at(until)));
    }
    let der = authority.node().certificate().der().to_vec();
    let end = b"280531000000Z";
    let place = der.windows(end.len()).position(|part| part == end).unwrap();
    for wrong in [b"281331000000Z", b"280532000000Z", b"2805310000000", b"28053100 000Z", b"280531006000Z"] {
        let mut der = der.clone();
        der[place..place + end.len()].copy_from_slice(wrong);
        assert!(Certificate::from_der("it", &der).is_err(), "{}", String::from_utf8_lossy(wrong));
    }
}

#[test]
fn last_time_of_rfc_5280_becomes_the_maximum() {
    let authority = Authority::new("Fleet");
    let until = at("9999-01-01T00:00:00Z");
    let mut der = authority.identity(Wish { until, ..Wish::default() }).certificate().der().to_vec();
    let end = b"99990101000000Z";
    let place = der.windows(end.len()).position(|part| part == end).unwrap();
    der[place..place + end.len()].copy_from_slice(b"99991231235959Z");
    assert_eq!(Certificate::from_der("it", &der).unwrap().not_after(), Timestamp::MAX);
}

#[test]
fn serial_numbers_have_no_leading_zeros() {
    let authority = Authority::new("Fleet");
    for (serial, text) in [(1, "1"), (0x80, "80"), (0x0100, "100"), (0xdead_beef, "deadbeef"), (0, "0")] {
        assert_eq!(authority.identity(Wish { serial, ..Wish::default() }).certificate().serial(), text);
    }
}

#[test]
fn invalid_certificate_is_reported_with_its_source() {
    let authority = Authority::new("Fleet");
    let pem = authority.node().certificate().to_pem();
    let why = |text: &str| Certificate::all_from_pem("ca.crt", text).map(drop).unwrap_err().to_string();
    assert_eq!(why(""), "parse certificate from ca.crt: no PEM section '-----BEGIN CERTIFICATE-----'");
    assert!(why(key_pem()).contains("no PEM section"));
    assert!(why(&pem[..pem.len() / 2]).contains("damaged PEM"));
    assert!(why(&pem.replace("MII", "MIJ")).contains("invalid X.509"));
    let mut longer = authority.node().certificate().der().to_vec();
    longer.push(0);
    assert!(Certificate::from_der("it", &longer).is_err(), "nothing may follow");
}

#[test]
fn errors_contain_no_part_of_a_key() {
    let secret = key_pem().lines().nth(2).unwrap();
    for text in [
        key_pem().replace("-----END", "-----ENDE"),
        key_pem().replace("-----BEGIN PRIVATE KEY-----\n", "-----BEGIN PRIVATE KEY-----"),
        key_pem().replace("MI", "M?"),
        key_pem().replace("MI", "MJ"),
        key_pem().replace("PRIVATE KEY", "EC PRIVATE KEY"),
    ] {
        let certificate = Authority::new("Fleet").node().certificate().to_pem();
        for error in [
            Key::from_pem("node.pem", &text).map(drop).unwrap_err(),
            Identity::from_pem("node.pem", &(certificate + &text)).map(drop).unwrap_err(),
        ] {
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(&secret[4..12]) && shown.len() < 400, "{shown}");
        }
    }
}

/// Certificates and a key with a few bytes changed, removed or inserted.
fn mutated(text: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6);
    changes.prop_map(move |changes| {
        let mut text = text.clone();
        for (index, byte, kind) in changes {
            let index = index.index(text.len());
            match kind {
                0 => text[index] = byte,
                1 => _ = text.remove(index),
                _ => text.insert(index, byte),
            }
        }
        text
    })
}

fn certificate() -> Vec<u8> {
    let pem = include_str!("fixtures/chain.pem");
    Certificate::all_from_pem("chain.pem", pem).unwrap()[1].der().to_vec()
}

#[test]
fn fuzz_certificates() {
    let pem = Certificate::from_der("it", &certificate()).unwrap().to_pem();
    fuzz("certificate", &[certificate(), pem.into_bytes(), key_pem().as_bytes().to_vec()], |bytes| {
        let _ = Certificate::from_der("it", bytes).map(|it| (it.fingerprint(), it.node().is_some()));
        let text = String::from_utf8_lossy(bytes);
        let _ = Certificate::all_from_pem("it", &text);
        let _ = Identity::from_pem("it", &text);
    });
}

proptest! {
    #[test]
    fn certificate_parser_never_panics(der in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = Certificate::from_der("it", &der);
    }

    #[test]
    fn certificate_parser_never_panics_on_damage(der in mutated(certificate())) {
        if let Ok(certificate) = Certificate::from_der("it", &der) {
            let _ = (certificate.node(), certificate.fingerprint());
            prop_assert_eq!(certificate.der(), &*der);
        }
    }

    #[test]
    fn pem_parsers_never_panic(text in "(-----(BEGIN|END) (CERTIFICATE|EC PRIVATE KEY|X)-----|[A-Za-z0-9+/=\n\r -]{0,80}|\\PC{0,8})(\n.{0,70}){0,8}") {
        let _ = Certificate::all_from_pem("it", &text);
        let _ = Key::from_pem("it", &text);
        let _ = Identity::from_pem("it", &text);
    }

    #[test]
    fn pem_parsers_never_panic_on_damage(
        text in mutated(include_bytes!("fixtures/chain.pem").to_vec()),
    ) {
        let _ = Identity::from_pem("it", &String::from_utf8_lossy(&text));
    }

    #[test]
    fn key_parser_never_panics(
        label in prop::sample::select(vec!["PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY"]),
        der in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = Key::from_pem("it", &certificate::pem(label, &der));
    }
}
