//! Access rules of topics and filters, and filter matching. Pure.

use edgesync_transport::link::topic::{Topic, Topics};

/// The longest accepted topic filter, in bytes.
const MAX_FILTER: usize = 1024;

/// Result of checking a node's filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Granted,
    /// Well formed, but covers topics of others.
    Forbidden,
    /// Empty, too long, or with a misplaced wildcard (MQTT v5, section 4.7.1).
    Invalid,
    /// `$share/…`: shared subscriptions are not supported.
    Shared,
}

/// Topics that a node may publish to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Up,
    Presence,
}

/// Returns the target if the node may publish to the topic.
pub(super) fn may_publish(topics: &Topics, node: &str, topic: &str) -> Option<Target> {
    match topics.parse(topic)? {
        Topic::Up(owner) if owner == node => Some(Target::Up),
        Topic::Presence(owner) if owner == node => Some(Target::Presence),
        _ => None,
    }
}

/// Checks a node's filter: only topics inside `<prefix>/nodes/<node>/`, and `cloud`, are granted.
pub(super) fn may_subscribe(topics: &Topics, node: &str, filter: &str) -> Verdict {
    if filter.starts_with("$share/") {
        return Verdict::Shared;
    }
    if !is_filter(filter) {
        return Verdict::Invalid;
    }
    let inside = filter
        .strip_prefix(topics.prefix())
        .and_then(|rest| rest.strip_prefix("/nodes/"))
        .and_then(|rest| rest.strip_prefix(node))
        .is_some_and(|rest| rest.starts_with('/'));
    if inside || filter == topics.cloud() { Verdict::Granted } else { Verdict::Forbidden }
}

/// Returns whether the text is a topic filter as MQTT defines it.
fn is_filter(filter: &str) -> bool {
    if filter.is_empty() || filter.len() > MAX_FILTER || filter.contains('\0') {
        return false;
    }
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let alone = level.len() == 1;
        if level.contains('+') && !alone {
            return false;
        }
        if level.contains('#') && (!alone || levels.peek().is_some()) {
            return false;
        }
    }
    true
}

/// Returns whether a valid filter matches a topic. Topics that begin with `$` do not exist here.
pub(super) fn matches(filter: &str, topic: &str) -> bool {
    let mut levels = topic.split('/');
    for pattern in filter.split('/') {
        match (pattern, levels.next()) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (pattern, Some(level)) if pattern == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_publishes_to_its_own_up_and_presence_only() {
        let topics = Topics::default();
        let verdict = |topic: &str| may_publish(&topics, "a", topic);
        assert_eq!(verdict("edgesync/v1/nodes/a/up"), Some(Target::Up));
        assert_eq!(verdict("edgesync/v1/nodes/a/presence"), Some(Target::Presence));
        for other in [
            "edgesync/v1/nodes/a/down",
            "edgesync/v1/nodes/b/up",
            "edgesync/v1/nodes/a.b/up",
            "edgesync/v1/cloud",
            "edgesync/v1/nodes/a/up/x",
            "edgesync/v1/nodes/+/up",
            "other",
            "",
        ] {
            assert_eq!(verdict(other), None, "{other}");
        }
    }

    #[test]
    fn node_receives_its_own_subtree_and_the_cloud_only() {
        let topics = Topics::default();
        let verdict = |filter: &str| may_subscribe(&topics, "a", filter);
        for own in ["nodes/a/down", "nodes/a/#", "nodes/a/+", "nodes/a/+/x", "cloud"] {
            assert_eq!(verdict(&format!("edgesync/v1/{own}")), Verdict::Granted, "{own}");
        }
        for other in [
            "#",
            "+/#",
            "edgesync/v1/#",
            "edgesync/v1/+",
            "edgesync/v1/nodes/#",
            "edgesync/v1/nodes/+/down",
            "edgesync/v1/nodes/b/down",
            "edgesync/v1/nodes/ab/down",
            "edgesync/v1/nodes/a",
            "edgesync/v1/cloud/#",
            "$SYS/#",
        ] {
            assert_eq!(verdict(other), Verdict::Forbidden, "{other}");
        }
        for bad in ["", "a#", "#/a", "a/b+", "edgesync/v1/nodes/a/#/x", "edgesync/v1/nodes/a/\0"] {
            assert_eq!(verdict(bad), Verdict::Invalid, "{bad:?}");
        }
        assert_eq!(verdict("$share/g/edgesync/v1/nodes/a/down"), Verdict::Shared);
    }

    #[test]
    fn filters_match_level_by_level() {
        for (filter, topic, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/c", false),
            ("a/+", "a/b", true),
            ("a/+", "a", false),
            ("a/+", "a/b/c", false),
            ("a/#", "a/b/c", true),
            ("a/#", "a", true),
            ("a/+/#", "a/b", true),
            ("a", "a/b", false),
        ] {
            assert_eq!(matches(filter, topic), expected, "{filter} {topic}");
        }
    }
}
