//! One item of a frame: its messages and the meaning of their answers.

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
use node::{NodeConditions, NodeTask, NodeWrite};
use status::StatusTask;

/// The number of attempts before the dynamic controller's silence counts as a refusal.
const MAX_ATTEMPTS: u32 = 3;
/// The longest message of a refused item, in bytes.
const MAX_MESSAGE: usize = 256;

/// The reason why an item has no effect.
pub(super) type Refusal = (RefusedReason, String);

/// The state of an item.
#[derive(Debug)]
pub(super) enum State {
    /// Ready to be sent.
    Ready,
    /// Waiting for the answer to this message.
    Answer(MessageId),
    /// Waiting for the pong to this ping, or to a later one.
    Pong(u64),
    /// Settled, with the refusal if there was one.
    Settled(Option<Refusal>),
}

/// The request of an item.
#[derive(Debug)]
enum Task {
    Node(Box<NodeTask>),
    Event(Box<EventTask>),
    Status(StatusTask),
}

/// The next step after an answer.
#[derive(Debug)]
pub(super) enum Next {
    Settled(Option<Refusal>),
    /// Send again after the timeout.
    Later,
    /// Send the next message at once.
    Now,
}

/// The identity and version of an object in an answer.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) uid: String,
    pub(super) version: String,
}

/// One item in flight.
#[derive(Debug)]
pub(super) struct Item {
    /// `None` if the item is unreadable.
    task: Option<Task>,
    pub(super) state: State,
    /// The number of sends since the last readable answer.
    pub(super) sent: u32,
}

impl Item {
    /// Reads an item. `registered` means that the Node exists.
    pub(super) fn read(
        content: &str,
        config: &BridgeConfig,
        wall: i64,
        received: &NodeConditions,
        registered: bool,
    ) -> Self {
        let task = match serde_json::from_str::<Content<'_>>(content) {
            Ok(Content::Node(report)) => {
                NodeTask::read(report.get(), &config.node, wall, received, registered)
                    .map(Box::new)
                    .map(Task::Node)
            }
            Ok(Content::Event(event)) => {
                EventTask::read(event.get(), &config.node).map(Box::new).map(Task::Event)
            }
            Ok(Content::Status(status)) => status::read(&status, &config.node).map(Task::Status),
            // CloudCore has no effects; the Events report them.
            Ok(Content::Effect(_)) => return Self { task: None, state: State::Settled(None), sent: 0 },
            Err(error) => Err(invalid(format!("parse: {error}"))),
        };
        let (task, state) = match task {
            Ok(task) => (Some(task), State::Ready),
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

    /// Returns whether CloudCore answers the item.
    pub(super) fn is_answered(&self) -> bool {
        !matches!(self.task, Some(Task::Event(_)))
    }

    pub(super) fn is_next_of_event(&self) -> bool {
        !self.is_answered() && matches!(self.state, State::Ready)
    }

    /// Returns the next message; `None` for an unreadable item.
    pub(super) fn draft(&self) -> Option<Draft<'_>> {
        Some(match self.task.as_ref()? {
            Task::Node(node) => node.draft(),
            Task::Event(event) => event.draft(),
            Task::Status(status) => status.draft(),
        })
    }

    /// Sends the next message. An Event requires a ping after it.
    pub(super) fn send(&mut self, outbound: &mut Outbound) {
        let Some(id) = self.draft().map(|draft| outbound.send(&draft)) else { return };
        self.sent = self.sent.saturating_add(1);
        if self.is_answered() {
            self.state = State::Answer(id);
        }
    }

    /// Handles a pong: everything sent before this ping was read.
    pub(super) fn was_read(&mut self, number: u64) {
        let Some(Task::Event(event)) = &mut self.task else { return };
        if matches!(self.state, State::Pong(ping) if ping <= number) {
            self.state = if event.advance() { State::Ready } else { State::Settled(None) };
        }
    }

    fn is_custom(&self) -> bool {
        matches!(self.task, Some(Task::Status(StatusTask::Custom { .. })))
    }

    /// Gives up on a silent dynamic controller: a disabled one never answers.
    pub(super) fn give_up_if_silent(&mut self) {
        if self.is_custom() && !self.is_settled() && self.sent >= MAX_ATTEMPTS {
            let message = "the dynamic controller of CloudCore does not answer: it is needed for the status of \
                           custom resources, and off by default";
            self.state = State::Settled(Some((RefusedReason::Other, message.to_owned())));
        }
    }

    /// Returns the meaning of the answer to the last message, and the identity of the Node if the
    /// answer contains it.
    pub(super) fn answered(&mut self, incoming: &Incoming<'_>) -> (Next, Option<Identity>) {
        let is_custom = self.is_custom();
        let answer = incoming.content.and_then(if is_custom { applied } else { written });
        let Some(answer) = answer else { return (unreadable(incoming.content), None) };
        self.sent = 0;
        match (&mut self.task, answer) {
            (_, Err(failure)) if is_transient(&failure, is_custom) => (Next::Later, None),
            (Some(Task::Node(_)), Ok(Some(identity))) => (Next::Settled(None), Some(identity)),
            // The Node was created, but not with all of its labels.
            (Some(Task::Node(node)), Ok(None)) => (node.switch_to(NodeWrite::Patch), None),
            (Some(Task::Node(node)), Err(failure)) => (node.failed(&failure), None),
            (_, Ok(_)) => (Next::Settled(None), None),
            (_, Err(failure)) => (refuse(status::refusal(&failure)), None),
        }
    }

    /// Returns the refusal of the item, if it was refused.
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

/// Returns the text of a failure; some have none.
pub(super) fn failure_text(failure: &Failure) -> String {
    match (failure.message.as_str(), failure.reason.as_str()) {
        ("", "") => format!("refused with code {}", failure.code),
        ("", reason) => reason.to_owned(),
        (message, _) => message.to_owned(),
    }
}

/// Returns whether the same request may succeed later: the API server is unreachable or busy. An
/// error without a Status is one of CloudCore's connection, but for the dynamic controller possibly
/// one of the request.
fn is_transient(failure: &Failure, is_custom: bool) -> bool {
    match failure.code {
        0 => !is_custom,
        code => matches!(code, 408 | 429 | 500..),
    }
}

/// The result of a write: the object's identity, if the answer has one.
type Answer = Result<Option<Identity>, Failure>;

/// Parses `{"Object", "Err"}` of a write.
fn written(content: &RawValue) -> Option<Answer> {
    let outcome = message::outcome(content)?;
    if let Some(failure) = outcome.error {
        return Some(Err(failure));
    }
    let head: Head<'_> = serde_json::from_str(outcome.object?.get()).ok()?;
    let (uid, version) = (head.metadata.uid.into_owned(), head.metadata.resource_version.into_owned());
    Some(Ok((!uid.is_empty()).then_some(Identity { uid, version })))
}

/// Parses the answer of the dynamic controller.
fn applied(content: &RawValue) -> Option<Answer> {
    Some(match application::response(content)? {
        Response::Approved { .. } => Ok(None),
        Response::Refused(failure) => Err(failure),
    })
}

/// CloudCore reports an unreadable request as text; anything else unreadable may succeed next time.
fn unreadable(content: Option<&RawValue>) -> Next {
    match content.and_then(|content| serde_json::from_str::<String>(content.get()).ok()) {
        Some(failure_text) => refuse(invalid(failure_text)),
        None => Next::Later,
    }
}
