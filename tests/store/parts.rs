//! The message in parts: power cuts, a lost database, and the cost in bytes written.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::sync::Arc;

use edgesync::store::{EdgeOptions, EdgeStore};
use edgesync_protocol::body::Body;
use edgesync_protocol::change::{Change, Put};
use edgesync_protocol::frame::PartialMessage;
use edgesync_protocol::message::Outgoing;
use support::vfs::{Disk, Op, Random, after_power_cut, register, write_image};
use support::*;

const PIECE: usize = 128 << 10;
const MAX_OBJECT: usize = 8 << 20;

/// Returns a ConfigMap with a text that hardly compresses, as an author encodes a file.
fn large(bytes: usize) -> Put {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut random = Random(7);
    let text: String =
        (0..bytes).map(|_| char::from(letters[usize::try_from(random.below(64)).unwrap()])).collect();
    let plain = put_sized(1, 7, 300);
    let body = plain.body.get().replacen("abcdefghij", &text, 1);
    Put { body: serde_json::value::RawValue::from_string(body).unwrap(), ..plain }
}

/// Returns the text of the message that carries an object.
fn text(put: &Put) -> String {
    let outgoing = Outgoing {
        uid: put.uid.clone(),
        version: put.version.clone(),
        supersedes: None,
        resource: Arc::clone(&put.resource),
        namespace: put.namespace.clone(),
        name: put.name.clone(),
        body: Some(Body::new(put.body.get().to_owned()).unwrap()),
    };
    let mut text = String::new();
    outgoing.to_text().unwrap().write_to(&mut text);
    text
}

fn message(store: &EdgeStore, put: &Put, text: &str, received: usize) -> PartialMessage {
    PartialMessage {
        uid: put.uid.clone(),
        resource_version: put.version.clone(),
        total: text.len() as u64,
        digest: store.facts().totals.epoch.message_digest([text]),
        received: received as u64,
    }
}

/// Keeps the message but for its last piece. Returns the number of kept bytes, and the rest.
async fn keep<'a>(store: &EdgeStore, put: &Put, text: &'a str) -> (usize, &'a str) {
    let mut start = 0;
    while text.len() - start > PIECE {
        let piece = text[start..start + PIECE].to_owned();
        assert!(store.keep_part(message(store, put, text, start), piece).await.unwrap());
        start += PIECE;
    }
    (start, &text[start..])
}

fn with_vfs(vfs: &str) -> EdgeOptions {
    let mut options = quiet();
    options.engine.vfs = Some(vfs.to_owned());
    options
}

fn written(disk: &Disk) -> usize {
    let bytes = |op| if let Op::Write { data, .. } = op { data.len() } else { 0 };
    disk.ops().into_iter().map(bytes).sum()
}

#[tokio::test]
async fn message_in_parts_is_applied_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let put = large(600 << 10);
    let text = text(&put);
    let store = open(&path);
    let (kept, rest) = keep(&store, &put, &text).await;
    store.close().await;
    let store = open(&path);
    let expected = message(&store, &put, &text, kept);
    assert_eq!(store.kept_parts().await.unwrap(), Some(expected.clone()));
    let applied = store.apply_parts(expected.clone(), rest.to_owned(), MAX_OBJECT).await.unwrap().unwrap();
    assert_eq!((applied.commit.totals.count, applied.commit.applied.rejected.len()), (1, 0));
    assert!(matches!(applied.change, Some(Change::Put(_))));
    assert_eq!(store.by_uid(put.uid.clone()).await.unwrap().unwrap().body, put.body.get());
    assert_eq!(store.kept_parts().await.unwrap(), None);
    assert!(store.apply_parts(expected, rest.to_owned(), MAX_OBJECT).await.unwrap().is_none());
    assert_consistent(&store).await;
    store.close().await;
}

#[tokio::test]
async fn message_of_another_epoch_is_not_applied() {
    let dir = tempfile::tempdir().unwrap();
    let put = large(300 << 10);
    let text = text(&put);
    let other = open(&dir.path().join("other.db"));
    let store = open(&dir.path().join("edge.db"));
    let foreign = message(&other, &put, &text, 0);
    let (first, rest) = text.split_at(PIECE);
    assert!(store.keep_part(foreign.clone(), first.to_owned()).await.unwrap());
    let kept = PartialMessage { received: PIECE as u64, ..foreign };
    assert!(store.apply_parts(kept, rest.to_owned(), MAX_OBJECT).await.unwrap().is_none());
    assert_eq!((store.facts().totals.count, store.kept_parts().await.unwrap()), (0, None));
    other.close().await;
    store.close().await;
}

#[tokio::test]
async fn oversized_message_in_parts_is_rejected_and_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let put = large(300 << 10);
    let text = text(&put);
    let store = open(&dir.path().join("edge.db"));
    let (kept, rest) = keep(&store, &put, &text).await;
    let applied = store.apply_parts(message(&store, &put, &text, kept), rest.to_owned(), 200_000);
    let applied = applied.await.unwrap().unwrap();
    assert_eq!((applied.commit.applied.rejected.len(), applied.change.is_none()), (1, true));
    assert_eq!((store.facts().totals.count, store.kept_parts().await.unwrap()), (0, None));
    store.close().await;
}

/// At each moment of a power cut, what was reported as kept is there, or the object is.
#[tokio::test]
async fn kept_parts_survive_a_power_cut_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let disk = register("parts-power-cut");
    let mut options = with_vfs("parts-power-cut");
    options.engine.wal_bytes = 96 << 10;
    let store = EdgeStore::open(&dir.path().join("edge.db"), options).unwrap();
    let put = large(500 << 10);
    let text = text(&put);
    let mut acknowledged = vec![(disk.position(), 0)];
    let mut start = 0;
    while text.len() - start > PIECE {
        let piece = text[start..start + PIECE].to_owned();
        assert!(store.keep_part(message(&store, &put, &text, start), piece).await.unwrap());
        start += PIECE;
        acknowledged.push((disk.position(), start));
    }
    let whole = message(&store, &put, &text, start);
    store.apply_parts(whole.clone(), text[start..].to_owned(), MAX_OBJECT).await.unwrap().unwrap();
    acknowledged.push((disk.position(), text.len()));
    // The store's threads go on writing, so the recorded operations give the end.
    let ops = disk.ops();
    let positions: Vec<usize> = (acknowledged[0].0..=ops.len()).collect();
    let step = (positions.len() / 150).max(1);
    for (seed, position) in (0..).zip(positions.into_iter().step_by(step)) {
        let known = acknowledged.iter().filter(|(at, _)| *at <= position).map(|(_, bytes)| *bytes).max();
        let known = known.unwrap();
        let image = after_power_cut(&ops, position, true, &mut Random(seed));
        let dir = tempfile::tempdir().unwrap();
        write_image(dir.path(), &image);
        let store = open(&dir.path().join("edge.db"));
        assert_eq!(store.health().borrow().reset, None, "cut at {position}");
        let found = store.by_uid(put.uid.clone()).await.unwrap();
        match store.kept_parts().await.unwrap() {
            Some(kept) => {
                assert!(kept.received as usize >= known && found.is_none(), "cut at {position}");
                let rest = text[kept.received as usize..].to_owned();
                assert!(store.apply_parts(kept, rest, MAX_OBJECT).await.unwrap().is_some());
            }
            None => assert!(found.is_some() || known == 0, "cut at {position}: {known} bytes are gone"),
        }
        store.close().await;
    }
    store.close().await;
}

/// The pieces are compressed: together with the object they are at most twice its bytes, counted as
/// SQLite writes them, once to its log and once to the file.
#[tokio::test]
async fn message_in_parts_costs_at_most_twice_its_object() {
    let put = large(4 << 20);
    let text = text(&put);
    let mut costs = Vec::new();
    for in_parts in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let vfs = format!("parts-cost-{in_parts}");
        let disk = register(&vfs);
        let store = EdgeStore::open(&dir.path().join("edge.db"), with_vfs(&vfs)).unwrap();
        let before = written(disk);
        if in_parts {
            let (kept, rest) = keep(&store, &put, &text).await;
            let message = message(&store, &put, &text, kept);
            store.apply_parts(message, rest.to_owned(), MAX_OBJECT).await.unwrap().unwrap();
        } else {
            let put = large(4 << 20);
            store.apply(vec![Change::Put(put)]).await.unwrap();
        }
        store.close().await;
        costs.push(written(disk) - before);
    }
    println!("{costs:?} bytes for an object of {}", text.len());
    assert!(costs[1] <= 2 * costs[0], "{costs:?}");
}
