//! The commands in README.md and docs/kubectl.md, run as a new user would, against the output in
//! the documents.
//!
//! A `sh` block has commands. A `console` block has lines that begin with `$ `, each followed by
//! its output, where a line `...` matches any number of lines. One bash runs all of them in order.
//! Values that differ from run to run (times, versions, ids, addresses) are compared by their type.
//! Read-only commands are repeated until their output matches.
// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use edgesync_testkit::kubectl;
use edgesync_testkit::site::{PATIENCE, Site};
use edgesync_testkit::timing::{is_within, receive_within};
use regex_lite::Regex;
use tempfile::TempDir;
use tokio::time::Instant;

/// The default addresses of both programs, which the documents may omit.
const CLOUD_API: &str = "127.0.0.1:10551";
const EDGE_API: &str = "127.0.0.1:10550";
/// Maximum duration of one command.
const LIMIT: Duration = Duration::from_secs(90);
/// The pause before a read-only command is repeated.
const LOOK: Duration = Duration::from_millis(50);
/// The line that marks the end of the output of a command.
const END: &str = "\u{1e}";
/// Matches any number of lines.
const ANY: &str = "...";
/// Lines of each log in the message of a failed test.
const LOG_LINES: usize = 40;

/// A line of a document, numbered from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    number: usize,
    text: String,
}

/// A command and its expected output; `None` for a block of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    document: &'static str,
    number: usize,
    command: String,
    prints: Option<Vec<Line>>,
}

impl Step {
    /// Returns whether the command changes nothing, so that it may be repeated.
    fn reads_only(&self) -> bool {
        let mut words = self.command.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        ["grep", "tail", "curl"].contains(&first)
            || ["get", "nodes", "syncs", "status", "check", "traffic"].contains(&second)
    }

    fn place(&self) -> String {
        format!("{}:{}: {}", self.document, self.number, self.command.lines().next().unwrap_or_default())
    }
}

fn read(document: &str) -> String {
    std::fs::read_to_string(edgesync_testkit::programs::root().join(document)).unwrap()
}

/// Returns the lines of a document, or of one section.
fn lines(document: &str, section: Option<&str>) -> Vec<Line> {
    let text = read(document);
    let all = text.lines().enumerate().map(|(index, text)| Line { number: index + 1, text: text.to_owned() });
    let Some(section) = section else { return all.collect() };
    let heading = format!("## {section}");
    let mut found: Vec<Line> = all.skip_while(|line| line.text != heading).collect();
    assert!(!found.is_empty(), "{document} has no section {section}");
    let rest = found.iter().skip(1).position(|line| line.text.starts_with("## "));
    found.truncate(rest.map_or(found.len(), |length| length + 1));
    found
}

/// Returns the steps in the blocks among these lines.
fn steps(document: &'static str, lines: &[Line]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = lines.iter();
    while let Some(fence) = rest.find(|line| line.text.starts_with("```")) {
        let block: Vec<Line> = rest.by_ref().take_while(|line| line.text != "```").cloned().collect();
        match fence.text.as_str() {
            "```sh" => steps.push(script(document, fence.number, &block)),
            "```console" => steps.extend(session(document, &block)),
            _ => {}
        }
    }
    steps
}

/// Parses a block of commands, without those that build or locate the programs.
fn script(document: &'static str, number: usize, block: &[Line]) -> Step {
    let is_kept = |text: &&str| !text.starts_with("cargo build") && !text.starts_with("export PATH=");
    let kept: Vec<&str> = block.iter().map(|line| line.text.as_str()).filter(is_kept).collect();
    Step { document, number: number + 1, command: kept.join("\n"), prints: None }
}

/// Parses the commands of a block, each with its expected output.
fn session(document: &'static str, block: &[Line]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block {
        if let Some(command) = line.text.strip_prefix("$ ") {
            let (command, prints) = (command.to_owned(), Some(Vec::new()));
            steps.push(Step { document, number: line.number, command, prints });
            continue;
        }
        let prints = steps.last_mut().and_then(|step| step.prints.as_mut());
        let prints =
            prints.unwrap_or_else(|| panic!("{document}:{}: a block begins with a command", line.number));
        prints.push(line.clone());
    }
    steps
}

/// Patterns of varying values, with their replacements.
struct Plain(Vec<(Regex, &'static str)>);

impl Plain {
    fn new() -> Self {
        let rules = [
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
            (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID"),
            (r"\b[1-9]\d{15}\b", "VERSION"),
            (r"\b[0-9a-f]{16,64}\b", "ID"),
            (r"127\.\d+\.\d+\.\d+(:\d+)?", "ADDRESS"),
            // Ages and durations: 5s, 2m3s, 344.271µs, 364 d 23 h.
            (r"\b\d+(\.\d+)? ?(ns|µs|ms|s|m|h|d)( ?\d+(\.\d+)? ?(ns|µs|ms|s|m|h|d))*\b", "DURATION"),
            (r#"(^|[ '"=])/[^ '"]*/"#, "$1/"),
            (" +", " "),
        ];
        Self(rules.map(|(pattern, by)| (Regex::new(pattern).unwrap(), by)).into())
    }

    /// Also replaces every number, for the output of the demo.
    fn without_numbers() -> Self {
        let mut rules = Self::new();
        rules.0.push((Regex::new(r"\d[\d,]*(\.\d+)?").unwrap(), "NUMBER"));
        rules
    }

    fn line(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (pattern, by) in &self.0 {
            text = pattern.replace_all(&text, *by).into_owned();
        }
        text.trim().to_owned()
    }
}

/// Compares the expected with the actual output; `None` if they match.
fn difference(plain: &Plain, shown: &[Line], printed: &[String]) -> Option<String> {
    let printed: Vec<String> = printed.iter().map(|line| plain.line(line)).collect();
    // The numbers of output lines that the expected lines so far can match.
    let mut reached = BTreeSet::from([0]);
    for line in shown {
        let next: BTreeSet<usize> = if line.text == ANY {
            let first = reached.first().copied().unwrap_or_default();
            (first..=printed.len()).collect()
        } else {
            let expected = plain.line(&line.text);
            reached.iter().filter(|at| printed.get(**at) == Some(&expected)).map(|at| at + 1).collect()
        };
        if next.is_empty() {
            let at = reached.first().copied().unwrap_or_default();
            let found = printed.get(at).map_or("the end of the output", String::as_str);
            return Some(format!(
                "line {} is not printed\n  expected: {}\n  found:    {found}",
                line.number, line.text
            ));
        }
        reached = next;
    }
    let at = reached.last().copied().unwrap_or_default();
    printed.get(at).map(|line| format!("more is printed than is shown\n  found:    {line}"))
}

/// The addresses in the documents, with their replacements in this test.
struct Addresses(Vec<(String, String)>);

impl Addresses {
    fn of(steps: &[Step]) -> Self {
        let address = Regex::new(r"127\.0\.0\.1:\d+").unwrap();
        let used = steps.iter().flat_map(|step| address.find_iter(&step.command).map(|found| found.as_str()));
        let all: BTreeSet<&str> = used.chain([CLOUD_API, EDGE_API]).collect();
        Self(all.into_iter().map(|used| (used.to_owned(), Site::address().to_string())).collect())
    }

    fn instead_of(&self, address: &str) -> &str {
        &self.0.iter().find(|(used, _)| used == address).unwrap().1
    }

    fn put_into(&self, command: &str) -> String {
        self.0.iter().fold(command.to_owned(), |command, (used, own)| command.replace(used, own))
    }
}

/// A bash that runs commands; all processes it started end with it.
struct Shell {
    process: Child,
    input: ChildStdin,
    output: Receiver<String>,
    // Dropped after the processes that use it.
    directory: TempDir,
}

impl Shell {
    /// Starts a shell in which both programs listen at these addresses by default.
    fn start(addresses: &Addresses) -> Self {
        let directory = tempfile::Builder::new().prefix("edgesync-readme-").tempdir().unwrap();
        let home = directory.path();
        let programs = Path::new(edgesync_testkit::programs::device()).parent().unwrap();
        assert_eq!(Path::new(edgesync_testkit::programs::cloud()).parent(), Some(programs));
        let tools = home.join("tools");
        std::fs::create_dir(&tools).unwrap();
        symlink(kubectl::kubectl(), tools.join("kubectl")).unwrap();
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = [programs.to_owned(), tools].into_iter().chain(std::env::split_paths(&inherited));

        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc"]).current_dir(home).process_group(0);
        command.env_clear().env("PATH", std::env::join_paths(path).unwrap());
        command.env("HOME", home).env("TMPDIR", home).env("LANG", "C.UTF-8");
        command.env("EDGESYNC_CLOUD_API_LISTEN", addresses.instead_of(CLOUD_API));
        command.env("EDGESYNC_API_LISTEN", addresses.instead_of(EDGE_API));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, input, output, directory }
    }

    /// Runs a command and returns the lines of its output.
    fn run(&mut self, step: &Step, command: &str) -> Vec<String> {
        writeln!(self.input, "{{\n{command}\n}} </dev/null 2>&1\nprintf '\\n{END}\\n'").unwrap();
        let mut lines: Vec<String> = Vec::new();
        loop {
            match receive_within(&self.output, LIMIT) {
                Ok(line) if line == END => break,
                Ok(line) => lines.push(line),
                Err(error) => {
                    let what = match error {
                        RecvTimeoutError::Timeout => "does not end",
                        RecvTimeoutError::Disconnected => "ended the shell",
                    };
                    panic!("{} {what}; it has printed\n{}", step.place(), lines.join("\n"));
                }
            }
        }
        // The line feed before the end mark.
        if lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }
}

/// Returns the last lines of the logs below a directory.
fn logs(directory: &Path) -> String {
    let mut text = String::new();
    let mut open: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for path in std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "log") {
                let log = std::fs::read_to_string(&path).unwrap_or_default();
                let skipped = log.lines().count().saturating_sub(LOG_LINES);
                let end: Vec<&str> = log.lines().skip(skipped).collect();
                let _ = writeln!(text, "=== the end of {}\n{}", path.display(), end.join("\n"));
            }
        }
    }
    text
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = format!("-{}", self.process.id());
        let _ = Command::new("bash").args(["-c", "kill -s KILL -- \"$0\"", &group]).status();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("{}", logs(self.directory.path()));
        }
    }
}

/// Runs a step until its output matches, or once if it changes something.
async fn check(shell: &mut Shell, addresses: &Addresses, plain: &Plain, step: &Step) {
    let command = addresses.put_into(&step.command);
    let start = Instant::now();
    loop {
        let printed = shell.run(step, &command);
        let Some(shown) = &step.prints else { return };
        let Some(difference) = difference(plain, shown, &printed) else { return };
        assert!(
            step.reads_only() && is_within(start.elapsed(), PATIENCE),
            "{}\n{}, {difference}\nIt printed\n{}",
            step.place(),
            step.document,
            printed.join("\n")
        );
        tokio::time::sleep(LOOK).await;
    }
}

#[tokio::test]
async fn documented_commands_print_the_documented_output() {
    let mut all = steps("README.md", &lines("README.md", Some("Five minutes by hand")));
    assert!(all.len() > 10, "the commands of the README were not found");
    let by_hand = all.len();
    all.extend(steps("docs/kubectl.md", &lines("docs/kubectl.md", None)));
    assert!(all.len() > by_hand + 10, "the commands for kubectl were not found");
    let (addresses, plain) = (Addresses::of(&all), Plain::new());
    let mut shell = Shell::start(&addresses);
    for step in &all {
        check(&mut shell, &addresses, &plain, step).await;
    }
}

#[test]
fn demo_prints_the_output_in_the_readme() {
    let shown = steps("README.md", &lines("README.md", Some("Two commands")));
    let step = shown.iter().find(|step| step.command == "edgesync-demo");
    let step = step.unwrap_or_else(|| panic!("README.md does not show the demo: {shown:?}"));
    let temporary = tempfile::tempdir().unwrap();
    let output = Command::new(edgesync_testkit::programs::demo())
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<String> = text.lines().map(str::to_owned).collect();
    let difference = difference(&Plain::without_numbers(), step.prints.as_ref().unwrap(), &printed);
    assert!(output.status.success(), "{text}");
    assert_eq!(difference, None, "{}\n{text}", step.place());
}

fn shown(text: &str) -> Vec<Line> {
    let numbered = text.lines().enumerate();
    numbered.map(|(index, text)| Line { number: index + 1, text: text.to_owned() }).collect()
}

#[test]
fn dots_match_any_lines_and_other_lines_match_exactly() {
    let printed = ["head", "a", "b", "tail"].map(str::to_owned);
    let differs = |text: &str| difference(&Plain::new(), &shown(text), &printed);
    for equal in [
        "head\na\nb\ntail",
        "...",
        "head\n...",
        "...\nb\n...",
        "...\nhead\n...\na\nb\ntail\n...",
        "head\n...\ntail",
    ] {
        assert_eq!(differs(equal), None, "{equal}");
    }
    for (wrong, words) in [
        ("head\nb\n...", "line 2 is not printed\n  expected: b\n  found:    a"),
        ("head\na\nb", "more is printed than is shown\n  found:    tail"),
        ("...\ntail\nmore", "line 3 is not printed"),
        ("...\nb\na\n...", "line 3 is not printed"),
        ("", "found:    head"),
    ] {
        let message = differs(wrong).unwrap_or_default();
        assert!(message.contains(words), "{wrong}: {message}");
    }
}

#[test]
fn varying_values_are_compared_by_their_type() {
    let plain = Plain::new();
    for (one, other) in [
        ("line-1   1      1s", "line-1   1      2m3s"),
        (
            "valid until 2027-11-21T14:55:13Z, 364 d 23 h left",
            "valid until 2027-01-02T03:04:05.678Z, 9 d left",
        ),
        ("identity  /tmp/x/identity/e39ebb6b26f24229", "identity /var/y/z/identity/0123456789abcdef"),
        ("mqtts://127.0.0.1:18883: lets", "mqtts://127.130.2.3:40001: lets"),
        ("uid: f2d56c5e-2000-42a4-91f3-d754e4bb4805", "uid: 1e360b4f-de7b-452a-a061-7231e44893e6"),
        ("established round_trip=1ms", "established round_trip=344ms"),
        ("version 1795250119216169", "version 1795250119216170"),
    ] {
        assert_eq!(plain.line(one), plain.line(other));
    }
    for (one, other) in [("line-1", "line-2"), ("\"hellos\": 1", "\"hellos\": 2"), ("READY yes", "READY no")]
    {
        assert_ne!(plain.line(one), plain.line(other));
    }
}

#[test]
fn only_read_only_commands_are_repeated() {
    let step = |command: &str| Step {
        document: "README.md",
        number: 1,
        command: command.to_owned(),
        prints: Some(Vec::new()),
    };
    for reading in
        ["edgesync-cloud nodes -o json | grep x", "cloud get nodes", "grep x y | tail -2", "edgesync check"]
    {
        assert!(step(reading).reads_only(), "{reading}");
    }
    for writing in
        ["node -n plant delete configmap x", "edgesync run &", "line 2 45 | edgesync-cloud apply -f -"]
    {
        assert!(!step(writing).reads_only(), "{writing}");
    }
}
