//! The two programs as processes: usage, exit codes, `check-config`, and one file under two names.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a program without any override that the test's own environment may hold.
fn run(program: impl AsRef<Path>, args: &[&str]) -> Output {
    let mut command = Command::new(program.as_ref());
    command.args(args);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EDGESYNC_") {
            command.env_remove(name);
        }
    }
    command.env("EDGESYNC_NODE_NAME", "gw-1").output().unwrap()
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
