//! Checks the commands that messages recommend: `edgesync` and `edgesync-cloud` against their
//! command lines, `systemctl` against the units of the packages.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use clap::CommandFactory as _;
use clap::error::ErrorKind;
use edgesync::cli::args_edge::EdgeArgs;
use edgesync_cloud::cli::args_cloud::CloudArgs;
use proc_macro2::{TokenStream, TokenTree};

use super::sources::{is_test, product};

/// The verbs of systemctl that messages may recommend.
const VERBS: [&str; 9] =
    ["start", "stop", "restart", "enable", "disable", "status", "daemon-reload", "cat", "edit"];

fn root() -> &'static Path {
    edgesync_testkit::programs::root()
}

/// The string literals among some tokens, macros included.
fn literals(tokens: TokenStream, found: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => literals(group.stream(), found),
            TokenTree::Literal(literal) => {
                found.extend(syn::parse_str::<syn::LitStr>(&literal.to_string()).map(|text| text.value()));
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Extracts the commands of a message: those in quotation marks, or the whole text up to its first
/// comma.
fn commands(text: &str) -> Vec<String> {
    let quoted = ['\'', '`', '"'].into_iter().flat_map(|mark| text.split(mark).skip(1).step_by(2));
    let whole = text.lines().map(|line| line.split([',', ';', ':']).next().unwrap_or_default());
    let starts = |part: &str, program: &str| {
        part.strip_prefix(program).is_some_and(|rest| rest.starts_with(' ') && rest.len() > 1)
    };
    let is_command = |part: &&str| {
        ["edgesync", "edgesync-cloud", "systemctl", "journalctl"].iter().any(|program| starts(part, program))
    };
    let quoted = quoted.filter(is_command).map(str::to_owned);
    // Without quotation marks, a message is a command only if its second word is a subcommand.
    let known = |part: &&str| {
        let second = part.split(' ').nth(1).unwrap_or_default();
        let known = |args: clap::Command| args.get_subcommands().any(|command| command.get_name() == second);
        known(EdgeArgs::command()) || known(CloudArgs::command()) || VERBS.contains(&second)
    };
    let whole = whole.map(str::trim).filter(is_command).filter(known).map(str::to_owned);
    let mut all: Vec<String> = quoted.chain(whole).collect();
    all.sort();
    all.dedup();
    all
}

/// Splits a command into words and replaces each placeholder with a value.
fn words(command: &str) -> Vec<String> {
    let mut filled = String::new();
    let mut depth = 0;
    for letter in command.chars() {
        match letter {
            '{' => {
                depth += 1;
                filled.push('x');
            }
            '}' => depth -= 1,
            _ if depth == 0 => filled.push(letter),
            _ => {}
        }
    }
    filled.split_whitespace().map(str::to_owned).collect()
}

/// Returns the parser's complaint about a command.
fn problem(command: &str) -> Option<String> {
    let words = words(command);
    let parsed = match words[0].as_str() {
        "edgesync" => EdgeArgs::command().try_get_matches_from(&words),
        "edgesync-cloud" => CloudArgs::command().try_get_matches_from(&words),
        _ => return unit_problem(&words),
    };
    let error = parsed.err()?;
    match error.kind() {
        // A message may name a command without its arguments, or its help.
        ErrorKind::MissingRequiredArgument
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::DisplayHelp => None,
        // The replacement of a placeholder may have the wrong type.
        ErrorKind::ValueValidation if command.contains('{') => None,
        _ => Some(error.to_string()),
    }
}

fn unit_problem(words: &[String]) -> Option<String> {
    if words[0] == "systemctl" && !VERBS.contains(&words[1].as_str()) {
        return Some(format!("systemctl has no {}", words[1]));
    }
    let units = words.iter().filter(|word| word.starts_with("edgesync"));
    let missing = |unit: &&String| {
        let ending = if unit.ends_with(".socket") { "" } else { ".service" };
        let file = format!("packaging/{}{ending}", unit.trim_end_matches(".service"));
        !root().join(file).exists()
    };
    units.clone().find(missing).map(|unit| format!("there is no unit {unit}"))
}

#[test]
fn recommended_commands_exist() {
    let (mut checked, mut wrong) = (Vec::new(), Vec::new());
    for (file, text) in product().into_iter().filter(|(path, _)| !is_test(path)) {
        let mut texts = Vec::new();
        literals(text.parse().unwrap(), &mut texts);
        for command in texts.iter().flat_map(|text| commands(text)) {
            wrong.extend(problem(&command).map(|why| format!("{file}: {command}: {why}")));
            checked.push(command);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for found in ["edgesync verify --online", "edgesync repair", "edgesync-cloud node admit NODE"] {
        assert!(checked.iter().any(|command| command == found), "{found} was not found in {checked:#?}");
    }
    assert!(checked.len() > 40, "{checked:#?}");
}

#[test]
fn unknown_commands_in_messages_are_found() {
    for bad in [
        "run 'edgesync-cloud admit-node' at the cloud side",
        "edgesync repair --now",
        "see 'systemctl reboot edgesync'",
        "systemctl start edgesync-agent, which runs it",
    ] {
        let found = commands(bad);
        assert!(found.iter().any(|command| problem(command).is_some()), "{bad}: {found:?}");
    }
    for good in ["run 'edgesync check'", "edgesync keeps objects", "'edgesync-cloud node admit {name}' helps"]
    {
        assert!(commands(good).iter().all(|command| problem(command).is_none()), "{good}");
    }
}
