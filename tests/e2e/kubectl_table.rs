//! The commands in `tests/fixtures/kubectl/commands.txt`: each works or is refused with a reason,
//! on both sides, with the oldest and the newest kubectl.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use edgesync_testkit::kubectl::{Cluster, Edge, Kubectl, Run, kubectl, old_kubectl};
use edgesync_testkit::timing::try_within;

const TABLE: &str = include_str!("../fixtures/kubectl/commands.txt");
/// The number of objects of `objects.yaml` that the node holds.
const HELD: u64 = 8;
/// How long to wait for the output of a command that does not end.
const GOES_ON: Duration = Duration::from_secs(10);

/// The expected end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Exits with code 0.
    Works,
    /// Exits with another code.
    Refused,
    /// Runs until it is killed.
    GoesOn,
}

/// An entry of the table.
#[derive(Debug)]
struct Entry {
    sides: &'static str,
    command: &'static str,
    outcome: Outcome,
    words: Vec<&'static str>,
}

impl Entry {
    fn is_of(&self, side: &str, version: &str) -> bool {
        let (sides, only) = self.sides.split_once('-').unwrap_or((self.sides, version));
        (sides == side || sides == "both") && only == version
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![String::new()];
        let mut quoted = false;
        for letter in self.command.chars() {
            match letter {
                '\'' => quoted = !quoted,
                ' ' if !quoted => arguments.push(String::new()),
                letter => arguments.last_mut().unwrap().push(letter),
            }
        }
        arguments
    }

    /// Returns the deviation from the expected result.
    fn verify(&self, run: &Run) -> Option<String> {
        let said = format!("{}{}", run.stdout, run.stderr);
        let ended = match self.outcome {
            Outcome::Works => run.code == Some(0),
            Outcome::Refused => run.code.is_some_and(|code| code != 0),
            Outcome::GoesOn => run.code.is_none(),
        };
        let missing: Vec<_> = self.words.iter().filter(|words| !said.contains(**words)).collect();
        let panics = said.contains("panic:") || said.contains("goroutine ");
        (!ended || panics || !missing.is_empty())
            .then(|| format!("expected {:?}, without a panic, and {missing:?}: {run}", self.outcome))
    }
}

/// Parses the table; its head describes the format.
fn entries() -> Vec<Entry> {
    let mut lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut entries = Vec::new();
    while let Some(line) = lines.next() {
        let (sides, command) = line.split_once(' ').unwrap();
        let side = sides.trim_end_matches("-old").trim_end_matches("-new");
        assert!(["cloud", "node", "both"].contains(&side), "{line}");
        let expected = lines.next().and_then(|line| line.strip_prefix("  "));
        let expected = expected.unwrap_or_else(|| panic!("no outcome of {line}"));
        let (outcome, words) = expected.split_once(": ").unwrap_or((expected, ""));
        let outcome = match outcome {
            "works" => Outcome::Works,
            "refused" => Outcome::Refused,
            "goes on" => Outcome::GoesOn,
            other => panic!("{other} is no outcome of {line}"),
        };
        entries.push(Entry { sides, command, outcome, words: words.split(" | ").collect() });
    }
    entries
}

/// Copies the files that the commands name to kubectl's directory.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Creates a certificate and its key for a Secret.
fn make_certificate(home: &Path) {
    let mut command = Command::new("openssl");
    command.current_dir(home).args(["req", "-x509", "-nodes", "-subj", "/CN=made", "-days", "1"]);
    command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    let made = command.args(["-keyout", "tls.key", "-out", "tls.crt"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
}

async fn run(client: &Kubectl, entry: &Entry) -> Run {
    let arguments = entry.arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let running = client.start(&arguments, "");
    if entry.outcome != Outcome::GoesOn {
        return running.finish();
    }
    // The check reports missing output together with all other deviations.
    let _ = try_within(GOES_ON, running.lines_with(&entry.words)).await;
    running.end()
}

/// Runs the commands of one side in order and reports all deviations.
async fn all_of(side: &str, version: &str) {
    let cluster = Cluster::start().await;
    let edge = Edge::start(&cluster, "edge-1").await;
    for manifest in ["definition.yaml", "objects.yaml"] {
        cluster.apply(&std::fs::read_to_string(fixtures().join(manifest)).unwrap());
    }
    cluster.cloud.in_sync("edge-1", HELD).await;
    let kubeconfig = match side {
        "cloud" => cluster.cloud.kubeconfig.clone(),
        _ => edge.agent.database.with_file_name("kubeconfig"),
    };
    let mut client = Kubectl::with_kubeconfig(&cluster.site, side, &kubeconfig);
    client.program(if version == "old" { old_kubectl() } else { kubectl() });
    client.editor("sed -i s/slow/edited/ \"$1\"\n");
    copy(&fixtures(), client.home());
    make_certificate(client.home());
    let mut wrong = Vec::new();
    for entry in entries().iter().filter(|entry| entry.is_of(side, version)) {
        wrong.extend(entry.verify(&run(&client, entry).await));
    }
    assert!(wrong.is_empty(), "{} commands are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn fixtures() -> PathBuf {
    edgesync_testkit::programs::root().join("tests/fixtures/kubectl")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_newest_commands_in_the_cloud() {
    all_of("cloud", "new").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_oldest_commands_in_the_cloud() {
    all_of("cloud", "old").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_newest_commands_on_a_node() {
    all_of("node", "new").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_oldest_commands_on_a_node() {
    all_of("node", "old").await;
}
