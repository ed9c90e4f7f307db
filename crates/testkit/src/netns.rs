//! Networks of a test, in namespaces of their own: that of the cloud and that of a device, with the
//! names and the rules that the test gives them. They end with their handle.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use tempfile::TempDir;

use crate::site::{PATIENCE, Process, eventually};

const PREPARE: &str = include_str!("netns.sh");
/// Debian installs half of the programs in directories of root's PATH only.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The address of the cloud's side.
pub const CLOUD: &str = "192.0.2.1";
/// The same in IPv6, the only one of [`Families::V6`].
pub const CLOUD_V6: &str = "2001:db8::1";

/// Bytes of an Ethernet header, which interfaces count.
const ETHERNET_HEADER: u64 = 14;

/// Addresses of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    Both,
    V6,
}

/// One of the two networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Cloud,
    Device,
}

impl Side {
    fn interface(self) -> &'static str {
        match self {
            Self::Cloud => "cloud0",
            Self::Device => "device0",
        }
    }
}

/// Two networks that a cable joins.
pub struct Networks {
    holder: Child,
    /// Its end closes the pipe and ends the holders, even if this process is killed.
    _open: ChildStdin,
    cloud: u32,
    device: u32,
    directory: TempDir,
}

impl Networks {
    /// Creates them, without a name server that answers; `None`, with a notice, if this machine
    /// does not permit it.
    pub fn new(families: Families) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("hosts"), "").unwrap();
        fs::write(
            directory.path().join("resolv.conf"),
            "nameserver 192.0.2.53\noptions timeout:1 attempts:1\n",
        )
        .unwrap();
        let families = match families {
            Families::Both => "both",
            Families::V6 => "ipv6",
        };
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", PREPARE, "prepare"])
            .arg(directory.path())
            .arg(families)
            .env("PATH", SEARCH_PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("unshare, of util-linux");
        let open = holder.stdin.take().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ids: Vec<u32> = line.split_whitespace().skip(1).map_while(|id| id.parse().ok()).collect();
        let [cloud, device] = ids[..] else {
            drop(open);
            let why = holder.wait_with_output().unwrap();
            let why = String::from_utf8_lossy(&why.stderr).into_owned();
            eprintln!(
                "notice: no networks can be made here, so this test has shown nothing; it needs root, mount and \
                 network namespaces, and ip: {why}"
            );
            return None;
        };
        Some(Self { holder, _open: open, cloud, device, directory })
    }

    /// Replaces the names that both sides resolve: lines of an address and its names.
    pub fn set_hosts(&self, hosts: &str) {
        // In place: the mounted file stays the same one.
        fs::write(self.directory.path().join("hosts"), hosts).unwrap();
    }

    fn holder(&self, side: Side) -> u32 {
        match side {
            Side::Cloud => self.cloud,
            Side::Device => self.device,
        }
    }

    fn namespaces(&self, side: Side) -> [String; 2] {
        let id = self.holder(side);
        [format!("--net=/proc/{id}/ns/net"), format!("--mount=/proc/{id}/ns/mnt")]
    }

    /// Prepares a command on one side.
    pub fn command(&self, side: Side, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(self.namespaces(side)).args(["--", program]).env("PATH", SEARCH_PATH);
        command
    }

    /// Returns a program on one side, not started.
    pub fn process(&self, side: Side, name: &str, program: &str, arguments: &[&str]) -> Process {
        let all = self.namespaces(side).into_iter().chain(["--".to_owned(), program.to_owned()]);
        let all = all.chain(arguments.iter().map(|argument| (*argument).to_owned()));
        let all = all.map(OsString::from).collect();
        let mut process = Process::with_arguments(name, Path::new("nsenter"), all);
        process.env("PATH", SEARCH_PATH);
        process
    }

    /// Leaves nothing but packets of IPv4 on the cable: no IPv6, no search for neighbours, and no
    /// packet that an interface would split.
    pub fn leave_only_ipv4(&self) {
        for (side, number, other) in [(Side::Cloud, 1, 2), (Side::Device, 2, 1)] {
            let name = side.interface();
            let script = format!(
                "echo 1 >/proc/sys/net/ipv6/conf/{name}/disable_ipv6\n\
                 ip link set {name} address 02:00:00:00:00:0{number} gso_max_segs 1\n\
                 ip neighbour replace 192.0.2.{other} lladdr 02:00:00:00:00:0{other} dev {name} nud permanent\n"
            );
            let output = self.command(side, "sh").args(["-euc", &script]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// Returns the bytes of all IP packets that passed the interface of one side in both
    /// directions, with their headers, since [`Networks::leave_only_ipv4`].
    pub fn ip_bytes(&self, side: Side) -> u64 {
        let table = fs::read_to_string(format!("/proc/{}/net/dev", self.holder(side))).unwrap();
        let prefix = format!("{}:", side.interface());
        let line = table.lines().find_map(|line| line.trim_start().strip_prefix(&prefix)).unwrap();
        let numbers: Vec<u64> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
        // Bytes and packets received, and after eight columns those sent; with Ethernet's headers.
        let [bytes, packets] = [numbers[0] + numbers[8], numbers[1] + numbers[9]];
        bytes - packets * ETHERNET_HEADER
    }

    /// Drops all packets of the device, except those to one TCP port, and those to itself.
    pub fn permit_only(&self, port: u16) {
        let rules = format!(
            "table inet only {{ chain sent {{ type filter hook output priority 0; policy drop; oifname \"lo\" accept; \
             meta l4proto ipv6-icmp accept; tcp dport {port} accept; }}; }}"
        );
        let mut command = self.command(Side::Device, "nft");
        let output = command.arg(rules).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nft is needed for this test: apt-get install nftables; {why}");
    }

    /// Starts a program in the cloud's network, and waits until it listens on a port.
    pub async fn start_listening(&self, program: &str, arguments: &[&str], port: u16) -> Process {
        let mut process = self.process(Side::Cloud, program, program, arguments);
        process.start();
        eventually(&format!("{program} listens; tests/run installs it"), PATIENCE, async || {
            assert!(process.runs(), "{program} ended: {:?}", process.log());
            self.has_listener(Side::Cloud, port).then_some(())
        })
        .await;
        process
    }

    /// Returns whether a program listens on a TCP port of one side.
    pub fn has_listener(&self, side: Side, port: u16) -> bool {
        let id = self.holder(side);
        ["tcp", "tcp6"].iter().any(|table| {
            let table = fs::read_to_string(format!("/proc/{id}/net/{table}")).unwrap_or_default();
            let is_listener = |line: &str| {
                let mut words = line.split_whitespace().skip(1);
                let local = words.next().unwrap_or_default();
                // The state 0A is LISTEN.
                local.ends_with(&format!(":{port:04X}")) && words.nth(1) == Some("0A")
            };
            table.lines().any(is_listener)
        })
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        // The namespaces end with the processes in them; the holder of the device's side gets the
        // end of its input.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
