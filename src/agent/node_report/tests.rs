use std::fs;
use std::net::Ipv4Addr;

use tempfile::TempDir;

use super::*;
use edgesync_schema::{builtin, prune, validate};

const MACHINE: &[(&str, &str)] = &[
    ("proc/sys/kernel/hostname", "Pump-7\n"),
    ("proc/sys/kernel/osrelease", "6.12.31-v8+\n"),
    ("proc/sys/kernel/random/boot_id", "0f3a8f0e-7c0b-4f5e-9d1c-2b6a9a5e7d10\n"),
    ("proc/meminfo", "MemTotal:         496876 kB\nMemFree:          112233 kB\n"),
    ("proc/device-tree/vm,uuid", "5b2d\0"),
    ("sys/devices/system/cpu/online", "0-2,5\n"),
    ("etc/machine-id", "2f4c7a1f6f7e4d0c9a5d3b1e8f6a7c90\n"),
    ("etc/os-release", "NAME=Debian\nPRETTY_NAME=\"Debian \\\"13\\\" (trixie)\"\nID=debian\n"),
    ("proc/net/fib_trie", "  |-- 10.9.9.9\n   /32 host LOCAL\n"),
    ("proc/net/if_inet6", "20010db8000000000000000000000006 02 40 00 80 eth0\n"),
];
const DISK: Option<Space> = Some(Space { total: 8 << 30, free: 1 << 30 });

fn machine(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn no_route(_: IpAddr) -> Option<IpAddr> {
    None
}

/// Two interfaces: one towards 10.20.0.0/16, one with the default route.
fn two_routes(to: IpAddr) -> Option<IpAddr> {
    match to {
        IpAddr::V4(to) if to.octets()[..2] == [10, 20] => Some(Ipv4Addr::new(10, 20, 0, 7).into()),
        IpAddr::V4(to) if to.is_loopback() => Some(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V4(_) => Some(Ipv4Addr::new(192, 168, 1, 7).into()),
        IpAddr::V6(_) => None,
    }
}

fn address(status: &Map<String, Value>, kind: &str) -> Vec<String> {
    let addresses = status["addresses"].as_array().unwrap().iter();
    let those = addresses.filter(|address| address["type"] == kind);
    those.map(|address| address["address"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_report_describes_the_machine() {
    let root = machine(MACHINE);
    let facts = Facts { root: root.path(), source: two_routes };
    let status = facts.status("pump-7.north", "10.20.0.1", DISK);
    assert_eq!(
        Value::Object(status),
        json!({
            "addresses": [
                {"type": "Hostname", "address": "pump-7"},
                {"type": "InternalIP", "address": "10.20.0.7"},
            ],
            "allocatable": {"cpu": "4", "memory": "496876Ki", "ephemeral-storage": "8388608Ki", "pods": "0"},
            "capacity": {"cpu": "4", "memory": "496876Ki", "ephemeral-storage": "8388608Ki", "pods": "0"},
            "nodeInfo": {
                "architecture": go_arch(),
                "bootID": "0f3a8f0e-7c0b-4f5e-9d1c-2b6a9a5e7d10",
                "containerRuntimeVersion": "",
                "kernelVersion": "6.12.31-v8+",
                "kubeProxyVersion": "",
                "kubeletVersion": concat!("v", env!("CARGO_PKG_VERSION"), "-edgesync"),
                "machineID": "2f4c7a1f6f7e4d0c9a5d3b1e8f6a7c90",
                "operatingSystem": "linux",
                "osImage": "Debian \"13\" (trixie)",
                "systemUUID": "5b2d",
            },
        })
    );
}

#[test]
fn configured_labels_take_precedence_over_the_machines() {
    let root = machine(MACHINE);
    let facts = Facts { root: root.path(), source: no_route };
    let configured = [("site", "north"), ("kubernetes.io/os", "plan9")];
    let configured = configured.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let labels = facts.labels("pump-7.north", &configured);
    let expected = [
        ("kubernetes.io/arch", go_arch()),
        ("kubernetes.io/hostname", "pump-7.north"),
        ("kubernetes.io/os", "plan9"),
        ("node-role.kubernetes.io/edge", ""),
        ("site", "north"),
    ];
    assert_eq!(labels.iter().map(|(key, value)| (&**key, &**value)).collect::<Vec<_>>(), expected);

    let long = "a".repeat(64);
    assert_eq!(facts.labels(&long, &BTreeMap::new())["kubernetes.io/hostname"], "pump-7");
    let nameless = machine(&[("proc/sys/kernel/hostname", "(none)\n")]);
    let facts = Facts { root: nameless.path(), source: no_route };
    assert_eq!(facts.labels(&long, &BTreeMap::new()).get("kubernetes.io/hostname"), None);
    for (key, value) in facts.labels("n", &BTreeMap::new()) {
        assert_eq!((name::check_label_key(&key), name::check_label_value(&value)), (Ok(()), Ok(())), "{key}");
    }
}

#[test]
fn a_machine_without_facts_is_still_a_valid_node() {
    let root = machine(&[]);
    let facts = Facts { root: root.path(), source: no_route };
    let status = facts.status("n", "broker.example", None);
    assert_eq!(status["capacity"], json!({"pods": "0"}));
    assert_eq!(status["addresses"], json!([{"type": "Hostname", "address": "n"}]));
    let mut node = Map::from_iter([
        ("apiVersion".to_owned(), json!("v1")),
        ("kind".to_owned(), json!("Node")),
        ("metadata".to_owned(), json!({"name": "n"})),
        ("status".to_owned(), Value::Object(status)),
    ]);
    let schema = builtin("", "v1", "Node").unwrap();
    assert_eq!(prune(&schema, &mut node), [""; 0]);
    assert_eq!(validate(&schema, &node), []);
}

#[test]
fn this_machine_is_a_valid_node_and_its_report_is_stable() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.node.name = "pump-7".to_owned();
    config.store.path = directory.path().join("edgesync.db");
    let first = report(&config, Vec::new());
    assert_eq!(first, report(&config, Vec::new()));
    assert!(first.status["capacity"].get("memory").is_some(), "{first:?}");
    assert!(serde_json::to_string(&first).unwrap().len() < 2_048);
    let mut node = Map::from_iter([
        ("metadata".to_owned(), json!({"name": "n"})),
        ("status".to_owned(), Value::Object(first.status)),
    ]);
    let schema = builtin("", "v1", "Node").unwrap();
    assert_eq!((prune(&schema, &mut node), validate(&schema, &node)), (Vec::new(), Vec::new()));
}

#[test]
fn the_address_is_that_of_broker_route_or_interface() {
    let root = machine(MACHINE);
    let internal = |source, broker| {
        let facts = Facts { root: root.path(), source };
        address(&facts.status("n", broker, None), "InternalIP")
    };
    assert_eq!(internal(two_routes, "10.20.255.1"), ["10.20.0.7"]);
    assert_eq!(internal(two_routes, "broker.example"), ["192.168.1.7"]);
    assert_eq!(internal(two_routes, "127.0.0.1"), ["192.168.1.7"], "a broker on this machine says nothing");
    assert_eq!(internal(no_route, "broker.example"), ["10.9.9.9"]);
    let v6 = machine(&MACHINE[MACHINE.len() - 1..]);
    let facts = Facts { root: v6.path(), source: no_route };
    assert_eq!(address(&facts.status("n", "::1", None), "InternalIP"), ["2001:db8::6"]);
    assert_eq!(internal(|_| Some("::ffff:10.1.1.1".parse().unwrap()), "fd00::1"), ["10.1.1.1"]);
}

#[test]
fn malformed_files_are_omitted() {
    let long = "x".repeat(200_000);
    let files = [
        ("proc/meminfo", "MemTotal: lots\n"),
        ("sys/devices/system/cpu/online", "3-1\n"),
        ("proc/sys/kernel/osrelease", "\u{7}\u{1b}[31m6.1\n"),
        ("etc/os-release", long.as_str()),
        ("etc/machine-id", long.as_str()),
        ("proc/sys/kernel/hostname", "\n\n"),
    ];
    let root = machine(&files);
    let facts = Facts { root: root.path(), source: no_route };
    let status = facts.status("n", "", None);
    assert_eq!(status["capacity"], json!({"pods": "0"}));
    assert_eq!(status["nodeInfo"]["kernelVersion"], "[31m6.1");
    assert_eq!(status["nodeInfo"]["osImage"], "");
    assert_eq!(status["nodeInfo"]["machineID"].as_str().unwrap().len(), MAX_VALUE);
    assert_eq!(address(&status, "Hostname"), ["n"]);
}

#[test]
fn processors_are_counted_over_ranges() {
    for (text, count) in
        [("0\n", Some(1)), ("0-7\n", Some(8)), ("0-1,4,6-7", Some(5)), ("a", None), (",", None)]
    {
        let root = machine(&[("sys/devices/system/cpu/online", text)]);
        let facts = Facts { root: root.path(), source: no_route };
        assert_eq!(facts.processors(), count, "{text}");
    }
}

#[test]
fn values_of_os_release_are_unquoted_like_in_a_shell() {
    for (value, read) in [
        ("Debian", "Debian"),
        (r#""Debian 13""#, "Debian 13"),
        ("'a \\ b'", "a \\ b"),
        (r#""a \"b\" \\ \$c""#, r#"a "b" \ $c"#),
        ("\"", "\""),
        ("", ""),
    ] {
        assert_eq!(unquoted(value), read, "{value}");
    }
}
