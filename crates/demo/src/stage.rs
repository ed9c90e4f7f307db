//! The demo's stage: a cloud side, a node, the link between them, and a view of what they say of themselves.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::files::{NODE, agent_config, cloud_config, cloud_socket, endpoint, write};
use super::processes::{Process, Programs, Workspace};
use super::proxy::{Link, Passed};
use super::screen::Screen;
use super::{DemoError, count};
use edgesync_admin::Route;
use edgesync_admin::agent::AgentStatus;
use edgesync_admin::cloud::PageInvitation;
use edgesync_api::{Address, Client, ClientError};

/// How often the processes are asked where they stand.
const LOOK: Duration = Duration::from_millis(5);
/// A link on which nothing passed for so long has nothing more under way.
const QUIET: Duration = Duration::from_millis(60);

/// The node as the cloud side sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeView {
    /// In a word.
    pub(super) state: String,
    /// Objects that the node has reported as held.
    pub(super) objects: u64,
    /// Objects that it is to hold.
    pub(super) desired: u64,
    /// What has happened since the cloud side was started.
    pub(super) counters: Counters,
}

/// The counters of the cloud side for one node.
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
    /// The node as the cloud side sees it.
    pub(super) view: NodeView,
    /// Changes that the agent has made to its database since it was started.
    pub(super) applied: u64,
    /// The time since the node connected.
    pub(super) time: Duration,
}

/// See the module. Dropped, everything on it ends.
pub(super) struct Stage<'a> {
    workspace: &'a Workspace,
    programs: Programs,
    cloud: Process,
    /// `None` while it is killed.
    agent: Option<Process>,
    link: Link,
    /// The API of the cloud side.
    pub(super) cloud_api: Client,
    /// The API on the node.
    pub(super) node_api: Client,
    limit: Duration,
}

impl<'a> Stage<'a> {
    /// Starts everything; `limit` is how long anything may take from then on.
    ///
    /// # Errors
    /// A process does not start.
    pub(super) async fn open(workspace: &'a Workspace, limit: Duration) -> Result<Self, DemoError> {
        let programs = Programs::find(workspace)?;
        let config = write(workspace, "edgesync-cloud.toml", &cloud_config(workspace))?;
        let (cloud, said) = Process::start("cloud", &programs.cloud, &config, workspace).await?;
        let mqtt = endpoint(&said)
            .ok_or_else(|| DemoError::Unexpected(format!("the cloud side is ready and says {said:?}")))?;
        let link = Link::open(mqtt).await;
        let link = link.map_err(|source| DemoError::io("opening the link".into(), source))?;
        let config = write(workspace, "edgesync.toml", &agent_config(workspace, link.address()))?;
        let (agent, _) = Process::start("agent", &programs.agent, &config, workspace).await?;
        let node_api = Client::new(Address::Unix(workspace.file("edgesync.sock")));
        let cloud_api = Client::new(Address::Unix(cloud_socket(workspace)));
        Ok(Self { workspace, programs, cloud, agent: Some(agent), link, cloud_api, node_api, limit })
    }

    /// Kills the agent.
    pub(super) fn kill_agent(&mut self) {
        self.agent = None;
    }

    /// Starts the agent again.
    ///
    /// # Errors
    /// It does not start.
    pub(super) async fn start_agent(&mut self) -> Result<(), DemoError> {
        let config = self.workspace.file("edgesync.toml");
        let (agent, _) = Process::start("agent", &self.programs.agent, &config, self.workspace).await?;
        self.agent = Some(agent);
        Ok(())
    }

    /// The link.
    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// The programs.
    pub(super) fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Process ids of the cloud side and, if it runs, the agent.
    pub(super) fn ids(&self) -> (u32, Option<u32>) {
        (self.cloud.id(), self.agent.as_ref().map(Process::id))
    }

    /// # Errors
    /// A process has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), DemoError> {
        self.cloud.check()?;
        self.agent.as_mut().map_or(Ok(()), Process::check)
    }

    /// The node as the cloud side sees it now.
    ///
    /// # Errors
    /// The cloud side does not answer.
    pub(super) async fn view(&self) -> Result<NodeView, DemoError> {
        match self.cloud_api.get(&Route::Node(NODE).path()).await {
            // The node has not said Hello yet.
            Err(ClientError::Api(status)) if status.code == 404 => Ok(NodeView::default()),
            view => Ok(view?),
        }
    }

    /// The address of the page.
    ///
    /// # Errors
    /// The cloud side does not answer.
    pub(super) async fn page(&self) -> Result<String, DemoError> {
        let invitation: PageInvitation = self.cloud_api.post(&Route::Page.path(), &Value::Null).await?;
        Ok(invitation.url)
    }

    /// Waits until the cloud side sees the node as `expected` wants it.
    ///
    /// # Errors
    /// It does not come to that in time, or a process ends.
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
                let seen = format!("the node is {:?}, {}", view.state, seen());
                return Err(DemoError::TimedOut { awaited: awaited.into(), limit: self.limit, seen });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until both sides say that the node holds all of these objects, in a later session than the
    /// one that `before` shows.
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
        // The reports may have gone on a little for what is in sync.
        view.counters = self.view().await?.counters;
        Ok(InSync { view, applied, time })
    }

    /// Waits until the node itself says that it is in sync; returns how many changes it has applied.
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
                let awaited = "in sync, as the node sees it".to_owned();
                let seen = format!("objects {total}, in sync {in_sync}");
                return Err(DemoError::TimedOut { awaited, limit: self.limit, seen });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the last acknowledgement has passed, so that its bytes are counted where they belong.
    async fn until_quiet(&self) {
        let mut before = self.link.passed();
        loop {
            tokio::time::sleep(QUIET).await;
            let now: Passed = self.link.passed();
            if std::mem::replace(&mut before, now) == now {
                return;
            }
        }
    }

    /// The logs of the processes.
    pub(super) fn logs(workspace: &Workspace) -> [PathBuf; 2] {
        [workspace.file("cloud.log"), workspace.file("agent.log")]
    }
}
