//! The two programs as processes: usage, exit codes, `check-config`, and one file under two names.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{self, Read as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;

use edgesync_testkit::timing::{PATIENCE, receive_within};

/// A command without any override that the test's own environment may hold.
fn command(program: impl AsRef<Path>, args: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(args);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EDGESYNC_") {
            command.env_remove(name);
        }
    }
    command.env("EDGESYNC_NODE_NAME", "gw-1");
    command
}

fn run(program: impl AsRef<Path>, args: &[&str]) -> Output {
    command(program, args).output().unwrap()
}

/// A shell command on a terminal of its own. A drop closes the terminal, which ends the command.
struct Terminal {
    script: Child,
    /// Output of the terminal.
    shown: Receiver<Vec<u8>>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail if it was reaped already.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// Starts a shell command on a terminal of its own. `None` without the program that opens one.
fn start_on_terminal(line: &str) -> Option<Terminal> {
    let mut script = command("script", &["-q", "-e", "-c", line, "/dev/null"]);
    script.env("TERM", "xterm").env("SHELL", "/bin/sh").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = match script.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        child => child.unwrap(),
    };
    let mut terminal = child.stdout.take().unwrap();
    let (sender, shown) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(read @ 1..) = terminal.read(&mut buffer) {
            // The test may have failed.
            let _ = sender.send(buffer[..read].to_vec());
        }
    });
    Some(Terminal { script: child, shown })
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn config(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("edgesync.toml");
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}

#[test]
fn help_and_version_go_to_standard_output_and_succeed() {
    let help = run(edgesync_testkit::programs::device(), &["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for command in ["run", "check-config", "status", "traffic", "get", "syncs"] {
        assert!(out(&help).contains(&format!("\n  {command} ")), "{}", out(&help));
    }
    let version = run(edgesync_testkit::programs::device(), &["--version"]);
    assert_eq!(out(&version), format!("edgesync {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn usage_errors_exit_with_64_and_a_suggestion() {
    let output = run(edgesync_testkit::programs::device(), &["stats"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(err(&output).ends_with("\nhint: edgesync status --help\n"), "{}", err(&output));
    assert_eq!(out(&output), "");
    assert_eq!(run(edgesync_testkit::programs::device(), &[]).status.code(), Some(64));
}

#[test]
fn configuration_errors_exit_with_78_in_every_command() {
    let (_directory, path) = config("[link]\nkeepalive = 20\ninflight = 0\n");
    for command in ["check-config", "run"] {
        let output = run(edgesync_testkit::programs::device(), &[command, "--config", &path]);
        assert_eq!(output.status.code(), Some(78), "{command}");
        let shown = err(&output);
        assert!(shown.starts_with(&format!("{path}:2:13: link.keepalive: must be")), "{shown}");
        assert!(shown.contains(&format!("{path}:3:12: link.inflight: must be")), "{shown}");
    }
    let output = run(edgesync_testkit::programs::device(), &["run", "--config", "/nowhere/edgesync.toml"]);
    assert_eq!(output.status.code(), Some(78));
    assert!(err(&output).contains("/nowhere/edgesync.toml: cannot be read"), "{}", err(&output));
}

/// The image of the cloud side has no other program that a preStop hook could run.
#[test]
fn sleep_of_a_prestop_hook_ends_silently() {
    let cloud = edgesync_testkit::programs::cloud();
    let output = run(cloud, &["sleep", "1ms"]);
    assert_eq!((output.status.code(), out(&output), err(&output)), (Some(0), String::new(), String::new()));
    assert_eq!(run(cloud, &["sleep", "soon"]).status.code(), Some(64));
    assert!(!out(&run(cloud, &["--help"])).contains("sleep"));
}

#[test]
fn check_config_prints_the_effective_configuration() {
    let (_directory, path) = config("[link]\nkeepalive = \"30s\"\n");
    let output = run(edgesync_testkit::programs::device(), &["check-config", "--config", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let shown = out(&output);
    assert!(shown.contains("[link]\n") && shown.contains("keepalive = \"30s\""), "{shown}");
    let quiet = run(edgesync_testkit::programs::device(), &["check-config", "-q", "-c", &path]);
    assert_eq!((quiet.status.code(), out(&quiet)), (Some(0), String::new()));
}

#[test]
fn commands_without_an_agent_exit_with_69() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("edgesync.sock");
    for command in [&["status"][..], &["traffic"], &["syncs"], &["get", "configmaps"]] {
        let output = run(
            edgesync_testkit::programs::device(),
            &[command, &["--socket", socket.to_str().unwrap()]].concat(),
        );
        assert_eq!(output.status.code(), Some(69), "{}", err(&output));
        assert!(err(&output).contains("edgesync.sock"), "{}", err(&output));
    }
}

/// The cloud accepts the connection and answers nothing until the line has appeared.
#[test]
fn progress_on_a_terminal_is_cleared_before_the_result() {
    let (_directory, path) = config("[store]\npath = \"edge.db\"\n");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let cloud = silent.local_addr().unwrap();
    let token = format!("{}.a.b.c", "0".repeat(64));
    let device = edgesync_testkit::programs::device();
    let join = format!("'{device}' join --cloud https://{cloud} --token {token} --config '{path}'");
    let Some(mut terminal) = start_on_terminal(&join) else {
        eprintln!("notice: script is missing; no progress was shown");
        return;
    };
    let mut text = String::new();
    while !text.contains("\rjoining: ") {
        let part = receive_within(&terminal.shown, PATIENCE);
        let part = part.unwrap_or_else(|error| panic!("{error}: {text:?}"));
        text.push_str(&String::from_utf8_lossy(&part));
    }
    // Resets the connection.
    drop(silent);
    loop {
        match receive_within(&terminal.shown, PATIENCE) {
            Ok(part) => text.push_str(&String::from_utf8_lossy(&part)),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(error) => panic!("{error}: {text:?}"),
        }
    }
    assert!(!terminal.script.wait().unwrap().success(), "{text:?}");
    let (_, last) = text.rsplit_once("\rjoining: ").unwrap();
    let (_, rest) = last.split_once('\r').unwrap();
    let (cleared, result) = rest.split_once('\r').unwrap();
    assert!(!cleared.is_empty() && cleared.trim().is_empty(), "{text:?}");
    assert!(result.starts_with("error: "), "{text:?}");
}

mod cloud_side {
    use super::*;

    #[test]
    fn program_name_selects_agent_or_cloud_side() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["edgesync", "edgesync-cloud"] {
            let link = directory.path().join(name);
            std::os::unix::fs::symlink(edgesync_testkit::programs::demo(), &link).unwrap();
            assert!(out(&run(&link, &["--version"])).starts_with(&format!("{name} ")));
            assert_eq!(run(&link, &["--keep"]).status.code(), Some(64));
        }
    }

    #[test]
    fn listener_without_tls_beyond_loopback_is_refused() {
        let (_directory, path) = config("[broker]\nlisten = \"0.0.0.0:1883\"\ntls = \"off\"\n");
        let output = run(edgesync_testkit::programs::cloud(), &["run", "--config", &path]);
        assert_eq!(output.status.code(), Some(78));
        assert!(err(&output).contains("requires a certificate"), "{}", err(&output));
    }

    #[test]
    fn commands_without_a_cloud_side_exit_with_69() {
        // A port that was free a moment ago and has no listener.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        for command in [
            &["nodes"][..],
            &["syncs"],
            &["get", "cm"],
            &["confirm-deletions", "gw-1"],
            &["node", "remove", "gw-1"],
            &["node", "admit", "gw-1"],
        ] {
            let output = run(edgesync_testkit::programs::cloud(), &[command, &["--server", &free]].concat());
            assert_eq!(output.status.code(), Some(69), "{command:?}: {}", err(&output));
        }
    }
}
