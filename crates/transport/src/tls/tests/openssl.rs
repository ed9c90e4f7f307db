//! Certificates and keys as openssl writes them; see `fixtures/`: a root and an intermediate
//! authority with RSA keys, and a certificate of the latter for a P-256 key.

use super::*;

const ROOT: &str = include_str!("fixtures/ca.crt");
const SUB: &str = include_str!("fixtures/sub.crt");
/// The intermediate authority with its text, then a key in SEC1, then its certificate.
const CHAIN: &str = include_str!("fixtures/chain.pem");

fn one(text: &str) -> Certificate {
    let mut all = Certificate::all_from_pem("a fixture", text).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn chain() -> Identity {
    Identity::from_pem("chain.pem", CHAIN).unwrap()
}

#[test]
fn certificate_fields_are_parsed() {
    let identity = chain();
    let leaf = identity.certificate();
    assert_eq!(leaf.subject().common_name, "node-7.example");
    assert_eq!(leaf.subject().organization, NODES);
    assert_eq!(leaf.node(), Some("node-7.example"));
    assert_eq!(leaf.names(), ["broker.example", "192.0.2.7", "2001:db8::7"]);
    assert_eq!(leaf.serial(), "c0ffee");
    assert_eq!(leaf.not_before(), at("2026-11-21T14:05:35Z"));
    assert_eq!(leaf.not_after(), at("2126-10-28T14:05:35Z"));
    assert_eq!(
        leaf.fingerprint(),
        "280ed982da000f48fd1c49339a4a05a56b50c1da0d3492e1f63a555ae3e80dc1",
        "as openssl x509 -fingerprint -sha256 shows it"
    );
}

#[test]
fn authority_with_an_rsa_key_is_parsed() {
    let root = one(ROOT);
    assert_eq!(root.subject().common_name, "Example Root");
    assert_eq!(root.subject().organization, "Example Werke");
    assert_eq!((root.serial(), root.node(), root.names().len()), ("1", None, 0));
    assert_eq!(one(SUB).serial(), "80ff");
}

#[test]
fn leaf_comes_first_wherever_it_was() {
    let names = |identity: &Identity| {
        identity.chain().iter().map(|one| one.subject().common_name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&chain()), ["node-7.example", "Example Sub"]);
    let again = Identity::from_pem("again", &chain().to_pem()).unwrap();
    assert_eq!(again.chain(), chain().chain());
    assert_eq!(again.key().to_pem(), chain().key().to_pem());
}

#[test]
fn pem_output_equals_that_of_openssl() {
    let root = one(ROOT);
    assert_eq!(root.to_pem(), ROOT);
    let key = include_str!("fixtures/ed25519.pem");
    assert_eq!(Key::from_pem("ed25519.pem", key).unwrap().to_pem(), key);
}

#[test]
fn keys_of_all_kinds_are_parsed() {
    for (name, text) in [
        ("pkcs8.pem", include_str!("fixtures/pkcs8.pem")),
        ("pkcs1.pem", include_str!("fixtures/pkcs1.pem")),
        ("p384.pem", include_str!("fixtures/p384.pem")),
        ("ed25519.pem", include_str!("fixtures/ed25519.pem")),
        ("chain.pem", CHAIN),
    ] {
        let key = Key::from_pem(name, text).unwrap_or_else(|error| panic!("{error}"));
        assert!(key.node_request("node-a").is_ok(), "{name}");
    }
    let plain = Key::from_pem("pkcs8.pem", include_str!("fixtures/pkcs8.pem")).unwrap();
    assert!(Identity::new("chain", chain().chain().to_vec(), plain).is_ok(), "the same key in another form");
}

#[test]
fn unusable_keys_are_refused_with_a_reason() {
    let why = |name: &str, text: &str| Key::from_pem(name, text).map(drop).unwrap_err().to_string();
    let encrypted = why("encrypted.pem", include_str!("fixtures/encrypted.pem"));
    assert!(encrypted.starts_with("parse private key from encrypted.pem: encrypted with a password"));
    assert!(why("p521.pem", include_str!("fixtures/p521.pem")).contains("unsupported key"));
    assert!(why("ca.crt", ROOT).contains("no PEM section '-----BEGIN PRIVATE KEY-----'"));
}

#[tokio::test]
async fn openssl_chain_is_trusted() {
    let roots = Certificate::all_from_pem("ca.crt", ROOT).unwrap();
    let trust = Trust::new(roots);
    let rule = ClientRule {
        trust: trust.clone(),
        revoked: Arc::default(),
        required: true,
        expired_grace: Duration::ZERO,
    };
    let server = Server::new(&chain(), &rule, clock()).unwrap();
    let client = Client::new(&trust, Some(&chain()), clock()).unwrap();
    let (near, far) = meet_at("broker.example", &client, &server).await;
    near.unwrap();
    assert_eq!(far.unwrap().1.unwrap().node(), Some("node-7.example"));
}
