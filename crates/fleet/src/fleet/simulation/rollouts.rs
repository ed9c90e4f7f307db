//! Roll-outs in the simulation: the model of their store, and the oracle, which judges what nodes
//! are sent by the stored statuses alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::store::{Model, Way};
use super::world::World;
use crate::admin::AdminRequest;
use crate::config::Config;
use crate::source::{Result, RevisionKey, RolloutStore, RolloutWrite, RuleKey, Sweep};
use edgesync_cloud_store::RevisionError;
use edgesync_object::NodeName;
use edgesync_protocol::change::{Change, Uid};
use edgesync_protocol::cloud::Loaded;
use edgesync_protocol::frame::{Objects, Received};
use edgesync_rollout::{Command, Rollout, Set, Status};

/// Name of the rule with a roll-out.
const RULE: &str = "tier-0";

/// The roll-outs of configured rules.
#[derive(Clone, Default)]
pub(super) struct Rollouts {
    /// Statuses by the name of the rule.
    pub(super) statuses: BTreeMap<Arc<str>, Value>,
    /// Stored revisions with their bodies.
    pub(super) revisions: BTreeMap<RevisionKey, (Arc<Set>, BTreeMap<Uid, Loaded>)>,
}

/// Versions that a stored status has ever opened for a canary, and for other nodes.
#[derive(Default)]
pub(super) struct Opened([BTreeSet<(Uid, String)>; 2]);

/// Gives the first rule a roll-out.
pub(super) fn configure(config: &mut Config) {
    let rollout = json!({
        "waves": [
            {"selector": "canary=true", "allowEmpty": true, "heldOnly": true},
            {"allowEmpty": true, "heldOnly": true},
        ],
        "soak": "2s", "healthyWithin": "5s", "settle": "1s", "minSuccess": {"percent": 0},
        "maxFailures": {"percent": 100},
    });
    let rule = &mut config.placement.rules[0];
    rule.name = Some(RULE.into());
    rule.rollout = Some(Arc::new(Rollout::parse(&rollout, "rollout").unwrap()));
}

/// Returns whether a node is in the first wave.
pub(super) fn is_canary(node: &NodeName) -> bool {
    node.ends_with(['0', '2'])
}

impl Opened {
    /// Records what a status opens: the stable revision for all nodes, those above it for the nodes
    /// of as many waves as they say.
    fn record(&mut self, rollouts: &Rollouts) {
        let Some(status) = rollouts.statuses.get(RULE) else { return };
        for (place, revision) in status["revisions"].as_array().unwrap().iter().enumerate() {
            let key = RevisionKey {
                rule: RuleKey::Configured(RULE.into()),
                number: revision["number"].as_u64().unwrap(),
                digest: revision["digest"].as_str().unwrap().parse().unwrap(),
            };
            let open = revision["open"].as_u64().unwrap();
            let (set, _) = &rollouts.revisions[&key];
            for (wave, opened) in self.0.iter_mut().enumerate() {
                if place == 0 || (wave as u64) < open {
                    let entries = set.entries().iter();
                    opened.extend(entries.map(|(uid, entry)| (uid.clone(), entry.version.to_string())));
                }
            }
        }
    }
}

impl Rollouts {
    /// Replaces a status if the sequence is the expected one.
    fn write(&mut self, write: RolloutWrite) -> bool {
        let RuleKey::Configured(name) = write.rule else { unreachable!("no rule is an object") };
        let is_expected = Status::sequence_of(self.statuses.get(&name)) == write.expected;
        match write.status {
            Some(status) if is_expected => drop(self.statuses.insert(name, status.parse().unwrap())),
            None if is_expected => drop(self.statuses.remove(&name)),
            _ => {}
        }
        is_expected
    }

    /// Stores a revision, unless it is stored.
    fn store(
        &mut self,
        key: RevisionKey,
        set: Arc<Set>,
        bodies: Vec<Loaded>,
    ) -> std::result::Result<(), RevisionError> {
        let bodies = key.check(&set, bodies)?;
        let bodies = bodies.into_iter().map(|loaded| (loaded.uid.clone(), loaded)).collect();
        self.revisions.entry(key).or_insert((set, bodies));
        Ok(())
    }

    fn sweep(&mut self, sweep: &Sweep) {
        self.revisions.retain(|key, _| !sweep.is_garbage(key));
        self.statuses.retain(|name, _| sweep.has(&RuleKey::Configured(name.clone())));
    }
}

impl RolloutStore for Model {
    async fn rollout_statuses(&self) -> Result<Vec<(String, String)>> {
        let state = self.state();
        let statuses = state.db.rollouts.statuses.iter();
        Ok(statuses.map(|(name, status)| (name.to_string(), status.to_string())).collect())
    }

    async fn write_rollout(&self, write: RolloutWrite) -> Result<bool> {
        self.arrive().await?;
        let is_written = {
            let state = &mut *self.state();
            let is_written = state.db.rollouts.write(write);
            state.opened.record(&state.db.rollouts);
            is_written
        };
        self.answer(is_written).await
    }

    async fn store_revision(&self, key: RevisionKey, set: Arc<Set>, bodies: Vec<Loaded>) -> Result<()> {
        self.arrive().await?;
        self.state().db.rollouts.store(key, set, bodies)?;
        self.answer(()).await
    }

    async fn revision(&self, key: RevisionKey) -> Result<Option<Arc<Set>>> {
        Ok(self.state().db.rollouts.revisions.get(&key).map(|(set, _)| set.clone()))
    }

    async fn revision_bodies(&self, key: RevisionKey, uids: Vec<Uid>) -> Result<Vec<Loaded>> {
        self.arrive().await?;
        let bodies = {
            let state = self.state();
            let stored = state.db.rollouts.revisions.get(&key);
            let load = |uid: Uid| stored?.1.get(&uid).cloned();
            uids.into_iter().filter_map(load).collect()
        };
        self.pass(Way::Bodies).await;
        Ok(bodies)
    }

    async fn sweep_revisions(&self, sweep: Sweep) -> Result<()> {
        self.arrive().await?;
        self.state().db.rollouts.sweep(&sweep);
        self.answer(()).await
    }
}

impl World {
    /// Notes since when all fleets decide by revisions.
    pub(super) fn follow_rollouts(&mut self) {
        if !self.rolls || self.rolled_since.is_some() {
            return;
        }
        let mut fleets = self.replicas.iter().map(|replica| replica.fleet.as_ref());
        let decides = fleets.all(|fleet| {
            fleet.is_some_and(|fleet| {
                let rollouts = &fleet.reconciler.desired.rollouts;
                let has_revision = rollouts.rules().all(|(_, rule)| !rule.status.revisions.is_empty());
                has_revision && rollouts.is_settled() && !rollouts.is_reading()
            })
        });
        if decides {
            self.rolled_since = Some(self.model.state().db.objects.version);
        }
    }

    /// Checks that a node is sent no version that no status has opened for it, unless something
    /// without a roll-out has ever placed the object there.
    pub(super) fn check_revision(&mut self, node: usize, frame: &Received) {
        let (Some(since), Received::Objects(Objects { changes, .. })) = (self.rolled_since, frame) else {
            return;
        };
        let (name, state) = (self.devices[node].name.clone(), self.model.state());
        let opened = &state.opened.0[usize::from(!is_canary(&name))];
        let violation = changes.iter().find_map(|change| {
            let Change::Put(put) = change else { return None };
            let is_old = put.version.as_str().parse::<u64>().is_ok_and(|version| version <= since);
            let is_plain = state.history.states.iter().any(|state| {
                state
                    .things
                    .get(&put.uid)
                    .is_some_and(|thing| thing.nodes.contains(&name) || thing.tier == Some(1))
            });
            let is_open = opened.contains(&(put.uid.clone(), put.version.to_string()));
            (!is_old && !is_plain && !is_open).then(|| format!("{} in version {}", put.uid, put.version))
        });
        drop(state);
        if let Some(what) = violation {
            self.time.violation = Some(format!("roll-out: {name} was sent {what}, which is not open for it"));
        }
    }

    /// Promotes the newest revision, as an operator does who sees that no node answers.
    pub(super) fn promote_rollouts(&mut self) {
        let status: Value = {
            let state = self.model.state();
            let Some(status) = state.db.rollouts.statuses.get(RULE) else { return };
            status.clone()
        };
        let revisions = status["revisions"].as_array().unwrap();
        let Some(top) = revisions.last().filter(|_| revisions.len() > 1) else { return };
        let (revision, open) = (top["number"].as_u64().unwrap(), top["open"].as_u64().unwrap());
        let open = usize::try_from(open).unwrap();
        for replica in 0..self.replicas.len() {
            let command = Command::Promote { by: "ada".to_owned(), revision, open };
            let request = AdminRequest::MoveRollout(RULE.to_owned(), command, oneshot::channel().0);
            self.with_fleet(replica, |fleet| fleet.administer(request));
        }
    }
}

#[test]
fn the_model_replaces_statuses_and_sweeps_revisions_as_a_store_does() {
    let mut rollouts = Rollouts::default();
    let write = |expected: u64| RolloutWrite {
        rule: RuleKey::Configured("web".into()),
        object: None,
        expected,
        status: Some(format!(r#"{{"sequence":{},"nextNumber":2}}"#, expected + 1)),
    };
    assert!(rollouts.write(write(0)));
    assert!(!rollouts.write(write(0)));
    assert!(rollouts.write(write(1)));
    let set = Arc::new(Set::default());
    let rule = RuleKey::Configured("web".into());
    let key = |number| RevisionKey { rule: rule.clone(), number, digest: set.digest() };
    for number in [1, 2] {
        rollouts.store(key(number), set.clone(), Vec::new()).unwrap();
    }
    let status = Status::read(rollouts.statuses.get("web")).unwrap();
    rollouts.sweep(&Sweep([(rule.clone(), status)].into()));
    assert_eq!(rollouts.revisions.keys().collect::<Vec<_>>(), [&key(2)]);
    rollouts.sweep(&Sweep::default());
    assert!(rollouts.revisions.is_empty() && rollouts.statuses.is_empty());
}
