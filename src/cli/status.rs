//! The command `status`: summarizes the agent's health in a few lines.

use jiff::Timestamp;
use serde_json::Value;

use edgesync_admin::agent::{
    AgentStatus, CloudStatus, Condition, FilesCounts, FilesHold, FilesSummary, FilesWait, ListenStatus,
    RejectedObject,
};
use edgesync_cli::output::{age, cell, size};
use edgesync_protocol::node::FILES_IN_EFFECT;

use super::holds;
use super::traffic::metered_link;

/// Returns the summary of a status, with all problems.
#[must_use]
pub fn summary(status: &AgentStatus) -> String {
    let now = Timestamp::now();
    let mut problems: Vec<String> = Vec::new();
    let mut lines: Vec<(&str, String)> = Vec::new();

    let (version, runs) = (&status.agent.version, age(now, &status.agent.started));
    lines.push(("Node", format!("{}, agent {version} running for {runs}", status.node)));
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
    for (count, words) in [(pending, "pending"), (held, "removals held back")] {
        if count > 0 {
            objects.push_str(&format!(", {count} {words}"));
        }
    }
    if held > 0 {
        problems.push(format!(
            "{held} removals held back; hint: edgesync-cloud confirm-deletions {}",
            status.node
        ));
    }
    lines.push(("Objects", objects));
    let waiting: u64 = status.outbox.values().map(|lane| lane.waiting).sum();
    let unconfirmed = status.sync.unconfirmed;
    if waiting + unconfirmed > 0 {
        lines.push(("Outbox", format!("{waiting} items queued, {unconfirmed} changes unconfirmed")));
    }
    problems.extend(status.rejected.iter().map(rejection));
    // The files have problems of their own, with causes.
    let has_files = status.files.is_some();
    let is_repeated = |condition: &Condition| has_files && condition.kind == FILES_IN_EFFECT;
    let bad = status.conditions.iter().filter(|condition| !is_good(condition) && !is_repeated(condition));
    problems.extend(bad.map(|condition| text(&condition.message)));
    if let Some(files) = &status.files {
        lines.push(("Files", file_states(files, &mut problems)));
    }
    let database = status.store.database_bytes.unwrap_or(0) + status.store.wal_bytes.unwrap_or(0);
    lines.push(("Database", format!("{}, {}", status.store.writing, size(database))));
    if let Some(identity) = &status.identity {
        // Only the cloud knows about a revocation.
        let validity = match identity.validity.as_str() {
            "valid" if !connected => "not expired (revocation not checked)",
            validity => validity,
        };
        lines.push(("Certificate", format!("{validity}, until {}", identity.not_after)));
        if let Some(failure) = &identity.renewal_failure {
            problems.push(format!("certificate renewal failed: {failure}"));
        }
    }
    if matches!(status.api, ListenStatus::Waiting { .. }) {
        problems.push("local API: address in use".to_owned());
    }
    lines.push(("Traffic", format!("{} today", size(status.traffic.bytes_today))));
    if let Some(metered) = &status.metered {
        lines.push(("Metered link", metered_link(metered)));
    }
    render(&lines, &problems)
}

/// Returns the state of the link. Without a connection adds the cause to the problems.
fn link(status: &AgentStatus, now: Timestamp, problems: &mut Vec<String>) -> String {
    let link = &status.link;
    let since = link.since.as_ref().map_or_else(String::new, |since| format!(" for {}", age(now, since)));
    if link.is_connected() {
        return format!("connected{since} to {}", link.broker);
    }
    let spent = status.metered.as_ref().is_some_and(|metered| metered.spent_until.is_some());
    if let Some(at) = link.next_check_in.as_ref().and_then(|next| next.parse::<Timestamp>().ok())
        && spent
    {
        let rest = age(at, &now.to_string());
        return format!("away, the budget of the metered link is spent; next connection in {rest}");
    }
    if let (Some(next), Some(plan)) = (&link.next_check_in, &link.plan)
        && let Ok(at) = next.parse::<Timestamp>()
    {
        let rest = age(at, &now.to_string());
        return format!(
            "away as planned ({plan}), next check-in in {rest}; hint: 'edgesync sync' connects now"
        );
    }
    let cause = link.cause.as_deref().unwrap_or_default();
    problems.push(match cause {
        "" => "no connection to the cloud".to_owned(),
        cause => format!("no connection to the cloud: {cause}"),
    });
    let retry = cell(&link.retry_in_seconds.into());
    format!("disconnected{since} from {}: {cause}; next attempt within {retry} s", link.broker)
}

/// Returns the states of objects in files. Adds a failure of the rules, and objects not in
/// effect, to the problems.
fn file_states(files: &FilesSummary, problems: &mut Vec<String>) -> String {
    problems.extend(files.problem.as_deref().map(text));
    let Some(FilesCounts { in_effect, not_in_effect, conflicts, waiting, .. }) = files.counts() else {
        return "states of objects unknown".to_owned();
    };
    let not = not_in_effect.saturating_add(conflicts);
    // 'edgesync files' needs the helper, and these counts are its last ones.
    if not > 0 && !files.helper_unreachable {
        problems.push(format!("{not} objects not in effect in files; hint: 'edgesync files' for the causes"));
    }
    let mut shown = format!("{in_effect} objects in effect, {not} not in effect");
    if waiting > 0 {
        shown.push_str(&format!(", {waiting} waiting"));
    }
    // A wait is by plan: no problem, but to be seen.
    for FilesWait { rule, reason, until, message } in &files.waits {
        shown.push_str(&format!(
            "\n               {}: {}",
            text(rule),
            text(&holds::wait(reason, *until, message))
        ));
    }
    let is_shown = |hold: &&FilesHold| files.waits.iter().all(|wait| wait.rule != hold.rule);
    for hold in files.holds.iter().filter(is_shown) {
        let (rule, owner, why) = (text(&hold.rule), text(&hold.shown_owner()), text(&hold.why));
        shown.push_str(&format!("\n               {rule}: held by {owner}: {why}"));
    }
    shown
}

fn rejection(rejected: &RejectedObject) -> String {
    let name = match &rejected.object {
        Some(object) => format!("{} {}/{}", object.kind, object.namespace, object.name),
        None => text(&rejected.uid),
    };
    format!("{name} rejected, {}: {}", rejected.reason, text(&rejected.message))
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
    let healthy = if problems.is_empty() { "yes" } else { "no" };
    for (name, value) in std::iter::once(&("Healthy", healthy.to_owned())).chain(lines) {
        out.push_str(&format!("{:<width$}   {value}\n", format!("{name}:")));
    }
    for problem in problems {
        out.push_str(&format!("- {problem}\n"));
    }
    if !problems.is_empty() {
        out.push_str("hint: 'edgesync check' for the next steps, 'edgesync status -v' for all details\n");
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
        assert!(shown.starts_with("Healthy:       yes\nNode:          edge-1, "), "{shown}");
        assert!(shown.lines().count() <= 10, "{shown}");
        for line in [
            "In sync:       yes",
            "Objects:       3 held",
            "Database:      works, 4.0 KiB",
            "Certificate:   valid, until 2027-11-21T10:00:00Z",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
    }

    #[test]
    fn all_problems_are_listed() {
        let mut status = samples::status();
        status.link.state = LinkState::Disconnected;
        status.link.since = None;
        status.link.cause = Some("connection refused".to_owned());
        status.link.retry_in_seconds = Some(9.7);
        status.rejected = vec![samples::rejected()];
        status.conditions[1].status = "True".to_owned();
        status.conditions[1].message = "less than 256 MiB are free".to_owned();
        status.sync.held_back = 60;
        let shown = summary(&status);
        for words in [
            "Healthy:       no",
            "disconnected from mqtts://b:8883: connection refused; next attempt within 9.7 s",
            "- no connection to the cloud: connection refused\n",
            "Certificate:   not expired (revocation not checked), until 2027-11-21T10:00:00Z\n",
            "- ConfigMap plant/big rejected, TooLarge: must be at most 9 bytes\n",
            "- less than 256 MiB are free\n",
            "Objects:       3 held, 60 removals held back\n",
            "- 60 removals held back; hint: edgesync-cloud confirm-deletions edge-1\n",
            "hint: 'edgesync check' for the next steps, 'edgesync status -v' for all details\n",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
    }

    #[test]
    fn spent_budget_of_a_metered_link_is_by_plan() {
        let mut status = samples::status();
        status.metered = Some(samples::metered());
        status.link.state = LinkState::Disconnected;
        status.link.next_check_in = Some("2999-01-01T00:00:00Z".to_owned());
        let shown = summary(&status);
        assert!(
            shown.contains("away, the budget of the metered link is spent; next connection in "),
            "{shown}"
        );
        assert!(shown.contains("Metered link:   yes (interface wwan0), 193.4 KiB of 200.0 KiB"), "{shown}");
        assert!(!shown.contains("- no connection"), "{shown}");
    }

    /// A failed check was two problems: the condition of the Node, and the counts of the rules.
    #[test]
    fn problem_of_files_is_listed_once() {
        let mut status = samples::status();
        let files = FilesSummary { in_effect: Some(1), not_in_effect: Some(2), ..samples::files_summary() };
        status.files = Some(files.clone());
        status.conditions[0].kind = FILES_IN_EFFECT.to_owned();
        status.conditions[0].status = "False".to_owned();
        let problems = |status: &AgentStatus| {
            let shown = summary(status);
            shown.lines().filter(|line| line.starts_with("- ")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            problems(&status),
            ["- 2 objects not in effect in files; hint: 'edgesync files' for the causes"]
        );
        let unreachable = "helper unreachable at /run/h.sock: not found; hint: start it";
        let (problem, helper_unreachable) = (Some(unreachable.to_owned()), true);
        status.files = Some(FilesSummary { problem, helper_unreachable, ..files });
        assert_eq!(problems(&status), [format!("- {unreachable}")]);
        assert!(summary(&status).contains("1 objects in effect, 2 not in effect\n"), "{}", summary(&status));
    }

    #[test]
    fn states_of_objects_are_unknown_before_the_first_answer() {
        let mut status = samples::status();
        let files = FilesSummary {
            objects: None,
            in_effect: None,
            not_in_effect: None,
            conflicts: None,
            ..samples::files_summary()
        };
        status.files = Some(files);
        let shown = summary(&status);
        assert!(shown.contains("Files:         states of objects unknown\n"), "{shown}");
    }
}
