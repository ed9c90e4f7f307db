//! The machine's own performance in the same run: a bare SQLite loop, syncs of a small file,
//! mosquitto between two bare clients. The other figures are meaningful only beside these.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use edgesync_testkit::mosquitto::Mosquitto;
use edgesync_transport::link::{Link, LinkEvent, LinkOptions, PublishError};
use tokio::sync::mpsc::Receiver;

use crate::ingest;
use crate::processes::median;
use crate::table::Table;

/// Messages sent through the broker.
const MESSAGES: usize = 50_000;
/// Their size in bytes, as in the other sections.
const PAYLOAD: usize = 1024;
/// Syncs that are timed.
const SYNCS: usize = 400;
const TIMEOUT: Duration = Duration::from_secs(120);

/// Measures all of them. Returns the messages per second that mosquitto carries.
pub(crate) fn measure(table: &mut Table) -> anyhow::Result<f64> {
    let (sqlite_bulk, sqlite_single) = ingest::bare_rates()?;
    let mosquitto = through_mosquitto()?;
    table.figure("bare SQLite loop, 256 rows of 1 KB a transaction", format!("{sqlite_bulk:.0} rows/s"));
    table.figure("bare SQLite loop, one row a transaction", format!("{sqlite_single:.0} rows/s"));
    table.figure("4 KB appended and synced, median", format!("{:.3} ms", sync_time()?));
    table.figure("mosquitto, 1 KB at QoS 1 between two bare clients", format!("{mosquitto:.0} messages/s"));
    Ok(mosquitto)
}

/// Returns the median time to append and sync 4 KB, in milliseconds.
fn sync_time() -> anyhow::Result<f64> {
    let directory = tempfile::tempdir()?;
    let mut file = File::create(directory.path().join("file"))?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let start = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(median(times))
}

fn through_mosquitto() -> anyhow::Result<f64> {
    let mosquitto = Mosquitto::start();
    let broker = mosquitto.address();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let options = |name: &str, subscriptions: &[&str]| {
            let mut options = LinkOptions::new(&broker.ip().to_string(), broker.port(), name);
            options.subscriptions = subscriptions.iter().map(|topic| (*topic).to_owned()).collect();
            options
        };
        let (_receiver, mut received) = Link::spawn(options("taker", &["bare"]));
        let (sender, mut sender_events) = Link::spawn(options("giver", &["none"]));
        connected(&mut received).await?;
        connected(&mut sender_events).await?;
        let start = Instant::now();
        let sending = tokio::spawn(async move {
            for _ in 0..MESSAGES {
                while let Err(PublishError::Full) = sender.try_publish("bare", vec![b'x'; PAYLOAD], false) {
                    let _ = sender.ready().await;
                }
            }
            sender
        });
        let mut count = 0;
        while count < MESSAGES {
            match tokio::time::timeout(TIMEOUT, received.recv()).await? {
                Some(LinkEvent::Message { .. }) => count += 1,
                Some(LinkEvent::Disconnected { cause, .. }) => bail!("mosquitto: {cause}"),
                Some(_) => {}
                None => bail!("the link ended"),
            }
        }
        let time = start.elapsed();
        drop(sending.await?);
        Ok(MESSAGES as f64 / time.as_secs_f64())
    })
}

async fn connected(events: &mut Receiver<LinkEvent>) -> anyhow::Result<()> {
    match tokio::time::timeout(TIMEOUT, events.recv()).await?.context("the link ended")? {
        LinkEvent::Connected { .. } => Ok(()),
        other => bail!("not connected: {other:?}"),
    }
}
