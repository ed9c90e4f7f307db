//! The demo's processes and their directory: started, supervised, and ended on every exit path.
//!
//! The demo is the service manager of its processes: they report readiness through `NOTIFY_SOCKET`,
//! and the cloud side its ports.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::UnixDatagram;

use super::DemoError;

/// Time limit of a process to become ready.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Interval of checking that a process still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The longest temporary directory, in bytes, that leaves room for a socket path.
const MAX_TEMPORARY: usize = 60;
/// The most bytes of a log read for its last lines.
const TAIL_BYTES: u64 = 32 << 10;

/// The demo's directory, removed on drop unless it is kept.
#[derive(Debug)]
pub(super) struct Workspace {
    path: PathBuf,
    keep: bool,
}

impl Workspace {
    /// Creates a directory accessible to this user only.
    pub(super) fn create() -> Result<Self, DemoError> {
        let temporary = std::env::temp_dir();
        let parent =
            if temporary.as_os_str().len() <= MAX_TEMPORARY { temporary } else { PathBuf::from("/tmp") };
        let id = uuid::Uuid::new_v4().simple().to_string();
        let path = parent.join(format!("edgesync-demo-{}", &id[..8]));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|source| DemoError::io(format!("making {}", path.display()), source))?;
        Ok(Self { path, keep: false })
    }

    /// Returns the path of a file in the directory.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the directory, so that the logs can be read.
    pub(super) fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if !self.keep {
            // Leftovers remain in the system's temporary directory, which is cleaned regularly.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Paths of the programs.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    pub(super) cloud: PathBuf,
    pub(super) agent: PathBuf,
}

impl Programs {
    /// Finds each program beside this one if it has the same version, and else links this program
    /// under its name.
    pub(super) fn find(workspace: &Workspace) -> Result<Self, DemoError> {
        let own =
            std::env::current_exe().map_err(|source| DemoError::io("find this program".into(), source))?;
        Ok(Self {
            cloud: program("edgesync-cloud", &own, workspace)?,
            agent: program("edgesync", &own, workspace)?,
        })
    }
}

fn program(name: &str, own: &Path, workspace: &Workspace) -> Result<PathBuf, DemoError> {
    let sibling = own.with_file_name(name);
    if is_same_version(&sibling, name) {
        return Ok(sibling);
    }
    let link = workspace.file(name);
    std::os::unix::fs::symlink(own, &link)
        .map_err(|source| DemoError::io(format!("link {}", link.display()), source))?;
    Ok(link)
}

fn is_same_version(program: &Path, name: &str) -> bool {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let expected = format!("{name} {}", edgesync_runtime::VERSION);
    output.is_ok_and(|answer| answer.status.success() && answer.stdout.trim_ascii() == expected.as_bytes())
}

/// A running process, killed on drop.
#[derive(Debug)]
pub(super) struct Process {
    name: &'static str,
    child: Child,
}

impl Process {
    /// Runs `PROGRAM run --config CONFIG` with its output appended to `NAME.log`, and waits until
    /// it is ready. Returns its ready status.
    pub(super) async fn start(
        name: &'static str,
        program: &Path,
        config: &Path,
        workspace: &Workspace,
    ) -> Result<(Self, String), DemoError> {
        let failed = |source| DemoError::io(format!("start {name} ({})", program.display()), source);
        let socket = workspace.file(&format!("{name}.notify"));
        let notices = UnixDatagram::bind(&socket).map_err(failed)?;
        let log = workspace.file(&format!("{name}.log"));
        let output = OpenOptions::new().create(true).append(true).open(&log).map_err(failed)?;
        let mut command = Command::new(program);
        command.arg("run").arg("--config").arg(config);
        // Variables of another installation must not override the demo's configuration.
        for (key, _) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("EDGESYNC_") {
                command.env_remove(key);
            }
        }
        command.env_remove("WATCHDOG_USEC").env_remove("WATCHDOG_PID").env("NOTIFY_SOCKET", &socket);
        command.stdin(Stdio::null()).stdout(output.try_clone().map_err(failed)?).stderr(output);
        // Ctrl-C must reach the demo only, which then ends its processes.
        let child = command.process_group(0).spawn().map_err(failed)?;
        let mut process = Self { name, child };
        let ready = process.ready(&notices).await;
        // The socket is no longer read: once full, it must not block the process.
        drop(notices);
        let _ = fs::remove_file(&socket);
        Ok((process, ready?))
    }

    async fn ready(&mut self, notices: &UnixDatagram) -> Result<String, DemoError> {
        let waiting = async {
            let mut buffer = vec![0; 4096];
            loop {
                tokio::select! {
                    received = notices.recv(&mut buffer) => {
                        let length = received.map_err(|source| DemoError::io("receive notification".into(), source))?;
                        let text = String::from_utf8_lossy(&buffer[..length]);
                        if text.lines().any(|line| line == "READY=1") {
                            let status = text.lines().find_map(|line| line.strip_prefix("STATUS="));
                            return Ok(status.unwrap_or_default().to_owned());
                        }
                    }
                    () = tokio::time::sleep(CHECK_INTERVAL) => self.check()?,
                }
            }
        };
        match tokio::time::timeout(START_LIMIT, waiting).await {
            Ok(ready) => ready,
            Err(_) => Err(DemoError::TimedOut {
                awaited: format!("{} to be ready", self.name),
                limit: START_LIMIT,
                seen: "running without a notification".into(),
            }),
        }
    }

    /// # Errors
    /// The process has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), DemoError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(DemoError::Ended { process: self.name, how: status.to_string() }),
            Err(source) => Err(DemoError::io(format!("wait for {}", self.name), source)),
        }
    }

    /// Returns the process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process as a power cut would: SIGKILL.
    pub(super) fn kill(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the last lines of a file; none if it cannot be read.
pub(super) fn last_lines(path: &Path, most: usize) -> Vec<String> {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(most)..].iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_removed_unless_kept() {
        let workspace = Workspace::create().unwrap();
        let path = workspace.path().to_owned();
        fs::write(workspace.file("a.log"), "x").unwrap();
        drop(workspace);
        assert!(!path.exists());

        let mut workspace = Workspace::create().unwrap();
        workspace.keep();
        let path = workspace.path().to_owned();
        drop(workspace);
        assert!(path.exists());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn last_lines_of_a_log_are_returned() {
        let workspace = Workspace::create().unwrap();
        let path = workspace.file("a.log");
        let lines: Vec<String> = (0..9000).map(|number| format!("line {number}")).collect();
        fs::write(&path, lines.join("\n")).unwrap();
        assert_eq!(last_lines(&path, 2), ["line 8998", "line 8999"]);
        fs::write(&path, "one\n").unwrap();
        assert_eq!(last_lines(&path, 5), ["one"]);
        assert!(last_lines(&workspace.file("none"), 5).is_empty());
    }

    #[tokio::test]
    async fn process_that_ends_early_is_an_error_with_its_name() {
        let workspace = Workspace::create().unwrap();
        let started = Process::start("cloud", Path::new("/bin/false"), Path::new("x"), &workspace).await;
        let error = started.unwrap_err().to_string();
        assert!(error.starts_with("cloud ended"), "{error}");
        let started = Process::start("agent", Path::new("/nowhere"), Path::new("x"), &workspace).await;
        assert!(started.unwrap_err().to_string().contains("start agent (/nowhere)"));
    }
}
