//! `edgesync run`, and somebody on the device who asks it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use edgesync::api::Address;
use serde_json::Value;
use tempfile::TempDir;

use super::process::Process;
use super::{PATIENCE, eventually, get, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_edgesync");

/// An agent: a process that may be killed and started again over the same database.
pub(crate) struct Agent {
    node: String,
    directory: TempDir,
    process: Option<Process>,
}

impl Agent {
    /// Starts one that connects to `broker`, with more lines for `[link]`.
    pub(crate) fn start(node: &str, broker: SocketAddr, link: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (store, socket) = (directory.path().join("edge.db"), directory.path().join("api.sock"));
        let config = format!(
            "[node]\nname = \"{node}\"\n\
             [store]\npath = {store:?}\n\
             [link]\nbroker = \"mqtt://{broker}\"\nconnect_timeout = \"3s\"\n\
             backoff_min = \"50ms\"\nbackoff_max = \"500ms\"\n{link}\n\
             [sync]\nhello_timeout = \"2s\"\nreport_timeout = \"2s\"\nmax_object = \"1MiB\"\n\
             [api]\nsocket = {socket:?}\n"
        );
        std::fs::write(directory.path().join("edge.toml"), config).unwrap();
        let mut agent = Self { node: node.to_owned(), directory, process: None };
        agent.restart();
        agent
    }

    /// Its node's name.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("api.sock")
    }

    /// Where its API is.
    pub(crate) fn api(&self) -> Address {
        Address::Unix(self.socket())
    }

    /// The process.
    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the agent does not run")
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again over the same database, and waits for its API.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let config = self.directory.path().join("edge.toml");
        let mut command = Command::new(PROGRAM);
        command.arg("run").arg("--config").arg(config);
        self.process = Some(Process::start(&format!("edgesync, {}", self.node), &mut command));
        let api = self.api();
        let process = self.process.as_mut().unwrap();
        eventually("the agent's API answers", PATIENCE, || {
            assert!(process.is_alive(), "the agent has ended");
            get(&api, "/edgesync/v1/status").is_some()
        });
    }

    /// Its status; `None` when it does not answer.
    pub(crate) fn try_status(&self) -> Option<Value> {
        get(&self.api(), "/edgesync/v1/status")
    }

    /// Its status.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        self.try_status().expect("the agent answers")
    }

    /// A text in its status.
    #[track_caller]
    pub(crate) fn says(&self, pointer: &str) -> String {
        text(&self.status(), pointer)
    }

    /// A number in its status; 0 where there is none.
    #[track_caller]
    pub(crate) fn counts(&self, pointer: &str) -> u64 {
        self.status().pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
    }

    /// Whether it says that it is in sync.
    pub(crate) fn is_in_sync(&self) -> bool {
        self.try_status().is_some_and(|status| status["sync"]["inSync"] == Value::Bool(true))
    }

    /// What `edgesync status` prints.
    pub(crate) fn status_text(&self) -> String {
        let mut command = Command::new(PROGRAM);
        command.arg("status").arg("--socket").arg(self.socket()).stdin(Stdio::null());
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    }
}
