//! `edgesync-cloud rollout`: shows and moves the roll-outs of rules.

use std::time::Duration;

use serde_json::Value;

use super::args_cloud::{RolloutArgs, RolloutCommands, ServerArgs, ShowRolloutArgs};
use super::server::{body, client};
use edgesync_admin::cloud::{RolloutAction, RolloutCommand, RolloutStatus};
use edgesync_admin::{Route, read};
use edgesync_api::Client;
use edgesync_cli::output::{Output, Table, cell, render};
use edgesync_cli::{CliError, Terminal};

/// Interval between two requests with `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// Runs a command.
///
/// # Errors
/// The rule has no roll-out, the command is refused, or the request fails.
pub(super) async fn run(command: RolloutCommands, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    match command {
        RolloutCommands::Status(args) => status(args, terminal).await,
        RolloutCommands::History(RolloutArgs { rule, server }) => {
            let shown = status_of(&client(server).await?, &rule).await?;
            Ok(terminal.out.write_all(format_history(&shown).as_bytes())?)
        }
        RolloutCommands::Pause(RolloutArgs { rule, server }) => {
            let command = |_: &RolloutStatus| Ok(request(RolloutAction::Pause));
            change(&rule, server, command, terminal).await
        }
        RolloutCommands::Resume(RolloutArgs { rule, server }) => {
            let command = |shown: &RolloutStatus| {
                Ok(RolloutCommand { reason: shown.paused.clone(), ..request(RolloutAction::Resume) })
            };
            change(&rule, server, command, terminal).await
        }
        RolloutCommands::Promote { revision, args: RolloutArgs { rule, server } } => {
            let command = |shown: &RolloutStatus| {
                let (number, open) = newest(shown, revision)?;
                let request = request(RolloutAction::Promote);
                Ok(RolloutCommand { revision: Some(number), open: Some(open), ..request })
            };
            change(&rule, server, command, terminal).await
        }
        RolloutCommands::Undo { revision, override_windows, args: RolloutArgs { rule, server } } => {
            let command = |shown: &RolloutStatus| {
                let (number, _) = newest(shown, revision)?;
                let request = request(RolloutAction::Undo);
                Ok(RolloutCommand { revision: Some(number), override_windows, ..request })
            };
            change(&rule, server, command, terminal).await
        }
    }
}

/// Shows the status, with `--watch` again whenever it changes.
async fn status(args: ShowRolloutArgs, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let ShowRolloutArgs { rule, watch, output, server } = args;
    let client = client(server).await?;
    let mut before = String::new();
    loop {
        let answer: Value = client.get(&Route::RolloutStatus(&rule).path()).await?;
        let text = match output.output {
            Output::Yaml | Output::Json => render(&answer, output.output)?,
            _ => format_status(&read(&answer)?),
        };
        if text != before {
            terminal.out.write_all(text.as_bytes())?;
            terminal.out.flush()?;
            before = text;
        }
        if !watch {
            return Ok(());
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

async fn status_of(client: &Client, rule: &str) -> Result<RolloutStatus, CliError> {
    let answer: Value = client.get(&Route::RolloutStatus(rule).path()).await?;
    Ok(read(&answer)?)
}

/// Sends a command that names what the status shows now, and shows the status after it.
async fn change(
    rule: &str,
    server: ServerArgs,
    command: impl FnOnce(&RolloutStatus) -> Result<RolloutCommand, CliError>,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let client = client(server).await?;
    let command = command(&status_of(&client, rule).await?)?;
    let answer: Value = client.post(&Route::MoveRollout(rule).path(), &body(&command)?).await?;
    Ok(terminal.out.write_all(format_status(&read(&answer)?).as_bytes())?)
}

fn request(action: RolloutAction) -> RolloutCommand {
    RolloutCommand { action, revision: None, open: None, reason: None, override_windows: false }
}

/// Returns number and open waves of the newest revision, if it is the one that was named.
fn newest(shown: &RolloutStatus, named: Option<u64>) -> Result<(u64, usize), CliError> {
    let Some(top) = shown.revisions.last() else {
        return Err(CliError::Usage(format!("rule '{}' has no revision yet", shown.rule)));
    };
    match named.filter(|named| *named != top.number) {
        Some(named) => Err(CliError::Usage(format!(
            "revision {named} is not the newest one of rule '{}', which is {}",
            shown.rule, top.number
        ))),
        None => Ok((top.number, top.open)),
    }
}

/// Formats a status: conditions, revisions, waves, failures.
fn format_status(shown: &RolloutStatus) -> String {
    let mut out = format!("Rule: {}\n", text(&shown.rule));
    if !shown.valid {
        out.push_str("The field rollout of the rule is invalid; the last valid one stays in force.\n");
    }
    let mut conditions = Table::new(["condition", "status", "reason", "message"]);
    for condition in &shown.conditions {
        let status = if condition.status { "True" } else { "False" };
        let (kind, reason) = (text(&condition.r#type), text(&condition.reason));
        conditions.row([kind, status.to_owned(), reason, text(&condition.message)]);
    }
    let mut revisions = Table::new(["revision", "waves", "objects", "started", "good since"]);
    for (index, revision) in shown.revisions.iter().enumerate() {
        let waves = match index {
            0 => "stable".to_owned(),
            _ => format!("{} of {}", revision.open, shown.waves.len()),
        };
        let objects = revision.objects.map_or_else(|| "lost".to_owned(), |objects| objects.to_string());
        let good_since = revision.good_since.as_deref().map_or_else(|| cell(&Value::Null), text);
        revisions.row([revision.number.to_string(), waves, objects, text(&revision.started_at), good_since]);
    }
    let headers = ["wave", "selector", "percent", "nodes", "good", "pending", "waiting", "failed", "away"];
    let mut waves = Table::new(headers);
    for (index, wave) in shown.waves.iter().enumerate() {
        let percent = wave.percent.map_or_else(|| cell(&Value::Null), |percent| percent.to_string());
        let (good, numbers) =
            (wave.good + wave.held_only, [wave.pending, wave.waiting, wave.failed, wave.away]);
        let head = [(index + 1).to_string(), text(&wave.selector), percent, wave.nodes.to_string()];
        let counts = [good].into_iter().chain(numbers).map(|count| count.to_string());
        waves.row(head.into_iter().chain(counts));
    }
    for table in [conditions, revisions, waves] {
        out.push('\n');
        out.push_str(&table.render());
    }
    for failed in shown.waves.iter().flat_map(|wave| &wave.failures) {
        out.push_str(&format!("failed: {}: {}\n", text(&failed.node), text(&failed.message)));
    }
    out
}

/// Formats the revisions that have ended, the newest first.
fn format_history(shown: &RolloutStatus) -> String {
    let mut table = Table::new(["revision", "waves", "outcome", "started", "ended", "by"]);
    for ended in shown.history.iter().rev() {
        let (started, finished) = (text(&ended.started_at), text(&ended.ended_at));
        let (number, open) = (ended.number.to_string(), ended.open.to_string());
        table.row([number, open, text(&ended.outcome), started, finished, text(&ended.by)]);
    }
    table.render()
}

/// Escapes control characters in foreign text.
fn text(text: &str) -> String {
    cell(&Value::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_admin::samples;

    #[test]
    fn status_shows_conditions_waves_and_failures() {
        let text = format_status(&samples::rollout_status());
        assert!(text.starts_with("Rule: plant/config\n"), "{text}");
        assert!(text.contains("FailuresExceeded"), "{text}");
        assert!(text.contains("failed: edge-7: v1/ConfigMap plant/a: NotInEffect\n"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("2 ") && line.contains("1 of 2")), "{text}");
    }

    #[test]
    fn command_names_the_newest_revision_only() {
        let shown = samples::rollout_status();
        assert_eq!(newest(&shown, None).unwrap(), (2, 1));
        assert_eq!(newest(&shown, Some(2)).unwrap(), (2, 1));
        assert!(newest(&shown, Some(1)).unwrap_err().to_string().contains("not the newest"));
    }

    #[test]
    fn history_begins_with_the_newest_revision() {
        let text = format_history(&samples::rollout_status());
        assert!(text.lines().nth(1).is_some_and(|line| line.contains("Superseded")), "{text}");
    }
}
