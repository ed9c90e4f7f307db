//! The name of a node, checked once where it enters the program.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use super::name::{Problem, check_subdomain};

/// The name of a node: a DNS-1123 subdomain. Cheap to clone. It dereferences to its text, and
/// compares and hashes as that, so that a map by name is also asked with a text.
///
/// ```
/// use edgesync_object::NodeName;
///
/// let name = NodeName::parse("edge-1.lab")?;
/// assert_eq!(name.as_str(), "edge-1.lab");
/// assert!(NodeName::parse("Edge 1").unwrap_err().contains("'Edge 1' is not"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// Checks a name.
    ///
    /// # Errors
    /// Says what a name must be.
    pub fn parse(name: &str) -> Result<Self, Problem> {
        check_subdomain(name)?;
        Ok(Self(name.into()))
    }

    /// Returns the name, a valid DNS-1123 subdomain.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<Arc<str>> for NodeName {
    type Error = Problem;

    /// Checks a name without copying it.
    fn try_from(name: Arc<str>) -> Result<Self, Problem> {
        check_subdomain(&name)?;
        Ok(Self(name))
    }
}

impl TryFrom<String> for NodeName {
    type Error = Problem;

    fn try_from(name: String) -> Result<Self, Problem> {
        Self::parse(&name)
    }
}

impl Deref for NodeName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl PartialEq<str> for NodeName {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl PartialEq<&str> for NodeName {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

impl<'de> Deserialize<'de> for NodeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Arc::<str>::deserialize(deserializer)?;
        Self::try_from(name).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::name::MAX_SUBDOMAIN;

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    #[test]
    fn a_name_is_a_subdomain_and_the_error_says_so() {
        for good in ["a", "0", "edge-1", "edge-1.lab.example", &"a".repeat(MAX_SUBDOMAIN)] {
            assert_eq!(NodeName::parse(good).as_deref(), Ok(good));
        }
        for bad in ["", ".", "a.", "A", "a_b", "-a", "a/b", "a+", "#", "ä", &"a".repeat(MAX_SUBDOMAIN + 1)] {
            let problem = NodeName::parse(bad).unwrap_err();
            assert!(problem.starts_with("must be a DNS-1123 subdomain"), "{bad}: {problem}");
            assert_eq!(NodeName::try_from(Arc::<str>::from(bad)), Err(problem.clone()));
            assert_eq!(NodeName::try_from(bad.to_owned()), Err(problem));
        }
    }

    #[test]
    fn a_clone_shares_the_text() {
        let text: Arc<str> = "edge-1".into();
        let name = NodeName::try_from(Arc::clone(&text)).unwrap();
        assert!(std::ptr::eq(name.clone().as_str(), &*text));
    }

    #[test]
    fn a_name_is_looked_up_and_ordered_as_its_text() {
        let by_name = BTreeMap::from([(name("b"), 2), (name("a.b"), 1), (name("a-b"), 0)]);
        assert_eq!(by_name.get("a.b"), Some(&1));
        assert_eq!(by_name.keys().map(NodeName::as_str).collect::<Vec<_>>(), ["a-b", "a.b", "b"]);
        assert!(HashSet::from([name("a")]).contains("a"));
        assert!(name("a") == "a" && name("a") == *"a" && name("a") != "b");
    }

    #[test]
    fn json_is_the_text_and_is_checked_when_read() {
        let read: NodeName = serde_json::from_str("\"edge-1\"").unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), "\"edge-1\"");
        let error = serde_json::from_str::<NodeName>("\"Edge 1\"").unwrap_err().to_string();
        assert!(error.starts_with("must be a DNS-1123 subdomain"), "{error}");
        assert!(serde_json::from_str::<NodeName>("1").is_err());
    }

    #[test]
    fn a_name_is_shown_as_its_text_is() {
        let name = name("edge-1");
        assert_eq!((name.to_string(), format!("{name:>8}")), ("edge-1".to_owned(), "  edge-1".to_owned()));
        assert_eq!(format!("{name:?}"), "\"edge-1\"");
    }
}
