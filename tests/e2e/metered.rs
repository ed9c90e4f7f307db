//! Metered links with both programs: hard budgets, urgency and sizes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use edgesync_admin::agent::AgentStatus;
use edgesync_object::urgency::URGENCY_ANNOTATION;
use edgesync_testkit::proxy::{Proxy, Way};
use edgesync_testkit::site;
use serde_json::{Value, json};

use site::fleet::output_text;
use site::*;

const NODE: &str = "edge-1";
/// The daily budget of the tests.
const BUDGET: u64 = 200 << 10;
/// The rest of a day's budget that may not suffice for another part of an object.
const REST: u64 = 20 << 10;
/// The days with a budget.
const DAYS: usize = 6;

/// Returns an object of this urgency that does not compress.
fn urgent(name: &str, urgency: &str, bytes: usize) -> Value {
    let mut object = sized(name, bytes);
    object["metadata"]["annotations"] = json!({ URGENCY_ANNOTATION: urgency });
    object
}

/// Returns the names of these objects that the node holds.
async fn held(agent: &Agent, objects: &[Value]) -> BTreeSet<String> {
    let mut held = BTreeSet::new();
    for object in objects {
        if agent.get(object).await.is_some() {
            held.insert(object["metadata"]["name"].as_str().unwrap().to_owned());
        }
    }
    held
}

/// Makes the stopped agent begin another day: it forgets what it has used.
fn next_day(agent: &Agent) {
    let database = rusqlite::Connection::open(&agent.database).unwrap();
    let forgotten = database.execute("DELETE FROM meta WHERE key = 'note/metered'", []);
    assert_eq!(forgotten.unwrap(), 1, "nothing was counted");
}

/// Returns whether nothing more comes with the budget of the day: the node is in sync, or at most
/// the rest of the budget is left that objects do not get.
fn is_day_over(status: &AgentStatus) -> bool {
    let metered = status.metered.as_ref().unwrap();
    let left = metered.day.map_or(0, |day| day.limit.saturating_sub(day.used));
    status.sync.in_sync || metered.spent_until.is_some() || left < REST
}

/// 5 MB are wanted: each day takes at most its budget, and urgent objects come on the first. Over
/// another link all arrive in the end. The agent is killed in the middle and at the end of each
/// day, which renews nothing.
#[tokio::test]
async fn hard_budget_holds_over_days_and_kills() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let proxy = Proxy::start(cloud.mqtt);
    let low = (0..32).map(|n| urgent(&format!("low-{n:02}"), "low", 150_000 + 16 * n));
    let normal = (0..30).map(|n| sized(&format!("normal-{n:02}"), 6_000 + 16 * n));
    let high = (0..5).map(|n| urgent(&format!("urgent-{n}"), "high", 3_000 + 16 * n));
    let all: Vec<Value> = low.chain(normal).chain(high).collect();
    cloud.apply(all.clone()).await;
    let mut agent = Agent::start_with(&site, NODE, proxy.address(), |settings| {
        settings.text("traffic.metered", "on").text("traffic.metered_daily_budget", "200KiB");
        settings.text("traffic.metered_lease_interval", "1h").text("link.keepalive", "20m");
    })
    .await;
    let passed = || proxy.passed(Way::Up) + proxy.passed(Way::Down);
    let (mut before, mut order) = (0, Vec::new());
    for day in 0..DAYS {
        let known = held(&agent, &all).await.len();
        eventually("some objects arrive", PATIENCE, async || {
            (held(&agent, &all).await.len() > known || is_day_over(&agent.status().await)).then_some(())
        })
        .await;
        agent.crash().await;
        for _ in 0..2 {
            agent.until("the budget of the day is used", is_day_over).await;
            agent.crash().await;
        }
        agent.until("the budget is still used", is_day_over).await;
        let bytes = passed() - before;
        assert!(bytes <= BUDGET, "day {day}: {bytes} bytes");
        order.push(held(&agent, &all).await);
        agent.stop().await;
        next_day(&agent);
        before = passed();
        agent.run().await;
    }
    let with = |word: &str| -> Vec<usize> {
        order.iter().map(|day| day.iter().filter(|name| name.starts_with(word)).count()).collect()
    };
    assert_eq!(with("urgent")[0], 5, "{order:?}");
    let (normal, low) = (with("normal"), with("low"));
    assert!(normal.iter().zip(&low).all(|(normal, low)| *low == 0 || *normal == 30), "{order:?}");
    assert!((1..=DAYS).contains(&low[DAYS - 1]), "{order:?}");
    agent.stop().await;
    agent.settings.text("traffic.metered", "off");
    agent.run().await;
    agent.until("all objects arrive", |status| status.sync.in_sync).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, all.len());
}

#[tokio::test]
async fn objects_wait_for_another_link_and_are_shown() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    cloud.apply([urgent("now", "high", 500), urgent("later", "low", 500), sized("large", 50_000)]).await;
    let agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.text("traffic.metered", "on").text("traffic.metered_min_urgency", "normal");
        settings.text("traffic.metered_max_object", "10KiB");
    })
    .await;
    let waits = |status: &AgentStatus| {
        let waiting = status.metered.as_ref().map(|metered| (metered.waiting.urgency, metered.waiting.size));
        waiting == Some((1, 1)) && status.sync.pending == 0
    };
    let status = agent.until("two objects wait, and nothing is to come", waits).await;
    assert!(!status.sync.in_sync, "{:?}", status.sync);
    assert!(agent.get(&urgent("now", "high", 0)).await.is_some());
    eventually("the cloud side shows it", PATIENCE, async || {
        (cloud.state(NODE).await? == "waiting").then_some(())
    })
    .await;
    let listed = output_text(&cloud.command(&["nodes"]).await);
    assert!(listed.contains("WAITING"), "{listed}");
    let node = output_text(&cloud.command(&["nodes", NODE, "-o", "json"]).await);
    assert!(node.contains("\"waitingForLink\""), "{node}");
    eventually("an Event says so", PATIENCE, async || {
        output_text(&cloud.command(&["get", "events", "-n", "default"]).await)
            .contains("ObjectsWaiting")
            .then_some(())
    })
    .await;

    // Another link has no limits: a reload stands for it.
    let mut agent = agent;
    agent.settings.text("traffic.metered", "off");
    agent.write_config();
    agent.process.signal("HUP");
    agent.until("all objects arrive", |status| status.sync.in_sync).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 3);
    eventually("an Event says that too", PATIENCE, async || {
        output_text(&cloud.command(&["get", "events", "-n", "default"]).await)
            .contains("ObjectsArrived")
            .then_some(())
    })
    .await;
}
