//! The cloud's API over HTTP: long lists, many watches, single requests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use edgesync_api::{Address, Client};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

use crate::processes::FleetSite;
use crate::table::Table;

const OBJECTS: usize = 10_000;
const WATCHERS: usize = 1_000;
const WATCHED_CHANGES: usize = 300;
const REQUESTS: usize = 4_000;
const CONNECTIONS: usize = 32;
const CONFIG_MAPS: &str = "/api/v1/namespaces/bench/configmaps";

/// Returns a ConfigMap of about 1 KB.
fn config_map(name: &str, round: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "labels": { "app": "bench" } },
        "data": { "round": round.to_string(), "settings": "station.parameter=0123456789\n".repeat(22) },
    })
}

/// Measures all figures of the API.
pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let site = FleetSite::new()?;
    site.runtime().block_on(singles(&site, table))?;
    site.runtime().block_on(fill(&site))?;
    lists(&site, table)?;
    let site = FleetSite::new()?;
    site.runtime().block_on(watchers(&site, table))
}

fn client(site: &FleetSite) -> Client {
    Client::new(Address::Unix(site.api()))
}

/// Sends requests over several connections. Returns the responses per second.
async fn rate<F>(site: &FleetSite, connections: usize, requests: usize, send: F) -> anyhow::Result<f64>
where
    F: AsyncFn(&Client, usize) -> anyhow::Result<()> + Clone + 'static,
{
    let clients: Vec<Client> = (0..connections).map(|_| client(site)).collect();
    for client in &clients {
        let _: Value = client.get("/version").await?;
    }
    let started = Instant::now();
    let each = clients.iter().enumerate().map(|(lane, client)| {
        let send = send.clone();
        async move {
            for number in (lane..requests).step_by(connections) {
                send(client, number).await?;
            }
            anyhow::Ok(())
        }
    });
    let all: Vec<_> = each.map(Box::pin).collect();
    join(all).await?;
    Ok(requests as f64 / started.elapsed().as_secs_f64())
}

/// Polls futures concurrently, on this task.
async fn join<F: Future<Output = anyhow::Result<()>> + Unpin>(mut all: Vec<F>) -> anyhow::Result<()> {
    std::future::poll_fn(move |cx| {
        let mut index = 0;
        while let Some(one) = all.get_mut(index) {
            match std::pin::Pin::new(one).poll(cx) {
                std::task::Poll::Ready(Ok(())) => drop(all.swap_remove(index)),
                std::task::Poll::Ready(Err(error)) => return std::task::Poll::Ready(Err(error)),
                std::task::Poll::Pending => index += 1,
            }
        }
        if all.is_empty() { std::task::Poll::Ready(Ok(())) } else { std::task::Poll::Pending }
    })
    .await
}

async fn create(client: &Client, name: String) -> anyhow::Result<()> {
    let _: Value = client.post(CONFIG_MAPS, &config_map(&name, 0)).await?;
    Ok(())
}

async fn singles(site: &FleetSite, table: &mut Table) -> anyhow::Result<()> {
    let created =
        rate(site, 1, REQUESTS / 4, async |client, n| create(client, format!("one-{n}")).await).await?;
    table.figure("API: creates over 1 connection", format!("{created:.0}/s"));
    let created =
        rate(site, CONNECTIONS, REQUESTS, async |client, n| create(client, format!("many-{n}")).await)
            .await?;
    table.figure("API: creates over 32 connections", format!("{created:.0}/s"));
    for (connections, what) in
        [(1, "API: gets over 1 connection"), (CONNECTIONS, "API: gets over 32 connections")]
    {
        let got = rate(site, connections, REQUESTS, async |client, n| {
            let _: Value = client.get(&format!("{CONFIG_MAPS}/many-{n}")).await?;
            Ok(())
        });
        table.figure(what, format!("{:.0}/s", got.await?));
    }
    Ok(())
}

/// Fills the store up to exactly [`OBJECTS`] ConfigMaps.
async fn fill(site: &FleetSite) -> anyhow::Result<()> {
    let there = REQUESTS + REQUESTS / 4;
    rate(site, CONNECTIONS, OBJECTS - there, async |client, n| create(client, format!("fill-{n}")).await)
        .await?;
    Ok(())
}

fn lists(site: &FleetSite, table: &mut Table) -> anyhow::Result<()> {
    let before = site.cloud_rss_peak();
    let mut best = f64::MAX;
    let mut bytes = 0;
    for _ in 0..3 {
        let started = Instant::now();
        bytes = read_list(&site.api())?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    let rate = bytes as f64 / best / 1e6;
    let bare = bare_read(site)?;
    let title = "API: list of 10,000 objects of 1 KB";
    table.figure(title, format!("{rate:.0} MB/s = {:.0} % of bare SQLite", 100.0 * rate / bare));
    let grown = site.cloud_rss_peak().saturating_sub(before) as f64 / 1e6;
    table.figure(
        "  the server's peak RSS grows by",
        format!("{grown:.1} MB for {:.1} MB", bytes as f64 / 1e6),
    );
    Ok(())
}

/// Reads the list as bytes. Returns its length.
fn read_list(api: &Path) -> anyhow::Result<usize> {
    let mut stream = UnixStream::connect(api)?;
    let request = format!("GET {CONFIG_MAPS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::with_capacity(64 << 10, stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    ensure!(line.contains("200"), "the answer to the list was {line:?}");
    let (mut all, mut part) = (0, vec![0; 64 << 10]);
    loop {
        match reader.read(&mut part)? {
            0 => return Ok(all),
            read => all += read,
        }
    }
}

/// Returns the megabytes per second of the same rows, read with SQLite alone.
fn bare_read(site: &FleetSite) -> anyhow::Result<f64> {
    let database = site.database();
    let open = || rusqlite::Connection::open(&database);
    let conn = open().with_context(|| format!("opening {}", database.display()))?;
    let mut best = f64::MAX;
    let mut bytes = 0;
    for _ in 0..3 {
        let started = Instant::now();
        let mut rows = conn.prepare(
            "SELECT namespace, name, version, body FROM objects ORDER BY resource_id, namespace, name",
        )?;
        let mut rows = rows.query([])?;
        bytes = 0;
        while let Some(row) = rows.next()? {
            bytes += row.get::<_, String>(3)?.len();
        }
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(bytes as f64 / best / 1e6)
}

async fn watchers(site: &FleetSite, table: &mut Table) -> anyhow::Result<()> {
    let writer = client(site);
    create(&writer, "watched".to_owned()).await?;
    let list: Value = writer.get(&format!("{CONFIG_MAPS}?limit=1")).await?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let before = site.cloud_rss();
    let seen = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..WATCHERS {
        let mut stream = tokio::net::UnixStream::connect(site.api()).await?;
        let request = format!(
            "GET {CONFIG_MAPS}?watch=1&resourceVersion={version}&timeoutSeconds=120 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut lines = tokio::io::BufReader::with_capacity(4 << 10, stream).lines();
        ensure!(lines.next_line().await?.is_some_and(|line| line.contains("200")), "a watch was refused");
        let seen = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut own = 0;
            while own < WATCHED_CHANGES {
                match lines.next_line().await {
                    Ok(Some(line)) if line.starts_with("{\"type\":\"MODIFIED\"") => {
                        own += 1;
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(Some(_)) => {}
                    _ => break,
                }
            }
        });
    }
    let each = site.cloud_rss().saturating_sub(before) as f64 / WATCHERS as f64 / 1e3;
    let started = Instant::now();
    for round in 1..=WATCHED_CHANGES {
        let path = format!("{CONFIG_MAPS}/watched");
        let _: Value = writer.put(&path, &config_map("watched", round)).await?;
    }
    let all = async { while tasks.join_next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(120), all)
        .await
        .context("the watchers did not receive all changes")?;
    let rate = seen.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    ensure!(seen.load(Ordering::Relaxed) == WATCHERS * WATCHED_CHANGES, "changes were lost");
    table.figure("API: 1,000 watchers of one object, 300 changes", format!("{rate:.0} events/s"));
    table.figure("  RSS per watcher", format!("{each:.1} KB"));
    Ok(())
}
