//! The roll-outs in the model of the source: statuses of configured rules, and stored revisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::store::{Model, Way};
use crate::source::{Result, RevisionKey, RolloutStore, RolloutWrite, RuleKey, Sweep};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;
use edgesync_rollout::{Set, Status};

/// The roll-outs of configured rules.
#[derive(Clone, Default)]
pub(super) struct Rollouts {
    /// Statuses by the name of the rule.
    pub(super) statuses: BTreeMap<Arc<str>, Value>,
    /// Stored revisions with their bodies.
    pub(super) revisions: BTreeMap<RevisionKey, (Arc<Set>, BTreeMap<Uid, Loaded>)>,
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
    fn store(&mut self, key: RevisionKey, set: Arc<Set>, bodies: Vec<Loaded>) -> Result<()> {
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
        self.arrive().await?;
        let statuses = {
            let state = self.state();
            let statuses = state.db.rollouts.statuses.iter();
            statuses.map(|(name, status)| (name.to_string(), status.to_string())).collect()
        };
        self.answer(statuses).await
    }

    async fn write_rollout(&self, write: RolloutWrite) -> Result<bool> {
        self.arrive().await?;
        let is_written = self.state().db.rollouts.write(write);
        self.answer(is_written).await
    }

    async fn store_revision(&self, key: RevisionKey, set: Arc<Set>, bodies: Vec<Loaded>) -> Result<()> {
        self.arrive().await?;
        self.state().db.rollouts.store(key, set, bodies)?;
        self.answer(()).await
    }

    async fn revision(&self, key: RevisionKey) -> Result<Option<Arc<Set>>> {
        self.arrive().await?;
        let set = self.state().db.rollouts.revisions.get(&key).map(|(set, _)| set.clone());
        self.answer(set).await
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
