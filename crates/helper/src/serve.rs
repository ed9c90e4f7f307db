//! Serial request loop: loads the configuration, runs a pass, replies.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::Value;
use socket2::SockRef;

use super::callers::{Caller, Callers};
use super::disk::{Disk, system_error};
use super::gate::Gate;
use super::kept::Copies;
use super::owner::{self, OwnerError};
use super::records::{Log, Records, RuleFiles};
use super::sandbox::Candidate;
use super::{HelperError, check, holds, hook, rules};
use edgesync_config::edge::Config;
use edgesync_files::contents::{Desired, Files};
use edgesync_files::list;
use edgesync_files::pass::{Options, Pass, keep_all};
use edgesync_files::rule::{CheckUser, Reload};
use edgesync_files::steps::recover;
use edgesync_files::verify::{Verdict, verify};
use edgesync_files::wire::{
    HoldReply, Listed, ListedError, MAX_CHANGED, MAX_FRAME, MAX_LISTED, Outcome, Reply, Request, Verb,
};
use edgesync_files::{
    Change, Closed, Digest, Effects, Failure, Held, Intent, Member, Observed, Place, Record, Refusal, Rule,
    Shape,
};
use edgesync_runtime::chain;

/// Time limit for one transfer from or to the agent.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for all transfers of a request of the agent together: an agent that sends or reads
/// slowly must not keep programs from holding a rule.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of bytes that are written to the agent at once.
const MAX_PIECE: usize = 16 << 10;

/// Delay after a removal that could not begin, in microseconds.
const CLEAR_RETRY: i64 = 60_000_000;

/// Reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    /// The request names another rule than the configured ones.
    #[error("no rule {0:?} in the configuration")]
    UnknownRule(String),
    /// The list has an object that no agent stores.
    #[error("invalid object in the list: {0}")]
    Listed(ListedError),
    /// The system does not have the owner that the rule names.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The outcome of an interrupted transaction cannot be recorded.
    #[error("record of an interrupted change cannot be written")]
    Interrupted,
}

/// Serves until idle for `idle`, or until the listener is shut down. Errors of the configuration or
/// the records are sent as replies: a helper that exited before it accepted the connection would be
/// restarted for it in a loop.
pub(super) fn serve(
    agent: &UnixListener,
    holds: Option<&UnixListener>,
    config: &Path,
    idle: Option<Duration>,
) -> io::Result<()> {
    let (mut records, mut callers) = (None, Callers::default());
    if let Some(listener) = holds {
        listener.set_nonblocking(true)?;
    }
    loop {
        let Some([agent_calls, hold_calls]) = wait(agent, holds, &callers, idle)? else { return Ok(()) };
        if let Some(listener) = holds.filter(|_| hold_calls) {
            callers.accept(listener)?;
        }
        // Those that have arrived, and then the agent: neither keeps the other out.
        while let Some(caller) = callers.next_complete() {
            if let Err(error) = serve_hold(caller, config, &mut records) {
                tracing::warn!(%error, "client of holds disconnected during a request");
            }
        }
        if !agent_calls {
            continue;
        }
        match accept(agent) {
            Ok(Some(stream)) => {
                if let Err(error) = serve_request(stream, config, &mut records) {
                    tracing::warn!(%error, "agent disconnected during a request");
                }
            }
            Ok(None) => {}
            // Shut down by a signal.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Waits for connections, and requests on those of holds. Returns on which sockets there are
/// connections; none if idle.
fn wait(
    agent: &UnixListener,
    holds: Option<&UnixListener>,
    callers: &Callers,
    idle: Option<Duration>,
) -> io::Result<Option<[bool; 2]>> {
    let (holds, left) = (holds.filter(|_| callers.has_room()), callers.time_left());
    let limit = left.or(idle).map(Timespec::try_from).transpose().map_err(io::Error::other)?;
    let listeners = [Some(agent), holds].into_iter().flatten().map(UnixListener::as_fd);
    let sockets = listeners.chain(callers.sockets());
    let mut watched: Vec<_> = sockets.map(|of| PollFd::from_borrowed_fd(of, PollFlags::IN)).collect();
    loop {
        match poll(&mut watched, limit.as_ref()) {
            Ok(0) if left.is_none() => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            polled => {
                polled?;
                let is_ready = |at: usize| watched.get(at).is_some_and(|of| !of.revents().is_empty());
                return Ok(Some([is_ready(0), holds.is_some() && is_ready(1)]));
            }
        }
    }
}

/// Accepts a connection; none if the client has given up.
pub(super) fn accept(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Serves a program that holds a rule.
fn serve_hold(caller: Caller, config: &Path, records: &mut Option<Records>) -> io::Result<()> {
    let reply = match (caller.request(), load(config, records)) {
        (Ok(request), Ok((config, records))) => holds::execute(&config, records, caller.uid, &request),
        (Err(why), _) | (_, Err(why)) => HoldReply::Refused(why),
    };
    caller.reply(&reply)
}

/// Loads the configuration, and the records if they are not known yet.
fn load<'r>(path: &Path, records: &'r mut Option<Records>) -> Result<(Config, &'r mut Records), String> {
    let read = rules(path).and_then(|config| match records.take() {
        Some(records) => Ok((config, records)),
        None => Records::open(&config).map(|records| (config, records)),
    });
    match read {
        Ok((config, read)) => Ok((config, records.insert(read))),
        Err(HelperError::Config(errors)) => Err(format!("invalid configuration: {errors}")),
        Err(error) => Err(chain(&error)),
    }
}

/// The agent's connection.
struct AgentStream {
    stream: UnixStream,
    /// The rest of [`REQUEST_TIMEOUT`].
    left: Duration,
}

impl AgentStream {
    /// Returns the time limit of the next transfer.
    fn limit(&self) -> io::Result<Option<Duration>> {
        if self.left.is_zero() {
            Err(ErrorKind::TimedOut.into())
        } else {
            Ok(Some(self.left.min(TRANSFER_TIMEOUT)))
        }
    }

    fn timed<T>(&mut self, transfer: impl FnOnce(&mut UnixStream) -> T) -> T {
        let begun = Instant::now();
        let done = transfer(&mut self.stream);
        self.left = self.left.saturating_sub(begun.elapsed());
        done
    }
}

impl Read for AgentStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.limit()?)?;
        self.timed(|stream| stream.read(bytes))
    }
}

impl Write for AgentStream {
    /// Writes a piece: the kernel restarts the time limit of a longer one as the peer reads it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.limit()?)?;
        let piece = bytes.get(..MAX_PIECE).unwrap_or(bytes);
        self.timed(|stream| stream.write(piece))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn serve_request(stream: UnixStream, config: &Path, records: &mut Option<Records>) -> io::Result<()> {
    stream.set_read_timeout(Some(TRANSFER_TIMEOUT))?;
    // A connection without a request only probes whether the helper runs.
    if SockRef::from(&stream).peek(&mut [MaybeUninit::uninit()])? == 0 {
        return Ok(());
    }
    let mut stream = AgentStream { stream, left: REQUEST_TIMEOUT };
    let listed = read_list(&mut stream)?;
    let request: Request = serde_json::from_slice(&read_frame(&mut stream)?)?;
    let reply = match load(config, records) {
        Ok((config, records)) => {
            records.holds.observe(&config);
            match listed {
                Ok(listed) => execute(&mut stream, &config, records, &request, listed)?,
                Err(why) => Reply::Refused(why.to_string()),
            }
        }
        Err(why) => Reply::Refused(why),
    };
    write_reply(&mut stream, &reply)
}

fn execute(
    stream: &mut AgentStream,
    config: &Config,
    records: &mut Records,
    request: &Request,
    listed: Vec<Listed>,
) -> io::Result<Reply> {
    let names: BTreeSet<&str> = config.files.rules.iter().map(|rule| rule.name.as_str()).collect();
    let mut outcome = Outcome::default();
    records.continue_after(&request.told);
    match request.verb {
        Verb::Show => {}
        Verb::Clear => outcome.retry = clear(config, records, &names),
        Verb::Apply | Verb::Check => {
            let Some(rule) = config.files.rules.iter().find(|rule| rule.name == request.rule) else {
                let unknown = RequestError::UnknownRule(request.rule.clone());
                return Ok(Reply::Refused(unknown.to_string()));
            };
            match apply(stream, rule, config, records, request, listed)? {
                Ok(done) => outcome = done,
                Err(why) => return Ok(Reply::Refused(why.to_string())),
            }
        }
    }
    outcome.updates = records.updates(&request.told);
    outcome.told = records.reported();
    outcome.rules = records.show(request.verb == Verb::Show && request.look);
    outcome.objects = Some(records.counts());
    outcome.holds = records.holds.infos();
    records.prune(&request.told, &names);
    Ok(Reply::Done(Box::new(outcome)))
}

/// Removes files of rules that are no longer configured, and copies that belong to no rule. Returns
/// the delay in milliseconds until the next attempt, if something remains.
fn clear(config: &Config, records: &mut Records, names: &BTreeSet<&str>) -> Option<u64> {
    records.remove_strays(names);
    let gone: Vec<String> =
        records.all.keys().filter(|name| !names.contains(name.as_str())).cloned().collect();
    let mut next = None;
    for name in gone {
        let rule = Rule { name, reload: Reload::Nothing, ..Rule::default() };
        let options = Options { look: true, force: true, keep: false, now: now() };
        let ran = Executor::new(&rule, config, records).and_then(|mut executor| {
            executor.run_pass(records, &[], options, false, |pass| pass.apply(&mut |_| None))
        });
        let retry = ran.unwrap_or(Some(CLEAR_RETRY));
        next = [next, retry].into_iter().flatten().min();
    }
    next.map(milliseconds)
}

fn milliseconds(micros: i64) -> u64 {
    u64::try_from(micros / 1000).unwrap_or(0)
}

type ApplyResult = Result<Outcome, RequestError>;

fn apply(
    stream: &mut AgentStream,
    rule: &Rule,
    config: &Config,
    records: &mut Records,
    request: &Request,
    listed: Vec<Listed>,
) -> io::Result<ApplyResult> {
    let mut executor = match Executor::new(rule, config, records) {
        Ok(executor) => executor,
        Err(why) => return Ok(Err(why)),
    };
    let listed = match list_objects(stream, records.all.get(&rule.name), request, listed)? {
        Ok(listed) => listed,
        Err(why) => return Ok(Err(why)),
    };
    let is_check = request.verb == Verb::Check;
    let worked = executor.run_pass(records, &listed, options(request, now()), is_check, |pass| {
        run(stream, pass, &listed, is_check)
    });
    let mut outcome = match worked {
        Ok(done) => done?,
        Err(why) => return Ok(Err(why)),
    };
    let number = list::number(&listed);
    let remembered = records.all.get(&rule.name).map(|record| list::number(&list::last(record)));
    outcome.known = Some(number).filter(|number| remembered == Some(*number));
    Ok(Ok(outcome))
}

/// Returns the objects of a rule in order: those that its record knows, updated by the changes,
/// or the whole list, which the agent is asked for. The inner error is the problem of an object.
fn list_objects(
    stream: &mut (impl Read + Write),
    record: Option<&Record>,
    request: &Request,
    changed: Vec<Listed>,
) -> io::Result<Result<Vec<Listed>, RequestError>> {
    let known = record.zip(request.since).filter(|_| changed.len() <= MAX_CHANGED);
    let known = known.and_then(|(record, number)| list::since(record, number, changed));
    let mut listed = match known.filter(|listed| listed.len() <= MAX_LISTED) {
        Some(listed) => listed,
        None => {
            write_reply(stream, &Reply::Whole)?;
            match read_list(stream)? {
                Ok(listed) => listed,
                Err(why) => return Ok(Err(why)),
            }
        }
    };
    listed.sort_unstable_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
    Ok(Ok(listed))
}

/// Returns the options of a pass.
fn options(request: &Request, now: i64) -> Options {
    let look = request.look || request.verb == Verb::Check;
    Options { look, force: request.force, keep: request.keep, now }
}

/// Requests the bodies that a pass needs, and applies or describes it.
fn run<S: Read + Write, H: Effects>(
    stream: &mut S,
    pass: Pass<'_, H>,
    listed: &[Listed],
    is_check: bool,
) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    let needed = pass.needed();
    let requested = needed.iter().filter_map(|number| listed.get(*number));
    let requested = requested.map(|of| Member { uid: of.uid.clone(), version: of.version.clone() }).collect();
    write_reply(stream, &Reply::Want(requested))?;
    let mut frames = Frames { stream, expected: needed.into_iter(), error: None };
    let mut take = |number: usize| frames.take(number);
    if is_check {
        outcome.plan = pass.plan(&mut take);
    } else {
        let retry = pass.apply(&mut take);
        outcome.retry = retry.map(milliseconds);
    }
    frames.take(usize::MAX);
    frames.error.map_or(Ok(outcome), Err)
}

/// Objects in the order of arrival: only one of them is in memory at a time.
struct Frames<'a, S> {
    stream: &'a mut S,
    expected: std::vec::IntoIter<usize>,
    /// Error that ended the transfer.
    error: Option<io::Error>,
}

impl<S: Read> Frames<'_, S> {
    /// Returns the object with an index, which must increase with each call; none if it has changed
    /// meanwhile.
    fn take(&mut self, number: usize) -> Option<Value> {
        while self.error.is_none() {
            let expected = self.expected.next()?;
            match read_frame(self.stream) {
                Ok(frame) if expected == number => return serde_json::from_slice(&frame).ok(),
                Ok(_) => {}
                Err(error) => self.error = Some(error),
            }
        }
        None
    }
}

/// Returns the wall clock in microseconds since 1970.
pub(super) fn now() -> i64 {
    Timestamp::now().as_microsecond()
}

/// Executes the transaction steps of a rule.
pub(super) struct Executor<'a> {
    rule: &'a Rule,
    pub(super) disk: Disk,
    files: RuleFiles,
    log: Log,
    systemctl: PathBuf,
    phase: Phase,
    gate: Gate<'a>,
    copies: Copies,
}

/// Phases of a transaction: everything written in one phase is flushed before the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Recording,
    Staging,
    Swapping,
    Reloading,
    CleaningUp,
}

/// Number of changes above which file systems are flushed as a whole.
const MAX_SINGLE_FLUSHES: usize = 16;

impl<'a> Executor<'a> {
    pub(super) fn new(rule: &'a Rule, config: &Config, records: &mut Records) -> Result<Self, RequestError> {
        let owner = owner::find(&rule.owner, Path::new("/etc"))?;
        let disk = Disk {
            rule: rule.name.clone(),
            keys: records.keys,
            owner,
            modes: [rule.modes(false), rule.modes(true)],
            max_size: rule.max_size,
            checks: !rule.check.is_empty(),
            batch_flush: false,
            unflushed: RefCell::default(),
            unchecked: RefCell::default(),
            #[cfg(test)]
            fuse: std::rc::Rc::default(),
            #[cfg(test)]
            flushed: None,
        };
        let (files, systemctl) = (records.files(&rule.name), config.helper.systemctl.clone());
        let (holds, clock) = (records.holds.holds().clone(), records.holds.clock());
        let gate = Gate {
            rule,
            holds,
            elapsed: clock.elapsed(),
            is_clock_known: clock.is_known(),
            last_known: clock.last_known(),
            state: records.holds.path().to_owned(),
            stand: files.directory().to_owned(),
            condition: None,
        };
        let (log, phase, copies) = (Log::default(), Phase::Recording, Copies::new(&rule.name, config));
        Ok(Self { rule, disk, files, log, systemctl, phase, gate, copies })
    }

    /// Recovers from a crash, and runs a pass; discards the state of a dry run.
    pub(super) fn run_pass<T>(
        &mut self,
        records: &mut Records,
        listed: &[Listed],
        options: Options,
        is_dry_run: bool,
        pass: impl FnOnce(Pass<'_, Self>) -> T,
    ) -> Result<T, RequestError> {
        let mut record = records.all.remove(&self.rule.name).unwrap_or_default();
        self.log = records.logs.remove(&self.rule.name).unwrap_or_default();
        let (mut options, rule) = (options, self.rule);
        let mut done = Err(RequestError::Interrupted);
        let begun = self.files.read_intent();
        // Places of an interrupted transaction are inspected.
        options.look |= begun.is_some();
        if recover(self, rule, &mut record, begun.as_ref(), options.look) {
            let before = is_dry_run.then(|| (record.clone(), records.seq));
            done = Ok(pass(Pass::begin(self, rule, &mut record, &mut records.seq, listed, options)));
            if let Some((before, seq)) = before {
                (record, records.seq) = (before, seq);
            }
        } else if record.owes_reload {
            record.withhold(&mut records.seq, options.now);
        }
        records.all.insert(rule.name.clone(), record);
        records.logs.insert(rule.name.clone(), std::mem::take(&mut self.log));
        done
    }

    /// Keeps the files in memory of the rule, which is held from now on; first recovers from a
    /// crash.
    pub(super) fn keep_all(&mut self, records: &mut Records) -> Result<(), String> {
        let Some(mut record) = records.all.remove(&self.rule.name) else { return Ok(()) };
        self.log = records.logs.remove(&self.rule.name).unwrap_or_default();
        let begun = self.files.read_intent();
        let rule = self.rule;
        let kept = match recover(self, rule, &mut record, begun.as_ref(), false) {
            true => keep_all(self, &mut record).and_then(|any| match any {
                true => self.commit(&record),
                false => Ok(()),
            }),
            false => Err(Failure::new(RequestError::Interrupted.to_string())),
        };
        records.all.insert(rule.name.clone(), record);
        records.logs.insert(rule.name.clone(), std::mem::take(&mut self.log));
        kept.map_err(|failure| failure.message)
    }

    /// Enters a phase, and flushes the writes of the previous one.
    fn enter(&mut self, phase: Phase) -> Result<(), Failure> {
        if self.phase != phase {
            self.disk.flush().map_err(|error| Failure::new(system_error("flush", "files", error)))?;
        }
        self.phase = phase;
        Ok(())
    }

    /// Prepares for a write to the record or the intent.
    fn begin_record(&mut self) -> Result<(), Failure> {
        self.enter(Phase::Recording)?;
        self.disk.step().map_err(|error| Failure::new(std::io::Error::from(error).to_string()))
    }

    fn failed_with(
        &self,
        what: &str,
        change: &Change,
        result: Result<(), rustix::io::Errno>,
    ) -> Result<(), Failure> {
        result.map_err(|error| Failure::new(system_error(what, &change.place.path(), error)))
    }
}

impl Effects for Executor<'_> {
    fn inspect(
        &mut self,
        place: &Place,
        shape: Shape,
        held: Option<&Held>,
        desired: Option<&Desired>,
    ) -> Result<Observed, Failure> {
        self.disk
            .inspect(place, shape, held, desired)
            .map_err(|error| Failure::new(system_error("inspect", &place.path(), error)))
    }

    fn key(&self, place: &Place) -> (u64, u64) {
        self.disk.key(place)
    }

    fn is_memory(&mut self, place: &Place, shape: Shape) -> bool {
        self.disk.is_memory(place, shape)
    }

    fn intend(&mut self, intent: &Intent) -> Result<(), Failure> {
        self.begin_record()?;
        self.disk.batch_flush = intent.changes.len() > MAX_SINGLE_FLUSHES;
        self.files.write_intent(intent).map_err(|error| Failure::new(chain(&error)))
    }

    fn stage(&mut self, change: &Change, desired: &Desired) -> Result<(), Failure> {
        self.enter(Phase::Staging)?;
        self.failed_with("write", change, self.disk.stage(change, desired))
    }

    fn check(&mut self, changes: &[Change]) -> Result<(), Failure> {
        self.enter(Phase::Reloading)?;
        let written = changes.iter().filter(|change| change.new.is_some());
        let candidate =
            |change: &Change| Candidate { at: self.disk.candidate(change), destination: change.place.path() };
        let candidates: Vec<Candidate> = written.map(candidate).collect();
        match self.rule.check_user {
            CheckUser::Transient => check::in_sandbox(self.rule, &candidates, self.files.directory()),
            CheckUser::Root => check::as_helper(self.rule, &candidates, &self.files.candidates),
        }?;
        changes.iter().try_for_each(|change| {
            self.failed_with("change the owner of", change, self.disk.give_to_owner(change))
        })
    }

    fn swap(&mut self, change: &Change) -> Result<(), Failure> {
        self.enter(Phase::Swapping)?;
        self.failed_with("replace", change, self.disk.swap(change))
    }

    fn restore(&mut self, change: &Change) -> Result<(), Failure> {
        self.enter(Phase::Swapping)?;
        self.failed_with("roll back", change, self.disk.restore(change))
    }

    fn reload(&mut self) -> Result<(), Failure> {
        self.enter(Phase::Reloading)?;
        hook::reload(self.rule, &self.systemctl)
    }

    fn commit(&mut self, record: &Record) -> Result<(), Failure> {
        self.begin_record()?;
        self.files.write_record(&mut self.log, record).map_err(|error| Failure::new(chain(&error)))
    }

    fn discard(&mut self, change: &Change, keep_new: bool) -> Result<(), Failure> {
        self.enter(Phase::CleaningUp)?;
        let discarded = self.failed_with("clean up", change, self.disk.discard(change, keep_new));
        discarded.inspect_err(|failure| {
            tracing::warn!(rule = self.rule.name, error = failure.message, "leftover files not removed");
        })
    }

    fn forget(&mut self) -> Result<(), Failure> {
        self.begin_record()?;
        self.files.remove_intent().map_err(|error| Failure::new(chain(&error)))
    }

    fn closed(&mut self, override_windows: bool) -> Option<Closed> {
        self.gate.closed(override_windows)
    }

    fn keep(&mut self, held: &Held, files: Option<&Files>, is_secret: bool) -> Result<(), Failure> {
        self.begin_record()?;
        let stamp = held.kept.ok_or_else(|| Failure::new("copy without a stamp"))?;
        let read = match files {
            Some(_) => None,
            None => {
                let failed = |error| Failure::new(system_error("copy", &held.place.path(), error));
                Some(self.disk.read(held).map_err(failed)?)
            }
        };
        let Some(files) = files.or(read.as_ref()) else { return Ok(()) };
        self.copies.write(stamp, &held.place, files, is_secret)
    }

    fn revive(&mut self, held: &Held, stamp: u64) -> Result<BTreeMap<String, Digest>, Failure> {
        let kept = held.kept.ok_or_else(|| Failure::new("no copy of the files was kept"))?;
        let (files, is_secret) = self.copies.read(kept, &held.place)?;
        // Its file system in memory may not be mounted yet.
        if is_secret && !self.rule.plain_text_on_disk && !self.is_memory(&held.place, held.shape) {
            return Err(Failure::new(Refusal::OnDisk(held.place.base.clone()).to_string()));
        }
        let desired = Desired { files, is_secret, ..Desired::default() };
        let digests = desired.digests(self.key(&held.place));
        let observed = self.inspect(&held.place, held.shape, None, Some(&desired))?;
        let name = held.place.name();
        // A copy that was interrupted is ours, files of others are not replaced.
        if let Verdict::Conflict(why) =
            verify(held.shape, name, None, Some(&digests), &observed, self.rule.overwrite)
        {
            return Err(Failure::new(why));
        }
        let change = Change {
            place: held.place.clone(),
            shape: held.shape,
            stamp,
            old: None,
            exists: observed.entries.contains_key(name),
            makes: held.made,
            parents: held.parents,
            new: Some(digests.clone()),
        };
        self.stage(&change, &desired)?;
        self.enter(Phase::Reloading)?;
        self.failed_with("change the owner of", &change, self.disk.give_to_owner(&change))?;
        self.swap(&change)?;
        self.enter(Phase::CleaningUp)?;
        // Leftovers block nothing.
        let _ = self.discard(&change, true);
        Ok(digests)
    }

    fn prune(&mut self, record: &Record) {
        self.copies.prune(&record.places.values().filter_map(|held| held.kept).collect());
    }
}

/// Reads lists of objects up to the empty frame; the inner error is the problem of an object. The
/// agent stores no such object, so a list with one is not the agent's.
fn read_list(stream: &mut impl Read) -> io::Result<Result<Vec<Listed>, RequestError>> {
    let (mut listed, mut problem) = (Vec::new(), None);
    loop {
        let frame = read_frame(stream)?;
        if frame.is_empty() {
            return Ok(problem.map_or(Ok(listed), Err));
        }
        for object in serde_json::from_slice::<Vec<Listed>>(&frame)? {
            match object.check() {
                Ok(()) => listed.push(object),
                Err(why) => problem = Some(RequestError::Listed(why)),
            }
        }
        if listed.len() > MAX_LISTED {
            return Err(io::Error::other(format!("more than {MAX_LISTED} objects listed")));
        }
    }
}

fn read_frame(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_FRAME {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut frame = Vec::new();
    stream.take(u64::from(length)).read_to_end(&mut frame)?;
    if frame.len() as u64 == u64::from(length) { Ok(frame) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

fn write_reply(stream: &mut impl Write, reply: &Reply) -> io::Result<()> {
    write_message(stream, reply)
}

/// Writes a message as one frame.
pub(super) fn write_message(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(|_| ErrorKind::InvalidData)?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(&text)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte restarted the time limit, so it had none.
    #[test]
    fn agent_that_drips_has_one_time_limit() {
        let (mut agent, stream) = UnixStream::pair().unwrap();
        let mut stream = AgentStream { stream, left: Duration::from_millis(50) };
        agent.write_all(b"a").unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 1);
        stream.read(&mut [0]).unwrap_err();
        agent.write_all(b"b").unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn agent_that_reads_nothing_has_the_same_time_limit() {
        let (_agent, stream) = UnixStream::pair().unwrap();
        let mut stream = AgentStream { stream, left: Duration::from_millis(50) };
        while let Ok(written) = stream.write(&[0; 4 * MAX_PIECE]) {
            assert!(written <= MAX_PIECE, "{written}");
        }
        assert_eq!(stream.write(&[0]).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
