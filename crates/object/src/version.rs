//! Resource versions and their order.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A Kubernetes `resourceVersion`: an opaque string that is ordered if it is a decimal number.
///
/// Decimal strings of any length compare by value (length first, then bytes), as Kubernetes 1.35
/// defines it. Any other string can only be equal or different. Nothing here parses into an
/// integer, so no version from a peer can overflow or panic.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceVersion(Arc<str>);

/// Relation between two versions of the same object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Both are the same version.
    Equal,
    /// Both are decimal and the first is larger.
    Newer,
    /// Both are decimal and the first is smaller.
    Older,
    /// They differ and at least one of them is not decimal: no order is known.
    Different,
}

impl ResourceVersion {
    /// Wraps a received version.
    pub fn new(version: impl Into<Arc<str>>) -> Self {
        Self(version.into())
    }

    /// Returns the version as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the version is a decimal number without leading zeros.
    #[must_use]
    pub fn is_decimal(&self) -> bool {
        match self.0.as_bytes() {
            [b'0'] => true,
            [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
            _ => false,
        }
    }

    /// Returns the relation of `self` to `other`.
    #[must_use]
    pub fn relation(&self, other: &Self) -> Relation {
        if self.0 == other.0 {
            return Relation::Equal;
        }
        if !self.is_decimal() || !other.is_decimal() {
            return Relation::Different;
        }
        let by_length = self.0.len().cmp(&other.0.len());
        match by_length.then_with(|| self.0.as_bytes().cmp(other.0.as_bytes())) {
            Ordering::Greater => Relation::Newer,
            Ordering::Less => Relation::Older,
            Ordering::Equal => Relation::Equal,
        }
    }

    /// Returns whether `self` is certainly older than `other`.
    #[must_use]
    pub fn is_older_than(&self, other: &Self) -> bool {
        self.relation(other) == Relation::Older
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rv{}", self.0)
    }
}

impl From<u64> for ResourceVersion {
    fn from(version: u64) -> Self {
        Self(version.to_string().into())
    }
}

impl From<&str> for ResourceVersion {
    fn from(version: &str) -> Self {
        Self(version.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn relation(a: &str, b: &str) -> Relation {
        ResourceVersion::from(a).relation(&ResourceVersion::from(b))
    }

    #[test]
    fn decimal_versions_compare_by_value_at_any_length() {
        assert_eq!(relation("10", "9"), Relation::Newer);
        assert_eq!(relation("9", "10"), Relation::Older);
        assert_eq!(relation("7", "7"), Relation::Equal);
        assert_eq!(relation("0", "1"), Relation::Older);
        let long = "9".repeat(400);
        assert_eq!(relation(&format!("1{long}"), &long), Relation::Newer);
    }

    #[test]
    fn other_versions_are_only_equal_or_different() {
        for odd in ["", "abc", "-1", "1.5", "007", " 7", "7 ", "٣"] {
            assert_eq!(relation(odd, "7"), Relation::Different, "{odd:?}");
            assert_eq!(relation("7", odd), Relation::Different, "{odd:?}");
            assert_eq!(relation(odd, odd), Relation::Equal, "{odd:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_agree_with_integers(a: u64, b: u64) {
            let expected = match a.cmp(&b) {
                Ordering::Less => Relation::Older,
                Ordering::Equal => Relation::Equal,
                Ordering::Greater => Relation::Newer,
            };
            prop_assert_eq!(ResourceVersion::from(a).relation(&b.into()), expected);
        }

        #[test]
        fn any_two_strings_compare_without_panic(a in ".*", b in ".*") {
            let forth = relation(&a, &b);
            let back = relation(&b, &a);
            let mirrored = match forth {
                Relation::Newer => Relation::Older,
                Relation::Older => Relation::Newer,
                same => same,
            };
            prop_assert_eq!(back, mirrored);
        }
    }
}
