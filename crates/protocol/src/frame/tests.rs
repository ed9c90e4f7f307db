use super::*;
use crate::change::RejectReason;
use crate::patch::PatchProblem;
use crate::upload::{Lane, Lanes, Refused, RefusedReason, UploadItem};
use edgesync_fuzz::{files, fuzz};
use proptest::prelude::*;
use serde_json::value::RawValue;

const LIMIT: usize = 64 * 1024;

fn hello() -> Hello {
    Hello {
        node: "edge-0001".into(),
        agent: "0.1.0".into(),
        session: "5f1c9a7e".into(),
        epoch: Epoch(u128::MAX / 3),
        revision: 10_000,
        confirmed: None,
        count: 10_000,
        digest: Digest(u128::MAX / 7),
        incarnation: Some("1b2c3d4e5f607182".into()),
        max_frame: DEFAULT_MAX_FRAME,
        max_object: DEFAULT_MAX_OBJECT,
        partial: None,
        patches: false,
        lease: Some(LeaseTerms { seconds: 40, acquired: 1_795_237_935_165_062 }),
        metered: None,
    }
}

#[test]
fn a_reconnect_of_a_node_in_sync_fits_into_400_bytes() {
    let up = Up::Hello(hello()).encode(1024).unwrap();
    let down = Down::Welcome(Welcome {
        session: hello().session,
        incarnation: None,
        confirmed: 10_000,
        pending: 0,
        held: 0,
        register: false,
        features: Feature::ALL.to_vec(),
        waiting: Default::default(),
    });
    let down = down.encode(1024).unwrap();
    assert!(up.len() + down.len() <= 400, "{} + {}", up.len(), down.len());
}

#[test]
fn limits_of_a_node_are_sent_unless_they_are_the_defaults() {
    let text = |hello: &Hello| serde_json::to_string(hello).unwrap();
    assert!(!text(&hello()).contains("max"), "{}", text(&hello()));
    let small = Hello { max_frame: 1024, max_object: 2048, ..hello() };
    let sent: Hello = serde_json::from_str(&text(&small)).unwrap();
    assert_eq!((sent.max_frame, sent.max_object), (1024, 2048));
}

#[test]
fn frames_survive_encoding_compressed_or_not() {
    let report = Report {
        session: "s".into(),
        from: 1,
        to: 500,
        objects: (0..500u64)
            .map(|n| Item { uid: format!("uid-{n}").into(), resource_version: n.into(), object: None })
            .collect(),
        removed: vec!["gone".into()],
        rejected: vec![Rejected {
            uid: "bad".into(),
            resource_version: 3.into(),
            reason: RejectReason::TooLarge,
            message: "must be smaller".into(),
            object: None,
        }],
        unpatched: vec![Unpatched { uid: "old".into(), base: 2.into(), reason: PatchProblem::OtherVersion }],
        receiving: None,
        received: None,
        receipt: 7,
    };
    let mut sizes = Vec::new();
    for above in [0, usize::MAX] {
        let bytes = Up::Report(report.clone()).encode(above).unwrap();
        sizes.push(bytes.len());
        let Ok(Up::Report(back)) = Up::decode(&bytes, &mut Budget::of(LIMIT)) else {
            panic!("must be a report")
        };
        assert_eq!(back, report);
    }
    assert!(sizes[0] * 3 < sizes[1], "compression must pay: {sizes:?}");
}

#[test]
fn fields_of_a_later_minor_version_are_ignored() {
    let json = r#"{"type":"Confirm","protocol":1,"session":"s","revision":4,"later":{"a":1}}"#;
    let Ok(Received::Confirm(confirm)) = Received::decode(json.as_bytes(), &mut Budget::of(LIMIT), LIMIT)
    else {
        panic!("must be a confirm");
    };
    assert_eq!((confirm.revision, confirm.pending), (4, 0));
}

#[test]
fn a_zip_bomb_is_refused_before_it_grows() {
    let bomb = zstd::bulk::compress(&vec![b' '; 50_000_000], 3).unwrap();
    assert!(bomb.len() < LIMIT);
    assert!(matches!(Up::decode(&bomb, &mut Budget::of(LIMIT)), Err(FrameError::TooLarge { .. })));
    // The same without a size in the header, as a streaming encoder writes it.
    let streamed = zstd::stream::encode_all(&vec![b' '; 50_000_000][..], 3).unwrap();
    assert!(Up::decode(&streamed, &mut Budget::of(LIMIT)).is_err());
}

#[test]
fn each_kind_of_nonsense_has_its_own_error() {
    let label = |bytes: &[u8]| Up::decode(bytes, &mut Budget::of(LIMIT)).unwrap_err().label();
    assert_eq!(label(b"{"), "json");
    assert_eq!(label(b""), "json");
    assert_eq!(label(b"[1,2]"), "json");
    assert_eq!(label(b"\xff\xfe"), "encoding");
    assert_eq!(label(&[&ZSTD_MAGIC[..], b"rubbish"].concat()), "compression");
    assert_eq!(label(&vec![b' '; LIMIT + 1]), "too_large");
    assert_eq!(label(br#"{"type":"Hello","protocol":2}"#), "protocol");
    assert_eq!(label(br#"{"type":"Goodbye","protocol":1}"#), "type");
    assert_eq!(label(br#"{"type":"Hello","protocol":1}"#), "json");
    let deep = format!(r#"{{"type":"Hello","protocol":1,"x":{}}}"#, "[".repeat(LIMIT / 2));
    assert_eq!(label(deep.as_bytes()), "json");
    let huge = br#"{"type":"Report","protocol":1,"session":"s","from":99999999999999999999999,"to":1}"#;
    assert_eq!(label(huge), "json");
}

#[test]
fn a_bad_object_does_not_spoil_its_frame() {
    let json = r#"{"type":"Objects","protocol":1,"session":"s","objects":[
        {"header":{},"route":{"operation":"update","resource":"a/b/c"},"content":{}},
        {"header":{},"route":{"operation":"delete","resource":"n/configmap/c"},
         "content":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"uid":"u","name":"c","namespace":"n"}}}]}"#;
    let Ok(Received::Objects(objects)) = Received::decode(json.as_bytes(), &mut Budget::of(LIMIT), LIMIT)
    else {
        panic!("must be objects");
    };
    assert_eq!((objects.changes.len(), objects.rejected.len()), (1, 1));
}

#[test]
fn words_that_no_object_can_have_are_refused() {
    let long = "a".repeat(100_000);
    let item = |uid: &str, version: &str, name: &str, namespace: &str, kind: &str| {
        format!(
            r#"{{"uid":"{uid}","resourceVersion":"{version}","object":{{"apiVersion":"v1","kind":"{kind}",
            "namespace":"{namespace}","name":"{name}"}}}}"#
        )
    };
    let report = |fields: String| {
        format!(r#"{{"type":"Report","protocol":1,"session":"s","from":0,"to":1,{fields}}}"#)
    };
    let objects = |item: String| report(format!(r#""objects":[{item}]"#));
    let buckets = serde_json::to_string(&BucketSet::default()).unwrap();
    let inventory = |item: String| {
        format!(
            r#"{{"type":"Inventory","protocol":1,"session":"s","page":0,"buckets":{buckets},"more":true,
            "objects":[{item}]}}"#
        )
    };
    let label = |json: &str| {
        Up::decode(json.as_bytes(), &mut Budget::of(1 << 20)).map(|frame| frame.name()).map_err(|e| e.label())
    };
    assert_eq!(label(&objects(item("u", "1", "n", "ns", "ConfigMap"))), Ok("Report"));
    assert_eq!(label(&inventory(item("u", "1", "n", "ns", "ConfigMap"))), Ok("Inventory"));
    for bad in [
        item(&long, "1", "n", "ns", "Pod"),
        item("", "1", "n", "ns", "Pod"),
        item("a.b", "1", "n", "ns", "Pod"),
        item("u", &long, "n", "ns", "Pod"),
        item("u", "", "n", "ns", "Pod"),
        item("u", "1", &"n".repeat(254), "ns", "Pod"),
        item("u", "1", "n", &"n".repeat(64), "Pod"),
        item("u", "1", "n", "ns", &long),
        item("u", "1", "n\\n", "ns", "Pod"),
    ] {
        let what: String = bad.chars().take(80).collect();
        assert_eq!(label(&objects(bad.clone())), Err("invalid"), "{what}");
        assert_eq!(label(&inventory(bad)), Err("invalid"), "{what}");
    }
    assert_eq!(label(&report(format!(r#""removed":["{long}"]"#))), Err("invalid"));
    assert_eq!(label(&report(format!(r#""receiving":"{long}""#))), Err("invalid"));
    let rejected =
        format!(r#""rejected":[{{"uid":"u","resourceVersion":"{long}","reason":"Invalid","message":""}}]"#);
    assert_eq!(label(&report(rejected)), Err("invalid"));
    let Up::Hello(hello) = Up::Hello(hello()) else { unreachable!() };
    let partial = |uid: &str, version: &str, received| {
        let digest = MessageDigest(1);
        let (uid, resource_version, total) = (uid.into(), version.into(), 9);
        Some(Box::new(PartialMessage { uid, resource_version, total, digest, received }))
    };
    let partial_hello = Hello { partial: partial("u", "1", 9), ..hello.clone() };
    let bytes = Up::Hello(partial_hello.clone()).encode(usize::MAX).unwrap();
    let Ok(Up::Hello(back)) = Up::decode(&bytes, &mut Budget::of(LIMIT)) else { panic!("must be a Hello") };
    assert_eq!(back, partial_hello);
    for hello in [
        Hello { partial: partial(&long, "1", 9), ..hello.clone() },
        Hello { partial: partial("a.b", "1", 9), ..hello.clone() },
        Hello { partial: partial("u", &long, 9), ..hello.clone() },
        Hello { partial: partial("u", "", 9), ..hello.clone() },
        Hello { partial: partial("u", "1", 10), ..hello.clone() },
        Hello { session: long.clone(), ..hello.clone() },
        Hello { agent: long.clone(), ..hello.clone() },
        Hello { incarnation: Some(long.clone()), ..hello.clone() },
    ] {
        let bytes = Up::Hello(hello).encode(usize::MAX).unwrap();
        assert_eq!(Up::decode(&bytes, &mut Budget::of(1 << 20)).unwrap_err().label(), "invalid");
    }
    let lease = Lease { session: long, ..lease() };
    assert_eq!(
        Up::decode(&Up::Lease(lease).encode(usize::MAX).unwrap(), &mut Budget::of(1 << 20))
            .unwrap_err()
            .label(),
        "invalid"
    );
}

#[test]
fn a_frame_has_no_more_items_than_its_bytes_can_name() {
    let removed = vec![r#""a""#; 15_000].join(",");
    let json =
        format!(r#"{{"type":"Report","protocol":1,"session":"s","from":0,"to":1,"removed":[{removed}]}}"#);
    assert!(json.len() < LIMIT);
    assert_eq!(Up::decode(json.as_bytes(), &mut Budget::of(LIMIT)).unwrap_err().label(), "too_large");
}

fn lease() -> Lease {
    Lease {
        session: "5f1c9a7e".into(),
        seconds: 86_400,
        acquired: 4_102_444_800_000_000,
        renewed: 4_102_444_800_000_000,
        check_in: None,
    }
}

#[test]
fn a_lease_of_the_year_2100_is_at_most_150_bytes() {
    let bytes = Up::Lease(lease()).encode(1024).unwrap();
    assert!(bytes.len() <= 150, "{}", bytes.len());
    let Ok(Up::Lease(back)) = Up::decode(&bytes, &mut Budget::of(LIMIT)) else { panic!("must be a lease") };
    assert_eq!(back, lease());
}

fn upload() -> Up {
    let content = r#"{"status":{"uid":"u","object":{"apiVersion":"apps/v1","kind":"Deployment","namespace":"n","name":"d"},"status":{"replicas":1.50}}}"#;
    let item = |seq| UploadItem { seq, content: RawValue::from_string(content.into()).unwrap() };
    Up::Upload(Upload {
        session: "5f1c9a7e".into(),
        outbox: "00112233445566778899aabbccddeeff".into(),
        lane: Lane::Status,
        confirmed: 7,
        items: vec![item(8), item(10)],
    })
}

#[test]
fn items_of_an_upload_arrive_as_they_were_written() {
    for above in [0, usize::MAX] {
        let Ok(Up::Upload(back)) = Up::decode(&upload().encode(above).unwrap(), &mut Budget::of(LIMIT))
        else {
            panic!("must be an upload")
        };
        let Up::Upload(sent) = upload() else { unreachable!() };
        assert_eq!((&back.session, &back.outbox, back.confirmed), (&sent.session, &sent.outbox, 7));
        let texts = |upload: &Upload| -> Vec<(u64, String)> {
            upload.items.iter().map(|item| (item.seq, item.content.get().to_owned())).collect()
        };
        assert_eq!(texts(&back), texts(&sent));
    }
}

#[test]
fn a_reason_of_a_later_version_is_read_as_another_one() {
    let json = r#"{"type":"UploadConfirm","protocol":1,"session":"s","outbox":"o","last":{"status":3},
        "refused":[{"seq":3,"reason":"TooBoring","message":"later"},{"seq":2,"reason":"Gone","message":""}]}"#;
    let Ok(Received::UploadConfirm(confirm)) =
        Received::decode(json.as_bytes(), &mut Budget::of(LIMIT), LIMIT)
    else {
        panic!("must be a confirm");
    };
    let reasons: Vec<_> = confirm.refused.iter().map(|refused| refused.reason).collect();
    assert_eq!(reasons, [RefusedReason::Other, RefusedReason::Gone]);
    assert_eq!(confirm.last, Lanes { status: 3, events: 0, bulk: 0 });
}

#[test]
fn an_upload_with_a_bad_number_is_refused() {
    for (field, value) in [("lane", "1"), ("confirmed", "-1"), ("items", r#"[{"seq":1.5,"content":{}}]"#)] {
        let Up::Upload(upload) = upload() else { unreachable!() };
        let mut json = serde_json::to_value(&upload).unwrap();
        json["type"] = "Upload".into();
        json["protocol"] = 1.into();
        json[field] = serde_json::from_str(value).unwrap();
        assert_eq!(
            Up::decode(json.to_string().as_bytes(), &mut Budget::of(LIMIT)).unwrap_err().label(),
            "json",
            "{field}"
        );
    }
}

#[test]
fn fuzz_frames() {
    let mut samples = files("frames/0.1.0/up", ".json");
    samples.extend(files("frames/0.1.0/down", ".json"));
    let packed = samples.iter().map(|sample| zstd::bulk::compress(sample, 1).unwrap()).collect::<Vec<_>>();
    samples.extend(packed);
    fuzz("frame", &samples, |bytes| {
        let _ = Up::decode(bytes, &mut Budget::of(LIMIT));
        let _ = Received::decode(bytes, &mut Budget::of(LIMIT), LIMIT);
    });
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), zip: bool) {
        let bytes = if zip { zstd::bulk::compress(&bytes, 1).unwrap() } else { bytes };
        let _ = Up::decode(&bytes, &mut Budget::of(LIMIT));
        let _ = Received::decode(&bytes, &mut Budget::of(LIMIT), LIMIT);
    }

    #[test]
    fn a_damaged_frame_does_not_panic(at in 0usize..300, byte: u8, cut in 0usize..300) {
        let confirm = Down::UploadConfirm(UploadConfirm {
            refused: vec![Refused { seq: 1, reason: RefusedReason::Gone, message: "gone".into() }],
            ..UploadConfirm::default()
        });
        let up = [Up::Hello(hello()), Up::Lease(lease()), upload()].map(|frame| frame.encode(usize::MAX));
        for bytes in up.into_iter().chain([confirm.encode(usize::MAX)]) {
            let mut bytes = bytes.unwrap();
            let len = bytes.len();
            bytes[at % len] = byte;
            bytes.truncate(len - cut % len);
            let _ = (Up::decode(&bytes, &mut Budget::of(LIMIT)), Received::decode(&bytes, &mut Budget::of(LIMIT), LIMIT));
            let mut zipped = zstd::bulk::compress(&bytes, 1).unwrap();
            let len = zipped.len();
            zipped[at % len] = byte;
            let _ = (Up::decode(&zipped, &mut Budget::of(LIMIT)), Received::decode(&zipped, &mut Budget::of(LIMIT), LIMIT));
        }
    }
}
