//! Finds the rules that may select an object or a node, without comparing it with thousands of
//! others.

use std::collections::HashMap;

use super::rules::{Glob, NodeMatch, ObjectMatch};
use edgesync_object::Labels;

/// The most selective condition of a rule: one of these values is required. Rarely shared ones come
/// first.
pub(super) enum Criterion<'a> {
    Names(Vec<&'a str>),
    Label(&'a str, Vec<&'a str>),
    Namespaces(Vec<&'a str>),
    None,
}

/// Returns the names of patterns without wildcards; `None` if there are others, or no patterns.
fn exact(patterns: &[Glob]) -> Option<Vec<&str>> {
    patterns.iter().map(Glob::name).collect::<Option<Vec<&str>>>().filter(|names| !names.is_empty())
}

impl<'a> From<&'a ObjectMatch> for Criterion<'a> {
    fn from(objects: &'a ObjectMatch) -> Self {
        if !objects.names.is_empty() {
            return Self::Names(objects.names.iter().map(String::as_str).collect());
        }
        let label = objects.selector.required_value().map(|(key, values)| Self::Label(key, values.collect()));
        label.or_else(|| exact(&objects.namespaces).map(Self::Namespaces)).unwrap_or(Self::None)
    }
}

impl<'a> From<&'a NodeMatch> for Criterion<'a> {
    fn from(nodes: &'a NodeMatch) -> Self {
        let label = nodes.selector.required_value().map(|(key, values)| Self::Label(key, values.collect()));
        exact(&nodes.names).map(Self::Names).or(label).unwrap_or(Self::None)
    }
}

/// The numbers of rules, by the criterion of each.
#[derive(Debug, Default)]
pub(super) struct Criteria {
    names: HashMap<String, Vec<usize>>,
    labels: HashMap<String, HashMap<String, Vec<usize>>>,
    namespaces: HashMap<String, Vec<usize>>,
    none: Vec<usize>,
}

impl Criteria {
    /// Adds a rule that selects these objects or nodes.
    pub(super) fn add<'a>(&mut self, number: usize, selects: impl Into<Criterion<'a>>) {
        self.change(&selects.into(), |rules| rules.push(number));
    }

    /// Removes a rule, which selected these objects or nodes.
    pub(super) fn remove<'a>(&mut self, number: usize, selects: impl Into<Criterion<'a>>) {
        self.change(&selects.into(), |rules| rules.retain(|other| *other != number));
    }

    fn change(&mut self, criterion: &Criterion<'_>, change: impl Fn(&mut Vec<usize>)) {
        let each = |map: &mut HashMap<String, Vec<usize>>, values: &[&str]| {
            for value in values {
                change_entry(map, value, &change);
            }
        };
        match criterion {
            Criterion::Names(names) => each(&mut self.names, names),
            Criterion::Namespaces(namespaces) => each(&mut self.namespaces, namespaces),
            Criterion::Label(key, values) => change_entry(&mut self.labels, key, |map| each(map, values)),
            Criterion::None => change(&mut self.none),
        }
    }

    /// Returns the rules whose criterion is met, ascending; a node has no namespace.
    pub(super) fn met(&self, namespace: &str, name: &str, labels: &Labels) -> Vec<usize> {
        let labelled = labels.iter().filter_map(|(key, value)| self.labels.get(key)?.get(value));
        let named = self.names.get(name).into_iter().chain(self.namespaces.get(namespace));
        let mut rules: Vec<usize> = labelled.chain(named).chain([&self.none]).flatten().copied().collect();
        rules.sort_unstable();
        // A rule may name a value twice.
        rules.dedup();
        rules
    }
}

/// Changes the entry of a map, and removes it if it is empty afterwards.
fn change_entry<T: Default + PartialEq>(map: &mut HashMap<String, T>, key: &str, change: impl Fn(&mut T)) {
    let entry = map.entry(key.to_owned()).or_default();
    change(entry);
    if *entry == T::default() {
        map.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_that_names_a_value_twice_is_met_once_and_removed_whole() {
        let mut criteria = Criteria::default();
        let [a, b] = [["a", "a", "b"], ["b", "c", "c"]]
            .map(|names| ObjectMatch { names: names.map(str::to_owned).to_vec(), ..ObjectMatch::default() });
        criteria.add(1, &b);
        criteria.add(0, &a);
        let met = |criteria: &Criteria, name: &str| criteria.met("", name, &Labels::new());
        assert_eq!((met(&criteria, "a"), met(&criteria, "b")), (vec![0], vec![0, 1]));
        criteria.remove(0, &a);
        assert_eq!((met(&criteria, "a"), met(&criteria, "b")), (vec![], vec![1]));
        criteria.remove(1, &b);
        assert!(criteria.names.is_empty(), "{criteria:?}");
    }
}
