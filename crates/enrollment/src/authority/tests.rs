//! The CA as other programs see it: openssl verifies its signatures.

use super::*;
use crate::{node_name, now};
use proptest::prelude::*;
use std::fs;
use std::process::Command;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn request(node: &str) -> Vec<u8> {
    Key::generate().unwrap().node_request(node).unwrap()
}

/// Runs openssl in a directory. Returns whether it succeeded, and its output.
fn openssl(directory: &Path, arguments: &str) -> (bool, String) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(directory)
        .output()
        .expect("openssl is needed for this test: apt-get install openssl");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn openssl_ok(directory: &Path, arguments: &str) {
    let (done, text) = openssl(directory, arguments);
    assert!(done, "openssl {arguments}: {text}");
}

fn refused(directory: &Path) -> String {
    format!("{:#}", Authority::open(directory, now()).err().unwrap())
}

#[test]
fn a_ca_is_created_once() {
    let dir = tempfile::tempdir().unwrap();
    let first = Authority::open(dir.path(), now()).unwrap();
    let again = Authority::open(dir.path(), now()).unwrap();
    assert_eq!(first.certificate(), again.certificate());
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["ca.crt", "ca.key"]);
    let other = tempfile::tempdir().unwrap();
    let other = Authority::open(other.path(), now()).unwrap();
    assert_ne!(first.certificate().subject(), other.certificate().subject());
}

#[test]
fn an_interrupted_ca_is_completed_or_created_again() {
    let whole = tempfile::tempdir().unwrap();
    Authority::open(whole.path(), now()).unwrap();
    let [crt, key] = ["ca.crt", "ca.key"].map(|name| fs::read(whole.path().join(name)).unwrap());
    // The files after each step, and whether the CA is complete with them.
    for (files, complete) in [
        (vec![("ca.key.new.new", &key)], false),
        (vec![("ca.key.new", &key)], false),
        (vec![("ca.key.new", &key), ("ca.crt.new.new", &crt)], false),
        (vec![("ca.key.new", &key), ("ca.crt.new", &crt)], true),
        (vec![("ca.key", &key), ("ca.crt.new", &crt)], true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in &files {
            fs::write(dir.path().join(name), content).unwrap();
        }
        Authority::open(dir.path(), now()).unwrap();
        let same = fs::read(dir.path().join("ca.crt")).unwrap() == crt;
        assert_eq!(same, complete, "{:?}", files.iter().map(|(name, _)| name).collect::<Vec<_>>());
        assert!(!dir.path().join("ca.key.new").exists());
    }
}

#[test]
fn an_incomplete_or_mismatched_ca_is_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    Authority::open(dir.path(), now()).unwrap();
    let [crt, key] = ["ca.crt", "ca.key"].map(|name| dir.path().join(name));
    let secret = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    let error = refused(dir.path());
    assert!(error.contains("ca.crt exists without") && error.contains("restore the missing file"), "{error}");
    let other = tempfile::tempdir().unwrap();
    Authority::open(other.path(), now()).unwrap();
    fs::copy(other.path().join("ca.key"), &key).unwrap();
    let error = refused(dir.path());
    assert!(error.contains("does not match its certificate"), "{error}");
    fs::write(&key, &secret).unwrap();
    fs::remove_file(&crt).unwrap();
    let error = refused(dir.path());
    assert!(error.contains("ca.key exists without"), "{error}");
    fs::write(&crt, b"\xff\xfe").unwrap();
    assert!(refused(dir.path()).contains("PEM"));
}

#[test]
fn an_expired_ca_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open(dir.path(), now()).unwrap();
    let end = authority.certificate().not_after();
    let error = Authority::open(dir.path(), end).err().unwrap().to_string();
    assert!(error.contains("CA expired"), "{error}");
    assert!(authority.client(&Subject::default(), end, DAY).is_err());
}

#[test]
fn a_node_certificate_is_for_clients_and_ends_with_the_ca() {
    let dir = tempfile::tempdir().unwrap();
    let now = now();
    let authority = Authority::open(dir.path(), now).unwrap();
    let (subject, csr) = Authority::read_request(&request("edge-1")).unwrap();
    assert_eq!(subject.requested_node(), Some("edge-1"));
    let certificate = authority.sign(&csr, &node_name("edge-1"), now, DAY).unwrap();
    assert_eq!(certificate.node(), Some("edge-1"));
    assert_eq!(certificate.not_before(), before(now, BACKDATED));
    assert_eq!(certificate.not_after(), after(now, DAY));
    assert_eq!(certificate.names(), ["edge-1"]);
    let again = authority.sign(&csr, &node_name("edge-1"), now, 100 * 365 * DAY).unwrap();
    assert_eq!(again.not_after(), authority.certificate().not_after());
    assert_ne!(again.serial(), certificate.serial());
    assert!((28..=32).contains(&certificate.serial().len()), "{}", certificate.serial());

    fs::write(dir.path().join("node.crt"), certificate.to_pem()).unwrap();
    openssl_ok(dir.path(), "verify -CAfile ca.crt -purpose sslclient node.crt");
    assert!(!openssl(dir.path(), "verify -CAfile ca.crt -purpose sslserver node.crt").0);
    let (_, text) = openssl(
        dir.path(),
        "x509 -in node.crt -noout -subject -nameopt RFC2253 -ext extendedKeyUsage,keyUsage",
    );
    assert!(text.contains("CN=edge-1,O=system:nodes") && !text.contains("Server"), "{text}");
}

/// Dates before and after 2038 and 2050, where 32 bits and the short form of dates end.
#[test]
fn certificates_are_valid_beyond_2038_and_2050() {
    for now in ["2037-06-01T00:00:00Z", "2041-06-01T00:00:00Z", "2049-12-31T12:00:00Z"] {
        let (dir, now) = (tempfile::tempdir().unwrap(), now.parse::<Timestamp>().unwrap());
        let authority = Authority::open(dir.path(), now).unwrap();
        assert_eq!(authority.certificate().not_after(), after(now, CA_LIFETIME));
        let (_, csr) = Authority::read_request(&request("edge-1")).unwrap();
        let certificate = authority.sign(&csr, &node_name("edge-1"), now, 400 * DAY).unwrap();
        assert_eq!(certificate.not_before(), before(now, BACKDATED));
        assert_eq!(certificate.not_after(), after(now, 400 * DAY));
        let (_, parsed) = X509Certificate::from_der(certificate.der()).unwrap();
        assert_eq!(parsed.validity().not_after.timestamp(), certificate.not_after().as_second());

        let list = authority.revocation_list(1, &[(certificate.serial().to_owned(), now)], now).unwrap();
        fs::write(dir.path().join("list.pem"), crate::served_certificates::list_pem(&list)).unwrap();
        fs::write(dir.path().join("node.crt"), certificate.to_pem()).unwrap();
        let verify = |time: Timestamp, options: &str| {
            let time = time.as_second();
            openssl(dir.path(), &format!("verify -attime {time} -CAfile ca.crt {options} node.crt"))
        };
        let (valid, text) = verify(after(now, DAY), "");
        assert!(valid, "{now}: {text}");
        let (_, text) = verify(after(now, DAY), "-crl_check -CRLfile list.pem");
        assert!(text.contains("revoked"), "{now}: {text}");
        let (_, text) = verify(after(now, 401 * DAY), "");
        assert!(text.contains("expired"), "{now}: {text}");
    }
}

#[test]
fn the_revocation_list_is_enforced_by_openssl() {
    let dir = tempfile::tempdir().unwrap();
    let now = now();
    let authority = Authority::open(dir.path(), now).unwrap();
    let (_, csr) = Authority::read_request(&request("edge-1")).unwrap();
    let certificate = authority.sign(&csr, &node_name("edge-1"), now, DAY).unwrap();
    fs::write(dir.path().join("node.crt"), certificate.to_pem()).unwrap();
    let verify = "verify -crl_check -CAfile ca.crt -CRLfile list.pem node.crt";
    for (revoked, good) in [(vec![], true), (vec![(certificate.serial().to_owned(), now)], false)] {
        let der = authority.revocation_list(7, &revoked, now).unwrap();
        fs::write(dir.path().join("list.pem"), crate::served_certificates::list_pem(&der)).unwrap();
        let (verified, text) = openssl(dir.path(), verify);
        assert_eq!(verified, good, "{text}");
        assert!(good || text.contains("revoked"), "{text}");
    }
}

#[test]
fn the_operators_own_ca_may_use_rsa_and_be_intermediate() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    openssl_ok(
        at,
        "req -x509 -newkey rsa:2048 -nodes -keyout root.key -out root.crt -subj /CN=root -days 30",
    );
    openssl_ok(at, "req -newkey rsa:2048 -nodes -keyout ca.key -out ca.csr -subj /C=DE/O=Plant/CN=issuing");
    fs::write(
        at.join("ext"),
        "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n",
    )
    .unwrap();
    openssl_ok(
        at,
        "x509 -req -in ca.csr -CA root.crt -CAkey root.key -CAcreateserial -days 20 -extfile ext -out issuing.crt",
    );
    let [issuing, root] = ["issuing.crt", "root.crt"].map(|name| fs::read_to_string(at.join(name)).unwrap());
    fs::write(at.join("ca.crt"), format!("{root}{issuing}")).unwrap();
    let authority = Authority::open(at, now()).unwrap();
    assert_eq!(authority.certificate().subject().common_name, "issuing");
    let (_, csr) = Authority::read_request(&request("edge-1")).unwrap();
    let certificate = authority.sign(&csr, &node_name("edge-1"), now(), 365 * DAY).unwrap();
    assert_eq!(certificate.not_after(), authority.certificate().not_after());
    let list = authority.revocation_list(1, &[(certificate.serial().to_owned(), now())], now()).unwrap();
    fs::write(at.join("list.pem"), crate::served_certificates::list_pem(&list)).unwrap();
    fs::write(at.join("node.crt"), certificate.to_pem()).unwrap();
    fs::write(at.join("chain.pem"), authority.chain_pem()).unwrap();
    openssl_ok(at, "verify -CAfile chain.pem node.crt");
    let (_, text) = openssl(at, "verify -crl_check -CAfile chain.pem -CRLfile list.pem node.crt");
    assert!(text.contains("revoked"), "{text}");
}

#[test]
fn a_certificate_without_the_ca_flag_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    openssl_ok(
        dir.path(),
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=x -days 3 -addext basicConstraints=CA:FALSE",
    );
    let error = refused(dir.path());
    assert!(error.contains("is not a CA"), "{error}");
}

#[test]
fn a_ca_whose_name_cannot_be_reproduced_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    openssl_ok(
        dir.path(),
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /OU=a/OU=b/CN=x -days 3",
    );
    let error = refused(dir.path());
    assert!(error.contains("attribute twice"), "{error}");
}

#[test]
fn requests_of_openssl_are_read_and_changed_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for key in ["ec -pkeyopt ec_paramgen_curve:P-256", "rsa:2048", "ed25519"] {
        let subject = "-subj /O=system:nodes/CN=system:node:edge-1 -outform DER -out a.csr";
        openssl_ok(dir.path(), &format!("req -new -newkey {key} -nodes -keyout a.key {subject}"));
        let mut der = fs::read(dir.path().join("a.csr")).unwrap();
        let (subject, _) = Authority::read_request(&der).unwrap();
        assert_eq!(subject.requested_node(), Some("edge-1"), "{key}");
        let at = der.windows(6).position(|part| part == b"edge-1").unwrap();
        der[at] = b'f';
        let refused = Authority::read_request(&der).err();
        assert!(matches!(refused, Some(RequestError::Unsupported(_))), "{key}: {refused:?}");
    }
}

#[test]
fn a_server_certificate_has_names_and_is_no_client() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open(dir.path(), now()).unwrap();
    let names = ["cloud.example", "192.0.2.1", "::1"].map(str::to_owned);
    let identity = authority.server(&names, now(), DAY).unwrap();
    assert_eq!(identity.certificate().names().len(), 3);
    fs::write(dir.path().join("server.crt"), identity.certificate().to_pem()).unwrap();
    openssl_ok(
        dir.path(),
        "verify -CAfile ca.crt -purpose sslserver -verify_hostname cloud.example server.crt",
    );
    openssl_ok(dir.path(), "verify -CAfile ca.crt -verify_ip 192.0.2.1 server.crt");
    assert!(!openssl(dir.path(), "verify -CAfile ca.crt -purpose sslclient server.crt").0);
    assert!(authority.server(&["no name".to_owned()], now(), DAY).is_err());
}

#[test]
fn serial_numbers_are_read_with_odd_digits() {
    assert_eq!(serial_bytes("a"), Some(vec![10]));
    assert_eq!(serial_bytes("1ff"), Some(vec![1, 255]));
    assert_eq!(serial_bytes("xy"), None);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_request(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Authority::read_request(&bytes).is_err());
    }

    #[test]
    fn a_request_with_damage_in_its_signed_part_is_refused(at in 0..400usize, to in any::<u8>()) {
        static REQUEST: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| request("edge-1"));
        let mut der = REQUEST.clone();
        // Both lengths have one or two further bytes; the signature is the last 90 bytes or so.
        let start = 2 + usize::from(der[1] & 0x7f);
        let at = start + at % (der.len() - start - 100);
        der[at] = to;
        prop_assert_eq!(Authority::read_request(&der).is_ok(), der == *REQUEST);
    }
}
