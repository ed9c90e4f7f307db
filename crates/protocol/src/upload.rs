//! Frames that a node uploads beside its reports: items of its outbox.
//!
//! An outbox has three lanes. The items of a lane are numbered, sent in that order, one frame at a
//! time, and confirmed up to a number. For each node, the cloud stores the last number whose effect
//! is stored, in the transaction of the effect. An item therefore takes effect once, however often
//! it is sent, and each lane keeps its order. [`IngestCursor::accept`] is that rule; the cloud's
//! store and the simulation both run it.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::change::{ObjectRef, Uid};
use edgesync_object::name::{self, Problem};
use edgesync_object::{Budget, ObjectKey, ResourceVersion};

/// The largest item number: every JSON reader is exact up to here.
pub const MAX_SEQ: u64 = 1 << 53;
/// The longest id of an outbox, in bytes.
const MAX_OUTBOX_ID: usize = 64;
/// The longest message of an [`EffectContent`], in bytes.
pub const MAX_EFFECT_MESSAGE: usize = 1024;
/// The longest rule name in an [`EffectContent`], in bytes.
pub(crate) const MAX_EFFECT_RULE: usize = 128;
/// The longest version in an [`EffectContent`], in bytes, as in reports.
const MAX_EFFECT_VERSION: usize = 128;

/// The priority of outbox items: status before Events before everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// The Node, object statuses, effects, drop counts.
    Status,
    /// Events of the agent.
    Events,
    /// Events of programs on the device.
    Bulk,
    /// A lane unknown to this version; always empty.
    #[serde(other)]
    Other,
}

impl Lane {
    /// All known lanes, the highest priority first.
    pub const ALL: [Self; 3] = [Self::Status, Self::Events, Self::Bulk];

    /// Returns the name used in frames and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Events => "events",
            Self::Bulk => "bulk",
            Self::Other => "other",
        }
    }

    /// Returns the index in [`Lane::ALL`]; an unknown lane sorts last.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// One number per lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lanes {
    /// The number of [`Lane::Status`].
    #[serde(default)]
    pub status: u64,
    /// The number of [`Lane::Events`].
    #[serde(default)]
    pub events: u64,
    /// The number of [`Lane::Bulk`].
    #[serde(default)]
    pub bulk: u64,
}

impl Lanes {
    /// Returns the number of a lane.
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

/// The cloud's cursor into the outbox of a node: the last numbers that have taken effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngestCursor {
    /// The outbox that the numbers belong to; empty before the first upload.
    pub outbox: String,
    /// The last numbers that have taken effect or were refused.
    pub last: Lanes,
}

impl IngestCursor {
    /// Returns whether an item takes effect now, and advances the cursor. Callers call it once for
    /// each item of an [`Upload`], in order, after [`IngestCursor::begin`].
    pub fn accept(&mut self, lane: Lane, seq: u64) -> bool {
        let is_new = seq > self.last.get(lane);
        if is_new {
            self.last.set(lane, seq);
        }
        is_new
    }

    /// Begins a frame. Another outbox resets the numbers. Numbers that the node knows as confirmed
    /// count as confirmed, even if this store is an older copy that has lost them.
    pub fn begin(&mut self, outbox: &str, lane: Lane, confirmed: u64) {
        if self.outbox != outbox {
            *self = Self { outbox: outbox.to_owned(), last: Lanes::default() };
        }
        self.last.set(lane, self.last.get(lane).max(confirmed));
    }
}

/// Items of one lane, in order. Without items it asks for the confirmed numbers of all lanes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Upload {
    /// The session of the Hello.
    pub session: String,
    /// The id of the outbox: random, created with it. Numbers of another outbox are void.
    pub outbox: String,
    /// The lane of the items.
    pub lane: Lane,
    /// The last number of the lane that the cloud has confirmed.
    pub confirmed: u64,
    /// The items by ascending number; numbers may be skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<UploadItem>,
}

impl Upload {
    /// Returns whether the numbers and the id are within their limits.
    pub(super) fn is_sane(&self) -> bool {
        let is_number = |seq: u64| seq <= MAX_SEQ;
        (1..=MAX_OUTBOX_ID).contains(&self.outbox.len())
            && is_number(self.confirmed)
            && self.items.iter().all(|item| is_number(item.seq))
    }
}

/// One item of the outbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UploadItem {
    /// The item's number in the lane, from one.
    pub seq: u64,
    /// A [`Content`] as JSON text.
    pub content: Box<RawValue>,
}

/// The content of an outbox item.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Content<'a> {
    /// The node report: JSON of a [`crate::node::NodeReport`].
    Node(&'a RawValue),
    /// The status of an object that the node holds.
    Status(StatusContent<'a>),
    /// An `events.k8s.io/v1` Event created on the node.
    Event(&'a RawValue),
    /// The version of an object in effect on the node.
    Effect(EffectContent),
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    /// Reads the one known field and ignores fields of later versions.
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

impl<'a> Content<'a> {
    /// Parses the content of an item from a node, and validates the references in it: UIDs, and
    /// the names that later enter paths, keys and records. A reference may still be to any object:
    /// whether it is placed on the node is for the caller to check.
    ///
    /// Reports and Events are left as they are.
    ///
    /// # Errors
    /// The content is malformed, too deep, or has a reference that no object can have.
    pub fn parse(json: &'a str) -> Result<Self, Problem> {
        let depth = Budget::of(json.len()).check_depth(json);
        depth.map_err(|exceeded| format!("item {exceeded}"))?;
        let content: Self = serde_json::from_str(json).map_err(|error| format!("parse item: {error}"))?;
        match &content {
            Self::Node(_) | Self::Event(_) => {}
            Self::Status(status) => check_reference(&status.uid, &status.object)?,
            Self::Effect(effect) => {
                check_reference(&effect.uid, &effect.object)?;
                if !effect.is_sane() {
                    return Err("effect exceeds its limits, or is inconsistent".to_owned());
                }
            }
        }
        Ok(content)
    }
}

fn check_reference(uid: &str, object: &ObjectRef) -> Result<(), Problem> {
    name::check_uid(uid).map_err(|problem| format!("`uid` {problem}"))?;
    object.check()
}

/// Returns the refusal of an item about an object that is not placed on its node.
///
/// The words are the same whether or not the object exists: a node learns of no object that it was
/// not sent.
#[must_use]
pub fn not_placed(object: &ObjectKey) -> (RefusedReason, String) {
    (RefusedReason::NotPlaced, format!("{object} is not placed on this node"))
}

/// The status of an object that the node holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusContent<'a> {
    /// The UID of the object; the status applies to no other UID.
    pub uid: Uid,
    /// API version, kind, namespace and name of the object.
    pub object: ObjectRef,
    /// The value of the field `status`.
    #[serde(borrow)]
    pub status: &'a RawValue,
}

/// The effect of file rules on an object: the version that programs on the node work with. Only the
/// newest one of an object counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectContent {
    /// The UID of the object; the effect applies to no other UID.
    pub uid: Uid,
    /// API version, kind, namespace and name of the object.
    pub object: ObjectRef,
    /// The version in effect; `None` if no version is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ResourceVersion>,
    /// The version tried last; equals `version` if it is in effect.
    pub wanted: ResourceVersion,
    /// The state of the object under its rules.
    pub state: EffectState,
    /// The deciding rule: among several, the one with the worst state. At most [`MAX_EFFECT_RULE`]
    /// bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The reason why the version is not in effect, or what it waits for, for people; at most
    /// [`MAX_EFFECT_MESSAGE`] bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The time of the last state transition: Unix time in microseconds, by the node's clock.
    pub since: i64,
}

/// The state of an object under the file rules that concern it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EffectState {
    /// The version that the node holds is in effect.
    InEffect,
    /// The version was not accepted or could not be written. An older one may be in effect.
    NotInEffect,
    /// The version is not in effect, because another owner holds a file that the rule writes.
    Conflict,
    /// No rule concerns the object any more, or the node does not hold it any more.
    Gone,
    /// The version passed its check, and waits for a window, a condition, or the end of a hold. An
    /// older one may be in effect.
    Waiting,
    /// A state unknown to this version: not in effect.
    #[serde(other)]
    Other,
}

impl EffectState {
    /// Returns the name used in frames and objects.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InEffect => "InEffect",
            Self::NotInEffect => "NotInEffect",
            Self::Conflict => "Conflict",
            Self::Gone => "Gone",
            Self::Waiting => "Waiting",
            Self::Other => "Other",
        }
    }
}

impl EffectContent {
    /// Returns whether the content is within its limits and consistent: a version in effect equals
    /// the one tried last.
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

/// Confirms that the effect of everything up to these numbers is stored or refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadConfirm {
    /// The session of the Hello.
    pub session: String,
    /// The outbox that the numbers belong to.
    pub outbox: String,
    /// The last stored number of each lane.
    pub last: Lanes,
    /// Items of the answered frame that were refused permanently.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
}

/// An item refused permanently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The item's number in its lane.
    pub seq: u64,
    /// The reason, for programs.
    pub reason: RefusedReason,
    /// The reason for people, at most 256 bytes.
    pub message: String,
}

/// The reason why an item is refused.
///
/// A cloud side answers [`Self::NotPlaced`] for an object that does not exist, too. The other two
/// reasons are those of a CloudCore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusedReason {
    /// The item is unreadable or invalid.
    Invalid,
    /// The object was deleted.
    Gone,
    /// Another object has the name now.
    Recreated,
    /// The object is not placed on this node.
    NotPlaced,
    /// A reason unknown to this version.
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn last(taken: &IngestCursor) -> [u64; 3] {
        Lane::ALL.map(|lane| taken.last.get(lane))
    }

    #[test]
    fn an_item_takes_effect_once_and_numbers_may_be_left_out() {
        let mut taken = IngestCursor::default();
        taken.begin("a", Lane::Events, 0);
        let accepted = [1, 2, 5, 5, 3, 6].map(|seq| taken.accept(Lane::Events, seq));
        assert_eq!(accepted, [true, true, true, false, false, true]);
        assert!(taken.accept(Lane::Status, 1), "each lane counts for itself");
        assert_eq!(last(&taken), [1, 6, 0]);
    }

    #[test]
    fn numbers_of_another_outbox_mean_nothing() {
        let mut taken = IngestCursor { outbox: "a".into(), last: Lanes { status: 7, events: 8, bulk: 9 } };
        taken.begin("b", Lane::Events, 3);
        assert_eq!((taken.outbox.as_str(), last(&taken)), ("b", [0, 3, 0]));
        taken.begin("b", Lane::Status, 1);
        assert_eq!(last(&taken), [1, 3, 0]);
    }

    #[test]
    fn the_nodes_confirmed_numbers_survive_an_older_store() {
        let mut taken = IngestCursor { outbox: "a".into(), last: Lanes { status: 3, events: 8, bulk: 0 } };
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
    fn an_effect_is_consistent_and_within_limits() {
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
    fn references_that_no_object_can_have_are_refused() {
        let status = |field: &str, value: &str| {
            let mut status = serde_json::json!({
                "uid": "u", "status": {},
                "object": {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "n", "name": "c"},
            });
            *status.pointer_mut(field).unwrap() = value.into();
            serde_json::json!({ "status": status }).to_string()
        };
        let mut effect = serde_json::to_value(effect()).unwrap();
        effect["object"]["name"] = "?x=1".into();
        let effect = serde_json::json!({ "effect": effect }).to_string();
        assert!(Content::parse(&status("/uid", "u-2")).is_ok());
        for bad in [
            status("/uid", "a/b"),
            status("/uid", ""),
            status("/object/name", "?x=1"),
            status("/object/name", "../secrets/ca"),
            status("/object/name", ""),
            status("/object/namespace", "../.."),
            status("/object/kind", "x/../../../api/v1/secret"),
            status("/object/apiVersion", "v1/../../secrets"),
            status("/object/apiVersion", "a/b/c"),
            effect,
            "{}".to_owned(),
            "7".to_owned(),
        ] {
            let problem = Content::parse(&bad).map(|content| format!("{content:?}")).expect_err(&bad);
            assert!(!problem.is_empty() && problem.len() < 1000, "{problem}");
        }
    }

    #[test]
    fn an_unknown_state_is_other_and_names_equal_frames() {
        let states = [
            EffectState::InEffect,
            EffectState::NotInEffect,
            EffectState::Conflict,
            EffectState::Gone,
            EffectState::Waiting,
        ];
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
        /// However often and in whatever pieces the items are sent, each takes effect once and in
        /// order.
        #[test]
        fn repeated_and_overlapping_frames_have_each_effect_once(
            frames in prop::collection::vec((0u64..20, 1u64..10), 1..30),
        ) {
            let (mut taken, mut effects, mut sent) = (IngestCursor::default(), Vec::new(), 0);
            for (start, length) in frames {
                // A node resumes at most after its last sent item.
                let start = start.min(sent);
                taken.begin("a", Lane::Bulk, 0);
                effects.extend((start + 1..=start + length).filter(|seq| taken.accept(Lane::Bulk, *seq)));
                sent = sent.max(start + length);
            }
            prop_assert_eq!(effects, (1..=sent).collect::<Vec<_>>());
        }

        #[test]
        fn no_text_makes_the_content_panic(text in ".{0,200}", name in ".{0,300}") {
            let _ = Content::parse(&text);
            let object = serde_json::json!({"apiVersion": &name, "kind": &name, "name": &name});
            let status = serde_json::json!({"status": {"uid": &name, "object": object, "status": {}}});
            let _ = Content::parse(&status.to_string());
        }
    }
}
