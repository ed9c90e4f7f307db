//! The storage under the membership: documents with versions, of which a write names the one that it replaces.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::member::Member;
use super::records::{OperatorRecord, TokenRecord};
use super::{MembershipError, Result};
use crate::object_store::Pending;
use edgesync_cloud_store::{CloudStore, Document, NodeEffect};
use edgesync_object::{Object, ResourceVersion};
use edgesync_store::StoreError;

/// A document as it was read.
pub(super) struct Found {
    /// What the store calls it: [`DocumentStore::name`].
    pub(super) name: String,
    /// JSON; or what is wrong with what holds it.
    pub(super) text: Result<String, String>,
    pub(super) revision: Revision,
}

/// Which state of a document a write replaces.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Revision {
    /// A row with this version; 0 if there is no document yet.
    Row(u64),
    /// An object, of which other fields stay.
    Object(Box<Object>),
}

impl Revision {
    /// There is no document yet.
    pub(super) const NONE: Self = Self::Row(0);

    pub(super) fn version(&self) -> ResourceVersion {
        match self {
            Self::Row(version) => (*version).into(),
            Self::Object(object) => object.resource_version().into(),
        }
    }
}

/// Documents by kind and id. An answer to a write comes when it is durable.
///
/// Each method fails with what the store meets with.
pub(super) trait DocumentStore: fmt::Debug + Send + Sync + 'static {
    /// What a document is called here.
    fn name(&self, kind: &str, id: &str) -> String;

    /// The error for a document that is not what was written.
    fn damaged(&self, kind: &str, name: &str, why: String) -> MembershipError;

    /// Reads a document.
    fn get<'a>(&'a self, kind: &'static str, id: &'a str) -> Pending<'a, Result<Option<Found>>>;

    /// Reads all documents of a kind, or those that are for a node.
    fn list<'a>(&'a self, kind: &'static str, node: Option<&'a str>) -> Pending<'a, Result<Vec<Found>>>;

    /// Puts a document in the place of what was read. Returns its version; `None` if it has changed meanwhile. Where the store
    /// has the Nodes too, the effect is a part of the write; elsewhere Nodes follow the members by themselves.
    fn put(
        &self,
        document: Document,
        replaces: Revision,
        effect: NodeEffect,
    ) -> Pending<'_, Result<Option<ResourceVersion>>>;

    /// Deletes a document as it was read; false if it has changed meanwhile, or is no more.
    fn delete<'a>(&'a self, kind: &'static str, id: &'a str, revision: Revision)
    -> Pending<'a, Result<bool>>;

    /// Whether there is a node of this name, whoever has let it in.
    fn is_node<'a>(&'a self, name: &'a str) -> Pending<'a, Result<bool>>;
}

impl DocumentStore for CloudStore {
    fn name(&self, kind: &str, id: &str) -> String {
        row_name(kind, id)
    }

    fn damaged(&self, _: &str, name: &str, why: String) -> MembershipError {
        MembershipError::Store(StoreError::corrupt(format!("the document of the {name}: {why}")).into())
    }

    fn get<'a>(&'a self, kind: &'static str, id: &'a str) -> Pending<'a, Result<Option<Found>>> {
        Box::pin(async move { Ok(self.document(kind, id).await?.map(found)) })
    }

    fn list<'a>(&'a self, kind: &'static str, node: Option<&'a str>) -> Pending<'a, Result<Vec<Found>>> {
        Box::pin(async move {
            let documents = self.documents(kind, node).await?;
            Ok(documents.into_iter().map(found).collect())
        })
    }

    fn put(
        &self,
        document: Document,
        replaces: Revision,
        effect: NodeEffect,
    ) -> Pending<'_, Result<Option<ResourceVersion>>> {
        Box::pin(async move {
            let Revision::Row(version) = replaces else { return Ok(None) };
            let written = self.put_document(Document { version, ..document }, effect).await?;
            Ok(written.map(ResourceVersion::from))
        })
    }

    fn delete<'a>(
        &'a self,
        kind: &'static str,
        id: &'a str,
        revision: Revision,
    ) -> Pending<'a, Result<bool>> {
        Box::pin(async move {
            let Revision::Row(version) = revision else { return Ok(false) };
            Ok(self.delete_document(kind, id, version).await?)
        })
    }

    fn is_node<'a>(&'a self, name: &'a str) -> Pending<'a, Result<bool>> {
        Box::pin(async move { Ok(self.has_reported(name).await?) })
    }
}

fn row_name(kind: &str, id: &str) -> String {
    format!("{kind} '{id}'")
}

fn found(row: Document) -> Found {
    let name = row_name(row.kind, &row.id);
    Found { name, text: Ok(row.text), revision: Revision::Row(row.version) }
}

/// What is kept as a document.
pub(super) trait Record: Clone + PartialEq + Serialize + DeserializeOwned + Send + 'static {
    const KIND: &'static str;

    fn id(&self) -> &str;

    /// The node that it is for.
    fn node(&self) -> Option<&str> {
        None
    }

    /// What stands for a document that is not there.
    fn absent(_id: &str) -> Option<Self> {
        None
    }

    fn as_member(&self) -> Option<&Member> {
        None
    }

    /// How many certificates in it are revoked.
    fn revoked_certificates(&self) -> usize {
        0
    }
}

impl Record for Member {
    const KIND: &'static str = "member";

    fn id(&self) -> &str {
        &self.node
    }

    fn node(&self) -> Option<&str> {
        Some(&self.node)
    }

    fn absent(id: &str) -> Option<Self> {
        Some(Self::new(id))
    }

    fn as_member(&self) -> Option<&Member> {
        Some(self)
    }

    fn revoked_certificates(&self) -> usize {
        self.revoked().len()
    }
}

impl Record for TokenRecord {
    const KIND: &'static str = "token";

    fn id(&self) -> &str {
        &self.id
    }

    fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }
}

impl Record for OperatorRecord {
    const KIND: &'static str = "operator";

    fn id(&self) -> &str {
        &self.serial
    }

    fn revoked_certificates(&self) -> usize {
        usize::from(self.revoked.is_some())
    }
}

/// A record, and the state of its document.
pub(super) struct Stored<T> {
    pub(super) value: T,
    pub(super) revision: Revision,
}

/// Reads a record out of its document.
///
/// # Errors
/// See [`DocumentStore::damaged`].
pub(super) fn read<T: Record>(store: &dyn DocumentStore, found: Found) -> Result<Stored<T>> {
    let Found { name, text, revision } = found;
    let value = text.and_then(|text| parse(&text, |value: &T| store.name(T::KIND, value.id()) == name));
    match value {
        Ok(value) => Ok(Stored { value, revision }),
        Err(why) => Err(store.damaged(T::KIND, &name, why)),
    }
}

/// Reads a record that must be of the document that it stands in.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse<T: Record>(text: &str, is_of: impl Fn(&T) -> bool) -> Result<T, String> {
    let value: T = serde_json::from_str(text).map_err(|error| format!("'{}.json': {error}", T::KIND))?;
    if is_of(&value) { Ok(value) } else { Err(format!("what it holds is of '{}'", value.id())) }
}

/// The document of a record.
pub(super) fn write<T: Record>(value: &T) -> Document {
    // Texts, times and numbers always have a JSON.
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    let (id, node) = (value.id().to_owned(), value.node().map(str::to_owned));
    Document { kind: T::KIND, id, node, version: 0, text }
}
