//! Leases of nodes: created as ordinary objects, renewed in place. For reasons and cost see
//! `docs/decisions/0010-leases.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension};
use serde::Deserialize;
use serde_json::{Value, json};

use super::objects::{ObjectRow, Tx, find, parse, resource_id};
use super::{CloudError, node_of_row};
use edgesync_object::time::{rfc3339, rfc3339_micros};
use edgesync_object::{NodeName, Object, Resource, with_field, with_resource_version};

/// Namespace of the Leases of nodes.
pub(super) const NAMESPACE: &str = "kube-node-lease";
/// API group of Leases.
const GROUP: &str = "coordination.k8s.io";
/// First row id of Leases; they use the negative ids. Rows that change every few seconds are
/// adjacent, so that a batch writes few pages. Other rows have positive ids.
const FIRST_ROW: i64 = -(1 << 40);

/// Annotation of a Lease: when a node that is away as planned connects again, by the cloud's clock.
pub const NEXT_CHECK_IN: &str = "edgesync.io/next-check-in";

/// Renewal of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRenewal {
    /// The node: the Lease is `kube-node-lease/<node>`, and its holder has this name.
    pub node: NodeName,
    /// Lease duration, in seconds.
    pub seconds: u32,
    /// Time at which this run of the agent acquired it.
    pub acquired: Timestamp,
    /// Time of the renewal.
    pub renewed: Timestamp,
    /// Number of changes of the holder.
    pub transitions: u32,
    /// Time by which a node that is away as planned has announced to connect again.
    pub next: Option<Timestamp>,
}

impl LeaseRenewal {
    /// Returns the spec of the Lease.
    #[must_use]
    pub fn spec(&self) -> Value {
        json!({
            "acquireTime": rfc3339_micros(self.acquired),
            "holderIdentity": self.node,
            "leaseDurationSeconds": self.seconds,
            "leaseTransitions": self.transitions,
            "renewTime": rfc3339_micros(self.renewed),
        })
    }
}

impl Tx<'_> {
    /// Renews Leases, with the last renewal of each node. Renewals for removed nodes are skipped.
    pub(super) fn renew_leases(
        &mut self,
        resource: &Arc<Resource>,
        renewals: &[LeaseRenewal],
    ) -> Result<(), CloudError> {
        let kind = self.register(resource, &resource.key(NAMESPACE, ""))?;
        let last: BTreeMap<&str, &LeaseRenewal> =
            renewals.iter().map(|renewal| (renewal.node.as_str(), renewal)).collect();
        for (node, renewal) in last {
            match find(self.conn, kind, NAMESPACE, node)? {
                Some(row) => self.renew(resource, row, renewal)?,
                None => self.grant(resource, renewal)?,
            }
        }
        Ok(())
    }

    /// Updates the row in place, with a new version, without history or notification.
    fn renew(
        &mut self,
        resource: &Arc<Resource>,
        row: ObjectRow,
        renewal: &LeaseRenewal,
    ) -> Result<(), CloudError> {
        // Rare: once when the node leaves, once when it returns.
        if renewal.next.is_some() || row.stored.body.contains(NEXT_CHECK_IN) {
            let mut object = parse(&row.stored)?;
            set_next(&mut object, renewal);
            object.fields_mut().insert("spec".to_owned(), renewal.spec());
            return self.change(resource, row, object).map(drop);
        }
        if !row.stored.body.contains("\"ownerReferences\":")
            && let Some(owner) = self.owner(&renewal.node)?
        {
            return self.adopt(resource, row, renewal, &owner);
        }
        let Some(body) = with_field(&row.stored.body, "spec", &spec_text(renewal)) else {
            let mut object = parse(&row.stored)?;
            object.fields_mut().insert("spec".to_owned(), renewal.spec());
            return self.change(resource, row, object).map(drop);
        };
        let version = self.state.next_version();
        self.conn.prepare_cached("UPDATE objects SET version = ?2, body = ?3 WHERE id = ?1")?.execute((
            row.id,
            version,
            with_resource_version(&body, version),
        ))?;
        Ok(())
    }

    /// Sets the owner of a Lease that is older than its Node. An ordinary change, because garbage
    /// collectors, which follow owners, must observe it.
    fn adopt(
        &mut self,
        resource: &Arc<Resource>,
        row: ObjectRow,
        renewal: &LeaseRenewal,
        owner: &Value,
    ) -> Result<(), CloudError> {
        let mut object = parse(&row.stored)?;
        object.set_metadata("ownerReferences", json!([owner]));
        object.fields_mut().insert("spec".to_owned(), renewal.spec());
        self.change(resource, row, object).map(drop)
    }

    /// Creates the Lease of a node, unless the node was removed meanwhile.
    fn grant(&mut self, resource: &Arc<Resource>, renewal: &LeaseRenewal) -> Result<(), CloudError> {
        let node = &renewal.node;
        if self.was_removed(node)? {
            return Ok(());
        }
        let mut object = Object::default();
        object.fields_mut().insert("apiVersion".to_owned(), resource.api_version().into());
        object.fields_mut().insert("kind".to_owned(), resource.kind.as_str().into());
        object.fields_mut().insert("spec".to_owned(), renewal.spec());
        set_next(&mut object, renewal);
        object.set_metadata("name", node.as_str());
        object.set_metadata("namespace", NAMESPACE);
        if let Some(owner) = self.owner(node)? {
            object.set_metadata("ownerReferences", json!([owner]));
        }
        self.create_at(self.lease_row()?, resource, object).map(drop)
    }

    /// Returns the next row id for a Lease; `None` when they are used up.
    fn lease_row(&self) -> rusqlite::Result<Option<i64>> {
        let last: Option<i64> = self
            .conn
            .prepare_cached("SELECT max(id) FROM objects WHERE id < 0")?
            .query_row([], |row| row.get(0))?;
        Ok(last.map_or(Some(FIRST_ROW), |last| last.checked_add(1).filter(|next| *next < 0)))
    }

    /// Returns an owner reference to a Node, if the Node exists.
    fn owner(&self, node: &NodeName) -> rusqlite::Result<Option<Value>> {
        let Some(kind) = resource_id(self.conn, "", "Node")? else { return Ok(None) };
        let uid: Option<String> = self
            .conn
            .prepare_cached(
                "SELECT uid FROM objects WHERE resource_id = ?1 AND namespace = '' AND name = ?2",
            )?
            .query_row((kind, node.as_str()), |row| row.get(0))
            .optional()?;
        Ok(uid.map(|uid| json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid})))
    }
}

/// Sets or removes the annotation [`NEXT_CHECK_IN`].
fn set_next(lease: &mut Object, renewal: &LeaseRenewal) {
    let mut annotations = lease.annotations();
    let before = match renewal.next {
        Some(next) => annotations.insert(NEXT_CHECK_IN.to_owned(), rfc3339(next)),
        None => annotations.remove(NEXT_CHECK_IN),
    };
    if before.is_some() || renewal.next.is_some() {
        lease.set_metadata("annotations", json!(annotations));
    }
}

/// Formats the spec as text, without a tree. The name needs no escapes: node names have no
/// characters that JSON escapes.
fn spec_text(renewal: &LeaseRenewal) -> String {
    format!(
        r#"{{"acquireTime":"{}","holderIdentity":"{}","leaseDurationSeconds":{},"leaseTransitions":{},"renewTime":"{}"}}"#,
        rfc3339_micros(renewal.acquired),
        renewal.node,
        renewal.seconds,
        renewal.transitions,
        rfc3339_micros(renewal.renewed),
    )
}

#[derive(Deserialize)]
struct LeaseBody {
    #[serde(default)]
    metadata: LeaseMetadata,
    spec: LeaseSpec,
}

#[derive(Default, Deserialize)]
struct LeaseMetadata {
    #[serde(default)]
    annotations: LeaseAnnotations,
}

#[derive(Default, Deserialize)]
struct LeaseAnnotations {
    #[serde(rename = "edgesync.io/next-check-in")]
    next: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: String,
    lease_duration_seconds: u32,
    acquire_time: Option<Timestamp>,
    renew_time: Timestamp,
    #[serde(default)]
    lease_transitions: u32,
}

/// Returns the Leases that nodes hold, as last written, and the names of those without a Node.
/// Other Leases in the namespace are skipped.
pub(super) fn leases(conn: &Connection) -> Result<(Vec<LeaseRenewal>, Vec<NodeName>), CloudError> {
    let (mut leases, mut orphans) = (Vec::new(), Vec::new());
    let Some(kind) = resource_id(conn, GROUP, "Lease")? else { return Ok((leases, orphans)) };
    let mut statement = conn.prepare_cached(
        "SELECT name, body, EXISTS (SELECT 1 FROM objects node
           WHERE node.resource_id = ?3 AND node.namespace = '' AND node.name = lease.name)
         FROM objects lease WHERE resource_id = ?1 AND namespace = ?2 ORDER BY name",
    )?;
    let mut rows = statement.query((kind, NAMESPACE, resource_id(conn, "", "Node")?))?;
    while let Some(row) = rows.next()? {
        let node = row.get_ref(0)?.as_str().unwrap_or_default();
        let Ok(LeaseBody { metadata, spec }) =
            serde_json::from_str(row.get_ref(1)?.as_str().unwrap_or_default())
        else {
            continue;
        };
        if spec.holder_identity != node {
            continue;
        }
        let Some(node) = node_of_row(node) else { continue };
        if !row.get::<_, bool>(2)? {
            orphans.push(node.clone());
        }
        leases.push(LeaseRenewal {
            node,
            seconds: spec.lease_duration_seconds,
            acquired: spec.acquire_time.unwrap_or(spec.renew_time),
            renewed: spec.renew_time,
            transitions: spec.lease_transitions,
            next: metadata.annotations.next.and_then(|next| next.parse().ok()),
        });
    }
    Ok((leases, orphans))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_spec_is_that_of_its_tree() {
        let renewal = LeaseRenewal {
            node: NodeName::parse("edge-1.lab").unwrap(),
            seconds: 40,
            acquired: Timestamp::from_microsecond(1_795_000_000_000_001).unwrap(),
            renewed: Timestamp::from_microsecond(1_795_000_010_500_000).unwrap(),
            transitions: 3,
            next: None,
        };
        assert_eq!(spec_text(&renewal), renewal.spec().to_string());
        let read: LeaseSpec = serde_json::from_str(&spec_text(&renewal)).unwrap();
        assert_eq!((read.renew_time, read.acquire_time), (renewal.renewed, Some(renewal.acquired)));
    }
}
