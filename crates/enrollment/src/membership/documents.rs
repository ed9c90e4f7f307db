//! The storage of the membership: versioned documents, written by compare-and-swap.

use std::fmt;
use std::str::Utf8Error;

use base64::DecodeError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::member::Member;
use super::records::{OperatorRecord, TokenRecord};
use super::{MembershipError, Result};
use crate::object_store::Pending;
use edgesync_cloud_store::{CloudStore, Document, NodeEffect};
use edgesync_object::{NodeName, Object, ResourceVersion};
use edgesync_store::StoreError;

/// Problem of a stored record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The object has no value of this key.
    #[error("no key '{0}'")]
    NoKey(String),
    /// The value of a key is not base64.
    #[error("decode '{key}': {problem}")]
    NotBase64 {
        /// The key.
        key: String,
        /// The problem with its value.
        problem: DecodeError,
    },
    /// The value of a key is not text.
    #[error("'{key}': {problem}")]
    NotText {
        /// The key.
        key: String,
        /// The problem with its value.
        problem: Utf8Error,
    },
    /// The text is not the record in JSON.
    #[error("'{kind}.json': {problem}")]
    NotRecord {
        /// The kind of document.
        kind: &'static str,
        /// The problem with the text.
        problem: String,
    },
    /// The record belongs to another document, with this id.
    #[error("contains the record of '{0}'")]
    OtherRecord(String),
}

/// A document as it was read.
pub(super) struct Found {
    /// Its name in the store: [`DocumentStore::name`].
    pub(super) name: String,
    /// JSON, or the problem of the stored form.
    pub(super) text: Result<String, RecordError>,
    pub(super) revision: Revision,
}

/// The state of a document that a write replaces.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Revision {
    /// A row with this version; 0 if the document does not exist.
    Row(u64),
    /// An object, whose other fields are kept.
    Object(Box<Object>),
}

impl Revision {
    /// The document does not exist.
    pub(super) const NONE: Self = Self::Row(0);

    pub(super) fn version(&self) -> ResourceVersion {
        match self {
            Self::Row(version) => (*version).into(),
            Self::Object(object) => object.resource_version().into(),
        }
    }
}

/// Documents by kind and id. A write returns once it is durable. Every method fails with the
/// store's error.
pub(super) trait DocumentStore: fmt::Debug + Send + Sync + 'static {
    /// The name of a document in this store.
    fn name(&self, kind: &str, id: &str) -> String;

    /// The error for a document with damaged content.
    fn damaged(&self, kind: &str, name: &str, why: RecordError) -> MembershipError;

    /// Reads a document; `None` if it does not exist.
    fn get<'a>(&'a self, kind: &'static str, id: &'a str) -> Pending<'a, Result<Option<Found>>>;

    /// Lists the documents of a kind, or those for a node.
    fn list<'a>(&'a self, kind: &'static str, node: Option<&'a NodeName>) -> Pending<'a, Result<Vec<Found>>>;

    /// Replaces a document as it was read. Returns its new version; `None` if it has changed since.
    /// In a store that holds the Nodes too, the effect is part of the write; elsewhere the Nodes
    /// follow the members.
    fn put(
        &self,
        document: Document,
        replaces: Revision,
        effect: NodeEffect,
    ) -> Pending<'_, Result<Option<ResourceVersion>>>;

    /// Deletes a document as it was read; `false` if it has changed since, or is deleted.
    fn delete<'a>(&'a self, kind: &'static str, id: &'a str, revision: Revision)
    -> Pending<'a, Result<bool>>;

    /// Whether a node of this name exists, also one that has not joined here.
    fn is_node<'a>(&'a self, name: &'a NodeName) -> Pending<'a, Result<bool>>;
}

impl DocumentStore for CloudStore {
    fn name(&self, kind: &str, id: &str) -> String {
        row_name(kind, id)
    }

    fn damaged(&self, _: &str, name: &str, why: RecordError) -> MembershipError {
        MembershipError::Store(StoreError::corrupt(format!("document of {name}: {why}")).into())
    }

    fn get<'a>(&'a self, kind: &'static str, id: &'a str) -> Pending<'a, Result<Option<Found>>> {
        Box::pin(async move { Ok(self.document(kind, id).await?.map(found)) })
    }

    fn list<'a>(&'a self, kind: &'static str, node: Option<&'a NodeName>) -> Pending<'a, Result<Vec<Found>>> {
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

    fn is_node<'a>(&'a self, name: &'a NodeName) -> Pending<'a, Result<bool>> {
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

/// A value that is stored as a document.
pub(super) trait Record:
    Clone + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    const KIND: &'static str;

    fn id(&self) -> &str;

    /// The node that it is for.
    fn node(&self) -> Option<&NodeName> {
        None
    }

    fn as_member(&self) -> Option<&Member> {
        None
    }

    /// The number of revoked certificates in it.
    fn revoked_certificates(&self) -> usize {
        0
    }
}

impl Record for Member {
    const KIND: &'static str = "member";

    fn id(&self) -> &str {
        &self.node
    }

    fn node(&self) -> Option<&NodeName> {
        Some(&self.node)
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

    fn node(&self) -> Option<&NodeName> {
        self.node.as_ref()
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

/// A record with the revision of its document.
pub(super) struct Stored<T> {
    pub(super) value: T,
    pub(super) revision: Revision,
}

/// Parses the record in a document.
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

/// Parses a record and checks that it belongs to its document.
///
/// # Errors
/// The text is not such a record, or one of another document.
pub(super) fn parse<T: Record>(text: &str, is_of: impl Fn(&T) -> bool) -> Result<T, RecordError> {
    let value: T = serde_json::from_str(text)
        .map_err(|error| RecordError::NotRecord { kind: T::KIND, problem: error.to_string() })?;
    if is_of(&value) { Ok(value) } else { Err(RecordError::OtherRecord(value.id().to_owned())) }
}

/// Serializes a record as a document.
pub(super) fn write<T: Record>(value: &T) -> Document {
    // Strings, times and numbers always serialize.
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    let (id, node) = (value.id().to_owned(), value.node().cloned());
    Document { kind: T::KIND, id, node, version: 0, text }
}
