//! Bounded memory of concurrent requests to the cloud's API for large objects.
#![allow(
    clippy::unwrap_used,
    clippy::await_holding_lock,
    reason = "a test fails by panicking, and runs alone"
)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use edgesync_api::{Address, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::{ALLOCATED, PEAK, TURN};
use edgesync_testkit::serving::{Running, connect};

/// The size of each object's text in bytes.
const SIZE: usize = 20 << 20;
/// Number of objects, and of concurrent requests.
const OBJECTS: usize = 8;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Returns the peak of allocated bytes during a future, beyond those before it.
async fn peak(done: impl Future<Output = ()>) -> usize {
    let before = ALLOCATED.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    done.await;
    PEAK.load(Ordering::Relaxed) - before
}

/// Sends a request, discards the response, and returns its first line.
async fn ask(address: &Address, head: &str, body: &str) -> String {
    let mut stream = connect(address).await;
    let head = format!("{head}Host: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let (mut buffer, mut first) = (vec![0; 64 << 10], String::new());
    loop {
        let read = stream.read(&mut buffer).await.unwrap();
        if first.is_empty() {
            first = String::from_utf8_lossy(&buffer[..read]).lines().next().unwrap_or_default().to_owned();
        }
        if read == 0 {
            return first;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_patches_of_large_objects_take_bounded_memory() {
    let _turn = TURN.lock();
    // With this timeout every request gets its memory, even on a slow machine.
    let limits = Limits { body_timeout: Duration::from_secs(280), ..Limits::cloud() };
    let running = Running::cloud(limits).await;
    let text = "x".repeat(SIZE);
    for n in 0..OBJECTS {
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"large-{n}"}},"data":{{"text":"{text}"}}}}"#
        );
        let made = peak(async {
            let head = format!("POST {MAPS} HTTP/1.1\r\nContent-Type: application/json\r\n");
            assert!(ask(&running.unix, &head, &object).await.contains("201"));
        })
        .await;
        println!("a create of {} MiB takes {} MiB", SIZE >> 20, made >> 20);
        assert!(made < 9 * SIZE, "{} MiB", made >> 20);
    }
    for (verb, expected) in [("PATCH", 440), ("GET", 360)] {
        let most = peak(async {
            let mut asked = JoinSet::new();
            for n in 0..OBJECTS {
                let head = format!(
                    "{verb} {MAPS}/large-{n} HTTP/1.1\r\nContent-Type: application/merge-patch+json\r\n"
                );
                let address = running.unix.clone();
                asked
                    .spawn(async move { ask(&address, &head, r#"{"metadata":{"labels":{"a":"b"}}}"#).await });
            }
            for answer in asked.join_all().await {
                assert!(answer.contains("200"), "{answer}");
            }
        })
        .await;
        println!("{OBJECTS} times {verb} of {} MiB take {} MiB", SIZE >> 20, most >> 20);
        assert!(most < expected << 20, "{} MiB", most >> 20);
    }
}
