//! Checks `docs/protocol.md` against the decoders: the programs accept each example, each type has
//! one, and each field is described.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Map, Value};

use edgesync_object::Budget;
use edgesync_protocol::digest::Digest;
use edgesync_protocol::frame::{DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Down, Received, Up};
use edgesync_protocol::upload::{Content, IngestCursor, RefusedReason};

const LIMIT: usize = DEFAULT_MAX_FRAME as usize;
const MAX_OBJECT: usize = DEFAULT_MAX_OBJECT as usize;
/// The length of an InventoryRequest's `buckets`: 2,048 bytes in base64 without padding.
const BUCKETS_LENGTH: usize = 2731;

/// A fenced block whose info string is `json <direction> <type>`.
struct Example {
    direction: String,
    r#type: String,
    json: String,
    /// The part of the document from the heading above the example to the next heading.
    section: String,
}

fn document() -> String {
    let path = edgesync_testkit::programs::root().join("docs/protocol.md");
    fs::read_to_string(path).unwrap()
}

/// Replaces each `…` with zeros, which are `A` in base64, where the length counts.
fn expand(json: &str) -> String {
    let mut value: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error} in {json}"));
    let buckets = value.get("buckets").and_then(Value::as_str).filter(|text| text.contains('…'));
    if let Some(buckets) = buckets {
        let (start, rest) = buckets.split_once('…').unwrap();
        let rest = rest.replace('…', "");
        let filling = "A".repeat(BUCKETS_LENGTH - start.len() - rest.len());
        value["buckets"] = format!("{start}{filling}{rest}").into();
    }
    value.to_string()
}

fn examples() -> Vec<Example> {
    let document = document();
    let mut examples = Vec::new();
    for section in document.split("\n#") {
        let mut rest = section;
        while let Some((_, block)) = rest.split_once("```json ") {
            let (info, block) = block.split_once('\n').unwrap();
            let (json, after) = block.split_once("```").unwrap();
            rest = after;
            let (direction, r#type) = info.split_once(' ').unwrap_or((info, ""));
            examples.push(Example {
                direction: direction.to_owned(),
                r#type: r#type.to_owned(),
                json: expand(json),
                section: section.to_owned(),
            });
        }
    }
    assert!(examples.len() >= 15, "the examples were not found");
    examples
}

/// Returns the examples of frames, without those of the presence topics.
fn frames() -> impl Iterator<Item = Example> {
    examples().into_iter().filter(|example| !example.r#type.is_empty())
}

fn decode_up(example: &Example) -> Up {
    Up::decode(example.json.as_bytes(), &mut Budget::of(LIMIT))
        .unwrap_or_else(|error| panic!("{error}: {}", example.json))
}

fn decode_down(example: &Example) -> Received {
    Received::decode(example.json.as_bytes(), &mut Budget::of(LIMIT), MAX_OBJECT)
        .unwrap_or_else(|error| panic!("{error}: {}", example.json))
}

/// Converts a received frame to the frame that the encoder writes; `None` for `Objects`, whose
/// messages are decoded into changes.
pub(crate) fn written_again(frame: Received) -> Option<Down> {
    match frame {
        Received::Welcome(frame) => Some(Down::Welcome(frame)),
        Received::Objects(_) | Received::Patches(_) => None,
        Received::Part(frame) => Some(Down::Part(frame)),
        Received::Confirm(frame) => Some(Down::Confirm(frame)),
        Received::InventoryRequest(frame) => Some(Down::InventoryRequest(frame)),
        Received::HelloRequest(frame) => Some(Down::HelloRequest(frame)),
        Received::UploadConfirm(frame) => Some(Down::UploadConfirm(frame)),
        Received::Stay(frame) => Some(Down::Stay(frame)),
    }
}

/// Parses a frame. A Renew is the session alone.
fn object(json: &[u8]) -> Map<String, Value> {
    match serde_json::from_slice(json).unwrap() {
        Value::Object(fields) => fields,
        session => Map::from_iter([("session".to_owned(), session)]),
    }
}

#[test]
fn examples_equal_the_encoders_output() {
    for example in frames() {
        let bytes = match example.direction.as_str() {
            "up" => {
                let frame = decode_up(&example);
                assert_eq!(frame.name(), example.r#type);
                Some(frame.encode(usize::MAX).unwrap())
            }
            "down" => {
                let frame = written_again(decode_down(&example));
                frame.map(|frame| {
                    assert_eq!(frame.name(), example.r#type);
                    frame.encode(usize::MAX).unwrap()
                })
            }
            other => panic!("an example is up or down, not {other}"),
        };
        // Defaults that are written out and unknown fields show as a difference.
        if let Some(bytes) = bytes {
            assert_eq!(object(&bytes), object(example.json.as_bytes()));
        }
    }
}

#[test]
fn objects_of_examples_are_accepted() {
    let mut changes = 0;
    for example in frames().filter(|example| example.r#type == "Objects") {
        let Received::Objects(objects) = decode_down(&example) else { panic!("must be objects") };
        assert!(objects.rejected.is_empty(), "{:?}", objects.rejected);
        changes += objects.changes.len();
    }
    assert_eq!(changes, 3);
}

#[test]
fn frame_types_each_have_an_example() {
    let shown: BTreeSet<(String, String)> =
        frames().map(|example| (example.direction, example.r#type)).collect();
    let up = Up::NAMES.iter().map(|name| ("up", *name));
    let down = Received::NAMES.iter().map(|name| ("down", *name));
    let all: BTreeSet<(String, String)> =
        up.chain(down).map(|(direction, name)| (direction.into(), name.into())).collect();
    assert_eq!(shown, all);
}

#[test]
fn fields_of_examples_are_described_in_their_section() {
    for example in examples() {
        for field in object(example.json.as_bytes()).keys() {
            let described = matches!(field.as_str(), "type" | "protocol")
                || example.section.contains(&format!("\n| `{field}` |"));
            assert!(described, "`{field}` of {} {} has no row", example.direction, example.r#type);
        }
    }
}

#[test]
fn hello_digest_matches_the_reported_objects() {
    let hello = frames().find(|example| example.r#type == "Hello").unwrap();
    let Up::Hello(hello) = decode_up(&hello) else { panic!("must be a hello") };
    let report = frames().filter(|example| example.r#type == "Report").nth(1).unwrap();
    let Up::Report(report) = decode_up(&report) else { panic!("must be a report") };
    let mut digest = Digest::default();
    for item in &report.objects {
        digest.add(hello.epoch, &item.uid, &item.resource_version);
    }
    assert_eq!((report.objects.len() as u64, digest), (hello.count, hello.digest));
}

#[test]
fn upload_contents_each_have_an_example() {
    let mut shown = BTreeSet::new();
    for example in frames().filter(|example| example.r#type == "Upload") {
        let Up::Upload(upload) = decode_up(&example) else { panic!("must be an upload") };
        for item in &upload.items {
            shown.insert(match serde_json::from_str(item.content.get()).unwrap() {
                Content::Node(_) => "node",
                Content::Status(_) => "status",
                Content::Event(_) => "event",
                Content::Effect(_) => "effect",
            });
        }
    }
    assert_eq!(shown, BTreeSet::from(["node", "status", "event", "effect"]));
}

#[test]
fn lease_frame_takes_at_most_150_bytes() {
    let lease = frames().find(|example| example.r#type == "Lease").unwrap();
    assert!(decode_up(&lease).encode(usize::MAX).unwrap().len() <= 150);
}

#[test]
fn example_confirm_answers_an_example_upload() {
    let confirm = frames().find(|example| example.r#type == "UploadConfirm").unwrap();
    let Received::UploadConfirm(confirm) = decode_down(&confirm) else { panic!("must be a confirm") };
    let answered = frames().filter(|example| example.r#type == "Upload").any(|example| {
        let Up::Upload(upload) = decode_up(&example) else { panic!("must be an upload") };
        let mut taken = IngestCursor { outbox: confirm.outbox.clone(), last: confirm.last };
        taken.begin(&upload.outbox, upload.lane, upload.confirmed);
        let refused = |seq| confirm.refused.iter().any(|refused| refused.seq == seq);
        !upload.items.is_empty()
            && taken.last == confirm.last
            && upload.items.iter().all(|item| !taken.accept(upload.lane, item.seq))
            && upload.items.iter().any(|item| refused(item.seq))
    });
    assert!(answered);
}

#[test]
fn refusal_reasons_are_each_described() {
    let document = document();
    for reason in
        [RefusedReason::Invalid, RefusedReason::Gone, RefusedReason::Recreated, RefusedReason::NotPlaced]
    {
        let name = serde_json::to_value(reason).unwrap();
        assert!(document.contains(&format!("\n| `{}` |", name.as_str().unwrap())), "{name} has no row");
    }
}
