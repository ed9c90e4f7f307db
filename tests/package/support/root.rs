//! A throw-away root file system: an overlay over this machine's or that of another system, with
//! its own namespaces for mounts, network, processes and the host name. Everything in it ends with
//! the process that holds it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};

use tempfile::TempDir;

const PREPARE: &str = include_str!("prepare.sh");
/// The directory of the packages; `packaging/test` sets it.
const PACKAGES: &str = "EDGESYNC_TEST_PACKAGES";
/// The directory of another system's root; `packaging/test --cross` sets it.
const SYSTEM: &str = "EDGESYNC_TEST_ROOT";
/// Debian installs half of the programs in directories of root's PATH only.
pub(super) const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A throw-away root; its processes end when it is dropped.
pub(crate) struct Root {
    holder: Child,
    /// Its end closes the pipe and ends the holder, even if this process is killed.
    _open: ChildStdin,
    /// The outer id of the inner process.
    inside: u32,
    directory: TempDir,
}

/// The owner of a file, and its permission bits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) user: String,
    pub(crate) group: String,
    pub(crate) mode: u32,
}

impl Owner {
    pub(crate) fn new(user: &str, group: &str, mode: u32) -> Self {
        Self { user: user.to_owned(), group: group.to_owned(), mode }
    }
}

impl Root {
    /// Creates a fresh root; `None`, with a notice, if this machine does not permit it.
    pub(crate) fn new() -> Option<Self> {
        let packages = packages();
        let directory = tempfile::tempdir().unwrap();
        let mut holder = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL"])
            .args(["sh", "-c", PREPARE, "prepare"])
            .args([directory.path(), &packages])
            .arg(std::env::var_os(SYSTEM).unwrap_or_else(|| "/".into()))
            .env("PATH", SEARCH_PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("unshare, of util-linux");
        let open = holder.stdin.take().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(inside) = line.strip_prefix("ready ").and_then(|pid| pid.trim().parse().ok()) else {
            drop(open);
            let why = holder.wait_with_output().unwrap();
            let why = String::from_utf8_lossy(&why.stderr).into_owned();
            eprintln!(
                "notice: no throw-away root can be made here, so the packages were not installed and this test \
                 has shown nothing; it needs root, mount and network namespaces, overlayfs and ip: {why}"
            );
            return None;
        };
        Some(Self { holder, _open: open, inside, directory })
    }

    /// Prepares a command inside the root.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        self.command_with(&["--root", "--", "env", "--chdir=/"], words)
    }

    /// Prepares a command in the namespaces of the root, with the files of this machine.
    pub(super) fn command_outside(&self, words: &[&str]) -> Command {
        self.command_with(&["--"], words)
    }

    fn command_with(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.inside.to_string()]);
        command.args(["--mount", "--net", "--pid", "--uts", "--ipc"]).args(options);
        command
            .args(words)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
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
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        succeeded(words, &child.wait_with_output().unwrap())
    }

    /// Returns the outer path of an inner one.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.inside))
    }

    pub(crate) fn exists(&self, inside: &str) -> bool {
        self.path(inside).symlink_metadata().is_ok()
    }

    pub(crate) fn read(&self, inside: &str) -> String {
        fs::read_to_string(self.path(inside)).unwrap_or_else(|error| panic!("{inside}: {error}"))
    }

    pub(crate) fn write(&self, inside: &str, text: &str) {
        fs::write(self.path(inside), text).unwrap_or_else(|error| panic!("{inside}: {error}"));
    }

    /// Returns the sorted entries of a directory.
    pub(crate) fn names(&self, inside: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(inside)).unwrap_or_else(|error| panic!("{inside}: {error}"));
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Returns owner and mode, with the names of the inner system.
    pub(crate) fn owner(&self, inside: &str) -> Owner {
        let found = self.path(inside).symlink_metadata();
        let found = found.unwrap_or_else(|error| panic!("{inside}: {error}"));
        Owner {
            user: self.name_of("/etc/passwd", found.uid()),
            group: self.name_of("/etc/group", found.gid()),
            mode: found.mode() & 0o7777,
        }
    }

    fn name_of(&self, table: &str, id: u32) -> String {
        let named = |line: &&str| line.split(':').nth(2) == Some(&id.to_string());
        let table = self.read(table);
        let line = table.lines().find(named);
        line.and_then(|line| line.split(':').next()).map_or_else(|| id.to_string(), str::to_owned)
    }

    pub(crate) fn has_user(&self, name: &str) -> bool {
        let starts = |table: &str| self.read(table).lines().any(|line| line.split(':').next() == Some(name));
        starts("/etc/passwd") || starts("/etc/group")
    }

    /// Returns all paths that differ from this machine and contain `part`, without the cache of
    /// man.
    pub(crate) fn left_over(&self, part: &str) -> Vec<String> {
        let upper = format!("/proc/{}/root{}/upper", self.holder.id(), self.directory.path().display());
        let mut found = Vec::new();
        let mut open = vec![PathBuf::from(&upper)];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
                let metadata = entry.path().symlink_metadata().unwrap();
                // In an overlay, a character device with the number 0 marks a removed file.
                let path = entry.path();
                let inside = path.strip_prefix(&upper).unwrap().display().to_string();
                let is_gone = metadata.rdev() == 0 && metadata.mode() & 0o170_000 == 0o020_000;
                if inside.contains(part) && !is_gone && !inside.starts_with("var/cache/man/") {
                    found.push(format!("/{inside}"));
                }
                if metadata.is_dir() {
                    open.push(path);
                }
            }
        }
        found.sort();
        found
    }

    /// Returns the path of the package of this name in a directory of the root.
    pub(crate) fn package(&self, directory: &str, name: &str) -> String {
        let is_it = |file: &String| {
            file.starts_with(&format!("{name}_"))
                && Path::new(file).extension().is_some_and(|end| end == "deb")
        };
        let files: Vec<String> = self.names(directory).into_iter().filter(is_it).collect();
        assert_eq!(files.len(), 1, "one package of {name} in {directory}: {files:?}");
        format!("{directory}/{}", files[0])
    }

    /// Returns the directory that has the root as `root`, in its namespace of mounts.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the path of a service's log, outside the root.
    pub(crate) fn log_file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // Process 1 of its namespace: all others end with it.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Returns the directory of the packages.
pub(crate) fn packages() -> PathBuf {
    let set = std::env::var_os(PACKAGES);
    PathBuf::from(
        set.unwrap_or_else(|| panic!("{PACKAGES} is not set: packaging/test builds packages and sets it")),
    )
}

pub(super) fn succeeded(words: &[&str], output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{words:?} ended with {}\n{out}{err}", output.status);
    out
}
