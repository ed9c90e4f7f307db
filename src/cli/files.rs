//! The command `edgesync files`: lists, plans and applies; and the helper that writes files.

use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::args_edge::{ShowArgs, SocketArgs};
use super::holds;
use edgesync_admin::agent::{FilesCheck, FilesList, FilesRule, RulePlan};
use edgesync_admin::{Route, read};
use edgesync_api::{Address, Client};
use edgesync_cli::output::{NONE, Table, age, cell};
use edgesync_cli::{EXIT_FAILED, program, records};
use edgesync_helper as helper;
use edgesync_helper::HelperError;
use edgesync_runtime::log::Log;

/// Maximum characters of a message in a table.
const MAX_MESSAGE_CHARS: usize = 80;

/// Prints rules and objects.
pub(super) fn show(ShowArgs { output, socket }: ShowArgs) -> anyhow::Result<u8> {
    program::run_command(async |terminal| {
        records::answer(
            &client(socket),
            Route::Files,
            output.output,
            |answer| tables(answer, Timestamp::now()),
            terminal,
        )
        .await
    })
}

/// Prints the plan of all rules.
pub(super) fn check(ShowArgs { output, socket }: ShowArgs) -> anyhow::Result<u8> {
    program::run_command(async |terminal| {
        records::answer(&client(socket), Route::CheckFiles, output.output, steps, terminal).await
    })
}

/// Applies the objects of a rule. Exit code 1 if one of them is not in effect.
pub(super) fn apply(rule: &str, ShowArgs { output, socket }: ShowArgs) -> anyhow::Result<u8> {
    let path = Route::ApplyFiles(rule).path();
    let mut is_good = true;
    let code = program::run_command(async |terminal| {
        let done: Value = client(socket).post(&path, &json!({})).await?;
        let rule: FilesRule = read(&done)?;
        is_good = rule.not_in_effect == 0 && rule.conflicts == 0 && rule.waiting == 0;
        records::print(&done, output.output, |_| Ok(summary(&rule)), terminal)
    })?;
    Ok(if is_good { code } else { EXIT_FAILED })
}

/// Runs the helper until it is stopped.
pub(super) fn help(config: &Path, sockets: Option<helper::OwnSockets<'_>>) -> anyhow::Result<u8> {
    let settings = edgesync_config::load::<edgesync_config::edge::Config>(config)?.config;
    let _log = Log::open(&settings.log)?;
    helper::run(config, sockets).map_err(|error| match error {
        HelperError::Config(errors) => anyhow::Error::from(errors),
        other => other.into(),
    })?;
    Ok(0)
}

fn client(socket: SocketArgs) -> Client {
    Client::new(Address::Unix(socket.path))
}

fn tables(answer: &FilesList, now: Timestamp) -> String {
    let mut summary = Table::new([
        "rule",
        "in effect",
        "waiting",
        "not in effect",
        "conflicts",
        "files",
        "reloads",
        "rollbacks",
    ]);
    let mut objects = Table::new(["rule", "kind", "object", "state", "desired", "current", "age", "message"]);
    for rule in &answer.rules {
        let numbers = [
            rule.in_effect,
            rule.waiting,
            rule.not_in_effect,
            rule.conflicts,
            rule.files,
            rule.reloads,
            rule.rollbacks,
        ];
        summary.row([text(&rule.name)].into_iter().chain(numbers.map(|number| number.to_string())));
        for object in &rule.objects {
            let since = Timestamp::from_microsecond(object.since).ok();
            let parts = [object.namespace.as_str(), object.name.as_str()];
            let message = match &object.reason {
                Some(reason) => holds::wait(reason, object.until, &object.message),
                None => object.message.lines().last().unwrap_or_default().to_owned(),
            };
            objects.row([
                text(&rule.name),
                text(&object.kind),
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"),
                object.state.name().to_owned(),
                text(object.desired.as_deref().unwrap_or_default()),
                text(object.version.as_deref().unwrap_or_default()),
                since.map_or_else(|| NONE.to_owned(), |since| age(now, &since.to_string())),
                text(&message.chars().take(MAX_MESSAGE_CHARS).collect::<String>()),
            ]);
        }
    }
    if summary.is_empty() {
        return "No rules configured; see docs/files.md\n".to_owned();
    }
    let mut out = summary.render();
    if !objects.is_empty() {
        out.push('\n');
        out.push_str(&objects.render());
    }
    if !answer.holds.is_empty() {
        out.push('\n');
        out.push_str(&holds::table(&answer.holds, now));
    }
    for rule in answer.rules.iter().filter(|rule| rule.not_in_effect > 0 && !rule.output.is_empty()) {
        let (name, output) = (text(&rule.name), printable(&rule.output));
        out.push_str(&format!("\nLast output of rule {name}:\n{output}\n"));
    }
    out
}

fn text(text: &str) -> String {
    cell(&Value::from(text))
}

/// Removes control characters except line breaks from a program's output.
fn printable(text: &str) -> String {
    text.trim().chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

fn steps(answer: &FilesCheck) -> String {
    let mut out = String::new();
    for RulePlan { name, steps } in &answer.rules {
        let lines: String = steps.iter().map(|step| format!("  {}\n", text(step))).collect();
        let what = if lines.is_empty() { "no changes" } else { "planned changes" };
        out.push_str(&format!("{}: {what}\n{lines}", text(name)));
    }
    if out.is_empty() { "No rules configured; see docs/files.md\n".to_owned() } else { out }
}

fn summary(rule: &FilesRule) -> String {
    let mut out = format!(
        "{}: {} objects in effect, {} waiting, {} not in effect, {} in conflict\n",
        text(&rule.name),
        rule.in_effect,
        rule.waiting,
        rule.not_in_effect,
        rule.conflicts
    );
    if let Some(wait) = &rule.wait {
        out.push_str(&format!("{}\n", text(&holds::wait(&wait.reason, wait.until, &wait.message))));
    }
    if rule.not_in_effect > 0 && !rule.output.is_empty() {
        out.push_str(&format!("{}\n", printable(&rule.output)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_admin::samples;

    #[test]
    fn tables_show_rules_and_objects_above_program_output() {
        let now = Timestamp::from_second(1_700_000_060).unwrap();
        let expected = "\
RULE    IN EFFECT   WAITING   NOT IN EFFECT   CONFLICTS   FILES   RELOADS   ROLLBACKS
nginx   0           0         1               0           2       3         1

RULE    KIND        OBJECT      STATE         DESIRED   CURRENT   AGE   MESSAGE
nginx   ConfigMap   plant/web   NotInEffect   8         7         60s   [emerg] no

Last output of rule nginx:
[emerg] no
";
        assert_eq!(tables(&samples::files(), now), expected);
        assert!(tables(&FilesList { rules: Vec::new(), holds: Vec::new() }, now).contains("No rules"));
    }

    #[test]
    fn planned_steps_follow_their_rule() {
        assert_eq!(steps(&samples::files_check()), "a: planned changes\n  remove /x\nb: no changes\n");
        let mut done = samples::files().rules.remove(0);
        (done.name, done.in_effect, done.not_in_effect) = ("a".to_owned(), 1, 0);
        assert_eq!(summary(&done), "a: 1 objects in effect, 0 waiting, 0 not in effect, 0 in conflict\n");
    }
}
