//! The program `edgesync-demo`: runs a cloud side and an agent as processes, cuts the link between
//! them, and compares every object on both sides at the end. It uses only the public API and the
//! output of the programs, as any user could. Read `story` first.

mod apply;
mod compare;
mod files;
mod objects;
mod processes;
mod program;
mod proxy;
mod report;
mod screen;
mod stage;
mod story;
mod verdict;

use std::io::{self, Write};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use edgesync_api::ClientError;
use edgesync_cli::{CliError, EXIT_FAILED};
use edgesync_runtime::chain;

pub use program::main;

use files::NODE;
use processes::{Workspace, last_lines};
use report::{Outcome, seconds};
use screen::Screen;
use stage::Stage;
use verdict::Check;

/// Exit code after Ctrl-C: 128 + SIGINT, as in shells.
const EXIT_INTERRUPTED: u8 = 130;
/// Time limit of each step, without the allowance for objects.
const STEP_LIMIT: Duration = Duration::from_secs(60);
/// Allowance per object: a slow disk commits a few hundred per second.
const OBJECT_LIMIT: Duration = Duration::from_millis(5);
/// Lines of each log shown after a failure.
const LOG_LINES: usize = 12;

/// Explanation of the table's columns.
const LEGEND: &str = "\
Reported: persisted by the node and confirmed by the cloud; a restart repeats the
rest. Skipped: not sent, the node held it already. Down, up: bytes of TCP payload to
and from the node, compressed, MQTT included. Time: until the kill; then from the
node's connection until both sides are in sync.
";

/// Options of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoOptions {
    /// Number of objects to apply; at least 20.
    pub objects: u32,
    /// Whether everything keeps running at the end until Ctrl-C.
    pub keep: bool,
}

/// Error that ends the demo early.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error("{what}")]
    Io { what: String, source: io::Error },
    #[error("{process} ended by itself: {how}")]
    Ended { process: &'static str, how: String },
    #[error("waited {} s for {awaited}; {seen}", limit.as_secs())]
    TimedOut { awaited: String, limit: Duration, seen: String },
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    List(#[from] CliError),
    #[error("{0}")]
    Unexpected(String),
}

impl DemoError {
    fn io(what: String, source: io::Error) -> Self {
        Self::Io { what, source }
    }
}

/// Runs the demo and prints its progress to `out`, with a progress line on a terminal. Returns the
/// exit code: 0 if both sides are equal and all checks pass, 1 if not, 130 after Ctrl-C.
pub async fn run(options: DemoOptions, out: &mut dyn Write, is_terminal: bool) -> u8 {
    let mut screen = Screen::new(out, is_terminal);
    let setup = Interrupt::new()
        .map_err(|source| DemoError::io("install signal handlers".into(), source))
        .and_then(|interrupt| Ok((interrupt, Workspace::create()?)));
    let (mut interrupt, mut workspace) = match setup {
        Ok(setup) => setup,
        Err(error) => {
            screen.print(&format!("error: {}", chain(&error)));
            return EXIT_FAILED;
        }
    };
    let mut stage = None;
    let result_of_play = tokio::select! {
        result_of_play = play(options, &workspace, &mut stage, &mut screen) => Some(result_of_play),
        () = interrupt.wait() => None,
    };
    screen.clear();
    let code = match result_of_play {
        None => EXIT_INTERRUPTED,
        Some(Ok(true)) => 0,
        Some(Ok(false)) => EXIT_FAILED,
        Some(Err(error)) => {
            screen.print(&format!("\nFAILED: {}", chain(&error)));
            EXIT_FAILED
        }
    };
    if let (true, Some(stage)) = (options.keep && code != EXIT_INTERRUPTED, &stage) {
        // A cloud side that has just failed may not answer.
        let page = stage.page().await.unwrap_or_else(|error| format!("page unavailable: {}", chain(&error)));
        screen.print(&how_to_look(stage, &workspace, &page));
        interrupt.wait().await;
    }
    drop(stage);
    match code {
        EXIT_FAILED => {
            screen.print(&tails(&workspace));
            workspace.keep();
        }
        EXIT_INTERRUPTED => screen.print("\nInterrupted: all processes stopped, all files removed."),
        _ => {}
    }
    code
}

async fn play<'a>(
    options: DemoOptions,
    workspace: &'a Workspace,
    stage: &mut Option<Stage<'a>>,
    screen: &mut Screen<'_>,
) -> Result<bool, DemoError> {
    let began = Instant::now();
    let objects = count(options.objects.into());
    screen.print(&format!("edgesync demo: a cloud side, a node, {objects} objects, a link that gets cut\n"));
    let limit = STEP_LIMIT + OBJECT_LIMIT * options.objects;
    let stage = stage.insert(Stage::open(workspace, limit).await?);
    if let (cloud, Some(agent)) = stage.ids() {
        screen.print(&format!(
            "   cloud side   process {cloud}, API on {}\n   agent        process {agent}, node '{NODE}'\n   \
             files        {}\n",
            stage.cloud_api.address(),
            workspace.path().display()
        ));
    }
    let outcome = story::play(options.objects, stage, screen).await?;
    screen.print(&result(&outcome, began.elapsed()));
    Ok(outcome.verdict().iter().all(|check| check.holds))
}

/// Formats the table, its legend and the verdict.
fn result(outcome: &Outcome, time: Duration) -> String {
    let mut text = format!("\n{}\n{LEGEND}\n", outcome.table());
    let verdict = outcome.verdict();
    for Check { claim, holds, found } in &verdict {
        let line =
            if *holds { format!("ok      {claim}.\n") } else { format!("FAILED  {claim}: {found}.\n") };
        text.push_str(&line);
    }
    for difference in &outcome.comparison.differences {
        text.push_str(&format!("        {difference}\n"));
    }
    let end = if verdict.iter().all(|check| check.holds) {
        "Nothing lost, nothing stale, nothing sent that the node held"
    } else {
        "FAILED: some checks failed"
    };
    text.push_str(&format!("\n{end}. The demo took {}.", seconds(time)));
    text
}

fn how_to_look(stage: &Stage<'_>, workspace: &Workspace, page: &str) -> String {
    let (cloud, agent) = (stage.programs().cloud.display(), stage.programs().agent.display());
    let server = format!("--server {}", stage.cloud_api.address());
    let socket = format!("--socket {}", workspace.file("edgesync.sock").display());
    let file = |name: &str| workspace.file(name).display().to_string();
    let [cloud_log, agent_log] = Stage::logs(workspace);
    format!(
        "\nEverything keeps running until Ctrl-C. In a browser on this machine, open the fleet page:\n\
         \x20 {page}\n\
         In another terminal, commands for the cloud side:\n\
         \x20 {cloud} nodes {server}\n\
         \x20 {cloud} get configmaps -A {server}\n\
         \x20 {cloud} syncs --node {NODE} {server}\n\
         \x20 {cloud} apply -f FILE {server}      (namespace plant-north or plant-south)\n\
         for the node:\n\
         \x20 {agent} status {socket}\n\
         \x20 {agent} get pods -A {socket}\n\
         \x20 {agent} syncs {socket}\n\
         Configurations:\n\
         \x20 {}\n\x20 {}\n\
         Logs:\n\
         \x20 {}\n\x20 {}",
        file("edgesync-cloud.toml"),
        file("edgesync.toml"),
        cloud_log.display(),
        agent_log.display(),
    )
}

/// Returns the last lines of the logs, and their location.
fn tails(workspace: &Workspace) -> String {
    let mut text = String::new();
    for log in Stage::logs(workspace) {
        let lines = last_lines(&log, LOG_LINES);
        if !lines.is_empty() {
            text.push_str(&format!("\n--- last lines of {}\n{}\n", log.display(), lines.join("\n")));
        }
    }
    format!("{text}\nConfigurations, databases and logs are kept in {}", workspace.path().display())
}

/// SIGINT, SIGTERM or SIGHUP.
struct Interrupt([Signal; 3]);

impl Interrupt {
    fn new() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn wait(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Formats a number with thousands separators.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with a noun.
fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        for (number, expected) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), expected);
        }
        assert_eq!(plural(1, "inventory", "inventories"), "1 inventory");
    }

    #[test]
    fn error_is_shown_with_its_cause() {
        let error = DemoError::io("create /x".into(), io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(chain(&error), "create /x: permission denied");
    }

    #[test]
    fn result_lists_failed_checks_and_differences() {
        let mut outcome = Outcome { objects: 20, ..Outcome::default() };
        outcome.comparison.differing = 1;
        outcome.comparison.differences = vec!["Pod a/b: missing on the node".into()];
        let text = result(&outcome, Duration::from_secs(3));
        assert!(text.contains("FAILED  Every object and every ObjectSync record is equal"), "{text}");
        assert!(text.contains("        Pod a/b: missing on the node\n"), "{text}");
        assert!(text.ends_with("FAILED: some checks failed. The demo took 3.00 s."), "{text}");
    }
}
