//! Sets of fields as a trie, and their text form in `managedFields` (`FieldsV1`). Pure; knows JSON
//! only.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::cost_meter;
use crate::field_path::truncate;
use edgesync_object::number::shorten;

/// One element of a path in `FieldsV1`: `f:<name>`, `k:<keys>`, `v:<value>` or `i:<index>`.
///
/// The JSON within is canonical (sorted keys, whole numbers without a fraction), so that equal
/// elements have equal texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element(Box<str>);

/// A set of fields as a trie. Each node is a field; the root is the whole object and never a
/// member.
///
/// Membership of a field implies nothing about fields within it or around it. Every node has a
/// member at or below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldSet {
    /// Whether the field itself is a member.
    member: bool,
    /// The fields within this one.
    below: BTreeMap<Element, FieldSet>,
}

static EMPTY: FieldSet = FieldSet { member: false, below: BTreeMap::new() };

impl Element {
    /// Returns the element of an object field or a map entry.
    pub(super) fn field(name: &str) -> Self {
        Self(format!("f:{name}").into())
    }

    /// Returns the element of a list item with these values in the key fields.
    pub(super) fn keys(keys: Map<String, Value>) -> Self {
        let mut keys = Value::Object(keys);
        shorten(&mut keys);
        Self(format!("k:{keys}").into())
    }

    /// Returns the element of a set item with this value.
    pub(super) fn value(mut value: Value) -> Self {
        shorten(&mut value);
        Self(format!("v:{value}").into())
    }

    /// Parses an element: `Ok(None)` for an unknown type, which is skipped, and `Err` for an
    /// invalid text.
    fn parse(text: &str) -> Result<Option<Self>, Malformed> {
        let (kind, rest) = text.split_once(':').ok_or(Malformed)?;
        match kind {
            "f" => Ok(Some(Self(text.into()))),
            "k" => serde_json::from_str(rest).map(|keys| Some(Self::keys(keys))).map_err(|_| Malformed),
            "v" => serde_json::from_str(rest).map(|value| Some(Self::value(value))).map_err(|_| Malformed),
            "i" => rest.parse().map(|index: i64| Some(Self(format!("i:{index}").into()))).or(Err(Malformed)),
            _ if kind.len() == 1 => Ok(None),
            _ => Err(Malformed),
        }
    }
}

/// Error of a text that is not a set of fields.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Borrow<str> for Element {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Formats a path element for people, truncating long texts: `.spec`, `[name="x"]`, `[="x"]`,
/// `[0]`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, rest) = self.0.split_once(':').unwrap_or(("f", &self.0));
        match kind {
            "k" => {
                let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
                let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(f, "[{}]", truncate(&keys.join(",")))
            }
            "v" => write!(f, "[={}]", truncate(rest)),
            "i" => write!(f, "[{rest}]"),
            _ => write!(f, ".{}", truncate(rest)),
        }
    }
}

impl FieldSet {
    /// Returns a set with the field itself as the only member.
    pub(super) fn only_self() -> Self {
        Self { member: true, below: BTreeMap::new() }
    }

    /// Returns the set of fields at these paths of names.
    pub(super) fn of_names(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let mut node = &mut set;
            for name in *path {
                node = node.below.entry(Element::field(name)).or_default();
            }
            node.member = true;
        }
        set
    }

    /// Returns whether the set has no member.
    pub(super) fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }

    /// Returns whether the field itself is a member.
    pub(super) fn has_self(&self) -> bool {
        self.member
    }

    /// Returns whether any field within this one is a member.
    pub(super) fn has_below(&self) -> bool {
        !self.below.is_empty()
    }

    /// Adds the field itself.
    pub(super) fn add_self(&mut self) {
        self.member = true;
    }

    /// Returns the subset at or below an element; empty if there is none.
    pub(super) fn at(&self, element: &Element) -> &Self {
        self.below.get(element).unwrap_or(&EMPTY)
    }

    /// Adds a set below an element.
    pub(super) fn attach(&mut self, element: Element, set: Self) {
        if !set.is_empty() {
            self.below.entry(element).or_default().add(set);
        }
    }

    /// Adds all fields of another set.
    pub(super) fn add(&mut self, other: Self) {
        self.member |= other.member;
        for (element, set) in other.below {
            self.below.entry(element).or_default().add(set);
        }
    }

    /// Removes the fields of another set, each by itself: fields within them stay.
    pub(super) fn subtract(&mut self, other: &Self) {
        self.member &= !other.member;
        cost_meter::count(1 + self.below.len().min(other.below.len()));
        // Iterates over the shorter map: a large set may be subtracted from many small ones.
        if self.below.len() < other.below.len() {
            self.below.retain(|element, own| {
                let Some(set) = other.below.get(element) else { return true };
                own.subtract(set);
                !own.is_empty()
            });
            return;
        }
        for (element, set) in &other.below {
            if let Some(own) = self.below.get_mut(element) {
                own.subtract(set);
                if own.is_empty() {
                    self.below.remove(element);
                }
            }
        }
    }

    /// Returns the fields that are in both sets.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self { member: self.member && other.member, below: BTreeMap::new() };
        for (element, set) in &self.below {
            both.attach(element.clone(), set.intersection(other.at(element)));
        }
        both
    }

    /// Retains only the fields at or below a name.
    pub(super) fn keep_only(&mut self, name: &str) {
        let element = Element::field(name);
        self.below.retain(|other, _| *other == element);
    }

    /// Returns the number of fields.
    pub(super) fn len(&self) -> usize {
        usize::from(self.member) + self.below.values().map(Self::len).sum::<usize>()
    }

    /// Returns the paths of the first fields for people, at most `limit`.
    pub(super) fn paths(&self, limit: usize) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", limit, &mut paths);
        paths
    }

    fn collect(&self, path: &str, limit: usize, paths: &mut Vec<String>) {
        if self.member && paths.len() < limit {
            paths.push(path.to_owned());
        }
        for (element, set) in &self.below {
            if paths.len() >= limit {
                return;
            }
            set.collect(&format!("{path}{element}"), limit, paths);
        }
    }

    /// Encodes the set as `FieldsV1`.
    pub(super) fn to_fields(&self) -> Map<String, Value> {
        self.below
            .iter()
            .map(|(element, set)| (element.0.to_string(), Value::Object(set.to_node())))
            .collect()
    }

    fn to_node(&self) -> Map<String, Value> {
        let mut node = self.to_fields();
        if self.member && !node.is_empty() {
            node.insert(".".to_owned(), Value::Object(Map::new()));
        }
        node
    }

    /// Decodes `FieldsV1`. Elements of unknown types are skipped.
    ///
    /// # Errors
    /// An element or the value below it is invalid.
    pub(super) fn from_fields(fields: &Map<String, Value>) -> Result<Self, Malformed> {
        let mut set = Self::default();
        for (text, node) in fields {
            let fields = node.as_object().ok_or(Malformed)?;
            if text == "." {
                continue;
            }
            if let Some(element) = Element::parse(text)? {
                let mut below = Self::from_fields(fields)?;
                below.member = below.is_empty() || fields.contains_key(".");
                set.attach(element, below);
            }
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn set(fields: &Value) -> FieldSet {
        FieldSet::from_fields(fields.as_object().unwrap()).unwrap()
    }

    #[test]
    fn field_sets_encode_as_in_kubernetes() {
        let fields = json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:finalizers": {"v:\"x\"": {}}},
            "f:spec": {"f:containers": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}}},
            "f:list": {"i:0": {}}
        });
        let set = set(&fields);
        assert_eq!(Value::Object(set.to_fields()), fields);
        assert_eq!(set.len(), 6);
        assert_eq!(
            set.paths(10),
            [
                ".list[0]",
                ".metadata.finalizers[=\"x\"]",
                ".metadata.labels",
                ".metadata.labels.app",
                ".spec.containers[containerPort=80,protocol=\"TCP\"]",
                ".spec.containers[containerPort=80,protocol=\"TCP\"].name"
            ][..]
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        );
        assert_eq!(set.paths(2).len(), 2);
    }

    #[test]
    fn equivalent_elements_are_equal() {
        let odd = json!({"f:a": {"k:{\"z\": 1.0, \"b\":\"\\u003c\"}": {}, "v: 2.0": {}, "i:07": {}}});
        let plain = json!({"f:a": {"k:{\"b\":\"<\",\"z\":1}": {}, "v:2": {}, "i:7": {}}});
        assert_eq!(Value::Object(set(&odd).to_fields()), plain);
    }

    #[test]
    fn unknown_elements_are_skipped_and_invalid_ones_refused() {
        assert_eq!(set(&json!({"x:new": {"f:a": {}}, "f:b": {}})), set(&json!({"f:b": {}})));
        for broken in [
            json!({"f": {}}),
            json!({"k:7": {}}),
            json!({"k:{": {}}),
            json!({"v:": {}}),
            json!({"v:1 2": {}}),
            json!({"i:x": {}}),
            json!({"nonsense": {}}),
            json!({"f:a": 7}),
            json!({".": null}),
        ] {
            assert_eq!(FieldSet::from_fields(broken.as_object().unwrap()), Err(Malformed), "{broken}");
        }
    }

    #[test]
    fn removing_a_field_keeps_the_fields_within() {
        let mut parent = set(&json!({"f:a": {".": {}, "f:b": {}}}));
        parent.subtract(&set(&json!({"f:a": {}})));
        assert_eq!(parent, set(&json!({"f:a": {"f:b": {}}})));
        parent.subtract(&set(&json!({"f:a": {"f:b": {}}})));
        assert!(parent.is_empty());
    }

    fn element() -> impl Strategy<Value = Element> {
        prop_oneof![
            "[a-c.:\"]{0,2}".prop_map(|name| Element::field(&name)),
            (-2i64..2).prop_map(|value| Element::value(json!(value))),
            "[a-b\"]{1,2}".prop_map(|value| Element::value(json!(value))),
            (0i64..2, any::<bool>()).prop_map(|(a, b)| Element::keys(Map::from_iter([
                ("p".into(), json!(a)),
                ("q".into(), json!(b))
            ]))),
        ]
    }

    fn field_set() -> impl Strategy<Value = FieldSet> {
        prop::collection::vec(prop::collection::vec(element(), 1..4), 0..12).prop_map(|paths| {
            let mut set = FieldSet::default();
            for path in paths {
                let leaf = path.into_iter().rev().fold(FieldSet::only_self(), |below, element| {
                    let mut node = FieldSet::default();
                    node.attach(element, below);
                    node
                });
                set.add(leaf);
            }
            set
        })
    }

    fn union(a: &FieldSet, b: &FieldSet) -> FieldSet {
        let mut union = a.clone();
        union.add(b.clone());
        union
    }

    fn difference(a: &FieldSet, b: &FieldSet) -> FieldSet {
        let mut difference = a.clone();
        difference.subtract(b);
        difference
    }

    proptest! {
        #[test]
        fn field_sets_round_trip(set in field_set()) {
            prop_assert_eq!(FieldSet::from_fields(&set.to_fields()), Ok(set));
        }

        #[test]
        fn union_difference_and_intersection_are_consistent(a in field_set(), b in field_set()) {
            let (both, either) = (a.intersection(&b), union(&a, &b));
            prop_assert_eq!(&either, &union(&b, &a));
            prop_assert_eq!(&both, &b.intersection(&a));
            prop_assert_eq!(either.len() + both.len(), a.len() + b.len());
            prop_assert_eq!(&union(&difference(&a, &b), &both), &a);
            prop_assert!(difference(&a, &b).intersection(&b).is_empty());
            prop_assert_eq!(&difference(&either, &b), &difference(&a, &b));
            prop_assert_eq!(&union(&a, &a), &a);
            prop_assert!(difference(&a, &a).is_empty());
        }
    }
}
