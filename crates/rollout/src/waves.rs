//! Waves: which nodes get a new revision together, in order.

use edgesync_object::{Labels, Selector};

use super::revision::{Digest, hasher};

/// Limit of the waves of a roll-out.
pub(crate) const MAX_WAVES: usize = 8;

/// Some of the nodes that a rule selects. Without selector and percentage it has all that are in no
/// earlier wave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wave {
    /// Selects nodes by assigned labels; the empty selector selects all.
    pub selector: Selector,
    /// Share of all nodes, from 1 to 100; `None` for all. See [`is_within`].
    pub percent: Option<u8>,
    /// Whether the wave counts as good without a node.
    pub allow_empty: bool,
    /// Whether a node that holds the revision, and cannot report what is in effect, is a success.
    pub held_only: bool,
}

/// The waves of a roll-out in order, at least one and at most [`MAX_WAVES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waves(Vec<Wave>);

impl Wave {
    /// Returns whether the wave selects a node, regardless of earlier waves.
    #[must_use]
    pub fn selects(&self, node: &str, assigned: &Labels) -> bool {
        self.selector.matches(assigned) && self.percent.is_none_or(|percent| is_within(node, percent))
    }

    /// Returns whether this wave certainly selects each node that the other one does.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let percent = |wave: &Self| wave.percent.unwrap_or(100);
        self.selector.covers(&other.selector) && percent(self) >= percent(other)
    }

    /// Returns the digest of what selects nodes. The conditions of success are no part of it: to
    /// change them moves no node.
    fn digest(&self) -> Digest {
        let mut hasher = hasher();
        hasher.text(&self.selector.to_string());
        hasher.text(&self.percent.map_or(String::new(), |percent| percent.to_string()));
        hasher.finish()
    }
}

impl Waves {
    /// Checks the number of waves.
    ///
    /// # Errors
    /// The requirement.
    pub fn new(waves: Vec<Wave>) -> Result<Self, String> {
        match waves.len() {
            1..=MAX_WAVES => Ok(Self(waves)),
            count => Err(format!("must hold 1 to {MAX_WAVES} waves, not {count}")),
        }
    }

    /// Returns the waves in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Wave] {
        &self.0
    }

    /// Returns the number of waves.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the index of the first wave that selects the node; `None` if no wave does.
    /// `assigned` are the labels that others have given to the node, not those that it reports of
    /// itself.
    #[must_use]
    pub fn wave_of(&self, node: &str, assigned: &Labels) -> Option<usize> {
        self.0.iter().position(|wave| wave.selects(node, assigned))
    }

    /// Returns a digest for each wave. The nodes of the first waves are unchanged while the first
    /// digests are.
    #[must_use]
    pub fn digests(&self) -> Vec<Digest> {
        self.0.iter().map(Wave::digest).collect()
    }
}

/// Returns whether a node belongs to a share of all nodes, in percent.
///
/// SipHash-2-4 with a key of zeros over the bytes of the name yields 64 bits; the node belongs to
/// the share if this number modulo 10,000 is less than 100 times the percentage. So the share is
/// always made of the same nodes, and a larger one contains each smaller one. Nodes are not
/// counted: of few nodes the actual share may differ.
#[must_use]
pub fn is_within(node: &str, percent: u8) -> bool {
    bucket(node) < u64::from(percent) * 100
}

fn bucket(node: &str) -> u64 {
    use siphasher::sip::SipHasher24;
    SipHasher24::new().hash(node.as_bytes()) % 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(selector: &str, percent: Option<u8>) -> Wave {
        Wave { selector: selector.parse().unwrap(), percent, ..Wave::default() }
    }

    fn waves() -> Waves {
        Waves::new(vec![wave("stage=canary", None), wave("", Some(10)), wave("site", None)]).unwrap()
    }

    #[test]
    fn shares_are_made_of_the_same_nodes_in_each_release() {
        let golden =
            [("edge-1", 9534), ("edge-2", 8417), ("edge-3", 6150), ("a", 4905), ("pump.plant-7", 4478)];
        let found = golden.map(|(name, _)| (name, bucket(name)));
        assert_eq!(found, golden);
    }

    #[test]
    fn shares_are_nested_and_about_as_large_as_configured() {
        let names: Vec<String> = (0..10_000).map(|number| format!("node-{number}")).collect();
        let mut before = 0;
        for percent in [1, 10, 50, 99, 100] {
            let within: Vec<_> = names.iter().filter(|name| is_within(name, percent)).collect();
            let expected = usize::from(percent) * 100;
            assert!(within.len().abs_diff(expected) < 150, "{percent}: {}", within.len());
            assert!(within.len() > before);
            before = within.len();
        }
        assert_eq!(before, names.len());
    }

    #[test]
    fn a_node_is_in_the_first_wave_that_selects_it() {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let waves = waves();
        let few = (0..).map(|number| format!("n{number}")).find(|name| is_within(name, 10)).unwrap();
        let most = (0..).map(|number| format!("n{number}")).find(|name| !is_within(name, 10)).unwrap();
        assert_eq!(waves.wave_of(&few, &labels(&[("stage", "canary")])), Some(0));
        assert_eq!(waves.wave_of(&few, &labels(&[("site", "x")])), Some(1));
        assert_eq!(waves.wave_of(&most, &labels(&[("site", "x")])), Some(2));
        assert_eq!(waves.wave_of(&most, &labels(&[])), None);
    }

    #[test]
    fn digests_change_with_what_selects_nodes_only() {
        let mut changed = waves().0;
        changed[1].allow_empty = true;
        changed[2].percent = Some(50);
        let (before, after) = (waves().digests(), Waves::new(changed).unwrap().digests());
        assert_eq!(before[..2], after[..2]);
        assert_ne!(before[2], after[2]);
    }
}
