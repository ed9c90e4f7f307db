//! Subscriptions of one client. Pure.

use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Filter, SubscribeReasonCode, UnsubAckReason};

use crate::access::{self, Verdict};
use edgesync_transport::link::topic::Topics;

/// Limit of filters per client, which has four topics.
const MAX_FILTERS: usize = 16;

/// Options for sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) at_least_once: bool,
    /// Whether a filter keeps the retain flag of live messages (retain as published).
    pub(super) keep_retain: bool,
}

/// Outcome for one filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Granted; `new` unless it replaces the same filter.
    Granted {
        new: bool,
    },
    Refused,
}

/// Filters of one client.
#[derive(Default)]
pub(super) struct Subscriptions {
    filters: Vec<Filter>,
}

impl Subscriptions {
    /// Adds or replaces a filter.
    pub(super) fn add(
        &mut self,
        topics: &Topics,
        node: &str,
        mut filter: Filter,
    ) -> (SubscribeReasonCode, Answer) {
        use SubscribeReasonCode as Code;
        match access::may_subscribe(topics, node, &filter.path) {
            Verdict::Granted => {}
            Verdict::Forbidden => return (Code::NotAuthorized, Answer::Refused),
            Verdict::Invalid => return (Code::TopicFilterInvalid, Answer::Refused),
            Verdict::Shared => return (Code::SharedSubscriptionsNotSupported, Answer::Refused),
        }
        if filter.qos == QoS::ExactlyOnce {
            filter.qos = QoS::AtLeastOnce;
        }
        let code = Code::Success(filter.qos);
        if let Some(same) = self.filters.iter_mut().find(|same| same.path == filter.path) {
            *same = filter;
            return (code, Answer::Granted { new: false });
        }
        if self.filters.len() >= MAX_FILTERS {
            return (Code::QuotaExceeded, Answer::Refused);
        }
        self.filters.push(filter);
        (code, Answer::Granted { new: true })
    }

    /// Subscribes a client of the compact exchange to its topics.
    pub(super) fn imply(&mut self, topics: &Topics, node: &str) {
        for topic in [topics.down(node), topics.cloud()] {
            self.add(topics, node, Filter::new(topic, QoS::AtLeastOnce));
        }
    }

    /// Removes the filter with this path.
    pub(super) fn remove(&mut self, path: &str) -> UnsubAckReason {
        let before = self.filters.len();
        self.filters.retain(|filter| filter.path != path);
        if self.filters.len() < before {
            UnsubAckReason::Success
        } else {
            UnsubAckReason::NoSubscriptionExisted
        }
    }

    /// Returns how to send a message on the topic, if a filter matches; `own` if the client itself
    /// published it.
    pub(super) fn grant(&self, topic: &str, own: bool) -> Option<Grant> {
        let applies = |filter: &&Filter| !(own && filter.nolocal) && access::matches(&filter.path, topic);
        self.filters.iter().filter(applies).fold(None, |grant: Option<Grant>, filter| {
            let at_least_once = filter.qos == QoS::AtLeastOnce;
            let keep_retain = filter.preserve_retain;
            Some(Grant {
                at_least_once: at_least_once || grant.is_some_and(|grant| grant.at_least_once),
                keep_retain: keep_retain || grant.is_some_and(|grant| grant.keep_retain),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(subscriptions: &mut Subscriptions, path: &str, qos: QoS) -> (SubscribeReasonCode, Answer) {
        subscriptions.add(&Topics::default(), "a", Filter::new(path, qos))
    }

    #[test]
    fn highest_qos_of_the_matching_filters_applies() {
        let mut subscriptions = Subscriptions::default();
        let down = "edgesync/v1/nodes/a/down";
        assert_eq!(subscriptions.grant(down, false), None);
        add(&mut subscriptions, "edgesync/v1/nodes/a/#", QoS::AtMostOnce);
        assert_eq!(subscriptions.grant(down, false).map(|grant| grant.at_least_once), Some(false));
        let (code, _) = add(&mut subscriptions, down, QoS::ExactlyOnce);
        assert_eq!(code, SubscribeReasonCode::Success(QoS::AtLeastOnce));
        assert_eq!(subscriptions.grant(down, false).map(|grant| grant.at_least_once), Some(true));
    }

    #[test]
    fn no_local_excludes_only_own_messages() {
        let mut subscriptions = Subscriptions::default();
        let presence = "edgesync/v1/nodes/a/presence";
        let filter = Filter { nolocal: true, ..Filter::new(presence, QoS::AtLeastOnce) };
        subscriptions.add(&Topics::default(), "a", filter);
        assert_eq!(subscriptions.grant(presence, true), None);
        assert!(subscriptions.grant(presence, false).is_some());
    }

    #[test]
    fn filters_are_bounded_and_replacing_one_adds_none() {
        let mut subscriptions = Subscriptions::default();
        for number in 0..MAX_FILTERS {
            add(&mut subscriptions, &format!("edgesync/v1/nodes/a/{number}"), QoS::AtMostOnce);
        }
        let (code, _) = add(&mut subscriptions, "edgesync/v1/nodes/a/x", QoS::AtMostOnce);
        assert_eq!(code, SubscribeReasonCode::QuotaExceeded);
        let (_, answer) = add(&mut subscriptions, "edgesync/v1/nodes/a/0", QoS::AtLeastOnce);
        assert_eq!(answer, Answer::Granted { new: false });
        assert_eq!(subscriptions.remove("edgesync/v1/nodes/a/0"), UnsubAckReason::Success);
        assert_eq!(subscriptions.remove("edgesync/v1/nodes/a/0"), UnsubAckReason::NoSubscriptionExisted);
    }
}
