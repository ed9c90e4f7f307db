//! Runs a service as systemd would: user, group, limits, directories, variables and command from
//! its unit.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use edgesync_testkit::timing::is_within;

use super::{LOOK, Root, Unit};

/// Records its process id, which `exec` keeps, and sets umask and limits. If the machine grants
/// fewer open files, the limit stays lower.
const BECOME: &str =
    r#"echo $$ >"$1"; umask "$2"; ulimit -c "$3"; ulimit -n "$4" 2>/dev/null; shift 4; exec "$@""#;

/// A running service, with the receiver of its readiness.
pub(crate) struct Service<'a> {
    root: &'a Root,
    unit: &'a Unit,
    child: Child,
    ready: Receiver<()>,
}

impl<'a> Service<'a> {
    /// Starts the service and waits until it is ready.
    pub(crate) fn start(root: &'a Root, unit: &'a Unit) -> Self {
        let mut service = Self::spawn(root, unit);
        service.ready();
        service
    }

    /// Starts the service without waiting for readiness.
    pub(crate) fn spawn(root: &'a Root, unit: &'a Unit) -> Self {
        assert!(unit.conditions_hold(root), "systemd would not start {}", unit.name);
        let name = &unit.name;
        make_directories(root, unit);
        let socket = format!("/run/{name}.notify");
        let _ = fs::remove_file(root.path(&socket));
        let notify = UnixDatagram::bind(root.path(&socket)).unwrap();
        fs::set_permissions(root.path(&socket), Permissions::from_mode(0o777)).unwrap();

        let (user, group) = (unit.one("User"), unit.one("Group"));
        let pid_file = pid_file(name);
        let limits = [unit.one("UMask"), unit.one("LimitCORE"), unit.one("LimitNOFILE")];
        let mut words = vec!["sh", "-c", BECOME, "sh", &pid_file];
        words.extend(limits);
        words.extend(["setpriv", "--reuid", user, "--regid", group, "--clear-groups"]);
        words.extend(["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]);
        let mut variables = unit.environment(root);
        variables.push(format!("NOTIFY_SOCKET={socket}"));
        variables.push(format!("WATCHDOG_USEC={}", unit.seconds("WatchdogSec") * 1_000_000));
        variables.push(format!("STATE_DIRECTORY=/var/lib/{}", unit.one("StateDirectory")));
        variables.push(format!("RUNTIME_DIRECTORY=/run/{}", unit.one("RuntimeDirectory")));
        variables.push(format!("CONFIGURATION_DIRECTORY=/etc/{}", unit.one("ConfigurationDirectory")));
        words.extend(["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin"]);
        words.extend(variables.iter().map(String::as_str));
        words.extend(unit.one("ExecStart").split_whitespace());

        let log = File::options().create(true).append(true).open(root.log_file(name)).unwrap();
        let mut command = root.command(&words);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { root, unit, child, ready: read(notify) }
    }

    /// Waits for `READY=1`, up to the unit's limit.
    fn ready(&mut self) {
        let start = Instant::now();
        let limit = Duration::from_secs(self.unit.seconds("TimeoutStartSec"));
        while self.ready.recv_timeout(LOOK).is_err() {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "{} ended ({ended:?}) instead of getting ready:\n{}",
                self.unit.name,
                self.log()
            );
            let waits = is_within(start.elapsed(), limit);
            assert!(waits, "{} does not get ready:\n{}", self.unit.name, self.log());
        }
    }

    /// Returns the log since the first start.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.root.log_file(&self.unit.name)).unwrap_or_default()
    }

    /// Waits for the end, up to the unit's limit.
    pub(crate) fn end(mut self) -> ExitStatus {
        let start = Instant::now();
        let limit = Duration::from_secs(self.unit.seconds("TimeoutStopSec"));
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            let waits = is_within(start.elapsed(), limit);
            assert!(waits, "{} does not end:\n{}", self.unit.name, self.log());
            std::thread::park_timeout(LOOK);
        }
    }

    /// Stops the service, which must exit normally, and removes its runtime directory as systemd
    /// does.
    pub(crate) fn stop(self) {
        let (root, unit) = (self.root, self.unit);
        let pid = root.read(&pid_file(&unit.name));
        // A minimal root has no program of that name; the shell has the command.
        root.run(&["sh", "-c", &format!("kill -TERM {}", pid.trim())]);
        let log = self.root.log_file(&unit.name);
        let status = self.end();
        let log = fs::read_to_string(log).unwrap_or_default();
        assert!(status.success(), "{} ended with {status}:\n{log}", unit.name);
        root.run(&["rm", "-rf", &format!("/run/{}", unit.one("RuntimeDirectory"))]);
    }
}

/// Reads the notifications continuously, because a full socket would block the service. Signals
/// `READY=1`.
fn read(notify: UnixDatagram) -> Receiver<()> {
    let (said, ready) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length) = notify.recv(&mut buffer) {
            let message = String::from_utf8_lossy(&buffer[..length]);
            if message.lines().any(|line| line == "READY=1") {
                // After the start the receiver is gone.
                let _ = said.send(());
            }
        }
    });
    ready
}

fn pid_file(name: &str) -> String {
    format!("/run/{name}.pid")
}

/// Creates the directories that systemd creates before the start.
fn make_directories(root: &Root, unit: &Unit) {
    let (user, group) = (unit.one("User"), unit.one("Group"));
    let make = |path: &str, mode: &str, user: &str, group: &str| {
        root.run(&["install", "-d", "-m", mode, "-o", user, "-g", group, path]);
    };
    let directory = |above: &str, key: &str| format!("{above}/{}", unit.one(key));
    make(&directory("/var/lib", "StateDirectory"), unit.one("StateDirectoryMode"), user, group);
    make(&directory("/run", "RuntimeDirectory"), unit.one("RuntimeDirectoryMode"), user, group);
    make(&directory("/etc", "ConfigurationDirectory"), "0755", "root", "root");
}
