//! Invariants of namespaces within a transaction: only an empty Namespace is deleted, and no object
//! is created in one that is being deleted or was deleted since the caller checked it.

use std::sync::Arc;

use rusqlite::OptionalExtension;

use super::objects::{Tx, find, resource_id};
use super::stored::Stored;
use super::{CloudError, objects};
use edgesync_object::{Object, Resource, Scope};

fn are_namespaces(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.kind == "Namespace"
}

impl Tx<'_> {
    /// Stores a new object, unless its namespace is being deleted or was.
    pub(super) fn create_within(
        &mut self,
        resource: &Arc<Resource>,
        object: Object,
    ) -> Result<Stored, CloudError> {
        if resource.scope == Scope::Namespaced {
            self.check_home(object.namespace())?;
        }
        self.create(resource, object)
    }

    fn check_home(&self, namespace: &str) -> Result<(), CloudError> {
        let home = match resource_id(self.conn, "", "Namespace")? {
            Some(kind) => find(self.conn, kind, "", namespace)?,
            None => None,
        };
        let left = match home {
            Some(row) => objects::parse(&row.stored)?.deletion_timestamp().is_some(),
            None => self.state.gone.has(namespace),
        };
        if left { Err(CloudError::NamespaceLeft { namespace: namespace.to_owned() }) } else { Ok(()) }
    }

    /// Called before a row is removed by name: refuses to delete a Namespace with objects in it.
    /// Records do not count, because they are removed when their nodes report.
    pub(super) fn check_leaving(&mut self, resource: &Resource, name: &str) -> Result<(), CloudError> {
        if !are_namespaces(resource) {
            return Ok(());
        }
        const SQL: &str = "SELECT plural FROM resources r WHERE namespaced AND EXISTS
            (SELECT 1 FROM objects o WHERE o.resource_id = r.id AND o.namespace = ?1 AND o.sync_node IS NULL)";
        let inside: Option<String> =
            self.conn.prepare_cached(SQL)?.query_row([name], |row| row.get(0)).optional()?;
        if let Some(inside) = inside {
            return Err(CloudError::NotEmpty { key: resource.key("", name), inside });
        }
        self.state.gone.add(name);
        Ok(())
    }
}
