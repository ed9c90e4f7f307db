//! A throw-away root booted with systemd, which runs the installed units as on a device.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use super::root::succeeded;
use super::{PATIENCE, Root, eventually};

const BOOT: &str = include_str!("boot.sh");
/// The units of the machine that would change the devices of the host.
const MASKED: [&str; 3] =
    ["systemd-tmpfiles-setup-dev.service", "systemd-udevd.service", "systemd-udev-trigger.service"];

/// systemd as the first process of the root's processes; ends when it is dropped.
pub(crate) struct Systemd<'a> {
    root: &'a Root,
    manager: Child,
    /// The process id of systemd in the root.
    pid: String,
    cgroup: String,
}

impl<'a> Systemd<'a> {
    /// Boots the root; `None`, with a notice, if this machine has no systemd or does not permit it.
    pub(crate) fn boot(root: &'a Root) -> Option<Self> {
        for unit in MASKED {
            root.run(&["ln", "-sf", "/dev/null", &format!("/etc/systemd/system/{unit}")]);
        }
        root.write("/etc/systemd/system/edgesync-test.target", "[Unit]\nDescription=Nothing yet\n");
        let log = std::fs::File::create(root.log_file("systemd")).unwrap();
        let mut boot = root.command(&["sh", "-c", BOOT]);
        let mut manager = boot.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(manager.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut value = |key: &str| lines.next().and_then(|line| line.strip_prefix(key).map(str::to_owned));
        let (Some(cgroup), Some(pid)) = (value("cgroup "), value("ready ")) else {
            manager.wait().unwrap();
            let why = std::fs::read_to_string(root.log_file("systemd")).unwrap_or_default();
            eprintln!("notice: systemd does not start here, so the units were not run by it: {why}");
            return None;
        };
        let systemd = Self { root, manager, pid, cgroup };
        eventually("systemd runs", PATIENCE, || {
            let output = systemd.attempt(&["systemctl", "is-active", "edgesync-test.target"]);
            if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) }
        });
        Some(systemd)
    }

    fn command(&self, words: &[&str]) -> Command {
        let enter = ["nsenter", "--target", &self.pid, "--mount", "--pid", "--cgroup", "--root", "--"];
        self.root.command(&[&enter, words].concat())
    }

    /// Runs a command to its end.
    pub(crate) fn attempt(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("nsenter, of util-linux")
    }

    /// Runs a command that must succeed, and returns its output.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        succeeded(words, &self.attempt(words))
    }

    /// Starts units; each must become active.
    pub(crate) fn start(&self, units: &[&str]) {
        let output = self.attempt(&[&["systemctl", "start"], units].concat());
        let lines = || self.run(&["journalctl", "--no-pager", "--lines=50"]);
        assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), lines());
    }

    /// Returns a property of a unit.
    pub(crate) fn property(&self, unit: &str, name: &str) -> String {
        self.run(&["systemctl", "show", "--value", "--property", name, unit]).trim().to_owned()
    }
}

impl Drop for Systemd<'_> {
    fn drop(&mut self) {
        self.root.attempt(&["kill", "-KILL", &self.pid]);
        let _ = self.manager.wait();
        let remove = "find \"$1\" -depth -type d -exec rmdir {} \\;";
        self.root.attempt(&["sh", "-c", remove, "sh", &self.cgroup]);
    }
}
