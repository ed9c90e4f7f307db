//! A device with file rules: an agent, and the privileged helper.

use std::path::{Path, PathBuf};

use edgesync_admin::Route;
use edgesync_admin::agent::{FilesList, FilesObject, FilesRule, FilesState};
use serde_json::{Value, json};

use edgesync_testkit::site::{Agent, Cloud, PATIENCE, Process, Site, ask, eventually};

pub(crate) const NODE: &str = "edge-1";

pub(crate) struct Device {
    pub(crate) agent: Agent,
    pub(crate) helper: Process,
    socket: PathBuf,
    hold_socket: PathBuf,
}

impl Device {
    /// Creates a device with these rules without starting it.
    pub(crate) fn new(site: &Site, cloud: &Cloud, rules: &str) -> Self {
        Self::named(site, cloud, NODE, rules)
    }

    /// Creates one of several devices of a site.
    pub(crate) fn named(site: &Site, cloud: &Cloud, node: &str, rules: &str) -> Self {
        let mut agent = Agent::new(site, node, cloud.mqtt);
        let path = |name: &str| site.path(&format!("{node}.{name}"));
        let (socket, hold_socket, state) = (path("files.sock"), path("hold.sock"), path("files.state"));
        let settings = &mut agent.settings;
        settings.text("helper.socket", socket.display()).text("helper.state", state.display());
        settings.tables(rules);
        let arguments = vec![
            "files-helper".into(),
            "--config".into(),
            agent.config().into(),
            "--socket".into(),
            socket.clone().into(),
            "--hold-socket".into(),
            hold_socket.clone().into(),
        ];
        let helper =
            Process::with_arguments("the helper", Path::new(edgesync_testkit::programs::device()), arguments);
        Self { agent, helper, socket, hold_socket }
    }

    /// Starts a device with these rules.
    pub(crate) async fn start(site: &Site, cloud: &Cloud, rules: &str) -> Self {
        let mut device = Self::new(site, cloud, rules);
        device.agent.write_config();
        device.start_helper().await;
        device.agent.run().await;
        device
    }

    pub(crate) async fn start_helper(&mut self) {
        self.helper.start();
        let socket = &self.socket;
        eventually("the helper listens", PATIENCE, async || {
            std::os::unix::net::UnixStream::connect(socket).ok()
        })
        .await;
    }

    /// Runs a command about holds, and returns its output.
    pub(crate) fn holds(&self, words: &[&str]) -> String {
        let mut command = std::process::Command::new(edgesync_testkit::programs::device());
        let output = command.args(words).arg("--socket").arg(&self.hold_socket).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{words:?}: {text}");
        text
    }

    /// Replaces the rules and reloads the agent.
    pub(crate) async fn reload(&mut self, rules: &str) {
        let lines = self.agent.process.log().len();
        self.agent.settings.tables(rules);
        self.agent.write_config();
        self.agent.process.signal("HUP");
        self.agent.process.logged("reloaded: files", lines).await;
    }

    /// Returns a rule as `edgesync files` shows it; `None` while the agent has no such rule or does
    /// not answer.
    pub(crate) async fn rule(&self, name: &str) -> Option<FilesRule> {
        let shown: FilesList = ask(&self.agent.client(), Route::Files).await.ok()?;
        shown.rules.into_iter().find(|rule| rule.name == name)
    }

    /// Returns an object of a rule as `edgesync files` shows it.
    pub(crate) async fn object(&self, rule: &str, name: &str) -> Option<FilesObject> {
        self.rule(rule).await?.objects.into_iter().find(|object| object.name == name)
    }

    /// Waits until the current version of an object is in this state.
    pub(crate) async fn until(
        &self,
        cloud: &Cloud,
        rule: &str,
        object: &Value,
        state: FilesState,
    ) -> FilesObject {
        let name = object["metadata"]["name"].as_str().unwrap();
        let current = cloud.get(object).await;
        let version = current["metadata"]["resourceVersion"].as_str().unwrap();
        eventually(&format!("{name} is {} in version {version}", state.name()), PATIENCE, async || {
            let shown = self.object(rule, name).await?;
            (shown.state == state && shown.desired.as_deref() == Some(version)).then_some(shown)
        })
        .await
    }

    /// Waits until this many objects of a rule are in effect, and all others are too.
    pub(crate) async fn all_in_effect(&self, rule: &str, count: u64) -> FilesRule {
        eventually(&format!("{count} objects of {rule} are in effect"), 3 * PATIENCE, async || {
            let shown = self.rule(rule).await?;
            let all = (shown.in_effect, shown.not_in_effect, shown.conflicts) == (count, 0, 0);
            all.then_some(shown)
        })
        .await
    }

    /// Waits until the cloud has confirmed the outbox.
    pub(crate) async fn until_outbox_is_empty(&self) {
        self.agent
            .until("nothing waits for the cloud", |status| {
                ["status", "events"].iter().all(|lane| status.outbox[*lane].waiting == 0)
            })
            .await;
    }
}

/// Returns the user of checks: the default where this machine permits it, else that of the helper.
pub(crate) fn check_user() -> &'static str {
    let arguments = ["--mount", "--net", "--ipc", "--pid", "--fork", "true"];
    let unshared = std::process::Command::new("unshare").args(arguments).output();
    if unshared.is_ok_and(|unshared| unshared.status.success()) {
        return "transient";
    }
    eprintln!("notice: no root or no namespaces here; checks run as the user of the helper");
    "root"
}

/// A ConfigMap in namespace `plant`.
pub(crate) fn config_map(name: &str, data: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": "plant" },
        "data": data,
    })
}
