//! Topics of the protocol: built from a checked prefix and node name, and parsed. Pure.

use edgesync_object::name;

/// Prefix unless another one is configured.
const DEFAULT_PREFIX: &str = "edgesync/v1";
/// Longest prefix in bytes: with the longest node name a topic stays far below MQTT's 65,535.
pub const MAX_PREFIX: usize = 256;

/// Reason why a prefix is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("topic prefix {prefix:?} {problem}")]
pub struct PrefixError {
    prefix: String,
    problem: &'static str,
}

/// A topic of the protocol, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic<'a> {
    /// `<prefix>/nodes/<node>/up`: from the node to the cloud.
    Up(&'a str),
    /// `<prefix>/nodes/<node>/down`: from the cloud to the node.
    Down(&'a str),
    /// `<prefix>/nodes/<node>/presence`: whether the node is connected; retained.
    Presence(&'a str),
    /// `<prefix>/cloud`: whether the cloud side is connected; retained.
    Cloud,
}

/// The topics under one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    prefix: String,
}

impl Default for Topics {
    fn default() -> Self {
        Self { prefix: DEFAULT_PREFIX.to_owned() }
    }
}

impl Topics {
    /// Validates the prefix.
    ///
    /// # Errors
    /// The prefix is empty, too long, begins with `$`, has an empty level, a wildcard or a control
    /// character.
    pub fn new(prefix: &str) -> Result<Self, PrefixError> {
        let problem = if prefix.is_empty() {
            "must not be empty"
        } else if prefix.len() > MAX_PREFIX {
            "must be at most 256 bytes long"
        } else if prefix.starts_with('$') {
            "must not begin with '$', which brokers keep for themselves"
        } else if prefix.split('/').any(str::is_empty) {
            "must not have an empty level, nor begin or end with '/'"
        } else if prefix.contains(['+', '#']) {
            "must not contain the wildcards '+' and '#'"
        } else if prefix.chars().any(char::is_control) {
            "must not contain control characters"
        } else {
            return Ok(Self { prefix: prefix.to_owned() });
        };
        let prefix = prefix.chars().take(64).collect();
        Err(PrefixError { prefix, problem })
    }

    /// Returns the prefix, without a slash at its end.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the topic from the node to the cloud.
    #[must_use]
    pub fn up(&self, node: &str) -> String {
        self.node(node, "up")
    }

    /// Returns the topic from the cloud to the node.
    #[must_use]
    pub fn down(&self, node: &str) -> String {
        self.node(node, "down")
    }

    /// Returns the topic of the node's presence.
    #[must_use]
    pub fn presence(&self, node: &str) -> String {
        self.node(node, "presence")
    }

    /// Returns the topic of the cloud side's presence.
    #[must_use]
    pub fn cloud(&self) -> String {
        format!("{}/cloud", self.prefix)
    }

    /// Returns the filter for the messages of all nodes.
    #[must_use]
    pub fn every_up(&self) -> String {
        self.node("+", "up")
    }

    /// Returns the filter for the presence of all nodes.
    #[must_use]
    pub fn every_presence(&self) -> String {
        self.node("+", "presence")
    }

    fn node(&self, node: &str, leaf: &str) -> String {
        format!("{}/nodes/{node}/{leaf}", self.prefix)
    }

    /// Parses a topic; `None` unless it is one of the protocol with a valid node name.
    #[must_use]
    pub fn parse<'a>(&self, topic: &'a str) -> Option<Topic<'a>> {
        let rest = topic.strip_prefix(self.prefix.as_str())?.strip_prefix('/')?;
        if rest == "cloud" {
            return Some(Topic::Cloud);
        }
        let (node, leaf) = rest.strip_prefix("nodes/")?.split_once('/')?;
        name::check_subdomain(node).ok()?;
        match leaf {
            "up" => Some(Topic::Up(node)),
            "down" => Some(Topic::Down(node)),
            "presence" => Some(Topic::Presence(node)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_survive_a_round_trip() {
        for prefix in ["edgesync/v1", "a", "plant 7/ü"] {
            let topics = Topics::new(prefix).unwrap();
            assert_eq!(topics.parse(&topics.up("n-1.x")), Some(Topic::Up("n-1.x")));
            assert_eq!(topics.parse(&topics.down("n")), Some(Topic::Down("n")));
            assert_eq!(topics.parse(&topics.presence("n")), Some(Topic::Presence("n")));
            assert_eq!(topics.parse(&topics.cloud()), Some(Topic::Cloud));
        }
    }

    #[test]
    fn foreign_topics_are_not_parsed() {
        let topics = Topics::default();
        for other in [
            "",
            "edgesync/v1",
            "edgesync/v1/",
            "edgesync/v1cloud",
            "edgesync/v1/cloud/x",
            "edgesync/v2/cloud",
            "edgesync/v1/nodes/n",
            "edgesync/v1/nodes/n/up/x",
            "edgesync/v1/nodes//up",
            "edgesync/v1/nodes/+/up",
            "edgesync/v1/nodes/N/up",
            "edgesync/v1/nodes/../up",
            "x/edgesync/v1/cloud",
        ] {
            assert_eq!(topics.parse(other), None, "{other}");
        }
    }

    #[test]
    fn invalid_prefix_is_refused_with_its_reason() {
        let long = "a".repeat(257);
        for (bad, word) in [
            ("", "empty"),
            ("/a", "empty level"),
            ("a/", "empty level"),
            ("a//b", "empty level"),
            ("a/+", "wildcards"),
            ("a#", "wildcards"),
            ("$SYS", "'$'"),
            ("a\0", "control"),
            (long.as_str(), "256"),
        ] {
            let message = Topics::new(bad).unwrap_err().to_string();
            assert!(message.contains(word), "{bad:?}: {message}");
        }
    }
}
