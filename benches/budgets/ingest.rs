//! Durable ingest inside the agent, frames from memory, beside a bare SQLite loop with the same
//! rows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgesync::store::{EdgeOptions, EdgeStore};
use edgesync_object::{Budget, Resource, Scope, pluralize};
use edgesync_protocol::body::Body;
use edgesync_protocol::frame::{Down, ObjectsText, Received};
use edgesync_protocol::message::Outgoing;
use serde_json::Value;

use crate::objects::object;
use crate::table::Table;

const OBJECTS: usize = 20_000;
const BATCH: usize = 256;
const LIMIT: usize = 1 << 20;
const SINGLES: usize = 2_000;

struct Row {
    uid: String,
    version: u64,
    body: String,
    value: Value,
}

fn rows(round: u64) -> Vec<Row> {
    (0..OBJECTS).map(|n| row(n, round)).collect()
}

fn row(n: usize, round: u64) -> Row {
    let mut value = object(n, round);
    let uid = format!("{:08x}-5c1e-4f6a-9d2b-{:012x}", (n as u32).wrapping_mul(2_654_435_761), n);
    let version = 1_795_000_000_000_000 + round * 1_000_000 + n as u64;
    value["metadata"]["uid"] = uid.clone().into();
    value["metadata"]["resourceVersion"] = version.to_string().into();
    Row { uid, version, body: value.to_string(), value }
}

/// Yields frames with so many objects, built one at a time.
pub(crate) fn frames_of(objects: usize, batch: usize) -> impl Iterator<Item = anyhow::Result<Vec<u8>>> {
    (0..objects.div_ceil(batch)).map(move |chunk| {
        let numbers = chunk * batch..objects.min((chunk + 1) * batch);
        let rows: Vec<Row> = numbers.map(|n| row(n, 0)).collect();
        let mut frames = frames(&rows, batch)?;
        frames.pop().ok_or_else(|| anyhow::anyhow!("an empty frame"))
    })
}

fn frames(rows: &[Row], batch: usize) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    for chunk in rows.chunks(batch) {
        let messages =
            chunk.iter().map(|row| anyhow::Ok(outgoing(row)?.to_text()?)).collect::<Result<_, _>>()?;
        frames
            .push(Down::Objects(ObjectsText { session: "bench".into(), receipt: 0, messages }).encode(1024)?);
    }
    Ok(frames)
}

fn outgoing(row: &Row) -> anyhow::Result<Outgoing> {
    let text = |pointer: &str| row.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let kind = text("/kind");
    Ok(Outgoing {
        uid: row.uid.as_str().into(),
        version: row.version.into(),
        supersedes: None,
        resource: Arc::new(Resource {
            group: String::new(),
            version: "v1".into(),
            kind: kind.into(),
            plural: pluralize(kind),
            scope: Scope::Namespaced,
        }),
        namespace: text("/metadata/namespace").into(),
        name: text("/metadata/name").into(),
        body: Some(Body::new(row.body.clone())?),
    })
}

/// Returns the time in which the agent decodes the frames and commits every object. Up to `ahead`
/// frames are in flight at the store, as in the agent.
fn ours(store: &EdgeStore, frames: &[Vec<u8>], ahead: usize) -> anyhow::Result<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let start = Instant::now();
    runtime.block_on(async {
        let mut waiting = std::collections::VecDeque::new();
        for frame in frames {
            let Received::Objects(objects) = Received::decode(frame, &mut Budget::of(LIMIT), LIMIT)? else {
                anyhow::bail!("not objects")
            };
            let store = store.clone();
            waiting.push_back(tokio::spawn(async move { store.apply(objects.changes).await }));
            tokio::task::yield_now().await;
            while waiting.len() >= ahead {
                if let Some(oldest) = waiting.pop_front() {
                    oldest.await??;
                }
            }
        }
        for rest in waiting {
            rest.await??;
        }
        Ok(start.elapsed())
    })
}

/// Writes the same rows in the same batches to a plain table with the UID as its key.
fn bare(path: &std::path::Path, rows: &[Row], batch: usize) -> anyhow::Result<Duration> {
    let mut conn = rusqlite::Connection::open(path)?;
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE IF NOT EXISTS objects (uid TEXT NOT NULL UNIQUE, version TEXT NOT NULL, namespace TEXT NOT NULL,
             name TEXT NOT NULL, body TEXT NOT NULL) STRICT;",
    )?;
    let start = Instant::now();
    for chunk in rows.chunks(batch) {
        let tx = conn.transaction()?;
        {
            let mut insert = tx.prepare_cached(
                "INSERT INTO objects VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (uid) DO UPDATE SET
                 version = excluded.version, body = excluded.body",
            )?;
            for row in chunk {
                let meta = &row.value["metadata"];
                let text = |key: &str| meta[key].as_str().unwrap_or_default();
                insert.execute((
                    &row.uid,
                    row.version.to_string(),
                    text("namespace"),
                    text("name"),
                    &row.body,
                ))?;
            }
        }
        tx.commit()?;
    }
    Ok(start.elapsed())
}

/// Returns the rows per second of the bare loop: in batches, and one at a time.
pub(crate) fn bare_rates() -> anyhow::Result<(f64, f64)> {
    let (first, second) = (rows(0), rows(1));
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("bare.db");
    let bulk = OBJECTS as f64 / bare(&path, &first, BATCH)?.as_secs_f64();
    let single = SINGLES as f64 / bare(&path, &second[..SINGLES], 1)?.as_secs_f64();
    Ok((bulk, single))
}

pub(crate) fn durable(table: &mut Table) -> anyhow::Result<()> {
    let (first, second) = (rows(0), rows(1));
    let (bulk, singles) = (frames(&first, BATCH)?, frames(&second[..SINGLES], 1)?);
    let mut runs = Vec::new();
    for _ in 0..5 {
        let directory = tempfile::tempdir()?;
        let store = EdgeStore::open(&directory.path().join("edge.db"), EdgeOptions::default())?;
        let ours_bulk = ours(&store, &bulk, 8)?;
        let ours_single = ours(&store, &singles, 1)?;
        let path = directory.path().join("bare.db");
        let bare_bulk = bare(&path, &first, BATCH)?;
        let bare_single = bare(&path, &second[..SINGLES], 1)?;
        let rate = |count: usize, time: Duration| count as f64 / time.as_secs_f64();
        runs.push([
            rate(OBJECTS, ours_bulk),
            rate(OBJECTS, bare_bulk),
            rate(SINGLES, ours_single),
            rate(SINGLES, bare_single),
        ]);
    }
    // The run with the median share.
    runs.sort_by(|a, b| (a[0] / a[1]).total_cmp(&(b[0] / b[1])));
    let [ours_bulk, bare_bulk, ours_single, bare_single] = runs[runs.len() / 2];
    let share = ours_bulk / bare_bulk * 100.0;
    table.budget(
        "durable ingest in batches of 256, share of a bare SQLite loop",
        format!("{share:.0} %"),
        "≥ 92 %",
        share >= 92.0,
    );
    table.figure("  frames decoded, checked, committed", format!("{ours_bulk:.0}/s"));
    table.figure("  bare loop", format!("{bare_bulk:.0}/s"));
    table.figure(
        "single updates, share of a bare loop",
        format!("{:.0} %", ours_single / bare_single * 100.0),
    );
    table.figure("  one frame, one commit each", format!("{ours_single:.0}/s"));
    Ok(())
}
