//! Traffic of a node in IP bytes: packets in both directions at the interface of the device, with
//! the headers of IP and TCP, acknowledgements and handshakes. Frames of Ethernet and the search
//! for neighbours are not counted: no such bytes are paid on a mobile link.
//!
//! A cloud side with its endpoint over TLS and a joined agent run in two network namespaces that a
//! cable joins. The broker is configured by its address: no names are resolved.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync_admin::Route;
use edgesync_admin::agent::AgentStatus;
use edgesync_admin::cloud::NodeList;
use edgesync_api::{Address, Client};
use edgesync_testkit::netns::{CLOUD, Families, Networks, Side};
use edgesync_testkit::site::ask;
use serde_json::Value;

use crate::objects::object;
use crate::processes::{Process, cloud_program, collection, edge_program, median, until, until_polled};
use crate::table::Table;

/// Objects that the node holds.
const OBJECTS: usize = 100;
/// Check-ins that are measured.
const CHECK_INS: usize = 20;
/// Lifetime of the certificate that is renewed during the measurement; the next one lasts a year.
const SHORT_LIFE: &str = "2m";
const LONG_LIFE: &str = "365d";
/// Time for a node to become idle, with its reports of itself.
const SETTLE: Duration = Duration::from_secs(20);
/// Time for the last packets of an exchange to pass.
const PASSING: Duration = Duration::from_secs(1);
/// Days of a month.
const DAYS: f64 = 30.0;
const MONTH_SECONDS: f64 = DAYS * 86_400.0;
/// A certificate of a year is renewed after 80 % of it, on average.
const DAYS_BETWEEN_RENEWALS: f64 = 0.8 * 365.0;
/// A Lease that is renewed every minute.
const RARE_LEASE: &str = "[lease]\ninterval = \"60s\"\nduration = \"4m\"\n";
/// The keepalive of a link, for both sides: the cloud side grants no longer one than its own.
const RARE_PING: &str = "[link]\nkeepalive = \"3m\"\n";
/// Nodes that are always connected: name, configuration of the node, of both sides, and observed
/// intervals of the Lease.
const CONNECTED: [(&str, &str, &str, u64); 3] = [
    ("Lease every 10s", "", "", 20),
    ("Lease every 60s", RARE_LEASE, "", 4),
    ("Lease every 60s, keepalive 3m", RARE_LEASE, RARE_PING, 4),
];

/// A cloud side, and one device in its own network that has joined it.
struct Plant {
    cloud: Process,
    networks: Networks,
    runtime: tokio::runtime::Runtime,
    directory: tempfile::TempDir,
}

impl Plant {
    /// Starts the cloud side and joins the device; `None` if this machine permits no networks.
    fn new(edge: &str, both: &str, lifetime: &str) -> anyhow::Result<Option<Self>> {
        let Some(networks) = Networks::new(Families::Both) else { return Ok(None) };
        networks.leave_only_ipv4();
        let directory = tempfile::tempdir()?;
        let root = directory.path().display();
        std::fs::write(
            directory.path().join("edge.toml"),
            format!(
                "[node]\nname = \"edge-1\"\n[store]\npath = \"{root}/edge.db\"\n\
                 [api]\nsocket = \"{root}/edge.sock\"\nlisten = \"off\"\n[log]\nformat = \"text\"\n{edge}{both}"
            ),
        )?;
        write_cloud_config(&directory, lifetime, both)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let cloud = start(&networks, &directory, Side::Cloud, cloud_program(), "cloud")?;
        let plant = Self { cloud, networks, runtime, directory };
        until("the cloud's API answers", || plant.ask_cloud().ok())?;
        plant.create()?;
        plant.join()?;
        // Only the first certificate is short.
        write_cloud_config(&plant.directory, LONG_LIFE, both)?;
        plant.cloud.signal("HUP")?;
        Ok(Some(plant))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn cloud_client(&self) -> Client {
        Client::new(Address::Unix(self.path("cloud.sock")))
    }

    fn ask_cloud(&self) -> anyhow::Result<NodeList> {
        Ok(self.runtime.block_on(ask(&self.cloud_client(), Route::Nodes))?)
    }

    fn create(&self) -> anyhow::Result<()> {
        let client = self.cloud_client();
        self.runtime.block_on(async {
            for number in 0..OBJECTS {
                let object = object(number, 0);
                client.post::<Value>(&collection(&object), &object).await?;
            }
            Ok(())
        })
    }

    fn join(&self) -> anyhow::Result<()> {
        let mut token = Command::new(cloud_program());
        token.args(["token", "create", "--node", "edge-1", "--server"]).arg(self.path("cloud.sock"));
        let token = String::from_utf8(succeeds("creating a token", &mut token)?.stdout)?;
        let mut join = self.networks.command(Side::Device, &edge_program().to_string_lossy());
        join.args(["join", "--cloud", &format!("https://{CLOUD}:10002"), "--config"]);
        join.arg(self.path("edge.toml")).env("EDGESYNC_JOIN_TOKEN", token.trim());
        succeeds("joining", &mut join).map(drop)
    }

    fn agent(&self) -> anyhow::Result<Process> {
        start(&self.networks, &self.directory, Side::Device, edge_program(), "edge")
    }

    fn status(&self) -> anyhow::Result<AgentStatus> {
        let client = Client::new(Address::Unix(self.path("edge.sock")));
        Ok(self.runtime.block_on(ask(&client, Route::Status))?)
    }

    /// Returns the IP bytes that the device has sent and received.
    fn carried(&self) -> f64 {
        self.networks.ip_bytes(Side::Device) as f64
    }

    /// Waits until the node is in sync over this connection. Returns the bytes so far.
    fn in_sync(&self, connections: u64) -> anyhow::Result<f64> {
        until("the node is in sync", || {
            let status = self.status().ok()?;
            (status.sync.in_sync && status.link.connections >= connections).then_some(())
        })?;
        std::thread::park_timeout(PASSING);
        Ok(self.carried())
    }

    /// Waits until the node has left. Returns the bytes so far.
    fn away(&self) -> anyhow::Result<f64> {
        until_polled(Duration::from_millis(50), "the node is away", || {
            let status = self.status().ok()?;
            (!status.link.is_connected() && status.link.next_check_in.is_some()).then_some(())
        })?;
        std::thread::park_timeout(PASSING);
        Ok(self.carried())
    }

    /// Checks in by `edgesync sync`. Returns the bytes until in sync, and of the whole.
    fn check_in(&self) -> anyhow::Result<[f64; 2]> {
        let (before, connections) = (self.carried(), self.status()?.link.connections);
        let mut sync = Command::new(edge_program());
        sync.arg("sync").env("EDGESYNC_SOCKET", self.path("edge.sock"));
        succeeds("edgesync sync", &mut sync)?;
        Ok([self.in_sync(connections + 1)? - before, self.away()? - before])
    }
}

fn write_cloud_config(directory: &tempfile::TempDir, lifetime: &str, more: &str) -> anyhow::Result<()> {
    let root = directory.path().display();
    let text = format!(
        "[store]\npath = \"{root}/cloud.db\"\n[broker]\nlisten = \"0.0.0.0:8883\"\ntls = \"on\"\n\
         [api]\nsocket = \"{root}/cloud.sock\"\nlisten = \"off\"\n\
         [enrollment]\nnames = [\"{CLOUD}\"]\ncertificate_lifetime = \"{lifetime}\"\n\
         [log]\nformat = \"text\"\nlevel = \"warn\"\n\
         [[placement]]\nnodes = {{ names = [\"*\"] }}\nobjects = {{ kinds = [\"ConfigMap\", \"Secret\", \"Pod\"] }}\n{more}"
    );
    Ok(std::fs::write(directory.path().join("cloud.toml"), text)?)
}

/// Starts a program on one side. `name` is that of its configuration and its log.
fn start(
    networks: &Networks,
    directory: &tempfile::TempDir,
    side: Side,
    program: &Path,
    name: &str,
) -> anyhow::Result<Process> {
    let log = std::fs::File::create(directory.path().join(format!("{name}.log")))?;
    let mut command = networks.command(side, &program.to_string_lossy());
    command.args(["run", "--config"]).arg(directory.path().join(format!("{name}.toml")));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Process::start(command)
}

fn succeeds(what: &str, command: &mut Command) -> anyhow::Result<Output> {
    let output = command.stdin(Stdio::null()).output().with_context(|| what.to_owned())?;
    anyhow::ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

/// IP bytes of a node that connects at planned times.
struct Planned {
    /// Until in sync, with a resumed session.
    reconnect: f64,
    /// A check-in in sync, with a resumed session.
    check_in: f64,
    /// The check-in after a start of the agent: a full handshake, and what the node reports then.
    start: f64,
    /// A renewal of the certificate, and the full handshake after it.
    renewal: f64,
}

impl Planned {
    /// Measures them; `None` if this machine permits no networks.
    fn measure() -> anyhow::Result<Option<Self>> {
        let plan = "[link]\nconnect = \"every 24h\"\n";
        let Some(plant) = Plant::new(plan, "", SHORT_LIFE)? else { return Ok(None) };
        let agent = plant.agent()?;
        let before = plant.away()?;
        let renewals = || Some(plant.status().ok()?.identity?.renewals);
        until("the certificate is renewed", || renewals().filter(|count| *count > 0))?;
        std::thread::park_timeout(PASSING);
        let renewal = plant.carried() - before + plant.check_in()?[1];
        let (mut reconnects, mut check_ins) = (Vec::new(), Vec::new());
        for _ in 0..CHECK_INS {
            let [reconnect, check_in] = plant.check_in()?;
            reconnects.push(reconnect);
            check_ins.push(check_in);
        }
        drop(agent);
        let before = plant.carried();
        let _agent = plant.agent()?;
        let start = plant.away()? - before;
        Ok(Some(Self { reconnect: median(reconnects), check_in: median(check_ins), start, renewal }))
    }

    /// Returns the bytes of a month with one start of the agent, and its part of the renewals of a
    /// certificate that lasts a year.
    fn month(&self, check_ins_per_day: f64) -> f64 {
        let check_ins = (check_ins_per_day * DAYS - 1.0) * self.check_in;
        check_ins + self.start + self.renewal * DAYS / DAYS_BETWEEN_RENEWALS
    }
}

/// IP bytes of a node that is always connected.
struct Connected {
    /// From one renewal of the Lease to the next one.
    interval: f64,
    month: f64,
}

impl Connected {
    /// Observes some intervals of a Lease; `None` if this machine permits no networks.
    fn measure(edge: &str, both: &str, intervals: u64) -> anyhow::Result<Option<Self>> {
        let Some(plant) = Plant::new(edge, both, LONG_LIFE)? else { return Ok(None) };
        let _agent = plant.agent()?;
        plant.in_sync(1)?;
        std::thread::park_timeout(SETTLE);
        let leases = || Some(plant.status().ok()?.counters.leases);
        let first = leases().context("the agent does not answer")? + 1;
        // The counts change with the message; its acknowledgement follows within the pause.
        let at = |count: u64| -> anyhow::Result<(f64, Instant)> {
            until("a Lease is renewed", || leases().filter(|leases| *leases >= count))?;
            let time = Instant::now();
            std::thread::park_timeout(PASSING);
            Ok((plant.carried(), time))
        };
        let (before, start) = at(first)?;
        let (mut after, mut end) = (before, start);
        for interval in 1..=intervals {
            (after, end) = at(first + interval)?;
        }
        let bytes = after - before;
        let month = bytes / (end - start).as_secs_f64() * MONTH_SECONDS;
        Ok(Some(Self { interval: bytes / intervals as f64, month }))
    }
}

/// Measures each kind of node in networks of its own, at the same time.
pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    edge_program();
    cloud_program();
    let (planned, connected) = std::thread::scope(|scope| {
        let planned = scope.spawn(Planned::measure);
        let connected = CONNECTED
            .map(|(_, edge, both, count)| scope.spawn(move || Connected::measure(edge, both, count)));
        let failed = |_| anyhow::anyhow!("a measurement panicked");
        let planned = planned.join().map_err(failed)??;
        let connected = connected.map(|measured| measured.join().map_err(failed)?);
        anyhow::Ok((planned, connected))
    })?;
    let Some(planned) = planned else {
        table.figure("not measured", "this machine permits no network namespaces".to_owned());
        return Ok(());
    };
    table.figure("reconnect in sync, session resumed", format!("{:.0} bytes", planned.reconnect));
    table.figure("a check-in in sync, session resumed", format!("{:.0} bytes", planned.check_in));
    table.figure("the first one after a start of the agent", format!("{:.0} bytes", planned.start));
    let what = "renewal of the certificate, and the check-in after it";
    table.figure(what, format!("{:.0} bytes", planned.renewal));
    let daily = planned.month(1.0);
    let what = "a month: one check-in a day";
    table.budget(what, format!("{:.0} KB", daily / 1e3), "≤ 100 KB (balena: 1 MB)", daily <= 100e3);
    let often = planned.month(96.0);
    let what = "a month: four check-ins an hour";
    table.budget(what, format!("{:.1} MB", often / 1e6), "≤ 8 MB (balena: 28 MB)", often <= 8e6);
    for ((what, ..), measured) in CONNECTED.iter().zip(connected) {
        let Some(measured) = measured? else { continue };
        table
            .figure(&format!("a month: always connected, {what}"), format!("{:.1} MB", measured.month / 1e6));
        table
            .figure("  from one renewal of the Lease to the next", format!("{:.0} bytes", measured.interval));
    }
    Ok(())
}
