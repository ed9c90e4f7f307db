//! The tasks of the replicas, and the execution of their requests.

use std::time::Duration;

use super::super::node::read;
use super::super::oracle::Written;
use super::super::request::{Answer, Kind, Request, Task};
use super::super::server::{Failure, Key, Lease, Object, Value};
use super::super::state::{Batch, Item, Output};
use super::{Event, MAX_REQUESTS, Parked, Served, World};
use crate::change::Uid;
use crate::cloud::CloudPhase;
use crate::upload::Upload;

/// The time of a request that finds no API server.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest life of a watch.
const WATCH: Duration = Duration::from_secs(120);
/// Nodes per list of ObjectSyncs, and nodes whose records are written at a time.
const NODES_PER_LIST: usize = 64;
const WRITERS: usize = 8;

/// The task that has sent a request.
#[derive(Clone, Copy)]
pub(in super::super) struct Sender {
    replica: usize,
    kind: Kind,
    /// The number of the session of its node; 0 without one.
    session: u64,
}

impl World {
    pub(super) fn spawn(
        &mut self,
        replica: usize,
        kind: Kind,
        session: u64,
        future: impl Future<Output = ()> + 'static,
    ) {
        let task = Task::new((replica, kind, session), &self.io, future);
        let id = self.next_task;
        self.next_task += 1;
        self.tasks.insert(id, task);
        self.poll(id, None);
    }

    /// Runs a task up to its next request.
    pub(super) fn poll(&mut self, id: u64, answer: Option<Answer>) {
        let now = self.time.now;
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let replica = task.replica;
        match task.poll(now, answer) {
            None => drop(self.tasks.remove(&id)),
            Some(Request::Sleep(time)) => {
                self.time.at(now + time, Event::Answered { task: id, answer: Answer::Slept });
            }
            Some(request) => {
                let sender = Sender { replica, kind: task.kind, session: task.session };
                let is_counted = !matches!(request, Request::Watch { has_begun: true, .. });
                self.count_requests(usize::from(is_counted));
                let delay = self.time.random.delay(self.chaos.request);
                self.time.at(now + delay, Event::Arrives { task: id, sender, request });
            }
        }
        self.take_outputs(replica);
    }

    fn count_requests(&mut self, more: usize) {
        let (minute, count) = self.requests;
        let now = self.time.now.as_secs() / 60;
        self.requests = if now == minute { (minute, count + more) } else { (now, more) };
        self.all_requests += more;
        if self.requests.1 > MAX_REQUESTS {
            let why = format!("cost: more than {MAX_REQUESTS} requests in a minute");
            self.time.violation.get_or_insert(why);
        }
    }

    /// Executes a request at the API server, even if the task has ended since.
    pub(super) fn arrives(&mut self, id: u64, sender: Sender, request: Request) -> Result<(), String> {
        let (now, Sender { replica, kind, .. }) = (self.time.now, sender);
        if self.replicas[replica].apart_until > now {
            self.answer(id, TIMEOUT, Answer::Failed(Failure::Unavailable));
            return Ok(());
        }
        if self.throttled_until > now {
            self.answer(id, Duration::ZERO, Answer::Failed(Failure::TooMany));
            return Ok(());
        }
        if let Request::Watch { after, has_begun } = request {
            self.watch(id, replica, after, has_begun);
            return Ok(());
        }
        self.time.say(|| format!("replica {replica} {kind:?}: {request:?}"));
        let answer = self.execute(sender, request)?;
        let answer = match self.time.random.percent(self.chaos.lost) {
            true => Answer::Failed(Failure::Unavailable),
            false => answer,
        };
        self.time.say(|| format!("replica {replica} {kind:?} ← {answer:?}").chars().take(200).collect());
        let delay = self.time.random.delay(self.chaos.request);
        self.answer(id, delay, answer);
        Ok(())
    }

    fn answer(&mut self, task: u64, delay: Duration, answer: Answer) {
        self.time.at(self.time.now + delay, Event::Answered { task, answer });
    }

    fn execute(&mut self, sender: Sender, request: Request) -> Result<Answer, String> {
        let (now, server) = (self.time.now, &self.server);
        Ok(match request {
            Request::Sleep(_) | Request::Watch { .. } => Answer::Slept,
            Request::Lease { node, is_cached } => {
                let lease = if is_cached { server.lease_cached(now, node) } else { server.lease(node) };
                Answer::Lease(lease.cloned(), now)
            }
            Request::Object(uid) => Answer::Object(server.objects.get(&uid).cloned()),
            Request::Record(node, uid) => Answer::Stored(server.records.get(&(node, uid)).cloned()),
            Request::Event(node, name) => Answer::Stored(server.events.get(&(node, name)).cloned()),
            Request::Records(nodes) => {
                let of = |node: usize| {
                    let records = server.records_of(node);
                    records.map(move |(uid, record)| (node, uid.clone(), record.clone()))
                };
                Answer::Records(nodes.into_iter().flat_map(of).collect())
            }
            Request::Reached => Answer::Reached(server.version()),
            Request::Objects { is_cached } => {
                let (version, objects) = if is_cached { server.list_cached(now) } else { server.list() };
                Answer::Objects(version, objects)
            }
            Request::Write { node, key, base, value, checked } => {
                let before = self.server.number(node, &key);
                let after = if let Value::Number(number) = value { number } else { 0 };
                let lease = self.server.lease(node).cloned().unwrap_or_default();
                match self.server.write(now, (node, &key), base, value) {
                    Err(failure) => Answer::Failed(failure),
                    Ok(version) => {
                        if key == Key::Lease {
                            self.check_lease(sender, node, &lease)?;
                        } else {
                            let Sender { replica, session, .. } = sender;
                            let write = Written {
                                node,
                                key: &key,
                                replica: &format!("replica-{replica}"),
                                session: (replica, self.replicas[replica].life, session),
                                checked,
                                before,
                                after,
                            };
                            self.oracle.check_write(now, &self.server, &self.nodes, &write)?;
                        }
                        if let Key::Record(uid) = &key
                            && let Some(record) = self.server.records.get_mut(&(node, uid.clone()))
                        {
                            let it = &self.replicas[sender.replica];
                            let is_named = lease.server == format!("replica-{}", sender.replica);
                            let is_of_session = it.flows.state.borrow().serial(node) == sender.session;
                            record.is_stray =
                                sender.kind == Kind::Ingest(node) || !is_named || !is_of_session;
                        }
                        if let Key::Status(uid) = &key {
                            self.objects_changed(uid);
                        }
                        Answer::Written(version)
                    }
                }
            }
        })
    }

    /// Checks a write of a Lease: no late renewal takes a node from the replica that it has moved
    /// to and that has claimed it since.
    fn check_lease(&self, sender: Sender, node: usize, before: &Lease) -> Result<(), String> {
        let Some(link) = self.nodes[node].link.map(|link| &self.connections[link]) else { return Ok(()) };
        let (own, other) = (format!("replica-{}", sender.replica), format!("replica-{}", link.replica));
        let is_claimed = before.server == other && before.since >= link.begun;
        match sender.kind == Kind::Renew(node) && is_claimed && own != other {
            true => Err(format!("fence: a late renewal at {own} takes node {node} from {other}")),
            false => Ok(()),
        }
    }

    /// Checks a completed claim: the node has a Lease, so no other replica takes the node without
    /// a claim of its own, or three renewals.
    fn check_claim(&mut self, replica: usize, node: usize) {
        if self.server.lease(node).is_none() {
            let why = format!("fence: replica-{replica} has claimed node {node}, which has no Lease");
            self.time.violation.get_or_insert(why);
        }
    }

    // --- watches

    fn watch(&mut self, task: u64, replica: usize, after: u64, has_begun: bool) {
        if !self.tasks.contains_key(&task) {
            return;
        }
        if !has_begun && self.server.has_expired(after) {
            return self.answer(task, Duration::ZERO, Answer::Failed(Failure::Expired));
        }
        self.parked.push(Parked { task, replica, after });
        self.time.at(self.time.now + WATCH, Event::WatchEnds { task, after });
        self.wake_watches();
    }

    /// Ends a watch that still waits for changes after this version.
    pub(super) fn end_watch(&mut self, task: u64, after: u64) {
        let before = self.parked.len();
        self.parked.retain(|parked| parked.task != task || parked.after != after);
        if self.parked.len() < before {
            self.answer(task, Duration::ZERO, Answer::Closed);
        }
    }

    /// Ends the watch of a replica.
    pub(in crate::simulation::replicas) fn break_watch(&mut self, replica: usize) {
        let parked = self.parked.iter().find(|parked| parked.replica == replica);
        if let Some(Parked { task, after, .. }) = parked {
            self.end_watch(*task, *after);
        }
    }

    /// Schedules the changes that watches wait for.
    pub(super) fn wake_watches(&mut self) {
        let (ready, parked) = std::mem::take(&mut self.parked)
            .into_iter()
            .partition(|parked: &Parked| self.server.has_changes(parked.after));
        self.parked = parked;
        for Parked { task, replica, after } in ready {
            let delay = self.time.random.delay(self.chaos.lag);
            let apart = self.replicas[replica].apart_until.saturating_sub(self.time.now);
            let answer = match apart > Duration::ZERO {
                true => Answer::Closed,
                false => Answer::Changes(self.server.changes(after)),
            };
            self.answer(task, delay.max(apart), answer);
        }
    }

    // --- results

    /// Passes the results of tasks to the machines.
    fn take_outputs(&mut self, replica: usize) {
        let outputs = std::mem::take(&mut self.replicas[replica].flows.state.borrow_mut().outputs);
        let now = self.time.now;
        for output in outputs {
            let it = &mut self.replicas[replica];
            match output {
                Output::Ingested { node, token, result } => it.nodes[node].machine.taken(now, token, result),
                Output::Claimed(node) => self.check_claim(replica, node),
                Output::Renewed { node, renewal, is_done } => {
                    if !is_done && it.nodes[node].link.is_some() {
                        it.nodes[node].renewal.get_or_insert(renewal);
                    }
                }
                Output::Listed(objects) => {
                    it.is_complete = true;
                    let listed: Vec<Uid> = objects.iter().map(|object| object.uid.clone()).collect();
                    let known = it.view.keys().filter(|uid| !listed.contains(uid)).cloned();
                    let gone: Vec<Uid> = known.collect();
                    objects.into_iter().for_each(|object| self.observe(replica, object));
                    gone.into_iter().for_each(|uid| self.observe_deletion(replica, &uid));
                }
                Output::Changed(changes) => {
                    for change in changes {
                        match change.object {
                            Some(object) => self.observe(replica, object),
                            None => self.observe_deletion(replica, &change.uid),
                        }
                    }
                }
                Output::CaughtUp(question, reached) => {
                    while let Some((_, node, token)) =
                        it.waiting.pop_front_if(|(asked, ..)| *asked <= question)
                    {
                        let Served { machine, desired, .. } = &mut it.nodes[node];
                        machine.caught_up(now, token, &reached.into(), desired);
                    }
                }
            }
        }
    }

    /// Passes the state of an object to a replica, unless it knows a newer one.
    fn observe(&mut self, replica: usize, object: Object) {
        let it = &mut self.replicas[replica];
        if it.view.get(&object.uid).is_some_and(|known| known.version >= object.version) {
            return;
        }
        for (node, Served { machine, desired, .. }) in it.nodes.iter_mut().enumerate() {
            let wish = object.is_on(node).then(|| object.desired());
            if wish.is_some() || desired.0.contains_key(&object.uid) {
                desired.tell(self.time.now, Some(machine), &object.uid, wish);
            }
        }
        it.view.insert(object.uid.clone(), object);
    }

    fn observe_deletion(&mut self, replica: usize, uid: &Uid) {
        let it = &mut self.replicas[replica];
        if it.view.remove(uid).is_none() {
            return;
        }
        for Served { machine, desired, .. } in &mut it.nodes {
            if desired.0.contains_key(uid) {
                desired.tell(self.time.now, Some(machine), uid, None);
            }
        }
    }

    // --- the writers of a replica

    /// Begins the tasks of a replica that are due.
    pub(super) fn drive_writers(&mut self, replica: usize) {
        let now = self.time.now;
        if !self.is_running(replica) {
            return;
        }
        while let Some(node) = self.take_due(replica) {
            self.set_records(replica, node);
        }
        let flows = self.replicas[replica].flows.clone();
        if flows.state.borrow().backoff.is_over(now) {
            if flows.state.borrow_mut().backoff.take_resume(now) {
                flows.state.borrow_mut().queue.resume();
            }
            while self.count(replica, Kind::WriteRecords) < WRITERS {
                let job = flows.state.borrow_mut().queue.take();
                let Some(job) = job else { break };
                let session = {
                    let state = flows.state.borrow();
                    state.serial(state.index(&job.node))
                };
                self.spawn(replica, Kind::WriteRecords, session, flows.clone().write_records(job));
            }
            if self.count(replica, Kind::ListRecords) == 0 {
                let entries = flows.state.borrow_mut().queue.take_unlisted(NODES_PER_LIST);
                if !entries.is_empty() {
                    self.spawn(replica, Kind::ListRecords, 0, flows.clone().list_records(entries));
                }
            }
        }
        for node in 0..self.nodes.len() {
            if self.count(replica, Kind::Renew(node)) == 0
                && let Some(renewal) = self.replicas[replica].nodes[node].renewal.take()
            {
                self.spawn(replica, Kind::Renew(node), 0, flows.clone().renew(node, renewal));
            }
        }
    }

    fn count(&self, replica: usize, kind: Kind) -> usize {
        self.tasks.values().filter(|task| task.replica == replica && task.kind == kind).count()
    }

    fn take_due(&mut self, replica: usize) -> Option<usize> {
        let name = self.replicas[replica].flows.state.borrow_mut().queue.take_due()?;
        self.names.iter().position(|known| *known == name)
    }

    /// Sets the ObjectSyncs of a node that is live at a replica.
    fn set_records(&mut self, replica: usize, node: usize) {
        let Served { machine, desired, .. } = &self.replicas[replica].nodes[node];
        if machine.phase() == CloudPhase::Live {
            let held = machine.held_by_node(desired).collect();
            self.replicas[replica].flows.state.borrow_mut().replace(node, held);
        }
    }

    /// Begins to serve a node whose session has begun at a replica.
    pub(super) fn welcomed(&mut self, replica: usize, node: usize) {
        self.tasks.retain(|_, task| task.replica != replica || task.kind != Kind::Claim(node));
        let flows = self.replicas[replica].flows.clone();
        let serial = flows.state.borrow_mut().begin(node);
        self.spawn(replica, Kind::Claim(node), serial, flows.claim(node, serial));
        self.set_records(replica, node);
    }

    /// Applies an upload, or answers "not now".
    pub(super) fn ingest(
        &mut self,
        replica: usize,
        node: usize,
        token: u64,
        upload: Upload,
    ) -> Result<(), String> {
        let Served { machine, desired, .. } = &mut self.replicas[replica].nodes[node];
        let mut items = Vec::new();
        for item in &upload.items {
            let content = read(item.content.get())?;
            let uid = match &content.key {
                Key::Status(uid) | Key::Effect(uid) => Some(uid),
                _ => None,
            };
            let is_placed = uid.is_none_or(|uid| {
                desired.0.contains_key(uid) || machine.recorded_object(uid, desired).is_some()
            });
            items.push(Item {
                seq: item.seq,
                made: content.made,
                held: content.held,
                object: content.object.map(|object| object.key()),
                key: content.key,
                is_placed,
            });
        }
        if items.iter().any(|item| !item.is_placed) && !machine.may_refuse() {
            machine.taken(self.time.now, token, None);
            return Ok(());
        }
        let Upload { outbox, lane, confirmed, .. } = upload;
        let flows = self.replicas[replica].flows.clone();
        let serial = flows.state.borrow().serial(node);
        let batch = Batch { outbox, lane, confirmed, items };
        self.spawn(replica, Kind::Ingest(node), serial, flows.ingest(node, serial, token, batch));
        Ok(())
    }
}
