//! Objects as in real clusters: ConfigMaps, Secrets and Pods of about 1 KB (`tests/fixtures/e2e`),
//! distinguished by a number.

use std::ops::Range;
use std::sync::LazyLock;

use serde_json::{Value, json};

use edgesync_object::random::split_mix_64;

static CONFIG_MAP: LazyLock<Value> =
    LazyLock::new(|| parsed(include_str!("../../../../tests/fixtures/e2e/configmap.json")));
static SECRET: LazyLock<Value> =
    LazyLock::new(|| parsed(include_str!("../../../../tests/fixtures/e2e/secret.json")));
static POD: LazyLock<Value> =
    LazyLock::new(|| parsed(include_str!("../../../../tests/fixtures/e2e/pod.json")));

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Returns object number `number`: of ten, five are ConfigMaps, three Secrets, two Pods.
pub fn object(number: usize) -> Value {
    match number % 10 {
        0..5 => config_map(number),
        5..8 => secret(number),
        _ => named(&POD, "pod", number),
    }
}

/// Returns the objects with these numbers.
pub fn objects(numbers: Range<usize>) -> impl Iterator<Item = Value> {
    numbers.map(object)
}

pub fn config_map(number: usize) -> Value {
    let mut object = named(&CONFIG_MAP, "config", number);
    object["data"]["line"] = json!(format!("line-{number}"));
    object
}

pub fn secret(number: usize) -> Value {
    named(&SECRET, "credentials", number)
}

fn named(fixture: &Value, word: &str, number: usize) -> Value {
    let mut object = fixture.clone();
    object["metadata"]["name"] = json!(format!("{word}-{number}"));
    object["metadata"]["namespace"] = json!(format!("plant-{}", number % 3));
    object
}

/// Returns the object in another version.
pub fn changed(mut object: Value, version: impl ToString) -> Value {
    object["metadata"]["annotations"]["example.org/edition"] = json!(version.to_string());
    object
}

/// Returns a ConfigMap with `bytes` bytes of text that does not compress well.
pub fn sized(name: &str, bytes: usize) -> Value {
    let mut random = Random::new(bytes as u64);
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text += &format!("{:016x}", random.next());
    }
    text.truncate(bytes);
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": "plant-0" },
        "data": { "blob": text },
    })
}

/// Random numbers from a seed (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Uses the variable `EDGESYNC_TEST_SEED`, or a new seed; prints it, so that a failure can be
    /// reproduced.
    pub fn seeded() -> Self {
        let seed = match std::env::var("EDGESYNC_TEST_SEED") {
            Ok(seed) => seed.parse().expect("EDGESYNC_TEST_SEED is a number"),
            Err(_) => uuid::Uuid::new_v4().as_u64_pair().0,
        };
        eprintln!("EDGESYNC_TEST_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        split_mix_64(&mut self.0)
    }

    /// Returns a number below `limit`, which is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
}
