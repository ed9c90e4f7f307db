//! Topic aliases of one connection (MQTT v5, section 3.3.2.3.4), in both directions. Pure.

use bytes::Bytes;
use rumqttc::v5::mqttbytes::v5::{Publish, PublishProperties};

use crate::link::compact::{self, CompactTopics};

/// Bytes of the alias property.
const PROPERTY_BYTES: usize = 3;

/// The aliases of a connection.
#[derive(Debug, Default)]
pub(in crate::link) struct Aliases {
    topics: Option<CompactTopics>,
    /// Whether all aliases stand from the start.
    is_compact: bool,
    /// Whether the broker permits the alias of `up`.
    is_permitted: bool,
    /// Whether a message has introduced the alias of `up`.
    is_known: bool,
}

impl Aliases {
    /// Creates the aliases of a connection; `permitted` is the largest alias that the broker takes.
    pub(in crate::link) fn new(topics: Option<&CompactTopics>, is_compact: bool, permitted: u16) -> Self {
        Self {
            topics: topics.cloned(),
            is_compact,
            is_permitted: permitted >= compact::UP,
            is_known: is_compact,
        }
    }

    pub(in crate::link) fn is_compact(&self) -> bool {
        self.is_compact
    }

    /// Replaces the topic of a message to send by its alias, or introduces the alias if the packet
    /// stays below `limit` bytes.
    pub(super) fn shorten(&mut self, publish: &mut Publish, limit: u32) {
        let is_up = self.topics.as_ref().is_some_and(|topics| *topics.up.as_bytes() == *publish.topic);
        if !is_up || !(self.is_compact || self.is_permitted) {
            return;
        }
        if self.is_known {
            publish.topic = Bytes::new();
        } else if publish.size() + PROPERTY_BYTES < limit as usize {
            self.is_known = true;
        } else {
            return;
        }
        let properties = PublishProperties { topic_alias: Some(compact::UP), ..PublishProperties::default() };
        publish.properties = Some(properties);
    }

    /// Replaces the alias of a received message by its topic. Leaves an unknown alias for the state
    /// machine, which refuses it.
    pub(super) fn resolve(&self, publish: &mut Publish) {
        let alias = publish.properties.as_ref().and_then(|properties| properties.topic_alias);
        let topics = self.topics.as_ref().filter(|_| self.is_compact && publish.topic.is_empty());
        if let Some(topic) = alias.zip(topics).and_then(|(alias, topics)| topics.topic(alias)) {
            publish.topic = Bytes::copy_from_slice(topic.as_bytes());
            publish.properties = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Topics;
    use rumqttc::v5::mqttbytes::QoS;

    const LIMIT: u32 = 1000;

    fn topics() -> CompactTopics {
        CompactTopics::new(&Topics::default(), "n-1")
    }

    fn message(topic: &str, bytes: usize) -> Publish {
        Publish { pkid: 1, ..Publish::new(topic, QoS::AtLeastOnce, vec![0; bytes], None) }
    }

    /// Returns topic and alias of a message as sent.
    fn sent(aliases: &mut Aliases, topic: &str, bytes: usize) -> (String, Option<u16>) {
        let mut publish = message(topic, bytes);
        aliases.shorten(&mut publish, LIMIT);
        let alias = publish.properties.and_then(|properties| properties.topic_alias);
        (String::from_utf8(publish.topic.to_vec()).unwrap(), alias)
    }

    #[test]
    fn alias_is_introduced_once_if_the_broker_permits_it() {
        let up = topics().up;
        let mut aliases = Aliases::new(Some(&topics()), false, 10);
        let full = message(&up, 0).size();
        assert_eq!(
            sent(&mut aliases, &up, LIMIT as usize - full - 4),
            (up.clone(), None),
            "it would not fit"
        );
        assert_eq!(sent(&mut aliases, &up, 10), (up.clone(), Some(1)));
        assert_eq!(sent(&mut aliases, &up, 10), (String::new(), Some(1)));
        assert_eq!(sent(&mut aliases, "edgesync/v1/nodes/n-1/presence", 10).1, None);
        let mut without = Aliases::new(Some(&topics()), false, 0);
        assert_eq!(sent(&mut without, &up, 10), (up.clone(), None));
        let mut other = Aliases::new(None, false, 10);
        assert_eq!(sent(&mut other, &up, 10), (up, None));
    }

    #[test]
    fn aliases_of_a_compact_exchange_stand_from_the_start() {
        let mut aliases = Aliases::new(Some(&topics()), true, 0);
        assert_eq!(sent(&mut aliases, &topics().up, 10), (String::new(), Some(1)));
        let received = |alias: u16| {
            let properties = PublishProperties { topic_alias: Some(alias), ..PublishProperties::default() };
            let mut publish = Publish { properties: Some(properties), ..message("", 5) };
            aliases.resolve(&mut publish);
            String::from_utf8(publish.topic.to_vec()).unwrap()
        };
        assert_eq!(received(2), "edgesync/v1/nodes/n-1/down");
        assert_eq!(received(3), "edgesync/v1/cloud");
        assert_eq!(received(4), "", "an unknown alias is left to the state machine");
    }
}
