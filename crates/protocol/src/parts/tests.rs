use super::*;

const MAX_OBJECT: u64 = 10_000;

fn digest(number: u128) -> Option<MessageDigest> {
    Some(MessageDigest(number))
}

fn part(uid: &str, offset: usize, total: usize, data: &str) -> Part {
    Part {
        session: "s".into(),
        receipt: 0,
        uid: uid.into(),
        resource_version: 1.into(),
        offset: offset as u64,
        total: total as u64,
        data: data.into(),
        digest: digest(7),
        object: None,
    }
}

fn take(parts: &mut Assembler, part: Part) -> Result<u64, String> {
    match parts.take(part, MAX_OBJECT) {
        Arrival::Incomplete { received } => Ok(received),
        Arrival::Whole { text, .. } => Err(text),
        other => panic!("must be in memory: {other:?}"),
    }
}

fn kept(received: u64, total: u64) -> PartialMessage {
    PartialMessage { uid: "a".into(), resource_version: 1.into(), total, digest: MessageDigest(7), received }
}

#[test]
fn parts_in_order_make_the_message() {
    let mut parts = Assembler::default();
    assert_eq!(take(&mut parts, part("a", 0, 6, "ab")), Ok(2));
    assert_eq!(take(&mut parts, part("a", 2, 6, "cd")), Ok(4));
    assert_eq!(take(&mut parts, part("a", 4, 6, "ef")), Err("abcdef".into()));
    assert!(parts.open.is_none() && !parts.take_stale());
}

#[test]
fn gaps_repeats_and_overruns_are_dropped() {
    let mut parts = Assembler::default();
    assert_eq!(take(&mut parts, part("a", 2, 6, "cd")), Ok(0));
    assert_eq!(take(&mut parts, part("a", 0, 4, "ab")), Ok(2));
    assert_eq!(take(&mut parts, part("a", 3, 4, "d")), Ok(2));
    assert_eq!(take(&mut parts, part("a", 2, 4, "cdefgh")), Ok(2));
    assert_eq!(take(&mut parts, part("a", 2, 4, "cd")), Err("abcd".into()));
}

#[test]
fn a_too_large_message_is_rejected_at_its_first_part() {
    let mut parts = Assembler::default();
    for data in ["", "abc"] {
        let Arrival::Rejected(rejected) = parts.take(part("a", 0, 20_000_000, data), MAX_OBJECT) else {
            panic!("must be refused");
        };
        assert_eq!(rejected.reason, RejectReason::TooLarge);
    }
}

#[test]
fn a_part_that_no_hello_can_name_is_rejected() {
    let mut parts = Assembler::default();
    let long = "9".repeat(200);
    let bad = Part { resource_version: long.as_str().into(), ..part("a", 0, 6, "ab") };
    for bad in [part("a b", 0, 6, "ab"), part("", 0, 6, "ab"), bad] {
        let Arrival::Rejected(rejected) = parts.take(bad, MAX_OBJECT) else { panic!("must be refused") };
        assert_eq!((rejected.reason, &*rejected.uid), (RejectReason::Invalid, ""));
    }
}

#[test]
fn a_part_of_another_message_is_no_continuation() {
    let changes: [fn(&mut Part); 4] = [
        |part| part.uid = "b".into(),
        |part| part.resource_version = 2.into(),
        |part| part.total = 7,
        |part| part.digest = digest(8),
    ];
    for change in changes {
        let mut parts = Assembler::default();
        assert_eq!(take(&mut parts, part("a", 0, 6, "ab")), Ok(2));
        let mut other = part("a", 2, 6, "cd");
        change(&mut other);
        assert_eq!(take(&mut parts, other), Ok(0));
        assert_eq!(take(&mut parts, part("a", 2, 6, "cd")), Ok(4), "the message goes on");
    }
}

#[test]
fn one_message_is_in_reassembly_at_a_time() {
    let mut parts = Assembler::default();
    for n in 0..100 {
        assert_eq!(take(&mut parts, part(&format!("u{n}"), 0, 10, "x")), Ok(1));
    }
    assert!(parts.is_about("u99") && !parts.is_about("u98"));
}

#[test]
fn the_store_gets_each_byte_of_a_message_once() {
    let mut parts = Assembler::default();
    assert_eq!(take(&mut parts, part("a", 0, 9, "abc")), Ok(3));
    assert!(parts.cut(4).is_none(), "too few");
    assert_eq!(parts.cut(3), Some((kept(0, 9), "abc".into())));
    assert!(parts.cut(0).is_none());
    assert_eq!(take(&mut parts, part("a", 3, 9, "def")), Ok(6));
    assert_eq!(parts.cut(1), Some((kept(3, 9), "def".into())));
    let Arrival::Kept { message, rest } = parts.take(part("a", 6, 9, "ghi"), MAX_OBJECT) else {
        panic!("the store has the rest");
    };
    assert_eq!((message, &*rest), (kept(6, 9), "ghi"));
    assert!(!parts.take_stale(), "its application drops what is kept");
}

#[test]
fn a_message_goes_on_in_the_next_session_and_after_a_restart() {
    let mut parts = Assembler::default();
    take(&mut parts, part("a", 0, 9000, &"x".repeat(4095))).unwrap();
    assert!(parts.partial().is_none(), "sending it again is cheaper");
    take(&mut parts, part("a", 4095, 9000, "x")).unwrap();
    parts.end_session();
    assert_eq!(parts.partial(), Some(kept(4096, 9000)));
    assert_eq!(take(&mut parts, part("a", 4096, 9000, "y")), Ok(4097));
    let mut parts = Assembler::default();
    parts.resume(kept(8998, 9000), MAX_OBJECT);
    assert_eq!(parts.partial(), Some(kept(8998, 9000)));
    let Arrival::Kept { message, rest } = parts.take(part("a", 8998, 9000, "yz"), MAX_OBJECT) else {
        panic!("complete");
    };
    assert_eq!((message, &*rest), (kept(8998, 9000), "yz"));
}

#[test]
fn nothing_is_kept_of_a_message_of_an_older_cloud_side() {
    let mut parts = Assembler::default();
    let old = |offset, data: &str| Part { digest: None, ..part("a", offset, 9000, data) };
    take(&mut parts, old(0, &"x".repeat(5000))).unwrap();
    assert!(parts.cut(0).is_none() && parts.partial().is_none());
    parts.end_session();
    assert!(parts.open.is_none());
    take(&mut parts, old(0, &"x".repeat(8999))).unwrap();
    assert!(take(&mut parts, old(8999, "x")).is_err(), "complete, in memory");
}

#[test]
fn another_message_makes_the_kept_bytes_stale_once() {
    let mut parts = Assembler::default();
    parts.resume(kept(5, 9), MAX_OBJECT);
    take(&mut parts, part("b", 0, 9, "x")).unwrap();
    assert!(parts.take_stale() && !parts.take_stale());
    take(&mut parts, part("c", 0, 9, "x")).unwrap();
    assert!(!parts.take_stale(), "the store has nothing of it");
    parts.resume(kept(5, 9), MAX_OBJECT);
    assert!(!parts.not_kept(&PartialMessage { digest: MessageDigest(8), ..kept(5, 9) }));
    assert!(parts.not_kept(&kept(0, 9)) && parts.take_stale() && !parts.is_about("a"));
}

#[test]
fn a_message_beyond_a_lowered_limit_is_not_continued() {
    let mut parts = Assembler::default();
    parts.resume(kept(5000, 20_000), MAX_OBJECT);
    assert!(parts.partial().is_none() && parts.take_stale());
}

#[test]
fn a_message_is_taken_only_with_its_digest() {
    let text = r#"{"header":{},"route":{"operation":"delete","resource":"n/configmap/c"},"content":
        {"apiVersion":"v1","kind":"ConfigMap","metadata":{"uid":"u","name":"c","namespace":"n"}}}"#;
    let digest = Epoch(3).message_digest([text]);
    assert!(matches!(assemble(text, digest, Epoch(3), 1000), Some(Ok(Change::Delete(_)))));
    assert!(assemble(text, digest, Epoch(4), 1000).is_none());
    assert!(assemble(&text.replace("\"c\"", "\"d\""), digest, Epoch(3), 1000).is_none());
    let broken = &text[1..];
    let digest = Epoch(3).message_digest([broken]);
    assert!(matches!(assemble(broken, digest, Epoch(3), 1000), Some(Err(_))));
}
