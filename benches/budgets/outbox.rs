//! A day offline: 100,000 Events of local programs on a node without a link, against the limits of
//! its outbox, and the replay once the link returns.

use std::time::Instant;

use anyhow::Context as _;
use edgesync_admin::agent::LaneStatus;
use edgesync_api::{Address, Client};
use serde_json::{Value, json};

use crate::processes::{Site, connect, memory_peak, until, written};
use crate::table::Table;

const EVENTS: usize = 100_000;
const CLIENTS: usize = 32;
const PATH: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn event(number: usize) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": format!("door-{number:06}"), "namespace": "default" },
        "eventTime": "2026-11-21T10:00:00.000000Z",
        "reason": "DoorOpened",
        "action": "Watching",
        "type": "Normal",
        "note": format!("door {number} was opened while the link was down, by an unknown person"),
        "reportingController": "example.com/doors",
        "reportingInstance": "doors-1",
        "regarding": { "apiVersion": "v1", "kind": "Node", "name": "edge-1" },
    })
}

async fn make(socket: std::path::PathBuf) -> anyhow::Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for lane in 0..CLIENTS {
        let client = Client::new(Address::Unix(socket.clone()));
        tasks.spawn(async move {
            for number in (lane..EVENTS).step_by(CLIENTS) {
                client.post::<Value>(PATH, &event(number)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

pub(crate) fn day_offline(table: &mut Table) -> anyhow::Result<()> {
    let site = Site::new()?;
    let agent = site.agent_on_the_line()?;
    let before = written(&agent);
    let start = Instant::now();
    site.block_on(make(site.socket()))?;
    let rate = EVENTS as f64 / start.elapsed().as_secs_f64();
    table.figure("100,000 Events created offline by programs, each durable", format!("{rate:.0}/s"));
    let bytes = (written(&agent) - before) as f64 / EVENTS as f64 / 1e3;
    table.figure("  written to disk per Event", format!("{bytes:.1} KB"));
    table.figure("  agent RSS, peak", format!("{:.1} MB", memory_peak(&agent) as f64 / 1e6));
    let status = site.edge_status()?;
    let LaneStatus { waiting, dropped, .. } = status.outbox["bulk"];
    table.figure("  queued / dropped, with outbox.max_items = 10,000", format!("{waiting} / {dropped}"));
    let database = status.store.database_bytes.context("the database cannot be read")?;
    table.figure("  database", format!("{:.1} MB", database as f64 / 1e6));
    let start = Instant::now();
    connect(site.line(), true);
    until("the outbox is empty", || (site.edge_status().ok()?.outbox["bulk"].waiting == 0).then_some(()))?;
    let rate = waiting as f64 / start.elapsed().as_secs_f64();
    table.figure("  replay, each an object in the cloud, confirmed end to end", format!("{rate:.0}/s"));
    drop(agent);
    Ok(())
}
