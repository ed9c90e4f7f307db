//! The agent's loop: the only owner of the sync machine. It waits for whatever comes first, tells the
//! machine, and carries out what the machine wants.

mod notices;
mod numbers;
mod show;
mod upstream;
mod verify;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::cli::service::Service;
use crate::config::edge::Config;
use crate::link::{Cause, LinkEvent, LinkHandle, PublishError, Topic, Topics};
use crate::store::StoreError;
use crate::store::edge::{self, EdgeStore, Health, InventoryCursor, Writing};
use crate::sync::change::{Change, ObjectRef, RejectReason};
use crate::sync::digest::Buckets;
use crate::sync::edge::{ChangesPage, Commit, EdgeEffect, EdgeMachine, EdgePhase, Entry, InventoryPage};
use crate::sync::frame::{Received, Up};
use crate::sync::replica::Totals;
use crate::sync::timing::Now;
use crate::systemd::{self, Request, Signals};

use super::apply::apply;
use super::edge_config;
use super::events::{Regarding, Why};
use super::identity::{IdentityNews, Membership};
use super::kinds::KnownKinds;
use super::metrics::{Ages, LimitsHit, Rejections};
use super::presence::{CloudPresence, Presence};
use super::status::Question;
use super::traffic::Direction;
pub(super) use upstream::{Upstream, event_limits, outbox_limits};

/// How long nothing must have been applied before memory is given back.
const QUIET: Duration = Duration::from_secs(2);
/// How long after the start its memory is given back, unless a burst comes before.
const SETTLED: Duration = Duration::from_secs(10);
/// How often the loop looks at clock, traffic and device.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the end waits for the outbox to empty.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Frames that are handled before other events get their turn.
const BURST: usize = 16;

type Applied = Result<Commit, StoreError>;

/// The answer to a read that the machine asked for.
enum Page {
    Changes(Result<edge::Changes, StoreError>),
    Buckets(Result<(Totals, Buckets), StoreError>),
    Inventory(Result<edge::Inventory, StoreError>),
}

/// What the link is doing, for the status.
#[derive(Clone, Debug, Default)]
struct LinkState {
    connected: bool,
    since: Option<Timestamp>,
    cause: Option<String>,
    retry_in: Duration,
    reconnects: u64,
}

pub(super) struct Driver {
    machine: EdgeMachine,
    store: EdgeStore,
    kinds: Arc<KnownKinds>,
    link: LinkHandle,
    topics: Topics,
    node: String,
    broker: String,
    max_frame: usize,
    max_object: usize,
    compress_above: usize,
    origin: Instant,
    started: Timestamp,
    /// Commits under way, in the order in which they were asked for: the store answers in it.
    applying: VecDeque<(u64, JoinHandle<Applied>)>,
    reading: Option<JoinHandle<Page>>,
    /// A frame that the link had no room for.
    waiting: Option<(&'static str, Vec<u8>)>,
    link_state: LinkState,
    cloud_boot: Option<String>,
    cloud_online: Option<bool>,
    acked: u64,
    last_report: Option<Timestamp>,
    in_sync_since: Option<Timestamp>,
    rejected: BTreeMap<String, Value>,
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
    upstream: Upstream,
    /// Key and certificates, once the node has joined.
    identity: Option<Membership>,
    look_at: Instant,
    status_line: String,
    verification: Option<verify::Verification>,
    /// When the memory that a burst took is given back: once nothing has been applied for a while.
    release_at: Option<Instant>,
}

/// A random number, good enough for session ids and jitter.
pub(crate) fn random() -> u64 {
    let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
    // The version bits of a v4 UUID are constant; the mixing spreads the others over them.
    high.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ high.rotate_left(29)
}

impl Driver {
    pub(super) fn new(
        config: &Config,
        store: EdgeStore,
        kinds: Arc<KnownKinds>,
        link: LinkHandle,
        topics: Topics,
        upstream: Upstream,
        identity: Option<Membership>,
    ) -> Self {
        let facts = store.facts();
        let machine = EdgeMachine::new(edge_config(config), facts.totals, facts.confirmed, facts.incarnation);
        Self {
            machine,
            store,
            kinds,
            link,
            topics,
            node: config.node.name.clone(),
            broker: config.link.broker.to_string(),
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
            acked: 0,
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
            upstream,
            identity,
            look_at: Instant::now(),
            status_line: String::new(),
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
        let loops = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let watchdog = tokio::spawn(watch(loops.clone()));
        if let Some(reset) = health.borrow_and_update().reset.clone() {
            self.resets_seen = reset.number;
            self.tell_reset(&reset);
        }
        self.begin_upstream();
        let mut end: Option<Instant> = None;
        loop {
            loops.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.drain();
            if end.is_some_and(|end| end <= Instant::now() || !self.has_last_words()) {
                break;
            }
            let deadline = self.machine.deadline().map(|at| self.origin + at);
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
                event = heard.recv(), if self.machine.wants_frame() => match event {
                    Some(event) => self.heard_burst(event, &mut heard),
                    None => break,
                },
                result = front(&mut self.applying) => self.applied(result),
                page = finished(&mut self.reading) => self.page_read(page),
                page = finished(&mut self.upstream.page) => self.outbox_read(page),
                result = finished(&mut self.upstream.renumbering) => self.renumbered(result),
                stats = finished(&mut self.upstream.sizing) => self.sized(&stats),
                Ok(()) = self.upstream.outbox.changed() => self.outbox_changed(),
                _ = self.link.ready(), if self.waiting.is_some() => {}
                Ok(()) = health.changed() => {
                    let health = health.borrow_and_update().clone();
                    self.health_changed(&health);
                }
                Some(question) = asked.recv() => self.answer(question).await,
                Some(news) = identity_news(&mut self.identity) => self.tell_identity(news),
                () = tokio::time::sleep_until(wake) => self.tick(),
            }
        }
        self.end_upstream();
        watchdog.abort();
    }

    fn tick(&mut self) {
        if self.look_at <= Instant::now() {
            self.look_at = Instant::now() + LOOK_EVERY;
            self.look_around();
        }
        let now = self.now();
        if self.machine.deadline().is_some_and(|at| at <= now) {
            self.machine.tick(now, random());
        }
        if self.release_at.take_if(|at| *at <= Instant::now()).is_some() {
            let store = self.store.clone();
            tokio::spawn(async move {
                // A store that cannot be read or written says so in its health.
                let _ = store.release_memory().await;
                crate::memory::release();
                crate::memory::let_go_of_code();
            });
        }
        let traffic = self.link.traffic();
        let acked = traffic.messages_out.saturating_sub(traffic.unacknowledged);
        if acked != self.acked {
            self.acked = acked;
            self.machine.link_progress(now);
        }
    }

    fn heard_burst(&mut self, first: LinkEvent, heard: &mut mpsc::Receiver<LinkEvent>) {
        self.heard(first);
        for _ in 1..BURST {
            if !self.machine.wants_frame() {
                return;
            }
            let Ok(event) = heard.try_recv() else { return };
            self.heard(event);
        }
    }

    fn heard(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Connected { .. } => {
                self.link_state = LinkState {
                    connected: true,
                    since: Some(Timestamp::now()),
                    reconnects: self.link_state.reconnects + 1,
                    ..LinkState::default()
                };
                (self.cloud_boot, self.cloud_online) = (None, None);
                let limit = self.link.max_payload(&self.topics.up(&self.node));
                tracing::info!(broker = self.broker, limit, "connected");
                tracing::debug!(bytes = Presence::ONLINE_BYTES, "Presence");
                self.upstream.meter.frame(Direction::Up, "Presence", Presence::ONLINE_BYTES);
                self.look_soon();
                if let Some(identity) = &self.identity {
                    identity.connected();
                }
                self.machine.connected(self.now(), limit, random());
            }
            LinkEvent::Disconnected { cause, retry_in } => {
                if self.link_state.connected {
                    tracing::warn!(broker = self.broker, %cause, ?retry_in, "the connection is lost");
                } else {
                    tracing::info!(broker = self.broker, %cause, ?retry_in, "no connection");
                }
                self.link_state = LinkState {
                    connected: false,
                    since: Some(Timestamp::now()),
                    cause: Some(cause.to_string()),
                    retry_in,
                    ..self.link_state
                };
                if matches!(cause, Cause::TakenOver { .. }) {
                    self.upstream.events.emit(Why::SessionTakenOver, Regarding::Node, cause.to_string());
                }
                self.waiting = None;
                self.machine.disconnected();
            }
            LinkEvent::NotTaken { topic, code, reason } => {
                tracing::warn!(topic, code, reason, "the broker did not take a message");
            }
            LinkEvent::Message { topic, payload, .. } => match self.topics.parse(&topic) {
                Some(Topic::Cloud) => {
                    tracing::debug!(topic = "cloud", bytes = payload.len(), "receives");
                    self.upstream.meter.frame(Direction::Down, "Presence", payload.len());
                    self.cloud_seen(&payload);
                }
                Some(Topic::Down(node)) if node == self.node => {
                    tracing::debug!(topic = "down", bytes = payload.len(), "receives");
                    self.frame(&payload);
                }
                _ => tracing::debug!(topic, "a message on a topic of nobody"),
            },
        }
    }

    fn cloud_seen(&mut self, payload: &[u8]) {
        let presence = match serde_json::from_slice::<CloudPresence>(payload) {
            Ok(presence) => presence,
            Err(error) => {
                tracing::warn!(%error, "the cloud's presence cannot be read");
                return;
            }
        };
        let known = self.cloud_boot.replace(presence.boot.clone());
        let was_online = self.cloud_online.replace(presence.online);
        if !presence.online {
            tracing::warn!("the cloud says that it is gone");
            self.machine.cloud_gone(self.now());
        } else if was_online == Some(false) || known.is_some_and(|known| known != presence.boot) {
            tracing::info!("the cloud is back");
            self.machine.cloud_returned(self.now(), random());
        }
    }

    fn frame(&mut self, payload: &[u8]) {
        match Received::decode(payload, self.max_frame, self.max_object) {
            Ok(frame) => {
                self.upstream.meter.frame(Direction::Down, frame.name(), payload.len());
                if let Received::Objects(objects) = &frame {
                    for change in &objects.changes {
                        if let Change::Put(put) = change {
                            let bytes = put.body.get().len();
                            self.upstream.meter.object(Direction::Down, &put.resource, bytes);
                            self.kinds.learn(&put.resource);
                            self.rejected.remove(&*put.uid);
                        }
                    }
                }
                self.machine.received(self.now(), frame, random());
            }
            Err(error) => {
                *self.bad_frames.entry(error.label()).or_default() += 1;
                tracing::warn!(bytes = payload.len(), %error, "a frame that cannot be read");
            }
        }
    }

    fn applied(&mut self, result: Result<Applied, tokio::task::JoinError>) {
        let Some((token, _)) = self.applying.pop_front() else { return };
        self.release_at = Some(Instant::now() + QUIET);
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

    fn page_read(&mut self, page: Result<Page, tokio::task::JoinError>) {
        self.reading = None;
        let now = self.now();
        match page {
            Ok(Page::Changes(Ok(changes))) => {
                let edge::Changes { from, to, entries, .. } = changes;
                let entries = entries.into_iter().map(entry).collect();
                self.machine.changes_read(now, ChangesPage { from, to, entries });
            }
            Ok(Page::Buckets(Ok((totals, buckets)))) if buckets.fits(totals.digest) => {
                self.machine.buckets_read(&buckets);
            }
            Ok(Page::Buckets(Ok(_))) => {
                // A row was damaged and then changed before anything noticed.
                tracing::error!("the digest does not fit the rows: checking all of them");
                self.machine.read_failed(now);
                let store = self.store.clone();
                tokio::spawn(async move {
                    if let Err(error) = store.check().await {
                        tracing::error!(%error, "the rows could not be checked");
                    }
                });
            }
            Ok(Page::Inventory(Ok(page))) => {
                let next = page.next.map(InventoryCursor::number);
                let entries = page.entries.into_iter().map(entry).collect();
                self.machine.inventory_read(now, InventoryPage { entries, next });
            }
            Ok(Page::Changes(Err(error)) | Page::Buckets(Err(error)) | Page::Inventory(Err(error))) => {
                tracing::warn!(%error, "the store cannot be read");
                self.machine.read_failed(now);
            }
            Err(error) => {
                tracing::error!(%error, "a read of the store ended early");
                self.machine.read_failed(now);
            }
        }
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
            "the database was damaged: what could be read is kept, the cloud is asked for the rest"
        );
        self.tell_reset(reset);
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
            if !self.send_one() {
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
                self.applying.push_back((token, tokio::spawn(apply(store, changes))));
            }
            EdgeEffect::ReadChanges { after, limit } => {
                self.reading =
                    Some(tokio::spawn(async move { Page::Changes(store.changes(after, limit).await) }));
            }
            EdgeEffect::ReadBuckets => {
                self.reading = Some(tokio::spawn(async move { Page::Buckets(store.buckets().await) }));
            }
            EdgeEffect::ReadInventory { buckets, cursor, limit } => {
                let cursor = InventoryCursor::from_number(cursor);
                self.reading = Some(tokio::spawn(async move {
                    Page::Inventory(store.inventory(buckets, cursor, limit).await)
                }));
            }
            EdgeEffect::Confirm(revision) => {
                self.last_report = Some(Timestamp::now());
                store.confirm(revision);
            }
            EdgeEffect::SetIncarnation(incarnation) => {
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

    /// Sends one frame if there is one and the link has room.
    fn send_one(&mut self) -> bool {
        let (name, bytes) = match self.waiting.take() {
            Some(waiting) => waiting,
            None if !self.machine.has_frame() => return false,
            None => {
                let Some(frame) = self.machine.poll_frame() else { return false };
                match frame.encode(self.compress_above) {
                    Ok(bytes) => {
                        trace_frame(&frame, bytes.len());
                        (frame.name(), bytes)
                    }
                    Err(error) => {
                        tracing::error!(frame = frame.name(), %error, "a frame could not be written");
                        return true;
                    }
                }
            }
        };
        let (topic, length) = (self.topics.up(&self.node), bytes.len());
        match self.link.try_publish(&topic, bytes.clone(), false) {
            Ok(()) => {
                self.upstream.meter.frame(Direction::Up, name, length);
                true
            }
            Err(PublishError::Full) => {
                self.limits.link_queue += 1;
                self.waiting = Some((name, bytes));
                false
            }
            Err(PublishError::NotConnected) => false,
            Err(error) => {
                tracing::error!(%error, "a frame does not fit the link");
                true
            }
        }
    }

    async fn answer(&mut self, question: Question) {
        match question {
            Question::Status(answer) => {
                let stats = self.store.stats().await.ok();
                let kinds = self.store.kinds().await.unwrap_or_default();
                let _ = answer.send(self.status(stats, &kinds));
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

fn trace_frame(frame: &Up, bytes: usize) {
    match frame {
        Up::Hello(hello) => {
            let (revision, count) = (hello.revision, hello.count);
            tracing::debug!(session = hello.session, revision, count, bytes, "Hello");
        }
        Up::Report(report) => {
            let (objects, removed, rejected) =
                (report.objects.len(), report.removed.len(), report.rejected.len());
            tracing::debug!(report.from, report.to, objects, removed, rejected, bytes, "Report");
        }
        Up::Lease(_) => tracing::trace!(bytes, "Lease"),
        Up::Upload(upload) => {
            let (lane, items) = (upload.lane.name(), upload.items.len());
            tracing::debug!(lane, items, bytes, "Upload");
        }
        Up::Inventory(page) => {
            tracing::debug!(page.page, objects = page.objects.len(), bytes, "Inventory");
        }
    }
}

fn entry(entry: edge::Entry) -> Entry {
    let edge::Entry { uid, version, object, .. } = entry;
    let object = ObjectRef {
        api_version: object.resource.api_version().into(),
        kind: object.resource.kind.as_str().into(),
        namespace: object.namespace.into(),
        name: object.name.into(),
    };
    Entry { uid, version, object }
}

/// The result of the oldest commit under way; pending for ever when there is none.
async fn front(
    applying: &mut VecDeque<(u64, JoinHandle<Applied>)>,
) -> Result<Applied, tokio::task::JoinError> {
    match applying.front_mut() {
        Some((_, task)) => task.await,
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

/// Pings the service manager's watchdog as long as the loop turns.
pub(crate) async fn watch(loops: Arc<std::sync::atomic::AtomicU64>) {
    let mut seen = u64::MAX;
    systemd::watchdog(move || {
        let turned = loops.load(std::sync::atomic::Ordering::Relaxed);
        std::mem::replace(&mut seen, turned) != turned
    })
    .await;
}
