//! Description of a served kind. Pure.

use std::sync::Arc;

use edgesync_object::Resource;
use edgesync_schema::Schema;

/// A kind in one of its served versions.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Group, version, kind, plural and scope, as in the path and in responses.
    pub resource: Arc<Resource>,
    /// The storage version: another version, or the other group of Events. Often equal to
    /// `resource`.
    pub stored_as: Arc<Resource>,
    /// Singular in lower case, such as `configmap`.
    pub singular: String,
    /// Short names, as in `kubectl get cm`.
    pub short_names: Vec<String>,
    /// Categories, such as `all`.
    pub categories: Vec<String>,
    /// The kind of its list; normally the kind and `List`.
    pub list_kind: String,
    /// Schema of the fields; without one every field is kept unchecked.
    pub schema: Option<Arc<Schema>>,
    /// Whether the status is a subresource: ignored by POST and PUT, written under `/status` only.
    pub status_subresource: bool,
    /// Paths of the replica counts, if `/scale` is served.
    pub scale: Option<Arc<ScalePaths>>,
    /// Additional table columns of a CustomResourceDefinition.
    pub columns: Vec<PrinterColumn>,
    /// Fields beyond name and namespace by which a custom kind can be selected
    /// (`selectableFields`), such as `spec.color`. Field selectors know those of built-in kinds.
    pub selectable_fields: Vec<Arc<str>>,
    /// Whether the kind is defined by a CustomResourceDefinition.
    pub custom: bool,
    /// Whether clients should prefer this version in its group.
    pub preferred: bool,
    /// Whether access requires permission for Secrets.
    pub secret: bool,
    /// The writable part of its objects.
    pub writable: Writable,
    /// The text of a refused write, which names where to change the object instead.
    pub read_only_hint: Option<Arc<str>>,
    /// A warning sent with every response (`Warning` header), for deprecated versions.
    pub warning: Option<Arc<str>>,
}

/// The writable part of the objects of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writable {
    /// Objects can only be read.
    #[default]
    Nothing,
    /// Only the status, where it is a subresource: the objects are managed elsewhere.
    Status,
    /// Objects can be created, changed and deleted.
    Everything,
}

/// Dotted paths of the values shown by `/scale`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// Desired replicas, such as `spec.replicas`; a write of the scale sets it.
    pub replicas: String,
    /// Current replicas, such as `status.replicas`.
    pub status: String,
    /// The selector of the replicas, if there is one.
    pub selector: Option<String>,
}

/// A table column of a CustomResourceDefinition (`additionalPrinterColumns`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrinterColumn {
    /// Title of the column.
    pub name: String,
    /// `integer`, `number`, `string`, `boolean` or `date`.
    pub kind: String,
    /// `name`, `byte`, …; empty if unspecified.
    pub format: String,
    /// Description of the column for people.
    pub description: String,
    /// 0 for columns that are always shown.
    pub priority: i32,
    /// A simple JSON path such as `.spec.replicas` or
    /// `.status.conditions[?(@.type=="Ready")].status`.
    pub json_path: String,
}

impl Kind {
    /// Creates a read-only kind without schema: every field is kept unchecked.
    #[must_use]
    pub fn without_schema(resource: Arc<Resource>) -> Self {
        Self {
            stored_as: Arc::clone(&resource),
            singular: resource.kind.to_ascii_lowercase(),
            short_names: Vec::new(),
            categories: Vec::new(),
            list_kind: format!("{}List", resource.kind),
            schema: None,
            status_subresource: false,
            scale: None,
            columns: Vec::new(),
            selectable_fields: Vec::new(),
            custom: false,
            preferred: true,
            secret: resource.group.is_empty() && resource.kind == "Secret",
            writable: Writable::Nothing,
            read_only_hint: None,
            warning: None,
            resource,
        }
    }

    /// Returns whether a whole collection can be deleted at once. As in Kubernetes, only Namespaces
    /// have no `deletecollection`: each one takes its contents with it.
    #[must_use]
    pub(crate) fn deletes_collections(&self) -> bool {
        self.writable == Writable::Everything && !self.is_namespace()
    }

    /// Returns whether `/finalize` is served, which replaces the finalizers in a Namespace's spec.
    #[must_use]
    pub(crate) fn is_finalized(&self) -> bool {
        self.writable == Writable::Everything && self.is_namespace()
    }

    fn is_namespace(&self) -> bool {
        let Resource { group, plural, .. } = &*self.stored_as;
        group.is_empty() && plural == "namespaces"
    }
}
