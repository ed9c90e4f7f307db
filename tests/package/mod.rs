//! The built packages, installed with dpkg into a throw-away root: files and owners, the effects of
//! upgrade, removal and purge, and the life of a device: token, join, mosquitto with TLS and access
//! rules, sync, renewal, upgrade; the units under a systemd of their own; the agent in a root with
//! nothing but its program; and the image.
//!
//! packaging/test builds the packages and runs this. The tests need root and namespaces; without
//! them they are skipped with a notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod image;
mod minimal;
mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use edgesync_admin::agent::AgentStatus;
use support::{Owner, PATIENCE, Root, Service, Systemd, Unit, eventually};

/// Both packages, which are also the names of the users.
const NAMES: [&str; 2] = ["edgesync", "edgesync-cloud"];
/// The units of the packages, each with the highest exposure that systemd-analyze may rate, times
/// ten. The files helper writes files and runs programs as root.
const UNITS: [(&str, &str); 3] = [("edgesync", "20"), ("edgesync-files", "40"), ("edgesync-cloud", "20")];
/// The host name of the throw-away root, and therefore the name of the node.
const NODE: &str = "gateway-7";
const CONFIG: &str = "/etc/edgesync/edgesync.toml";
const DATABASE: &str = "/var/lib/edgesync/edgesync.db";
const IDENTITIES: &str = "/var/lib/edgesync/identity";
/// Directories of the packages: the built ones, and the same with a higher version.
const BUILT: &str = "/packages";
const NEXT: &str = "/packages/next";

/// Installs or upgrades packages non-interactively: dpkg fails if it has a question.
fn install(root: &Root, directory: &str, names: &[&str]) {
    let files: Vec<String> = names.iter().map(|name| root.package(directory, name)).collect();
    let mut words = vec!["dpkg", "--force-unsafe-io", "--install"];
    words.extend(files.iter().map(String::as_str));
    root.run(&words);
    for name in names {
        let verified = root.attempt(&["dpkg", "--verify", name]);
        let said = String::from_utf8_lossy(&verified.stdout).into_owned();
        // An edited configuration file is marked with a c.
        let differs = said.lines().find(|line| !line.contains(" c /etc/default/"));
        assert_eq!(differs, None, "{name} is not as it was packed");
    }
}

fn version(root: &Root, name: &str) -> String {
    root.run(&["dpkg-query", "--show", "--showformat=${Version}", name])
}

#[test]
#[ignore = "needs built packages: packaging/test"]
fn installation_creates_users_directories_units_and_manuals() {
    let Some(root) = Root::new() else { return };
    install(&root, BUILT, &NAMES);
    for name in NAMES {
        let private = Owner::new(name, name, 0o750);
        assert_eq!(root.owner(&format!("/var/lib/{name}")), private, "the state of {name}");
        assert_eq!(root.owner(&format!("/usr/bin/{name}")), Owner::new("root", "root", 0o755));
        for file in ["/etc/default/", "/usr/share/bash-completion/completions/"] {
            assert_eq!(root.owner(&format!("{file}{name}")), Owner::new("root", "root", 0o644));
        }
        let login = root.run(&["getent", "passwd", name]);
        assert!(login.trim().ends_with(&format!(":/var/lib/{name}:/usr/sbin/nologin")), "{login}");
        assert!(root.run(&[name, "--version"]).starts_with(&format!("{name} ")));
        let wants = format!("/etc/systemd/system/multi-user.target.wants/{name}.service");
        assert!(root.exists(&wants), "{name} starts with the machine");
        assert_eq!(root.run(&["dpkg-query", "--show", "--showformat=${Conffiles}", name]).lines().count(), 1);
        let needed = root.run(&["dpkg-query", "--show", "--showformat=${Depends}", name]);
        assert!(needed.starts_with("libc6 (>= 2."), "the C library is the only dependency: {needed:?}");
        let linked = ["CONTRIBUTING.md", "docs/decisions/0030-chart.md"];
        for file in ["copyright", "changelog.Debian.gz", "third-party-notices.txt"].into_iter().chain(linked)
        {
            assert!(root.exists(&format!("/usr/share/doc/{name}/{file}")), "{file} of {name}");
        }
        assert_manual_pages(&root, name, &[name]);
    }
    let plugin = root.run(&["env", "HOME=/root", "kubectl-edgesync", "--version"]);
    assert!(plugin.starts_with("edgesync-cloud "), "{plugin}");
    assert!(root.exists("/usr/share/man/man1/kubectl-edgesync.1.gz"), "the page of the plugin");
    assert_eq!(root.owner("/etc/edgesync"), Owner::new("root", "root", 0o755));
    // The agent waits for the join; the cloud side runs with its defaults.
    assert!(!Unit::installed(&root, "edgesync").conditions_hold(&root));
    assert!(!root.exists(CONFIG));
    root.run(&["edgesync-cloud", "check-config", "--quiet"]);
    assert_eq!(root.owner("/etc/edgesync/edgesync-cloud.toml"), Owner::new("root", "root", 0o644));
    // The reference configuration equals the built-in defaults.
    root.run(&["edgesync", "check-config", "--quiet", "--config", "/usr/share/edgesync/edgesync.toml"]);
}

/// Asserts that a command and all its subcommands have a manual page.
fn assert_manual_pages(root: &Root, name: &str, words: &[&str]) {
    let page = format!("/usr/share/man/man1/{}.1.gz", words.join("-"));
    assert!(root.exists(&page), "{page}");
    let mut help = words.to_vec();
    help.push("--help");
    let text = root.run(&help);
    // Commands stand under one or several headings before the options, arguments in brackets.
    let list = text.split("\nOptions:\n").next().unwrap_or_default();
    let named = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let commands: Vec<&str> =
        named.filter(|word| word.starts_with(|letter: char| letter.is_ascii_lowercase())).collect();
    assert!(words.len() > 1 || commands.contains(&"check-config"), "{name} has commands:\n{text}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        let mut below = words.to_vec();
        below.push(command);
        assert_manual_pages(root, name, &below);
    }
}

#[test]
#[ignore = "needs built packages: packaging/test"]
fn installed_units_are_valid_and_sandboxed() {
    let Some(root) = Root::new() else { return };
    install(&root, BUILT, &NAMES);
    for (name, threshold) in UNITS {
        let unit = format!("/usr/lib/systemd/system/{name}.service");
        let verified = root.attempt(&["systemd-analyze", "verify", &unit]);
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        // systemd 254 or newer lets the waits between restarts grow; older versions warn about
        // these keys.
        let is_older = |line: &&str| {
            ["RestartSteps", "RestartMaxDelaySec"]
                .iter()
                .any(|key| line.contains("Unknown key") && line.contains(&format!("'{key}'")))
        };
        // The command also verifies units of the machine itself.
        let ours: Vec<&str> =
            said.lines().filter(|line| line.contains("edgesync") && !is_older(line)).collect();
        assert!(ours.is_empty() && verified.status.success(), "{said}");
        let threshold = format!("--threshold={threshold}");
        root.run(&["systemd-analyze", "security", "--offline=true", &threshold, "--no-pager", &unit]);
    }
}

#[test]
#[ignore = "needs built packages: packaging/test"]
fn removal_keeps_state_purge_deletes_it_upgrades_are_silent() {
    let Some(root) = Root::new() else { return };
    install(&root, BUILT, &NAMES);
    let edited = "EDGESYNC_LOG_LEVEL=debug\n";
    root.write("/etc/default/edgesync", edited);
    let cloud = "[log]\nlevel = \"warn\"\n";
    root.write("/etc/edgesync/edgesync-cloud.toml", cloud);
    root.write(CONFIG, "[node]\nname = \"kept\"\n");
    root.write("/var/lib/edgesync/seal.key", "kept");
    root.run(&["env", "SYSTEMD_OFFLINE=1", "systemctl", "--quiet", "disable", "edgesync-cloud.service"]);

    let (one, other) = (root.package(BUILT, "edgesync"), root.package(NEXT, "edgesync"));
    assert_ne!(one, other);
    let before = version(&root, "edgesync");
    let files: Vec<String> = NAMES.iter().map(|name| root.package(NEXT, name)).collect();
    root.run(&["dpkg", "--force-unsafe-io", "--install", &files[0], &files[1]]);
    let after = version(&root, "edgesync");
    root.run(&["dpkg", "--compare-versions", &before, "lt", &after]);
    let is_as_it_was = || {
        assert_eq!(root.read("/etc/default/edgesync"), edited);
        assert_eq!(root.read(CONFIG), "[node]\nname = \"kept\"\n");
        assert_eq!(root.read("/etc/edgesync/edgesync-cloud.toml"), cloud);
        assert_eq!(root.read("/var/lib/edgesync/seal.key"), "kept");
        assert!(root.has_user("edgesync"));
    };
    is_as_it_was();
    let wants = "/etc/systemd/system/multi-user.target.wants";
    assert!(!root.exists(&format!("{wants}/edgesync-cloud.service")), "what was disabled stays disabled");
    assert!(root.exists(&format!("{wants}/edgesync.service")));

    root.run(&["dpkg", "--remove", "edgesync"]);
    assert!(!root.exists("/usr/bin/edgesync"));
    is_as_it_was();
    install_again_and_purge(&root);
}

fn install_again_and_purge(root: &Root) {
    root.run(&["dpkg", "--force-unsafe-io", "--install", &root.package(BUILT, "edgesync")]);
    assert_eq!(root.read("/var/lib/edgesync/seal.key"), "kept");
    root.run(&["dpkg", "--purge", "edgesync"]);
    for gone in [CONFIG, "/var/lib/edgesync", "/etc/default/edgesync", "/usr/share/edgesync"] {
        assert!(!root.exists(gone), "{gone}");
    }
    assert!(!root.has_user("edgesync"));
    // The cloud side on the same machine is a separate package.
    assert!(root.exists("/etc/edgesync/edgesync-cloud.toml") && root.has_user("edgesync-cloud"));
    root.run(&["dpkg", "--purge", "edgesync-cloud"]);
    assert!(!root.has_user("edgesync-cloud"));
    assert_eq!(root.left_over("edgesync"), [""; 0], "left over after the purge");
}

/// Variables of the cloud side in /etc/default: an external broker, and certificates with a
/// lifetime of a minute.
const CLOUD_DEFAULTS: &str = "\
EDGESYNC_CLOUD_BROKER_MODE=external
EDGESYNC_CLOUD_LINK_BROKER=mqtts://cloud.test:8883
EDGESYNC_CLOUD_LINK_BACKOFF_MAX=1s
EDGESYNC_CLOUD_ENROLLMENT_NAMES=cloud.test
EDGESYNC_CLOUD_ENROLLMENT_CERTIFICATE_LIFETIME=1m
";
const AGENT_DEFAULTS: &str = "EDGESYNC_NODE_LABELS=site=north\nEDGESYNC_LINK_BACKOFF_MAX=1s\n";
/// Part of a Secret; no file on the disk of the device may contain it.
const MARKER: &str = "marker-of-the-secret-4711";

/// Objects for the node.
fn manifests(number: u32) -> String {
    let labels = format!("labels: {{edgesync.io/node: {NODE}}}");
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings-{number}, {labels}}}\ndata: {{number: '{number}'}}\n\
         ---\napiVersion: v1\nkind: Secret\nmetadata: {{name: password-{number}, {labels}}}\n\
         stringData: {{password: {MARKER}}}\n"
    )
}

#[test]
#[ignore = "needs built packages: packaging/test"]
fn device_joins_syncs_renews_upgrades_and_is_purged() {
    let Some(root) = Root::new() else { return };
    install(&root, BUILT, &NAMES);
    root.write("/etc/default/edgesync-cloud", CLOUD_DEFAULTS);
    root.write("/etc/default/edgesync", AGENT_DEFAULTS);
    let cloud_unit = Unit::installed(&root, "edgesync-cloud");
    let _cloud = Service::start(&root, &cloud_unit);
    start_mosquitto(&root);
    join(&root);

    let agent_unit = Unit::installed(&root, "edgesync");
    let agent = Service::start(&root, &agent_unit);
    root.feed(&["edgesync-cloud", "apply", "-f", "-"], &manifests(1));
    holds(&root, 1);
    assert_private_on_disk(&root);
    until_renewed(&root);
    root.feed(&["edgesync-cloud", "apply", "-f", "-"], &manifests(2));
    holds(&root, 2);

    let (config, epoch) = (root.read(CONFIG), status(&root).store.epoch);
    let sets = root.names(IDENTITIES);
    // The files are replaced while the program runs; systemd would then restart it.
    install(&root, NEXT, &["edgesync"]);
    agent.stop();
    assert_eq!(root.read("/etc/default/edgesync"), AGENT_DEFAULTS);
    assert_eq!((root.read(CONFIG), root.names(IDENTITIES)), (config, sets));
    let agent = Service::start(&root, &agent_unit);
    until_the_old_certificate_is_removed(&root);
    root.feed(&["edgesync-cloud", "apply", "-f", "-"], &manifests(3));
    holds(&root, 3);
    assert_eq!(status(&root).store.epoch, epoch, "the database is the same");
    let node = root.run(&["edgesync-cloud", "get", "nodes", NODE, "-o", "json"]);
    assert!(node.contains("north"), "the label of /etc/default/edgesync: {node}");
    agent.stop();
    assert_newer_database_is_set_aside(&root, &agent_unit);
    assert_removal_and_purge(&root);
}

/// Also runs in a root of the oldest system that the packages promise to run on.
#[test]
#[ignore = "needs built packages: packaging/test"]
fn device_joins_and_syncs_with_the_embedded_endpoint() {
    let Some(root) = Root::new() else { return };
    install(&root, BUILT, &NAMES);
    root.write("/etc/default/edgesync-cloud", "EDGESYNC_CLOUD_ENROLLMENT_NAMES=cloud.test\n");
    root.write("/etc/default/edgesync", AGENT_DEFAULTS);
    let cloud_unit = Unit::installed(&root, "edgesync-cloud");
    let _cloud = Service::start(&root, &cloud_unit);
    join(&root);
    let agent_unit = Unit::installed(&root, "edgesync");
    let agent = Service::start(&root, &agent_unit);
    root.feed(&["edgesync-cloud", "apply", "-f", "-"], &manifests(1));
    holds(&root, 1);
    agent.stop();
}

/// A unit that appends its setting to a file when it is reloaded, and rejects a bad one.
const DEMO: &str = "\
[Service]
ExecStart=/bin/sleep infinity
ExecReload=/bin/sh -c 'cat /etc/demo/setting >>/var/lib/reloads; ! grep -q bad /etc/demo/setting'
";
/// A rule for the configuration file of that unit.
const DEMO_RULE: &str = "
[[files]]
name = \"demo\"
objects = { kinds = [\"configmaps\"], namespaces = [\"default\"], names = [\"demo\"] }
to = \"/etc/demo/setting\"
write = \"field\"
field = \"/data/setting\"
settle = \"0s\"
reload = { unit = \"demo.service\" }
";

fn demo_manifest(setting: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: demo, labels: {{edgesync.io/node: {NODE}}}}}\n\
         data: {{setting: \"{setting}\\n\"}}\n"
    )
}

/// Waits until the reloads of the unit have read these settings.
fn reloaded(systemd: &Systemd, root: &Root, expected: &str) {
    eventually(&format!("the unit is reloaded with {expected:?}"), 2 * PATIENCE, || {
        let seen = root.attempt(&["cat", "/var/lib/reloads"]);
        let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
        let shown = || systemd.run(&["edgesync", "files"]);
        if seen == expected { Ok(()) } else { Err(format!("{seen:?}\n{}\n{}", shown(), systemd.log())) }
    });
}

#[test]
#[ignore = "needs built packages: packaging/test"]
fn systemd_runs_the_units_and_the_helper_reloads_one() {
    let Some(root) = Root::new() else { return };
    install(&root, BUILT, &NAMES);
    root.write("/etc/default/edgesync-cloud", "EDGESYNC_CLOUD_ENROLLMENT_NAMES=cloud.test\n");
    root.write("/etc/systemd/system/demo.service", DEMO);
    let Some(systemd) = Systemd::boot(&root) else { return };
    systemd.start(&["edgesync-cloud", "demo"]);
    let token = systemd.run(&["edgesync-cloud", "token", "create", "--node", NODE]);
    systemd.feed(&["edgesync", "join", "--cloud", "https://cloud.test:10002", "--token", "-"], &token);
    systemd.start(&["edgesync"]);
    root.write(CONFIG, &(root.read(CONFIG) + DEMO_RULE));
    systemd.run(&["systemctl", "reload", "edgesync"]);

    let demo = systemd.property("demo", "MainPID");
    systemd.feed(&["edgesync-cloud", "apply", "-f", "-"], &demo_manifest("good"));
    reloaded(&systemd, &root, "good\n");
    assert_eq!(systemd.property("edgesync-files", "ActiveState"), "active", "started by its socket");
    systemd.feed(&["edgesync-cloud", "apply", "-f", "-"], &demo_manifest("bad"));
    reloaded(&systemd, &root, "good\nbad\ngood\n");
    assert_eq!(root.read("/etc/demo/setting"), "good\n", "rolled back");
    assert_eq!(systemd.property("demo", "MainPID"), demo, "the same process");

    // Holds are for root and the group, not for the agent's user.
    systemd.run(&["sh", "-c", "! runuser -u edgesync -- edgesync holds 2>/dev/null"]);
    systemd.run(&["useradd", "--system", "--groups", "edgesync-hold", "plc"]);
    let hold = "runuser -u plc -- edgesync hold --rule demo --for 1h --why test";
    systemd.run(&["sh", "-c", hold]);
    systemd.feed(&["edgesync-cloud", "apply", "-f", "-"], &demo_manifest("better"));
    eventually("the change waits for the hold", 2 * PATIENCE, || {
        let shown = systemd.run(&["edgesync", "files"]);
        if shown.contains("Waiting") && shown.contains("plc") { Ok(()) } else { Err(shown) }
    });
    assert_eq!(root.read("/etc/demo/setting"), "good\n");
    systemd.run(&["edgesync", "release", "1"]);
    systemd.run(&["edgesync", "files", "apply", "demo"]);
    reloaded(&systemd, &root, "good\nbad\ngood\nbetter\n");

    let agent = systemd.property("edgesync", "MainPID");
    systemd.run(&["kill", "-KILL", &agent]);
    eventually("systemd restarts the agent", 2 * PATIENCE, || {
        let (state, pid) =
            (systemd.property("edgesync", "ActiveState"), systemd.property("edgesync", "MainPID"));
        if state == "active" && pid != agent { Ok(()) } else { Err(format!("{state} {pid}")) }
    });
    assert_removed_service_starts_again(&root, &systemd);
    systemd.run(&[
        "systemctl",
        "stop",
        "edgesync",
        "edgesync-files.socket",
        "edgesync-hold.socket",
        "edgesync-cloud",
    ]);
    for unit in ["edgesync", "edgesync-files", "edgesync-cloud"] {
        assert_eq!(systemd.property(unit, "Result"), "success", "{unit}");
    }
}

/// dpkg names the removed version to postinst, as at an upgrade, which starts no stopped service.
fn assert_removed_service_starts_again(root: &Root, systemd: &Systemd) {
    // Images of containers keep packages from starting services.
    root.run(&["rm", "-f", "/usr/sbin/policy-rc.d"]);
    // The directory of the packages is not part of what systemd sees.
    let package = "/var/cache/edgesync-cloud.deb";
    root.run(&["cp", &root.package(BUILT, "edgesync-cloud"), package]);
    let install = || systemd.run(&["dpkg", "--force-unsafe-io", "--install", package]);
    systemd.run(&["dpkg", "--remove", "edgesync-cloud"]);
    assert_eq!(systemd.property("edgesync-cloud", "ActiveState"), "inactive");
    install();
    assert_eq!(systemd.property("edgesync-cloud", "ActiveState"), "active", "{}", systemd.log());
    systemd.run(&["systemctl", "stop", "edgesync-cloud"]);
    install();
    assert_eq!(systemd.property("edgesync-cloud", "ActiveState"), "inactive", "stopped by an operator");
}

/// Starts mosquitto under its own user with the configuration of `edgesync-cloud broker-config`.
fn start_mosquitto(root: &Root) {
    let directory = "/etc/mosquitto/edgesync";
    root.run(&[
        "edgesync-cloud",
        "broker-config",
        "mosquitto",
        "--output",
        directory,
        "--name",
        "cloud.test",
    ]);
    root.run(&["chown", "-R", "mosquitto:", directory]);
    let files = root.names(directory);
    let config = files.iter().find(|name| name.ends_with(".conf")).unwrap_or_else(|| panic!("{files:?}"));
    let log = std::fs::File::create(root.log_file("mosquitto")).unwrap();
    let mut command: Command = root.command(&["mosquitto", "-c", &format!("{directory}/{config}")]);
    let mut broker = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    eventually("mosquitto listens", PATIENCE, || {
        if let Some(status) = broker.try_wait().unwrap() {
            let said = std::fs::read_to_string(root.log_file("mosquitto")).unwrap_or_default();
            panic!("mosquitto ended with {status}:\n{said}");
        }
        // Port 8883 in hexadecimal, and the state "listening".
        let listens = |line: &str| line.contains(":22B3 ") && line.contains(" 0A ");
        let sockets = root.run(&["cat", "/proc/net/tcp", "/proc/net/tcp6"]);
        if sockets.lines().any(listens) { Ok(()) } else { Err(sockets) }
    });
}

/// Joins with a token over standard input, then checks the written files and their owners.
fn join(root: &Root) {
    let unit = Unit::installed(root, "edgesync");
    assert!(!unit.conditions_hold(root));
    let token = root.run(&["edgesync-cloud", "token", "create", "--node", NODE]);
    let words = ["edgesync", "join", "--cloud", "https://cloud.test:10002", "--token", "-"];
    // The broker may still refuse the cloud side, but the node can connect.
    let said = root.feed(&words, &token);
    assert!(!said.contains(token.trim()), "the token is a secret");
    assert!(unit.conditions_hold(root));
    let set = identity(root);
    root.feed(&words, &token);
    assert_eq!(identity(root), set, "joining twice changes nothing");

    assert_eq!(root.owner(&format!("{set}/node.pem")), Owner::new("edgesync", "edgesync", 0o600));
    assert_eq!(root.owner(&format!("{set}/ca.crt")).user, "edgesync");
    assert_eq!(root.owner(IDENTITIES).user, "edgesync");
    assert_eq!(root.owner(CONFIG).mode & 0o022, 0, "only root writes the configuration");
    // The service's user can read its configuration.
    root.run(&[
        "setpriv",
        "--reuid=edgesync",
        "--regid=edgesync",
        "--clear-groups",
        "edgesync",
        "check-config",
        "-q",
    ]);
}

/// Returns the directory of the current identity.
fn identity(root: &Root) -> String {
    let sets = root.names(IDENTITIES);
    assert_eq!(sets.len(), 1, "one identity: {sets:?}");
    let set = format!("{IDENTITIES}/{}", sets[0]);
    assert!(root.read(CONFIG).contains(&set), "{CONFIG} names {set}");
    set
}

fn status(root: &Root) -> AgentStatus {
    serde_json::from_str(&root.run(&["edgesync", "status", "-o", "json"])).unwrap()
}

/// Waits until the node holds the objects up to a number and the cloud has confirmed it.
fn holds(root: &Root, number: u32) {
    eventually(&format!("the node holds objects up to {number}"), 2 * PATIENCE, || {
        let maps = root.run(&["edgesync", "get", "configmaps", "-o", "name"]);
        let status = status(root);
        let all = (1..=number).all(|number| maps.contains(&format!("settings-{number}")));
        if all && status.sync.in_sync && status.sync.unconfirmed == 0 {
            Ok(())
        } else {
            Err(format!("{maps}\n{status:#?}"))
        }
    });
    let secret = root.run(&["edgesync", "get", "secrets", &format!("password-{number}"), "-o", "name"]);
    assert!(secret.contains("password"), "{secret}");
}

/// Asserts that only the CA certificate is readable by others, and that no file contains the
/// Secret.
fn assert_private_on_disk(root: &Root) {
    let open = root.run(&[
        "find",
        "/var/lib/edgesync",
        "-perm",
        "/o=rwx",
        "!",
        "-type",
        "l",
        "!",
        "-name",
        "ca.crt",
    ]);
    assert_eq!(open, "", "readable by everybody");
    for secret in [MARKER.to_owned(), base64_of_the_marker(root)] {
        let found = root.attempt(&[
            "grep",
            "-r",
            "-l",
            "-a",
            "-F",
            "-e",
            &secret,
            "/var/lib/edgesync",
            "/etc/edgesync",
        ]);
        assert_eq!(found.status.code(), Some(1), "{}", String::from_utf8_lossy(&found.stdout));
    }
}

fn base64_of_the_marker(root: &Root) -> String {
    root.feed(&["base64", "-w0"], MARKER)
}

/// Waits for a renewal: with a lifetime of a minute it happens after 42 to 54 seconds, without an
/// interruption.
fn until_renewed(root: &Root) {
    let pem = format!("{}/node.pem", identity(root));
    let before = root.read(&pem);
    eventually("the certificate is renewed", Duration::from_secs(75), || {
        if root.read(&pem) == before { Err("the old certificate".to_owned()) } else { Ok(()) }
    });
    assert_eq!(root.owner(&pem), Owner::new("edgesync", "edgesync", 0o600));
    // The current connection uses the old certificate, which is kept until a connection uses the
    // new one.
    assert!(root.names(&identity(root)).contains(&"node.previous.pem".to_owned()));
}

/// Waits until the old certificate is removed after the new one was used.
fn until_the_old_certificate_is_removed(root: &Root) {
    eventually("the old certificate is forgotten", PATIENCE, || {
        let files = root.names(&identity(root));
        if files == ["ca.crt", "node.pem"] { Ok(()) } else { Err(format!("{files:?}")) }
    });
}

/// Simulates a downgrade: the newer database is set aside, and the agent keeps its readable
/// contents.
fn assert_newer_database_is_set_aside(root: &Root, unit: &Unit) {
    // After an orderly shutdown the database file is complete. SQLite cannot open it in place,
    // below another root.
    let path = root.path(DATABASE);
    let before = std::fs::read(&path).unwrap();
    let copy = root.log_file("newer.db");
    std::fs::write(&copy, &before).unwrap();
    let conn = rusqlite::Connection::open(&copy).unwrap();
    let newer = "INSERT INTO migrations VALUES (9999, '9999_x.sql', 0, ''); PRAGMA user_version = 9999;";
    conn.execute_batch(newer).unwrap();
    conn.close().unwrap();
    let newer = std::fs::read(&copy).unwrap();
    std::fs::write(&path, &newer).unwrap();
    let service = Service::spawn(root, unit);
    let log = root.log_file("edgesync");
    eventually("the newer database is set aside", PATIENCE, || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        if said.contains("database of a newer edgesync set aside") { Ok(()) } else { Err(said) }
    });
    service.stop();
    let beside = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let mut aside = beside.filter(|file| file.to_string_lossy().contains(".newer-"));
    assert!(aside.any(|file| std::fs::read(file).unwrap() == newer), "the database is kept as it was");
}

fn assert_removal_and_purge(root: &Root) {
    root.run(&["dpkg", "--remove", "edgesync"]);
    assert!(root.exists(DATABASE) && root.exists(CONFIG) && root.exists("/etc/default/edgesync"));
    identity(root);
    root.run(&["dpkg", "--purge", "edgesync"]);
    for gone in [CONFIG, "/var/lib/edgesync", "/etc/default/edgesync"] {
        assert!(!root.exists(gone), "{gone}");
    }
    assert!(!root.has_user("edgesync"));
}
