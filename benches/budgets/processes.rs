//! Cloud, mosquitto and agent as separate processes, as in production.

use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use edgesync::store::{EdgeOptions, EdgeStore};
use edgesync_admin::agent::AgentStatus;
use edgesync_admin::cloud::state::OFFLINE;
use edgesync_admin::cloud::{NodeInfo, NodeList};
use edgesync_admin::{Answer, Route};
use edgesync_api::{Address, Client};
use edgesync_object::Budget;
use edgesync_protocol::frame::Received;
use serde_json::Value;

use crate::objects::object;
use crate::table::Table;
use edgesync_testkit::line::{Authority, Endpoint};
use edgesync_testkit::mosquitto::{Mosquitto, free_address};
use edgesync_testkit::proxy::{Mode, Proxy, Way};
use edgesync_testkit::site::ask;

const TIMEOUT: Duration = Duration::from_secs(120);

/// A child process, killed and reaped on drop. It writes its log to a file: reading a pipe would
/// compete with what is measured.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(mut command: Command) -> anyhow::Result<Self> {
        Ok(Self(command.spawn()?))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) -> anyhow::Result<()> {
        let sent = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status()?;
        anyhow::ensure!(sent.success(), "the signal {name} could not be sent");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the median of some figures.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// The files and processes of one installation.
pub(crate) struct Site {
    directory: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    /// A line for agents whose link is cut.
    line: Proxy,
    /// The line of the cloud side, if it has one.
    cloud_line: Option<Proxy>,
    mosquitto: Mosquitto,
    _cloud: Process,
}

/// Returns an unused port below the ephemeral range: connections cannot take it meanwhile.
pub(crate) fn free_port() -> u16 {
    free_address().port()
}

/// Lets connections through a line, or closes all and refuses new ones.
pub(crate) fn connect(line: &Proxy, is_up: bool) {
    line.set(if is_up { Mode::Pass } else { Mode::Refuse });
    if !is_up {
        line.cut();
    }
}

/// Returns the bytes that a line has carried in both directions.
pub(crate) fn carried(line: &Proxy) -> u64 {
    line.passed(Way::Up) + line.passed(Way::Down)
}

pub(crate) fn until<T>(what: &str, ready: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    until_polled(Duration::from_millis(2), what, ready)
}

/// Like [`until`], with its own polling interval, which is part of the measurement.
pub(crate) fn until_polled<T>(
    every: Duration,
    what: &str,
    mut ready: impl FnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = ready() {
            return Ok(value);
        }
        if Instant::now() > end {
            bail!("{what} did not happen within {TIMEOUT:?}");
        }
        std::thread::park_timeout(every);
    }
}

/// Returns the agent, built as for devices, or the one that `EDGESYNC_TEST_DEVICE` names. Cargo
/// rebuilds it only after changes.
pub(crate) fn edge_program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        std::env::var_os("EDGESYNC_TEST_DEVICE").map_or_else(
            || built(&["--profile", "edge", "--package", "edgesync"], "edge/edgesync"),
            PathBuf::from,
        )
    })
}

/// Returns the cloud side, built as for a release, with support for clusters, or the one that
/// `EDGESYNC_TEST_CLOUD` names.
pub(crate) fn cloud_program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        std::env::var_os("EDGESYNC_TEST_CLOUD").map_or_else(
            || {
                let build = ["--release", "--package", "edgesync-cloud", "--all-features"];
                built(&build, "release/edgesync-cloud")
            },
            PathBuf::from,
        )
    })
}

fn built(build: &[&str], program: &str) -> PathBuf {
    let mut command = Command::new(env!("CARGO"));
    // Build scripts depend on these variables: with those of this package, cargo would compile
    // libraries again.
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars().filter(|(name, _)| of_package(name)) {
        command.env_remove(name);
    }
    let status = command.arg("build").args(build).current_dir(edgesync_testkit::programs::root()).status();
    assert!(status.is_ok_and(|status| status.success()), "cargo build {} failed", build.join(" "));
    // target/release/deps/NAME
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(3).unwrap_or(Path::new("target")).join(program)
}

pub(crate) fn spawn(program: &Path, config: &Path, log: &Path) -> anyhow::Result<Process> {
    let log = std::fs::File::create(log)?;
    let mut command = Command::new(program);
    command.args(["run", "--config"]).arg(config).env("MALLOC_ARENA_MAX", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Ok(Process(command.spawn().with_context(|| format!("starting {}", program.display()))?))
}

impl Site {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Self::start(false)
    }

    /// Starts one whose cloud side connects to the broker over a line of its own.
    pub(crate) fn with_cloud_line() -> anyhow::Result<Self> {
        Self::start(true)
    }

    fn start(has_cloud_line: bool) -> anyhow::Result<Self> {
        // Built before any measurement.
        edge_program();
        let directory = tempfile::tempdir()?;
        let mosquitto = Mosquitto::start();
        let broker = mosquitto.address();
        let cloud_line = has_cloud_line.then(|| Proxy::start(broker));
        let broker_of_cloud = cloud_line.as_ref().map_or(broker, Proxy::address);
        let path = |name: &str| directory.path().join(name);
        std::fs::write(
            path("cloud.toml"),
            format!(
                "[store]\npath = \"{0}/cloud.db\"\n[broker]\nmode = \"external\"\n[link]\nbroker = \"mqtt://{broker_of_cloud}\"\n\
                 backoff_min = \"50ms\"\n[api]\nsocket = \"{0}/cloud.sock\"\nlisten = \"127.0.0.1:0\"\n[page]\nlisten = \"127.0.0.1:0\"\n[enrollment]\nlisten = \"off\"\n[nodes]\nevent_burst = 100000\n[log]\nformat = \"text\"\nlevel = \"warn\"\n\
                 [[placement]]\nnodes = {{ names = [\"*\"] }}\nobjects = {{ kinds = [\"ConfigMap\", \"Secret\", \"Pod\"] }}\n",
                directory.path().display()
            ),
        )?;
        std::fs::write(
            path("edge.toml"),
            format!(
                "[node]\nname = \"edge-1\"\n[store]\npath = \"{0}/edge.db\"\n[link]\nbroker = \"mqtt://{broker}\"\n\
                 backoff_min = \"50ms\"\n[api]\nsocket = \"{0}/edge.sock\"\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"text\"\nlevel = \"info,edgesync::agent=debug\"\n",
                directory.path().display()
            ),
        )?;
        let cloud = spawn(cloud_program(), &path("cloud.toml"), &path("cloud.log"))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let line = Proxy::start(broker);
        connect(&line, false);
        let site = Self { directory, runtime, line, cloud_line, mosquitto, _cloud: cloud };
        until("the cloud's API answers", || site.ask_cloud::<NodeList>(Route::Nodes).ok())?;
        Ok(site)
    }

    /// Returns the broker as the endpoint of simulated nodes.
    pub(crate) fn broker(&self) -> Endpoint {
        Endpoint { address: self.mosquitto.address(), authority: None, sources: 1 }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn agent(&self) -> anyhow::Result<Process> {
        spawn(edge_program(), &self.path("edge.toml"), &self.path("edge.log"))
    }

    fn cloud_client(&self) -> Client {
        Client::new(Address::Unix(self.path("cloud.sock")))
    }

    fn ask_cloud<T: Answer>(&self, route: Route<'_>) -> anyhow::Result<T> {
        Ok(self.runtime.block_on(ask(&self.cloud_client(), route))?)
    }

    fn edge_client(&self) -> Client {
        Client::new(Address::Unix(self.socket()))
    }

    pub(crate) fn edge_get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(self.runtime.block_on(self.edge_client().get(path))?)
    }

    pub(crate) fn ask_edge<T: Answer>(&self, route: Route<'_>) -> anyhow::Result<T> {
        Ok(self.runtime.block_on(ask(&self.edge_client(), route))?)
    }

    pub(crate) fn edge_status(&self) -> anyhow::Result<AgentStatus> {
        self.ask_edge(Route::Status)
    }

    /// Starts the agent behind the line, which refuses connections at first.
    pub(crate) fn agent_on_the_line(&self) -> anyhow::Result<Process> {
        let text = std::fs::read_to_string(self.path("edge.toml"))?;
        let lines = text.lines().map(|line| match line.strip_prefix("broker = ") {
            Some(_) => {
                format!("broker = \"mqtt://{}\"\nbackoff_max = \"200ms\"\n", self.line.address())
            }
            None => format!("{line}\n"),
        });
        std::fs::write(self.path("edge.toml"), lines.collect::<String>())?;
        let agent = self.agent()?;
        until("the agent answers", || self.edge_status().ok())?;
        Ok(agent)
    }

    pub(crate) fn line(&self) -> &Proxy {
        &self.line
    }

    /// Returns the line of the cloud side; `None` without [`Site::with_cloud_line`].
    pub(crate) fn cloud_line(&self) -> Option<&Proxy> {
        self.cloud_line.as_ref()
    }

    /// Returns the socket of the agent's API.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path("edge.sock")
    }

    /// Runs a future on the clients' runtime.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Starts another node of this installation, with more configuration, in its own directory.
    pub(crate) fn another_agent(&self, number: usize, more: &str) -> anyhow::Result<Process> {
        let name = format!("edge-other-{number}");
        let directory = self.path(&name);
        std::fs::create_dir(&directory)?;
        let text = std::fs::read_to_string(self.path("edge.toml"))?;
        let own = |text: String, file: &str| {
            let file = |path: &Path| path.join(file).display().to_string();
            text.replace(&file(self.directory.path()), &file(&directory))
        };
        let text = own(own(text.replace("edge-1", &name), "edge.db"), "edge.sock");
        let text = text.replace(",edgesync::agent=debug", "");
        let config = directory.join("edge.toml");
        std::fs::write(&config, text + more)?;
        spawn(edge_program(), &config, &directory.join("edge.log"))
    }

    /// Queries the API of another node.
    pub(crate) fn ask_other<T: Answer>(&self, number: usize, route: Route<'_>) -> anyhow::Result<T> {
        let socket = self.path(&format!("edge-other-{number}")).join("edge.sock");
        Ok(self.runtime.block_on(ask(&Client::new(Address::Unix(socket)), route))?)
    }

    /// Creates objects over several connections.
    pub(crate) fn create(&self, range: std::ops::Range<usize>) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for lane in 0..8 {
                let (client, range) = (self.cloud_client(), range.clone());
                tasks.spawn(async move {
                    for n in range.filter(|n| n % 8 == lane) {
                        let object = object(n, 0);
                        client.post::<Value>(&collection(&object), &object).await?;
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            Ok(())
        })
    }

    pub(crate) fn replace(&self, n: usize, round: u64) -> anyhow::Result<Value> {
        let object = object(n, round);
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{}/{name}", collection(&object));
        Ok(self.runtime.block_on(self.cloud_client().put(&path, &object))?)
    }

    /// Returns the first node; `None` before its first Hello.
    pub(crate) fn node(&self) -> Option<NodeInfo> {
        let nodes: NodeList = self.ask_cloud(Route::Nodes).ok()?;
        nodes.items.into_iter().next()
    }

    pub(crate) fn wait_in_sync(&self, objects: usize) -> anyhow::Result<()> {
        until("the node is in sync", || {
            let node = self.node()?;
            (node.state() == "in sync" && node.objects() == Some(objects as u64)).then_some(())
        })
    }
}

/// A cloud with its embedded endpoint, for many simulated nodes.
pub(crate) struct FleetSite {
    broker: u16,
    has_tls: bool,
    joining: u16,
    config: PathBuf,
    cloud: Process,
    runtime: tokio::runtime::Runtime,
    directory: tempfile::TempDir,
}

impl FleetSite {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Self::with_rules(
            "[[placement]]\nnodes = { names = [\"*\"] }\nobjects = { kinds = [\"ConfigMap\"] }\n",
        )
    }

    /// Starts a cloud side with these placement rules.
    pub(crate) fn with_rules(rules: &str) -> anyhow::Result<Self> {
        Self::start(rules, false)
    }

    /// Like [`FleetSite::with_rules`], with an endpoint that requires client certificates.
    pub(crate) fn with_tls(rules: &str) -> anyhow::Result<Self> {
        Self::start(rules, true)
    }

    /// Like [`FleetSite::with_rules`], for more nodes than the default permits.
    pub(crate) fn for_many(nodes: usize, rules: &str) -> anyhow::Result<Self> {
        Self::start_over("", &format!("max_connections = {}\n", nodes + nodes / 10), rules, false)
    }

    /// Starts a replica over a Kubernetes cluster, whose ConfigMaps may name their nodes. `more`
    /// are further lines of the section `kubernetes`.
    pub(crate) fn over_cluster(kubeconfig: &Path, more: &str) -> anyhow::Result<Self> {
        let store = format!(
            "type = \"kubernetes\"\n[kubernetes]\nkubeconfig = \"{}\"\nlabelled = [\"ConfigMap\"]\n{more}",
            kubeconfig.display()
        );
        Self::start_over(&store, "", "", false)
    }

    fn start(rules: &str, has_tls: bool) -> anyhow::Result<Self> {
        Self::start_over("", "", rules, has_tls)
    }

    fn start_over(store: &str, limits: &str, rules: &str, has_tls: bool) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let (broker, joining) = (free_port(), free_port());
        let config = directory.path().join("cloud.toml");
        std::fs::write(
            &config,
            format!(
                "[store]\npath = \"{0}/cloud.db\"\n{store}[broker]\nlisten = \"127.0.0.1:{broker}\"\ntls = \"{1}\"\n{limits}\
                 [api]\nsocket = \"{0}/cloud.sock\"\nlisten = \"127.0.0.1:0\"\n[page]\nlisten = \"127.0.0.1:0\"\n[enrollment]\nlisten = \"127.0.0.1:{joining}\"\n\
                 [log]\nformat = \"text\"\nlevel = \"warn\"\n{rules}",
                directory.path().display(),
                if has_tls { "on" } else { "off" }
            ),
        )?;
        let cloud = spawn(cloud_program(), &config, &directory.path().join("cloud.log"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let site = Self { broker, joining, has_tls, config, cloud, runtime, directory };
        site.wait()?;
        Ok(site)
    }

    /// Returns the endpoint of its nodes.
    pub(crate) fn endpoint(&self) -> anyhow::Result<Endpoint> {
        let authority = self.has_tls.then(|| Authority::open(&self.directory.path().join("pki")));
        Ok(Endpoint {
            address: (Ipv4Addr::LOCALHOST, self.broker).into(),
            authority: authority.transpose()?.map(Arc::new),
            sources: 1,
        })
    }

    fn wait(&self) -> anyhow::Result<()> {
        until("the endpoint listens", || std::net::TcpStream::connect(("127.0.0.1", self.broker)).ok())?;
        until("the API listens", || std::os::unix::net::UnixStream::connect(self.api()).ok())?;
        Ok(())
    }

    /// Stops the cloud side, runs `act` on its database, and restarts it.
    pub(crate) fn while_stopped(
        &mut self,
        act: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.cloud.0.kill()?;
        self.cloud.0.wait()?;
        act(&self.database())?;
        self.cloud = spawn(cloud_program(), &self.config, &self.directory.path().join("cloud.log"))?;
        self.wait()
    }

    /// Returns all objects of a kind in the core group.
    pub(crate) fn list(&self, plural: &str) -> anyhow::Result<Vec<Value>> {
        let mut list: Value = self.runtime.block_on(self.client().get(&format!("/api/v1/{plural}")))?;
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Returns a client of the API.
    pub(crate) fn client(&self) -> Client {
        Client::new(Address::Unix(self.api()))
    }

    /// Returns the cloud's anonymous memory in bytes.
    pub(crate) fn cloud_anonymous(&self) -> u64 {
        proc_number(&self.cloud, "status", "RssAnon:") * 1024
    }

    pub(crate) fn create(&self, object: &Value) -> anyhow::Result<()> {
        self.runtime.block_on(self.client().post::<Value>(&collection(object), object))?;
        Ok(())
    }

    /// Returns the cloud's peak memory in bytes.
    pub(crate) fn cloud_rss_peak(&self) -> u64 {
        proc_number(&self.cloud, "status", "VmHWM:") * 1024
    }

    /// Returns the cloud's current memory in bytes.
    pub(crate) fn cloud_rss(&self) -> u64 {
        proc_number(&self.cloud, "status", "VmRSS:") * 1024
    }

    /// Returns the cloud's processor time so far, and its bytes written to disk.
    pub(crate) fn cloud_spent(&self) -> (Duration, u64) {
        (cpu(&self.cloud), proc_number(&self.cloud, "io", "write_bytes:"))
    }

    /// Returns the socket of the API.
    pub(crate) fn api(&self) -> PathBuf {
        self.directory.path().join("cloud.sock")
    }

    /// Returns the port of the enrollment service.
    pub(crate) fn joining(&self) -> u16 {
        self.joining
    }

    /// Returns the path of the cloud's database.
    pub(crate) fn database(&self) -> PathBuf {
        self.directory.path().join("cloud.db")
    }

    /// Returns the clients' runtime.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Runtime {
        &self.runtime
    }
}

pub(crate) fn collection(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    format!("/api/v1/namespaces/{namespace}/{kind}s")
}

pub(crate) fn proc_number(process: &Process, file: &str, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/{file}", process.0.id())).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Returns the bytes that a process has written to disk.
pub(crate) fn written(process: &Process) -> u64 {
    proc_number(process, "io", "write_bytes:")
}

/// Returns the peak memory of a process, in bytes.
pub(crate) fn memory_peak(process: &Process) -> u64 {
    proc_number(process, "status", "VmHWM:") * 1024
}

/// Returns the processor time used so far, user and system.
pub(crate) fn cpu(process: &Process) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", process.0.id())).unwrap_or_default();
    let after = text.rsplit(')').next().unwrap_or_default();
    // utime and stime are fields 14 and 15, `after` begins with field 3; a tick is 10 ms.
    let field = |n: usize| after.split_whitespace().nth(n - 3).and_then(|field| field.parse::<u64>().ok());
    Duration::from_millis((field(14).unwrap_or(0) + field(15).unwrap_or(0)) * 10)
}

/// Returns the irreclaimable memory of a process, in KiB: anonymous pages, and modified pages of
/// files.
pub(crate) fn irreclaimable(process: &Process) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", process.0.id())).unwrap_or_default();
    let (mut writable, mut anonymous, mut dirty, mut sum) = (false, 0, 0, 0);
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(key), Some(value)) = (fields.next(), fields.next()) else { continue };
        let number = value.parse::<u64>().unwrap_or(0);
        match key {
            "Shared_Dirty:" => dirty = number,
            "Private_Dirty:" => dirty += number,
            "Anonymous:" => anonymous = number,
            // The last line of each mapping. A read-only mapping is dirty only if its file was
            // written recently.
            "VmFlags:" => sum += if writable { anonymous.max(dirty) } else { anonymous },
            _ if !key.ends_with(':') => writable = value.contains('w'),
            _ => {}
        }
    }
    sum
}

pub(crate) fn mib(kib: u64) -> String {
    format!("{:.1} MB", kib as f64 * 1024.0 / 1e6)
}

pub(crate) fn binary_size(table: &mut Table) -> anyhow::Result<()> {
    let bytes = std::fs::metadata(edge_program())?.len();
    table.budget(
        "edge binary, stripped",
        format!("{:.2} MB", bytes as f64 / 1e6),
        "≤ 10 MB (EdgeCore: 100.9)",
        bytes <= 10_000_000,
    );
    let cloud = std::fs::metadata(cloud_program())?.len();
    table.figure("cloud binary, stripped", format!("{:.2} MB", cloud as f64 / 1e6));
    Ok(())
}

/// Sums the bytes of frames in the agent's log since its last connection: sent, and received.
fn frames_in_log(path: &Path) -> anyhow::Result<(u64, u64)> {
    let (mut up, mut down) = (0, 0);
    for line in BufReader::new(std::fs::File::open(path)?).lines() {
        let line = line?;
        let bytes = line.rsplit("bytes=").next().and_then(|text| text.parse::<u64>().ok());
        if line.contains(": connected peer=") {
            (up, down) = (0, 0);
        } else if line.contains(" received ") {
            down += bytes.unwrap_or(0);
        } else if ["Hello", "Report", "Inventory", "Presence"]
            .iter()
            .any(|name| line.contains(&format!(": {name} ")))
        {
            up += bytes.unwrap_or(0);
        }
    }
    Ok((up, down))
}

/// Measures stop, change, start: bytes of application payload, and the time from link to in sync.
pub(crate) fn reconnect(table: &mut Table) -> anyhow::Result<()> {
    for objects in [1_000, 10_000] {
        let site = Site::new()?;
        site.create(0..objects)?;
        let _agent = site.agent_on_the_line()?;
        connect(&site.line, true);
        site.wait_in_sync(objects)?;
        until("the agent has reported everything", || {
            let status = site.edge_status().ok()?;
            let reported = ["status", "events", "bulk"].iter().all(|lane| status.outbox[*lane].waiting == 0);
            (status.sync.in_sync && reported).then_some(())
        })?;
        for changed in [0usize, 10] {
            connect(&site.line, false);
            until("the cloud side sees the agent disconnect", || {
                (site.node()?.state() == OFFLINE).then_some(())
            })?;
            for n in 0..changed {
                site.replace(n * 97, 7)?;
            }
            let sent = |site: &Site| -> anyhow::Result<u64> {
                let node = site.node().context("the node is not known")?;
                Ok(node.served().context("the node is not served")?.counters.objects_sent)
            };
            let before = sent(&site)?;
            let log_length = std::fs::read_to_string(site.path("edge.log"))?.len();
            connect(&site.line, true);
            until("the agent is in sync", || {
                let log = std::fs::read_to_string(site.path("edge.log")).ok()?;
                log.get(log_length..)?.contains(": in sync ").then_some(())
            })?;
            site.wait_in_sync(objects)?;
            let (up, down) = frames_in_log(&site.path("edge.log"))?;
            let what = format!("reconnect, {objects} objects, {changed} changed: payload up + down");
            let measured = format!("{up} + {down} bytes");
            if changed == 0 {
                table.budget(&what, measured, "≤ 400 bytes", up + down <= 400);
                let time = log_time(&site.path("edge.log"))?;
                let what = format!("  link up to in sync, {objects} objects");
                table.budget(&what, format!("{time:.1} ms"), "≤ 2 round trips + 5 ms", time <= 5.0);
            } else {
                let resent = sent(&site)? - before;
                table.budget(&what, measured, "those objects, nothing else", resent == changed as u64);
            }
        }
    }
    Ok(())
}

/// Returns the time from "connected" to "in sync" in the agent's log, in milliseconds.
fn log_time(path: &Path) -> anyhow::Result<f64> {
    let log = std::fs::read_to_string(path)?;
    let at = |needle: &str| -> anyhow::Result<jiff::Timestamp> {
        let line = log.lines().rfind(|line| line.contains(needle)).context("not in the log")?;
        Ok(line.split_whitespace().next().unwrap_or_default().parse()?)
    };
    let time = at(": in sync ")?.duration_since(at(": connected peer=")?);
    Ok(time.as_secs_f64() * 1000.0)
}

/// Measures from exec to the first answer of the local API, with 100,000 objects in the database,
/// after a kill.
pub(crate) fn start(table: &mut Table) -> anyhow::Result<()> {
    const OBJECTS: usize = 100_000;
    let site = Site::new()?;
    fill(&site.path("edge.db"), OBJECTS)?;
    let start = || -> anyhow::Result<(Process, f64)> {
        let start = Instant::now();
        let agent = site.agent()?;
        until("the agent answers", || site.edge_status().ok())?;
        Ok((agent, start.elapsed().as_secs_f64() * 1000.0))
    };
    // The file was created without keys: the first start seals its Secrets and rewrites it.
    let (agent, first) = start()?;
    table.figure("first start with 100,000 objects, 30,000 of them to encrypt", format!("{first:.0} ms"));
    drop(agent);
    let mut times = Vec::new();
    for _ in 0..5 {
        let (agent, time) = start()?;
        times.push(time);
        drop(agent);
    }
    let time = median(times);
    let what = "start with 100,000 objects after a kill, until serving";
    table.budget(what, format!("{time:.0} ms"), "≤ 60 ms", time <= 60.0);
    Ok(())
}

fn fill(path: &Path, objects: usize) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = EdgeStore::open(path, EdgeOptions::default())?;
        for frame in crate::ingest::frames_of(objects, 256) {
            let Received::Objects(objects) = Received::decode(&frame?, &mut Budget::of(1 << 20), 1 << 20)?
            else {
                bail!("not objects")
            };
            store.apply(objects.changes).await?;
        }
        store.close().await;
        Ok(())
    })
}
