//! Tests of the overview for pages: rows, deltas and the last hour.

use serde_json::{Value, json};

use super::*;
use crate::node_name;

fn row(state: SummaryState, held: u64) -> Row {
    Row { state, held, desired: 10, ..Row::default() }
}

fn found(rows: &[(&str, Row)], gone: &[&str]) -> Found {
    Found {
        rows: rows.iter().map(|(name, row)| (node_name(name), *row)).collect(),
        gone: gone.iter().map(|name| node_name(name)).collect(),
    }
}

fn read(line: &Bytes) -> Value {
    assert!(line.ends_with(b"\n"));
    let value: Value = serde_json::from_slice(line).unwrap();
    assert_eq!(json!(edgesync_admin::read::<SummaryLine>(&value).unwrap()), value);
    value
}

async fn next(lines: &mut mpsc::Receiver<Result<Bytes>>) -> Value {
    let line = tokio::time::timeout(Duration::from_secs(60), lines.recv()).await.unwrap();
    read(&line.unwrap().unwrap())
}

fn forever() -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    std::mem::forget(sender);
    receiver
}

#[test]
fn tally_follows_the_rows() {
    let board = Board::new("s".into());
    board.publish(
        1,
        found(&[("a", row(SummaryState::InSync, 10)), ("b", row(SummaryState::Offline, 4))], &[]),
    );
    board.publish(2, found(&[("b", row(SummaryState::Syncing, 6))], &[]));
    let shown = read(&board.snapshot());
    assert_eq!((&shown["held"], &shown["desired"]), (&json!(16), &json!(20)));
    assert_eq!(shown["counts"], json!([1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(shown["states"][1], "syncing");
    assert_eq!(shown["nodes"], json!([["a", 0, 0, 10, 10, 0, 0], ["b", 1, 0, 6, 10, 0, 0]]));
    board.publish(3, found(&[], &["a"]));
    let shown = read(&board.snapshot());
    assert_eq!(shown["counts"], json!([0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!((&shown["held"], &shown["nodes"].as_array().unwrap().len()), (&json!(6), &1));
}

#[tokio::test]
async fn streams_share_the_same_bytes() {
    let board = Board::new("s".into());
    board.publish(1, found(&[("a", row(SummaryState::InSync, 1))], &[]));
    let mut streams: Vec<_> = (0..3).map(|_| board.watch(None, forever())).collect();
    for stream in &mut streams {
        assert_eq!(next(stream).await["type"], "SNAPSHOT");
    }
    board.publish(2, found(&[("a", row(SummaryState::Offline, 1))], &[]));
    let mut first = None;
    for stream in &mut streams {
        let line = stream.recv().await.unwrap().unwrap();
        assert_eq!(read(&line)["nodes"], json!([["a", 6, 0, 1, 10, 0, 0]]));
        assert_eq!(*first.get_or_insert(line.as_ptr()), line.as_ptr(), "the line was copied");
    }
    assert_eq!(board.interest().0, 3);
}

#[tokio::test]
async fn reconnecting_stream_gets_deltas_or_a_snapshot() {
    let board = Board::new("s".into());
    for number in 0..5 {
        board.publish(number, found(&[("a", row(SummaryState::InSync, number.unsigned_abs()))], &[]));
    }
    let mut known = board.watch(Some(("s", 3)), forever());
    assert_eq!(
        (next(&mut known).await["revision"].clone(), next(&mut known).await["revision"].clone()),
        (json!(4), json!(5))
    );
    for from in [Some(("another", 3)), Some(("s", 6)), None] {
        assert_eq!(next(&mut board.watch(from, forever())).await["type"], "SNAPSHOT", "{from:?}");
    }
    for number in 0..i64::try_from(DELTAS).unwrap() {
        board.publish(number, found(&[("a", row(SummaryState::InSync, number.unsigned_abs()))], &[]));
    }
    assert_eq!(next(&mut board.watch(Some(("s", 3)), forever())).await["type"], "SNAPSHOT", "too long ago");
    let published = board.published();
    assert!(published.deltas.len() <= DELTAS && published.delta_bytes <= DELTA_BYTES);
}

#[tokio::test(start_paused = true)]
async fn stream_sends_keepalives_until_the_server_stops() {
    let board = Board::new("s".into());
    let (stop, stopping) = watch::channel(false);
    let mut lines = board.watch(None, stopping);
    assert_eq!(next(&mut lines).await["type"], "SNAPSHOT");
    assert_eq!(next(&mut lines).await["type"], "ALIVE");
    stop.send_replace(true);
    assert!(lines.recv().await.is_none());
    assert_eq!(board.interest().0, 0);
}

#[test]
fn pass_without_changes_creates_no_revision() {
    let board = Board::new("s".into());
    board.publish(1, found(&[("a", row(SummaryState::InSync, 1))], &[]));
    let before = board.snapshot();
    board.publish(2, Found::default());
    assert_eq!(board.snapshot().as_ptr(), before.as_ptr());
}

#[test]
fn history_is_serialized_once_for_all_requests() {
    let board = Board::new("s".into());
    board.publish(1, found(&[("a", row(SummaryState::InSync, 3))], &[]));
    board.sample(|tally| Sample { at: 7, tally: *tally, sent: 1, received: 2 });
    let (one, other) = (board.history(), board.history());
    assert_eq!(one.as_ptr(), other.as_ptr());
    let shown: Value = serde_json::from_slice(&one).unwrap();
    assert_eq!((&shown["at"], &shown["held"]), (&json!([7]), &json!([3])));
}
