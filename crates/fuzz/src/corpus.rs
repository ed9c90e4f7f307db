//! Objects with ten successive changes each, for tests and figures of patches.
//!
//! `tests/fixtures/patches` has the small ones, as a first version and the changes. The binary one
//! is generated.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::Numbers;

/// The objects with a file.
const FILES: [&str; 5] = ["settings", "text", "crd", "bundle", "secret"];
/// The version of the first text; each change adds some thousands, as a store that counts
/// microseconds does.
const FIRST_VERSION: u64 = 1_795_237_935_165_062;
const VERSION_STEP: u64 = 21_731;
/// The bytes of the binary object, and those that change each time.
const BINARY: usize = 3 << 20;
const CHANGED: usize = 800;

/// One object and its versions.
#[derive(Debug)]
pub struct Row {
    /// The name of the object.
    pub name: &'static str,
    /// The UID of the object.
    pub uid: String,
    /// Version and text of the object, eleven times. The texts have sorted members.
    pub versions: Vec<(u64, String)>,
}

/// Returns all objects.
pub fn rows() -> Vec<Row> {
    FILES.into_iter().map(recorded).chain([binary()]).collect()
}

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/patches")
}

fn recorded(name: &'static str) -> Row {
    let text = std::fs::read_to_string(directory().join(format!("{name}.json"))).expect("a fixture");
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let mut object = file["object"].clone();
    let mut row = Row::new(name, &object);
    row.push(&mut object);
    for changes in file["changes"].as_array().expect("a list of changes") {
        for change in changes.as_array().expect("a list of edits") {
            edit(&mut object, change[0].as_str().expect("a pointer"), &change[1], &file["texts"]);
        }
        row.push(&mut object);
    }
    row
}

/// Sets the value under a pointer.
fn edit(object: &mut Value, pointer: &str, value: &Value, texts: &Value) {
    let (parent, member) = pointer.rsplit_once('/').expect("a pointer");
    let parent = object.pointer_mut(parent).expect("a member");
    parent[member] = if let Some(line) = value.get("line") {
        let text = parent[member].as_str().expect("a text");
        let mut lines: Vec<&str> = text.lines().collect();
        lines[usize::try_from(line.as_u64().expect("a number")).unwrap()] = value["text"].as_str().unwrap();
        json!(lines.join("\n") + "\n")
    } else if let Some(numbers) = value.get("texts") {
        let text = |number: &Value| texts[usize::try_from(number.as_u64().unwrap()).unwrap()].as_str();
        json!(numbers.as_array().unwrap().iter().filter_map(text).collect::<String>())
    } else {
        value.get("value").unwrap_or(value).clone()
    };
}

/// Returns a ConfigMap of 3 MiB of binary data, in which 800 bytes change each time.
fn binary() -> Row {
    let mut random = Numbers(0x2545_f491_4f6c_dd1d);
    let mut bytes: Vec<u8> = (0..BINARY / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "firmware",
        "namespace": "plant", "uid": "6c1d9a52-0a77-4d8e-9f43-2f0f6f6f2b11", "generation": 1},
        "binaryData": {"image": ""}});
    let mut row = Row::new("binary", &object);
    for number in 0..=10 {
        if number > 0 {
            let at = random.below(BINARY - CHANGED);
            bytes[at..at + CHANGED].iter_mut().for_each(|byte| *byte = random.next().to_le_bytes()[0]);
        }
        object["binaryData"]["image"] = json!(base64(&bytes));
        row.push(&mut object);
    }
    row
}

impl Row {
    fn new(name: &'static str, object: &Value) -> Self {
        let uid = object["metadata"]["uid"].as_str().expect("a UID").to_owned();
        Self { name, uid, versions: Vec::new() }
    }

    fn push(&mut self, object: &mut Value) {
        let number = self.versions.len() as u64;
        let version = FIRST_VERSION + number * VERSION_STEP;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        object["metadata"]["generation"] = json!(number + 1);
        self.versions.push((version, object.to_string()));
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0_usize, |word, byte| word << 8 | usize::from(*byte))
            << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = char::from(DIGITS[word >> (18 - 6 * place) & 63]);
            let _ = write!(text, "{}", if place > three.len() { '=' } else { digit });
        }
    }
    text
}
