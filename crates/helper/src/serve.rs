//! Serial request loop: loads the configuration, runs a pass, replies.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use socket2::SockRef;

use super::callers::{Caller, Callers, write_message};
use super::executor::{Executor, RequestError};
use super::listen::accept;
use super::records::Records;
use super::{HelperError, holds, now, rules};
use edgesync_config::edge::Config;
use edgesync_files::list;
use edgesync_files::pass::{Options, Pass};
use edgesync_files::rule::Reload;
use edgesync_files::wire::{
    HoldReply, Listed, MAX_CHANGED, MAX_FRAME, MAX_LISTED, Outcome, Reply, Request, Verb,
};
use edgesync_files::{Effects, Member, Record, Rule};
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
