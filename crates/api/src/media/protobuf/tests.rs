use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use edgesync_fuzz::fuzz;

/// Request bodies of `kubectl create` 1.37 with its JSON output; the Job is one of a CronJob with
/// most Pod fields. `status` has kube-apiserver 1.20 output of one object per kind in both
/// encodings, with all status fields of that version.
fn fixtures(folder: &str) -> Vec<(String, Vec<u8>, Value)> {
    let directory =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/protobuf").join(folder);
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut fixtures: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "bin"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let json = std::fs::read(path.with_extension("json")).unwrap();
            (name, std::fs::read(path).unwrap(), serde_json::from_slice(&json).unwrap())
        })
        .collect();
    fixtures.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    fixtures
}

/// Returns whether a value is empty at any depth.
fn is_empty_deep(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(|fields| fields.values().all(is_empty_deep))
}

/// Asserts that both are equal, except for empty values in the second.
fn assert_same(ours: &Value, theirs: &Value, path: &str) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for name in ours.keys() {
                assert!(theirs.contains_key(name), "{path}.{name} is too much");
            }
            for (name, theirs) in theirs {
                match ours.get(name) {
                    Some(ours) => assert_same(ours, theirs, &format!("{path}.{name}")),
                    None => assert!(is_empty_deep(theirs), "{path}.{name} is missing"),
                }
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            assert_eq!(ours.len(), theirs.len(), "{path}");
            for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                assert_same(ours, theirs, &format!("{path}[{index}]"));
            }
        }
        _ => assert_eq!(ours, theirs, "{path}"),
    }
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn field(number: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [varint((u64::from(number) << 3) | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn number(number: u8, value: i64) -> Vec<u8> {
    [varint(u64::from(number) << 3), varint(value.cast_unsigned())].concat()
}

fn time(seconds: i64, nanos: i64) -> Vec<u8> {
    [number(1, seconds), number(2, nanos)].concat()
}

fn body(api_version: &str, kind: &str, raw: impl AsRef<[u8]>) -> Vec<u8> {
    let kind = [field(1, api_version), field(2, kind)].concat();
    [MAGIC, &field(1, kind), &field(2, raw), &field(3, ""), &field(4, "")].concat()
}

fn read_kind(api_version: &str, kind: &str, raw: impl AsRef<[u8]>) -> Value {
    let mut object = read(&body(api_version, kind, raw)).unwrap();
    for (name, expected) in [("apiVersion", api_version), ("kind", kind)] {
        let said = object.as_object_mut().unwrap().remove(name);
        assert_eq!(said, Some(json!(expected)));
    }
    object
}

/// Tables on a device contain only the kinds that are writable there.
#[test]
fn kubectl_bodies_decode_to_its_json() {
    use edgesync_schema as schema;
    let fixtures = fixtures("");
    assert!(fixtures.len() >= 20, "{}", fixtures.len());
    let mut kinds = 0;
    for (name, bytes, expected) in fixtures {
        let (api_version, kind) =
            (expected["apiVersion"].as_str().unwrap(), expected["kind"].as_str().unwrap());
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let Some(schema) = schema::builtin(group, version, kind) else {
            assert_eq!(read(&bytes).unwrap_err().code, 415, "{name}");
            continue;
        };
        let object = read(&bytes).unwrap();
        assert_same(&object, &expected, &name);
        let object = object.as_object().unwrap();
        let mut pruned = object.clone();
        assert_eq!(schema::prune(&schema, &mut pruned), Vec::<String>::new(), "{name}");
        assert_eq!(&pruned, object, "{name}");
        assert!(schema::wrong_types(&schema, object).is_empty(), "{name}");
        assert!(schema::validate(&schema, object).is_empty(), "{name}");
        kinds += 1;
    }
    assert!(kinds >= 20);
}

/// The same on a device and in the cloud.
#[test]
fn status_decodes_as_a_server_encodes_it() {
    let fixtures = fixtures("status");
    assert_eq!(fixtures.len(), 14);
    for (name, bytes, expected) in fixtures {
        let object = read(&bytes).unwrap_or_else(|status| panic!("{name}: {status}"));
        assert_same(&object["status"], &expected["status"], &name);
        assert_eq!(object["metadata"]["uid"], expected["metadata"]["uid"], "{name}");
    }
}

#[test]
fn lease_of_a_leader_election_is_decoded() {
    let spec = [
        field(1, "scheduler-1"),
        number(2, 15),
        field(3, time(1_700_000_000, 123_456_789)),
        field(4, time(1_700_000_010, 0)),
        number(5, 0),
    ];
    let raw = [
        field(1, [field(1, "scheduler"), field(3, "kube-system"), field(8, "")].concat()),
        field(2, spec.concat()),
    ];
    assert_eq!(
        read_kind("coordination.k8s.io/v1", "Lease", raw.concat()),
        json!({
            "metadata": {"name": "scheduler", "namespace": "kube-system"},
            "spec": {
                "holderIdentity": "scheduler-1", "leaseDurationSeconds": 15, "leaseTransitions": 0,
                "acquireTime": "2023-11-14T22:13:20.123456Z", "renewTime": "2023-11-14T22:13:30.000000Z",
            },
        })
    );
    // A lease that its holder releases: the empty holder is a value.
    let raw = field(2, [field(1, ""), number(2, 1), field(3, "")].concat());
    assert_eq!(
        read_kind("coordination.k8s.io/v1", "Lease", raw),
        json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})
    );
}

#[test]
fn event_is_decoded_with_its_times() {
    let raw = [
        field(2, [field(1, "Pod"), field(3, "web")].concat()),
        field(6, time(1_700_000_000, 999_999_999)),
        field(7, ""),
        number(8, 3),
        field(10, time(1_700_000_000, 5_000)),
        field(14, ""),
    ];
    assert_eq!(
        read_kind("v1", "Event", raw.concat()),
        json!({
            "involvedObject": {"kind": "Pod", "name": "web"}, "firstTimestamp": "2023-11-14T22:13:20Z", "count": 3,
            "eventTime": "2023-11-14T22:13:20.000005Z", "reportingComponent": "",
        })
    );
}

#[test]
fn delete_options_are_decoded_in_any_group() {
    let options = [number(1, 0), field(2, field(1, "u-1")), field(4, "Foreground"), field(5, "All")].concat();
    let expected = json!({
        "gracePeriodSeconds": 0, "preconditions": {"uid": "u-1"}, "propagationPolicy": "Foreground", "dryRun": ["All"],
    });
    for group in ["v1", "apps/v1", "meta.k8s.io/v1", "example.com/v1"] {
        assert_eq!(read_kind(group, "DeleteOptions", &options), expected);
    }
}

#[test]
fn managed_fields_are_json_in_bytes() {
    let entry = |json: &str| {
        let fields = field(7, field(1, json));
        body("v1", "ConfigMap", field(1, field(17, [field(1, "me"), fields].concat())))
    };
    let read = |json: &str| read(&entry(json)).map(|object| object["metadata"]["managedFields"][0].clone());
    assert_eq!(read(r#"{"f:data":{}}"#), Ok(json!({"manager": "me", "fieldsV1": {"f:data": {}}})));
    assert_eq!(read(""), Ok(json!({"manager": "me"})));
    assert_eq!(read("{").unwrap_err().code, 400);
    // The levels around it count too.
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert!(read(&nested(MAX_DEPTH - 4)).is_ok());
    assert_eq!(read(&nested(MAX_DEPTH - 3)).unwrap_err().code, 400);
    assert_eq!(read(&nested(100_000)).unwrap_err().code, 400);
}

#[test]
fn envelope_selects_the_decoding() {
    let envelope = |encoding: &str, content: &str, raw: &str| {
        let kind = field(1, [field(1, "example.com/v1"), field(2, "Widget")].concat());
        read(&[MAGIC, &kind, &field(2, raw), &field(3, encoding), &field(4, content)].concat())
    };
    let expected = json!({"apiVersion": "example.com/v1", "kind": "Widget", "a": 1});
    assert_eq!(envelope("", "application/json", "{\"a\":1}"), Ok(expected));
    for (encoding, content, raw, code) in [
        ("", "application/json", "[1]", 400),
        ("", "application/json", "", 400),
        ("", "application/json", "{", 400),
        ("", "application/cbor", "", 415),
        ("gzip", "application/json", "{}", 415),
        ("", "", "", 415),
        ("", MEDIA_TYPE, "", 415),
    ] {
        assert_eq!(envelope(encoding, content, raw).unwrap_err().code, code, "{encoding} {content} {raw}");
    }
    let status = read(&body("v1", &"x".repeat(10_000), "")).unwrap_err();
    assert!(status.code == 415 && status.message.len() < 300, "{status}");
    assert_eq!(read(&body("reliablesyncs.kubeedge.io/v1alpha1", "ObjectSync", "")).unwrap_err().code, 415);
}

#[test]
fn repeated_fields_merge_or_the_last_wins() {
    let raw = [
        field(
            1,
            [field(1, "old"), field(3, "ns"), field(11, [field(1, "a"), field(2, "1")].concat())].concat(),
        ),
        number(4, 1),
        field(1, [field(1, "new"), field(11, [field(2, "2"), field(1, "a")].concat())].concat()),
        field(2, [field(1, "x"), field(1, "y"), field(2, "1"), field(2, "")].concat()),
        field(2, ""),
        number(4, 0),
        // Fields of newer clients.
        field(99, "?"),
        number(100, -1),
        vec![0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8],
        vec![0xa5, 0x06, 1, 2, 3, 4],
    ];
    assert_eq!(
        read_kind("v1", "ConfigMap", raw.concat()),
        json!({
            "metadata": {"name": "new", "namespace": "ns", "labels": {"a": "2"}},
            "data": {"y": "", "": ""}, "immutable": false,
        })
    );
    let raw = [field(1, field(1, "a")), field(1, field(1, ""))].concat();
    assert_eq!(read_kind("v1", "ConfigMap", raw), json!({"metadata": {}}));
}

#[test]
fn nested_custom_schemas_are_decoded() {
    let text = field(5, "string");
    let closed = number(1, 0);
    let open = field(2, field(5, "integer"));
    let items = field(24, field(1, &text));
    let fields = [
        field(29, [field(1, "list"), field(2, [field(5, "array"), items].concat())].concat()),
        field(29, [field(1, "map"), field(2, field(30, &open))].concat()),
        field(29, [field(1, "none"), field(2, field(30, closed))].concat()),
        field(29, [field(1, "any"), field(2, field(30, field(2, "")))].concat()),
        field(29, [field(1, "both"), field(2, field(24, [field(2, &text), field(2, "")].concat()))].concat()),
        field(8, field(1, r#"{"a":[1]}"#)),
        [vec![0x49], 2.5_f64.to_le_bytes().to_vec(), vec![0x59], 3.0_f64.to_le_bytes().to_vec()].concat(),
        field(3, "#/x"),
        number(38, 1),
    ];
    let version =
        |schema: &[u8]| field(7, [field(1, "v1"), number(2, 1), field(4, field(1, schema))].concat());
    let raw = |schema: &[u8]| field(2, [field(1, "example.com"), version(schema)].concat());
    let read_schema = |schema: &[u8]| {
        let read = read(&body("apiextensions.k8s.io/v1", "CustomResourceDefinition", raw(schema)));
        read.map(|object| object["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
    };
    assert_eq!(
        read_schema(&fields.concat()),
        Ok(json!({
            "properties": {
                "list": {"type": "array", "items": {"type": "string"}},
                "map": {"additionalProperties": {"type": "integer"}},
                "none": {"additionalProperties": false},
                "any": {"additionalProperties": {}},
                "both": {"items": [{"type": "string"}, {}]},
            },
            "default": {"a": [1]}, "maximum": 2.5, "minimum": 3, "$ref": "#/x",
            "x-kubernetes-preserve-unknown-fields": true,
        }))
    );
    // `not` within `not`: each is one level, inside six others.
    let not = |levels: usize| (0..levels).fold(Vec::new(), |inner, _| field(28, inner));
    assert!(read_schema(&not(MAX_DEPTH - 6)).is_ok());
    let status = read_schema(&not(MAX_DEPTH - 5)).unwrap_err();
    assert!(status.code == 400 && status.message.contains("too deep"), "{status}");
    assert_eq!(read_schema(&not(5_000)).unwrap_err().code, 400);
}

#[test]
fn packed_numbers_are_decoded() {
    let pod =
        |ids: Vec<u8>| read_kind("v1", "Pod", field(2, field(14, ids)))["spec"]["securityContext"].clone();
    let packed = [varint(1), varint(4_000_000_000), varint((-1_i64).cast_unsigned())].concat();
    let expected = json!({"supplementalGroups": [1, 4_000_000_000_u64, -1]});
    assert_eq!(pod(field(4, &packed)), expected);
    assert_eq!(
        pod([number(4, 1), field(4, ""), field(4, varint(4_000_000_000)), number(4, -1)].concat()),
        expected
    );
}

#[test]
fn invalid_bodies_are_refused() {
    let lease = |spec: Vec<u8>| body("coordination.k8s.io/v1", "Lease", field(2, spec));
    let not_text = body("v1", "ConfigMap", field(2, field(1, [0xff_u8])));
    let no_kind = [MAGIC, &field(1, field(1, "v1"))].concat();
    for (bytes, why) in [
        (b"{}".to_vec(), "first bytes"),
        (MAGIC.to_vec(), "apiVersion"),
        (no_kind, "apiVersion"),
        (body("v1", "ConfigMap", [0x0a_u8, 5, 1]), "truncated"),
        (
            body("v1", "ConfigMap", [0x0a_u8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            "truncated",
        ),
        (body("v1", "ConfigMap", [0xff_u8; 11]), "too long"),
        (body("v1", "ConfigMap", [0x02_u8, 0]), "invalid number"),
        (body("v1", "ConfigMap", [0x0b_u8, 0x0c]), "unknown type"),
        (body("v1", "ConfigMap", number(1, 1)), "wrong type"),
        (not_text, "UTF-8"),
        (lease(field(4, time(i64::MAX, 0))), "out of range"),
        (lease(field(4, time(i64::MIN, 0))), "out of range"),
        (lease(field(4, time(0, -1))), "out of range"),
        (lease(field(4, time(0, 1_000_000_000))), "out of range"),
    ] {
        let status = read(&bytes).unwrap_err();
        assert!(status.code == 400 && status.message.contains(why), "{status}, not {why}");
    }
}

#[test]
fn truncated_bodies_are_reported_as_such() {
    for (name, bytes, _) in fixtures("") {
        for length in 0..bytes.len() {
            // A field may end at the cut by chance; then less is read.
            if let Err(status) = read(&bytes[..length]) {
                assert!(matches!(status.code, 400 | 415), "{name} at {length}: {status}");
            }
        }
    }
}

#[test]
fn protobuf_never_panics_fuzzed() {
    let samples: Vec<Vec<u8>> = fixtures("").into_iter().map(|(_, bytes, _)| bytes.clone()).collect();
    fuzz("protobuf", &samples, |bytes| drop(read(bytes)));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
        for kind in ["ConfigMap", "Node", "Event", "Pod", "PersistentVolume"] {
            if let Ok(object) = read(&body("v1", kind, &bytes)) {
                prop_assert!(!edgesync_object::too_deep(&object.to_string()));
            }
        }
        let _ = read(&body("apiextensions.k8s.io/v1", "CustomResourceDefinition", &bytes));
    }

    #[test]
    fn no_flipped_bit_panics(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let fixtures = fixtures("");
        let (name, bytes, _) = which.get(&fixtures);
        let mut bytes = bytes.clone();
        *at.get_mut(&mut bytes) ^= 1 << bit;
        if let Err(status) = read(&bytes) {
            prop_assert!(matches!(status.code, 400 | 415), "{name}: {status}");
        }
    }
}
