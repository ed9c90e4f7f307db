//! `kill -9` of a process that writes: whatever it has reported is in the database.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod store_support;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use edgesync::store::StoreError;
use edgesync::store::edge::EdgeStore;
use store_support::vfs::Random;
use store_support::*;

const DATABASE: &str = "EDGESYNC_TEST_DATABASE";
const ROUNDS: u64 = 30;

/// Run by the other test, as a process of its own: writes for ever and says after each commit what it holds.
#[tokio::test]
#[ignore = "a part of the other test"]
async fn writer_that_is_killed() {
    let Some(path) = std::env::var_os(DATABASE) else { return };
    let mut options = quiet();
    options.engine.wal_bytes = 64 << 10;
    let store = EdgeStore::open(Path::new(&path), options).unwrap();
    let mut random = Random(store.facts().totals.revision);
    loop {
        let version = store.facts().totals.revision + 1;
        let number = random.below(60);
        let changes = match random.below(5) {
            0 => vec![delete(number)],
            1 => batch(number..number + 20, version),
            _ => vec![put(number, version)],
        };
        let commit = store.apply(changes).await.unwrap();
        store.confirm(commit.before);
        let mut line = String::from("holds");
        for seen in &commit.applied.observed {
            let version = seen.version.as_ref().map_or("-".to_owned(), ToString::to_string);
            line.push_str(&format!(" {}={version}", seen.uid));
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line} at {}", commit.totals.revision).unwrap();
        out.flush().unwrap();
    }
}

/// Runs the writer until it has said so many lines, kills it, and returns all it has said.
fn run_and_kill(path: &Path, lines: u64) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "writer_that_is_killed", "--nocapture"])
        .env(DATABASE, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let is_report = |line: &String| line.starts_with("holds ");
    let mut said: Vec<String> = output.by_ref().filter(is_report).take(lines as usize).collect();
    // SIGKILL. What is still in the pipe was said before it.
    child.kill().unwrap();
    said.extend(output.filter(is_report));
    child.wait().unwrap();
    said
}

#[tokio::test]
async fn what_a_killed_process_has_reported_is_in_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let mut random = Random(42);
    let mut epoch = None;
    let mut reports = 0;
    for round in 0..ROUNDS {
        let said = run_and_kill(&path, 1 + random.below(40));
        assert!(!said.is_empty(), "round {round}: the writer has said nothing");
        reports += said.len();
        let mut last: BTreeMap<&str, &str> = BTreeMap::new();
        let mut revision = 0u64;
        for line in &said {
            let Some((holds, at)) = line.rsplit_once(" at ") else { continue }; // cut off by the kill
            let Ok(at) = at.parse() else { continue };
            revision = at;
            last.extend(holds.split(' ').skip(1).filter_map(|pair| pair.split_once('=')));
        }
        let store = match EdgeStore::open(&path, quiet()) {
            Err(StoreError::InUse { .. }) => panic!("round {round}: the lock outlives its process"),
            other => other.unwrap(),
        };
        let facts = store.facts();
        assert_eq!(*epoch.get_or_insert(facts.totals.epoch), facts.totals.epoch, "round {round}");
        assert!(facts.totals.revision >= revision, "round {round}: {} < {revision}", facts.totals.revision);
        let held = assert_consistent(&store).await;
        // One change may have been committed and not reported; it is in the journal.
        let unreported = store.changes(revision.max(facts.confirmed), 100).await.unwrap();
        for (uid, version) in last {
            if unreported.entries.iter().any(|entry| *entry.uid == *uid) {
                continue;
            }
            assert_eq!(held.get(uid).map_or("-", String::as_str), version, "round {round}: {uid}");
        }
        assert!(!store.check().await.unwrap().renewed, "round {round}");
        store.close().await;
    }
    println!("{reports} reports in {ROUNDS} rounds");
}
