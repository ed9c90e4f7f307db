//! A throw-away root booted with systemd, which runs the installed units as on a device.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Output, Stdio};

use super::root::{SEARCH_PATH, succeeded};
use super::{PATIENCE, Root, eventually};

const BOOT: &str = include_str!("boot.sh");
/// The units that are for a machine, and not for a root of its own.
const MASKED: [&str; 7] = [
    "systemd-binfmt.service",
    "systemd-modules-load.service",
    "systemd-remount-fs.service",
    "systemd-sysctl.service",
    "systemd-tmpfiles-setup-dev.service",
    "systemd-udev-trigger.service",
    "systemd-udevd.service",
];

/// systemd as the first process of the root's processes; ends when it is dropped.
pub(crate) struct Systemd<'a> {
    root: &'a Root,
    manager: Child,
    /// The outer id of systemd.
    pid: String,
    /// The path of its control group, outside of the root.
    group: String,
}

impl<'a> Systemd<'a> {
    /// Boots the root; `None`, with a notice, if this machine has no systemd or does not permit it.
    pub(crate) fn boot(root: &'a Root) -> Option<Self> {
        for unit in MASKED {
            root.run(&["ln", "-sf", "/dev/null", &format!("/etc/systemd/system/{unit}")]);
        }
        root.write("/etc/systemd/system/edgesync-test.target", "[Unit]\nDescription=Nothing yet\n");
        root.write("/etc/systemd/journald.conf", "[Journal]\nStorage=volatile\n");
        root.write("/etc/fstab", "");
        root.write("/etc/hostname", &root.run(&["uname", "-n"]));
        let log = fs::File::create(root.log_file("systemd")).unwrap();
        let directory = root.directory().display().to_string();
        let mut boot = root.command_outside(&["sh", "-c", BOOT, "boot", &directory]);
        let mut manager = boot.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(manager.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut value = |key: &str| lines.next().and_then(|line| line.strip_prefix(key).map(str::to_owned));
        let (group, pid) = (value("cgroup "), value("ready "));
        let (Some(group), Some(pid)) = (group, pid) else {
            manager.wait().unwrap();
            let why = fs::read_to_string(root.log_file("systemd")).unwrap_or_default();
            eprintln!(
                "notice: systemd cannot be started here, so it did not run the units and this test has shown \
                 nothing; it needs systemd and namespaces for control groups: {why}"
            );
            return None;
        };
        let systemd = Self { root, manager, pid, group };
        eventually("systemd runs", PATIENCE, || {
            let output = systemd.attempt(&["systemctl", "is-active", "edgesync-test.target"]);
            let log = || fs::read_to_string(root.log_file("systemd")).unwrap_or_default();
            if output.status.success() { Ok(()) } else { Err(format!("{output:?}\n{}", log())) }
        });
        Some(systemd)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid, "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"]);
        command.args(["--root", "--", "env", "--chdir=/"]).args(words);
        command.env_clear().env("PATH", SEARCH_PATH).env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        command
    }

    /// Runs a command beside the units to its end.
    pub(crate) fn attempt(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("nsenter, of util-linux")
    }

    /// Runs a command that must succeed, and returns its output.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        succeeded(words, &self.attempt(words))
    }

    /// Runs a command with an input; it must succeed.
    pub(crate) fn feed(&self, words: &[&str], input: &str) -> String {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        succeeded(words, &child.wait_with_output().unwrap())
    }

    /// Starts units; each must become active.
    pub(crate) fn start(&self, units: &[&str]) {
        let output = self.attempt(&[&["systemctl", "start"], units].concat());
        let stderr = || String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}\n{}", stderr(), self.log());
    }

    /// Returns the last lines of the journal.
    pub(crate) fn log(&self) -> String {
        self.run(&["journalctl", "--no-pager", "--boot", "--lines=80"])
    }

    /// Returns a property of a unit.
    pub(crate) fn property(&self, unit: &str, name: &str) -> String {
        self.run(&["systemctl", "show", "--value", "--property", name, unit]).trim().to_owned()
    }
}

impl Drop for Systemd<'_> {
    fn drop(&mut self) {
        // Process 1 of its namespace: all others end with it.
        let _ = Command::new("kill").args(["-KILL", &self.pid]).status();
        let _ = self.manager.wait();
        let remove = "find \"$1\" -depth -type d -exec rmdir {} \\;";
        let _ = self.root.command_outside(&["sh", "-c", remove, "sh", &self.group]).status();
    }
}
