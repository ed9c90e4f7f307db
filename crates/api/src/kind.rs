//! What the API knows of a kind that it serves. Pure.

use std::sync::Arc;

use edgesync_object::Resource;
use edgesync_schema::Schema;

/// A kind as it is served in one of its versions.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Group, version, kind, plural and scope, as in the path and in what clients get.
    pub resource: Arc<Resource>,
    /// Under what objects of the kind are kept: another version, or the other group of Events. Often the
    /// same as `resource`.
    pub stored_as: Arc<Resource>,
    /// Lower-case singular.
    pub singular: String,
    /// Short names, as `kubectl` knows them.
    pub short_names: Vec<String>,
    /// Groups of kinds that it is in, such as `all`.
    pub categories: Vec<String>,
    /// The kind of a list; normally the kind and `List`.
    pub list_kind: String,
    /// What its fields are; `None` if nobody has said: then every field is kept and none is checked.
    pub schema: Option<Arc<Schema>>,
    /// Whether the status is a subresource: ignored by POST and PUT, written under `/status` alone.
    pub status_subresource: bool,
    /// Where the numbers of `/scale` are, if that is served.
    pub scale: Option<Arc<ScalePaths>>,
    /// Further columns of a table, from a CustomResourceDefinition.
    pub columns: Vec<PrinterColumn>,
    /// Fields beyond name and namespace by which a custom kind can be selected (`selectableFields`), such as
    /// `spec.color`. Those of built-in kinds are known to the field selectors themselves.
    pub selectable_fields: Vec<Arc<str>>,
    /// Whether the definition of the kind came from a CustomResourceDefinition.
    pub custom: bool,
    /// Whether this version is the one that clients should prefer in its group.
    pub preferred: bool,
    /// Whether only those may have its objects who may have Secrets.
    pub secret: bool,
    /// What can be changed of its objects through this API.
    pub writable: Writable,
    /// Where to change what cannot be changed here: the text of the refusal.
    pub read_only_hint: Option<Arc<str>>,
    /// A warning that comes with every answer (a `Warning` header), for deprecated versions.
    pub warning: Option<Arc<str>>,
}

/// What can be changed of the objects of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writable {
    /// Nothing: they can only be read.
    #[default]
    Nothing,
    /// The status, where it is a subresource: the objects themselves come from elsewhere.
    Status,
    /// Everything: they can be created, changed and deleted.
    Everything,
}

/// Where `/scale` finds what it shows, each as a dotted path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// How many are wanted: `spec.replicas`.
    pub replicas: String,
    /// How many there are.
    pub status: String,
    /// How they are selected, if that is known.
    pub selector: Option<String>,
}

/// A column of a table, as a CustomResourceDefinition gives it (`additionalPrinterColumns`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrinterColumn {
    /// Its title.
    pub name: String,
    /// `integer`, `number`, `string`, `boolean` or `date`.
    pub kind: String,
    /// `name`, `byte`, …; empty if nothing is said.
    pub format: String,
    /// What it shows.
    pub description: String,
    /// 0 for columns that are always shown.
    pub priority: i32,
    /// A simple JSON path such as `.spec.replicas` or `.status.conditions[?(@.type=="Ready")].status`.
    pub json_path: String,
}

impl Kind {
    /// A kind of which nothing is known but its names: everything is kept, nothing is checked.
    #[must_use]
    pub fn bare(resource: Arc<Resource>) -> Self {
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

    /// Whether a whole collection can be deleted at once. Of all kinds that are served, Kubernetes knows no
    /// `deletecollection` of Namespaces alone: each takes with it whatever is in it.
    #[must_use]
    pub(crate) fn deletes_collections(&self) -> bool {
        let Resource { group, plural, .. } = &*self.stored_as;
        self.writable == Writable::Everything && !(group.is_empty() && plural == "namespaces")
    }
}
