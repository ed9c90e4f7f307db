//! Converts a CustomResourceDefinition to kinds. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{list, map, schema, text};
use crate::reasons::DefinitionReason;
use edgesync_api::{Kind, PrinterColumn, ScalePaths, Writable};
use edgesync_object::{Object, Resource, Scope};

/// Names of a kind, as in `spec.names`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Names {
    pub(super) plural: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) singular: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) short_names: Vec<String>,
    pub(super) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) list_kind: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) categories: Vec<String>,
}

impl Names {
    /// Returns the names used in paths and on command lines: plural, singular, short names.
    /// Each comes with the reason of a conflict about it.
    pub(super) fn of_resource(&self) -> impl Iterator<Item = (DefinitionReason, &str)> {
        let short = self.short_names.iter().map(|name| (DefinitionReason::ShortNamesConflict, name.as_str()));
        let plural = (DefinitionReason::PluralConflict, self.plural.as_str());
        let singular = (DefinitionReason::SingularConflict, self.singular.as_str());
        [plural, singular].into_iter().chain(short)
    }

    pub(super) fn of_kind(&self) -> [(DefinitionReason, &str); 2] {
        [(DefinitionReason::KindConflict, &self.kind), (DefinitionReason::ListKindConflict, &self.list_kind)]
    }
}

/// A stored definition with the kinds derived from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Definition {
    /// Resource version of the object.
    pub(super) version: u64,
    pub(super) created: String,
    /// Whether it is being deleted.
    pub(super) deleting: bool,
    pub(super) group: String,
    /// Names requested in `spec.names`; in a conflict, `accepted` stays in force.
    pub(super) names: Names,
    /// The accepted names in its stored status.
    pub(super) accepted: Names,
    /// Whether it is established in its stored status.
    pub(super) established: bool,
    /// The version in which its objects are stored.
    pub(super) storage: String,
    /// Its stored status, which is written only if it changes.
    pub(super) status: Map<String, Value>,
    /// Reason why it cannot be served.
    pub(super) problem: Option<String>,
    /// Rules of its schemas that are not evaluated, with reasons.
    pub(super) lacking: Vec<String>,
    /// Its served versions as kinds, under the requested names.
    pub(super) kinds: Vec<Kind>,
}

impl Definition {
    /// Parses a stored definition as far as possible.
    pub(super) fn of(object: &Object, version: u64) -> Self {
        let spec = map(object.fields(), "spec");
        let status = map(object.fields(), "status");
        let names = |value: Option<&Value>| value.and_then(|value| Names::deserialize(value).ok());
        let storage = list(spec, "versions").find(|version| is_true(version, "storage"));
        let mut definition = Self {
            version,
            created: object.creation_timestamp().to_owned(),
            deleting: object.deletion_timestamp().is_some(),
            group: text(spec, "group").to_owned(),
            names: names(spec.get("names")).unwrap_or_default(),
            accepted: names(status.get("acceptedNames")).unwrap_or_default(),
            established: is_established(status),
            storage: storage.map(|version| text(version, "name").to_owned()).unwrap_or_default(),
            status: status.clone(),
            problem: None,
            lacking: Vec::new(),
            kinds: Vec::new(),
        };
        match definition.read_kinds(spec) {
            Ok((kinds, lacking)) => (definition.kinds, definition.lacking) = (kinds, lacking),
            Err(problem) => definition.problem = Some(problem),
        }
        definition
    }

    /// Returns the kinds under the accepted names.
    pub(super) fn served(&self, names: &Names) -> Vec<Arc<Kind>> {
        let renamed = |kind: &Kind| {
            Arc::new(Kind {
                singular: names.singular.clone(),
                short_names: names.short_names.clone(),
                categories: names.categories.clone(),
                list_kind: names.list_kind.clone(),
                ..kind.clone()
            })
        };
        self.kinds.iter().map(renamed).collect()
    }

    /// Returns the resource under which its objects are stored.
    pub(super) fn kept_as(&self) -> Option<Arc<Resource>> {
        self.kinds.first().map(|kind| Arc::clone(&kind.stored_as))
    }

    fn resource(&self, spec: &Map<String, Value>, version: &str) -> Arc<Resource> {
        let scope = if text(spec, "scope") == "Cluster" { Scope::Cluster } else { Scope::Namespaced };
        Arc::new(Resource {
            group: self.group.clone(),
            version: version.to_owned(),
            kind: self.names.kind.clone(),
            plural: self.names.plural.clone(),
            scope,
        })
    }

    fn read_kinds(&self, spec: &Map<String, Value>) -> Result<(Vec<Kind>, Vec<String>), String> {
        let storage = self.resource(spec, &self.storage);
        if [&storage.group, &storage.version, &storage.kind, &storage.plural]
            .iter()
            .any(|name| name.is_empty())
        {
            return Err("group, names or stored version missing".to_owned());
        }
        let (mut kinds, mut lacking) = (Vec::new(), Vec::new());
        for (number, version) in list(spec, "versions").enumerate() {
            if is_true(version, "served") {
                kinds.push(self.read_kind(spec, number, version, &storage, &mut lacking)?);
            }
        }
        kinds.sort_by_cached_key(|kind| Reverse(rank(&kind.resource.version)));
        for (place, kind) in kinds.iter_mut().enumerate() {
            kind.preferred = place == 0;
        }
        Ok((kinds, lacking))
    }

    fn read_kind(
        &self,
        spec: &Map<String, Value>,
        number: usize,
        version: &Map<String, Value>,
        storage: &Arc<Resource>,
        lacking: &mut Vec<String>,
    ) -> Result<Kind, String> {
        let resource = self.resource(spec, text(version, "name"));
        let path = format!("spec.versions[{number}].schema.openAPIV3Schema");
        let absent = Value::Null;
        let given = map(version, "schema").get("openAPIV3Schema").unwrap_or(&absent);
        let schema = schema::read(given, &path).map_err(|causes| {
            causes.first().map_or_else(|| "the schema cannot be read".to_owned(), ToString::to_string)
        })?;
        let problems = schema::rule_problems(&schema, &path);
        // Invalid rules were accepted before rules were validated.
        lacking.extend(problems.causes.iter().map(ToString::to_string));
        lacking.extend(problems.lacking);
        let paths = list(version, "selectableFields").map(|field| text(field, "jsonPath"));
        let selectable_fields = paths.map(|path| path.trim_start_matches('.').into()).collect();
        Ok(Kind {
            stored_as: Arc::clone(storage),
            schema: Some(Arc::new(schema)),
            status_subresource: map(version, "subresources").contains_key("status"),
            scale: scale(map(map(version, "subresources"), "scale")),
            columns: list(version, "additionalPrinterColumns").map(column).collect(),
            selectable_fields,
            custom: true,
            writable: Writable::Everything,
            warning: warning(version, &resource),
            ..Kind::without_schema(resource)
        })
    }
}

/// Returns the paths of the numbers for `/scale`.
fn scale(given: &Map<String, Value>) -> Option<Arc<ScalePaths>> {
    let path = |name: &str| Some(text(given, name)).filter(|path| !path.is_empty()).map(str::to_owned);
    Some(Arc::new(ScalePaths {
        replicas: path("specReplicasPath")?,
        status: path("statusReplicasPath")?,
        selector: path("labelSelectorPath"),
    }))
}

/// Returns whether the status of a definition has `Established`.
pub(super) fn is_established(status: &Map<String, Value>) -> bool {
    let holds = |c: &Map<String, Value>| text(c, "type") == "Established" && text(c, "status") == "True";
    list(status, "conditions").any(holds)
}

fn is_true(fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name).and_then(Value::as_bool).unwrap_or_default()
}

fn warning(version: &Map<String, Value>, resource: &Resource) -> Option<Arc<str>> {
    is_true(version, "deprecated").then(|| match text(version, "deprecationWarning") {
        "" => format!("{} {} is deprecated", resource.api_version(), resource.kind).into(),
        given => given.into(),
    })
}

fn column(column: &Map<String, Value>) -> PrinterColumn {
    let priority = column.get("priority").and_then(Value::as_i64).unwrap_or_default();
    PrinterColumn {
        name: text(column, "name").to_owned(),
        kind: text(column, "type").to_owned(),
        format: text(column, "format").to_owned(),
        description: text(column, "description").to_owned(),
        priority: i32::try_from(priority).unwrap_or(i32::MAX),
        json_path: text(column, "jsonPath").to_owned(),
    }
}

/// Orders versions by preference of clients: `v2`, `v1`, `v1beta2`, `v1alpha1`, then others,
/// alphabetically in reverse.
fn rank(version: &str) -> (u8, u64, u64, Reverse<String>) {
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| !text.starts_with('+'));
    let parsed = version.strip_prefix('v').and_then(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (major, suffix) = rest.split_at_checked(end)?;
        let major = number(major)?;
        match (suffix.strip_prefix("beta"), suffix.strip_prefix("alpha")) {
            _ if suffix.is_empty() => Some((3, major, 0)),
            (Some(minor), _) => Some((2, major, number(minor)?)),
            (_, Some(minor)) => Some((1, major, number(minor)?)),
            _ => None,
        }
    });
    let (stability, major, minor) = parsed.unwrap_or_default();
    (stability, major, minor, Reverse(version.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_stable_first_then_newest_first() {
        let mut versions = ["v1alpha1", "v10", "foo", "v2", "v1beta2", "v1", "v2alpha1", "v11beta1", "bar"];
        versions.sort_by_cached_key(|version| Reverse(rank(version)));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v11beta1", "v1beta2", "v2alpha1", "v1alpha1", "bar", "foo"]
        );
    }
}
