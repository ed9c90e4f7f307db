//! Summaries of objects for placement, read without parsing the rest of them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::read::{MAX_PAGE_BYTES, resource_map};
use super::{CloudError, Shared};
use edgesync_object::file_rules::FILE_RULES_ANNOTATION;
use edgesync_object::node_labels::NODE_LABELS_ANNOTATION;
use edgesync_object::objectsync::is_placement;
use edgesync_object::urgency::URGENCY_ANNOTATION;
use edgesync_object::{Object, Resource, ResourceVersion, Selector};
use edgesync_placement::{
    DELETIONS_CONFIRMED_ANNOTATION, NODES_ANNOTATION, STAY_ANNOTATION, Selection, Summary, concerns,
};
use edgesync_store::StoreError;

/// Result of reading some rows.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) summaries: Vec<Summary>,
    /// Rows not read yet, the next one last.
    pub(super) left: Vec<i64>,
}

/// Returns the ids of all objects that placement depends on: placeable objects, Nodes (for their
/// labels), and rules. Ordered from last to first: rules come first, before the objects that they
/// select.
pub(super) fn rows(conn: &Connection) -> Result<Vec<i64>, CloudError> {
    let mut statement = conn.prepare_cached("SELECT id FROM objects WHERE resource_id = ?1")?;
    let (mut rows, mut rules): (Vec<i64>, Vec<i64>) = <_>::default();
    for (id, kind) in resource_map(conn)? {
        if concerns(&kind) {
            let rows = if is_placement(&kind) { &mut rules } else { &mut rows };
            for row in statement.query_map([id], |row| row.get(0))? {
                rows.push(row?);
            }
        }
    }
    // In the order of the file, which is thus read sequentially.
    rows.sort_unstable_by(|a, b| b.cmp(a));
    rows.append(&mut rules);
    Ok(rows)
}

/// Returns the ids of the objects of a selection, from last to first. Reads the index alone.
pub(super) fn selected_rows(conn: &Connection, objects: &Selection) -> Result<Vec<i64>, CloudError> {
    let mut statement =
        conn.prepare_cached("SELECT id, namespace, name, labels FROM objects WHERE resource_id = ?1")?;
    let mut rows: Vec<i64> = Vec::new();
    for (id, kind) in resource_map(conn)?.iter().filter(|(_, kind)| concerns(kind) && objects.takes(kind)) {
        let selected = statement.query_map([id], |row| {
            let (namespace, name) = (row.get_ref(1)?.as_str()?, row.get_ref(2)?.as_str()?);
            let labels = row.get_ref(3)?.as_str_or_null()?.unwrap_or("{}");
            let matches = |selector: &Selector| selector.is_empty() || selector.matches_labels(labels);
            Ok(objects.selects((kind, namespace, name), matches).then_some(row.get::<_, i64>(0)?))
        })?;
        for row in selected {
            rows.extend(row?);
        }
    }
    rows.sort_unstable_by(|a, b| b.cmp(a));
    Ok(rows)
}

/// Reads rows, the last one first, up to [`MAX_PAGE_BYTES`] of objects. Deleted rows are skipped.
pub(super) fn part(conn: &Connection, shared: &Shared, mut rows: Vec<i64>) -> Result<Part, CloudError> {
    let known = resource_map(conn)?;
    let mut kinds: HashMap<(i64, String), Arc<Resource>> = HashMap::new();
    let mut statement =
        conn.prepare_cached("SELECT resource_id, api_version, version, body FROM objects WHERE id = ?1")?;
    let (mut summaries, mut bytes) = (Vec::with_capacity(rows.len()), 0);
    while bytes < MAX_PAGE_BYTES
        && let Some(row) = rows.pop()
    {
        let summary = statement.query_row([row], |row| {
            let kind: (i64, String) = (row.get(0)?, row.get(1)?);
            // The row id of a deleted object may be reused for another one.
            let Some(resource) = known.get(&kind.0).filter(|kind| concerns(kind)) else { return Ok(None) };
            let version = kind.1.clone();
            let resource =
                kinds.entry(kind).or_insert_with(|| shared.share(&Resource { version, ..resource.clone() }));
            let body = row.get_ref(3)?.as_str()?;
            bytes += body.len();
            Ok(Some(summary(body, Arc::clone(resource), row.get::<_, u64>(2)?.into())))
        });
        summaries.extend(summary.optional()?.flatten().transpose()?);
    }
    Ok(Part { summaries, left: rows })
}

/// The parsed part of an object.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    labels: Option<Map<String, Value>>,
    #[serde(borrow)]
    annotations: Option<Annotations<'a>>,
}

/// [`NODES_ANNOTATION`], [`URGENCY_ANNOTATION`], [`NODE_LABELS_ANNOTATION`],
/// [`DELETIONS_CONFIRMED_ANNOTATION`], [`STAY_ANNOTATION`] and [`FILE_RULES_ANNOTATION`].
#[derive(Deserialize)]
struct Annotations<'a> {
    #[serde(rename = "edgesync.io/nodes", borrow)]
    nodes: Option<Cow<'a, str>>,
    #[serde(rename = "edgesync.io/urgency", borrow)]
    urgency: Option<Cow<'a, str>>,
    #[serde(rename = "edgesync.io/node-labels", borrow)]
    node_labels: Option<Cow<'a, str>>,
    #[serde(rename = "edgesync.io/deletions-confirmed", borrow)]
    confirmed: Option<Cow<'a, str>>,
    #[serde(rename = "edgesync.io/stay-until", borrow)]
    stay: Option<Cow<'a, str>>,
    #[serde(rename = "edgesync.io/file-rules", borrow)]
    file_rules: Option<Cow<'a, str>>,
}

/// Returns the summary of an object given as JSON text.
pub fn summary(body: &str, resource: Arc<Resource>, version: ResourceVersion) -> Result<Summary, StoreError> {
    let object = match serde_json::from_str::<Head<'_>>(body) {
        Ok(head) if !is_placement(&resource) => head.object(&resource),
        // An unexpected field outside of this part must not change the placement.
        _ => serde_json::from_str(body).map_err(|error| {
            StoreError::corrupt(format!("object of version {version} is damaged: {error}"))
        })?,
    };
    Ok(Summary::of(&object, resource, version).with_size(body.len()))
}

impl Head<'_> {
    /// Builds as much of the object as [`Summary::of`] reads.
    fn object(self, resource: &Resource) -> Object {
        let Metadata { uid, name, namespace, labels, annotations } = self.metadata;
        let mut object = Object::default();
        for (field, text) in [("uid", uid), ("name", name), ("namespace", namespace)] {
            object.set_metadata(field, text.into_owned());
        }
        if let Some(labels) = labels {
            object.set_metadata("labels", Value::Object(labels));
        }
        if let Some(Annotations { nodes, urgency, node_labels, confirmed, stay, file_rules }) = annotations {
            let read = [
                (NODES_ANNOTATION, nodes),
                (URGENCY_ANNOTATION, urgency),
                (NODE_LABELS_ANNOTATION, node_labels),
                (DELETIONS_CONFIRMED_ANNOTATION, confirmed),
                (STAY_ANNOTATION, stay),
                (FILE_RULES_ANNOTATION, file_rules),
            ];
            let read = read.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into())));
            object.set_metadata("annotations", Value::Object(read.collect()));
        }
        let is_pod = resource.group.is_empty() && resource.kind == "Pod";
        if let Some(spec) =
            self.spec.filter(|_| is_pod).and_then(|spec| serde_json::from_str(spec.get()).ok())
        {
            object.fields_mut().insert("spec".to_owned(), spec);
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds;
    use serde_json::json;

    #[test]
    fn a_part_of_an_object_gives_the_summary_of_the_whole() {
        for (word, body) in [
            ("cm", json!({"metadata": {"name": "a", "namespace": "n", "uid": "u"}, "data": {"k": "v"}})),
            (
                "cm",
                json!({"metadata": {"name": "a\"ä", "uid": "u", "labels": {"x": "y", "edgesync.io/node": "e1"},
                    "annotations": {"other": "z", NODES_ANNOTATION: "e2, e3", URGENCY_ANNOTATION: "high"}, "managedFields": [{"a": [1]}]}}),
            ),
            (
                "pods",
                json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": null},
                    "spec": {"nodeName": "e1", "volumes": [{"configMap": {"name": "c"}}]}}),
            ),
            ("deployments", json!({"metadata": {"name": "d", "uid": "u"}, "spec": {"nodeName": "e1"}})),
            ("cm", json!({"metadata": {"name": "a", "uid": "u", "labels": {"x": 7}, "annotations": "none"}})),
            ("pods", json!({"metadata": {"name": "a", "uid": "u"}, "spec": 7})),
            ("nodes", json!({"metadata": {"name": "e1", "uid": "u", "labels": {"site": "north"}}})),
            (
                "nodes",
                json!({"metadata": {"name": "e1", "uid": "u", "labels": {"site": "north", "rack": "7"},
                    "annotations": {NODE_LABELS_ANNOTATION: "site=north", DELETIONS_CONFIRMED_ANNOTATION: "i/7"}}}),
            ),
        ] {
            let resource = Arc::new(kinds::by_word(word).unwrap().resource());
            let text = body.to_string();
            let whole: Object = serde_json::from_str(&text).unwrap();
            let whole = Summary::of(&whole, Arc::clone(&resource), 7.into()).with_size(text.len());
            assert_eq!(summary(&text, resource, 7.into()).unwrap(), whole, "{text}");
        }
        let resource = Arc::new(kinds::by_word("cm").unwrap().resource());
        assert!(matches!(summary(r#"{"metadata": {"#, resource, 7.into()), Err(StoreError::Corrupt(_))));
    }
}
