//! A roll-out in progress on 10,000 connected nodes: what it costs beside the same nodes without
//! one, and how soon a pause takes hold.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync_admin::Route;
use edgesync_admin::cloud::{RolloutAction, RolloutCommand, RolloutStatus};
use serde_json::{Value, json};

use crate::fleet::{new_nodes, object_path, storm};
use crate::objects::object;
use crate::processes::FleetSite;
use crate::table::Table;

const OBJECTS: usize = 100;
const RULE: &str = "web";
const RULES: &str = "/apis/edgesync.io/v1alpha1/clusterplacements";
/// Time for which each of the two states is measured.
const MEASURED: Duration = Duration::from_secs(60);
/// Time after which renewals are evenly spread.
const SETTLED: Duration = Duration::from_secs(20);
const TIMEOUT: Duration = Duration::from_secs(120);

/// Processor time of the cloud side as a share of one core, and its memory in bytes.
type Cost = (f64, u64);

async fn cost(site: &FleetSite) -> Cost {
    let (before, begun) = (site.cloud_spent().0, Instant::now());
    tokio::time::sleep(MEASURED).await;
    let spent = site.cloud_spent().0 - before;
    (spent.as_secs_f64() / begun.elapsed().as_secs_f64(), site.cloud_rss())
}

async fn until(site: &FleetSite, what: &str, is_so: impl Fn(&RolloutStatus) -> bool) -> anyhow::Result<()> {
    let (client, path, begun) = (site.client(), Route::RolloutStatus(RULE).path(), Instant::now());
    loop {
        let shown = client.get::<RolloutStatus>(&path).await.ok();
        if shown.as_ref().is_some_and(&is_so) {
            return Ok(());
        }
        anyhow::ensure!(begun.elapsed() < TIMEOUT, "{what}: {shown:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn command(action: RolloutAction, revision: Option<u64>) -> RolloutCommand {
    RolloutCommand { action, revision, open: None, reason: None, override_windows: false }
}

struct Measured {
    /// Before and after the roll-out.
    without: [Cost; 2],
    with: Cost,
    /// Time until a pause was stored.
    paused: Duration,
}

/// Measures with a rule, with a roll-out in it whose first wave, a tenth of the nodes, is being
/// soaked, and without again.
async fn measure(site: &FleetSite, mut changed: Value) -> anyhow::Result<Measured> {
    let client = site.client();
    let mut rule = json!({
        "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement", "metadata": {"name": RULE},
        "spec": {"objects": {"kinds": ["ConfigMap"]}, "nodes": {}},
    });
    client.post::<Value>(RULES, &rule).await?;
    tokio::time::sleep(SETTLED).await;
    let without = cost(site).await;
    rule["spec"]["rollout"] = json!({"waves": [{"percent": 10, "heldOnly": true}, {"heldOnly": true}], "soak": "1d", "settle": "1s"});
    let path = format!("{RULES}/{RULE}");
    client.put::<Value>(&path, &rule).await?;
    until(site, "the first revision is stable", |shown| shown.revisions.len() == 1).await?;
    changed["data"] = json!({"changed": "yes"});
    client.put::<Value>(&object_path(&changed), &changed).await?;
    let is_soaked = |shown: &RolloutStatus| {
        let [first, second] = &shown.waves[..] else { return false };
        first.held_only > 0 && first.held_only == first.nodes && !second.open
    };
    until(site, "the first wave holds the change", is_soaked).await?;
    tokio::time::sleep(SETTLED).await;
    let with = cost(site).await;
    let begun = Instant::now();
    let pause = command(RolloutAction::Pause, None);
    client.post::<Value>(&Route::MoveRollout(RULE).path(), &json!(pause)).await?;
    let paused = begun.elapsed();
    until(site, "the roll-out is paused", |shown| shown.paused.is_some()).await?;
    // The same again without it: the load of one minute differs from that of the next.
    client
        .post::<Value>(&Route::MoveRollout(RULE).path(), &json!(command(RolloutAction::Undo, Some(2))))
        .await?;
    until(site, "the first revision is stable again", |shown| shown.revisions.len() == 1).await?;
    rule["spec"]["rollout"] = Value::Null;
    client.put::<Value>(&path, &rule).await?;
    tokio::time::sleep(SETTLED).await;
    let again = cost(site).await;
    Ok(Measured { without: [without, again], with, paused })
}

pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let site = FleetSite::new()?;
    // Six of ten objects are ConfigMaps, which the rule of the site places.
    for n in 0..OBJECTS {
        site.create(&object(n / 6 * 10 + n % 6, 0))?;
    }
    let mut memories = new_nodes(OBJECTS);
    let object = site.list("configmaps")?.swap_remove(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut measured = None;
    let stay = async || measured = Some(measure(&site, object).await);
    runtime.block_on(storm(&site.endpoint()?, &mut memories, stay))?;
    let Measured { without, with, paused } = measured.context("nothing was measured")??;
    let without = (f64::midpoint(without[0].0, without[1].0), without[0].1.max(without[1].1));
    let percent = |share: f64| format!("{:.1} % of one core", share * 100.0);
    table.figure("CPU of the cloud side without a roll-out, Leases every 10 s", percent(without.0));
    let more = (with.0 / without.0 - 1.0) * 100.0;
    let shown = format!("{}, {more:+.0} %", percent(with.0));
    table.budget("  with one whose first wave is soaked", shown, "≤ +10 %", more <= 10.0);
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    table.figure("memory of the cloud side without a roll-out", format!("{:.0} MB", megabytes(without.1)));
    let more = (with.1 as f64 / without.1 as f64 - 1.0) * 100.0;
    let shown = format!("{:.0} MB, {more:+.0} %", megabytes(with.1));
    table.budget("  with one", shown, "≤ +10 %", more <= 10.0);
    let milliseconds = paused.as_secs_f64() * 1000.0;
    table.budget(
        "a pause, until stored",
        format!("{milliseconds:.0} ms"),
        "≤ 2 s",
        paused <= Duration::from_secs(2),
    );
    Ok(())
}
