//! A fleet with certificates: a cloud side with enrollment, an external broker with access rules,
//! devices.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use edgesync_join::files::{self, RealDisk, Stored};
use edgesync_transport::link::{Link, LinkEvent, LinkHandle, LinkOptions, RetryOptions};
use edgesync_transport::tls::{Client as Tls, Clock, Identity, Trust};
use tokio::sync::mpsc::Receiver;

use super::{Agent, Cloud, PATIENCE, Settings, Site, eventually};

/// A cloud side over TLS.
pub struct Fleet {
    pub cloud: Cloud,
    /// Address of the join service.
    pub joining: SocketAddr,
}

impl Fleet {
    /// Starts a cloud side with its own endpoint.
    pub async fn embedded(site: &Site, change: impl FnOnce(&mut Settings)) -> Self {
        let joining = Site::address();
        let cloud = Cloud::start_with(site, |settings| {
            settings.text("enrollment.listen", joining).text("broker.tls", "on");
            change(settings);
        })
        .await;
        Self { cloud, joining }
    }

    /// Starts a cloud side with an external broker at an address where nothing listens yet.
    pub async fn behind(site: &Site, broker: SocketAddr, change: impl FnOnce(&mut Settings)) -> Self {
        let joining = Site::address();
        let cloud = Cloud::start_behind(site, broker, |settings| {
            settings.text("enrollment.listen", joining).text("link.broker", format!("mqtts://{broker}"));
            change(settings);
        })
        .await;
        Self { cloud, joining }
    }

    /// Runs `edgesync-cloud` with these arguments.
    pub async fn command(&self, words: &[&str]) -> Output {
        self.cloud.command(words).await
    }

    /// Creates a token with further arguments.
    pub async fn token(&self, words: &[&str]) -> String {
        let output = self.command(&[&["token", "create"], words].concat()).await;
        assert!(output.status.success(), "{}", output_text(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Creates a device that has joined, not started.
    pub async fn device(&self, site: &Site, node: &str) -> Agent {
        let agent = self.new_device(site, node);
        let token = self.token(&["--node", node]).await;
        let output = self.join(&agent, &token, &[]).await;
        assert!(output.status.success(), "{}", output_text(&output));
        agent
    }

    /// Creates a device that has not joined; its configuration exists.
    pub fn new_device(&self, site: &Site, node: &str) -> Agent {
        let mut agent = Agent::new(site, node, self.cloud.mqtt);
        agent.settings.remove("link.broker");
        agent.write_config();
        agent
    }

    /// Runs `edgesync join` on a device.
    pub async fn join(&self, agent: &Agent, token: &str, words: &[&str]) -> Output {
        let cloud = format!("https://{}", self.joining);
        let mut command = Command::new(crate::programs::device());
        command.args(["join", "--cloud", &cloud, "--node", &agent.node]).args(words);
        command.arg("--config").arg(agent.config()).env("EDGESYNC_JOIN_TOKEN", token);
        ended(command).await
    }
}

/// Runs a program to its end, concurrently with the test.
pub async fn ended(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output().unwrap()).await.unwrap()
}

/// Formats output and errors of a program.
pub fn output_text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// Returns the directory of the identity in a configuration.
pub fn identity_of(config: &Path) -> PathBuf {
    let text = std::fs::read_to_string(config).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("directory = "));
    line.unwrap_or_else(|| panic!("no identity in {text}")).trim_matches('"').into()
}

/// Loads the identity of a device.
pub fn stored(agent: &Agent) -> Stored {
    files::load(&RealDisk, &identity_of(agent.config())).unwrap()
}

/// Parameters of a connection to a broker.
pub struct Caller<'a> {
    pub broker: SocketAddr,
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    /// Trusted authority of the broker; none for plain TCP.
    pub trust: Option<&'a Trust>,
    pub identity: Option<&'a Identity>,
    pub listens: &'a [String],
}

impl Caller<'_> {
    /// Starts a link with retry delays of about 20 ms.
    pub fn call(&self) -> (LinkHandle, Receiver<LinkEvent>) {
        let mut options = LinkOptions::new(&self.broker.ip().to_string(), self.broker.port(), self.client_id);
        options.username = self.username.map(str::to_owned);
        if let Some(trust) = self.trust {
            options.secure(Tls::new(trust, self.identity, Clock::system([])).unwrap());
        }
        options.subscriptions = self.listens.to_vec();
        let short = Duration::from_millis(20);
        options.retry =
            RetryOptions { first: short, most: short, taken_over: short, ..RetryOptions::default() };
        Link::spawn(options)
    }
}

/// Waits until a node is in sync over its own connection.
pub async fn in_sync(agent: &Agent) {
    eventually(&format!("{} is in sync", agent.node), PATIENCE, async || {
        agent.is_in_sync().await.then_some(())
    })
    .await;
}

/// Writes the configuration for mosquitto that the cloud side generates.
pub async fn mosquitto_files(fleet: &Fleet, directory: &Path, broker: SocketAddr) {
    let (name, port) = (broker.ip().to_string(), broker.port().to_string());
    let directory = directory.to_str().unwrap();
    let words = ["broker-config", "mosquitto", "--output", directory, "--name", &name, "--port", &port];
    let output = fleet.command(&words).await;
    assert!(output.status.success(), "{}", output_text(&output));
}
