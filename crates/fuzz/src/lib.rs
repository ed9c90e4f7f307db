//! Samples and mutations for fuzz tests of decoders: a decoder may refuse an input, but must not
//! panic. A dev-dependency, independent of any decoder. Read a test `fuzz_…` of `edgesync-protocol`
//! first.
//!
//! Each test `fuzz_…` runs several thousand inputs, or the number in the variable
//! `EDGESYNC_TEST_FUZZ`:
//!
//! ```text
//! EDGESYNC_TEST_FUZZ=10000000 cargo test --release --workspace --lib fuzz_ -- --nocapture --test-threads 1
//! ```
//!
//! Samples are files of `tests/fixtures`; `tests/fixtures/fuzz/NAME` has inputs that failed in the
//! past.

#![allow(clippy::panic, reason = "a test fails by panicking")]

pub mod corpus;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Default number of inputs.
const COUNT: u64 = 3_000;
/// Maximum length of an input in bytes.
const MAX_INPUT: usize = 16 << 10;
/// Words of the parsed formats: JSON, YAML, HTTP, paths, selectors.
const WORDS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e999",
    b"18446744073709551616",
    b"9223372036854775807",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\x00",
    b"\n",
    b" ",
    b"/",
    b"..",
    b"%2F",
    b"%",
    b"*",
    b"a in (b,c)",
    b"!a",
    b"=",
    b"&a *a",
    b"!!binary",
    b"<<: *a",
    b"- - - -",
    b"---\n",
    b"metadata",
    b"uid",
    b"/~1",
    b"\x28\xb5\x2f\xfd",
    b"k8s\x00",
    b"\x30\x82\xff\xff",
    b"\xff\xff\xff\x7f",
];

/// Deterministic pseudo-random numbers (xorshift64*).
pub(crate) struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Runs a decoder on the samples and on mutations of them.
///
/// # Panics
/// If the decoder panics, with the input in hexadecimal.
pub fn fuzz(name: &str, samples: &[Vec<u8>], decode: impl Fn(&[u8])) {
    assert!(!samples.is_empty(), "{name}: no samples");
    let mut samples = samples.to_vec();
    samples.extend(files(&format!("fuzz/{name}"), ""));
    let count =
        std::env::var("EDGESYNC_TEST_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(COUNT);
    let mut input = Vec::new();
    for number in 0..count + samples.len() as u64 {
        input.clear();
        match samples.get(usize::try_from(number).unwrap_or(usize::MAX)) {
            Some(sample) => input.extend_from_slice(sample),
            None => mutate(&mut input, &samples, number),
        }
        if catch_unwind(AssertUnwindSafe(|| decode(&input))).is_err() {
            let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
            panic!("{name}: input {number} made it panic: {hex}");
        }
    }
    println!("{name}: {count} inputs from {} samples", samples.len());
}

/// Returns the files below a directory of `tests/fixtures` whose names have this end, in sorted
/// order.
pub fn files(directory: &str, end: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(directory);
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let wanted = paths.iter().filter(|path| path.is_file() && path.to_string_lossy().ends_with(end));
    wanted.filter_map(|path| std::fs::read(path).ok()).collect()
}

/// Applies a few mutations to one of the samples.
fn mutate(input: &mut Vec<u8>, samples: &[Vec<u8>], number: u64) {
    let mut random = Numbers(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    random.next();
    input.extend_from_slice(&samples[random.below(samples.len())]);
    for _ in 0..=random.below(6) {
        let at = random.below(input.len() + 1);
        let most = 1 << random.below(9);
        let end = (at + 1 + random.below(most)).min(input.len());
        match random.below(9) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.next() as u8,
            2 if at < end => drop(input.drain(at..end)),
            3 if at < end => input.extend_from_within(at..end),
            4 => input.truncate(at),
            5 if at < end => {
                // Repeats a part, for depth or length.
                let part = input[at..end].to_vec();
                let times = random.below(MAX_INPUT / part.len());
                input.splice(at..at, std::iter::repeat_n(part, times.min(600)).flatten());
            }
            6 => {
                let other = &samples[random.below(samples.len())];
                let from = random.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {
                let word = WORDS[random.below(WORDS.len())];
                let to = if random.below(2) == 0 { at } else { end.max(at) };
                input.splice(at..to, word.iter().copied());
            }
        }
    }
    input.truncate(MAX_INPUT);
}

#[test]
fn panicking_decoder_is_reported_with_its_input() {
    let picky = |bytes: &[u8]| assert!(!bytes.windows(4).any(|part| part == b"null"));
    let found = catch_unwind(|| fuzz("picky", &[b"{\"a\":1}".to_vec()], picky)).unwrap_err();
    let message = found.downcast_ref::<String>().unwrap();
    assert!(message.contains("6e756c6c"), "{message}");
}
