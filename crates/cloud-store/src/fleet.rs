//! Nodes as objects: the Node and the Lease of each.
//!
//! Leases are renewed in batches, outside of the history: a renewal updates the row of the Lease in
//! place, with a new version, and without a notification of watches.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::Connection;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::objects::{Tx, find, parse, resource_id};
use super::{CloudError, CloudStore, LeaseRenewal, leases, node_of_row};
use edgesync_object::node_labels::{assign_missing_labels, has_reported, labels_by_name};
use edgesync_object::{NodeName, Resource};
use edgesync_protocol::node::{self, Condition, NodeReport};
use edgesync_store::StoreError;

/// Approximate size of a Lease in the queue and in the transaction.
const LEASE_BYTES: usize = 1024;
/// Approximate size of a Node's change.
const NODE_BYTES: usize = 4096;

/// Desired change of a Node. Creates the Node if it does not exist.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeChange {
    /// The node to change.
    pub node: NodeName,
    /// Report of the node, which replaces its previous report. Labels set by others stay.
    pub report: Option<NodeReport>,
    /// Conditions to set; others stay. A condition with an unchanged status keeps its
    /// `lastTransitionTime`.
    pub conditions: Vec<Condition>,
}

/// State of all nodes at startup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Nodes with a Node object that they have reported themselves.
    pub nodes: Vec<NodeName>,
    /// The Leases, as last written.
    pub leases: Vec<LeaseRenewal>,
    /// Leases without a Node: the node was removed, or never existed.
    pub orphans: Vec<NodeName>,
    /// Removed nodes, with the time of removal.
    pub removed: Vec<(NodeName, Timestamp)>,
    /// Removed nodes with objects that no process has deleted yet; none if a removal is one
    /// transaction.
    pub removing: Vec<NodeName>,
}

impl CloudStore {
    /// Reads the state of all nodes.
    ///
    /// # Errors
    /// The store's.
    pub async fn registered(&self) -> Result<Registered, CloudError> {
        self.readers
            .run(|conn| {
                let (leases, orphans) = leases::leases(conn)?;
                let (nodes, removed) = (reported(conn)?, removed(conn)?);
                Ok(Registered { nodes, leases, orphans, removed, removing: Vec::new() })
            })
            .await
    }

    /// Writes Leases in one transaction and creates missing ones. Only the last renewal of each
    /// node counts. A removed node gets no Lease.
    ///
    /// A renewal gives the Lease its next version, so that a write based on an older one conflicts,
    /// but it does not enter the history or notify the [`super::CommitListener`]. It drops fields
    /// of `spec` that a renewal does not have. Creating a Lease, or setting its Node as its owner,
    /// is an ordinary change.
    ///
    /// # Errors
    /// The store's.
    pub async fn renew_leases(&self, renewals: Vec<LeaseRenewal>) -> Result<(), CloudError> {
        if renewals.is_empty() {
            return Ok(());
        }
        let resource = self.shared.kind("leases")?;
        let bytes = renewals.len().saturating_mul(LEASE_BYTES);
        self.write(bytes, move |tx| tx.renew_leases(&resource, &renewals)).await
    }

    /// Changes Nodes in one transaction. A change without a difference costs no version. Reports
    /// that would make a Node unreadable for clients are logged and left out; removed nodes are
    /// left out silently.
    ///
    /// # Errors
    /// The store's.
    pub async fn change_nodes(&self, changes: Vec<NodeChange>) -> Result<(), CloudError> {
        if changes.is_empty() {
            return Ok(());
        }
        let resource = self.shared.kind("nodes")?;
        let bytes = changes.len().saturating_mul(NODE_BYTES);
        self.write(bytes, move |tx| {
            for change in &changes {
                let problem = match &change.report {
                    Some(report) => report.check().err().map(|problems| problems.to_string()),
                    None => None,
                };
                if let Some(problem) = problem {
                    tracing::warn!(
                        node = change.node.as_str(),
                        problem,
                        "invalid node report, Node unchanged"
                    );
                } else {
                    tx.change_node(&resource, change)?;
                }
            }
            Ok(())
        })
        .await
    }
}

impl Tx<'_> {
    /// Changes or creates a Node. The caller has validated name and report.
    pub(super) fn change_node(
        &mut self,
        resource: &Arc<Resource>,
        change: &NodeChange,
    ) -> Result<(), CloudError> {
        let row = match resource_id(self.conn, &resource.group, &resource.kind)? {
            Some(kind) => find(self.conn, kind, "", &change.node)?,
            None => None,
        };
        let mut object = match &row {
            Some(row) => parse(&row.stored)?,
            None if self.was_removed(&change.node)? => return Ok(()),
            None => node::new_node(&change.node),
        };
        if row.is_none() || change.report.is_some() {
            let mut given = labels_by_name(&change.node);
            if !has_reported(&object) {
                given.extend(self.member_labels(&change.node)?.unwrap_or_default());
            }
            assign_missing_labels(&mut object, &given);
        }
        if let Some(report) = &change.report {
            node::merge_report(&mut object, report, self.now);
        }
        for condition in &change.conditions {
            node::set_node_condition(&mut object, condition, self.now);
        }
        match row {
            None => self.create(resource, object).map(drop),
            // Both have sorted keys, so equal objects have equal texts.
            Some(row) if row.stored.body == object.to_json() => Ok(()),
            Some(row) => self.change(resource, row, object).map(drop),
        }
    }
}

/// Part of a Node that shows whether the node has reported.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeHead {
    metadata: NodeMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeMetadata {
    annotations: NodeAnnotations,
}

#[derive(Default, Deserialize)]
struct NodeAnnotations {
    /// Present, even if empty, once the node has reported.
    #[serde(rename = "edgesync.io/node-labels")]
    node_labels: Option<IgnoredAny>,
}

/// Returns the nodes that have reported, ordered by name.
fn reported(conn: &Connection) -> Result<Vec<NodeName>, CloudError> {
    let Some(kind) = resource_id(conn, "", "Node")? else { return Ok(Vec::new()) };
    let mut statement =
        conn.prepare_cached("SELECT name, body FROM objects WHERE resource_id = ?1 ORDER BY name")?;
    let mut rows = statement.query([kind])?;
    let mut nodes = Vec::new();
    while let Some(row) = rows.next()? {
        let body = row.get_ref(1)?.as_str().unwrap_or_default();
        // A field of a wrong type does not come from a report.
        let head: NodeHead = serde_json::from_str(body).unwrap_or_default();
        if head.metadata.annotations.node_labels.is_some() {
            nodes.extend(node_of_row(row.get_ref(0)?.as_str().unwrap_or_default()));
        }
    }
    Ok(nodes)
}

fn removed(conn: &Connection) -> Result<Vec<(NodeName, Timestamp)>, CloudError> {
    let mut statement = conn.prepare_cached(
        "SELECT id, text ->> '$.removed' AS at FROM documents WHERE kind = 'member' AND at IS NOT NULL ORDER BY id",
    )?;
    let mut rows = statement.query([])?;
    let mut nodes = Vec::new();
    while let Some(row) = rows.next()? {
        let (name, at): (String, String) = (row.get(0)?, row.get(1)?);
        let at: Timestamp = at
            .parse()
            .map_err(|_| StoreError::corrupt(format!("removal time of node '{name}' is damaged")))?;
        nodes.extend(node_of_row(&name).map(|name| (name, at)));
    }
    Ok(nodes)
}
