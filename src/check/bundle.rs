//! What a report of a problem needs, without secrets, in one archive: `edgesync support-bundle`.
//!
//! Every text goes through [`redact`] on its way in; files that hold secrets are listed, never read into it.

mod archive;
#[cfg(feature = "cloud")]
pub mod cloud_side;
mod redact;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Report, chain, size};
use crate::VERSION;
use crate::api::{Client, ClientError};
use crate::config;
use crate::config::edge::Config;
use crate::object::sort_many;
use crate::store::durable::directory_of;
use crate::store::edge::inspect;
use crate::sync::compression;
use redact::Redactor;

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

const README: &str = "\
A report of an edgesync agent. It holds no Secrets, tokens, passwords or keys; what looked like one is <redacted>.

check.json           what 'edgesync check' found
versions.txt         of the program and of the database's schema
config.toml          the configuration in force, each value with where it comes from
status.json          what the agent says of itself
traffic.json         what went through its link
metrics.txt          its metrics
syncs.txt            how many objects are recorded as held
directories.txt      files beside database, identity and socket: mode, owner, size, time
system.txt           kernel, distribution, memory, disk, mounts
journal.txt          the journal of the unit, of the last day

What could not be had says why.
";

/// What is read on a thread of its own.
type Beside = Box<dyn FnOnce() -> String + Send>;

/// Files by their names.
#[derive(Default)]
pub struct Bundle {
    files: Vec<(String, Vec<u8>)>,
    redactor: Redactor,
}

/// Collects everything; what cannot be had is noted in its place.
pub async fn collect(config_path: &Path, report: &Report, client: &Client) -> Bundle {
    let loaded = config::load::<Config>(config_path);
    let config = loaded.as_ref().map(|loaded| loaded.config.clone()).unwrap_or_default();
    let mut bundle = Bundle { files: Vec::new(), redactor: redactor(&config) };
    bundle.text("README.txt", README);
    bundle.json("check.json", &report.to_json());
    bundle.text("versions.txt", &versions(&config));
    match &loaded {
        Ok(loaded) => bundle.text("config.toml", &loaded.show()),
        // The lines in question are not shown: nobody knows what is in them.
        Err(_) => bundle.text("config.toml", "# It cannot be read: see check.json.\n"),
    }
    for (name, path) in [("status.json", "/edgesync/v1/status"), ("traffic.json", "/edgesync/v1/traffic")] {
        let answer = answered(client.get::<Value>(path)).await;
        bundle.json(name, &answer.unwrap_or_else(|problem| json!({ "error": problem })));
    }
    bundle.metrics(client).await;
    bundle.text("syncs.txt", &syncs(client).await);
    let own = config.clone();
    let beside: [(&str, Beside); 3] = [
        ("directories.txt", Box::new(move || directories(&own))),
        ("system.txt", Box::new(move || system(&config.store.path))),
        ("journal.txt", Box::new(|| journal("edgesync.service"))),
    ];
    bundle.beside(beside).await;
    bundle
}

impl Bundle {
    /// Adds the metrics that a process tells.
    async fn metrics(&mut self, client: &Client) {
        let metrics = answered(client.text("/metrics")).await;
        self.text("metrics.txt", &metrics.unwrap_or_else(|problem| format!("{problem}\n")));
    }

    /// Adds what the system says, each as far as it is to be had in time.
    async fn beside(&mut self, works: [(&str, Beside); 3]) {
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
        let files = self.files.iter().map(|(name, content)| (name.as_str(), content.as_slice()));
        compression::compress(&archive::tar(files, Timestamp::now().as_second()))
    }

    /// The names of the files, and their sizes in bytes.
    pub fn contents(&self) -> impl Iterator<Item = (&str, usize)> {
        self.files.iter().map(|(name, content)| (name.as_str(), content.len()))
    }

    fn text(&mut self, name: &str, text: &str) {
        let most = if name == "journal.txt" { JOURNAL_BYTES as usize } else { FILE_BYTES };
        let mut text = self.redactor.text(text);
        if text.len() > most {
            text.truncate(text.floor_char_boundary(most));
            text.push_str("\n(cut off here)\n");
        }
        self.files.push((format!("{TOP}/{name}"), text.into_bytes()));
    }

    fn json(&mut self, name: &str, value: &Value) {
        let text = format!("{:#}\n", self.redactor.json(value));
        self.files.push((format!("{TOP}/{name}"), text.into_bytes()));
    }
}

/// Knows the secrets in the files of this device.
fn redactor(config: &Config) -> Redactor {
    let kubeconfig = &config.api.kubeconfig;
    let files = [
        config.link.password_file.clone(),
        Some(kubeconfig.with_file_name("token")),
        Some(kubeconfig.with_file_name("token-secrets")),
        Some(config.seal.key_file.clone()),
    ];
    let texts = files.into_iter().flatten().filter_map(|path| fs::read_to_string(path).ok());
    let values: Vec<String> =
        texts.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    // Words of the key file that are no keys, such as its title, are short or have a hyphen in them; or are times.
    let values = values.into_iter().filter(|value| value.len() >= 20 || config.link.password_file.is_some());
    let values = values.filter(|value| value.parse::<Timestamp>().is_err());
    let names = inspect::private_names(&config.store.path, &config.seal.kinds).unwrap_or_default();
    Redactor::new(values, names)
}

fn versions(config: &Config) -> String {
    let schema = match inspect::schema(&config.store.path) {
        Ok(schema) => format!("{} of {}", schema.found, schema.known),
        Err(error) => chain(&error),
    };
    format!(
        "edgesync {VERSION}\narchitecture {}\ntime {}\nschema {schema}\n",
        std::env::consts::ARCH,
        Timestamp::now()
    )
}

/// An answer of the agent within the time for it, or why there is none.
async fn answered<T>(answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, String> {
    match timeout(ANSWER, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no answer within {} s", ANSWER.as_secs())),
    }
}

/// How many ObjectSync records there are; what they are of is told by no more than their number.
async fn syncs(client: &Client) -> String {
    let mut out = String::new();
    for plural in ["objectsyncs", "clusterobjectsyncs"] {
        let path = format!("/apis/reliablesyncs.kubeedge.io/v1alpha1/{plural}?limit=1");
        let count = answered(client.get::<Value>(&path)).await.map(|list| {
            let rest = list.pointer("/metadata/remainingItemCount").and_then(Value::as_u64).unwrap_or(0);
            list.get("items").and_then(Value::as_array).map_or(0, Vec::len) as u64 + rest
        });
        let _ = match count {
            Ok(count) => writeln!(out, "{plural} {count}"),
            Err(problem) => writeln!(out, "{plural}: {problem}"),
        };
    }
    out
}

fn directories(config: &Config) -> String {
    let mut places = vec![directory_of(&config.store.path), directory_of(&config.api.socket)];
    places.extend(config.identity.directory.as_deref());
    places.extend([directory_of(&config.seal.key_file), directory_of(&config.api.kubeconfig)]);
    places.dedup();
    let mut out = String::new();
    for place in places {
        let _ = writeln!(out, "{}:", place.display());
        list(place, &mut out);
        out.push('\n');
    }
    out
}

fn list(directory: &Path, out: &mut String) {
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
    sort_many(&mut lines, Ord::cmp);
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
}

fn system(store: &Path) -> String {
    let mut out = String::new();
    for path in ["/proc/version", "/etc/os-release", "/proc/uptime", "/proc/loadavg", "/proc/meminfo"] {
        let text = fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
        let _ = writeln!(out, "# {path}\n{}\n", text.lines().take(20).collect::<Vec<_>>().join("\n"));
    }
    let directory = super::disk_space::existing(directory_of(store));
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
fn journal(unit: &str) -> String {
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

#[cfg(test)]
mod tests;
