//! `kill -9` of a writing process: every reported commit is in the database.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use edgesync::store::EdgeStore;
use edgesync_protocol::upload::Lane;
use edgesync_store::StoreError;
use support::vfs::Random;
use support::*;

const DATABASE: &str = "EDGESYNC_TEST_DATABASE";
const ROUNDS: u64 = 30;

/// Runs as a child process of the other test: writes until killed and reports each commit.
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

/// Runs the writer until it has reported this many lines, kills it, and returns all its lines.
fn run_and_kill(path: &Path, lines: u64) -> Vec<String> {
    run_and_kill_test("writer_that_is_killed", path, lines)
}

fn run_and_kill_test(test: &str, path: &Path, lines: u64) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", &format!("store::kill::{test}"), "--nocapture"])
        .env(DATABASE, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let is_report = |line: &String| line.starts_with("holds ");
    let mut said: Vec<String> = output.by_ref().filter(is_report).take(lines as usize).collect();
    // SIGKILL. Lines in the pipe were written before it.
    child.kill().unwrap();
    said.extend(output.filter(is_report));
    child.wait().unwrap();
    said
}

#[tokio::test]
async fn reported_commits_survive_kill_9_of_the_writer() {
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
        // One change may be committed but not reported; it is in the journal.
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

/// Runs as a child process of the next test: posts items until killed, confirms some, and reports
/// both.
#[tokio::test]
#[ignore = "a part of the other test"]
async fn outbox_that_is_killed() {
    let Some(path) = std::env::var_os(DATABASE) else { return };
    let mut options = quiet();
    options.engine.wal_bytes = 64 << 10;
    let store = EdgeStore::open(Path::new(&path), options).unwrap();
    let outbox = store.outbox();
    let last = |lane| outbox.borrow().marks.last.get(lane);
    let mut random = Random(last(Lane::Status) + last(Lane::Events) + last(Lane::Bulk));
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line} .").unwrap();
        out.flush().unwrap();
    };
    loop {
        let lane = Lane::ALL[random.below(3) as usize];
        if random.below(6) == 0 {
            let upto = last(lane) - random.below(4).min(last(lane));
            say(format!("holds settled {} {upto}", lane.name()));
            store.settle_outbox(lane, upto);
            continue;
        }
        let key = format!("key-{}", random.below(20));
        let text = format!("{}-{}", std::process::id(), random.next());
        store.post(vec![upload(lane, &key, &text)]).await.unwrap();
        say(format!("holds put {} {key} {} {text}", lane.name(), last(lane)));
    }
}

#[tokio::test]
async fn outbox_numbers_are_unique_across_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let mut random = Random(43);
    let mut id = None;
    // Texts by lane and number, and last reported numbers by lane and key.
    let mut texts: BTreeMap<(String, u64), String> = BTreeMap::new();
    let mut puts: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut settled: BTreeMap<String, u64> = BTreeMap::new();
    for round in 0..ROUNDS {
        let said = run_and_kill_test("outbox_that_is_killed", &path, 1 + random.below(40));
        for line in said.iter().filter_map(|line| line.strip_suffix(" .")) {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["holds", "put", lane, key, number, text] => {
                    let number = number.parse().unwrap();
                    let old = texts.insert((lane.to_owned(), number), text.to_owned());
                    assert_eq!(old, None, "round {round}: number {number} of {lane} is given twice");
                    puts.insert((lane.to_owned(), key.to_owned()), number);
                }
                ["holds", "settled", lane, upto] => {
                    let held = settled.entry(lane.to_owned()).or_default();
                    *held = (*held).max(upto.parse().unwrap());
                }
                _ => panic!("round {round}: {line}"),
            }
        }
        let store = EdgeStore::open(&path, quiet()).unwrap();
        let marks = store.outbox().borrow().marks.clone();
        assert_eq!(*id.get_or_insert(marks.id.clone()), marks.id, "round {round}");
        for lane in Lane::ALL {
            let waiting = waiting(&store, lane).await;
            for (number, content) in &waiting {
                // The last item may be posted but not reported.
                let text = texts.get(&(lane.name().to_owned(), *number));
                let said = text.is_none_or(|text| content.contains(&format!(r#""text":"{text}""#)));
                assert!(said, "round {round}: number {number} of {lane:?} is {content}");
                let of_this = content.split('"').nth(9).unwrap_or_default().to_owned();
                texts.entry((lane.name().to_owned(), *number)).or_insert(of_this);
            }
            for ((of, key), number) in puts.iter().filter(|((of, _), _)| of == lane.name()) {
                let here = |(seq, content): &(u64, String)| {
                    seq >= number && content.contains(&format!(r#""key":"{key}""#))
                };
                let confirmed = settled.get(of).is_some_and(|upto| number <= upto);
                assert!(confirmed || waiting.iter().any(here), "round {round}: {of} {key} {number} is lost");
            }
            let most = puts.iter().filter(|((of, _), _)| of == lane.name()).map(|(_, number)| *number).max();
            assert!(marks.last.get(lane) >= most.unwrap_or(0), "round {round}: {marks:?}");
        }
        assert_eq!(store.check().await.unwrap().outbox_removed, 0, "round {round}");
        // Sometimes the store closes normally, with everything confirmed.
        if round % 4 == 0 {
            for lane in Lane::ALL {
                let last = marks.last.get(lane);
                store.settle_outbox(lane, last);
                settled.insert(lane.name().to_owned(), last);
            }
        }
        store.close().await;
    }
    println!("{} puts in {ROUNDS} rounds", texts.len());
}
