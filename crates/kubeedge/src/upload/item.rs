//! One item of a frame: what is sent for it, and what its answer means.

mod event;
pub(super) mod node;
mod status;

use serde_json::value::RawValue;

use crate::application::{self, Response};
use crate::message::MessageId;
use crate::message::{self, Draft, Failure, Incoming};
use crate::outbound::Outbound;
use crate::types::BridgeConfig;
use edgesync_object::Head;
use edgesync_protocol::upload::{Content, Refused, RefusedReason};
use event::EventTask;
use node::{NodeTask, Seen, Way};
use status::StatusTask;

/// So often the dynamic controller is asked before its silence is taken for an answer.
const MAX_ASKED: u32 = 3;
/// The longest message of a refused item, in bytes.
const MAX_MESSAGE: usize = 256;

/// Why an item has no effect.
pub(super) type Refusal = (RefusedReason, String);

/// Where an item stands.
#[derive(Debug)]
pub(super) enum State {
    /// It is to be sent.
    Turn,
    /// It waits for the answer to this message.
    Answer(MessageId),
    /// It waits for the pong to this ping, or to a later one.
    Pong(u64),
    /// It is settled; if it was refused, that is why.
    Settled(Option<Refusal>),
}

/// What an item asks for.
#[derive(Debug)]
enum Task {
    Node(Box<NodeTask>),
    Event(Box<EventTask>),
    Status(StatusTask),
}

/// What is to be done after an answer.
#[derive(Debug)]
pub(super) enum Next {
    Settled(Option<Refusal>),
    /// It is sent again when it is time.
    Later,
    /// The next message is sent at once.
    Now,
}

/// The identity and version that an answer tells of an object.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) uid: String,
    pub(super) version: String,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Item {
    /// None if it cannot be read.
    task: Option<Task>,
    pub(super) state: State,
    /// How often it was sent since an answer to it could be read last.
    pub(super) sent: u32,
}

impl Item {
    /// Reads an item. `registered` tells that there is a Node.
    pub(super) fn read(
        content: &str,
        config: &BridgeConfig,
        wall: i64,
        seen: &Seen,
        registered: bool,
    ) -> Self {
        let task = match serde_json::from_str::<Content<'_>>(content) {
            Ok(Content::Node(report)) => NodeTask::read(report.get(), &config.node, wall, seen, registered)
                .map(Box::new)
                .map(Task::Node),
            Ok(Content::Event(event)) => {
                EventTask::read(event.get(), &config.node).map(Box::new).map(Task::Event)
            }
            Ok(Content::Status(status)) => status::read(&status, &config.node).map(Task::Status),
            // CloudCore knows nothing of that; the Events tell.
            Ok(Content::Effect(_)) => return Self { task: None, state: State::Settled(None), sent: 0 },
            Err(error) => Err(invalid(format!("it cannot be read: {error}"))),
        };
        let (task, state) = match task {
            Ok(task) => (Some(task), State::Turn),
            Err(refusal) => (None, State::Settled(Some(refusal))),
        };
        Self { task, state, sent: 0 }
    }

    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, State::Settled(_))
    }

    pub(super) fn waits_for(&self, id: MessageId) -> bool {
        matches!(self.state, State::Answer(waits) if waits == id)
    }

    /// Whether CloudCore answers it.
    pub(super) fn is_answered(&self) -> bool {
        !matches!(self.task, Some(Task::Event(_)))
    }

    pub(super) fn is_next_of_event(&self) -> bool {
        !self.is_answered() && matches!(self.state, State::Turn)
    }

    /// The message that is to be sent next; none for what cannot be read.
    pub(super) fn draft(&self) -> Option<Draft<'_>> {
        Some(match self.task.as_ref()? {
            Task::Node(node) => node.draft(),
            Task::Event(event) => event.draft(),
            Task::Status(status) => status.draft(),
        })
    }

    /// Sends it. Behind an Event a ping is to follow.
    pub(super) fn send(&mut self, outbound: &mut Outbound) {
        let Some(id) = self.draft().map(|draft| outbound.send(&draft)) else { return };
        self.sent = self.sent.saturating_add(1);
        if self.is_answered() {
            self.state = State::Answer(id);
        }
    }

    /// Everything sent before this ping was read.
    pub(super) fn was_read(&mut self, number: u64) {
        let Some(Task::Event(event)) = &mut self.task else { return };
        if matches!(self.state, State::Pong(ping) if ping <= number) {
            self.state = if event.advance() { State::Turn } else { State::Settled(None) };
        }
    }

    fn is_custom(&self) -> bool {
        matches!(self.task, Some(Task::Status(StatusTask::Custom { .. })))
    }

    /// A dynamic controller that is switched off says nothing.
    pub(super) fn give_up_if_silent(&mut self) {
        if self.is_custom() && !self.is_settled() && self.sent >= MAX_ASKED {
            let message = "the dynamic controller of CloudCore does not answer: it is needed for the status of \
                           custom resources, and off by default";
            self.state = State::Settled(Some((RefusedReason::Other, message.to_owned())));
        }
    }

    /// What the answer to the last message means. Gives the identity of the Node if it tells that.
    pub(super) fn answered(&mut self, incoming: &Incoming<'_>) -> (Next, Option<Identity>) {
        let is_custom = self.is_custom();
        let answer = incoming.content.and_then(if is_custom { applied } else { written });
        let Some(answer) = answer else { return (unreadable(incoming.content), None) };
        self.sent = 0;
        match (&mut self.task, answer) {
            (_, Err(failure)) if is_transient(&failure, is_custom) => (Next::Later, None),
            (Some(Task::Node(_)), Ok(Some(identity))) => (Next::Settled(None), Some(identity)),
            // It was made, but not with all of its labels.
            (Some(Task::Node(node)), Ok(None)) => (node.turn_to(Way::Patch), None),
            (Some(Task::Node(node)), Err(failure)) => (node.failed(&failure), None),
            (_, Ok(_)) => (Next::Settled(None), None),
            (_, Err(failure)) => (refuse(status::refusal(&failure)), None),
        }
    }

    /// The item as one that was refused, if it was.
    pub(super) fn refused(self, seq: u64) -> Option<Refused> {
        let State::Settled(Some((reason, mut message))) = self.state else { return None };
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Some(Refused { seq, reason, message })
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Refusal {
    (RefusedReason::Invalid, message.into())
}

pub(super) fn refuse(refusal: Refusal) -> Next {
    Next::Settled(Some(refusal))
}

/// The words of a failure; some have none.
pub(super) fn words(failure: &Failure) -> String {
    match (failure.message.as_str(), failure.reason.as_str()) {
        ("", "") => format!("refused with code {}", failure.code),
        ("", reason) => reason.to_owned(),
        (message, _) => message.to_owned(),
    }
}

/// Whether the same may succeed later: the API server was not reached, or has no time. An error that is no Status is
/// one of CloudCore's connection to it, but of the dynamic controller also one of the request.
fn is_transient(failure: &Failure, is_custom: bool) -> bool {
    match failure.code {
        0 => !is_custom,
        code => matches!(code, 408 | 429 | 500..),
    }
}

/// What an answer to a write says; the identity of the object if it has one.
type Answer = Result<Option<Identity>, Failure>;

/// Reads `{"Object", "Err"}`.
fn written(content: &RawValue) -> Option<Answer> {
    let outcome = message::outcome(content)?;
    if let Some(failure) = outcome.error {
        return Some(Err(failure));
    }
    let head: Head<'_> = serde_json::from_str(outcome.object?.get()).ok()?;
    let (uid, version) = (head.metadata.uid.into_owned(), head.metadata.resource_version.into_owned());
    Some(Ok((!uid.is_empty()).then_some(Identity { uid, version })))
}

/// Reads the answer of the dynamic controller.
fn applied(content: &RawValue) -> Option<Answer> {
    Some(match application::response(content)? {
        Response::Approved { .. } => Ok(None),
        Response::Refused(failure) => Err(failure),
    })
}

/// CloudCore says in words that it cannot read what it was sent; all else that is no answer may be one the next time.
fn unreadable(content: Option<&RawValue>) -> Next {
    match content.and_then(|content| serde_json::from_str::<String>(content.get()).ok()) {
        Some(words) => refuse(invalid(words)),
        None => Next::Later,
    }
}
