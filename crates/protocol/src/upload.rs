//! What a node sends up beside its reports: the Lease, and items of its outbox.
//!
//! An outbox has three lanes. Within a lane items are numbered, sent in that order, one frame at a time, and
//! confirmed up to a number: the cloud keeps for each node the last number whose effect is stored, in the
//! transaction of the effect. So an item takes effect once however often it is sent, and the order within a lane,
//! and with it for each key, is kept. [`Taken::accept`] is that rule; both the cloud's store and the simulation
//! run it.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::change::{ObjectRef, Uid};
use edgesync_object::ResourceVersion;

/// The largest number of an item: every JSON reader is exact up to here.
pub const MAX_SEQ: u64 = 1 << 53;
/// The longest id of an outbox, in bytes.
const MAX_OUTBOX_ID: usize = 64;
/// The longest message of an [`EffectContent`], in bytes.
pub const MAX_EFFECT_MESSAGE: usize = 1024;
/// The longest name of a rule in an [`EffectContent`], in bytes.
pub(crate) const MAX_EFFECT_RULE: usize = 128;
/// The longest version in an [`EffectContent`], in bytes: as in reports.
const MAX_EFFECT_VERSION: usize = 128;

/// What is sent before what: status before Events before everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// The Node, the status of objects, what is in effect, what was dropped.
    Status,
    /// Events of the agent.
    Events,
    /// Events of programs on the device.
    Bulk,
    /// A lane that this version does not know. Nothing is ever in it.
    #[serde(other)]
    Other,
}

impl Lane {
    /// All lanes that this version knows, the most important one first.
    pub const ALL: [Self; 3] = [Self::Status, Self::Events, Self::Bulk];

    /// The name, as in frames and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Events => "events",
            Self::Bulk => "bulk",
            Self::Other => "other",
        }
    }

    /// The place in [`Lane::ALL`]; behind them all for a lane that is not in it.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A number for each lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lanes {
    /// Of [`Lane::Status`].
    #[serde(default)]
    pub status: u64,
    /// Of [`Lane::Events`].
    #[serde(default)]
    pub events: u64,
    /// Of [`Lane::Bulk`].
    #[serde(default)]
    pub bulk: u64,
}

impl Lanes {
    /// The number of a lane.
    #[must_use]
    pub fn get(&self, lane: Lane) -> u64 {
        match lane {
            Lane::Status => self.status,
            Lane::Events => self.events,
            Lane::Bulk => self.bulk,
            Lane::Other => 0,
        }
    }

    /// Sets the number of a lane.
    pub fn set(&mut self, lane: Lane, number: u64) {
        match lane {
            Lane::Status => self.status = number,
            Lane::Events => self.events = number,
            Lane::Bulk => self.bulk = number,
            Lane::Other => {}
        }
    }
}

/// How far the outbox of a node has taken effect: what the cloud keeps of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The outbox that the numbers are of; empty if none has sent anything yet.
    pub outbox: String,
    /// The last numbers that have taken effect, or were refused.
    pub last: Lanes,
}

impl Taken {
    /// Whether an item is to take effect now; notes that it has. To be asked once for each item of an
    /// [`Upload`], in its order, after [`Taken::begin`].
    pub fn accept(&mut self, lane: Lane, seq: u64) -> bool {
        let is_new = seq > self.last.get(lane);
        if is_new {
            self.last.set(lane, seq);
        }
        is_new
    }

    /// Begins a frame: of another outbox than before the numbers mean nothing; and what the node knows to be
    /// confirmed was confirmed, even if this store is an older copy that has forgotten it.
    pub fn begin(&mut self, outbox: &str, lane: Lane, confirmed: u64) {
        if self.outbox != outbox {
            *self = Self { outbox: outbox.to_owned(), last: Lanes::default() };
        }
        self.last.set(lane, self.last.get(lane).max(confirmed));
    }
}

/// The node lives: renews its Lease `kube-node-lease/<node>`. At most 150 bytes as a frame for a session id of 8
/// letters. Never queued and never repeated: only the latest matters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The session.
    pub session: String,
    /// How long the Lease is good without renewal, in seconds.
    pub seconds: u32,
    /// When this run of the agent acquired it: Unix time in microseconds, by the node's clock.
    pub acquired: i64,
    /// When it was renewed: Unix time in microseconds, by the node's clock.
    pub renewed: i64,
}

/// Items of one lane, in order. Without items it asks where the lanes stand.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Upload {
    /// The session.
    pub session: String,
    /// The outbox: random, made with it. Numbers of another one mean nothing.
    pub outbox: String,
    /// The lane.
    pub lane: Lane,
    /// The last number of the lane that the cloud has confirmed.
    pub confirmed: u64,
    /// The items that follow, by number; numbers may be left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<UploadItem>,
}

impl Upload {
    /// Whether the numbers and the id are such that they can be kept.
    pub(super) fn is_sane(&self) -> bool {
        let is_number = |seq: u64| seq <= MAX_SEQ;
        (1..=MAX_OUTBOX_ID).contains(&self.outbox.len())
            && is_number(self.confirmed)
            && self.items.iter().all(|item| is_number(item.seq))
    }
}

/// An item of the outbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UploadItem {
    /// Its number in the lane, from one.
    pub seq: u64,
    /// A [`Content`] as JSON text.
    pub content: Box<RawValue>,
}

/// What an item says.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Content<'a> {
    /// What the node says of itself: a [`crate::node::NodeReport`].
    Node(&'a RawValue),
    /// The status of an object that the node holds.
    Status(StatusContent<'a>),
    /// An `events.k8s.io/v1` Event that was made on the node.
    Event(&'a RawValue),
    /// Which version of an object is in effect on the node.
    Effect(EffectContent),
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    /// Reads the field that this version knows, whatever a later one has put beside it.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            #[serde(borrow)]
            node: Option<&'a RawValue>,
            #[serde(borrow)]
            status: Option<StatusContent<'a>>,
            #[serde(borrow)]
            event: Option<&'a RawValue>,
            effect: Option<EffectContent>,
        }
        let Fields { node, status, event, effect } = Fields::deserialize(deserializer)?;
        match (node, status, event, effect) {
            (Some(report), None, None, None) => Ok(Self::Node(report)),
            (None, Some(status), None, None) => Ok(Self::Status(status)),
            (None, None, Some(event), None) => Ok(Self::Event(event)),
            (None, None, None, Some(effect)) => Ok(Self::Effect(effect)),
            _ => {
                Err(D::Error::custom("it must have one of the fields `node`, `status`, `event` and `effect`"))
            }
        }
    }
}

/// The status of an object that the node holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusContent<'a> {
    /// The UID of the object that it is about: of no other one.
    pub uid: Uid,
    /// Which object that is.
    pub object: ObjectRef,
    /// The value of the field `status`.
    #[serde(borrow)]
    pub status: &'a RawValue,
}

/// How an object that rules for files concern stands on the node: what the programs there work with. The newest one of
/// an object counts alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectContent {
    /// The UID of the object that it is about: of no other one.
    pub uid: Uid,
    /// Which object that is.
    pub object: ObjectRef,
    /// The version that is in effect; none if no version is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ResourceVersion>,
    /// The version that was tried last; the one in effect if all is well.
    pub wanted: ResourceVersion,
    /// How it stands.
    pub state: EffectState,
    /// The rule that decides: of several that concern the object the one where it stands worst. At most
    /// [`MAX_EFFECT_RULE`] bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Why it is not in effect, for people; at most [`MAX_EFFECT_MESSAGE`] bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when it stands so: Unix time in microseconds, by the node's clock.
    pub since: i64,
}

/// How an object stands with the rules that concern it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EffectState {
    /// The version that the node holds is in effect.
    InEffect,
    /// It is not: it was not accepted, or could not be written. An older one may be in effect.
    NotInEffect,
    /// It is not, because somebody else has what is to be written.
    Conflict,
    /// No rule concerns the object any more, or the node does not hold it any more: nothing is to be said of it.
    Gone,
    /// A state that this version does not know: not in effect.
    #[serde(other)]
    Other,
}

impl EffectState {
    /// The name, as in frames and objects.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InEffect => "InEffect",
            Self::NotInEffect => "NotInEffect",
            Self::Conflict => "Conflict",
            Self::Gone => "Gone",
            Self::Other => "Other",
        }
    }
}

impl EffectContent {
    /// Whether it is within the limits and says nothing that cannot be: what is in effect has a version, the one
    /// that is wanted.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        let is_version =
            |version: &ResourceVersion| (1..=MAX_EFFECT_VERSION).contains(&version.as_str().len());
        let agrees = self.state != EffectState::InEffect || self.version.as_ref() == Some(&self.wanted);
        agrees
            && self.version.as_ref().is_none_or(is_version)
            && (is_version(&self.wanted) || self.state == EffectState::Gone)
            && self.rule.len() <= MAX_EFFECT_RULE
            && self.message.len() <= MAX_EFFECT_MESSAGE
    }
}

/// The effect of everything up to these numbers is stored, or it was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadConfirm {
    /// The session.
    pub session: String,
    /// The outbox that the numbers are of.
    pub outbox: String,
    /// The last numbers.
    pub last: Lanes,
    /// Items of the frame that this answers that have no effect and never will.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
}

/// An item that has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Its number.
    pub seq: u64,
    /// Why, for programs.
    pub reason: RefusedReason,
    /// Why, for people; at most 256 bytes.
    pub message: String,
}

/// Why an item has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusedReason {
    /// It cannot be read, or is not valid.
    Invalid,
    /// The object is gone.
    Gone,
    /// Another object has taken the name.
    Recreated,
    /// The object does not belong on this node.
    NotPlaced,
    /// A reason that this version does not know.
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn last(taken: &Taken) -> [u64; 3] {
        Lane::ALL.map(|lane| taken.last.get(lane))
    }

    #[test]
    fn an_item_takes_effect_once_and_numbers_may_be_left_out() {
        let mut taken = Taken::default();
        taken.begin("a", Lane::Events, 0);
        let accepted = [1, 2, 5, 5, 3, 6].map(|seq| taken.accept(Lane::Events, seq));
        assert_eq!(accepted, [true, true, true, false, false, true]);
        assert!(taken.accept(Lane::Status, 1), "each lane counts for itself");
        assert_eq!(last(&taken), [1, 6, 0]);
    }

    #[test]
    fn numbers_of_another_outbox_mean_nothing() {
        let mut taken = Taken { outbox: "a".into(), last: Lanes { status: 7, events: 8, bulk: 9 } };
        taken.begin("b", Lane::Events, 3);
        assert_eq!((taken.outbox.as_str(), last(&taken)), ("b", [0, 3, 0]));
        taken.begin("b", Lane::Status, 1);
        assert_eq!(last(&taken), [1, 3, 0]);
    }

    #[test]
    fn what_the_node_knows_to_be_confirmed_is_so_even_if_the_store_is_an_older_copy() {
        let mut taken = Taken { outbox: "a".into(), last: Lanes { status: 3, events: 8, bulk: 0 } };
        taken.begin("a", Lane::Status, 5);
        taken.begin("a", Lane::Events, 5);
        assert_eq!(last(&taken), [5, 8, 0]);
        assert!(!taken.accept(Lane::Status, 5) && taken.accept(Lane::Status, 6));
    }

    #[test]
    fn an_upload_is_sane_within_the_limits_only() {
        let upload = |outbox: &str, confirmed, seq| Upload {
            session: String::new(),
            outbox: outbox.into(),
            lane: Lane::Bulk,
            confirmed,
            items: vec![UploadItem { seq, content: RawValue::from_string("1".into()).unwrap() }],
        };
        assert!(upload(&"x".repeat(MAX_OUTBOX_ID), MAX_SEQ, MAX_SEQ).is_sane());
        assert!(!upload(&"x".repeat(MAX_OUTBOX_ID + 1), 0, 1).is_sane());
        assert!(!upload("", 0, 1).is_sane());
        assert!(!upload("x", MAX_SEQ + 1, 1).is_sane());
        assert!(!upload("x", 0, MAX_SEQ + 1).is_sane());
    }

    #[test]
    fn content_survives_as_it_is_written() {
        let texts = [
            r#"{"node":{"labels":{"a":"b"},"status":{"capacity":{"memory":"1Gi"}}}}"#,
            r#"{"status":{"uid":"u","object":{"apiVersion":"v1","kind":"Pod","namespace":"n","name":"p"},"status":{"phase":"Running","n":1.0}}}"#,
            r#"{"event":{"metadata":{"name":"e"},"note":"a \"quoted\" word"}}"#,
            r#"{"effect":{"uid":"u","object":{"apiVersion":"v1","kind":"ConfigMap","namespace":"n","name":"c"},"version":"41","wanted":"42","state":"NotInEffect","rule":"nginx","message":"exit code 1","since":1700000000000000}}"#,
            r#"{"effect":{"uid":"u","object":{"apiVersion":"v1","kind":"ConfigMap","name":"c"},"wanted":"42","state":"Conflict","since":-1}}"#,
        ];
        for text in texts {
            let content: Content<'_> = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&content).unwrap(), text);
        }
        let Ok(Content::Status(status)) = serde_json::from_str(texts[1]) else { panic!("must be a status") };
        assert_eq!((&*status.uid, status.status.get()), ("u", r#"{"phase":"Running","n":1.0}"#));
        assert!(serde_json::from_str::<Content<'_>>(r#"{"secret":{}}"#).is_err());
        let later = r#"{"effect":{"uid":"u","later":[1],"object":{"apiVersion":"v1","kind":"Pod","name":"p","later":1},"wanted":"1","state":"Later","since":1},"later":{}}"#;
        assert!(
            matches!(serde_json::from_str(later), Ok(Content::Effect(_))),
            "whatever a later version adds"
        );
        let two = r#"{"event":{},"node":{}}"#;
        assert!(serde_json::from_str::<Content<'_>>(two).is_err());
    }

    fn effect() -> EffectContent {
        let text = |text: &str| text.into();
        EffectContent {
            uid: text("u"),
            object: ObjectRef {
                api_version: text("v1"),
                kind: text("ConfigMap"),
                namespace: text("n"),
                name: text("c"),
            },
            version: Some(ResourceVersion::from(41)),
            wanted: ResourceVersion::from(41),
            state: EffectState::InEffect,
            rule: "nginx".into(),
            message: String::new(),
            since: 1,
        }
    }

    #[test]
    fn what_is_in_effect_has_the_version_that_is_wanted_and_all_is_within_limits() {
        let sane = |change: &dyn Fn(&mut EffectContent)| {
            let mut content = effect();
            change(&mut content);
            content.is_sane()
        };
        assert!(sane(&|_| {}));
        assert!(!sane(&|content| content.version = None), "nothing is in effect without a version");
        assert!(!sane(&|content| content.wanted = ResourceVersion::from(42)), "another one is wanted");
        assert!(sane(&|content| (content.state, content.version) = (EffectState::Conflict, None)));
        assert!(!sane(&|content| (content.state, content.wanted) = (EffectState::Conflict, "".into())));
        let gone = |content: &mut EffectContent| {
            (content.state, content.version, content.wanted) = (EffectState::Gone, None, "".into());
        };
        assert!(sane(&gone), "of what is gone nothing is wanted");
        assert!(sane(&|content| content.message = "x".repeat(MAX_EFFECT_MESSAGE)));
        assert!(!sane(&|content| content.message = "x".repeat(MAX_EFFECT_MESSAGE + 1)));
        assert!(sane(&|content| content.rule = "x".repeat(MAX_EFFECT_RULE)));
        assert!(!sane(&|content| content.rule = "x".repeat(MAX_EFFECT_RULE + 1)));
        let long = ResourceVersion::from(&*"9".repeat(MAX_EFFECT_VERSION + 1));
        assert!(!sane(&|content| {
            (content.version, content.wanted) = (Some(long.clone()), long.clone());
        }));
    }

    #[test]
    fn a_state_of_a_later_version_is_read_as_another_one_and_names_are_those_in_frames() {
        let states =
            [EffectState::InEffect, EffectState::NotInEffect, EffectState::Conflict, EffectState::Gone];
        for state in states {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
        assert_eq!(serde_json::from_str::<EffectState>("\"Tried\"").unwrap(), EffectState::Other);
        assert!(states.iter().all(|state| *state < EffectState::Other), "the worse the larger, but for Gone");
    }

    #[test]
    fn the_names_of_lanes_are_those_in_frames() {
        for (at, lane) in Lane::ALL.into_iter().enumerate() {
            assert_eq!(serde_json::to_value(lane).unwrap(), lane.name());
            assert_eq!(lane.index(), at);
        }
    }

    proptest! {
        /// However often and in whatever pieces the items are sent, each takes effect once and in order.
        #[test]
        fn repeated_and_overlapping_frames_have_each_effect_once(
            frames in prop::collection::vec((0u64..20, 1u64..10), 1..30),
        ) {
            let (mut taken, mut effects, mut sent) = (Taken::default(), Vec::new(), 0);
            for (start, length) in frames {
                // A node goes on at most after what it has sent.
                let start = start.min(sent);
                taken.begin("a", Lane::Bulk, 0);
                effects.extend((start + 1..=start + length).filter(|seq| taken.accept(Lane::Bulk, *seq)));
                sent = sent.max(start + length);
            }
            prop_assert_eq!(effects, (1..=sent).collect::<Vec<_>>());
        }

        #[test]
        fn no_text_makes_the_content_panic(text in ".{0,200}") {
            let _ = serde_json::from_str::<Content<'_>>(&text);
        }
    }
}
