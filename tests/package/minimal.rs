//! The packaged agent in a root that has the program, its libraries, and two directories: no
//! `/etc`, `/proc`, `/dev`, `/sys` or `/tmp`, and no other program.

use std::fs::File;
use std::process::{Child, Stdio};

use edgesync_admin::agent::AgentStatus;

use super::support::{PATIENCE, Root, Service, Unit, eventually};
use super::{BUILT, NAMES, NODE, install, manifests};

/// Copies the program and the libraries that its dynamic linker loads.
const MAKE: &str = "\
mkdir -p /minimal/usr/bin /minimal/data /minimal/run
cp /usr/bin/edgesync /minimal/usr/bin/
ldd /usr/bin/edgesync | grep -o '/[^ ]*' | xargs -r cp --parents --dereference --target-directory=/minimal
";
/// Runs the agent there, after recording the process id, which `exec` keeps.
const RUN: &str = "echo $$ >/run/minimal.pid; exec \"$@\"";
const CONFIG: &str = "/data/edgesync.toml";
const SETTINGS: &str = "\
[store]
path = \"/data/edgesync.db\"
[api]
socket = \"/run/edgesync.sock\"
[link]
backoff_max = \"1s\"
";
/// Directories that programs expect, and that this root must not get.
const ABSENT: [&str; 6] = ["etc", "proc", "dev", "sys", "tmp", "var"];

struct Minimal<'a>(&'a Root);

impl<'a> Minimal<'a> {
    fn new(root: &'a Root) -> Self {
        root.run(&["sh", "-euc", MAKE]);
        root.write(&format!("/minimal{CONFIG}"), SETTINGS);
        Self(root)
    }

    /// Returns the words of a command of the agent's program.
    fn words<'w>(&self, arguments: &[&'w str]) -> Vec<&'w str> {
        let mut words =
            vec!["env", "EDGESYNC_CONFIG=/data/edgesync.toml", "EDGESYNC_SOCKET=/run/edgesync.sock"];
        words.extend(["chroot", "/minimal", "/usr/bin/edgesync"]);
        words.extend(arguments);
        words
    }

    fn run(&self, arguments: &[&str]) -> String {
        self.0.run(&self.words(arguments))
    }

    /// Starts the agent.
    fn start(&self) -> Child {
        let agent = self.words(&["run"]);
        let words = [&["sh", "-c", RUN, "sh"], agent.as_slice()].concat();
        let log = File::options().create(true).append(true).open(self.0.log_file("minimal")).unwrap();
        self.0.command(&words).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    /// Sends a signal to the agent, and waits for its end. Returns whether it exited normally.
    fn end(&self, mut agent: Child, signal: &str) -> bool {
        self.0.run(&["kill", signal, self.0.read("/run/minimal.pid").trim()]);
        agent.wait().unwrap().success()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.0.log_file("minimal")).unwrap_or_default()
    }

    /// Waits until the node holds the objects up to a number, in sync.
    fn holds(&self, number: u32) {
        eventually(&format!("the node holds objects up to {number}"), 2 * PATIENCE, || {
            let attempt = |arguments: &[&str]| {
                String::from_utf8_lossy(&self.0.attempt(&self.words(arguments)).stdout).into_owned()
            };
            let maps = attempt(&["get", "configmaps", "-o", "name"]);
            let status = attempt(&["status", "-o", "json"]);
            let in_sync =
                serde_json::from_str::<AgentStatus>(&status).is_ok_and(|status| status.sync.in_sync);
            let all = (1..=number).all(|number| maps.contains(&format!("settings-{number}")));
            if all && in_sync { Ok(()) } else { Err(format!("{maps}{status}\n{}", self.log())) }
        });
    }
}

#[test]
#[ignore = "needs built packages: packaging/test"]
fn agent_works_in_a_root_without_system_files() {
    let Some(root) = Root::new() else { return };
    install(&root, BUILT, &NAMES);
    root.write("/etc/default/edgesync-cloud", "EDGESYNC_CLOUD_ENROLLMENT_NAMES=127.0.0.1\n");
    let cloud_unit = Unit::installed(&root, "edgesync-cloud");
    let _cloud = Service::start(&root, &cloud_unit);
    let minimal = Minimal::new(&root);
    let token = root.run(&["edgesync-cloud", "token", "create", "--node", NODE]);
    let join = ["join", "--cloud", "https://127.0.0.1:10002", "--token", "-"];
    root.feed(&minimal.words(&join), &token);

    let agent = minimal.start();
    root.feed(&["edgesync-cloud", "apply", "-f", "-"], &manifests(1));
    minimal.holds(1);
    assert!(!minimal.end(agent, "-KILL"));
    root.feed(&["edgesync-cloud", "apply", "-f", "-"], &manifests(2));
    let agent = minimal.start();
    minimal.holds(2);
    let secret = minimal.run(&["get", "secrets", "password-2", "-o", "name"]);
    assert!(secret.contains("password-2"), "{secret}");
    minimal.run(&["check"]);
    assert!(minimal.end(agent, "-TERM"), "{}", minimal.log());
    let found = root.names("/minimal");
    assert!(found.contains(&"data".to_owned()), "{found:?}");
    assert!(!found.iter().any(|name| ABSENT.contains(&name.as_str())), "{found:?}");
}
