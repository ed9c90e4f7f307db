//! Ingest of effect reports, as labels of ObjectSyncs. An item is applied once they are written.
//!
//! The order is that of the parent module: read the record, check who serves the node, write with
//! the version that was read. After a conflict all three steps repeat, so a replica that no longer
//! serves the node fails the check.

use serde_json::json;

use super::{NotApplied, Uploads};
use crate::cluster::Failure;
use crate::source::mark::{EFFECT_EPOCH, RECORD_NODE, epoch_value};
use crate::source::records::{EFFECT_LABELS, KnownRecord, Records, Unwritten};
use crate::source::syncs::{Owner, Syncs};
use edgesync_cloud_store::{effect_labels, effect_wait};
use edgesync_fleet::source::SourceError;
use edgesync_object::objectsync::{EFFECT_WAIT_ANNOTATION, split_sync_name, sync_name};
use edgesync_object::{NodeName, Object, ResourceVersion};
use edgesync_protocol::cloud::Record;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::upload::{EffectContent, EffectState, RefusedReason};

/// Attempts to label an ObjectSync that changes concurrently.
const ATTEMPTS: usize = 10;

/// The ObjectSyncs that show what is in effect, and their other writer.
#[derive(Clone, Debug)]
pub(in crate::source) struct EffectRecords {
    pub(in crate::source) records: Records,
    pub(in crate::source) syncs: Syncs,
}

impl Uploads {
    /// Labels the ObjectSync of an object with what is in effect, if the object is `known` to be
    /// placed on the node or held by it; nothing is read for another one. Does nothing unless every
    /// object has an ObjectSync.
    pub(super) async fn apply_in_effect(
        &self,
        node: &NodeName,
        epoch: Epoch,
        effect: &EffectContent,
        known: bool,
    ) -> Result<(), NotApplied> {
        match effect.state {
            _ if known => {}
            // Its labels are deleted with its record.
            EffectState::Gone => return Ok(()),
            _ => return Err(NotApplied::not_placed(&effect.object.key())),
        }
        let Some(EffectRecords { records, syncs }) = &self.effect_records else { return Ok(()) };
        let (namespace, is_gone) = (&*effect.object.namespace, effect.state == EffectState::Gone);
        let name =
            sync_name(node, &effect.uid).map_err(|why| NotApplied::Refused(RefusedReason::Invalid, why))?;
        let resource = records.kind(namespace);
        for _ in 0..ATTEMPTS {
            let Some(mut record) = self.requests.get(resource, namespace, &name).await? else {
                if is_gone {
                    return Ok(());
                }
                if !self.create_record(node, effect).await? {
                    return Ok(());
                }
                continue;
            };
            if !is_record_of(&record, node) {
                let why = format!("ObjectSync {name} exists without label {RECORD_NODE} of the node");
                return Err(NotApplied::Refused(RefusedReason::Other, why));
            }
            if !label(&mut record, epoch, effect) {
                return Ok(());
            }
            self.check_served(node).await?;
            match self.requests.replace(resource, &record).await {
                Ok(written) => {
                    syncs.record_write(node, &effect.uid, KnownRecord::of(&written));
                    return Ok(());
                }
                Err(Failure::Conflict(_) | Failure::NotFound(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(NotApplied::Failed(SourceError::Contended { kind: "ObjectSync", name }))
    }

    /// Creates the missing ObjectSync of an object that the node holds. Returns false if none can
    /// exist.
    async fn create_record(&self, node: &NodeName, effect: &EffectContent) -> Result<bool, NotApplied> {
        let Some(EffectRecords { records, syncs }) = &self.effect_records else { return Ok(false) };
        let owner = match syncs.owner(node).await? {
            Owner::Is(owner) => owner,
            Owner::Missing => {
                return Err(NotApplied::Failed(SourceError::Missing {
                    kind: "Node",
                    name: node.to_string(),
                }));
            }
            Owner::Foreign => return Ok(false),
        };
        let record = Record { version: effect.wanted.clone(), object: effect.object.clone().into() };
        self.check_served(node).await?;
        match records.put((node, &owner), &effect.uid, &record, None).await {
            Ok(known) => syncs.record_write(node, &effect.uid, known),
            // Another writer created it first.
            Err(Unwritten::Changed) => {}
            // The answer does not depend on the namespace, which only the node may have named.
            Err(Unwritten::Refused(why)) => {
                tracing::debug!(node = node.as_str(), uid = &*effect.uid, why, "ObjectSync not created");
                return Ok(false);
            }
            Err(Unwritten::Failed(failure)) => return Err(failure.into()),
        }
        Ok(true)
    }
}

fn is_record_of(record: &Object, node: &NodeName) -> bool {
    record.labels().contains_key(RECORD_NODE)
        && split_sync_name(record.name()).is_some_and(|(of, _)| *node == *of)
}

/// Sets the effect labels of a record, and its annotation about a wait, and keeps all others.
/// Returns whether they changed.
fn label(record: &mut Object, epoch: Epoch, effect: &EffectContent) -> bool {
    let before = record.labels();
    let mut labels = before.clone();
    labels.retain(|key, _| !EFFECT_LABELS.contains(&key.as_str()));
    if effect.state != EffectState::Gone {
        let version = effect.version.as_ref().map(ResourceVersion::as_str);
        let effect_labels = effect_labels(version, effect.state);
        labels.extend(effect_labels.into_iter().map(|(key, value)| (key.to_owned(), value)));
        labels.insert(EFFECT_EPOCH.to_owned(), epoch_value(epoch));
    }
    let changes = labels != before;
    record.set_metadata("labels", json!(labels));
    record.set_annotation(EFFECT_WAIT_ANNOTATION, effect_wait(effect.state, &effect.message)) || changes
}

#[cfg(test)]
mod tests;
