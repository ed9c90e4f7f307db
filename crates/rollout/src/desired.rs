//! The desired version of an object on a node, where rules with a roll-out select it.

use jiff::Timestamp;

use super::revision::{Entry, Set};

/// Age of a rule: of several rules the first in this order decides. Rules of the configuration have
/// the minimum for their creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age<'a> {
    /// Creation of the rule.
    pub created: Timestamp,
    /// Its namespace, empty for a rule of the whole cluster or of the configuration.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// The set that is assigned to a node under a rule.
#[derive(Clone, Copy, Debug)]
pub enum Assigned<'a> {
    /// The rule has no revision yet: it places objects as a rule without a roll-out.
    None,
    /// The set of the assigned revision.
    Set(&'a Set),
    /// The bodies of the assigned revision are lost.
    Lost,
}

/// A rule with a roll-out that selects the node.
#[derive(Clone, Copy, Debug)]
pub struct Governing<'a> {
    /// Its age.
    pub age: Age<'a>,
    /// Whether it selects the object now.
    pub selects: bool,
    /// The set that is assigned to the node under it.
    pub assigned: Assigned<'a>,
}

/// The desired version of one object on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Desired<'a> {
    /// The newest version.
    Newest,
    /// The version of the assigned revision.
    Version(&'a Entry),
    /// The object is not desired.
    Absent,
    /// The same as before: the assigned revision is not known.
    Unchanged,
}

/// The answer for a node and an object, and the rules that it follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// The desired version.
    pub desired: Desired<'a>,
    /// The rule with a roll-out that decides; `None` if none governs the object.
    pub by: Option<Age<'a>>,
    /// Younger rules that govern the object too; they are overlapped.
    pub overlapped: Vec<Age<'a>>,
}

impl Governing<'_> {
    /// Returns whether the rule governs the object: it selects it now, or the assigned
    /// revision has it.
    fn governs(&self, uid: &str) -> bool {
        self.selects
            || match self.assigned {
                Assigned::None | Assigned::Lost => false,
                Assigned::Set(set) => set.entries().contains_key(uid),
            }
    }

    fn is_lost(&self) -> bool {
        matches!(self.assigned, Assigned::Lost)
    }
}

/// Decides what is desired of an object on a node. `rules` are all rules with a roll-out that
/// select the node, in any order; `is_placed` is whether anything else places the object there,
/// such as a rule without a roll-out, a label or the reference of a Pod.
///
/// A revision that is not known may have any object. It decides about those that its rule selects,
/// and about those that nothing else places: one that counted as removed would be deleted.
#[must_use]
pub fn decide<'a>(uid: &str, rules: &[Governing<'a>], is_placed: bool) -> Decision<'a> {
    let mut governing: Vec<&Governing<'a>> = rules.iter().filter(|rule| rule.governs(uid)).collect();
    if governing.is_empty() && !is_placed {
        governing.extend(rules.iter().filter(|rule| rule.is_lost()));
    }
    governing.sort_by_key(|rule| rule.age);
    let presence = if is_placed { Desired::Newest } else { Desired::Absent };
    let Some((first, others)) = governing.split_first() else {
        return Decision { desired: presence, by: None, overlapped: Vec::new() };
    };
    let desired = match first.assigned {
        Assigned::None => Desired::Newest,
        Assigned::Lost => Desired::Unchanged,
        Assigned::Set(set) => set.entries().get(uid).map_or(presence, Desired::Version),
    };
    let overlapped = others.iter().map(|rule| rule.age).collect();
    Decision { desired, by: Some(first.age), overlapped }
}

#[cfg(test)]
mod tests;
