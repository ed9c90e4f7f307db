//! A program that a test starts, stops, kills and restarts; its log is printed when the test fails.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::eventually;

/// Maximum number of kept log lines.
const KEPT_LINES: usize = 20_000;
/// Number of log lines printed when the test fails.
const SHOWN_LINES: usize = 60;

/// A program with its arguments, running or not.
pub struct Process {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    child: Option<Child>,
    log: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    /// Creates `<program> run --config <config>`, not started.
    pub fn new(name: &str, program: &str, config: &Path) -> Self {
        Self::with_arguments(name, program.as_ref(), vec!["run".into(), "--config".into(), config.into()])
    }

    /// Creates a program with its arguments, not started.
    pub fn with_arguments(name: &str, program: &Path, arguments: Vec<OsString>) -> Self {
        Self {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments,
            environment: Vec::new(),
            child: None,
            log: Arc::default(),
        }
    }

    /// Sets an environment variable for later starts.
    pub fn env(&mut self, name: &str, value: impl Display) {
        self.environment.push((name.to_owned(), value.to_string()));
    }

    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        // The test runner may itself be a service.
        command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn().unwrap();
        self.keep(format!("--- started, process {}", child.id()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::clone(&self.log);
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| keep(&log, line)));
        self.child = Some(child);
    }

    pub fn id(&self) -> u32 {
        self.child.as_ref().expect("a running process").id()
    }

    /// Returns whether it was started and has not ended.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Returns its resident memory in KiB.
    pub fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Returns the peak of its resident memory in KiB.
    pub fn resident_peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, of: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(of)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            self.keep("--- killed".to_owned());
        }
    }

    /// Sends a signal by its name without SIG: TERM, HUP, STOP, CONT.
    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let sent = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &id]).status();
        assert!(sent.unwrap().success(), "SIG{name} to {} could not be sent", self.name);
        self.keep(format!("--- SIG{name}"));
    }

    /// Sends SIGTERM, and returns its exit status.
    pub async fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.signal("TERM");
        self.ended(limit).await
    }

    /// Waits for its end, and returns its exit status.
    pub async fn ended(&mut self, limit: Duration) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let what = format!("{} ends", self.name);
        eventually(&what, limit, async || child.try_wait().unwrap()).await
    }

    /// Returns its log of all starts.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().iter().cloned().collect()
    }

    /// Waits for a log line that contains a text, from line number `after` on.
    pub async fn logged(&self, text: &str, after: usize) -> String {
        let what = format!("{} logs {text:?}", self.name);
        eventually(&what, super::PATIENCE, async || {
            let log = self.log.lock().unwrap();
            log.iter().skip(after).find(|line| line.contains(text)).cloned()
        })
        .await
    }

    fn keep(&self, line: String) {
        keep(&self.log, line);
    }
}

fn keep(log: &Mutex<VecDeque<String>>, line: String) {
    let mut log = log.lock().unwrap();
    if log.len() == KEPT_LINES {
        log.pop_front();
    }
    log.push_back(line);
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            eprintln!("=== the last lines of {}", self.name);
            for line in log.iter().skip(log.len().saturating_sub(SHOWN_LINES)) {
                eprintln!("{line}");
            }
        }
    }
}
