//! Connections on the socket of holds. Their requests are received at the same time: a program that
//! sends slowly, or nothing, delays no other.

use std::io::{self, ErrorKind, Read as _, Write};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use serde::Serialize;

use super::listen::accept;
use edgesync_files::wire::{HoldReply, HoldRequest};

/// Maximum size of a request in bytes.
pub(super) const MAX_REQUEST: u32 = 4 << 10;
/// Time limit for a request as a whole, and for its reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of connections whose requests are received.
const MAX_CALLERS: usize = 64;
/// Maximum number of these connections of one user.
const MAX_CALLERS_OF_USER: usize = 16;

/// A connection whose request is being received.
#[derive(Debug)]
pub(super) struct Caller {
    stream: UnixStream,
    /// User on the other end.
    pub(super) uid: u32,
    /// When the request has to be complete.
    ends: Instant,
    received: Vec<u8>,
}

impl Caller {
    fn length(&self) -> Option<u32> {
        self.received.first_chunk().copied().map(u32::from_le_bytes)
    }

    /// Returns whether the request has arrived, or is too long.
    fn is_complete(&self) -> bool {
        let is_there = |length: u32| length > MAX_REQUEST || self.received.len() >= 4 + length as usize;
        self.length().is_some_and(is_there)
    }

    /// Receives what has arrived. Returns whether a request may still come.
    fn receive(&mut self) -> bool {
        let mut bytes = [0; 1024];
        while !self.is_complete() {
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => self.received.extend(bytes.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Instant::now() < self.ends,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Returns the request, or why it is none.
    pub(super) fn request(&self) -> Result<HoldRequest, String> {
        let length = self.length().unwrap_or_default();
        if length > MAX_REQUEST {
            return Err(format!("request of {length} bytes: must have at most {MAX_REQUEST}"));
        }
        let text = self.received.get(4..4 + length as usize).unwrap_or_default();
        serde_json::from_slice(text).map_err(|error| format!("invalid request: {error}"))
    }

    pub(super) fn reply(mut self, reply: &HoldReply) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        write_message(&mut self.stream, reply)
    }
}

/// The connections whose requests are being received, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Callers(Vec<Caller>);

impl Callers {
    /// Accepts the connections that wait, as far as there is room. The listener does not block.
    pub(super) fn accept(&mut self, listener: &UnixListener) -> io::Result<()> {
        for _ in self.0.len()..MAX_CALLERS {
            let Some(stream) = accept(listener)? else { break };
            if let Err(error) = self.add(stream) {
                tracing::warn!(%error, "client of holds not served");
            }
        }
        Ok(())
    }

    fn add(&mut self, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let uid = socket_peercred(&stream)?.uid.as_raw();
        let caller = Caller { stream, uid, ends: Instant::now() + REQUEST_TIMEOUT, received: Vec::new() };
        // A complete request does not count: it delays no other.
        self.0.retain_mut(Caller::receive);
        let of_user = self.0.iter().filter(|other| other.uid == uid && !other.is_complete());
        if of_user.count() < MAX_CALLERS_OF_USER {
            self.0.push(caller);
            return Ok(());
        }
        let why = format!(
            "{MAX_CALLERS_OF_USER} requests of user {uid} are in progress, the most; hint: try again"
        );
        caller.reply(&HoldReply::Refused(why))
    }

    /// Returns the oldest connection with a complete request, and drops those that will have none.
    pub(super) fn next_complete(&mut self) -> Option<Caller> {
        self.0.retain_mut(Caller::receive);
        let at = self.0.iter().position(Caller::is_complete)?;
        Some(self.0.remove(at))
    }

    pub(super) fn has_room(&self) -> bool {
        self.0.len() < MAX_CALLERS
    }

    /// Returns the time until the next of them is dropped; `None` without any.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let first = self.0.iter().map(|caller| caller.ends).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|caller| caller.stream.as_fd())
    }
}

/// Writes a message as one frame.
pub(super) fn write_message(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(|_| ErrorKind::InvalidData)?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(&text)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn add(callers: &mut Callers) -> UnixStream {
        let (client, stream) = UnixStream::pair().unwrap();
        callers.add(stream).unwrap();
        client
    }

    fn send(client: &mut UnixStream, request: &HoldRequest) {
        write_message(client, request).unwrap();
    }

    fn reply(client: &mut UnixStream) -> HoldReply {
        let mut length = [0; 4];
        client.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_le_bytes(length) as usize];
        client.read_exact(&mut frame).unwrap();
        serde_json::from_slice(&frame).unwrap()
    }

    /// Each of them delayed all others by two seconds.
    #[test]
    fn silent_and_slow_clients_delay_no_other() {
        let mut callers = Callers::default();
        let (_silent, mut slow, mut other) = (add(&mut callers), add(&mut callers), add(&mut callers));
        let text = serde_json::to_vec(&HoldRequest::Release(7)).unwrap();
        slow.write_all(&u32::try_from(text.len()).unwrap().to_le_bytes()).unwrap();
        slow.write_all(&text[..3]).unwrap();
        assert!(callers.next_complete().is_none());
        send(&mut other, &HoldRequest::List);
        let caller = callers.next_complete().unwrap();
        assert_eq!(caller.request().unwrap(), HoldRequest::List);
        caller.reply(&HoldReply::Done(Vec::new())).unwrap();
        assert_eq!(reply(&mut other), HoldReply::Done(Vec::new()));
        assert!(callers.next_complete().is_none());
        slow.write_all(&text[3..]).unwrap();
        assert_eq!(callers.next_complete().unwrap().request().unwrap(), HoldRequest::Release(7));
        assert_eq!(callers.sockets().count(), 1, "the silent one");
    }

    #[test]
    fn request_has_one_time_limit_as_a_whole() {
        let mut callers = Callers::default();
        let mut client = add(&mut callers);
        client.write_all(&64_u32.to_le_bytes()).unwrap();
        assert!(callers.next_complete().is_none());
        assert!(callers.time_left().is_some_and(|left| left <= REQUEST_TIMEOUT));
        callers.0[0].ends = Instant::now();
        client.write_all(b" ").unwrap();
        assert!(callers.next_complete().is_none());
        assert_eq!((callers.time_left(), client.read(&mut [0]).unwrap()), (None, 0));
    }

    #[test]
    fn invalid_request_is_refused_with_a_sentence() {
        let mut callers = Callers::default();
        let why = "x".repeat(5000);
        send(&mut add(&mut callers), &HoldRequest::Hold { rule: "r".to_owned(), seconds: 1, why });
        let refused = callers.next_complete().unwrap().request().unwrap_err();
        assert!(refused.ends_with(" bytes: must have at most 4096"), "{refused}");
        write_message(&mut add(&mut callers), &7).unwrap();
        let refused = callers.next_complete().unwrap().request().unwrap_err();
        assert!(refused.starts_with("invalid request: "), "{refused}");
    }

    /// They were refused while the helper was busy with another request.
    #[test]
    fn complete_requests_are_not_limited_by_user() {
        let mut callers = Callers::default();
        let mut clients = Vec::new();
        for _ in 0..MAX_CALLERS_OF_USER + 4 {
            let mut client = add(&mut callers);
            send(&mut client, &HoldRequest::List);
            clients.push(client);
        }
        let served = std::iter::from_fn(|| callers.next_complete()).count();
        assert_eq!(served, clients.len());
    }

    #[test]
    fn connections_of_a_user_are_limited() {
        let mut callers = Callers::default();
        let clients: Vec<UnixStream> = (0..MAX_CALLERS_OF_USER).map(|_| add(&mut callers)).collect();
        let HoldReply::Refused(why) = reply(&mut add(&mut callers)) else { panic!("not refused") };
        assert!(why.starts_with("16 requests of user ") && why.contains("the most"), "{why}");
        assert!(callers.has_room() && callers.sockets().count() == clients.len());
        drop(clients);
        assert!(callers.next_complete().is_none());
        send(&mut add(&mut callers), &HoldRequest::List);
        assert!(callers.next_complete().is_some());
    }
}
