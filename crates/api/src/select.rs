//! Selection of objects for a list or a watch. Pure.

use std::sync::Arc;

use super::kind::Kind;
use super::storage::{Cursor, PAGE_ROWS, PageQuery, Stored};
use edgesync_object::status::Result;
use edgesync_object::{FieldSelector, Object, Selector, Status};

/// The selectors of a request, checked against its kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    namespace: Option<String>,
    labels: Selector,
    fields: FieldSelector,
}

impl Selection {
    /// Creates the selection of a request, in one namespace or in all.
    ///
    /// # Errors
    /// 400 for a field that the kind cannot be selected by.
    pub(super) fn new(
        kind: &Kind,
        namespace: Option<&str>,
        labels: &Selector,
        fields: &FieldSelector,
    ) -> Result<Self> {
        let resource = &kind.resource;
        fields
            .check(&resource.group, &resource.kind, &kind.selectable_fields)
            .map_err(|error| Status::bad_request(error.to_string()))?;
        Ok(Self { namespace: namespace.map(str::to_owned), labels: labels.clone(), fields: fields.clone() })
    }

    /// Returns the only namespace that can match, if there is one.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref().or_else(|| self.fields.only_namespace())
    }

    /// Returns whether all objects of the kind in the namespace are selected.
    pub(super) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Builds the query of the page after a cursor.
    pub(super) fn query(self: &Arc<Self>, after: Option<Cursor>, limit: usize) -> PageQuery {
        let selection = Arc::clone(self);
        PageQuery {
            namespace: self.namespace().map(str::to_owned),
            after,
            limit: limit.clamp(1, PAGE_ROWS),
            name: self.fields.only_name().map(str::to_owned),
            labels: self.labels.clone(),
            filter: (!self.is_everything())
                .then(|| Arc::new(move |row: &Stored| selection.matches(row)) as _),
        }
    }

    /// Returns whether an object is selected.
    pub(super) fn matches(&self, object: &Stored) -> bool {
        self.matches_text(&object.namespace, &object.name, &object.json)
    }

    /// Returns whether an object, given as JSON text, is selected.
    pub(super) fn matches_text(&self, namespace: &str, name: &str, json: &str) -> bool {
        self.namespace.as_deref().is_none_or(|only| only == namespace)
            && (self.labels.is_empty() || self.labels.matches_json(json))
            && (self.fields.is_empty() || self.matches_fields(namespace, name, json))
    }

    fn matches_fields(&self, namespace: &str, name: &str, json: &str) -> bool {
        if self.fields.is_only_names() {
            return self.fields.matches_names(namespace, name);
        }
        let object = serde_json::from_str::<Object>(json);
        object.is_ok_and(|object| self.fields.matches(namespace, name, object.fields()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use edgesync_object::kinds;

    fn stored(namespace: &str, name: &str, json: &str) -> Stored {
        Stored { namespace: namespace.into(), name: name.into(), version: 1, json: json.into() }
    }

    #[test]
    fn labels_fields_and_namespace_must_all_match() {
        let kind = Kind::without_schema(Arc::new(kinds::by_word("pod").unwrap().resource()));
        let labels = "a in (b,c)".parse().unwrap();
        let fields = "spec.nodeName=n1".parse().unwrap();
        let selection = Selection::new(&kind, Some("x"), &labels, &fields).unwrap();
        let pod = |label: &str, node: &str| {
            format!(r#"{{"metadata":{{"labels":{{"a":"{label}"}}}},"spec":{{"nodeName":"{node}"}}}}"#)
        };
        assert!(selection.matches(&stored("x", "p", &pod("b", "n1"))));
        assert!(!selection.matches(&stored("y", "p", &pod("b", "n1"))));
        assert!(!selection.matches(&stored("x", "p", &pod("d", "n1"))));
        assert!(!selection.matches(&stored("x", "p", &pod("b", "n2"))));
        assert!(!selection.matches(&stored("x", "p", "{}")));
        assert!(!selection.is_everything());
    }

    #[test]
    fn field_of_another_kind_is_refused() {
        let kind = Kind::without_schema(Arc::new(kinds::by_word("configmap").unwrap().resource()));
        let fields = "spec.nodeName=n1".parse().unwrap();
        assert_eq!(Selection::new(&kind, None, &Selector::default(), &fields).unwrap_err().code, 400);
    }

    #[test]
    fn page_query_has_the_name_and_labels() {
        let kind = Kind::without_schema(Arc::new(kinds::by_word("configmap").unwrap().resource()));
        let selection = |namespace, labels: &str, fields: &str| {
            let (labels, fields) = (labels.parse().unwrap(), fields.parse().unwrap());
            Arc::new(Selection::new(&kind, namespace, &labels, &fields).unwrap())
        };
        let one = selection(None, "", "metadata.name=a,metadata.namespace=n").query(None, 9000);
        assert_eq!(
            (one.name.as_deref(), one.namespace.as_deref(), one.limit),
            (Some("a"), Some("n"), PAGE_ROWS)
        );
        assert!(one.filter.is_some() && one.labels.is_empty());
        let labelled = selection(Some("n"), "x in (y)", "metadata.name!=a").query(None, 0);
        assert_eq!((labelled.name, labelled.labels.to_string(), labelled.limit), (None, "x=y".to_owned(), 1));
        assert!(selection(None, "", "").query(None, 1).filter.is_none());
    }
}
