//! Unfinished lists, and their cost on disk.

use super::status::Node;
use super::*;
use edgesync_store::engine::{LOG_FACTOR, wal_path};

const MIB: u64 = 1 << 20;
const MAPS: &str = "/api/v1/configmaps?limit=1";

/// Returns an object of about 20 KB.
fn large(number: u64, version: u64) -> Change {
    let Change::Put(put) = put(resource("cm"), number, number, version) else { unreachable!() };
    let mut body: Value = serde_json::from_str(put.body.get()).unwrap();
    body["data"]["text"] = json!("x".repeat(20_000));
    Change::Put(Put { body: RawValue::from_string(body.to_string()).unwrap(), ..put })
}

#[tokio::test(start_paused = true)]
async fn unfinished_lists_keep_database_and_log_within_the_limit() {
    // Virtual time advances only here: it does not advance while a thread is busy.
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let holding = tokio::task::spawn_blocking(move || held.recv());
    let mut options = EdgeOptions::default();
    options.engine.max_bytes = Some(32 * MIB);
    let node = Node::with(options, (0..100).map(|number| large(number, 1)).collect()).await;
    let database = node.dir.path().join("edge.db");
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    // Six lists, each continued every 50 s and restarted before it has waited for 5 min.
    let mut lists: Vec<(u64, String)> = vec![Default::default(); 6];
    let (mut number, mut full, mut given_up) = (100, false, 0);
    for step in 0..216_u64 {
        for (begun, token) in &mut lists {
            let mut path = format!("{MAPS}&continue={token}");
            if token.is_empty() || step - *begun >= 5 {
                (path, *begun) = (MAPS.to_owned(), step);
            }
            let (code, answer) = node.send("GET", &path, "", &Value::Null).await;
            given_up += u32::from(code == 410);
            assert!(matches!(code, 200 | 410), "{answer}");
            *token = answer["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        }
        for _ in 0..4 {
            let new: Vec<_> = (number..number + 5).map(|number| large(number, 1)).collect();
            full |= node.storage.store.apply(new).await.map(|_| number += 5).is_err();
            let old = (0..5).map(|number| large(number, step + 2));
            node.storage.store.apply(old.collect()).await.unwrap();
        }
        let (file, log) = (size(&database), size(&wal_path(&database)));
        assert!(file + log <= 32 * MIB, "step {step}: {file} and a log of {log} bytes");
        tokio::time::advance(Duration::from_secs(50)).await;
    }
    assert!(full && number > 800, "{number} objects of 20 KB fit");
    assert!(given_up > 0, "the log has grown to {LOG_FACTOR} times its size, and lists were given up");
    drop(hold);
    holding.await.unwrap().unwrap_err();
}
