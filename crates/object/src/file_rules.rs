//! The objects that the file rules of a node select, as the node reports them.
//!
//! Rules are configured on the device alone. The cloud side learns from this text which objects of
//! a roll-out have to be in effect on the node before it has succeeded.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::matching::ObjectMatch;
use super::{Labels, Resource};

/// Annotation of a Node with the objects that its file rules select: a list of [`ObjectMatch`] as
/// JSON. Absent without rules, and for nodes that do not report them.
pub const FILE_RULES_ANNOTATION: &str = "edgesync.io/file-rules";
/// Maximum length of [`FILE_RULES_ANNOTATION`] in bytes. A node with more rules reports none.
pub const MAX_FILE_RULES: usize = 8 << 10;

/// Limit of the comparisons for one set of objects: a few milliseconds. A hundred rules for a
/// thousand objects take a tenth of it.
const MAX_STEPS: usize = 4 << 20;

/// The objects that the file rules of a node select.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FileRules(Vec<ObjectMatch>);

/// An object that rules may concern.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its kind.
    pub resource: &'a Resource,
    /// Its namespace, empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a Labels,
}

impl FromIterator<ObjectMatch> for FileRules {
    fn from_iter<I: IntoIterator<Item = ObjectMatch>>(rules: I) -> Self {
        Self(rules.into_iter().collect())
    }
}

impl FileRules {
    /// Returns the value of the annotation; `None` without rules, or if it would be longer than
    /// [`MAX_FILE_RULES`].
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let text = serde_json::to_string(&self.0).ok()?;
        (!self.0.is_empty() && text.len() <= MAX_FILE_RULES).then_some(text)
    }

    /// Parses the value of the annotation; `None` if it is empty, too long, or has criteria that
    /// this version does not know. What such rules select is not known.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_FILE_RULES {
            return None;
        }
        let rules: Self = serde_json::from_str(text).ok()?;
        (!rules.0.is_empty()).then_some(rules)
    }

    /// Returns which of the objects a rule concerns, in their order; `None` if that would take more
    /// than [`MAX_STEPS`]. Each namespace is compared with the patterns once.
    #[must_use]
    pub fn concern(&self, objects: &[Candidate<'_>]) -> Option<Vec<bool>> {
        let mut namespaces: HashMap<&str, Vec<bool>> = HashMap::new();
        namespaces.extend(objects.iter().map(|object| (object.namespace, Vec::new())));
        let (mut criteria, mut patterns) = (0, 0);
        for rule in &self.0 {
            criteria += 1 + rule.kinds.len() + rule.names.len();
            patterns += rule.namespaces.iter().map(|glob| glob.to_string().len()).sum::<usize>();
        }
        let compared: usize = namespaces.keys().map(|namespace| 1 + namespace.len()).sum();
        if objects.len() * criteria + compared * patterns > MAX_STEPS {
            return None;
        }
        for (namespace, is_in) in &mut namespaces {
            *is_in = self.0.iter().map(|rule| rule.takes_namespace(namespace)).collect();
        }
        let concerned = objects.iter().map(|object| {
            let Candidate { resource, namespace, name, labels } = object;
            let mut rules = self.0.iter().zip(&namespaces[namespace]);
            rules.any(|(rule, is_in)| {
                *is_in && rule.takes(resource) && rule.takes_name(name) && rule.selector.matches(labels)
            })
        });
        Some(concerned.collect())
    }

    /// Returns whether messages about an object may quote files of another kind: a program reads
    /// all files of its rule. They may unless all rules that concern the object leave the kind out.
    #[must_use]
    pub fn may_quote(&self, object: &Candidate<'_>, other: &Resource) -> bool {
        let Candidate { resource, namespace, name, labels } = object;
        let concerns =
            |rule: &&ObjectMatch| rule.names(resource, namespace, name) && rule.selector.matches(labels);
        let mut rules = self.0.iter().filter(concerns).peekable();
        rules.peek().is_none() || rules.any(|rule| rule.takes(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::guess;

    fn rules(text: &str) -> FileRules {
        FileRules::parse(text).unwrap()
    }

    #[test]
    fn rules_are_read_as_they_were_written() {
        let text = concat!(
            r#"[{"kinds":["Deployment.apps","ConfigMap","mice.lab.io"],"namespaces":["plant-*"],"#,
            r#""names":["web"],"selector":"app in (a,b),!old"},{}]"#
        );
        assert_eq!(rules(text).text().as_deref(), Some(text));
    }

    #[test]
    fn unknown_rules_are_none() {
        let long = format!("[{{}}{}]", " ".repeat(MAX_FILE_RULES));
        for text in ["", "[]", "{}", "7", r#"[{"later": 1}]"#, r#"[{"namespaces": ["A"]}]"#, &long] {
            assert_eq!(FileRules::parse(text), None, "{text}");
        }
        let many = FileRules(vec![ObjectMatch::default(); MAX_FILE_RULES]);
        assert_eq!((FileRules::default().text(), many.text()), (None, None));
    }

    /// The same decision as that of the device, which asks [`ObjectMatch::names`].
    #[test]
    fn all_criteria_of_one_rule_must_match() {
        let rules = rules(concat!(
            r#"[{"kinds":["configmaps"],"namespaces":["plant-*"],"names":["web"],"selector":"app=web"},"#,
            r#"{"kinds":["widgets.lab.io"]}]"#
        ));
        let (map, secret) = (guess("v1", "ConfigMap", true), guess("v1", "Secret", true));
        let widget = guess("lab.io/v1", "Widget", false);
        let (web, other) = (Labels::from([("app".into(), "web".into())]), Labels::new());
        let objects = [
            ((&map, "plant-1", "web", &web), true),
            ((&map, "plant-1", "web", &other), false),
            ((&map, "plant-1", "db", &web), false),
            ((&map, "office", "web", &web), false),
            ((&map, "", "web", &web), false),
            ((&secret, "plant-1", "web", &web), false),
            ((&widget, "", "any", &other), true),
        ];
        let candidates = objects.iter().map(|((resource, namespace, name, labels), _)| Candidate {
            resource,
            namespace,
            name,
            labels,
        });
        let expected: Vec<bool> = objects.iter().map(|(_, is)| *is).collect();
        assert_eq!(rules.concern(&candidates.collect::<Vec<_>>()), Some(expected));
    }

    #[test]
    fn messages_quote_the_kinds_of_the_rules_that_concern_an_object() {
        let rules = rules(concat!(
            r#"[{"kinds":["configmaps"],"names":["web","both"]},{"kinds":["secrets"]},"#,
            r#"{"kinds":["configmaps","secrets"],"names":["mixed","both"]},{"names":["any"]}]"#
        ));
        let (map, secret) = (guess("v1", "ConfigMap", true), guess("v1", "Secret", true));
        let labels = Labels::new();
        let may_quote = |resource, name| {
            rules.may_quote(&Candidate { resource, namespace: "plant", name, labels: &labels }, &secret)
        };
        assert!(!may_quote(&map, "web"));
        for (resource, name) in
            [(&map, "mixed"), (&map, "both"), (&map, "any"), (&map, "none"), (&secret, "web")]
        {
            assert!(may_quote(resource, name), "{name}");
        }
    }

    #[test]
    fn rules_that_take_too_long_are_not_applied() {
        let (map, labels) = (guess("v1", "ConfigMap", true), Labels::new());
        let names: Vec<String> = (0..1024).map(|n| format!("{n:0>63}")).collect();
        let object = |namespace| Candidate { resource: &map, namespace, name: "a", labels: &labels };
        let objects: Vec<Candidate<'_>> = names.iter().map(|namespace| object(namespace.as_str())).collect();
        let globs = |count| {
            FileRules(vec![ObjectMatch {
                namespaces: vec!["*a*".parse().unwrap(); count],
                ..ObjectMatch::default()
            }])
        };
        assert!(globs(16).concern(&objects).is_some() && globs(1000).concern(&objects).is_none());
        let rules = FileRules(vec![ObjectMatch { names: names.clone(), ..ObjectMatch::default() }; 100]);
        assert!(rules.concern(&objects[..10]).is_some() && rules.concern(&objects).is_none());
    }
}
