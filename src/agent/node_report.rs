//! The node's report on itself: the Node's labels, `nodeInfo`, capacity and addresses, as far as
//! the system provides them, and the conditions that only the node can determine.
//!
//! A report is sent when it differs from the last one. Therefore it contains nothing volatile: no
//! amount of free memory, no counts in messages. Unreadable values are omitted.

use std::collections::BTreeMap;
use std::env::consts::{ARCH, OS};
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Map, Value, json};

use edgesync_config::edge::Config;
use edgesync_object::file_rules::FileRules;
use edgesync_object::name;
use edgesync_object::node_labels::EDGE_ROLE;
use edgesync_protocol::node::{Condition, NodeReport};
use edgesync_store::durable::directory_of;

mod address;
mod conditions;

pub(super) use address::{DEFAULT_ROUTE_PROBES, source};
pub(super) use conditions::{
    certificate_condition, disk_condition, metered_condition, store_condition, traffic_condition,
};

/// Upper bound of the free space below which a disk is under pressure; a tenth of the disk if that
/// is less.
pub(super) const LOW_DISK_BYTES: u64 = 256 << 20;

/// Maximum bytes read from a file.
const MAX_FILE: u64 = 64 << 10;
/// Maximum bytes of a reported value.
const MAX_VALUE: usize = 256;
/// The version that `kubectl get nodes` shows.
const AGENT_VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"), "-edgesync");

/// Builds the report. Blocks briefly: reads files under `/proc`, `/sys` and `/etc`.
pub(super) fn report(config: &Config, conditions: Vec<Condition>) -> NodeReport {
    let space = Space::of(&config.store.path);
    let facts = Facts { root: Path::new("/"), source: address::source };
    NodeReport {
        labels: facts.labels(&config.node.name, &config.node.labels),
        status: facts.status(&config.node.name, config.peer().host, space),
        conditions,
        file_rules: config.files.rules.iter().map(|rule| rule.objects.clone()).collect::<FileRules>().text(),
    }
}

/// Sources of the facts.
struct Facts<'a> {
    /// Root of the file system.
    root: &'a Path,
    /// Returns this machine's source address for a destination.
    source: fn(IpAddr) -> Option<IpAddr>,
}

impl Facts<'_> {
    /// Returns the labels. Configured ones take precedence over those of the machine.
    fn labels(&self, node: &str, configured: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut labels = configured.clone();
        let mut add = |key: &str, value: String| {
            labels.entry(key.to_owned()).or_insert(value);
        };
        add("kubernetes.io/arch", go_arch().to_owned());
        add("kubernetes.io/os", OS.to_owned());
        add(EDGE_ROLE, String::new());
        // Devices of one image often share a host name, so the node's name comes first, like a
        // kubelet's `--hostname-override`. It may be too long for a label.
        let names = [Some(node.to_owned()), self.host_name()];
        let fits = |name: &String| !name.is_empty() && name::check_label_value(name).is_ok();
        if let Some(name) = names.into_iter().flatten().find(fits) {
            add("kubernetes.io/hostname", name);
        }
        labels
    }

    fn status(&self, node: &str, peer: &str, disk: Option<Space>) -> Map<String, Value> {
        let capacity = self.capacity(disk);
        let mut addresses = vec![json!({
            "type": "Hostname",
            "address": self.host_name().unwrap_or_else(|| node.to_owned()),
        })];
        // Only one: the schema of Nodes distinguishes addresses by type.
        if let Some(address) = self.address(peer) {
            addresses.push(json!({"type": "InternalIP", "address": address.to_string()}));
        }
        let mut status = Map::new();
        status.insert("addresses".to_owned(), addresses.into());
        status.insert("allocatable".to_owned(), capacity.clone().into());
        status.insert("capacity".to_owned(), capacity.into());
        status.insert("nodeInfo".to_owned(), self.node_info().into());
        status
    }

    /// Returns all fields that a Node must have; inapplicable ones are empty.
    fn node_info(&self) -> Map<String, Value> {
        let first = |paths: &[&str]| paths.iter().find_map(|path| self.line(path)).unwrap_or_default();
        let fields = [
            ("architecture", go_arch().to_owned()),
            ("bootID", first(&["proc/sys/kernel/random/boot_id"])),
            ("containerRuntimeVersion", String::new()),
            ("kernelVersion", first(&["proc/sys/kernel/osrelease"])),
            ("kubeProxyVersion", String::new()),
            ("kubeletVersion", AGENT_VERSION.to_owned()),
            ("machineID", first(&["etc/machine-id", "var/lib/dbus/machine-id"])),
            ("operatingSystem", OS.to_owned()),
            ("osImage", self.os_image().unwrap_or_default()),
            ("systemUUID", first(&["sys/class/dmi/id/product_uuid", "proc/device-tree/vm,uuid"])),
        ];
        fields.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect()
    }

    fn capacity(&self, disk: Option<Space>) -> Map<String, Value> {
        let fields = [
            ("cpu", self.processors().map(|count| count.to_string())),
            ("ephemeral-storage", disk.map(|disk| format!("{}Ki", disk.total >> 10))),
            ("memory", self.memory_kib().map(|kib| format!("{kib}Ki"))),
            ("pods", Some("0".to_owned())),
        ];
        let known = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into())));
        known.collect()
    }

    /// Returns the address at which others reach this machine: the source address towards the
    /// broker if that is configured as an IP address, else towards the default route, else one of
    /// an interface. Sends nothing and resolves no name.
    fn address(&self, broker: &str) -> Option<IpAddr> {
        let towards = broker.parse().ok().into_iter().chain(address::DEFAULT_ROUTE_PROBES);
        let sources = towards.filter_map(self.source).map(|address| address.to_canonical());
        let interfaces = || {
            let v4 = address::in_fib_trie(&self.text("proc/net/fib_trie").unwrap_or_default());
            let v6 = address::in_if_inet6(&self.text("proc/net/if_inet6").unwrap_or_default());
            v4.or(v6)
        };
        sources.into_iter().find(address::is_usable).or_else(interfaces)
    }

    fn host_name(&self) -> Option<String> {
        self.line("proc/sys/kernel/hostname").map(|name| name.to_lowercase())
    }

    fn os_image(&self) -> Option<String> {
        let release = self.text("etc/os-release").or_else(|| self.text("usr/lib/os-release"))?;
        let value = release.lines().find_map(|line| line.trim_start().strip_prefix("PRETTY_NAME="))?;
        sanitized(&unquoted(value.trim()))
    }

    /// Counts the processors that are online, as in `0-3,6`. A container or service may use fewer.
    fn processors(&self) -> Option<u64> {
        let ranges = self.line("sys/devices/system/cpu/online")?;
        let counts = ranges.split(',').map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
            last.checked_sub(first).map(|more| u64::from(more) + 1)
        });
        counts.sum::<Option<u64>>()
    }

    fn memory_kib(&self) -> Option<u64> {
        let text = self.text("proc/meminfo")?;
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        total.trim().strip_suffix("kB")?.trim_end().parse().ok()
    }

    /// Returns the first line of a file.
    fn line(&self, path: &str) -> Option<String> {
        sanitized(self.text(path)?.lines().next()?)
    }

    /// Returns the beginning of a file.
    fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.root.join(path)).ok()?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Space on a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Space {
    total: u64,
    /// Available to users other than root.
    free: u64,
}

impl Space {
    /// Returns the space on the file system of a file, or of its directory if it does not exist.
    fn of(file: &Path) -> Option<Self> {
        let stat = rustix::fs::statvfs(file).or_else(|_| rustix::fs::statvfs(directory_of(file))).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Some(Self { total: bytes(stat.f_blocks), free: bytes(stat.f_bavail) })
    }
}

/// Returns the architecture by its Go name, as in the labels of all Nodes.
fn go_arch() -> &'static str {
    match ARCH {
        "x86" => "386",
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "loongarch64" => "loong64",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        other => other,
    }
}

/// Strips control characters and surrounding space, and truncates to [`MAX_VALUE`] bytes; `None` if
/// nothing remains.
fn sanitized(text: &str) -> Option<String> {
    let mut sanitized = text.chars().filter(|c| !c.is_control()).collect::<String>();
    sanitized.truncate(sanitized.floor_char_boundary(MAX_VALUE));
    let sanitized = sanitized.trim();
    (!sanitized.is_empty()).then(|| sanitized.to_owned())
}

/// Unquotes a value as a shell does: os-release(5).
fn unquoted(value: &str) -> String {
    let within = |quote| value.strip_prefix(quote).and_then(|rest: &str| rest.strip_suffix(quote));
    if let Some(literal) = within('\'') {
        return literal.to_owned();
    }
    let mut out = String::new();
    let mut chars = within('"').unwrap_or(value).chars();
    while let Some(c) = chars.next() {
        out.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    out
}

#[cfg(test)]
mod tests;
