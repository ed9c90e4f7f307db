//! Documents of enrollment, replaced by compare-and-swap: members of the fleet, tokens,
//! certificates of operators.
//!
//! They are not objects: the API does not serve them, they have no history, and the
//! [`super::CommitListener`] is not notified of them. The store reads two fields of a member,
//! `labels` and `removed`: its Node and its Lease must agree with them.

use std::sync::Arc;

use rusqlite::{OptionalExtension, Row};

use super::objects::{Tx, find, parse, resource_id};
use super::{CloudError, CloudStore, leases};
use edgesync_object::node_labels::{assign_labels, labels_by_name};
use edgesync_object::{Labels, NodeName, Resource};
use edgesync_store::StoreError;

/// Approximate size of a write beside its text in the queue and in the transaction, with the Node
/// whose labels may change.
const WRITE_BYTES: usize = 4096;

/// A document of enrollment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The kind: `member`, `token` or `operator`.
    pub kind: &'static str,
    /// Name, unique within the kind.
    pub id: String,
    /// The node that it belongs to, if any.
    pub node: Option<NodeName>,
    /// Version from the store's counter. In a write: the version to replace; 0 to create the
    /// document.
    pub version: u64,
    /// JSON text; the store itself reads only `labels` and `removed` of members.
    pub text: String,
}

/// Effect of a write on the rows of a node, in the same transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEffect {
    None,
    /// Sets the labels of the node's member on the Node, in place of the previous labels.
    Label(NodeName),
    /// Deletes the node's records, Node, Lease and outbox. Does not wait for finalizers.
    Delete(NodeName),
}

impl CloudStore {
    /// Reads a document.
    ///
    /// # Errors
    /// The store's.
    pub async fn document(&self, kind: &'static str, id: &str) -> Result<Option<Document>, CloudError> {
        let id = id.to_owned();
        self.readers
            .run(move |conn| {
                let sql = "SELECT id, node, version, text FROM documents WHERE kind = ?1 AND id = ?2";
                let mut select = conn.prepare_cached(sql)?;
                Ok(select.query_row((kind, id), |row| document(kind, row)).optional()?)
            })
            .await
    }

    /// Reads all documents of a kind, or those of one node.
    ///
    /// # Errors
    /// The store's.
    pub async fn documents(
        &self,
        kind: &'static str,
        node: Option<&NodeName>,
    ) -> Result<Vec<Document>, CloudError> {
        let node = node.cloned();
        self.readers
            .run(move |conn| {
                // The index is per kind, so the kind must be known when the statement is prepared.
                let only = if node.is_some() { "node = ?1" } else { "?1 IS NULL" };
                let sql =
                    format!("SELECT id, node, version, text FROM documents WHERE kind = '{kind}' AND {only}");
                let mut select = conn.prepare_cached(&sql)?;
                let rows = select.query_map([node.as_deref()], |row| document(kind, row))?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
            .await
    }

    /// Writes a document by compare-and-swap on its version. Returns the new version; `None` on a
    /// conflict.
    ///
    /// # Errors
    /// The store's.
    pub async fn put_document(
        &self,
        document: Document,
        effect: NodeEffect,
    ) -> Result<Option<u64>, CloudError> {
        let (nodes, leases) = (self.shared.kind("nodes")?, self.shared.kind("leases")?);
        let bytes = document.text.len() + WRITE_BYTES;
        self.write(bytes, move |tx| {
            let before = match &effect {
                NodeEffect::Label(node) => tx.member_labels(node)?.unwrap_or_default(),
                NodeEffect::None | NodeEffect::Delete(_) => Labels::default(),
            };
            let written = tx.put_document(&document)?;
            match &effect {
                NodeEffect::Label(node) if written.is_some() => tx.label_node(&nodes, node, &before)?,
                NodeEffect::Delete(node) if written.is_some() => tx.delete_all_of(&nodes, &leases, node)?,
                _ => {}
            }
            Ok(written)
        })
        .await
    }

    /// Deletes a document, if it has this version. Returns whether it was deleted.
    ///
    /// # Errors
    /// The store's.
    pub async fn delete_document(
        &self,
        kind: &'static str,
        id: &str,
        version: u64,
    ) -> Result<bool, CloudError> {
        let id = id.to_owned();
        self.write(WRITE_BYTES, move |tx| {
            let sql = "DELETE FROM documents WHERE kind = ?1 AND id = ?2 AND version = ?3";
            Ok(tx.conn.prepare_cached(sql)?.execute((kind, &id, version))? > 0)
        })
        .await
    }

    /// Returns whether a node has ever reported the objects it holds.
    ///
    /// # Errors
    /// The store's.
    pub async fn has_reported(&self, node: &NodeName) -> Result<bool, CloudError> {
        let node = node.clone();
        self.readers
            .run(move |conn| {
                Ok(conn.prepare_cached("SELECT 1 FROM nodes WHERE name = ?1")?.exists([node.as_str()])?)
            })
            .await
    }
}

impl Tx<'_> {
    fn put_document(&mut self, document: &Document) -> rusqlite::Result<Option<u64>> {
        let Document { kind, id, node, version: expected, text } = document;
        let version = self.state.next_version();
        let written = match expected {
            0 => self
                .conn
                .prepare_cached(
                    "INSERT INTO documents (kind, id, node, version, text) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT DO NOTHING",
                )?
                .execute((kind, id, node.as_deref(), version, text))?,
            _ => self
                .conn
                .prepare_cached(
                    "UPDATE documents SET version = ?3, text = ?4 WHERE kind = ?1 AND id = ?2 AND version = ?5",
                )?
                .execute((kind, id, version, text, expected))?,
        };
        Ok((written > 0).then_some(version))
    }

    /// Sets the member's labels on its Node, if that exists, in place of the labels of `before`.
    fn label_node(
        &mut self,
        nodes: &Arc<Resource>,
        node: &NodeName,
        before: &Labels,
    ) -> Result<(), CloudError> {
        let Some(kind) = resource_id(self.conn, &nodes.group, &nodes.kind)? else { return Ok(()) };
        let Some(row) = find(self.conn, kind, "", node)? else { return Ok(()) };
        let mut object = parse(&row.stored)?;
        assign_labels(&mut object, before, &self.member_labels(node)?.unwrap_or_default());
        if row.stored.body != object.to_json() {
            self.change(nodes, row, object)?;
        }
        Ok(())
    }

    fn delete_all_of(
        &mut self,
        nodes: &Arc<Resource>,
        leases: &Arc<Resource>,
        node: &NodeName,
    ) -> Result<(), CloudError> {
        self.delete_node(node)?;
        for (resource, namespace) in [(nodes, ""), (leases, leases::NAMESPACE)] {
            match self.delete(resource, namespace, node, None) {
                Ok(_) | Err(CloudError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.conn.prepare_cached("DELETE FROM node_outboxes WHERE node = ?1")?.execute([node.as_str()])?;
        Ok(())
    }

    /// Returns the labels of the token that the node last joined with, except those that follow
    /// from its name; `None` if the name was never used.
    pub(super) fn member_labels(&self, node: &NodeName) -> Result<Option<Labels>, CloudError> {
        let sql = "SELECT text ->> '$.labels' FROM documents WHERE kind = 'member' AND id = ?1";
        let text: Option<Option<String>> =
            self.conn.prepare_cached(sql)?.query_row([node.as_str()], |row| row.get(0)).optional()?;
        let Some(text) = text.flatten() else { return Ok(None) };
        let damaged = |error: serde_json::Error| {
            CloudError::from(StoreError::corrupt(format!("labels of the member '{node}': {error}")))
        };
        let mut labels: Labels = serde_json::from_str(&text).map_err(damaged)?;
        let by_name = labels_by_name(node);
        labels.retain(|key, _| !by_name.contains_key(key));
        Ok(Some(labels))
    }

    pub(super) fn was_removed(&self, node: &NodeName) -> rusqlite::Result<bool> {
        let sql =
            "SELECT 1 FROM documents WHERE kind = 'member' AND id = ?1 AND text ->> '$.removed' IS NOT NULL";
        self.conn.prepare_cached(sql)?.exists([node.as_str()])
    }
}

fn document(kind: &'static str, row: &Row<'_>) -> rusqlite::Result<Document> {
    let (id, node): (String, Option<String>) = (row.get(0)?, row.get(1)?);
    let parsed = node.as_deref().map(NodeName::parse).transpose();
    let node = parsed.unwrap_or_else(|problem| {
        tracing::warn!(problem, "document {kind} '{id}': invalid node name");
        None
    });
    Ok(Document { kind, id, node, version: row.get(2)?, text: row.get(3)? })
}
