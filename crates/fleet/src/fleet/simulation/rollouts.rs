//! Roll-outs in the simulation: the model of their store, and what happens to rules, to the labels
//! that waves select, and by the commands of operators.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::oneshot;

use super::history::StoredRevision;
use super::rules::{CONFIGURED, NAMES, Rule, Selection, Stored, Strategy, uid_of};
use super::store::{Model, State, Way};
use super::world::World;
use crate::admin::AdminRequest;
use crate::config::Config;
use crate::source::{
    Result, RevisionKey, RolloutStore, RolloutWrite, RuleKey, RuleStatus, SourceError, Sweep,
};
use edgesync_cloud_store::RevisionError;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;
use edgesync_protocol::simulation::timeline::Random;
use edgesync_rollout::status::PauseReason;
use edgesync_rollout::{Command, Rollout, Set};

/// Age below which a cluster keeps the revisions of a rule that is not known, in microseconds.
const GRACE: u64 = 3_600_000_000;
/// Failed reads of a revision after which nodes do not wait for it any more.
const MAX_READS: u32 = 3;
/// Most rules that are objects.
const MAX_RULES: usize = 4;

/// Reads of revisions that have failed: by replica and revision, how often in a row, and the
/// position of the history at which it was read after all.
#[derive(Default)]
pub(super) struct Unread(BTreeMap<(usize, RevisionKey), (u32, Option<usize>)>);

impl Unread {
    fn failed(&mut self, replica: usize, key: RevisionKey) {
        let (failed, read) = self.0.entry((replica, key)).or_default();
        *failed = if read.take().is_some() { 1 } else { *failed + 1 };
    }

    /// Returns whether nodes have not waited for a revision since a position of the history.
    pub(super) fn has(&self, replica: usize, key: &RevisionKey, from: usize) -> bool {
        let known = self.0.get(&(replica, key.clone()));
        known.is_some_and(|(failed, read)| *failed >= MAX_READS && read.is_none_or(|read| read >= from))
    }
}

/// Returns the rules of the configuration. With roll-outs, the first one is an object over a
/// cluster.
pub(super) fn configured(rolls: bool, is_shared: bool, random: &mut Random) -> Vec<(Uid, Arc<Rule>)> {
    match (rolls, is_shared) {
        (false, _) => vec![Rule::configured(0, None), Rule::configured(1, None)],
        (true, false) => vec![Rule::configured(0, Some(Strategy::any(random))), Rule::configured(1, None)],
        (true, true) => vec![Rule::configured(1, None)],
    }
}

/// Gives the first rule of the configuration the roll-out that the model has.
pub(super) fn configure(config: &mut Config, rules: &[(Uid, Arc<Rule>)]) {
    let first = &mut config.placement.rules[0];
    let Some((_, rule)) = rules.iter().find(|(_, rule)| rule.name == CONFIGURED) else {
        first.rule.nodes.selector = "tier=none".parse().unwrap();
        return;
    };
    first.name = Some(CONFIGURED.into());
    let parse = |strategy: &Strategy| Arc::new(Rollout::parse(&strategy.to_json(), "rollout").unwrap());
    first.rollout = rule.strategy.as_ref().map(parse);
}

// --- the store

impl State {
    /// Changes a rule. A change of its spec has a new generation.
    pub(super) fn change_rule(&mut self, uid: &Uid, is_spec: bool, change: impl FnOnce(&mut Rule)) {
        self.write(|objects, version| {
            let Some(rule) = objects.rules.get_mut(uid) else { return };
            let rule = Arc::make_mut(rule);
            rule.version = version;
            rule.generation += u64::from(is_spec);
            change(rule);
        });
    }

    pub(super) fn set_rule_status(&mut self, RuleStatus { uid, status, .. }: RuleStatus) {
        if self.db.objects.rules.get(&uid).is_some_and(|rule| rule.status != status) {
            self.change_rule(&uid, false, |rule| rule.status = status);
        }
    }

    /// Replaces the roll-out of a rule, if rule and sequence are the expected ones. `knows_restore`
    /// is whether the replica knew of all restores when it sent the write.
    fn write_rollout(&mut self, write: RolloutWrite, knows_restore: bool) -> bool {
        let uid = uid_of(&write.rule);
        let Some(rule) = self.db.objects.rules.get(&uid) else { return false };
        let is_expected = write.object.is_none_or(|(_, generation)| generation == rule.generation)
            && rule.rollout.sequence() == write.expected;
        if !is_expected {
            return false;
        }
        let value = write.status.map(|status| serde_json::from_str(&status).unwrap());
        let is_deleted = value.is_none() && rule.is_configured();
        let stored = Stored::new(&write.rule, value, &rule.rollout, rule.strategy.as_ref());
        let violation = self.unstored(&rule.rollout, &stored, knows_restore);
        self.violation = self.violation.take().or(violation);
        self.change_rule(&uid, false, |rule| rule.rollout = stored);
        if is_deleted {
            self.write(|objects, _| objects.revisions.retain(|key, _| key.rule != write.rule));
        }
        true
    }

    /// Checks that the bodies of a revision that begins are stored. A restore may have lost them
    /// without the knowledge of the replica.
    fn unstored(&self, before: &Stored, after: &Stored, knows_restore: bool) -> Option<String> {
        let mut begun = after.revisions().filter(|key| before.revisions().all(|known| known != *key));
        let lost = begun.find(|key| {
            let is_stored = self.db.objects.revisions.contains_key(*key);
            !is_stored && (knows_restore || !self.history.is_lost_revision(key))
        });
        lost.map(|key| format!("roll-out: {key} begins, its bodies are not stored"))
    }

    /// Notes that a revision is read.
    fn note_read(&mut self, replica: usize, key: &RevisionKey) {
        let last = self.history.last();
        if let Some((_, read)) = self.unread.0.get_mut(&(replica, key.clone())) {
            *read = Some(last);
        }
    }

    /// Stores a revision, unless it is stored.
    fn store_revision(
        &mut self,
        key: RevisionKey,
        set: Arc<Set>,
        bodies: Vec<Loaded>,
    ) -> std::result::Result<(), RevisionError> {
        let bodies = key.check(&set, bodies)?;
        let bodies = bodies.into_iter().map(|loaded| (loaded.uid.clone(), loaded)).collect();
        let stored = StoredRevision { set: set.clone(), bodies: Arc::new(bodies), at: self.clock };
        self.sets.insert(key.clone(), set);
        self.write(|objects, _| {
            objects.revisions.entry(key).or_insert(stored);
        });
        Ok(())
    }

    fn sweep_revisions(&mut self, sweep: &Sweep) {
        let oldest = self.clock.saturating_sub(GRACE);
        // Over a cluster the statuses of the sweep may be old.
        let is_needed = |key: &RevisionKey| {
            let rule = self.db.objects.rules.get(&uid_of(&key.rule)).map(|rule| &rule.rollout);
            rule.is_some_and(|rollout| rollout.needs(key, sweep.has(&key.rule)))
        };
        let is_kept = |key: &RevisionKey, stored: &StoredRevision| {
            let is_new = !sweep.has(&key.rule) && stored.at > oldest;
            !sweep.is_garbage(key) || (self.is_shared && (is_new || is_needed(key)))
        };
        if self.db.objects.revisions.iter().any(|(key, stored)| !is_kept(key, stored)) {
            let mut revisions = self.db.objects.revisions.clone();
            let needed = self.db.objects.rules.values().flat_map(|rule| rule.rollout.revisions());
            let needed: Vec<&RevisionKey> = needed.filter(|key| revisions.contains_key(*key)).collect();
            revisions.retain(|key, stored| is_kept(key, stored));
            let swept = needed.into_iter().find(|key| !revisions.contains_key(*key));
            let violation = swept.map(|key| format!("roll-out: a sweep has deleted the bodies of {key}"));
            self.violation = self.violation.take().or(violation);
            self.write(|objects, _| objects.revisions = revisions);
        }
    }

    /// Creates a rule that is an object.
    pub(super) fn create_rule(
        &mut self,
        name: &str,
        objects: Selection,
        nodes: Option<u64>,
        strategy: Option<Strategy>,
    ) {
        self.created += 1;
        // Two rules have the same time.
        let created = i64::try_from(self.created.div_ceil(2)).unwrap();
        let (uid, name): (Uid, _) = (format!("rule-{}", self.created).into(), name.to_owned());
        self.write(|objects_now, version| {
            let rule = Rule {
                name,
                created,
                generation: 1,
                version,
                objects,
                nodes,
                strategy,
                rollout: Stored::default(),
                status: json!({}),
            };
            objects_now.rules.insert(uid, Arc::new(rule));
        });
    }
}

impl RolloutStore for Model {
    fn leads_rollouts(&self) -> bool {
        self.state().feeds[self.replica].leads
    }

    async fn rollout_statuses(&self) -> Result<Vec<(String, String)>> {
        let state = self.state();
        let rules = state.db.objects.rules.values().filter(|rule| rule.is_configured());
        let statuses =
            rules.filter_map(|rule| Some((rule.name.clone(), rule.rollout.value.as_ref()?.to_string())));
        Ok(statuses.collect())
    }

    async fn write_rollout(&self, write: RolloutWrite) -> Result<bool> {
        let (_under_way, knows_restore) = {
            let state = self.state();
            (state.feeds[self.replica].writes.clone(), state.knows_restore(self.replica))
        };
        self.arrive().await?;
        let is_written = self.state().write_rollout(write, knows_restore);
        match self.pass(Way::Answer).await {
            true => Ok(is_written),
            false => Err(SourceError::Unread("the answer is lost".into())),
        }
    }

    async fn store_revision(&self, key: RevisionKey, set: Arc<Set>, bodies: Vec<Loaded>) -> Result<()> {
        self.arrive().await?;
        self.state().store_revision(key, set, bodies)?;
        self.answer(()).await
    }

    async fn revision(&self, key: RevisionKey) -> Result<Option<Arc<Set>>> {
        if let Err(error) = self.arrive().await {
            self.state().unread.failed(self.replica, key);
            return Err(error);
        }
        self.state().note_read(self.replica, &key);
        let set = self.state().db.objects.revisions.get(&key).map(|stored| stored.set.clone());
        self.answer(set).await
    }

    async fn revision_bodies(&self, key: RevisionKey, uids: Vec<Uid>) -> Result<Vec<Loaded>> {
        self.arrive().await?;
        let bodies = {
            let state = self.state();
            let stored = state.db.objects.revisions.get(&key);
            let load = |uid: Uid| stored?.bodies.get(&uid).cloned();
            uids.into_iter().filter_map(load).collect()
        };
        self.pass(Way::Bodies).await;
        Ok(bodies)
    }

    async fn sweep_revisions(&self, sweep: Sweep) -> Result<()> {
        self.arrive().await?;
        self.state().sweep_revisions(&sweep);
        self.answer(()).await
    }
}

// --- what happens

impl World {
    /// Changes rules, labels and roll-outs.
    pub(super) fn disturb_rollouts(&mut self) {
        if self.time.random.percent(15) {
            self.change_rules();
        }
        if self.time.random.percent(10) {
            self.change_wave_of_node();
        }
        if self.time.random.percent(15) {
            self.command_rollout();
        }
        if self.time.random.percent(10) {
            // The one before may believe that it still leads.
            let (leader, overlaps) = (self.any_replica(), self.time.random.percent(40));
            self.set_leader(leader, overlaps);
        }
    }

    fn any_replica(&mut self) -> usize {
        self.time.random.below(self.replicas.len() as u64) as usize
    }

    pub(super) fn set_leader(&mut self, leader: usize, overlaps: bool) {
        self.time.say(|| format!("replica {leader} leads, others too: {overlaps}"));
        for (replica, feed) in self.model.state().feeds.iter_mut().enumerate() {
            feed.leads = replica == leader || (overlaps && feed.leads);
        }
    }

    fn change_rules(&mut self) {
        let random = &mut self.time.random;
        let (objects, nodes) = (Selection::any(random), random.percent(80).then(|| random.below(2)));
        let strategy = random.percent(80).then(|| Strategy::any(random));
        let (which, kind, name) =
            (random.next(), random.below(10), NAMES[random.below(NAMES.len() as u64) as usize]);
        let mut state = self.model.state();
        let objects_now = &state.db.objects.rules;
        let rules: Vec<(Uid, Arc<Rule>)> = objects_now
            .iter()
            .filter(|(_, rule)| !rule.is_configured())
            .map(|(uid, rule)| (uid.clone(), rule.clone()))
            .collect();
        let chosen = (!rules.is_empty()).then(|| rules[which as usize % rules.len()].clone());
        let what = match (kind, chosen) {
            (0 | 1, _) | (_, None)
                if rules.len() < MAX_RULES && rules.iter().all(|(_, rule)| rule.name != name) =>
            {
                state.create_rule(name, objects, nodes, strategy);
                format!("rule {name} is created for {objects:?}, nodes {nodes:?}")
            }
            (2, Some((uid, rule))) => {
                state.write(|objects, _| drop(objects.rules.remove(&uid)));
                format!("rule {} is deleted", rule.name)
            }
            (3, Some((uid, rule))) => {
                state.write(|objects, _| drop(objects.rules.remove(&uid)));
                state.create_rule(&rule.name, rule.objects, rule.nodes, rule.strategy.clone());
                format!("rule {} is recreated", rule.name)
            }
            (4, Some((uid, rule))) => {
                state.change_rule(&uid, true, |rule| rule.objects = objects);
                format!("rule {} selects {objects:?}", rule.name)
            }
            (5, Some((uid, rule))) => {
                state.change_rule(&uid, true, |rule| rule.nodes = nodes);
                format!("rule {} selects nodes of tier {nodes:?}", rule.name)
            }
            (_, Some((uid, rule))) => {
                let what = format!("rule {} has {strategy:?}", rule.name);
                state.change_rule(&uid, true, |rule| rule.strategy = strategy);
                what
            }
            _ => return,
        };
        drop(state);
        self.time.say(|| what);
    }

    /// Gives a Node a label that waves select, or takes it.
    fn change_wave_of_node(&mut self) {
        let node = self.time.random.below(self.devices.len() as u64) as usize;
        let is_canary = self.time.random.percent(60);
        let name = self.devices[node].name.clone();
        self.time.say(|| format!("the Node {name} changes its wave"));
        self.model.state().change_node(&name, |node, _| match is_canary {
            true => node.is_canary = !node.is_canary,
            false => node.is_at_site = !node.is_at_site,
        });
    }

    /// Changes the roll-out of the configured rule, which does not run meanwhile.
    pub(super) fn change_configured(&mut self) {
        if self.is_shared || !self.rolls || !self.time.random.percent(30) {
            return;
        }
        let strategy = self.time.random.percent(70).then(|| Strategy::any(&mut self.time.random));
        self.time.say(|| format!("the configuration has {strategy:?}"));
        let mut state = self.model.state();
        for (_, rule) in state.configured.iter_mut().filter(|(_, rule)| rule.name == CONFIGURED) {
            Arc::make_mut(rule).strategy.clone_from(&strategy);
        }
        drop(state);
    }

    /// Has the store contain the rules of the configuration, and the configuration those of the
    /// process that starts.
    pub(super) fn load_configuration(&mut self) {
        if !self.rolls {
            return;
        }
        let mut state = self.model.state();
        for (uid, rule) in state.configured.clone() {
            let stored = state.db.objects.rules.get(&uid);
            if stored.is_none_or(|stored| stored.strategy != rule.strategy) {
                state.change_rule(&uid, true, |stored| stored.strategy = rule.strategy.clone());
            }
        }
        configure(&mut self.config, &state.configured);
        drop(state);
    }

    /// Returns the rules whose status has a revision.
    fn with_revisions(&self) -> Vec<(Uid, Arc<Rule>)> {
        let state = self.model.state();
        let rules = state.db.objects.rules.iter().filter(|(_, rule)| rule.rollout.top().is_some());
        rules.map(|(uid, rule)| (uid.clone(), rule.clone())).collect()
    }

    /// Lets an operator command a roll-out as its status is, at any replica.
    fn command_rollout(&mut self) {
        let rules = self.with_revisions();
        let (which, kind) = (self.time.random.next() as usize, self.time.random.below(8));
        let replica = self.any_replica();
        let Some((_, rule)) = rules.get(which % rules.len().max(1)) else { return };
        let Some((top, open)) = rule.rollout.top() else { return };
        let (by, revision) = ("ada".to_owned(), top.number);
        let command = match kind {
            0 => Command::Pause { by },
            1 | 2 => Command::Resume { by, reason: reason_of(&rule.rollout).unwrap_or(PauseReason::Command) },
            3..=5 => Command::Promote { by, revision, open },
            _ => Command::Undo { by, revision, override_windows: false },
        };
        self.send_command(replica, &rule.name, command);
    }

    fn send_command(&mut self, replica: usize, rule: &str, command: Command) {
        self.time.say(|| format!("{rule}: {command:?}"));
        let request = AdminRequest::MoveRollout(rule.to_owned(), command, oneshot::channel().0);
        self.with_fleet(replica, |fleet| fleet.administer(request));
    }

    /// Changes objects of which a revision has a newer version, which a restore of the cluster has
    /// lost: a leader that had not observed the restore has begun that revision after it. Does the
    /// same if the restore has lost the bodies of such a revision.
    fn change_restored(&mut self) {
        if !self.is_shared || self.restores == 0 {
            return;
        }
        let lost: Vec<String> = {
            let state = self.model.state();
            let objects = &state.db.objects;
            let revisions = || objects.rules.values().flat_map(|rule| rule.rollout.revisions());
            let has_lost = revisions().any(|key| !objects.revisions.contains_key(key));
            let entries = revisions().flat_map(|key| state.sets[key].entries());
            let is_lost = |(uid, entry): &(&Uid, &edgesync_rollout::revision::Entry)| {
                let thing = objects.things.get(*uid);
                thing.is_some_and(|thing| entry.version.as_str().parse::<u64>().unwrap() > thing.version)
            };
            let names = entries.filter(is_lost).map(|(_, entry)| entry.object.name.to_string());
            names.chain(has_lost.then(|| "object-0".to_owned())).collect()
        };
        lost.iter().for_each(|name| self.write(name));
    }

    /// Ends the roll-outs, as an operator does who sees that they wait for a command.
    pub(super) fn end_rollouts(&mut self) {
        self.change_restored();
        for (_, rule) in self.with_revisions() {
            let Some((top, open)) = rule.rollout.top() else { continue };
            let (by, revision) = ("ada".to_owned(), top.number);
            let command = match reason_of(&rule.rollout) {
                Some(reason) if reason != PauseReason::FailuresExceeded => Command::Resume { by, reason },
                _ if rule.rollout.revisions().len() > 1 => Command::Promote { by, revision, open },
                _ => continue,
            };
            self.send_command(0, &rule.name, command);
        }
    }

    /// Checks that each roll-out has ended with what its rule selects, but for what was undone.
    pub(super) fn rollouts_ended(&self) -> std::result::Result<(), String> {
        let state = self.model.state();
        let objects = &state.db.objects;
        for rule in objects.rules.values().filter(|_| self.rolls) {
            let Rule { name, rollout, .. } = &**rule;
            if rule.strategy.is_none() {
                match &rollout.value {
                    None => continue,
                    Some(_) => return Err(format!("rule {name} has no roll-out, and its status has one")),
                }
            }
            let [key] = rollout.revisions().collect::<Vec<_>>()[..] else {
                return Err(format!("the roll-out of rule {name} has not ended: {rollout:?}"));
            };
            let selected: BTreeMap<&Uid, String> = objects
                .things
                .iter()
                .filter(|(_, thing)| rule.selects(thing))
                .map(|(uid, thing)| (uid, thing.version.to_string()))
                .collect();
            let entries = state.sets[key].entries();
            let has: BTreeMap<&Uid, String> =
                entries.iter().map(|(uid, entry)| (uid, entry.version.to_string())).collect();
            let is_undone = rollout.value.as_ref().is_some_and(|value| !value["rejected"].is_null());
            if selected != has && !is_undone {
                return Err(format!("rule {name} selects {selected:?}, its stable revision has {has:?}"));
            }
        }
        Ok(())
    }

    /// Traces the roll-outs that have changed in a state of the source.
    pub(super) fn say_rollouts(&self, at: usize) {
        let state = self.model.state();
        let (before, after) = (&state.history.states[at - 1], &state.history.states[at]);
        for (uid, rule) in after.rules.iter().filter(|_| self.rolls) {
            let known = before.rules.get(uid);
            if known.is_none_or(|known| {
                known.rollout.value != rule.rollout.value || known.generation != rule.generation
            }) {
                self.time.say(|| {
                    format!("state {at}: rule {} ({uid}) {} {}", rule.name, rule.generation, rule.rollout)
                });
            }
        }
    }

    /// Drops the statuses of all roll-outs, as a restore does that leaves them out.
    pub(super) fn drop_statuses(objects: &mut super::history::Objects) {
        for rule in objects.rules.values_mut() {
            let rule = Arc::make_mut(rule);
            (rule.rollout, rule.status) = (Stored::default(), json!({}));
        }
        objects.revisions.clear();
    }
}

/// Returns why a roll-out is paused.
fn reason_of(rollout: &Stored) -> Option<PauseReason> {
    let reason = rollout.value.as_ref()?["paused"].get("reason")?;
    serde_json::from_value(reason.clone()).ok()
}

#[test]
fn the_model_replaces_statuses_and_sweeps_revisions_as_a_store_does() {
    let mut random = Random(1);
    let configured = configured(true, false, &mut random);
    let mut state = State::new(false, 1, random, configured);
    let rule = RuleKey::Configured(CONFIGURED.into());
    let set = Arc::new(Set::default());
    let key = |number| RevisionKey { rule: rule.clone(), number, digest: set.digest() };
    for number in [1, 2] {
        state.store_revision(key(number), set.clone(), Vec::new()).unwrap();
    }
    let revision = json!({"number": 1, "digest": set.digest(), "open": 1});
    let status = |sequence: u64| json!({"sequence": sequence, "nextNumber": 2, "revisions": [revision]});
    let write = |expected: u64| RolloutWrite {
        rule: rule.clone(),
        object: None,
        expected,
        status: Some(status(expected + 1).to_string()),
    };
    assert!(state.write_rollout(write(0), true));
    assert!(!state.write_rollout(write(0), true));
    assert!(state.write_rollout(write(1), true));
    let stored = &state.db.objects.rules[&uid_of(&rule)].rollout;
    assert_eq!((stored.sequence(), stored.top()), (2, Some((&key(1), 1))));
    state.sweep_revisions(&Sweep::default());
    assert!(state.db.objects.revisions.is_empty());
    assert!(state.violation.take().is_some_and(|why| why.contains("a sweep has deleted the bodies")));
}
