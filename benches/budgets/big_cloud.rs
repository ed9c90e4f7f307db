//! A cloud with 1,000,000 objects that no rule places: its start, its memory, and the cost of
//! lookups; then with 10,000 rules.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use edgesync_admin::Route;
use edgesync_admin::cloud::NodeList;
use edgesync_api::{Address, Client};
use edgesync_cloud_store::{CloudOptions, CloudStore};
use edgesync_object::{Object, Resource, kinds};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::processes::{Process, cloud_program, free_port, median, mib, proc_number, spawn, until};
use crate::rules;
use crate::table::Table;
use edgesync_testkit::line::Endpoint;
use edgesync_testkit::site::ask;

pub(crate) const OBJECTS: usize = 1_000_000;
const NAMESPACES: usize = 100;
const TOGETHER: usize = 4096;
const REQUESTS: usize = 200;
const CHANGES: usize = 50;

/// Returns a ConfigMap of about 1 KB. One in 10,000 has the first label queried, one in 50 the
/// other one.
fn config_map(n: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": format!("settings-{n:07}"), "namespace": format!("plant-{:02}", n % NAMESPACES),
            "labels": {"machine": rules::machine(n), "station": format!("s-{}", n / NAMESPACES % 50)},
        },
        "data": {"station.properties": "station.parameter=0123456789\n".repeat(22)},
    })
}

pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let empty = {
        let site = Site::start(directory.path(), "empty.db")?;
        runtime.block_on(site.complete())?;
        site.anonymous()
    };
    let started = Instant::now();
    runtime.block_on(fill(&directory.path().join("big.db")))?;
    let took = started.elapsed().as_secs_f64();
    table.figure("1,000,000 objects of 1 KB written", format!("{:.0}/s", OBJECTS as f64 / took));
    let size = std::fs::metadata(directory.path().join("big.db"))?.len();
    table.figure("  database, per object", format!("{:.0} bytes", size as f64 / OBJECTS as f64));
    let started = Instant::now();
    let site = Site::start(directory.path(), "big.db")?;
    let serving = started.elapsed();
    table.budget("start to serving", seconds(serving), "≤ 2 s", serving <= Duration::from_secs(2));
    runtime.block_on(site.complete())?;
    table.figure("  start to serving nodes", seconds(started.elapsed()));
    let bytes = site.anonymous().saturating_sub(empty) as f64 * 1024.0 / OBJECTS as f64;
    table.budget("memory per unplaced object", format!("{bytes:.0} bytes"), "≤ 300 bytes", bytes <= 300.0);
    until("the database check passed", || site.has_logged("database check passed").then_some(()))?;
    table.figure("  start to the end of the database check", seconds(started.elapsed()));
    table.figure("  memory not reclaimable, then", mib(site.anonymous()));
    runtime.block_on(finding(&site, table))?;
    watching(&site, &runtime, table)?;
    rules::index(table)?;
    let endpoint =
        Endpoint { address: (Ipv4Addr::LOCALHOST, site.broker).into(), authority: None, sources: 1 };
    runtime.block_on(rules::in_force(|| site.client(), endpoint, table))
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

async fn fill(path: &Path) -> anyhow::Result<()> {
    let store = CloudStore::open(path, &CloudOptions::default())?;
    let resource: Resource = kinds::by_word("cm").context("no kind cm")?.resource();
    for first in (0..OBJECTS).step_by(TOGETHER) {
        let mut writes = JoinSet::new();
        for n in first..(first + TOGETHER).min(OBJECTS) {
            let (store, resource) = (store.clone(), resource.clone());
            writes.spawn(async move {
                let object: Object = serde_json::from_value(config_map(n))?;
                store.create(&resource, object).await?;
                anyhow::Ok(())
            });
        }
        while let Some(written) = writes.join_next().await {
            written??;
        }
    }
    store.close().await;
    Ok(())
}

/// A cloud side with a given database.
struct Site {
    api: std::path::PathBuf,
    log: std::path::PathBuf,
    broker: u16,
    cloud: Process,
}

impl Site {
    /// Starts it, and waits until the API serves.
    fn start(directory: &Path, database: &str) -> anyhow::Result<Self> {
        let (broker, api) = (free_port(), directory.join("cloud.sock"));
        let (config, log) = (directory.join("cloud.toml"), directory.join("cloud.log"));
        std::fs::write(
            &config,
            format!(
                "[store]\npath = \"{0}/{database}\"\n[broker]\nlisten = \"127.0.0.1:{broker}\"\ntls = \"off\"\n[api]\nsocket = \"{0}/cloud.sock\"\nlisten = \"127.0.0.1:0\"\n\
                 [enrollment]\nlisten = \"off\"\n[log]\nformat = \"text\"\n[[placement]]\nnodes = {{ names = [\"*\"] }}\n\
                 objects = {{ kinds = [\"ConfigMap\"], namespaces = [\"nobodys\"] }}\n",
                directory.display()
            ),
        )?;
        let cloud = spawn(cloud_program(), &config, &log)?;
        until("the API serves", || {
            let mut stream = UnixStream::connect(&api).ok()?;
            stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).ok()?;
            line.contains(" 200 ").then_some(())
        })?;
        Ok(Self { api, log, broker, cloud })
    }

    fn client(&self) -> Client {
        Client::new(Address::Unix(self.api.clone()))
    }

    /// Waits until the fleet answers, which requires the placement index.
    async fn complete(&self) -> anyhow::Result<()> {
        ask::<NodeList>(&self.client(), Route::Nodes).await?;
        Ok(())
    }

    /// Returns the anonymous memory in KiB.
    fn anonymous(&self) -> u64 {
        proc_number(&self.cloud, "status", "RssAnon:")
    }

    fn has_logged(&self, words: &str) -> bool {
        std::fs::read_to_string(&self.log).is_ok_and(|log| log.contains(words))
    }
}

/// Measures requests for one object or a few, each in the middle of many.
async fn finding(site: &Site, table: &mut Table) -> anyhow::Result<()> {
    let client = site.client();
    let number = |request: usize| request * 4999 % OBJECTS;
    let path = |n: usize| format!("/api/v1/namespaces/plant-{:02}/configmaps", n % NAMESPACES);
    for (what, requests, found, ask) in [
        (
            "get of one object",
            REQUESTS,
            1,
            &(|n| format!("{}/settings-{n:07}", path(n))) as &dyn Fn(usize) -> String,
        ),
        ("list by metadata.name in its namespace", REQUESTS, 1, &|n| {
            format!("{}?fieldSelector=metadata.name%3Dsettings-{n:07}", path(n))
        }),
        ("list by metadata.name in 100 namespaces", REQUESTS, 1, &|n| {
            format!("/api/v1/configmaps?fieldSelector=metadata.name%3Dsettings-{n:07}")
        }),
        ("page of 500 by a label that one in 50 has", 9, 500, &|n| {
            format!("/api/v1/configmaps?limit=500&labelSelector=station%3Ds-{}", n % 50)
        }),
        ("all 100 objects with a label, of 10,000", 9, 1, &|n| {
            format!("{}?labelSelector=machine%3D{}", path(n), rules::machine(n))
        }),
        ("all 100 objects with a label, of 1,000,000", 9, 100, &|n| {
            format!("/api/v1/configmaps?labelSelector=machine%3D{}", rules::machine(n))
        }),
    ] {
        let mut times = Vec::new();
        for request in 0..requests {
            let started = Instant::now();
            let answer: Value = client.get(&ask(number(request))).await?;
            times.push(started.elapsed().as_secs_f64() * 1000.0);
            let items = answer["items"].as_array().map_or(1, Vec::len);
            ensure!(items >= found, "{what}: {items} were found");
        }
        table.figure(what, format!("{:.2} ms", median(times)));
    }
    Ok(())
}

/// Measures the time from a write's request to the event of a watch.
fn watching(site: &Site, runtime: &tokio::runtime::Runtime, table: &mut Table) -> anyhow::Result<()> {
    let path = "/api/v1/namespaces/plant-00/configmaps";
    let mut stream = UnixStream::connect(&site.api)?;
    let query = "watch=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=false";
    write!(stream, "GET {path}?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut lines = BufReader::new(stream).lines();
    let mut wait = |word: &str| -> anyhow::Result<()> {
        for line in &mut lines {
            if line?.contains(word) {
                return Ok(());
            }
        }
        anyhow::bail!("the watch ended before {word}")
    };
    wait("chunked")?;
    let client = site.client();
    let mut times = Vec::new();
    for n in 0..CHANGES {
        let mut object = config_map(0);
        object["metadata"]["name"] = format!("watched-{n}").into();
        let started = Instant::now();
        runtime.block_on(client.post::<Value>(path, &object))?;
        wait(&format!("watched-{n}\""))?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    table.figure("from a write to the event of a watch", format!("{:.2} ms", median(times)));
    Ok(())
}
