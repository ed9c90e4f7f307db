//! Test connection to the broker or CloudCore, made like the agent's.

use std::fmt::Display;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout};

use super::JoinError;
use crate::files::FilesError;
use edgesync_admin::agent::AgentStatus;
use edgesync_admin::{Route, read};
use edgesync_api as api;
use edgesync_api::Address;
use edgesync_config::LinkType;
use edgesync_config::edge::Config;
use edgesync_kubeedge::link::KubeEdgeOptions;
use edgesync_runtime::connection;
use edgesync_store::durable::FileError;
use edgesync_transport::link::{Cause, Link, LinkEvent, LinkHandle, LinkOptions, Topics};
use edgesync_transport::tls::{Certificate, Client, Clock, Identity, Trust};

/// Time in addition to the link's own timeout.
const GRACE: Duration = Duration::from_secs(5);

/// Polling interval of the agent's status while it connects.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Reason why the connection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NotConnected {
    /// The peer answers and refuses.
    Refused(String),
    /// The peer does not answer.
    Silent(String),
}

/// Returns whether an agent runs on this device; a second connection would end its own.
pub(super) fn agent_runs(config: &Config) -> bool {
    UnixStream::connect(&config.api.socket).is_ok()
}

/// Asks the running agent whether it is connected, and waits for its first attempt.
pub(super) async fn check_agent(config: &Config) -> Result<(), JoinError> {
    let until = Instant::now() + config.link.connect_timeout + GRACE;
    let client = api::Client::new(Address::Unix(config.api.socket.clone()));
    loop {
        let failed = |error: &dyn Display| {
            JoinError::Other(format!("request status from {}: {error}", client.address()))
        };
        let status = client.get::<Value>(&Route::Status.path()).await.map_err(|error| failed(&error))?;
        let status: AgentStatus = read(&status).map_err(|error| failed(&error))?;
        if status.cloud.removed {
            return Err(JoinError::Removed { node: config.node.name.clone() });
        }
        if status.link.is_connected() {
            return Ok(());
        }
        if status.link.cause.is_some() || Instant::now() > until {
            let problem = status.link.cause.unwrap_or_else(|| "no response so far".to_owned());
            return Err(JoinError::Agent { broker: config.peer().to_string(), problem });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Connects once, with the topics of the agent but without its presence. Returns the address that
/// accepted the node.
pub(super) async fn check(
    config: &Config,
    ca: &[Certificate],
    identity: &Identity,
    clock: Clock,
) -> Result<String, JoinError> {
    let peers = config.peers();
    let attempts = peers.len().max(1);
    let limit = config.link.connect_timeout * u32::try_from(attempts).unwrap_or(1) + GRACE;
    let link = match config.link_type {
        LinkType::Mqtt => Link::spawn(link_options(config, ca, identity, clock)?),
        LinkType::KubeEdge => edgesync_kubeedge::link::spawn(kubeedge_options(config, ca, identity, clock)?),
    };
    let (position, outcome) = connect(link, limit, attempts).await;
    let broker = peers.get(position).map_or(String::new(), ToString::to_string);
    match outcome {
        Ok(()) => Ok(broker),
        Err(NotConnected::Refused(problem)) => Err(JoinError::Broker { broker, problem }),
        Err(NotConnected::Silent(problem)) => Err(JoinError::BrokerSilent { broker, problem }),
    }
}

fn link_options(
    config: &Config,
    ca: &[Certificate],
    identity: &Identity,
    clock: Clock,
) -> Result<LinkOptions, JoinError> {
    let node = &config.node.name;
    let mut options =
        connection::configured_link(&config.link).map_err(|error| JoinError::Other(format!("{error:#}")))?;
    let topics = Topics::new(&config.link.prefix).map_err(|error| JoinError::Other(error.to_string()))?;
    options.username.get_or_insert_with(|| node.clone());
    options.subscriptions = vec![topics.down(node), topics.cloud()];
    if config.link.broker.uses_tls() {
        options.tls = Some(client(config, ca, identity, clock)?);
    }
    Ok(options)
}

fn kubeedge_options(
    config: &Config,
    ca: &[Certificate],
    identity: &Identity,
    clock: Clock,
) -> Result<KubeEdgeOptions, JoinError> {
    let mut options =
        connection::kubeedge_options(config).map_err(|error| JoinError::Other(format!("{error:#}")))?;
    if config.peer().tls {
        options.tls = Some(client(config, ca, identity, clock)?);
    }
    Ok(options)
}

/// Creates a TLS client that trusts what the agent would trust, and presents the identity.
fn client(
    config: &Config,
    ca: &[Certificate],
    identity: &Identity,
    clock: Clock,
) -> Result<Client, JoinError> {
    let trust = match &config.link.ca_file {
        None => ca.to_vec(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(FileError::tried("read", path));
            let text = text.map_err(FilesError::from)?;
            Certificate::all_from_pem(&path.display().to_string(), &text)?
        }
    };
    Ok(Client::new(&Trust::new(trust), Some(identity), clock)?)
}

/// Waits for the first success of a link, or its failure at each of so many addresses. Returns the
/// position of the address, too.
async fn connect(
    (link, mut events): (LinkHandle, Receiver<LinkEvent>),
    limit: Duration,
    mut attempts: usize,
) -> (usize, Result<(), NotConnected>) {
    let outcome = async {
        loop {
            match events.recv().await {
                Some(LinkEvent::Connected { .. }) => return Ok(()),
                Some(LinkEvent::Disconnected { .. }) if attempts > 1 => attempts -= 1,
                Some(LinkEvent::Disconnected { cause, .. }) => return Err(failure(&cause)),
                Some(_) => {}
                None => return Err(NotConnected::Silent("connection closed".into())),
            }
        }
    };
    let late = || Err(NotConnected::Silent(format!("no response within {limit:?}")));
    let outcome = timeout(limit, outcome).await.unwrap_or_else(|_| late());
    let position = link.position();
    link.shutdown(Vec::new(), Duration::from_secs(1)).await;
    (position, outcome)
}

fn failure(cause: &Cause) -> NotConnected {
    match cause.label() {
        "dns" | "refused" | "connect-timeout" | "network" | "keepalive" | "proxy" => {
            NotConnected::Silent(cause.to_string())
        }
        _ => NotConnected::Refused(cause.to_string()),
    }
}
