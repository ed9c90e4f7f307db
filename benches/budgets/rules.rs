//! 10,000 placement rules beside 1,000,000 objects: how soon the nodes of a changed object are
//! found, and how soon a new rule and the end of one take effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use edgesync_admin::Route;
use edgesync_admin::cloud::NodeObjects;
use edgesync_api::Client;
use edgesync_object::{Labels, NodeName, Resource, ResourceVersion, kinds};
use edgesync_placement::rules::PlacementRule;
use edgesync_placement::{Placement, Summary};
use edgesync_protocol::apply::Totals;
use edgesync_protocol::digest::Epoch;
use edgesync_testkit::line::Endpoint;
use edgesync_testkit::node::{Memory, session};
use edgesync_testkit::site::ask;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::big_cloud::OBJECTS;
use crate::processes::median;
use crate::table::Table;

const RULES: usize = 10_000;
/// The number of objects that each rule selects.
const SELECTED: usize = OBJECTS / RULES;
const CHANGES: usize = 1000;
const PATH: &str = "/apis/edgesync.io/v1alpha1/clusterplacements";
const TIMEOUT: Duration = Duration::from_secs(300);

/// Returns the label `machine` of an object, which [`SELECTED`] objects have.
pub(crate) fn machine(number: usize) -> String {
    format!("m-{}", number % RULES)
}

/// Measures the index alone: nodes, rules and objects in memory, as the cloud side keeps them.
pub(crate) fn index(table: &mut Table) -> anyhow::Result<()> {
    let resource = Arc::new(kinds::by_word("cm").context("no kind cm")?.resource());
    let rule = |number: usize| -> anyhow::Result<PlacementRule> {
        let (node, label) = (format!("node-{number}"), format!("machine={}", machine(number)));
        let rule =
            json!({"nodes": {"names": [node, "gateway"]}, "objects": {"kinds": ["cm"], "selector": label}});
        Ok(serde_json::from_value(rule)?)
    };
    let mut placement = Placement::new((0..RULES).map(rule).collect::<anyhow::Result<_>>()?);
    for node in (0..RULES).map(|number| format!("node-{number}")).chain(["gateway".to_owned()]) {
        let node = NodeName::parse(&node).map_err(anyhow::Error::msg)?;
        placement.add_node(&node, Labels::new());
    }
    for number in 0..OBJECTS {
        placement.upsert(&summary(&resource, number, 1)?);
    }
    let mut times = Vec::new();
    for change in 0..CHANGES {
        let changed = summary(&resource, change * 997 % OBJECTS, 2)?;
        let start = Instant::now();
        let differences = placement.upsert(&changed);
        let (mut nodes, mut last) = (0, None);
        while let Some(node) = placement.next_node(&differences, last.as_ref()) {
            nodes += placement.differences_on(&differences, &node).count();
            last = Some(node);
        }
        times.push(start.elapsed().as_secs_f64() * 1e3);
        ensure!(nodes == 2, "{nodes} nodes have the object");
    }
    let slowest = times.iter().copied().fold(0.0, f64::max);
    let shown = format!("{:.3} / {slowest:.3} ms", median(times));
    let what = "10,000 rules: the nodes of a changed object are found, p50 / slowest";
    table.budget(what, shown, "≤ 1 ms", slowest <= 1.0);
    Ok(())
}

fn summary(resource: &Arc<Resource>, number: usize, version: u64) -> anyhow::Result<Summary> {
    let object = json!({"metadata": {
        "uid": format!("uid-{number}"), "name": format!("settings-{number}"), "namespace": "plant",
        "labels": {"machine": machine(number)},
    }});
    let version = ResourceVersion::from(version);
    Ok(Summary::of(&serde_json::from_value(object)?, Arc::clone(resource), version))
}

fn placement(name: &str, label: usize, node: &str) -> Value {
    json!({
        "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement", "metadata": {"name": name},
        "spec": {
            "objects": {"kinds": ["ConfigMap"], "selector": {"matchLabels": {"machine": machine(label)}}},
            "nodes": {"names": [node]},
        },
    })
}

/// Measures a cloud side whose objects have one of 10,000 labels `machine`, and a node that
/// connects to it.
pub(crate) async fn in_force(
    client: impl Fn() -> Client,
    endpoint: Endpoint,
    table: &mut Table,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut creations = JoinSet::new();
    for worker in 0..32 {
        let client = client();
        creations.spawn(async move {
            for number in (worker..RULES).step_by(32) {
                let rule = placement(&format!("rule-{number}"), number, &format!("node-{number}"));
                client.post::<Value>(PATH, &rule).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(created) = creations.join_next().await {
        created??;
    }
    let client = client();
    table.figure("10,000 rules created", format!("{:.2} s", start.elapsed().as_secs_f64()));
    let last = format!("{PATH}/rule-{}", RULES - 1);
    wait("the last rule selects its objects", async || {
        let rule: Value = client.get(&last).await?;
        Ok(rule["status"]["objects"] == SELECTED)
    })
    .await?;
    table.figure("  all of them in force", format!("{:.2} s", start.elapsed().as_secs_f64()));

    let node = "gateway";
    let totals = Totals { epoch: Epoch(1), ..Totals::default() };
    let mut memory = Memory { totals, wanted: SELECTED as u64, ..Memory::default() };
    let complete = Arc::new(AtomicUsize::new(0));
    let (stop, stopped) = watch::channel(false);
    let running = {
        let complete = Arc::clone(&complete);
        tokio::spawn(async move { session(node, &endpoint, &mut memory, &complete, stopped).await })
    };
    let placed = async || ask::<NodeObjects>(&client, Route::NodeObjects(node)).await;
    wait("the node is connected", async || Ok(placed().await.is_ok())).await?;
    let start = Instant::now();
    // Objects that were added later have the first label.
    client.post::<Value>(PATH, &placement("new", 1, node)).await?;
    wait("the node holds the objects of a new rule", async || Ok(complete.load(Ordering::Relaxed) > 0))
        .await?;
    let took = start.elapsed();
    let what = "  one more: until a node holds its 100 objects";
    table.budget(what, format!("{:.2} s", took.as_secs_f64()), "≤ 2 s", took <= Duration::from_secs(2));
    let start = Instant::now();
    client.delete::<Value>(&format!("{PATH}/new"), None).await?;
    wait("a deleted rule places nothing", async || Ok(placed().await?.items.is_empty())).await?;
    let took = start.elapsed();
    let what = "  that one deleted: until it places nothing";
    table.budget(what, format!("{:.2} s", took.as_secs_f64()), "≤ 2 s", took <= Duration::from_secs(2));
    stop.send_replace(true);
    running.await?
}

async fn wait(what: &str, is_so: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let start = Instant::now();
    while !is_so().await? {
        ensure!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
