//! Objects in effect on nodes: for each object that file rules concern there, the version that the
//! node's programs use, and the reason if it is not the newest one.
//!
//! A row belongs to a record of the node, or to one that is about to arrive, and is deleted with
//! it. It is also deleted when the node reports from another database file, because the reports of
//! a lost file are invalid. The record repeats the row in two labels: API clients see only those.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::json;

use super::objects::{Tx, parse};
use super::{CloudError, CloudStore, node_of_row};
use edgesync_object::objectsync::{EFFECT_STATE_LABEL, EFFECT_WAIT_ANNOTATION, IN_EFFECT_LABEL};
use edgesync_object::{NodeName, Object, Resource, ResourceVersion, kinds, name};
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::message::clip;
use edgesync_protocol::upload::{EffectContent, EffectState, IngestCursor, Lane};
use edgesync_store::StoreError;
use edgesync_store::checksum::checksum64;

/// Stored effect of an object on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InEffect {
    /// The UID of the object.
    pub uid: Uid,
    /// The version in effect, if any.
    pub version: Option<ResourceVersion>,
    /// The version tried last.
    pub wanted: ResourceVersion,
    /// The state of the version tried last.
    pub state: EffectState,
    /// The rule that decides.
    pub rule: String,
    /// Reason for which it is not in effect.
    pub message: String,
    /// Time of the last transition, Unix time in microseconds by the node's clock.
    pub since: i64,
}

/// Numbers of a node's objects by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EffectCounts {
    /// In effect in the version tried last.
    pub in_effect: u64,
    /// Not in effect in the version tried last.
    pub not_in_effect: u64,
    /// Not in effect because of a conflict.
    pub conflicts: u64,
    /// Waiting for a window, a condition, or the end of a hold.
    pub waiting: u64,
}

impl EffectCounts {
    /// Returns the total of all states.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.in_effect + self.not_in_effect + self.conflicts + self.waiting
    }

    fn of(&mut self, state: EffectState) -> &mut u64 {
        match state {
            EffectState::InEffect => &mut self.in_effect,
            EffectState::Conflict => &mut self.conflicts,
            EffectState::Waiting => &mut self.waiting,
            _ => &mut self.not_in_effect,
        }
    }
}

/// Limit of the messages kept for a node in [`NodeEffects`].
const MAX_MESSAGES: usize = 4;
/// Limit of the length of each of them in bytes.
const MAX_MESSAGE: usize = 240;

/// Effects on one node, in about 30 bytes per object: a thousand objects on each of ten thousand
/// nodes must fit.
#[derive(Clone, Debug, Default)]
pub struct NodeEffects {
    epoch: Option<Epoch>,
    /// The [`key_of`] the version tried last, which is the one in effect if the state says so, and
    /// the state; by the [`key_of`] the UID.
    objects: HashMap<u64, (u64, EffectState)>,
    counts: EffectCounts,
    /// Messages about objects that are not in effect, the newest last; by the [`key_of`] the UID.
    messages: Vec<(u64, Box<str>)>,
    taken: IngestCursor,
}

/// Returns the hash that represents a UID or a version.
#[must_use]
pub fn key_of(text: &str) -> u64 {
    checksum64(&[text.as_bytes()]).cast_unsigned()
}

impl NodeEffects {
    /// Applies one item of a node's outbox, unless it was applied before. A refused item (`None`)
    /// counts as applied, also when it is retransmitted.
    pub fn ingest(&mut self, outbox: &str, seq: u64, epoch: Epoch, effect: Option<&EffectContent>) {
        self.taken.begin(outbox, Lane::Status, 0);
        let is_new = self.taken.accept(Lane::Status, seq);
        if let Some(effect) = effect.filter(|_| is_new) {
            self.follow(epoch);
            match effect.state {
                EffectState::Gone => self.forget(&effect.uid),
                state => self.set(key_of(&effect.uid), &effect.wanted, state, &effect.message),
            }
        }
    }

    /// Switches to the node's database file; a change of the epoch discards everything.
    pub fn follow(&mut self, epoch: Epoch) {
        if self.epoch.replace(epoch).is_some_and(|before| before != epoch) {
            self.objects = HashMap::new();
            self.counts = EffectCounts::default();
            self.messages = Vec::new();
        }
    }

    pub fn forget(&mut self, uid: &str) {
        let key = key_of(uid);
        if let Some((_, state)) = self.objects.remove(&key) {
            *self.counts.of(state) -= 1;
        }
        self.messages.retain(|(of, _)| *of != key);
    }

    /// Removes all objects except these.
    pub fn keep<'a>(&mut self, uids: impl Iterator<Item = &'a str>) {
        if self.objects.is_empty() {
            return;
        }
        let kept: HashSet<u64> = uids.map(key_of).collect();
        let counts = &mut self.counts;
        self.objects.retain(|key, (_, state)| {
            let stays = kept.contains(key);
            *counts.of(*state) -= u64::from(!stays);
            stays
        });
        self.messages.retain(|(of, _)| kept.contains(of));
    }

    fn set(&mut self, key: u64, wanted: &ResourceVersion, state: EffectState, message: &str) {
        let version = key_of(wanted.as_str());
        if let Some((_, before)) = self.objects.insert(key, (version, state)) {
            *self.counts.of(before) -= 1;
        }
        *self.counts.of(state) += 1;
        self.messages.retain(|(of, _)| *of != key);
        let is_failure = !matches!(state, EffectState::InEffect | EffectState::Waiting);
        if is_failure && !message.is_empty() {
            if self.messages.len() == MAX_MESSAGES {
                self.messages.remove(0);
            }
            self.messages.push((key, one_line(message)));
        }
    }

    /// Returns why an object, given by its [`key_of`], is not in effect: the message of the node in
    /// one line. It may quote all files of the rule, also those of Secrets. Only the newest
    /// messages of a node are kept.
    #[must_use]
    pub fn message(&self, uid: u64) -> Option<&str> {
        self.messages.iter().find(|(of, _)| *of == uid).map(|(_, message)| &**message)
    }

    /// Returns whether a version of an object is in effect, both given by their [`key_of`]; `None`
    /// if the node has not reported the object.
    #[must_use]
    pub fn has(&self, uid: u64, version: u64) -> Option<bool> {
        let (found, state) = self.objects.get(&uid)?;
        Some(*state == EffectState::InEffect && *found == version)
    }

    /// Returns the state of an object if this version of it was tried last, both given by their
    /// [`key_of`]. The outer `None`: the node has not reported the object.
    #[must_use]
    pub fn state(&self, uid: u64, version: u64) -> Option<Option<EffectState>> {
        let (found, state) = self.objects.get(&uid)?;
        Some((*found == version).then_some(*state))
    }

    /// Returns the numbers of objects by state.
    #[must_use]
    pub fn counts(&self) -> EffectCounts {
        self.counts
    }
}

/// Returns the beginning of a message, without control characters.
fn one_line(message: &str) -> Box<str> {
    let text = message.trim();
    let shown = clip(text, MAX_MESSAGE);
    let ellipsis = if shown.len() < text.len() { "…" } else { "" };
    shown.chars().map(|c| if c.is_control() { ' ' } else { c }).chain(ellipsis.chars()).collect()
}

/// Returns the labels by which a record shows the effect of its object.
#[must_use]
pub fn effect_labels(version: Option<&str>, state: EffectState) -> BTreeMap<&'static str, String> {
    let version = version.filter(|version| name::check_label_value(version).is_ok());
    let mut labels = BTreeMap::from([(EFFECT_STATE_LABEL, state.name().to_owned())]);
    labels.extend(version.map(|version| (IN_EFFECT_LABEL, version.to_owned())));
    labels
}

/// Returns the annotation by which a record shows what its object waits for.
#[must_use]
pub fn effect_wait(state: EffectState, message: &str) -> Option<&str> {
    (state == EffectState::Waiting).then_some(message)
}

/// Labels and annotation by which a record shows the effect of its object.
#[derive(Default)]
pub(super) struct ShownEffect {
    pub(super) labels: BTreeMap<&'static str, String>,
    /// The value of its annotation about a wait.
    pub(super) wait: Option<String>,
}

impl CloudStore {
    /// Returns the effects on a node, ordered by UID.
    ///
    /// # Errors
    /// The store's.
    pub async fn in_effect(&self, node: &NodeName) -> Result<Vec<InEffect>, CloudError> {
        let node = node.clone();
        self.readers.run(move |conn| in_effect(conn, &node)).await
    }

    /// Returns the effects on all nodes that have reported any, in compact form.
    ///
    /// # Errors
    /// The store's.
    pub async fn effects_by_node(&self) -> Result<HashMap<NodeName, NodeEffects>, CloudError> {
        self.readers.run(effects_by_node).await
    }
}

impl InEffect {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let version = |index| row.get::<_, Option<String>>(index).map(|text| text.map(ResourceVersion::new));
        Ok(Self {
            uid: row.get(0)?,
            version: version(1)?,
            wanted: version(2)?.unwrap_or_else(|| "".into()),
            state: state_of(row.get_ref(3)?.as_str().unwrap_or_default()),
            rule: row.get(4)?,
            message: row.get(5)?,
            since: row.get(6)?,
        })
    }
}

fn state_of(name: &str) -> EffectState {
    let known =
        [EffectState::InEffect, EffectState::NotInEffect, EffectState::Conflict, EffectState::Waiting];
    known.into_iter().find(|state| state.name() == name).unwrap_or(EffectState::Other)
}

fn in_effect(conn: &Connection, node: &NodeName) -> Result<Vec<InEffect>, CloudError> {
    let mut statement = conn.prepare_cached(
        "SELECT uid, version, wanted, state, rule, message, since FROM effects WHERE node = ?1 ORDER BY uid",
    )?;
    let rows = statement.query_map([node.as_str()], InEffect::read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn effects_by_node(conn: &Connection) -> Result<HashMap<NodeName, NodeEffects>, CloudError> {
    let mut statement =
        conn.prepare_cached("SELECT node, epoch, uid, wanted, state, message FROM effects")?;
    let mut rows = statement.query([])?;
    let mut found: HashMap<NodeName, NodeEffects> = HashMap::new();
    while let Some(row) = rows.next()? {
        let node = row.get_ref(0)?.as_str().unwrap_or_default();
        if !found.contains_key(node) {
            let Some(name) = node_of_row(node) else { continue };
            found.insert(name, NodeEffects::default());
        }
        let Some(effects) = found.get_mut(node) else { continue };
        let epoch = row.get_ref(1)?.as_str().unwrap_or_default().parse();
        let damaged = |_| StoreError::corrupt(format!("effect states of node '{node}' are damaged"));
        effects.follow(epoch.map_err(damaged)?);
        let wanted = row.get::<_, Option<String>>(3)?.map_or_else(|| "".into(), ResourceVersion::new);
        let state = state_of(row.get_ref(4)?.as_str().unwrap_or_default());
        let (uid, message) = (row.get_ref(2)?, row.get_ref(5)?);
        let key = key_of(uid.as_str().unwrap_or_default());
        effects.set(key, &wanted, state, message.as_str().unwrap_or_default());
    }
    Ok(found)
}

impl Tx<'_> {
    /// Records the effect of an object on a node with this epoch. Returns whether the node may hold
    /// the object: it is `known` to the caller, or recorded.
    pub(super) fn put_in_effect(
        &mut self,
        node: &NodeName,
        epoch: Epoch,
        effect: &EffectContent,
        known: bool,
    ) -> Result<bool, CloudError> {
        let uid = &*effect.uid;
        if effect.state == EffectState::Gone {
            self.forget_in_effect(node, uid)?;
            return Ok(true);
        }
        if !known && self.find_record(node, uid)?.is_none() {
            return Ok(false);
        }
        let version = effect.version.as_ref().map(ResourceVersion::as_str);
        self.conn
            .prepare_cached(
                "INSERT INTO effects (node, uid, epoch, version, wanted, state, rule, message, since)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT (node, uid) DO UPDATE SET epoch = excluded.epoch, version = excluded.version,
                   wanted = excluded.wanted, state = excluded.state, rule = excluded.rule,
                   message = excluded.message, since = excluded.since",
            )?
            .execute((
                node.as_str(),
                uid,
                epoch.to_string(),
                version,
                effect.wanted.as_str(),
                effect.state.name(),
                &effect.rule,
                &effect.message,
                effect.since,
            ))?;
        let wait = effect_wait(effect.state, &effect.message);
        self.label_record(node, uid, &effect_labels(version, effect.state), wait)?;
        Ok(true)
    }

    /// Returns what the record of an object shows, if the node has reported on it.
    pub(super) fn shown_effect(&self, node: &NodeName, uid: &str) -> Result<Option<ShownEffect>, CloudError> {
        let sql = "SELECT version, state, message FROM effects WHERE node = ?1 AND uid = ?2";
        let mut statement = self.conn.prepare_cached(sql)?;
        let shown = statement.query_row((node.as_str(), uid), |row| {
            let version: Option<String> = row.get(0)?;
            let state = state_of(row.get_ref(1)?.as_str().unwrap_or_default());
            let wait = effect_wait(state, row.get_ref(2)?.as_str().unwrap_or_default()).map(str::to_owned);
            Ok(ShownEffect { labels: effect_labels(version.as_deref(), state), wait })
        });
        Ok(shown.optional()?)
    }

    /// Deletes the effect of an object that the node no longer holds or reports on.
    pub(super) fn forget_in_effect(&mut self, node: &NodeName, uid: &str) -> Result<(), CloudError> {
        let mut forget = self.conn.prepare_cached("DELETE FROM effects WHERE node = ?1 AND uid = ?2")?;
        if forget.execute((node.as_str(), uid))? > 0 {
            self.label_record(node, uid, &BTreeMap::new(), None)?;
        }
        Ok(())
    }

    /// Deletes effects reported from other epochs; and effects of objects not in `held`, if given.
    pub(super) fn forget_effects(
        &mut self,
        node: &NodeName,
        epoch: Epoch,
        held: Option<&HashSet<&str>>,
    ) -> Result<(), CloudError> {
        let epoch = epoch.to_string();
        let sql = "SELECT uid, epoch FROM effects WHERE node = ?1";
        let mut statement = self.conn.prepare_cached(sql)?;
        let mut rows = statement.query([node.as_str()])?;
        let mut gone: Vec<String> = Vec::new();
        while let Some(row) = rows.next()? {
            let uid = row.get_ref(0)?.as_str().unwrap_or_default();
            if row.get_ref(1)?.as_str().unwrap_or_default() != epoch
                || held.is_some_and(|held| !held.contains(uid))
            {
                gone.push(uid.to_owned());
            }
        }
        for uid in gone {
            self.forget_in_effect(node, &uid)?;
        }
        Ok(())
    }

    /// Deletes all effects of a removed node. Its records are deleted already.
    pub(super) fn drop_effects(&self, node: &NodeName) -> rusqlite::Result<()> {
        self.conn.prepare_cached("DELETE FROM effects WHERE node = ?1")?.execute([node.as_str()]).map(drop)
    }

    /// Updates the effect labels of a record, and its annotation about a wait, if the record
    /// exists. Other labels and annotations stay.
    fn label_record(
        &mut self,
        node: &NodeName,
        uid: &str,
        wanted: &BTreeMap<&'static str, String>,
        wait: Option<&str>,
    ) -> Result<(), CloudError> {
        let Some(row) = self.find_record(node, uid)? else { return Ok(()) };
        let mut object = parse(&row.stored)?;
        let before = object.labels();
        let mut labels = before.clone();
        labels.retain(|key, _| ![IN_EFFECT_LABEL, EFFECT_STATE_LABEL].contains(&key.as_str()));
        labels.extend(wanted.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        if !object.set_annotation(EFFECT_WAIT_ANNOTATION, wait) && labels == before {
            return Ok(());
        }
        if labels.is_empty() {
            object.remove_metadata("labels");
        } else {
            object.set_metadata("labels", json!(labels));
        }
        let resource = kind_of_record(&object)?;
        self.change(&resource, row, object).map(drop)
    }
}

fn kind_of_record(object: &Object) -> Result<Arc<Resource>, StoreError> {
    let known = ["objectsyncs", "clusterobjectsyncs"].into_iter().filter_map(kinds::by_word);
    let found = known.map(kinds::KnownKind::resource).find(|resource| resource.kind == object.kind());
    found.map(Arc::new).ok_or_else(|| StoreError::internal("record of an unknown kind"))
}
