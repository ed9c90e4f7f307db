//! Who may publish and subscribe to what, and which filter matches which topic. Pure.

use edgesync_transport::link::topic::{Topic, Topics};

/// The longest topic filter taken, in bytes.
const MAX_FILTER: usize = 1024;

/// What a filter is to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Granted,
    /// Well formed, but it reaches beyond the node's own topics.
    Forbidden,
    /// Not a filter at all.
    Invalid,
    /// `$share/…`: there is nobody to share with.
    Shared,
}

/// Where a node may publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Up,
    Presence,
}

/// Whether the node may publish to the topic.
pub(super) fn may_publish(topics: &Topics, node: &str, topic: &str) -> Option<Target> {
    match topics.parse(topic)? {
        Topic::Up(owner) if owner == node => Some(Target::Up),
        Topic::Presence(owner) if owner == node => Some(Target::Presence),
        _ => None,
    }
}

/// Whether the node may subscribe to the filter: something inside `<prefix>/nodes/<node>/`, or `cloud`.
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

/// Whether the text is a topic filter as MQTT defines it.
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

/// Whether a valid filter matches a topic. Topics that begin with `$` do not exist here.
pub(super) fn matches(filter: &str, topic: &str) -> bool {
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        match (wanted, levels.next()) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (wanted, Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_publishes_to_its_own_up_and_presence_and_nowhere_else() {
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
    fn a_node_hears_its_own_subtree_and_the_cloud_and_nothing_else() {
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
