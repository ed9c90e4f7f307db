//! The demo's environment: a cloud side, a node, the link between them, and their reported state.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::files::{NODE, agent_config, cloud_config, cloud_socket, endpoint, write};
use super::processes::{Process, Programs, Workspace};
use super::proxy::{Link, Transferred};
use super::screen::Screen;
use super::{DemoError, count};
use edgesync_admin::Route;
use edgesync_admin::agent::AgentStatus;
use edgesync_admin::cloud::PageInvitation;
use edgesync_api::{Address, Client, ClientError};

/// Interval of polling the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// A link without traffic for this long has nothing in flight.
const QUIET_TIME: Duration = Duration::from_millis(60);

/// The node as seen by the cloud side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeView {
    /// The state, in one word.
    pub(super) state: String,
    /// Objects that the node reported as held.
    pub(super) objects: u64,
    /// Objects that the node should hold.
    pub(super) desired: u64,
    /// Counters since the cloud side started.
    pub(super) counters: Counters,
}

/// The cloud side's counters for one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Counters {
    pub(super) hellos: u64,
    pub(super) objects_sent: u64,
    pub(super) removals_sent: u64,
    pub(super) objects_reported: u64,
    pub(super) inventories: u64,
}

/// Both sides, in sync.
#[derive(Clone, Debug)]
pub(super) struct InSync {
    /// The node as seen by the cloud side.
    pub(super) view: NodeView,
    /// Changes that the agent applied to its database since it started.
    pub(super) applied: u64,
    /// Time since the node connected.
    pub(super) time: Duration,
}

/// The environment; dropping it ends all processes.
pub(super) struct Stage<'a> {
    workspace: &'a Workspace,
    programs: Programs,
    cloud: Process,
    /// The agent; `None` while it is killed.
    agent: Option<Process>,
    link: Link,
    /// Client of the cloud side's API.
    pub(super) cloud_api: Client,
    /// Client of the node's API.
    pub(super) node_api: Client,
    limit: Duration,
}

impl<'a> Stage<'a> {
    /// Starts everything; `limit` is the time limit of each later wait.
    ///
    /// # Errors
    /// A process does not start.
    pub(super) async fn open(workspace: &'a Workspace, limit: Duration) -> Result<Self, DemoError> {
        let programs = Programs::find(workspace)?;
        let config = write(workspace, "edgesync-cloud.toml", &cloud_config(workspace))?;
        let (cloud, ready_status) = Process::start("cloud", &programs.cloud, &config, workspace).await?;
        let mqtt = endpoint(&ready_status).ok_or_else(|| {
            DemoError::Unexpected(format!("unexpected ready status of the cloud side: {ready_status:?}"))
        })?;
        let link = Link::open(mqtt).await;
        let link = link.map_err(|source| DemoError::io("open the link".into(), source))?;
        let config = write(workspace, "edgesync.toml", &agent_config(workspace, link.address()))?;
        let (agent, _) = Process::start("agent", &programs.agent, &config, workspace).await?;
        let node_api = Client::new(Address::Unix(workspace.file("edgesync.sock")));
        let cloud_api = Client::new(Address::Unix(cloud_socket(workspace)));
        Ok(Self { workspace, programs, cloud, agent: Some(agent), link, cloud_api, node_api, limit })
    }

    pub(super) fn kill_agent(&mut self) {
        self.agent = None;
    }

    /// Starts the agent again.
    ///
    /// # Errors
    /// The agent does not start.
    pub(super) async fn start_agent(&mut self) -> Result<(), DemoError> {
        let config = self.workspace.file("edgesync.toml");
        let (agent, _) = Process::start("agent", &self.programs.agent, &config, self.workspace).await?;
        self.agent = Some(agent);
        Ok(())
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    pub(super) fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Returns the process ids of the cloud side and, if it runs, the agent.
    pub(super) fn ids(&self) -> (u32, Option<u32>) {
        (self.cloud.id(), self.agent.as_ref().map(Process::id))
    }

    /// # Errors
    /// A process has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), DemoError> {
        self.cloud.check()?;
        self.agent.as_mut().map_or(Ok(()), Process::check)
    }

    /// Returns the node as seen by the cloud side.
    ///
    /// # Errors
    /// The cloud side does not answer.
    pub(super) async fn view(&self) -> Result<NodeView, DemoError> {
        match self.cloud_api.get(&Route::Node(NODE).path()).await {
            // The node has not sent a Hello yet.
            Err(ClientError::Api(status)) if status.code == 404 => Ok(NodeView::default()),
            view => Ok(view?),
        }
    }

    /// Returns the URL of the page.
    ///
    /// # Errors
    /// The cloud side does not answer.
    pub(super) async fn page(&self) -> Result<String, DemoError> {
        let invitation: PageInvitation = self.cloud_api.post(&Route::Page.path(), &Value::Null).await?;
        Ok(invitation.url)
    }

    /// Waits until the cloud side's view of the node satisfies `expected`.
    ///
    /// # Errors
    /// The time limit is reached, or a process ends.
    pub(super) async fn until(
        &mut self,
        awaited: &str,
        screen: &mut Screen<'_>,
        expected: impl Fn(&NodeView) -> bool,
    ) -> Result<NodeView, DemoError> {
        let started = Instant::now();
        loop {
            self.check()?;
            let view = self.view().await?;
            if expected(&view) {
                return Ok(view);
            }
            let seen = || format!("{} applied, {} reported", count(view.desired), count(view.objects));
            screen.progress(|| format!("   {} (waiting for {awaited})", seen()));
            if started.elapsed() > self.limit {
                let seen = format!("node {:?}, {}", view.state, seen());
                return Err(DemoError::TimedOut { awaited: awaited.into(), limit: self.limit, seen });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until both sides report that the node holds all of these objects, in a later session
    /// than that of `before`.
    ///
    /// # Errors
    /// As [`Self::until`].
    pub(super) async fn until_in_sync(
        &mut self,
        objects: u64,
        before: &NodeView,
        screen: &mut Screen<'_>,
    ) -> Result<InSync, DemoError> {
        let hellos = before.counters.hellos;
        let expected = move |view: &NodeView| {
            let complete = view.desired == objects && view.objects == objects;
            view.state == "in sync" && complete && view.counters.hellos > hellos
        };
        let mut view = self.until("both sides to be in sync", screen, expected).await?;
        let time = self.link.connected_at().map_or(Duration::ZERO, |at| at.elapsed());
        let applied = self.node_in_sync(objects).await?;
        self.until_quiet().await;
        // Reports of the same objects may have continued for a moment.
        view.counters = self.view().await?.counters;
        Ok(InSync { view, applied, time })
    }

    /// Waits until the node reports in sync; returns the number of changes it applied.
    async fn node_in_sync(&mut self, objects: u64) -> Result<u64, DemoError> {
        let started = Instant::now();
        loop {
            self.check()?;
            let status: AgentStatus = self.node_api.get(&Route::Status.path()).await?;
            let (total, in_sync) = (status.objects.total, status.sync.in_sync);
            if (total, in_sync) == (objects, true) {
                return Ok(status.counters.applied);
            }
            if started.elapsed() > self.limit {
                let awaited = "in sync by the status of the node".to_owned();
                let seen = format!("objects {total}, in sync {in_sync}");
                return Err(DemoError::TimedOut { awaited, limit: self.limit, seen });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the last acknowledgement has passed, so that its bytes count for this phase.
    async fn until_quiet(&self) {
        let mut before = self.link.transferred();
        loop {
            tokio::time::sleep(QUIET_TIME).await;
            let now: Transferred = self.link.transferred();
            if std::mem::replace(&mut before, now) == now {
                return;
            }
        }
    }

    /// Returns the paths of the logs.
    pub(super) fn logs(workspace: &Workspace) -> [PathBuf; 2] {
        [workspace.file("cloud.log"), workspace.file("agent.log")]
    }
}
