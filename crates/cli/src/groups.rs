//! Groups of the commands in `--help`, as in `kubectl`.

use std::fmt::Write as _;

use clap::Command;

/// Headings and their commands, of both programs, in the order of the help.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Basic Commands", &["run", "join", "status", "sync", "get", "apply", "delete"]),
    (
        "Nodes",
        &[
            "nodes",
            "node",
            "syncs",
            "files",
            "hold",
            "holds",
            "release",
            "confirm-deletions",
            "rollout",
            "page",
        ],
    ),
    ("Enrollment", &["token", "operator", "kubeconfig", "broker-config", "signer"]),
    ("Troubleshooting", &["check", "explain-placement", "events", "traffic", "support-bundle"]),
    ("Maintenance", &["verify", "backup", "restore", "repair", "seal"]),
    (OTHER, &["check-config", "completions", "files-helper"]),
];
/// Heading of commands that no group names.
const OTHER: &str = "Other Commands";

/// Returns the command with a help that lists its subcommands by group, if it has any.
#[must_use]
pub fn grouped(command: Command) -> Command {
    if !command.has_subcommands() {
        return command;
    }
    let list = list(&command);
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// Returns the visible subcommands that are not in exactly one group.
#[must_use]
pub fn ungrouped(command: &Command) -> Vec<&str> {
    let groups_of = |name: &str| GROUPS.iter().filter(|(_, names)| names.contains(&name)).count();
    visible(command).map(|(name, _)| name).filter(|name| groups_of(name) != 1).collect()
}

/// Returns names and descriptions of the subcommands in the help.
fn visible(command: &Command) -> impl Iterator<Item = (&str, String)> {
    let shown = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    shown.map(|subcommand| {
        let about = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
        (subcommand.get_name(), about)
    })
}

/// Formats the subcommands under their headings, in the order of their groups.
fn list(command: &Command) -> String {
    let subcommands: Vec<(&str, String)> = visible(command).collect();
    let width = subcommands.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let ungrouped = ungrouped(command);
    let mut out = String::new();
    for (heading, names) in GROUPS {
        let rest = if heading == OTHER { ungrouped.as_slice() } else { &[] };
        let lines = names.iter().chain(rest).filter_map(|name| {
            let (name, about) = subcommands.iter().find(|(found, _)| found == name)?;
            Some(format!("  {name:<width$}  {about}\n"))
        });
        let lines: String = lines.collect();
        if !lines.is_empty() {
            let _ = writeln!(out, "{heading}:\n{lines}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        let subcommand = |name: &'static str| Command::new(name).about(format!("About {name}"));
        Command::new("x")
            .about("A program")
            .after_help("Exit codes: 0")
            .disable_help_subcommand(true)
            .subcommands([
                subcommand("backup"),
                subcommand("run"),
                subcommand("new"),
                subcommand("hidden").hide(true),
                subcommand("nodes"),
            ])
    }

    #[test]
    fn subcommands_are_listed_under_their_headings() {
        let help = grouped(program()).render_help().to_string();
        let expected = "\
A program

Usage: x [COMMAND]

Basic Commands:
  run     About run

Nodes:
  nodes   About nodes

Maintenance:
  backup  About backup

Other Commands:
  new     About new

Options:
  -h, --help  Print help

Exit codes: 0
";
        assert_eq!(help, expected);
    }

    #[test]
    fn a_subcommand_without_a_group_is_found() {
        assert_eq!(ungrouped(&program()), ["new"]);
    }

    #[test]
    fn no_command_is_in_two_groups() {
        let mut names: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
