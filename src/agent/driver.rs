//! The agent's loop: the only owner of the sync machine. It waits for whatever comes first, tells the
//! machine, and carries out what the machine wants.

mod notices;
mod numbers;
mod reading;
mod show;
mod upstream;
mod verify;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::store::{EdgeStore, Health, Writing};
use edgesync_admin::agent::RejectedObject;
use edgesync_config::edge::Config;
use edgesync_files::Rule;
use edgesync_protocol::change::RejectReason;
use edgesync_protocol::edge::{Commit, EdgeEffect, EdgeMachine, EdgePhase};
use edgesync_protocol::timing::{Now, earlier};
use edgesync_runtime::Service;
use edgesync_runtime::random;
use edgesync_runtime::systemd::{self, Request, Signals, Watchdog};
use edgesync_store::StoreError;
use edgesync_transport::link::{LinkEvent, LinkHandle};

use super::apply::apply;
use super::edge_config;
use super::events::{Regarding, Why};
use super::files::{self, Files};
use super::identity::{IdentityNews, Membership};
use super::kinds::KnownKinds;
use super::metrics::{Ages, LimitsHit, Rejections};
use super::objects;
use super::status::Question;
use reading::Page;
pub(super) use upstream::{Upstream, event_limits, outbox_limits};
pub(super) use wire::Wire;
use wire::{LinkState, Waiting};

/// How long after the start its memory is given back, unless a burst comes before.
const SETTLED: Duration = Duration::from_secs(10);
/// How often the loop looks at clock, traffic and device.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the end waits for the outbox to empty.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Frames that are handled before other events get their turn.
const BURST: usize = 16;

type Applied = Result<Commit, StoreError>;
/// A commit under way: its token, and which rules for files its changes may concern.
type Applying = (u64, files::Concerned, JoinHandle<Applied>);

pub(super) struct Driver {
    machine: EdgeMachine,
    store: EdgeStore,
    kinds: Arc<KnownKinds>,
    link: LinkHandle,
    wire: Wire,
    node: String,
    /// The address of the broker or of CloudCore.
    peer: String,
    max_frame: usize,
    max_object: usize,
    compress_above: usize,
    origin: Instant,
    started: Timestamp,
    /// Commits under way, in the order in which they were asked for: the store answers in it.
    applying: VecDeque<Applying>,
    reading: Option<JoinHandle<Page>>,
    waiting: Option<Waiting>,
    link_state: LinkState,
    cloud_boot: Option<String>,
    cloud_online: Option<bool>,
    last_report: Option<Timestamp>,
    in_sync_since: Option<Timestamp>,
    rejected: BTreeMap<String, RejectedObject>,
    bad_frames: BTreeMap<&'static str, u64>,
    limits: LimitsHit,
    rejections: Rejections,
    ages: Ages,
    welcome_round_trip: Option<Duration>,
    resets_seen: u64,
    writing: Writing,
    held_back: u64,
    /// Whether the cloud has said that this node was removed from the fleet.
    removed: bool,
    /// Why the cloud does not talk to this node, until it does.
    refusal: Option<String>,
    upstream: Upstream,
    files: Files,
    /// The rules for files.
    rules: Vec<Rule>,
    /// Key and certificates, once the node has joined.
    identity: Option<Membership>,
    look_at: Instant,
    status_line: String,
    /// Before this the service manager is told nothing new.
    status_at: Instant,
    verification: Option<verify::Verification>,
    /// When the memory that a burst took is given back: once nothing has been applied for a while.
    release_at: Option<Instant>,
}

impl Driver {
    pub(super) fn new(
        config: &Config,
        store: EdgeStore,
        kinds: Arc<KnownKinds>,
        link: LinkHandle,
        wire: Wire,
        (upstream, files): (Upstream, Files),
        identity: Option<Membership>,
    ) -> Self {
        let facts = store.facts();
        let machine = EdgeMachine::new(edge_config(config), facts.totals, facts.confirmed, facts.incarnation);
        Self {
            machine,
            store,
            kinds,
            link,
            wire,
            node: config.node.name.clone(),
            peer: config.peer().to_string(),
            max_frame: config.link.max_frame,
            max_object: config.sync.max_object,
            compress_above: config.sync.compress_above.unwrap_or(usize::MAX),
            origin: Instant::now(),
            started: Timestamp::now(),
            applying: VecDeque::new(),
            reading: None,
            waiting: None,
            link_state: LinkState::default(),
            cloud_boot: None,
            cloud_online: None,
            last_report: None,
            in_sync_since: None,
            rejected: BTreeMap::new(),
            bad_frames: BTreeMap::new(),
            limits: LimitsHit::default(),
            rejections: Rejections::default(),
            ages: Ages::default(),
            welcome_round_trip: None,
            resets_seen: 0,
            writing: Writing::Works,
            held_back: 0,
            removed: false,
            refusal: None,
            upstream,
            files,
            rules: config.files.rules.clone(),
            identity,
            look_at: Instant::now(),
            status_line: String::new(),
            status_at: Instant::now(),
            // What the start took is given back, too.
            release_at: Some(Instant::now() + SETTLED),
            verification: None,
        }
    }

    fn now(&self) -> Now {
        self.origin.elapsed()
    }

    /// Runs until the process is told to stop.
    pub(super) async fn run(
        &mut self,
        service: &mut Service<Config>,
        signals: &mut Signals,
        mut heard: mpsc::Receiver<LinkEvent>,
        mut asked: mpsc::Receiver<Question>,
    ) {
        let mut health = self.store.health();
        let watchdog = Watchdog::start();
        if let Some(reset) = health.borrow_and_update().reset.clone() {
            self.resets_seen = reset.number;
            self.tell_reset(&reset);
        }
        self.begin_upstream();
        let mut end: Option<Instant> = None;
        loop {
            watchdog.turned();
            self.drain();
            if end.is_some_and(|end| end <= Instant::now() || !self.has_last_words()) {
                break;
            }
            let deadline = self.deadline().map(|at| self.origin + at);
            // The watchdog wants to see the loop turn even when nothing happens.
            let idle = Instant::now() + Duration::from_secs(1);
            let wake = deadline.map_or(idle, |at| at.min(idle)).min(end.unwrap_or(idle));
            tokio::select! {
                request = signals.next() => match request {
                    Request::Stop if end.is_some() => break,
                    Request::Stop => {
                        systemd::stopping("draining");
                        tracing::info!("told to stop: draining");
                        self.upstream.events.end_run().await;
                        self.outbox_changed();
                        end = Some(Instant::now() + LAST_WORDS);
                    }
                    Request::Reload => self.reload(service),
                },
                event = heard.recv(), if self.wants_event() => match event {
                    Some(event) => self.heard_burst(event, &mut heard),
                    None => break,
                },
                result = front(&mut self.applying) => self.applied(result),
                page = finished(&mut self.reading) => self.page_read(page),
                page = held_page(&mut self.wire) => self.held_read(page),
                page = finished(&mut self.upstream.page) => self.outbox_read(page),
                result = finished(&mut self.upstream.renumbering) => self.renumbered(result),
                stats = finished(&mut self.upstream.sizing) => self.sized(&stats),
                Ok(()) = self.upstream.outbox.changed() => self.outbox_changed(),
                _ = self.link.ready(), if self.waiting.is_some() => {}
                Ok(()) = health.changed() => {
                    let health = health.borrow_and_update().clone();
                    self.health_changed(&health);
                }
                Some(question) = asked.recv() => self.answer(question),
                () = self.files.changed() => self.tell_of_node(false),
                Some(news) = identity_news(&mut self.identity) => self.tell_identity(news),
                () = tokio::time::sleep_until(wake) => self.tick(),
            }
        }
        self.end_upstream();
    }

    /// When [`Driver::tick`] has something to do for machine or bridge.
    fn deadline(&self) -> Option<Now> {
        let bridge = self.wire.cloud_core().and_then(|cloud_core| cloud_core.bridge.deadline());
        earlier(self.machine.deadline(), bridge)
    }

    fn tick(&mut self) {
        if self.look_at <= Instant::now() {
            self.look_at = Instant::now() + LOOK_EVERY;
            self.look_around();
        }
        self.look_at_progress();
        let now = self.now();
        if self.machine.deadline().is_some_and(|at| at <= now) {
            self.machine.tick(now, random());
        }
        if self.release_at.take_if(|at| *at <= Instant::now()).is_some() {
            let store = self.store.clone();
            tokio::spawn(async move { objects::give_back(&store).await });
        }
        let at = self.moment();
        if let Some(cloud_core) = self.wire.cloud_core_mut()
            && cloud_core.bridge.deadline().is_some_and(|due| due <= at.now)
        {
            cloud_core.bridge.tick(at);
        }
    }

    fn heard_burst(&mut self, first: LinkEvent, heard: &mut mpsc::Receiver<LinkEvent>) {
        self.heard(first);
        for _ in 1..BURST {
            if !self.wants_event() {
                return;
            }
            let Ok(event) = heard.try_recv() else { return };
            self.heard(event);
        }
    }

    fn applied(&mut self, result: Result<Applied, tokio::task::JoinError>) {
        let Some((token, rules, _)) = self.applying.pop_front() else { return };
        self.files.due(rules);
        self.release_at = Some(Instant::now() + objects::QUIET);
        let result = match result {
            Ok(Ok(commit)) => Ok(commit),
            Ok(Err(error)) => {
                tracing::warn!(%error, "changes could not be stored");
                let full = matches!(error, StoreError::Full { .. });
                let reason = if full { RejectReason::StoreFull } else { RejectReason::StoreUnavailable };
                Err((reason, error.to_string()))
            }
            Err(error) => Err((RejectReason::StoreUnavailable, error.to_string())),
        };
        self.machine.applied(self.now(), token, result, random());
    }

    fn health_changed(&mut self, health: &Health) {
        let before = std::mem::replace(&mut self.writing, health.writing.clone());
        self.tell_health(&before, health);
        match &health.writing {
            Writing::Works => tracing::info!("the store takes changes"),
            Writing::Full => tracing::error!("the store is full: nothing new is kept until there is room"),
            Writing::Fails { reason } => tracing::error!(reason, "the store takes no changes"),
        }
        let Some(reset) = health.reset.as_ref().filter(|reset| reset.number > self.resets_seen) else {
            return;
        };
        self.resets_seen = reset.number;
        tracing::error!(
            cause = reset.cause,
            kept = reset.kept,
            lost = reset.lost,
            set_aside = ?reset.set_aside,
            "the database was replaced: what could be read is kept, the cloud is asked for the rest"
        );
        self.tell_reset(reset);
        self.files.due(files::Concerned::ALL);
        self.files.tell_again();
        let facts = self.store.facts();
        self.machine.store_reset(self.now(), facts.totals, facts.confirmed, random());
    }

    fn reload(&mut self, service: &mut Service<Config>) {
        systemd::reloading();
        if let Err(errors) = service.reload() {
            let note = format!("the configuration stays as it was: {errors}");
            self.upstream.events.emit(Why::ConfigurationRejected, Regarding::Node, note);
        }
        let config = service.config();
        self.max_object = config.sync.max_object;
        self.compress_above = config.sync.compress_above.unwrap_or(usize::MAX);
        self.machine.set_config(edge_config(config));
        let at = self.moment();
        if let Some(cloud_core) = self.wire.cloud_core_mut() {
            cloud_core.bridge.set_config(at, wire::bridge_config(config));
        }
        self.files.reload(config);
        // What is under way was held against the rules of before.
        self.applying.iter_mut().for_each(|(_, rules, _)| *rules = files::Concerned::ALL);
        self.rules.clone_from(&config.files.rules);
        self.reload_upstream(config);
        if let Some(identity) = &self.identity {
            identity.reread();
        }
        systemd::ready(&self.status_line);
    }

    /// Carries out everything that the machine wants and that can be done now.
    fn drain(&mut self) {
        loop {
            while let Some(effect) = self.machine.poll_effect() {
                self.perform(effect);
            }
            if !self.move_one() {
                break;
            }
        }
        self.ages.changes(self.now(), self.machine.totals().revision, self.machine.confirmed_revision());
        self.look_at_verification();
        self.tell_service_manager();
    }

    fn perform(&mut self, effect: EdgeEffect) {
        let store = self.store.clone();
        match effect {
            EdgeEffect::Apply { token, changes } => {
                // Spawned, so that it is queued at the writer at once: it joins the next group.
                let rules = files::concerned(&self.rules, &changes);
                self.applying.push_back((token, rules, tokio::spawn(apply(store, changes))));
            }
            effect @ (EdgeEffect::ReadChanges { .. }
            | EdgeEffect::ReadBuckets
            | EdgeEffect::ReadInventory { .. }) => self.reading = reading::read(store, &effect),
            EdgeEffect::Confirm(revision) => {
                self.last_report = Some(Timestamp::now());
                store.confirm(revision);
            }
            EdgeEffect::SetIncarnation(incarnation) => {
                self.files.tell_again();
                tokio::spawn(async move {
                    if let Err(error) = store.set_incarnation(Some(incarnation)).await {
                        tracing::warn!(%error, "the cloud's incarnation could not be noted");
                    }
                });
            }
            EdgeEffect::ReadOutbox { .. }
            | EdgeEffect::SettleOutbox { .. }
            | EdgeEffect::RenumberOutbox { .. }
            | EdgeEffect::RenewLease => self.perform_upstream(&effect),
            EdgeEffect::Notice(notice) => self.notice(notice),
        }
    }

    /// Whether something waits that the cloud should still hear before the end.
    fn has_last_words(&self) -> bool {
        self.machine.phase() == EdgePhase::Live && !self.machine.outbox_is_empty()
    }

    fn answer(&mut self, question: Question) {
        match question {
            Question::Status(view, answer) => {
                let _ = answer.send(self.status(&view));
            }
            Question::Numbers(answer) => {
                let _ = answer.send(Box::new(self.numbers()));
            }
            Question::Traffic(answer) => {
                let _ = answer.send(self.upstream.meter.show());
            }
            Question::Verify(answer) => self.verify(answer),
        }
    }
}

/// The page of what is held that the bridge waits for; pending for ever when there is none.
async fn held_page(wire: &mut Wire) -> <JoinHandle<wire::HeldRead> as Future>::Output {
    match wire.cloud_core_mut() {
        Some(cloud_core) => finished(&mut cloud_core.reading).await,
        None => std::future::pending().await,
    }
}

/// The result of the oldest commit under way; pending for ever when there is none.
async fn front(applying: &mut VecDeque<Applying>) -> Result<Applied, tokio::task::JoinError> {
    match applying.front_mut() {
        Some((.., task)) => task.await,
        None => std::future::pending().await,
    }
}

/// What becomes of the certificate; pending for ever without one.
async fn identity_news(identity: &mut Option<Membership>) -> Option<IdentityNews> {
    match identity {
        Some(identity) => identity.news.recv().await,
        None => std::future::pending().await,
    }
}

/// The page that is being read; pending for ever when none is.
async fn finished<T>(reading: &mut Option<JoinHandle<T>>) -> Result<T, tokio::task::JoinError> {
    match reading {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}
