//! Keys and their file: damage, loss, credentials, rotation.

use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::*;

const BINDING: Binding<'_> = Binding { uid: "u-1", version: "7", namespace: "plant", name: "web" };
const BODY: &str = r#"{"data":{"password":"aHVudGVyMg=="}}"#;

struct KeyDirectory(tempfile::TempDir);

impl KeyDirectory {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn source(&self) -> KeySource {
        KeySource { file: self.0.path().join("seal.key"), ..KeySource::default() }
    }

    fn with(&self, current: Option<&str>, previous: Option<&str>) -> KeySource {
        let write = |text: &str| {
            let path = self.0.path().join(text);
            fs::write(&path, text.repeat(40)).unwrap();
            path
        };
        KeySource {
            credential: current.map(write),
            previous_credential: previous.map(write),
            ..self.source()
        }
    }

    fn text(&self) -> String {
        fs::read_to_string(self.source().file).unwrap()
    }
}

fn open(source: &KeySource) -> (Keyring, Opened) {
    Keyring::open(source).unwrap()
}

#[test]
fn a_sealed_body_is_opened_after_a_restart_and_shows_nothing() {
    let place = KeyDirectory::new();
    let (ring, opened) = open(&place.source());
    assert_eq!(opened, Opened::Made);
    assert_eq!(fs::metadata(place.source().file).unwrap().permissions().mode() & 0o777, 0o600);
    let sealed = ring.seal(BINDING, BODY).unwrap();
    assert!(super::super::is_sealed(&sealed) && !sealed.contains("password"), "{sealed}");
    assert_ne!(sealed, ring.seal(BINDING, BODY).unwrap(), "nonces are random");
    assert!(!format!("{ring:?}").contains("bytes"));
    let (again, opened) = open(&place.source());
    assert_eq!(opened, Opened::Kept);
    assert_eq!(again.open_body(BINDING, &sealed).unwrap(), BODY);
    assert_eq!(again.facts(), KeyFacts { opened: Opened::Kept, ..ring.facts() });
}

#[test]
fn no_byte_of_a_sealed_body_can_be_changed() {
    let place = KeyDirectory::new();
    let (ring, _) = open(&place.source());
    let sealed = ring.seal(BINDING, BODY).unwrap();
    for at in 0..sealed.len() {
        let mut bytes = sealed.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        assert!(ring.open_body(BINDING, &changed).is_err(), "byte {at}");
        assert!(ring.open_body(BINDING, &sealed[..at]).is_err(), "cut off at {at}");
    }
    // Another number of the same length names a missing key.
    let (number, _) = split(&sealed).unwrap();
    let other = sealed.replacen(&number.to_string(), &(number ^ 1).to_string(), 1);
    assert_eq!(ring.open_body(BINDING, &other), Err(UnsealError::KeyLost));
}

#[test]
fn no_byte_of_sealed_bytes_can_be_changed() {
    let place = KeyDirectory::new();
    let (ring, _) = open(&place.source());
    let sealed = ring.seal_bytes(BINDING, BODY).unwrap();
    assert_eq!(ring.open_bytes(BINDING, &sealed).unwrap(), BODY);
    assert!(!sealed.windows(8).any(|bytes| bytes == b"password"));
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        assert!(ring.open_bytes(BINDING, &changed).is_err(), "byte {at}");
        assert!(ring.open_bytes(BINDING, &sealed[..at]).is_err(), "cut off at {at}");
    }
    let other = Binding { name: "other", ..BINDING };
    assert_eq!(ring.open_bytes(other, &sealed), Err(UnsealError::Damaged));
    for text in ["", BODY, &BODY.repeat(100)] {
        assert_eq!(unpack(&pack(text)).as_deref(), Some(text));
        assert!(ring.open_bytes(BINDING, &pack(text)).is_err(), "plain text is not sealed");
    }
}

#[test]
fn a_body_opens_in_its_own_row_only() {
    let place = KeyDirectory::new();
    let (ring, _) = open(&place.source());
    let sealed = ring.seal(BINDING, BODY).unwrap();
    let others = [
        Binding { uid: "u-2", ..BINDING },
        Binding { version: "8", ..BINDING },
        Binding { namespace: "plan", name: "tweb", ..BINDING },
        Binding { name: "web2", ..BINDING },
    ];
    for other in others {
        assert_eq!(ring.open_body(other, &sealed), Err(UnsealError::Damaged), "{other:?}");
    }
}

#[test]
fn a_damaged_file_is_renamed_and_its_bodies_count_as_lost() {
    let place = KeyDirectory::new();
    let (ring, _) = open(&place.source());
    let sealed = ring.seal(BINDING, BODY).unwrap();
    let file = place.source().file;
    let sound = fs::read(&file).unwrap();
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 1;
        fs::write(&file, &damaged).unwrap();
        let (ring, opened) = open(&place.source());
        assert_eq!(opened, Opened::Lost, "byte {at}");
        assert_eq!(fs::read(with_suffix(&file, ".lost")).unwrap(), damaged);
        assert_eq!(ring.open_body(BINDING, &sealed), Err(UnsealError::KeyLost), "byte {at}");
        assert_eq!(open(&place.source()).1, Opened::Kept);
    }
    fs::write(&file, &sound).unwrap();
    assert_eq!(open(&place.source()).0.open_body(BINDING, &sealed).unwrap(), BODY);
    fs::remove_file(&file).unwrap();
    assert_eq!(open(&place.source()).1, Opened::Made);
}

#[test]
fn a_file_that_cannot_be_read_is_no_loss() {
    let place = KeyDirectory::new();
    // A directory stands for a file without permission, which root could read all the same.
    fs::create_dir(place.source().file).unwrap();
    let error = Keyring::open(&place.source()).unwrap_err();
    assert!(error.to_string().starts_with("read "), "{error}");
    assert!(place.source().file.is_dir());
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 1);
}

#[test]
fn keys_are_rewrapped_when_the_credential_changes() {
    let place = KeyDirectory::new();
    let (ring, _) = open(&place.source());
    let sealed = ring.seal(BINDING, BODY).unwrap();
    assert!(place.text().contains(" plain ") && !ring.facts().wrapped);
    // A new credential.
    let (ring, opened) = open(&place.with(Some("one"), None));
    assert_eq!((opened, ring.facts().wrapped), (Opened::Kept, true));
    assert!(place.text().contains(" wrapped ") && !place.text().contains(" plain "));
    // A changed credential: only the previous one fits.
    let before = place.text();
    let (ring, opened) = open(&place.with(Some("two"), Some("one")));
    assert_eq!(opened, Opened::Kept);
    assert_ne!(place.text(), before);
    assert_eq!(ring.open_body(BINDING, &sealed).unwrap(), BODY);
    let before = place.text();
    assert_eq!(open(&place.with(Some("two"), None)).0.open_body(BINDING, &sealed).unwrap(), BODY);
    assert_eq!(place.text(), before, "nothing was to be done");
    // Only the previous credential is configured: the keys are wrapped all the same.
    let (ring, opened) = open(&place.with(None, Some("two")));
    assert_eq!((opened, ring.facts().wrapped), (Opened::Kept, true));
    assert!(!place.text().contains(" plain "));
    // Neither credential fits.
    let (ring, opened) = open(&place.with(Some("three"), Some("one")));
    assert_eq!(opened, Opened::Lost);
    assert_eq!(ring.open_body(BINDING, &sealed), Err(UnsealError::KeyLost));
    let (_, opened) = open(&place.source());
    assert_eq!(opened, Opened::Lost, "the credential is not there");
}

#[test]
fn a_missing_credential_is_none_and_a_short_one_is_refused() {
    let place = KeyDirectory::new();
    let missing = KeySource { credential: Some(place.0.path().join("nowhere")), ..place.source() };
    let (ring, opened) = open(&missing);
    assert_eq!((opened, ring.facts().wrapped), (Opened::Made, false));
    let short = place.0.path().join("short");
    fs::write(&short, "123456").unwrap();
    let error =
        Keyring::open(&KeySource { credential: Some(short), ..place.source() }).unwrap_err().to_string();
    assert!(error.contains("at least 32 bytes, this has 6") && !error.contains("123456"), "{error}");
}

#[test]
fn a_rotation_keeps_both_keys_until_the_old_one_is_forgotten() {
    let place = KeyDirectory::new();
    for source in [place.source(), place.with(Some("one"), None)] {
        let (ring, _) = open(&source);
        let clone = ring.clone();
        let old = ring.seal(BINDING, BODY).unwrap();
        ring.add_key().unwrap();
        assert_eq!((ring.facts().keys, clone.facts().keys), (2, 2));
        assert!(!clone.is_current(&old));
        let new = clone.seal(BINDING, BODY).unwrap();
        assert!(ring.is_current(&new));
        // The state after a power cut in between.
        let (other, _) = open(&source);
        assert_eq!(other.facts().keys, 2);
        for sealed in [&old, &new] {
            assert_eq!(other.open_body(BINDING, sealed).unwrap(), BODY);
        }
        ring.forget_old().unwrap();
        assert_eq!(ring.facts().keys, 1);
        assert_eq!(ring.open_body(BINDING, &old).unwrap(), BODY, "for reads that began before");
        let (other, opened) = open(&source);
        assert_eq!(opened, Opened::Kept);
        assert_eq!(other.open_body(BINDING, &old), Err(UnsealError::KeyLost));
        assert_eq!(other.open_body(BINDING, &new).unwrap(), BODY);
        ring.forget_old().unwrap();
        assert_eq!(ring.open_body(BINDING, &old).unwrap(), BODY);
        ring.add_key().unwrap();
        ring.forget_old().unwrap();
        assert_eq!(ring.open_body(BINDING, &old), Err(UnsealError::KeyLost));
    }
}

#[test]
fn a_change_that_cannot_be_written_changes_nothing() {
    let place = KeyDirectory::new();
    let (ring, _) = open(&place.source());
    let sealed = ring.seal(BINDING, BODY).unwrap();
    let aside = place.0.path().join("aside");
    fs::rename(place.source().file, &aside).unwrap();
    // A directory in its place cannot be replaced by a file.
    fs::create_dir_all(place.source().file.join("x")).unwrap();
    assert!(ring.add_key().is_err());
    assert_eq!(ring.facts().keys, 1);
    assert!(ring.is_current(&sealed));
    assert_eq!(ring.open_body(BINDING, &sealed).unwrap(), BODY);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_text_comes_back_and_no_text_panics(body in any::<String>(), odd in "(sealed:1:)?[0-9]{0,11}:?[A-Za-z0-9+/]{0,60}") {
        let place = KeyDirectory::new();
        let (ring, _) = open(&place.source());
        let sealed = ring.seal(BINDING, &body).unwrap();
        prop_assert_eq!(ring.open_body(BINDING, &sealed), Ok(body));
        prop_assert!(ring.open_body(BINDING, &odd).is_err());
        let (number, _) = split(&sealed).unwrap();
        let short = format!("sealed:1:{number}:{}", odd.rsplit(':').next().unwrap_or_default());
        prop_assert!(ring.open_body(BINDING, &short).is_err());
    }
}

proptest! {
    #[test]
    fn packed_bodies_roundtrip_and_grow_by_at_most_a_byte(body in ".{0,300}", times in 1usize..20) {
        let body = body.repeat(times);
        let packed = pack(&body);
        prop_assert!(packed.len() <= body.len() + 1);
        prop_assert_eq!(unpack(&packed), Some(body));
    }

    #[test]
    fn unpacking_never_panics_or_grows_without_bound(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for how in [AS_IT_IS, COMPRESSED, 2] {
            let body = unpack(&[&[how], bytes.as_slice()].concat());
            prop_assert!(body.is_none_or(|body| body.len() <= MAX_BODY));
        }
    }
}

#[test]
fn a_required_credential_protects_all_keys() {
    let place = KeyDirectory::new();
    let demanded = |source: KeySource| KeySource { require_credential: true, ..source };
    let refused = |source| Keyring::open(&demanded(source)).unwrap_err().to_string();
    assert!(refused(place.source()).contains("seal.require_credential"));
    assert!(!place.source().file.exists(), "no key is made in plain text");
    let (ring, opened) = open(&demanded(place.with(Some("one"), None)));
    assert_eq!((opened, ring.facts().wrapped), (Opened::Made, true));
    let since = ring.facts().refused.unwrap();
    assert!(since.parse::<jiff::Timestamp>().is_ok(), "{since}");
    let sealed = ring.seal(BINDING, BODY).unwrap();
    // The credential is lost: no key is given up for it.
    let before = place.text();
    let missing = KeySource { credential: Some(place.0.path().join("nowhere")), ..place.source() };
    for _ in 0..2 {
        assert!(refused(missing.clone()).contains("credential missing"));
        assert_eq!(place.text(), before);
    }
    let (ring, opened) = open(&demanded(place.with(Some("one"), None)));
    assert_eq!((opened, ring.open_body(BINDING, &sealed).unwrap().as_str()), (Opened::Kept, BODY));
    assert!(ring.facts().refused.is_some());
    let (ring, _) = open(&demanded(place.with(Some("one"), None)));
    assert_eq!(ring.facts().refused, None, "it is told once");
}
