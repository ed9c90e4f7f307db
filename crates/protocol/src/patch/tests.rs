use super::*;
use crate::frame::{Down, Patches, Received};
use crate::parts;
use edgesync_fuzz::corpus::{self, Row};
use edgesync_fuzz::fuzz;
use edgesync_object::Budget;
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

const LIMIT: usize = 256 << 10;
const UID: &str = "2d6ba479-c3be-43e2-b370-ac3e270c6465";

fn patch(base: &str, new: &str) -> Option<Patch> {
    let (from, to) = (1_795_237_935_165_062.into(), 1_795_237_935_165_070.into());
    Patch::make(&UID.into(), Edition { version: &from, text: base }, Edition { version: &to, text: new })
}

fn text(lines: usize) -> String {
    (0..lines).map(|n| format!("parameter-{n} = {}\n", n * 7919 % 1000)).collect()
}

fn frame(patches: Vec<Patch>) -> Vec<u8> {
    let patches = patches.into_iter().map(Arc::new).collect();
    let frame = Patches { session: "20a116a6".into(), receipt: 7, patches };
    Down::Patches(frame).encode(1024).unwrap()
}

fn read(bytes: &[u8]) -> Patches {
    match Received::decode(bytes, &mut Budget::of(LIMIT), LIMIT).unwrap() {
        Received::Patches(patches) => patches,
        other => panic!("must be patches: {other:?}"),
    }
}

#[test]
fn one_changed_line_costs_less_than_a_hundred_and_fifty_bytes() {
    let base = text(400);
    let new = base.replace("parameter-200 =", "parameter-200 = 1 +");
    let patch = patch(&base, &new).unwrap();
    let bytes = frame(vec![patch]);
    assert!(bytes.len() < 150, "{} bytes", bytes.len());
    let back = read(&bytes);
    assert_eq!((back.session.as_str(), back.receipt, back.patches.len()), ("20a116a6", 7, 1));
    assert_eq!(back.patches[0].apply(&base), Ok(new));
}

#[test]
fn a_patch_that_saves_too_little_is_not_made() {
    let base = text(100);
    let other: String = base.chars().rev().collect();
    assert!(patch(&base, &other).is_none());
    assert!(patch("{}", "{}").is_none(), "the entry is longer than the object");
    let long = "x".repeat(MAX_PATCHED + 1);
    assert!(patch(&long, &text(100)).is_none() && patch(&text(100), &long).is_none());
}

#[test]
fn everything_that_does_not_fit_is_refused_with_its_reason() {
    let base = text(300);
    let new = base.replace("parameter-7 ", "parameter-seven ");
    let good = patch(&base, &new).unwrap();
    let reason = |damage| good.damaged(damage, 3).apply(&base).unwrap_err();
    assert_eq!(reason(Damage::BaseDigest), PatchProblem::OtherBase);
    assert_eq!(reason(Damage::Length), PatchProblem::OtherLength);
    assert_eq!(reason(Damage::Digest), PatchProblem::OtherResult);
    assert_eq!(good.apply(&new), Err(PatchProblem::OtherBase));
    let mut longer = good.damaged(Damage::Length, 0);
    longer.length += 2;
    assert_eq!(longer.apply(&base), Err(PatchProblem::OtherLength));
    for at in 0..good.data.len() as u64 {
        match good.damaged(Damage::Data, at).apply(&base) {
            Ok(text) => assert_eq!(text, new, "byte {at}"),
            Err(reason) => assert_ne!(reason, PatchProblem::OtherBase, "byte {at}"),
        }
    }
}

#[test]
fn a_patch_expands_to_its_stated_length_and_no_further() {
    // Sixteen mebibytes from some hundred bytes.
    let bomb = "x".repeat(16 << 20);
    let mut patch = patch(&text(300), &(text(300) + "more\n")).unwrap();
    patch.data = compression::compress_against(text(300).as_bytes(), bomb.as_bytes()).unwrap().into();
    assert!(patch.data.len() < 4096);
    assert_eq!(patch.apply(&text(300)), Err(PatchProblem::OtherLength));
}

#[test]
fn versions_and_uids_of_any_form_survive() {
    let base = text(100);
    let new = base.clone() + "more\n";
    let forms = [("7", "8"), ("8", "7"), ("0", "18446744073709551616"), ("a", "b"), ("007", "8"), ("1", "x")];
    for (from, to) in forms {
        for uid in [UID, "uid-1", "2D6BA479-c3be-43e2-b370-ac3e270c6465", &"u".repeat(128)] {
            let (uid, from, to) = (uid.into(), ResourceVersion::from(from), ResourceVersion::from(to));
            let patch = Patch::make(
                &uid,
                Edition { version: &from, text: &base },
                Edition { version: &to, text: &new },
            );
            let back = read(&frame(vec![patch.unwrap()]));
            let back = &back.patches[0];
            assert_eq!((back.uid(), back.base(), back.version()), (&uid, &from, &to));
            assert_eq!(back.apply(&base).unwrap(), new);
        }
    }
}

#[test]
fn sessions_of_any_form_survive() {
    for session in ["20a116a6", "00000000", "", "a", "20A116A6", "+0a116a6", &"s".repeat(256)] {
        let frame = Patches { session: session.into(), receipt: u64::MAX, patches: Vec::new() };
        let back = read(&Down::Patches(frame).encode(0).unwrap());
        assert_eq!((back.session.as_str(), back.receipt), (session, u64::MAX));
    }
}

#[test]
fn the_text_for_parts_is_the_entry() {
    let base = text(300);
    let new = base.replace("parameter-7 ", "parameter-seven ");
    let body = patch(&base, &new).unwrap().to_text().unwrap();
    let text = body.as_str();
    let change =
        parts::assemble(text, crate::digest::Epoch(3).message_digest([text]), crate::digest::Epoch(3), LIMIT);
    let Some(Ok(crate::change::Change::Patch(back))) = change else { panic!("{change:?}") };
    assert_eq!(back.apply(&base).unwrap(), new);
    for damaged in ["\"", "\"\"", "\"AA==\"", "\"////\"", &text[..text.len() - 1], &format!("{text}\"")] {
        assert!(parts::parse(damaged, LIMIT).is_err(), "{damaged}");
    }
    assert!(parts::parse(text, 10).is_err_and(|it| it.reason == crate::change::RejectReason::TooLarge));
}

/// The text that both sides patch, its digest, and a frame: these must never change.
#[test]
fn canonical_text_digest_and_frame_equal_the_recorded_ones() {
    let path = |name: &str| fixtures().join(name);
    let text = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    let object: edgesync_object::Object = serde_json::from_str(&text("canonical-input.json")).unwrap();
    let next = |base: &str| base.replace(r#""speed":"40""#, r#""speed":"55""#);
    if std::env::var_os("EDGESYNC_TEST_RECORD_PATCHES").is_some() {
        let base = object.to_json();
        let frame = frame(vec![patch(&base, &next(&base)).unwrap()]);
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(path("canonical.json"), base.clone() + "\n").unwrap();
        std::fs::write(path("canonical.txt"), format!("digest {:032x}\nframe {hex}\n", digest(&base)))
            .unwrap();
    }
    let (canonical, recorded) = (text("canonical.json"), text("canonical.txt"));
    let canonical = canonical.trim_end();
    assert_eq!(object.to_json(), canonical);
    let (first, second) = recorded.trim_end().split_once('\n').unwrap();
    assert_eq!(first, format!("digest {:032x}", digest(canonical)));
    // Another version of zstd may compress it differently, but has to decode it.
    let hex = second.strip_prefix("frame ").unwrap();
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    let frame = read(&(0..hex.len() / 2).map(byte).collect::<Vec<_>>());
    assert_eq!((frame.session.as_str(), frame.receipt), ("20a116a6", 7));
    let patch = &frame.patches[0];
    let versions = (patch.base().as_str(), patch.version().as_str());
    assert_eq!((&**patch.uid(), versions), (UID, ("1795237935165062", "1795237935165070")));
    assert_eq!(patch.apply(canonical).unwrap(), next(canonical));
}

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/patches")
}

/// Returns the bytes that each change of an object needs: whole, compressed, and as sent.
fn sizes(row: &Row) -> Vec<[usize; 3]> {
    let pair = |pair: &[(u64, String)]| {
        let [(from, base), (to, new)] = pair else { panic!("must be a pair") };
        let (from, to) = ((*from).into(), (*to).into());
        let compressed = compression::compress(new.as_bytes()).unwrap().len();
        let base = Edition { version: &from, text: base };
        let patch = Patch::make(&row.uid.as_str().into(), base, Edition { version: &to, text: new });
        let sent = patch.map(|patch| {
            assert_eq!(patch.apply(base.text).as_deref(), Ok(&**new));
            frame(vec![patch]).len()
        });
        [new.len(), compressed, sent.unwrap_or(compressed)]
    };
    row.versions.windows(2).map(pair).collect()
}

/// The yardstick is zstd's own program, at its default level. `EDGESYNC_TEST_RECORD_PATCHES=1`
/// measures it again.
#[test]
fn changes_of_the_corpus_cost_what_zstd_needs_and_sixty_bytes() {
    let file = fixtures().join("patch-from.txt");
    if std::env::var_os("EDGESYNC_TEST_RECORD_PATCHES").is_some() {
        std::fs::write(&file, corpus::rows().iter().map(patch_from).collect::<String>()).unwrap();
    }
    let recorded = std::fs::read_to_string(&file).unwrap();
    let (mut sent, mut yardstick, mut pairs) = (0, 0, 0);
    for row in corpus::rows() {
        let line = recorded.lines().find_map(|line| line.strip_prefix(row.name)).unwrap();
        let needed: usize = line.split_whitespace().map(|size| size.parse::<usize>().unwrap()).sum();
        let sizes = sizes(&row);
        let sum = |column: usize| sizes.iter().map(|sizes| sizes[column]).sum::<usize>();
        println!(
            "{:10} whole {:9} compressed {:9} patched {:6} zstd {needed:6}",
            row.name,
            sum(0),
            sum(1),
            sum(2)
        );
        assert!(sum(2) * 10 <= needed * 11 + 10 * 60 * sizes.len() + needed, "{}", row.name);
        (sent, yardstick, pairs) = (sent + sum(2), yardstick + needed, pairs + sizes.len());
    }
    assert_eq!(pairs, 60);
    assert!(sent * 10 <= yardstick * 11 + 10 * 60 * pairs, "{sent} bytes, zstd needs {yardstick}");
}

/// Measures the changes of an object with zstd's program.
fn patch_from(row: &Row) -> String {
    let directory = std::env::temp_dir().join(format!("edgesync-patches-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = |name: &str| directory.join(name);
    let mut line = row.name.to_owned();
    for pair in row.versions.windows(2) {
        std::fs::write(path("base"), &pair[0].1).unwrap();
        std::fs::write(path("new"), &pair[1].1).unwrap();
        let mut zstd = std::process::Command::new("zstd");
        zstd.args(["-3", "-q", "-f", "--patch-from"])
            .arg(path("base"))
            .arg(path("new"))
            .arg("-o")
            .arg(path("patch"));
        assert!(zstd.status().unwrap().success());
        line.push_str(&format!(" {}", std::fs::metadata(path("patch")).unwrap().len()));
    }
    std::fs::remove_dir_all(directory).unwrap();
    line + "\n"
}

#[test]
fn fuzz_patches() {
    let base = text(300);
    let edits = ["= 1\n", "parameter-2", "7", "\n"].map(|from| base.replacen(from, "other", 20));
    let patches: Vec<Patch> = edits.iter().filter_map(|new| patch(&base, new)).collect();
    assert!(patches.len() >= 3);
    let mut samples: Vec<Vec<u8>> =
        patches.iter().map(|patch| frame(vec![patch.damaged(Damage::Data, 0)])).collect();
    samples.push(frame(patches));
    fuzz("patches", &samples, |bytes| {
        let Ok(Received::Patches(frame)) = Received::decode(bytes, &mut Budget::of(LIMIT), LIMIT) else {
            return;
        };
        for patch in &frame.patches {
            if let Ok(text) = patch.apply(&base) {
                assert_eq!(text.len(), patch.length());
            }
            // Whatever the base digest, the data is decoded within the stated length.
            let decoded =
                compression::decompress_against(base.as_bytes(), &patch.data, patch.length.min(LIMIT));
            assert!(decoded.map_or(0, |bytes| bytes.capacity()) <= LIMIT);
        }
    });
}

proptest! {
    #[test]
    fn edits_of_a_text_survive(
        base in "[a-d \n]{400,900}", at in 0usize..400, insert in ".{0,60}", cut in 0usize..200,
    ) {
        let new = format!("{}{insert}{}", &base[..at], &base[(at + cut).min(base.len())..]);
        if let Some(patch) = patch(&base, &new) {
            let back = read(&frame(vec![patch]));
            prop_assert_eq!(back.patches[0].apply(&base), Ok(new));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(mut bytes in prop::collection::vec(any::<u8>(), 1..300)) {
        bytes[0] = 1;
        let _ = Received::decode(&bytes, &mut Budget::of(LIMIT), LIMIT);
    }
}
