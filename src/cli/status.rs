//! The command `status`: summarizes the agent's health in a few lines.

use jiff::Timestamp;
use serde_json::Value;

use edgesync_admin::agent::{AgentStatus, CloudStatus, Condition, ListenStatus, RejectedObject};
use edgesync_cli::output::{age, cell, size};

/// Returns the summary of a status, with all problems.
#[must_use]
pub fn summary(status: &AgentStatus) -> String {
    let now = Timestamp::now();
    let mut problems: Vec<String> = Vec::new();
    let mut lines: Vec<(&str, String)> = Vec::new();

    let (version, runs) = (&status.agent.version, age(now, &status.agent.started));
    lines.push(("Node", format!("{}, the agent {version} runs for {runs}", status.node)));
    let connected = status.link.is_connected();
    lines.push(("Link", link(status, now, &mut problems)));
    if connected {
        let cloud = &status.cloud.state;
        if cloud != CloudStatus::CONNECTED {
            problems.push(format!("the cloud: {cloud}"));
        }
        lines.push(("Cloud", cloud.clone()));
    }
    lines.push(("In sync", if status.sync.in_sync { "yes" } else { "no" }.to_owned()));
    let (pending, held) = (status.sync.pending, status.sync.held_back);
    let mut objects = format!("{} held", status.objects.total);
    for (count, words) in [(pending, "to come"), (held, "to be removed once that is confirmed in the cloud")]
    {
        if count > 0 {
            objects.push_str(&format!(", {count} {words}"));
        }
    }
    if held > 0 {
        problems.push(format!("{held} removals wait for 'edgesync-cloud confirm-deletions'"));
    }
    lines.push(("Objects", objects));
    let waiting: u64 = status.outbox.values().map(|lane| lane.waiting).sum();
    let unconfirmed = status.sync.unconfirmed;
    if waiting + unconfirmed > 0 {
        lines.push((
            "To tell",
            format!("{waiting} items wait for the cloud, {unconfirmed} changes are not confirmed"),
        ));
    }
    problems.extend(status.rejected.iter().map(rejection));
    let bad = status.conditions.iter().filter(|condition| !is_good(condition));
    problems.extend(bad.map(|condition| text(&condition.message)));
    if let Some(files) = &status.files {
        let not = files.not_in_effect + files.conflicts;
        lines.push(("Files", format!("{} objects in effect, {not} not: edgesync files", files.in_effect)));
        if not > 0 {
            problems.push(format!("{not} objects are not in effect in files"));
        }
    }
    let database = status.store.database_bytes.unwrap_or(0) + status.store.wal_bytes.unwrap_or(0);
    lines.push(("Database", format!("{}, {}", status.store.writing, size(database))));
    if let Some(identity) = &status.identity {
        // Only the cloud knows about a revocation.
        let judged = if connected { "" } else { " by its dates" };
        lines.push(("Certificate", format!("{}{judged}, until {}", identity.validity, identity.not_after)));
        if let Some(failure) = &identity.renewal_failure {
            problems.push(format!("the certificate could not be renewed: {failure}"));
        }
    }
    if matches!(status.api, ListenStatus::Waiting { .. }) {
        problems.push("another program has the address of the local API".to_owned());
    }
    lines.push(("Today", format!("{} sent and received", size(status.traffic.bytes_today))));
    render(&lines, &problems)
}

/// Returns the state of the link. Without a connection adds the cause to the problems.
fn link(status: &AgentStatus, now: Timestamp, problems: &mut Vec<String>) -> String {
    let link = &status.link;
    let since = link.since.as_ref().map_or_else(String::new, |since| format!(" for {}", age(now, since)));
    if link.is_connected() {
        return format!("connected{since} to {}", link.broker);
    }
    let cause = link.cause.as_deref().unwrap_or_default();
    problems.push(match cause {
        "" => "no connection to the cloud".to_owned(),
        cause => format!("no connection to the cloud: {cause}"),
    });
    let retry = cell(&link.retry_in_seconds.into());
    format!("disconnected{since} from {}: {cause}; tries again within {retry} s", link.broker)
}

fn rejection(rejected: &RejectedObject) -> String {
    let name = match &rejected.object {
        Some(object) => format!("{} {}/{}", object.kind, object.namespace, object.name),
        None => text(&rejected.uid),
    };
    format!("{name} is rejected, {}: {}", rejected.reason, text(&rejected.message))
}

/// Pressure and spent budgets are bad if true, all others if false.
fn is_good(condition: &Condition) -> bool {
    let is_bad_if_true = condition.kind.ends_with("Pressure") || condition.kind.ends_with("Spent");
    condition.status == if is_bad_if_true { "False" } else { "True" }
}

/// Escapes control characters in foreign text.
fn text(text: &str) -> String {
    cell(&Value::from(text))
}

fn render(lines: &[(&str, String)], problems: &[String]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default() + 1;
    let mut out = String::new();
    let well = if problems.is_empty() { "yes" } else { "no" };
    for (name, value) in std::iter::once(&("All well", well.to_owned())).chain(lines) {
        out.push_str(&format!("{:<width$}   {value}\n", format!("{name}:")));
    }
    for problem in problems {
        out.push_str(&format!("- {problem}\n"));
    }
    if !problems.is_empty() {
        out.push_str("'edgesync check' says what to do, 'edgesync status -v' all there is to know.\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_admin::agent::LinkState;
    use edgesync_admin::samples;

    #[test]
    fn a_healthy_status_takes_ten_lines() {
        let shown = summary(&samples::status());
        assert!(shown.starts_with("All well:      yes\nNode:          edge-1, "), "{shown}");
        assert!(shown.lines().count() <= 10, "{shown}");
        for line in [
            "In sync:       yes",
            "Objects:       3 held",
            "Database:      works, 4.0 KiB",
            "Certificate:   good, until 2027-11-21T10:00:00Z",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
    }

    #[test]
    fn every_problem_is_listed() {
        let mut status = samples::status();
        status.link.state = LinkState::Disconnected;
        status.link.since = None;
        status.link.cause = Some("nothing listens".to_owned());
        status.link.retry_in_seconds = Some(9.7);
        status.rejected = vec![samples::rejected()];
        status.conditions[1].status = "True".to_owned();
        status.conditions[1].message = "less than 256 MiB are free".to_owned();
        status.sync.held_back = 60;
        let shown = summary(&status);
        for words in [
            "All well:      no",
            "disconnected from mqtts://b:8883: nothing listens; tries again within 9.7 s",
            "- no connection to the cloud: nothing listens\n",
            "Certificate:   good by its dates, until 2027-11-21T10:00:00Z\n",
            "- ConfigMap plant/big is rejected, TooLarge: must be at most 9 bytes\n",
            "- less than 256 MiB are free\n",
            "confirm-deletions",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
    }
}
