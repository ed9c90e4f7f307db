//! Placement rules in the simulation: those of the configuration and those that are objects, each
//! with its roll-out as the store has it.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::history::{Registration, Thing};
use crate::source::{RevisionKey, RuleKey};
use edgesync_object::{Object, kinds};
use edgesync_placement::Summary;
use edgesync_protocol::change::Uid;
use edgesync_protocol::simulation::timeline::Random;

/// Name of the configured rule that may have a roll-out.
pub(super) const CONFIGURED: &str = "tier-0";
/// Prefix of the keys of configured rules.
const CONFIGURED_PREFIX: &str = "configured/";
/// Names of the rules that are objects.
pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

/// A wave of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wave {
    Canary,
    Site,
    Rest,
}

/// The section `rollout` of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Strategy {
    waves: Vec<Wave>,
    /// In seconds.
    soak: u64,
    /// Whether changes wait for the end of the current revision.
    queues: bool,
    /// Whether failures count, and whether they undo the revision.
    fails: Option<bool>,
}

/// The labels that a rule selects; `None` selects any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) tier: Option<u64>,
    pub(super) half: Option<u64>,
}

/// The roll-out in the status of a rule.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    pub(super) value: Option<Value>,
    /// The revisions, the stable one first, with the number of waves that each is open for.
    stack: Vec<(RevisionKey, usize)>,
    /// The waves that these numbers refer to: those of the rule when they were written.
    waves: Vec<Wave>,
}

/// A placement rule.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    /// In seconds; zero for a configured rule.
    pub(super) created: i64,
    pub(super) generation: u64,
    pub(super) version: u64,
    pub(super) objects: Selection,
    /// The tier of its nodes, or all of them.
    pub(super) nodes: Option<u64>,
    pub(super) strategy: Option<Strategy>,
    pub(super) rollout: Stored,
    /// Its status without the roll-out.
    pub(super) status: Value,
}

/// What a rule assigns to a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Assigned {
    /// The rule does not exist, or does not select the node.
    Not,
    /// The rule has no roll-out.
    Plain,
    /// The roll-out has no revision yet.
    NotBegun,
    Revision(RevisionKey),
}

impl Wave {
    fn has(self, node: &Registration) -> bool {
        match self {
            Self::Canary => node.is_canary,
            Self::Site => node.is_at_site,
            Self::Rest => true,
        }
    }

    fn to_json(self) -> Value {
        let selector = match self {
            Self::Canary => "canary=true",
            Self::Site => "site=true",
            Self::Rest => "",
        };
        json!({"selector": selector, "allowEmpty": true, "heldOnly": true})
    }
}

impl Strategy {
    /// Returns one with these waves, in which failures do not count.
    pub(super) fn of(waves: &[Wave]) -> Self {
        Self { waves: waves.to_vec(), soak: 10, queues: false, fails: None }
    }

    pub(super) fn any(random: &mut Random) -> Self {
        use Wave::{Canary, Rest, Site};
        let waves: [&[Wave]; 7] = [
            &[Canary, Rest],
            &[Canary, Rest],
            &[Canary, Site, Rest],
            &[Site, Canary, Rest],
            &[Canary, Site],
            &[Site, Rest],
            &[Rest],
        ];
        Self {
            waves: waves[random.below(7) as usize].to_vec(),
            soak: [1, 2, 10][random.below(3) as usize],
            queues: random.percent(20),
            fails: random.percent(30).then(|| random.percent(50)),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "waves": self.waves.iter().map(|wave| wave.to_json()).collect::<Vec<_>>(),
            "soak": format!("{}s", self.soak), "healthyWithin": "5s", "settle": "1s",
            "minSuccess": {"percent": 0},
            "maxFailures": {"percent": if self.fails.is_some() { 20 } else { 100 }},
            "onFailure": if self.fails == Some(true) { "RollBack" } else { "Pause" },
            "onChange": if self.queues { "Queue" } else { "Replace" },
        })
    }
}

impl Selection {
    pub(super) fn any(random: &mut Random) -> Self {
        let mut one = |percent| random.percent(percent).then(|| random.below(2));
        Self { tier: one(80), half: one(30) }
    }

    fn to_json(self) -> Value {
        let labels = [("tier", self.tier), ("half", self.half)];
        let labels =
            labels.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?.to_string()))));
        json!({
            "matchLabels": labels.collect::<Map<_, _>>(),
            "matchExpressions": [{"key": "tier", "operator": "Exists"}],
        })
    }
}

impl Stored {
    /// Returns the roll-out of a status that is written for a rule with these waves.
    pub(super) fn new(
        rule: &RuleKey,
        value: Option<Value>,
        before: &Self,
        strategy: Option<&Strategy>,
    ) -> Self {
        let Some(value) = value else { return Self::default() };
        let revisions = value["revisions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let stack = revisions.iter().map(|revision| {
            let key = RevisionKey {
                rule: rule.clone(),
                number: revision["number"].as_u64().unwrap(),
                digest: revision["digest"].as_str().unwrap().parse().unwrap(),
            };
            (key, revision["open"].as_u64().unwrap() as usize)
        });
        let is_same = before.value.as_ref().is_some_and(|before| before["waves"] == value["waves"]);
        let waves = match (is_same, strategy) {
            (true, _) => before.waves.clone(),
            (false, Some(strategy)) => strategy.waves.clone(),
            (false, None) => Vec::new(),
        };
        Self { stack: stack.collect(), waves, value: Some(value) }
    }

    /// Returns whether a revision is on the stack, or may be about to begin.
    pub(super) fn needs(&self, revision: &RevisionKey, is_led: bool) -> bool {
        match &self.value {
            Some(value) => {
                let next = value["nextNumber"].as_u64().unwrap_or(0);
                revision.number >= next || self.revisions().any(|key| key == revision)
            }
            None => is_led,
        }
    }

    pub(super) fn sequence(&self) -> u64 {
        self.value.as_ref().and_then(|value| value["sequence"].as_u64()).unwrap_or(0)
    }

    /// Returns the keys of all revisions, the stable one first.
    pub(super) fn revisions(&self) -> impl ExactSizeIterator<Item = &RevisionKey> {
        self.stack.iter().map(|(key, _)| key)
    }

    /// Returns the newest revision, and the number of waves that it is open for.
    pub(super) fn top(&self) -> Option<(&RevisionKey, usize)> {
        self.stack.last().map(|(key, open)| (key, *open))
    }

    /// Returns the revision that a node of a rule with these waves has.
    fn of(&self, strategy: &Strategy, node: &Registration) -> Option<&RevisionKey> {
        let wave = strategy.waves.iter().position(|wave| wave.has(node));
        let unchanged = self.waves.iter().zip(&strategy.waves).take_while(|(old, new)| old == new).count();
        let (stable, above) = self.stack.split_first()?;
        let is_open =
            |(_, open): &&(RevisionKey, usize)| wave.is_some_and(|wave| wave < (*open).min(unchanged));
        Some(above.iter().rev().find(is_open).map_or(&stable.0, |(key, _)| key))
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stack = self.stack.iter().map(|(key, open)| format!("{} open for {open}", key.number));
        let paused = self.value.as_ref().map(|value| &value["paused"]["reason"]);
        write!(
            f,
            "sequence {} {:?} of {:?} {paused:?}",
            self.sequence(),
            stack.collect::<Vec<_>>(),
            self.waves
        )
    }
}

impl Rule {
    /// Returns a rule of the configuration.
    pub(super) fn configured(tier: u64, strategy: Option<Strategy>) -> (Uid, Arc<Self>) {
        let name = format!("tier-{tier}");
        let rule = Self {
            created: 0,
            generation: 0,
            version: 0,
            objects: Selection { tier: Some(tier), half: None },
            nodes: Some(tier),
            strategy,
            rollout: Stored::default(),
            status: json!({}),
            name,
        };
        (format!("{CONFIGURED_PREFIX}{}", rule.name).into(), Arc::new(rule))
    }

    pub(super) fn is_configured(&self) -> bool {
        self.created == 0
    }

    pub(super) fn age(&self) -> (i64, &str) {
        (self.created, &self.name)
    }

    pub(super) fn selects(&self, thing: &Thing) -> bool {
        let Selection { tier, half } = self.objects;
        thing.tier.is_some()
            && (tier.is_none() || tier == thing.tier)
            && half.is_none_or(|half| half == thing.half())
    }

    pub(super) fn selects_node(&self, node: &Registration) -> bool {
        self.nodes.is_none_or(|tier| tier == node.tier)
    }

    /// Returns what the rule assigns to a node when its status has this roll-out.
    pub(super) fn assigned(&self, rollout: &Stored, node: Option<&Registration>) -> Assigned {
        match node.filter(|node| self.selects_node(node)) {
            Some(node) => self.assigned_to(rollout, node),
            None => Assigned::Not,
        }
    }

    /// Returns the same for a node that the rule selects.
    pub(super) fn assigned_to(&self, rollout: &Stored, node: &Registration) -> Assigned {
        match &self.strategy {
            None => Assigned::Plain,
            Some(strategy) => {
                let revision = rollout.of(strategy, node);
                revision.map_or(Assigned::NotBegun, |key| Assigned::Revision(key.clone()))
            }
        }
    }

    pub(super) fn summary(&self, uid: &str) -> Summary {
        let tier = self.nodes.map(|tier| ("tier".to_owned(), json!(tier.to_string())));
        let mut status = self.status.clone();
        if let Some(rollout) = &self.rollout.value {
            status["rollout"] = rollout.clone();
        }
        let rule: Object = serde_json::from_value(json!({
            "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement",
            "metadata": {
                "name": self.name, "uid": uid, "generation": self.generation,
                "creationTimestamp": Timestamp::from_second(self.created).unwrap().to_string(),
            },
            "spec": {
                "objects": {"kinds": ["configmaps"], "selector": self.objects.to_json()},
                "nodes": {"selector": {
                    "matchLabels": tier.into_iter().collect::<Map<_, _>>(),
                    "matchExpressions": [{"key": "tier", "operator": "Exists"}],
                }},
                "rollout": self.strategy.as_ref().map(Strategy::to_json),
            },
            "status": status,
        }))
        .unwrap();
        let resource = kinds::guess("edgesync.io/v1alpha1", "ClusterPlacement", false);
        Summary::of(&rule, Arc::new(resource), self.version.into())
    }
}

/// Returns the key under which the model has a rule.
pub(super) fn uid_of(rule: &RuleKey) -> Uid {
    match rule {
        RuleKey::Object(uid) => uid.clone(),
        RuleKey::Configured(name) => format!("{CONFIGURED_PREFIX}{name}").into(),
    }
}
