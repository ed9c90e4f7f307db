//! A real mosquitto for a test: own directory, own port, killed by its process id on drop.
//!
//! mosquitto cannot inherit a listening socket, so its port is chosen before. That is a race where
//! others use the same address; therefore every test process has its own loopback address, derived
//! from its process id, and no port is returned twice within the process.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::timing::{PATIENCE, is_within};

const INSTALL: &str =
    "mosquitto is needed for this test and not installed: apt-get install mosquitto mosquitto-clients";
const LOG_LINES: usize = 200;
/// Polling interval of the log.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

static USED_PORTS: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A running mosquitto. With its default configuration it accepts any client.
pub struct Mosquitto {
    address: SocketAddr,
    directory: TempDir,
    child: Option<Child>,
    log: Arc<Mutex<Log>>,
}

/// The log of one run.
#[derive(Default)]
struct Log {
    /// The last lines, at most [`LOG_LINES`].
    last: VecDeque<String>,
    /// Number of all lines.
    count: usize,
    ended: bool,
}

impl Log {
    fn keep(&mut self, line: String) {
        if self.last.len() == LOG_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
        self.count += 1;
    }

    /// Returns whether a line from number `after` on contains these words.
    fn has(&self, words: &str, after: usize) -> bool {
        let dropped = self.count - self.last.len();
        self.last.iter().skip(after.saturating_sub(dropped)).any(|line| line.contains(words))
    }
}

impl Mosquitto {
    /// Starts one without a limit of queued messages: by default it silently drops QoS 1 messages
    /// beyond 1,000 per client.
    pub fn start() -> Self {
        Self::start_with("max_queued_messages 0\n")
    }

    /// Starts one with additional lines of configuration. Like the configuration that edgesync
    /// generates, it sends small packets at once.
    pub fn start_with(more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = free_address();
        let config = format!(
            "listener {} {}\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\nlog_dest stderr\nuser root\n{more}",
            address.port(),
            address.ip()
        );
        fs::write(directory.path().join("mosquitto.conf"), config).unwrap();
        let mut broker = Self { address, directory, child: None, log: Arc::default() };
        broker.run();
        broker
    }

    /// Starts one with a given configuration file, which makes it listen on `address`.
    pub fn start_from(address: SocketAddr, config: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let text = format!("{}\nuser root\n", fs::read_to_string(config).unwrap());
        fs::write(directory.path().join("mosquitto.conf"), text).unwrap();
        let mut broker = Self { address, directory, child: None, log: Arc::default() };
        broker.run();
        broker
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Restarts it at the same address, with nothing retained.
    pub fn restart(&mut self) {
        self.kill();
        self.run();
    }

    /// Makes it read the files of its configuration again, and waits until it does.
    pub fn reload(&self) {
        let after = self.log.lock().unwrap().count;
        let id = self.child.as_ref().expect("a running mosquitto").id().to_string();
        let sent = Command::new("kill").args(["-s", "HUP", &id]).status().unwrap();
        assert!(sent.success(), "SIGHUP to mosquitto could not be sent");
        self.logged("Reloading config", after);
    }

    /// Waits for a log line of this run that contains these words, from line number `after` on.
    fn logged(&self, words: &str, after: usize) {
        let begun = Instant::now();
        loop {
            let (found, ended, last) = {
                let log = self.log.lock().unwrap();
                (log.has(words, after), log.ended, log.last.clone())
            };
            if found {
                return;
            }
            let waits = !ended && is_within(begun.elapsed(), PATIENCE);
            assert!(waits, "mosquitto does not log {words:?}:\n{last:#?}");
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    fn run(&mut self) {
        let spawned = Command::new("mosquitto")
            .arg("-c")
            .arg(self.directory.path().join("mosquitto.conf"))
            // Debian installs it outside of users' PATH.
            .env("PATH", format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => panic!("{INSTALL}"),
            Err(error) => panic!("cannot start mosquitto: {error}"),
        };
        self.follow(&mut child);
        self.child = Some(child);
        self.logged(" running", 0);
    }

    /// Collects the log lines of a new run.
    fn follow(&mut self, child: &mut Child) {
        self.log = Arc::default();
        let log = Arc::clone(&self.log);
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| log.lock().unwrap().keep(line));
            log.lock().unwrap().ended = true;
        });
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs one of mosquitto's clients to its end; returns its exit code, output and errors.
pub fn client(program: &str, address: SocketAddr, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = match client_command(program, address, arguments).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => panic!("{INSTALL}"),
        other => other.unwrap(),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Returns the command for one of mosquitto's clients, with MQTT v5.
pub fn client_command(program: &str, address: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(["-V", "mqttv5", "-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns an address that is otherwise unused. A broker with a generated configuration listens on
/// all addresses of this machine, so its port is outside of the range for outgoing connections,
/// which other tests could have in use.
pub fn free_address() -> SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    // Process ids have 22 bits; the second byte stays between 64 and 127, far from 127.0.0.1.
    let ip = Ipv4Addr::new(127, 64 + (high & 0x3f), middle, low);
    let mut used_ports = USED_PORTS.lock().unwrap();
    loop {
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let port = 10_000 + (random % 22_000) as u16;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() && used_ports.insert(port) {
            return (ip, port).into();
        }
    }
}
