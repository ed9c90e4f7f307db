//! What a report of a problem needs, without secrets, in one archive: `support-bundle` of both programs.
//!
//! Every text goes through [`redact`] on its way in; files that hold secrets are listed, never read into it.

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
use serde_json::Value;
use tokio::time::timeout;

use edgesync_api::{Client, ClientError};
use edgesync_protocol::compression;
use edgesync_runtime::chain;
use edgesync_store::durable::directory_of;

use crate::check::size;

pub use redact::Redactor;

/// The directory in the archive.
const TOP: &str = "edgesync-support";
/// The most of the journal, in bytes.
const JOURNAL_BYTES: u64 = 5 << 20;
/// The most of anything else, in bytes.
const FILE_BYTES: usize = 4 << 20;
/// Files of a directory that are listed.
const LISTED: usize = 1000;
/// How long one question to the agent may take.
const ANSWER: Duration = Duration::from_secs(10);
/// How long what runs beside may take.
const BESIDE: Duration = Duration::from_secs(20);

/// What is read on a thread of its own.
pub type Beside = Box<dyn FnOnce() -> String + Send>;

/// Files by their names.
#[derive(Default)]
pub struct Bundle {
    pub files: Vec<(String, Vec<u8>)>,
    redactor: Redactor,
}

impl Bundle {
    /// An empty one, that leaves out what the redactor knows.
    #[must_use]
    pub fn new(redactor: Redactor) -> Self {
        Self { files: Vec::new(), redactor }
    }

    /// Adds the metrics that a process tells.
    pub async fn metrics(&mut self, client: &Client) {
        let metrics = answered(client.text("/metrics")).await;
        self.text("metrics.txt", &metrics.unwrap_or_else(|problem| format!("{problem}\n")));
    }

    /// Adds what the system says, each as far as it is to be had in time.
    pub async fn beside(&mut self, works: [(&str, Beside); 3]) {
        for (name, work) in works {
            let done = timeout(BESIDE, tokio::task::spawn_blocking(work)).await;
            let text = done.ok().and_then(Result::ok);
            self.text(
                name,
                &text.unwrap_or_else(|| format!("not to be had within {} s\n", BESIDE.as_secs())),
            );
        }
    }

    /// The archive, compressed.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn pack(&self) -> io::Result<Vec<u8>> {
        compression::compress(&archive::tar(self.files(), Timestamp::now().as_second()))
    }

    /// The files: name, within the directory of the archive, and content.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(name, content)| (name.as_str(), content.as_slice()))
    }

    /// Adds a text, without secrets.
    pub fn text(&mut self, name: &str, text: &str) {
        let most = if name == "journal.txt" { JOURNAL_BYTES as usize } else { FILE_BYTES };
        let mut text = self.redactor.text(text);
        if text.len() > most {
            text.truncate(text.floor_char_boundary(most));
            text.push_str("\n(cut off here)\n");
        }
        self.files.push((format!("{TOP}/{name}"), text.into_bytes()));
    }

    /// Adds a document, without secrets.
    pub fn json(&mut self, name: &str, value: &Value) {
        let text = format!("{:#}\n", self.redactor.json(value));
        self.files.push((format!("{TOP}/{name}"), text.into_bytes()));
    }
}

/// An answer of the agent within the time for it, or why there is none.
pub async fn answered<T>(answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, String> {
    match timeout(ANSWER, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no answer within {} s", ANSWER.as_secs())),
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
        .take(LISTED)
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

/// Kernel, distribution, memory, disk and mounts.
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

/// The journal of the last day, the newest part of it if it is long.
#[must_use]
pub fn journal(unit: &str) -> String {
    let mut command = Command::new("journalctl");
    command.args(["-u", unit, "--since", "-1d", "--no-pager", "-o", "short-iso", "-r"]);
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) => return format!("journalctl cannot be run: {error}\n"),
    };
    let mut bytes = Vec::new();
    let read =
        child.stdout.take().map_or(Ok(0), |out| out.take(JOURNAL_BYTES - 1024).read_to_end(&mut bytes));
    // It may still want to write what is not wanted any more.
    let _ = child.kill();
    let _ = child.wait();
    if let Err(error) = read {
        return format!("the journal cannot be read: {error}\n");
    }
    let mut lines: Vec<String> = String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect();
    lines.reverse();
    match lines.is_empty() {
        true => "the journal has nothing of this unit, or may not be read by this user\n".to_owned(),
        false => lines.join("\n") + "\n",
    }
}

/// The directory, or the nearest one above it that exists.
#[must_use]
pub fn existing(directory: &Path) -> &Path {
    directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"))
}
