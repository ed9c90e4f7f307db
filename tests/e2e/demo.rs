//! `edgesync-demo` as a new user runs it: real processes, and nothing left behind.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Creates a temporary directory for one demo.
fn temporary() -> TempDir {
    tempfile::Builder::new().prefix("demo-").tempdir_in("/tmp").unwrap()
}

fn demo(program: &Path, temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("TMPDIR", temporary).stdin(Stdio::null());
    command
}

/// Returns the processes whose command line names the directory.
fn processes_in(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().unwrap();
    let command_line = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).ok();
    let all = fs::read_dir("/proc").unwrap().flatten().filter_map(command_line);
    let texts = all.map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "));
    texts.filter(|text| text.contains(directory)).collect()
}

#[track_caller]
fn assert_nothing_is_left(temporary: &Path) {
    let files: Vec<PathBuf> = fs::read_dir(temporary).unwrap().flatten().map(|entry| entry.path()).collect();
    assert_eq!((processes_in(temporary), files), (Vec::new(), Vec::new()));
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the cells of a row of the table.
fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no row {name:?} in\n{text}")).split_whitespace().collect()
}

#[test]
fn demo_ends_in_sync_and_leaves_nothing_behind() {
    let temporary = temporary();
    let output = demo(Path::new(edgesync_testkit::programs::demo()), temporary.path(), &["--objects", "200"])
        .output()
        .unwrap();
    let text = text(&output);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}\n{text}");
    assert_eq!(row(&text, "1 apply")[0], "200");
    assert_eq!(row(&text, "3 reconnect")[..5], ["0", "0", "0", "0", "200"]);
    assert_eq!(row(&text, "4 changes")[..5], ["12", "9", "5", "9", "188"]);
    assert!(!text.contains("FAILED") && text.contains("ok      Every object"), "{text}");
    assert!(!text.contains('\r') && !text.contains('\u{1b}'), "no control characters in a pipe: {text}");
    assert_nothing_is_left(temporary.path());
}

/// Copies the program into an empty directory, as after `cargo build --bin edgesync-demo`.
fn alone(directory: &Path) -> PathBuf {
    let program = directory.join("edgesync-demo");
    if fs::hard_link(edgesync_testkit::programs::demo(), &program).is_err() {
        fs::copy(edgesync_testkit::programs::demo(), &program).unwrap();
    }
    program
}

#[test]
fn demo_alone_contains_both_programs() {
    let (temporary, directory) = (temporary(), temporary());
    let program = alone(directory.path());
    let output = demo(&program, temporary.path(), &["--objects", "20"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_nothing_is_left(temporary.path());
}

#[test]
fn dead_process_ends_the_demo_with_its_output_and_logs() {
    let (temporary, directory) = (temporary(), temporary());
    let program = alone(directory.path());
    let agent = directory.path().join("edgesync");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'edgesync {VERSION}' && exit\necho 'no luck today'\nexit 3\n"
    );
    fs::write(&agent, script).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    let output = demo(&program, temporary.path(), &["--objects", "20"]).output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for expected in ["FAILED: agent ended by itself: exit status: 3", "no luck today", "are kept in "] {
        assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
    }
    let kept = PathBuf::from(text.trim_end().rsplit(' ').next().unwrap());
    assert!(kept.starts_with(temporary.path()) && kept.join("agent.log").exists(), "{}", kept.display());
    assert_eq!(processes_in(temporary.path()), Vec::<String>::new());
}

/// Starts a demo and returns it with its output up to a line that starts like this.
fn until_line(
    temporary: &Path,
    arguments: &[&str],
    start: &str,
) -> (Child, BufReader<impl std::io::Read>, String) {
    let mut child = demo(Path::new(edgesync_testkit::programs::demo()), temporary, arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.lines().next_back().is_some_and(|line| line.starts_with(start)) {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "no line {start:?} in\n{text}");
    }
    (child, out, text)
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn interrupted_demo_leaves_nothing_behind() {
    let temporary = temporary();
    let arguments = ["--objects", "20000"];
    let (mut child, mut out, mut text) = until_line(temporary.path(), &arguments, "1  Apply");
    assert_eq!(processes_in(temporary.path()).len(), 2, "{text}");
    interrupt(&child);
    out.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    assert_nothing_is_left(temporary.path());
}

#[test]
fn kept_demo_answers_the_commands_it_prints() {
    let temporary = temporary();
    let arguments = ["--objects", "20", "--keep"];
    let (mut child, mut out, mut text) = until_line(temporary.path(), &arguments, "Logs:");
    for word in [" nodes ", " syncs --node ", " status ", " get pods "] {
        let line = text.lines().find(|line| line.starts_with("  /") && line.contains(word)).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(answer.status.success() && !answer.stdout.is_empty(), "{line}: {answer:?}");
    }
    let page = text.lines().find(|line| line.starts_with("  http://127.0.0.1:")).unwrap();
    assert!(page.contains("/page/#key="), "{page}");
    interrupt(&child);
    out.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    assert_nothing_is_left(temporary.path());
}
