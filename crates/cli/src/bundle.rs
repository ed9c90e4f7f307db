//! Support bundle: everything needed to diagnose a problem, without secrets, in one archive.
//!
//! All text passes through [`redact`]; files with secrets are listed but never included.

mod archive;
mod redact;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::time::timeout;

use edgesync_api::{Client, ClientError};
use edgesync_protocol::compression;
use edgesync_runtime::chain;
use edgesync_store::durable::directory_of;

use crate::check::size;

pub use redact::Redactor;

/// The directory in the archive.
const TOP: &str = "edgesync-support";
/// Limit of the journal, in bytes.
const JOURNAL_BYTES: u64 = 5 << 20;
/// Limit of any other file, in bytes.
const FILE_BYTES: usize = 4 << 20;
/// The most files listed per directory.
const MAX_LISTED: usize = 1000;
/// Time limit of a request to the agent.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a job on another thread.
const JOB_TIMEOUT: Duration = Duration::from_secs(20);

/// A blocking job that runs on its own thread.
pub type BlockingJob = Box<dyn FnOnce() -> String + Send>;

/// Named files of a bundle.
#[derive(Default)]
pub struct Bundle {
    pub files: Vec<(String, Vec<u8>)>,
    redactor: Redactor,
}

impl Bundle {
    /// Creates an empty bundle that redacts the known secrets.
    #[must_use]
    pub fn new(redactor: Redactor) -> Self {
        Self { files: Vec::new(), redactor }
    }

    /// Adds the metrics of a process.
    pub async fn metrics(&mut self, client: &Client) {
        let metrics = answered(client.text("/metrics")).await;
        self.text("metrics.txt", &metrics.unwrap_or_else(|problem| format!("{problem}\n")));
    }

    /// Adds the output of blocking jobs, with a note for each that times out.
    pub async fn beside(&mut self, works: [(&str, BlockingJob); 3]) {
        for (name, work) in works {
            let done = timeout(JOB_TIMEOUT, tokio::task::spawn_blocking(work)).await;
            let text = done.ok().and_then(Result::ok);
            self.text(
                name,
                &text.unwrap_or_else(|| format!("timed out after {} s\n", JOB_TIMEOUT.as_secs())),
            );
        }
    }

    /// Returns the compressed archive.
    ///
    /// # Errors
    /// Memory is exhausted.
    pub fn pack(&self) -> io::Result<Vec<u8>> {
        compression::compress(&archive::tar(self.files(), Timestamp::now().as_second()))
    }

    /// Returns the files: name within the archive's directory, and content.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(name, content)| (name.as_str(), content.as_slice()))
    }

    /// Adds a redacted text.
    pub fn text(&mut self, name: &str, text: &str) {
        let most = if name == "journal.txt" { JOURNAL_BYTES as usize } else { FILE_BYTES };
        let mut text = self.redactor.text(text);
        if text.len() > most {
            text.truncate(text.floor_char_boundary(most));
            text.push_str("\n(truncated)\n");
        }
        self.files.push((format!("{TOP}/{name}"), text.into_bytes()));
    }

    /// Adds a redacted JSON document.
    pub fn json(&mut self, name: &str, document: &impl Serialize) {
        let text = match edgesync_admin::write(document) {
            Ok(value) => format!("{:#}\n", self.redactor.json(&value)),
            Err(error) => format!("{error}\n"),
        };
        self.files.push((format!("{TOP}/{name}"), text.into_bytes()));
    }
}

/// Returns a response within the time limit, or the reason for its absence.
pub async fn answered<T>(answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, String> {
    match timeout(RESPONSE_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no response within {} s", RESPONSE_TIMEOUT.as_secs())),
    }
}

/// Lists the files of a directory: mode, owner, size, time.
pub fn list(directory: &Path, out: &mut String) {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            let _ = writeln!(out, "  {error}");
            return;
        }
    };
    let mut lines: Vec<String> = entries
        .flatten()
        .take(MAX_LISTED)
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.metadata() {
                Ok(found) => {
                    let time = Timestamp::from_second(found.mtime())
                        .map(|time| time.to_string())
                        .unwrap_or_default();
                    format!(
                        "  {name}  {:06o}  {}:{}  {} bytes  {time}",
                        found.mode(),
                        found.uid(),
                        found.gid(),
                        found.len()
                    )
                }
                Err(error) => format!("  {name}  {error}"),
            }
        })
        .collect();
    lines.sort_unstable();
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
}

/// Reports kernel, distribution, memory, disk and mounts.
#[must_use]
pub fn system(store: &Path) -> String {
    let mut out = String::new();
    for path in ["/proc/version", "/etc/os-release", "/proc/uptime", "/proc/loadavg", "/proc/meminfo"] {
        let text = fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
        let _ = writeln!(out, "# {path}\n{}\n", text.lines().take(20).collect::<Vec<_>>().join("\n"));
    }
    let directory = existing(directory_of(store));
    if let Ok(found) = rustix::fs::statvfs(directory) {
        let bytes = |blocks: u64| size(blocks.saturating_mul(found.f_frsize));
        let (free, all) = (bytes(found.f_bavail), bytes(found.f_blocks));
        let _ = writeln!(
            out,
            "# {}\n{free} free of {all}, {} inodes free\n",
            directory.display(),
            found.f_favail
        );
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let concerns = |line: &&str| line.split(' ').nth(1).is_some_and(|place| directory.starts_with(place));
    let _ = writeln!(out, "# mounts\n{}", mounts.lines().filter(concerns).collect::<Vec<_>>().join("\n"));
    out
}

/// Returns the journal of the last day, truncated to the newest part.
#[must_use]
pub fn journal(unit: &str) -> String {
    let mut command = Command::new("journalctl");
    command.args(["-u", unit, "--since", "-1d", "--no-pager", "-o", "short-iso", "-r"]);
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) => return format!("run journalctl: {error}\n"),
    };
    let mut bytes = Vec::new();
    let read =
        child.stdout.take().map_or(Ok(0), |out| out.take(JOURNAL_BYTES - 1024).read_to_end(&mut bytes));
    // It may still be writing beyond the limit.
    let _ = child.kill();
    let _ = child.wait();
    if let Err(error) = read {
        return format!("read journal: {error}\n");
    }
    let mut lines: Vec<String> = String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect();
    lines.reverse();
    match lines.is_empty() {
        true => "no entries of this unit, or no permission to read the journal\n".to_owned(),
        false => lines.join("\n") + "\n",
    }
}

/// Returns the directory, or its nearest existing ancestor.
#[must_use]
pub fn existing(directory: &Path) -> &Path {
    directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"))
}
