//! Checks that the cloud answers the agent, and that both are in sync.

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding};
use edgesync_admin::agent::{AgentStatus, CloudStatus};

pub(super) const CHECK: Check = Check {
    id: "cloud",
    title: "Cloud",
    needs: &["configuration", "name-resolution", "tcp", "tls", "mqtt"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

fn examine(examined: &mut Examined) -> Finding {
    match &examined.status {
        Some(status) => evaluate(status),
        None => Finding::skipped("requires a running agent"),
    }
}

fn evaluate(status: &AgentStatus) -> Finding {
    let (cloud, sync) = (&status.cloud, &status.sync);
    if cloud.removed {
        let next_step = "run 'edgesync-cloud node admit NODE' at the cloud side, or join another fleet";
        return Finding::failed("node removed from the fleet", next_step);
    }
    if cloud.state != CloudStatus::CONNECTED {
        return no_answer(status);
    }
    if sync.held_back > 0 {
        let next_step = "run 'edgesync-cloud confirm-deletions NODE' at the cloud side if they are intended";
        return Finding::warning(format!("{} removals held back by the cloud", sync.held_back), next_step);
    }
    if !status.rejected.is_empty() {
        let message = format!("{} objects rejected", status.rejected.len());
        return Finding::warning(message, "see 'edgesync status' for the reasons");
    }
    if sync.in_sync {
        let since = sync.in_sync_since.as_deref().unwrap_or_default();
        return Finding::ok(format!("in sync with {} objects since {since}", status.objects.total));
    }
    let waiting = status.metered.as_ref().map_or(0, |metered| metered.waiting.all());
    if waiting > 0 && sync.pending == 0 {
        let message = format!("{waiting} objects wait for the metered link");
        return Finding::warning(message, "see 'edgesync traffic' for what they wait for");
    }
    let (pending, unconfirmed) = (sync.pending, sync.unconfirmed);
    Finding::warning(
        format!("cloud side connected; {pending} objects pending, {unconfirmed} changes unconfirmed"),
        "wait, and run the check again",
    )
}

fn no_answer(status: &AgentStatus) -> Finding {
    let message = format!("cloud side does not respond: {}", status.cloud.state);
    match (status.link.link_type.as_str(), &status.link.cause) {
        ("kubeedge", None) => Finding::failed(
            message,
            "see CloudCore's log (kubectl -n kubeedge logs deploy/cloudcore), and check its node limit",
        ),
        ("kubeedge", Some(cause)) => {
            Finding::failed(format!("{message}: {cause}"), "check that CloudCore runs, and see its log")
        }
        _ => Finding::failed(
            message,
            "check that the cloud side runs ('systemctl status edgesync-cloud') and uses the same broker and prefix",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{failed, ok, warned};
    use edgesync_admin::samples;

    #[test]
    fn the_agents_view_of_the_cloud_is_rated() {
        let status = |change: fn(&mut AgentStatus)| {
            let mut status = samples::status();
            (status.objects.total, status.sync.in_sync_since) = (7, Some("t".to_owned()));
            change(&mut status);
            evaluate(&status)
        };
        ok(status(|_| {}), "in sync with 7 objects since t");
        warned(status(|s| s.sync.in_sync = false), "0 objects pending", "wait");
        let is_waiting = |s: &mut AgentStatus| {
            (s.sync.in_sync, s.metered) = (false, Some(samples::metered()));
        };
        warned(status(is_waiting), "16 objects wait for the metered link", "edgesync traffic");
        warned(status(|s| s.sync.held_back = 3), "3 removals held back", "confirm-deletions");
        warned(status(|s| s.rejected = vec![samples::rejected()]), "1 objects rejected", "edgesync status");
        failed(status(|s| s.cloud.state = "offline".to_owned()), "offline", "edgesync-cloud");
        let kubeedge = |s: &mut AgentStatus| {
            s.cloud.state = "unreachable".to_owned();
            s.link.link_type = "kubeedge".to_owned();
        };
        failed(status(kubeedge), "unreachable", "node limit");
        let cut = |s: &mut AgentStatus| {
            s.cloud.state = "unknown".to_owned();
            (s.link.link_type, s.link.cause) = ("kubeedge".to_owned(), Some("connection refused".to_owned()));
        };
        failed(status(cut), "connection refused", "CloudCore runs");
        failed(status(|s| s.cloud.removed = true), "removed", "node admit");
    }
}
