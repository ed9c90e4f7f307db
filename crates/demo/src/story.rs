//! The phases of the demo.

use std::time::Duration;

use tokio::time::Instant;

use super::apply::{ApplyJob, change, create, delete};
use super::compare::{Side, compare};
use super::files::NODE;
use super::report::{CHANGED, DELETED, Mark, Outcome, Phase, RECREATED, seconds};
use super::screen::Screen;
use super::stage::{InSync, NodeView, Stage};
use super::{DemoError, count};

/// Changes made in the cloud while the link is cut.
const CHANGES: u32 = CHANGED + DELETED + RECREATED;

/// Runs all phases.
///
/// # Errors
/// A time limit is reached, or a process ends or does not answer.
pub(super) async fn play(
    objects: u32,
    stage: &mut Stage<'_>,
    screen: &mut Screen<'_>,
) -> Result<Outcome, DemoError> {
    let mut outcome = Outcome { objects, ..Outcome::default() };
    stage.until("the node to connect", screen, |view| view.state == "in sync").await?;
    let start = mark(stage, stage.view().await?);
    let killed = apply_and_kill(&mut outcome, &start, stage, screen).await?;
    let restarted = restart(&mut outcome, &killed, stage, screen).await?;
    let reconnected = reconnect(&mut outcome, &restarted, stage, screen).await?;
    reconnect_after_changes(&mut outcome, &reconnected, stage, screen).await?;
    screen.progress(|| "   comparing both sides".into());
    let cloud = Side::fetch(&stage.cloud_api).await?.placed();
    let node = Side::fetch(&stage.node_api).await?.placed();
    outcome.comparison = compare(&cloud, &node, NODE);
    Ok(outcome)
}

fn mark(stage: &Stage<'_>, view: NodeView) -> Mark {
    Mark { view, transferred: stage.link().transferred() }
}

async fn apply_and_kill(
    outcome: &mut Outcome,
    start: &Mark,
    stage: &mut Stage<'_>,
    screen: &mut Screen<'_>,
) -> Result<Mark, DemoError> {
    let objects = outcome.objects;
    screen.print(&format!(
        "1  Apply {} objects, and kill the agent half-way (SIGKILL).",
        count(objects.into())
    ));
    // The last quarter is applied after the kill, so that the kill always comes half-way.
    let allowed = objects - objects / 4;
    let began = Instant::now();
    let mut job = ApplyJob::start(stage.cloud_api.address(), objects, allowed, NODE);
    let half = u64::from(objects / 2);
    tokio::select! {
        seen = stage.until("half of the objects", screen, |view| view.objects >= half) => seen?,
        failed = async {
            match job.finish().await {
                Ok(()) => std::future::pending().await,
                Err(error) => error,
            }
        } => return Err(failed),
    };
    stage.kill_agent();
    let time = began.elapsed();
    let applied = job.applied();
    job.allow();
    job.finish().await?;
    let all = u64::from(objects);
    let is_offline = |view: &NodeView| view.state == "offline" && view.desired == all;
    let view = stage.until("the cloud to notice", screen, is_offline).await?;
    screen.print(&format!(
        "   Killed after {}, with {} applied and {} reported.\n   The rest was applied while it was dead.",
        seconds(time),
        count(applied),
        count(view.objects),
    ));
    outcome.held_at_kill = view.objects;
    let killed = mark(stage, view);
    outcome.first = Phase::between("1 apply", objects, (start, &killed), time);
    Ok(killed)
}

async fn restart(
    outcome: &mut Outcome,
    killed: &Mark,
    stage: &mut Stage<'_>,
    screen: &mut Screen<'_>,
) -> Result<Mark, DemoError> {
    screen.print("2  Start the agent again.");
    stage.start_agent().await?;
    let InSync { view, applied, time } =
        stage.until_in_sync(outcome.objects.into(), &killed.view, screen).await?;
    outcome.new_to_node = applied;
    let restarted = mark(stage, view);
    outcome.restart = Phase::between("2 restart", 0, (killed, &restarted), time);
    let held = outcome.restart.skipped.unwrap_or_default();
    let unreported = match held.saturating_sub(outcome.held_at_kill) {
        0 => String::new(),
        some => format!("\n   ({} of these persisted, but killed before the report.)", count(some)),
    };
    screen.print(&format!(
        "   In sync {} after it connected. Sent: the {} objects that were missing.\n   \
         Not sent: the {} that it already held.{unreported}",
        seconds(time),
        count(outcome.restart.sent),
        count(held),
    ));
    Ok(restarted)
}

async fn reconnect(
    outcome: &mut Outcome,
    before: &Mark,
    stage: &mut Stage<'_>,
    screen: &mut Screen<'_>,
) -> Result<Mark, DemoError> {
    screen.print("3  Cut the link, change nothing, reconnect.");
    cut(stage, screen).await?;
    let (after, time) = restore(outcome.objects.into(), before, stage, screen).await?;
    outcome.unchanged = Phase::between("3 reconnect", 0, (before, &after), time);
    screen.print(&format!(
        "   In sync again after {} bytes: both ways, everything included.",
        count(outcome.unchanged.bytes())
    ));
    Ok(after)
}

async fn reconnect_after_changes(
    outcome: &mut Outcome,
    before: &Mark,
    stage: &mut Stage<'_>,
    screen: &mut Screen<'_>,
) -> Result<(), DemoError> {
    screen.print(&format!(
        "4  Cut the link, change {CHANGED}, delete {DELETED}, recreate {RECREATED} under their old names, reconnect."
    ));
    cut(stage, screen).await?;
    make_changes(outcome.objects, stage).await?;
    let remaining = u64::from(outcome.objects - DELETED);
    stage.until("the cloud to place the changes", screen, |view| view.desired == remaining).await?;
    let (after, time) = restore(remaining, before, stage, screen).await?;
    outcome.changes = Phase::between("4 changes", CHANGES, (before, &after), time);
    screen.print(&format!(
        "   In sync again. {} objects sent, {} removed; {} not sent, it already held them.",
        count(outcome.changes.sent),
        count(outcome.changes.removed),
        count(outcome.changes.skipped.unwrap_or_default()),
    ));
    Ok(())
}

/// Changes, recreates and deletes objects, spread over all. The deletions come last: once the
/// number of desired objects shows that the cloud has placed them, it has placed everything.
async fn make_changes(objects: u32, stage: &Stage<'_>) -> Result<(), DemoError> {
    let client = &stage.cloud_api;
    let chosen: Vec<u32> = (0..CHANGES).map(|number| number * (objects / CHANGES)).collect();
    let (changed, others) = chosen.split_at(CHANGED as usize);
    let (recreated, deleted) = others.split_at(RECREATED as usize);
    for index in changed {
        change(client, *index, NODE, 2).await?;
    }
    for index in recreated {
        delete(client, *index, NODE).await?;
        create(client, *index, NODE, 2).await?;
    }
    for index in deleted {
        delete(client, *index, NODE).await?;
    }
    Ok(())
}

async fn cut(stage: &mut Stage<'_>, screen: &mut Screen<'_>) -> Result<(), DemoError> {
    stage.link().cut();
    stage.until("the cloud to notice the cut", screen, |view| view.state == "offline").await?;
    Ok(())
}

async fn restore(
    objects: u64,
    before: &Mark,
    stage: &mut Stage<'_>,
    screen: &mut Screen<'_>,
) -> Result<(Mark, Duration), DemoError> {
    stage.link().restore();
    let InSync { view, time, .. } = stage.until_in_sync(objects, &before.view, screen).await?;
    Ok((mark(stage, view), time))
}
