//! Kinds by group and version, in order of preference. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::kind::Kind;
use crate::request::Review;

/// The group before those of the reviews, in the order of Kubernetes.
const BEFORE_REVIEWS: &str = "events.k8s.io";

/// A group with its versions, the preferred one first.
#[derive(Debug)]
pub(crate) struct Group<'k> {
    /// Empty for the core group.
    pub(crate) name: &'k str,
    pub(crate) versions: Vec<Version<'k>>,
}

/// A version of a group with its kinds.
#[derive(Debug)]
pub(crate) struct Version<'k> {
    /// The version's name, such as `v1`.
    pub(crate) name: &'k str,
    /// In the order given.
    pub(crate) kinds: Vec<&'k Arc<Kind>>,
    /// Reviews, which have no objects.
    pub(crate) reviews: Vec<Review>,
}

impl Version<'_> {
    /// Returns the path of the version's resources.
    pub(crate) fn path(&self, group: &str) -> String {
        if group.is_empty() { format!("/api/{}", self.name) } else { format!("/apis/{group}/{}", self.name) }
    }
}

/// Sorts kinds into groups and versions. Groups are ordered by their first kind, versions by
/// preference: those that a kind prefers, then by maturity and number.
pub(crate) fn groups(kinds: &[Arc<Kind>]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for kind in kinds {
        let (name, version) = (kind.resource.group.as_str(), kind.resource.version.as_str());
        let group = groups.iter().position(|group| group.name == name).unwrap_or_else(|| {
            groups.push(Group { name, versions: Vec::new() });
            groups.len() - 1
        });
        let Some(group) = groups.get_mut(group) else { continue };
        match group.versions.iter_mut().find(|found| found.name == version) {
            Some(found) => found.kinds.push(kind),
            None => {
                group.versions.push(Version { name: version, kinds: vec![kind], reviews: Vec::new() });
            }
        }
    }
    for group in &mut groups {
        group.versions.sort_by(|a, b| {
            let order = |of: &Version<'_>| (!of.kinds.iter().any(|kind| kind.preferred), rank(of.name));
            order(a).cmp(&order(b)).then_with(|| a.name.cmp(b.name))
        });
    }
    groups
}

/// Returns the groups of kinds and of reviews.
pub(crate) fn groups_with_reviews(kinds: &[Arc<Kind>]) -> Vec<Group<'_>> {
    let mut groups = groups(kinds);
    let before = groups.iter().position(|group| group.name == BEFORE_REVIEWS);
    let mut next = before.map_or(groups.len(), |before| before + 1);
    for review in Review::ALL {
        let known = groups.iter().position(|group| group.name == review.group());
        let place = known.unwrap_or_else(|| {
            groups.insert(next, Group { name: review.group(), versions: Vec::new() });
            next += 1;
            next - 1
        });
        let Some(group) = groups.get_mut(place) else { continue };
        match group.versions.iter_mut().find(|version| version.name == Review::VERSION) {
            Some(version) => version.reviews.push(review),
            None => group.versions.push(Version {
                name: Review::VERSION,
                kinds: Vec::new(),
                reviews: vec![review],
            }),
        }
    }
    groups
}

/// Ranks a version: stable, then beta, then alpha, higher numbers first; other names last.
fn rank(version: &str) -> (u8, Reverse<u32>, Reverse<u32>) {
    let other = (3, Reverse(0), Reverse(0));
    let Some(numbers) = version.strip_prefix('v') else { return other };
    let (class, major, minor) = match (numbers.split_once("beta"), numbers.split_once("alpha")) {
        (Some((major, minor)), _) => (1, major, minor),
        (_, Some((major, minor))) => (2, major, minor),
        _ => (0, numbers, "0"),
    };
    match (major.parse(), minor.parse()) {
        (Ok(major), Ok(minor)) => (class, Reverse(major), Reverse(minor)),
        _ => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_stable_beta_alpha_other() {
        let mut versions =
            ["foo", "v1alpha2", "v1", "v11beta2", "v2", "v1beta1", "v3beta1", "v10", "v1gamma1"];
        versions.sort_by_key(|version| (rank(version), *version));
        let expected = ["v10", "v2", "v1", "v11beta2", "v3beta1", "v1beta1", "v1alpha2", "foo", "v1gamma1"];
        assert_eq!(versions, expected);
    }
}
