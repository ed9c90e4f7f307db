//! The requests of a replica, in the order of `crates/kubernetes`: `source/serving.rs`,
//! `leases.rs`, `uploads.rs`, `syncs.rs` and the informer.

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::request::{Answer, Io, Request, ask};
use super::server::{Base, Failure, Key, Value};
use super::state::{Batch, Item, Known, Output, State, delay, number};
use crate::change::Uid;
use crate::fault::{Fault, planted};
use crate::replicas::{Job, Outcome, QueueEntry, serves};
use crate::timing::Now;
use crate::upload::{IngestCursor, Refused, RefusedReason, not_placed};

/// Attempts with a Lease that changes concurrently, and with an ObjectSync.
const LEASE_ATTEMPTS: usize = 3;
const RECORD_ATTEMPTS: usize = 10;
/// Retries of a throttled request, and their first and longest delay.
const RETRIES: u32 = 3;
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
/// The first and the longest delay between claims.
const CLAIM: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// The time for which a check or a write of a Lease proves who serves the node.
const PROOF: Duration = Duration::from_secs(15);
/// The first and the longest delay of a watch after a failure.
const WATCH: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));
/// The shortest time between two lists to catch up.
const ROUND: Duration = Duration::from_secs(1);
/// How often an upload looks for the claim it waits for.
const LOOK: Duration = Duration::from_millis(100);

/// Reason why an item was not applied.
enum NotApplied {
    Refused(RefusedReason, String),
    Failed,
}

/// The flows of a replica. Cheap to clone.
#[derive(Clone)]
pub(super) struct Flows {
    pub(super) io: Rc<Io>,
    pub(super) state: Rc<RefCell<State>>,
    /// The session of a node to which the work is limited; 0 for no limit.
    pub(super) serial: u64,
}

impl Flows {
    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    fn output(&self, output: Output) {
        self.state().outputs.push(output);
    }

    async fn sleep(&self, time: Duration) {
        ask(&self.io, Request::Sleep(time)).await;
    }

    /// Sends a request, and repeats it while the API server is overloaded.
    async fn send(&self, request: Request) -> Answer {
        for attempt in 0..RETRIES {
            let mut answer = ask(&self.io, request.clone()).await;
            while planted(Fault::ThrottleIgnored) && matches!(answer, Answer::Failed(Failure::TooMany)) {
                answer = ask(&self.io, request.clone()).await;
            }
            if !matches!(answer, Answer::Failed(Failure::TooMany | Failure::Unavailable)) {
                return answer;
            }
            self.sleep(delay(RETRY, attempt)).await;
        }
        ask(&self.io, request).await
    }

    async fn write(
        &self,
        node: usize,
        key: Key,
        base: Base,
        value: Value,
        checked: Now,
    ) -> Result<u64, Failure> {
        let is_over = self.serial != 0 && self.state().serial(node) != self.serial;
        if is_over {
            return Err(Failure::Unavailable);
        }
        match self.send(Request::Write { node, key, base, value, checked }).await {
            Answer::Written(version) => Ok(version),
            Answer::Failed(failure) => Err(failure),
            other => unreachable!("a write is answered with {other:?}"),
        }
    }

    // --- Leases

    /// Claims a node whose session has begun here.
    pub(super) async fn claim(self, node: usize, serial: u64) {
        let mut failures = 0;
        while self.try_claim(node).await.is_err() {
            self.sleep(delay(CLAIM, failures)).await;
            failures += 1;
        }
        self.state().claimed(node, serial);
        self.output(Output::Claimed(node));
    }

    async fn try_claim(&self, node: usize) -> Result<(), Failure> {
        for _ in 0..LEASE_ATTEMPTS {
            let base = match self.send(Request::Lease { node, is_cached: false }).await {
                Answer::Lease(Some(lease), _) => Base::Version(lease.version),
                Answer::Failed(failure) => return Err(failure),
                _ if planted(Fault::ClaimWithoutLease) => return Ok(()),
                _ => Base::Absent,
            };
            if self.patch(node, base).await? {
                return Ok(());
            }
        }
        Err(Failure::Conflict)
    }

    /// Names this replica in a Lease. Returns false if it has changed since.
    async fn patch(&self, node: usize, base: Base) -> Result<bool, Failure> {
        let base = if planted(Fault::LeaseUnconditional) { Base::Any } else { base };
        let (value, started) = (Value::Server(self.state().replica.clone()), self.io.now.get());
        match self.write(node, Key::Lease, base, value, Now::MAX).await {
            Ok(version) => {
                let mut state = self.state();
                state.fences[node].record_write(version);
                state.proven[node] = started;
                Ok(true)
            }
            Err(Failure::Conflict | Failure::NotFound) => {
                self.state().fences[node].record_conflict();
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Renews a Lease.
    pub(super) async fn renew(self, node: usize, renewal: u64) {
        let is_done = self.try_renew(node, renewal).await.is_ok();
        let mut state = self.state();
        if state.fences[node].written().is_some() {
            let name = state.names[node].clone();
            state.queue.regain(&name);
        }
        drop(state);
        self.output(Output::Renewed { node, renewal, is_done });
    }

    async fn try_renew(&self, node: usize, renewal: u64) -> Result<(), Failure> {
        let written = self.state().fences[node].written().copied();
        if let Some(version) = written
            && self.patch(node, Base::Version(version)).await?
        {
            return Ok(());
        }
        for _ in 0..LEASE_ATTEMPTS {
            let base = match self.send(Request::Lease { node, is_cached: false }).await {
                Answer::Lease(Some(lease), _) => {
                    let mut state = self.state();
                    let replica = state.replica.clone();
                    if state.fences[node].drops(&lease.server, &replica, &renewal) {
                        return Ok(());
                    }
                    Base::Version(lease.version)
                }
                Answer::Failed(failure) => return Err(failure),
                _ => Base::Absent,
            };
            if self.patch(node, base).await? {
                return Ok(());
            }
        }
        Err(Failure::Conflict)
    }

    /// Reads who serves a node. Returns the time of the answer; `None` if it is another replica.
    async fn served(&self, node: usize) -> Result<Option<Now>, Failure> {
        let is_cached = planted(Fault::FenceFromCache);
        match self.send(Request::Lease { node, is_cached }).await {
            Answer::Lease(lease, at) => {
                let server = lease.map(|lease| lease.server).unwrap_or_default();
                Ok(Some(at).filter(|_| serves(&server, &self.state().replica)))
            }
            Answer::Failed(failure) => Err(failure),
            other => unreachable!("a Lease is answered with {other:?}"),
        }
    }

    // --- uploads

    /// Applies an upload once the node's Lease is claimed.
    pub(super) async fn ingest(self, node: usize, serial: u64, token: u64, batch: Batch) {
        let limited = Self { serial, ..self.clone() };
        let result = limited.try_ingest(node, serial, &batch).await.ok();
        self.output(Output::Ingested { node, token, result });
    }

    async fn try_ingest(
        &self,
        node: usize,
        serial: u64,
        batch: &Batch,
    ) -> Result<(IngestCursor, Vec<Refused>), NotApplied> {
        loop {
            let is_claimed = {
                let state = self.state();
                let session = state.sessions[node].as_ref().filter(|session| session.serial == serial);
                session.map(|session| session.is_claimed)
            };
            match is_claimed {
                Some(true) => break,
                Some(false) => self.sleep(LOOK).await,
                None => return Err(NotApplied::Failed),
            }
        }
        let Batch { outbox, lane, confirmed, items } = batch;
        self.state().progress[node].begin(outbox, *lane, *confirmed);
        for item in items {
            if self.state().progress[node].is_done(outbox, *lane, item.seq) {
                continue;
            }
            if planted(Fault::ConfirmUnwritten) {
                self.state().progress[node].record(outbox, (*lane, item.seq), None);
            }
            let refusal = match self.apply(node, item).await {
                Ok(()) => None,
                Err(NotApplied::Refused(reason, message)) => Some((reason, message)),
                Err(NotApplied::Failed) => return Err(NotApplied::Failed),
            };
            self.state().progress[node].record(outbox, (*lane, item.seq), refusal);
        }
        Ok(self.state().progress[node].finish(*lane, *confirmed))
    }

    async fn apply(&self, node: usize, item: &Item) -> Result<(), NotApplied> {
        let refused = || {
            let (reason, message) = item.object.as_ref().map(not_placed).unwrap();
            NotApplied::Refused(reason, message)
        };
        if !item.is_placed {
            return Err(refused());
        }
        let applied = match &item.key {
            Key::Status(uid) => match self.apply_status(node, uid, item.made).await {
                Err(Failure::NotFound) => return Err(refused()),
                applied => applied,
            },
            Key::Effect(uid) => self.apply_effect(node, uid, item).await,
            Key::Event(name) => self.apply_event(node, *name, item.made).await,
            Key::Lease | Key::Record(_) => unreachable!("no item is about these"),
        };
        match applied {
            Err(Failure::Conflict) if planted(Fault::ConflictIsSuccess) => Ok(()),
            applied => applied.map_err(|_| NotApplied::Failed),
        }
    }

    /// Checks that this replica serves the node. Returns the time of the answer.
    async fn check_served(&self, node: usize) -> Result<Now, Failure> {
        self.served(node).await?.ok_or(Failure::Unavailable)
    }

    async fn apply_status(&self, node: usize, uid: &Uid, made: u64) -> Result<(), Failure> {
        let object = match self.send(Request::Object(uid.clone())).await {
            Answer::Object(Some(object)) => object,
            Answer::Failed(failure) => return Err(failure),
            _ => return Err(Failure::NotFound),
        };
        if object.status == made {
            return Ok(());
        }
        let checked = self.check_served(node).await?;
        let (key, base) = (Key::Status(uid.clone()), Base::Version(object.version));
        self.write(node, key, base, Value::Number(made), checked).await.map(drop)
    }

    async fn apply_effect(&self, node: usize, uid: &Uid, item: &Item) -> Result<(), Failure> {
        for _ in 0..RECORD_ATTEMPTS {
            let record = match self.send(Request::Record(node, uid.clone())).await {
                Answer::Stored(record) => record,
                Answer::Failed(failure) => return Err(failure),
                other => unreachable!("a record is answered with {other:?}"),
            };
            if record.as_ref().is_some_and(|record| record.effect == item.made) {
                return Ok(());
            }
            let checked = self.check_served(node).await?;
            let (key, base, value, held) = match record {
                None => (Key::Record(uid.clone()), Base::Absent, item.held, item.held),
                Some(record) => {
                    (Key::Effect(uid.clone()), Base::Version(record.version), item.made, record.value)
                }
            };
            let is_labelled = matches!(key, Key::Effect(_));
            match self.write(node, key, base, Value::Number(value), checked).await {
                Ok(version) => {
                    let mut state = self.state();
                    let name = state.names[node].clone();
                    state.queue.record_write(&name, uid, Known { version, held });
                    if is_labelled {
                        return Ok(());
                    }
                }
                Err(Failure::Conflict) if planted(Fault::ConflictIsSuccess) => return Ok(()),
                Err(Failure::Conflict | Failure::NotFound) => {}
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::Unavailable)
    }

    async fn apply_event(&self, node: usize, name: u64, made: u64) -> Result<(), Failure> {
        let (key, value) = (Key::Event(name), Value::Number(made));
        // It replaces nothing and needs no check.
        match self.write(node, key.clone(), Base::Absent, value.clone(), Now::MAX).await {
            Err(Failure::Conflict) => {}
            created => return created.map(drop),
        }
        let event = match self.send(Request::Event(node, name)).await {
            Answer::Stored(Some(event)) => event,
            Answer::Failed(failure) => return Err(failure),
            _ => return Err(Failure::Unavailable),
        };
        if event.value == made {
            return Ok(());
        }
        let checked = self.check_served(node).await?;
        self.write(node, key, Base::Version(event.version), value, checked).await.map(drop)
    }

    // --- ObjectSyncs

    /// Reads the records of nodes, then checks who serves them.
    pub(super) async fn list_records(self, entries: Vec<QueueEntry>) {
        let nodes: Vec<usize> = entries.iter().map(|entry| self.state().index(&entry.node)).collect();
        let mut found: Vec<HashMap<Uid, Known>> = nodes.iter().map(|_| HashMap::new()).collect();
        match self.send(Request::Records(nodes.clone())).await {
            Answer::Records(records) => {
                for (node, uid, record) in records {
                    let at = nodes.iter().position(|of| *of == node).unwrap();
                    let known = Known { version: record.version, held: record.value };
                    found[at].insert(uid, known);
                }
            }
            _ => {
                let mut state = self.state();
                state.backoff.failed(self.io.now.get());
                return entries.into_iter().for_each(|entry| state.queue.not_listed(entry));
            }
        }
        for ((entry, node), known) in entries.into_iter().zip(nodes).zip(found) {
            let served = self.served(node).await;
            let mut state = self.state();
            match served {
                Ok(Some(at)) => {
                    state.proven[node] = at;
                    state.queue.listed(&entry, known);
                }
                Ok(None) => state.queue.not_served(&entry),
                Err(_) => {
                    state.backoff.failed(self.io.now.get());
                    state.queue.not_listed(entry);
                }
            }
        }
    }

    /// Writes records of a node.
    pub(super) async fn write_records(self, mut job: Job<Known>) {
        let outcome = self.write_all(&mut job).await;
        let mut state = self.state();
        match outcome {
            Ok(outcome) => {
                state.backoff.failures = 0;
                state.queue.finish(job, outcome);
            }
            Err(_) => {
                state.backoff.failed(self.io.now.get());
                state.queue.finish(job, Outcome::Failed);
            }
        }
    }

    async fn write_all(&self, job: &mut Job<Known>) -> Result<Outcome, Failure> {
        let node = self.state().index(&job.node);
        let uids: Vec<Uid> = job.desired.keys().cloned().collect();
        for uid in uids {
            if !self.state().queue.is_current(job) {
                return Ok(Outcome::Continue);
            }
            let mut checked = self.state().proven[node];
            if self.io.now.get() > checked + PROOF {
                match self.served(node).await? {
                    Some(at) => checked = at,
                    None => return Ok(Outcome::Fenced),
                }
                self.state().proven[node] = checked;
            }
            let Some(desired) = job.desired.get(&uid) else { continue };
            let held = desired.as_ref().map(|record| number(&record.version));
            let base = job.known.get(&uid).map(|known| Base::Version(known.version));
            let (base, value) = match (held, base) {
                (Some(held), base) => (base.unwrap_or(Base::Absent), Value::Number(held)),
                (None, Some(base)) => (base, Value::Deleted),
                (None, None) => {
                    job.desired.remove(&uid);
                    continue;
                }
            };
            match (self.write(node, Key::Record(uid.clone()), base, value, checked).await, held) {
                (Ok(version), Some(held)) => drop(job.known.insert(uid.clone(), Known { version, held })),
                (Ok(_) | Err(Failure::NotFound), None) => drop(job.known.remove(&uid)),
                (Err(Failure::Conflict | Failure::NotFound), _) => return Ok(Outcome::Changed),
                (Err(failure), _) => return Err(failure),
            }
            job.desired.remove(&uid);
        }
        Ok(Outcome::Continue)
    }

    // --- the informer

    /// Lists and watches all objects, and lists them again to answer a question.
    pub(super) async fn follow(self) {
        let (mut failures, mut not_before) = (0, Now::ZERO);
        loop {
            match self.list(&mut not_before).await {
                Ok(version) => {
                    failures = 0;
                    self.watch(version).await;
                }
                Err(_) => {
                    self.sleep(delay(WATCH, failures)).await;
                    failures += 1;
                }
            }
        }
    }

    fn is_asked(&self) -> bool {
        let state = self.state();
        state.requested > state.answered
    }

    /// Lists all objects. Answers the questions that were asked before. Returns the version of the
    /// list.
    async fn list(&self, not_before: &mut Now) -> Result<u64, Failure> {
        let question = if self.is_asked() {
            self.sleep(not_before.saturating_sub(self.io.now.get())).await;
            let question = self.state().requested;
            match self.send(Request::Reached).await {
                Answer::Reached(reached) => Some((question, reached)),
                _ => return Err(Failure::Unavailable),
            }
        } else {
            None
        };
        let is_cached = question.is_some() && planted(Fault::CatchUpFromCache);
        let Answer::Objects(version, objects) = self.send(Request::Objects { is_cached }).await else {
            return Err(Failure::Unavailable);
        };
        self.output(Output::Listed(objects));
        if let Some((question, reached)) = question {
            *not_before = self.io.now.get() + ROUND;
            self.state().answered = question;
            self.output(Output::CaughtUp(question, reached));
        }
        Ok(version)
    }

    /// Watches from a version until a list is necessary. Watches are not retried by the client, but
    /// have a delay of their own.
    async fn watch(&self, mut after: u64) {
        let (mut has_begun, mut failures) = (false, 0);
        while !self.is_asked() {
            match ask(&self.io, Request::Watch { after, has_begun }).await {
                Answer::Changes(changes) => {
                    after = changes.last().map_or(after, |change| change.version);
                    (has_begun, failures) = (true, 0);
                    self.output(Output::Changed(changes));
                }
                Answer::Closed => has_begun = false,
                Answer::Failed(Failure::Expired) if planted(Fault::ExpiredWatchContinues) => {
                    if let Answer::Reached(reached) = self.send(Request::Reached).await {
                        after = reached;
                    }
                }
                Answer::Failed(Failure::Expired) => return self.sleep(ROUND).await,
                _ => {
                    has_begun = false;
                    self.sleep(delay(WATCH, failures)).await;
                    failures += 1;
                }
            }
        }
    }
}
