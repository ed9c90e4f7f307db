//! Every command that a message recommends: `edgesync` and `edgesync-cloud` as their command lines are defined, `systemctl`
//! with units that the packages have.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use clap::CommandFactory as _;
use clap::error::ErrorKind;
use edgesync::cli::args_edge::EdgeArgs;
use edgesync_cloud::cli::args_cloud::CloudArgs;
use proc_macro2::{TokenStream, TokenTree};

use super::sources::{is_test, product};

/// What systemctl is asked for.
const VERBS: [&str; 7] = ["start", "stop", "restart", "enable", "disable", "status", "daemon-reload"];

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

/// The commands in a message: between quotation marks, or the whole of it up to its first comma.
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
    // Without quotation marks a message is a command if its second word is one: the others are sentences.
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

/// The words of a command, with something in the place of what is filled in.
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

/// What is wrong with a command.
fn problem(command: &str) -> Option<String> {
    let words = words(command);
    let parsed = match words[0].as_str() {
        "edgesync" => EdgeArgs::command().try_get_matches_from(&words),
        "edgesync-cloud" => CloudArgs::command().try_get_matches_from(&words),
        _ => return unit_problem(&words),
    };
    let error = parsed.err()?;
    match error.kind() {
        // It is named, not written out.
        ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => None,
        // What is filled in was not.
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
fn every_command_that_a_message_recommends_exists() {
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
fn a_command_that_does_not_exist_is_found() {
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
