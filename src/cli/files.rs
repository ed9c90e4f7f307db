//! `edgesync files`: what is in effect, and having it so; and the helper that writes files.

use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::args_edge::{ShowArgs, SocketArgs};
use edgesync_api::{Address, Client};
use edgesync_cli::output::{NONE, Output, Table, age, cell, render};
use edgesync_cli::{CliError, EXIT_FAILED, program, records};
use edgesync_helper as helper;
use edgesync_helper::HelperError;
use edgesync_runtime::log::Log;

/// Where the agent is asked.
const FILES_PATH: &str = "/edgesync/v1/files";
/// The longest message in a table, in characters.
const SHOWN: usize = 80;

/// Shows rules and objects.
pub(super) fn show(ShowArgs { output, socket }: ShowArgs) -> anyhow::Result<u8> {
    program::ask(async |terminal| {
        records::answer(
            &client(socket),
            FILES_PATH,
            output.output,
            |said| tables(said, Timestamp::now()),
            terminal,
        )
        .await
    })
}

/// Shows what would be done.
pub(super) fn check(ShowArgs { output, socket }: ShowArgs) -> anyhow::Result<u8> {
    let path = format!("{FILES_PATH}/check");
    program::ask(async |terminal| {
        records::answer(&client(socket), &path, output.output, steps, terminal).await
    })
}

/// Brings the objects of a rule into effect. Exit code 1 if one of them is not.
pub(super) fn apply(rule: &str, ShowArgs { output, socket }: ShowArgs) -> anyhow::Result<u8> {
    let path = format!("{FILES_PATH}/apply/{rule}");
    let mut is_good = true;
    let code = program::ask(async |terminal| {
        let done: Value = client(socket).post(&path, &json!({})).await?;
        is_good = done["notInEffect"] == 0 && done["conflicts"] == 0;
        let text = match output.output {
            Output::Yaml | Output::Json => render(&done, output.output)?,
            _ => summary(&done),
        };
        Ok::<_, CliError>(terminal.out.write_all(text.as_bytes())?)
    })?;
    Ok(if is_good { code } else { EXIT_FAILED })
}

/// Runs the helper.
pub(super) fn help(config: &Path, listen: Option<&Path>) -> anyhow::Result<u8> {
    let settings = edgesync_config::load::<edgesync_config::edge::Config>(config)?.config;
    let _log = Log::open(&settings.log)?;
    helper::run(config, listen).map_err(|error| match error {
        HelperError::Config(errors) => anyhow::Error::from(errors),
        other => other.into(),
    })?;
    Ok(0)
}

fn client(socket: SocketArgs) -> Client {
    Client::new(Address::Unix(socket.path))
}

fn rules(said: &Value) -> impl Iterator<Item = &Value> {
    said["rules"].as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn tables(said: &Value, now: Timestamp) -> String {
    let mut summary = Table::new(["rule", "in effect", "not", "conflicts", "files", "reloads", "put back"]);
    let mut objects = Table::new(["rule", "kind", "object", "state", "version", "in effect", "since", "why"]);
    for rule in rules(said) {
        let fields = ["name", "inEffect", "notInEffect", "conflicts", "files", "reloads", "rollbacks"];
        summary.row(fields.map(|field| cell(&rule[field])));
        for object in rule["objects"].as_array().into_iter().flatten() {
            let since = object["since"].as_i64().and_then(|micros| Timestamp::from_microsecond(micros).ok());
            let parts = [text(object, "namespace"), text(object, "name")];
            let why = text(object, "message").lines().last().unwrap_or_default();
            objects.row([
                cell(&rule["name"]),
                cell(&object["kind"]),
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"),
                cell(&object["state"]),
                cell(&object["wanted"]),
                cell(&object["version"]),
                since.map_or_else(|| NONE.to_owned(), |since| age(now, &since.to_string())),
                cell(&Value::String(why.chars().take(SHOWN).collect())),
            ]);
        }
    }
    if summary.is_empty() {
        return "There are no rules, see docs/files.md\n".to_owned();
    }
    let mut out = summary.render();
    if !objects.is_empty() {
        out.push('\n');
        out.push_str(&objects.render());
    }
    for rule in rules(said).filter(|rule| rule["notInEffect"] != 0 && !text(rule, "output").is_empty()) {
        out.push_str(&format!(
            "\nWhat was said last for {}:\n{}\n",
            cell(&rule["name"]),
            printable(text(rule, "output"))
        ));
    }
    out
}

/// Lines of a program: what moves a terminal stays out.
fn printable(text: &str) -> String {
    text.trim().chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

fn steps(said: &Value) -> String {
    let mut out = String::new();
    for rule in rules(said) {
        let steps = rule["steps"].as_array().into_iter().flatten();
        let lines: Vec<String> = steps.map(|step| format!("  {}\n", cell(step))).collect();
        let what = if lines.is_empty() { "nothing to do" } else { "would" };
        out.push_str(&format!("{}: {what}\n{}", cell(&rule["name"]), lines.concat()));
    }
    if out.is_empty() { "There are no rules, see docs/files.md\n".to_owned() } else { out }
}

fn summary(rule: &Value) -> String {
    let count = |field: &str| rule[field].as_u64().unwrap_or(0);
    let mut out = format!(
        "{}: {} objects in effect, {} not, {} in conflict\n",
        cell(&rule["name"]),
        count("inEffect"),
        count("notInEffect"),
        count("conflicts")
    );
    if count("notInEffect") > 0 && !text(rule, "output").is_empty() {
        out.push_str(&format!("{}\n", printable(text(rule, "output"))));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_objects_are_tables_and_the_words_of_programs_stand_below() {
        let object = json!({
            "kind": "ConfigMap", "namespace": "plant", "name": "web", "state": "NotInEffect", "wanted": "8",
            "version": "7", "since": 1_700_000_000_000_000_i64, "message": "nginx: exit status: 1:\n[emerg] no"
        });
        let said = json!({ "rules": [{
            "name": "nginx", "inEffect": 0, "notInEffect": 1, "conflicts": 0, "files": 2, "reloads": 3,
            "rollbacks": 1, "output": "[emerg]\u{1b} no", "objects": [object]
        }] });
        let now = Timestamp::from_second(1_700_000_060).unwrap();
        let expected = "\
RULE    IN EFFECT   NOT   CONFLICTS   FILES   RELOADS   PUT BACK
nginx   0           1     0           2       3         1

RULE    KIND        OBJECT      STATE         VERSION   IN EFFECT   SINCE   WHY
nginx   ConfigMap   plant/web   NotInEffect   8         7           60s     [emerg] no

What was said last for nginx:
[emerg] no
";
        assert_eq!(tables(&said, now), expected);
        assert!(tables(&json!({}), now).contains("no rules"));
    }

    #[test]
    fn what_would_be_done_stands_below_its_rule() {
        let said =
            json!({ "rules": [{ "name": "a", "steps": ["remove /x"] }, { "name": "b", "steps": [] }] });
        assert_eq!(steps(&said), "a: would\n  remove /x\nb: nothing to do\n");
        let done = json!({ "name": "a", "inEffect": 1, "notInEffect": 0, "conflicts": 0 });
        assert_eq!(summary(&done), "a: 1 objects in effect, 0 not, 0 in conflict\n");
    }
}
