//! A slow line: the bytes that cross it in both directions, beside the bytes needed.
//!
//! The line is emulated in user space: a bandwidth and a delay for each direction, with minimal
//! buffers, and cuts at an interval. The bytes needed are those of the same transfer on an
//! unlimited line, where nothing is sent twice: that is checked.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use edgesync_admin::Route;
use edgesync_admin::cloud::NodeInfo;
use edgesync_api::{Address, Client};
use serde_json::{Value, json};
use socket2::{Domain, SockRef, Socket, Type};

use crate::objects::{Random, object};
use crate::processes::{Process, cloud_program, collection, edge_program, free_port, spawn};
use crate::table::Table;
use crate::tls;
use edgesync_testkit::site::ask;

/// Bytes per second in each direction.
const RATE: u32 = 10_000;
/// Delay of each direction.
const DELAY: Duration = Duration::from_millis(100);
/// A read that blocks longer than this found the line empty.
const WAITED: Duration = Duration::from_millis(1);
/// Bytes carried at a time.
const PIECE: usize = 512;
/// Approximate receive buffer of the line: the system doubles it.
const WAITING: usize = 4 << 10;
/// Number of objects of about 1 KB.
const SMALL: usize = 1000;
/// Bytes of the large object, which hardly compress.
const LARGE: usize = 4 << 20;
/// The large object takes seven minutes; much more is a failure.
const TIMEOUT: Duration = Duration::from_secs(660);
/// Durations of the connections over a line that is cut.
const OFTEN: Duration = Duration::from_secs(30);
const SELDOM: Duration = Duration::from_secs(120);

/// The properties of a line; the default is without limits.
#[derive(Clone, Copy, Default)]
struct Limits {
    /// Bytes per second in each direction.
    rate: Option<u32>,
    /// The time after which a connection is cut.
    cut_after: Option<Duration>,
}

/// A line to a port of this machine.
struct Line {
    port: u16,
    carried: Arc<AtomicU64>,
}

impl Line {
    /// Creates a line; slow with a rate.
    fn new(to: u16, limits: Limits) -> anyhow::Result<Self> {
        let Limits { rate, cut_after } = limits;
        let (port, carried) = (free_port(), Arc::<AtomicU64>::default());
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        if rate.is_some() {
            SockRef::from(&listener).set_recv_buffer_size(WAITING)?;
        }
        let count = Arc::clone(&carried);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(near), Ok(far)) = (stream, reach(to, rate.is_some())) else { continue };
                for stream in [&near, &far] {
                    let _ = stream.set_nodelay(true);
                }
                carry(&near, &far, rate, &count);
                carry(&far, &near, rate, &count);
                if let Some(time) = cut_after {
                    cut(near, far, time);
                }
            }
        });
        Ok(Self { port, carried })
    }

    fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }
}

/// Cuts a connection after this time.
fn cut(near: TcpStream, far: TcpStream, time: Duration) {
    std::thread::spawn(move || {
        let end = Instant::now() + time;
        // A thread may wake early.
        while let Some(rest) = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
            std::thread::park_timeout(rest);
        }
        for stream in [near, far] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

/// Connects with the small buffer set first, because the system derives the TCP window from it.
fn reach(port: u16, is_slow: bool) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if is_slow {
        socket.set_recv_buffer_size(WAITING)?;
    }
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into())?;
    Ok(socket.into())
}

/// Copies one direction: one thread reads at the line's rate, another writes after the delay.
#[allow(clippy::disallowed_methods)] // the line is slow on purpose
fn carry(from: &TcpStream, to: &TcpStream, rate: Option<u32>, carried: &Arc<AtomicU64>) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    let carried = Arc::clone(carried);
    let (sender, pieces) = sync_channel::<(Instant, Vec<u8>)>(4096);
    std::thread::spawn(move || {
        let mut buffer = vec![0; if rate.is_some() { PIECE } else { 64 << 10 }];
        let (mut asked, mut free) = (Instant::now(), Instant::now());
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let now = Instant::now();
            let at = match rate {
                Some(rate) => {
                    // A thread that wakes late does not slow the line while data is queued.
                    let begun = if now - asked > WAITED { free.max(now) } else { free };
                    free = begun + Duration::from_secs(length as u64) / rate;
                    std::thread::park_timeout(free.saturating_duration_since(now));
                    asked = Instant::now();
                    free + DELAY
                }
                None => now,
            };
            if sender.send((at, buffer.get(..length).unwrap_or_default().to_vec())).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Read);
    });
    std::thread::spawn(move || {
        for (at, piece) in pieces {
            std::thread::park_timeout(at.saturating_duration_since(Instant::now()));
            carried.fetch_add(piece.len() as u64, Ordering::Relaxed);
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// A cloud side with the embedded endpoint, one node, joined if there is TLS, and the line between
/// them.
struct Installation {
    root: tempfile::TempDir,
    line: Line,
    runtime: tokio::runtime::Runtime,
    _cloud: Process,
}

impl Installation {
    fn new(with_tls: bool, limits: Limits) -> anyhow::Result<Self> {
        let root = tempfile::tempdir()?;
        let path = root.path().display();
        let (broker, joining) = (free_port(), free_port());
        let line = Line::new(broker, limits)?;
        let (tls, enrollment, link) = if with_tls {
            let enrollment =
                format!("listen = \"127.0.0.1:{joining}\"\nbroker_url = \"mqtts://127.0.0.1:{}\"", line.port);
            ("on", enrollment, String::new())
        } else {
            let link = format!("[link]\nbroker = \"mqtt://127.0.0.1:{}\"\n", line.port);
            ("off", "listen = \"off\"".to_owned(), link)
        };
        let log = "[log]\nformat = \"text\"\nlevel = \"info\"\n";
        let cloud = format!(
            "[store]\npath = \"{path}/cloud.db\"\n[broker]\nlisten = \"127.0.0.1:{broker}\"\ntls = \"{tls}\"\n[api]\n\
             socket = \"{path}/cloud.sock\"\nlisten = \"127.0.0.1:0\"\nmax_body = \"16MiB\"\n[enrollment]\n{enrollment}\n{log}[[placement]]\n\
             nodes = {{ names = [\"*\"] }}\nobjects = {{ kinds = [\"ConfigMap\", \"Secret\", \"Pod\"] }}\n",
        );
        let edge = format!(
            "[node]\nname = \"edge-1\"\n[store]\npath = \"{path}/edge.db\"\n{link}[api]\nsocket = \"{path}/edge.sock\"\n\
             listen = \"127.0.0.1:0\"\n{log}",
        );
        std::fs::write(root.path().join("cloud.toml"), cloud)?;
        std::fs::write(root.path().join("edge.toml"), edge)?;
        let cloud = spawn(cloud_program(), &root.path().join("cloud.toml"), &root.path().join("cloud.log"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let site = Self { root, line, runtime, _cloud: cloud };
        crate::processes::until("the cloud's API answers", || site.cloud_version().ok())?;
        if with_tls {
            tls::join(&site.path("edge.toml"), &site.path("cloud.sock"), joining)?;
        }
        Ok(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.root.path()).join(name)
    }

    fn client(&self) -> Client {
        Client::new(Address::Unix(self.path("cloud.sock")))
    }

    fn cloud_version(&self) -> anyhow::Result<Value> {
        Ok(self.runtime.block_on(self.client().get("/version"))?)
    }

    /// Returns the node; `None` before its first Hello.
    fn node(&self) -> Option<NodeInfo> {
        self.runtime.block_on(ask(&self.client(), Route::Node("edge-1"))).ok()
    }

    /// Returns the bytes that cross the line until the node holds the objects, the time, and how
    /// many objects were resent.
    #[allow(clippy::disallowed_methods)] // a measurement looks now and then
    fn fill(&self, objects: &[Value]) -> anyhow::Result<Crossing> {
        for object in objects {
            self.runtime.block_on(self.client().post::<Value>(&collection(object), object))?;
        }
        let start = Instant::now();
        let _agent = spawn(edge_program(), &self.path("edge.toml"), &self.path("edge.log"))?;
        loop {
            std::thread::park_timeout(Duration::from_millis(50));
            let node = self.node();
            let served = node.as_ref().and_then(NodeInfo::served);
            let counters = served.map(|node| node.counters).unwrap_or_default();
            let resent = counters.objects_resent;
            let crossing = Crossing { bytes: self.line.carried(), time: start.elapsed(), resent };
            if node
                .is_some_and(|node| node.state() == "in sync" && node.objects() == Some(objects.len() as u64))
            {
                return Ok(crossing);
            }
            if crossing.time > TIMEOUT {
                let kilobytes = crossing.bytes / 1000;
                bail!("not in sync after {TIMEOUT:?}: {kilobytes} KB sent, {} Hellos", counters.hellos);
            }
        }
    }
}

/// Traffic of a line, in both directions.
struct Crossing {
    bytes: u64,
    time: Duration,
    resent: u64,
}

/// Returns an object that hardly compresses.
fn large() -> Value {
    let mut random = Random(7);
    // Base64: six bits per letter.
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text: String = (0..LARGE).map(|_| char::from(letters[(random.next() % 64) as usize])).collect();
    let metadata = json!({"name": "large", "namespace": "plant-0"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"firmware": text}})
}

fn measure(with_tls: bool, limits: Limits, objects: &[Value]) -> anyhow::Result<Crossing> {
    Installation::new(with_tls, limits)?.fill(objects)
}

/// Runs all cases concurrently, each on its own line: together they take as long as the longest.
pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    crate::processes::edge_program();
    let small: Vec<Value> = (0..SMALL).map(|number| object(number, 0)).collect();
    let large = vec![large()];
    let cases = [
        ("1,000 objects of 1 KB", &small, false, None),
        ("1,000 objects of 1 KB over TLS", &small, true, None),
        ("one object of 4 MiB that hardly compresses", &large, false, None),
        ("one object of 4 MiB that hardly compresses, over TLS", &large, true, None),
        ("the same object, cut every 30 s", &large, false, Some(OFTEN)),
        ("the same object, cut every 120 s", &large, false, Some(SELDOM)),
        ("the same object, cut every 120 s, over TLS", &large, true, Some(SELDOM)),
    ];
    let results = std::thread::scope(|scope| {
        let runs = cases.map(|(what, objects, with_tls, cut_after)| {
            let run = scope.spawn(move || {
                let needed = measure(with_tls, Limits::default(), objects).context("without limits")?;
                anyhow::ensure!(
                    needed.resent == 0,
                    "{} objects were sent twice unnecessarily",
                    needed.resent
                );
                let slow = Limits { rate: Some(RATE), cut_after };
                anyhow::Ok((needed, measure(with_tls, slow, objects)?))
            });
            (what, run)
        });
        runs.map(|(what, run)| (what, run.join()))
    });
    for (what, result) in results {
        let what = format!("10 KB/s, 200 ms: {what}: bytes sent / needed");
        match result {
            Ok(Ok((needed, sent))) => {
                let ratio = sent.bytes as f64 / needed.bytes as f64;
                let measured = format!(
                    "{:.0} KB / {:.0} KB = {ratio:.2}; {:.0} s, {} sent again",
                    sent.bytes as f64 / 1e3,
                    needed.bytes as f64 / 1e3,
                    sent.time.as_secs_f64(),
                    sent.resent
                );
                table.budget(&what, measured, "≤ 1.1", ratio <= 1.1);
            }
            Ok(Err(error)) => table.budget(&what, format!("{error:#}"), "≤ 1.1", false),
            Err(_) => bail!("a run ended with a panic"),
        }
    }
    Ok(())
}
