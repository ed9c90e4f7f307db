use super::*;
use serde_json::json;

fn rollout() -> Rollout {
    let spec = json!({"waves": [{}], "healthyWithin": "10m", "offline": {"after": "1h"}, "waiting": {"after": "24h"}});
    Rollout::parse(&spec, "rollout").unwrap()
}

fn at(minutes: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
}

fn facts(answer: Answer, link: Link) -> NodeFacts {
    NodeFacts { assigned_at: Some(at(0)), first_connected: None, waited_until: None, answer, link }
}

fn state(facts: &NodeFacts, minutes: i64) -> NodeState {
    let found = facts.classify(at(minutes), &rollout());
    // The state holds until the time that is named, and changes then.
    if let Some(until) = found.until {
        assert!(until > at(minutes));
        assert_ne!(facts.classify(until, &rollout()).state, found.state);
        let before = until - SignedDuration::from_secs(1);
        assert_eq!(facts.classify(before.max(at(minutes)), &rollout()).state, found.state);
    }
    found.state
}

fn away(last_heard: i64, expected: Option<i64>) -> Link {
    Link::Disconnected { last_heard: at(last_heard), expected: expected.map(at) }
}

#[test]
fn answers_count_whatever_the_connection() {
    for link in [Link::Connected(at(0)), away(-10_000, None)] {
        assert_eq!(state(&facts(Answer::InEffect, link), 10_000), NodeState::Good);
        assert_eq!(state(&facts(Answer::HeldOnly, link), 10_000), NodeState::HeldOnly);
        let failed = facts(Answer::Failed("no".into()), link);
        assert_eq!(state(&failed, 1), NodeState::Failed("no".into()));
    }
}

#[test]
fn a_node_without_its_revision_is_waited_for() {
    let facts = NodeFacts { assigned_at: None, ..facts(Answer::InEffect, Link::Connected(at(0))) };
    assert_eq!(state(&facts, 100_000), NodeState::Pending);
}

#[test]
fn a_connected_node_is_silent_after_its_term() {
    for answer in [Answer::Incomplete, Answer::NotYetInEffect] {
        let facts = facts(answer, Link::Connected(at(-500)));
        assert_eq!((state(&facts, 9), state(&facts, 10)), (NodeState::Pending, NodeState::Silent));
    }
    // The term begins with the connection.
    let facts = facts(Answer::Incomplete, Link::Connected(at(30)));
    assert_eq!((state(&facts, 39), state(&facts, 40)), (NodeState::Pending, NodeState::Silent));
}

#[test]
fn a_node_is_away_beyond_its_planned_check_in_only() {
    let gone = facts(Answer::Incomplete, away(-30, None));
    assert_eq!((state(&gone, 29), state(&gone, 30)), (NodeState::Pending, NodeState::Away));
    let planned = facts(Answer::Incomplete, away(-30, Some(300)));
    assert_eq!((state(&planned, 359), state(&planned, 360)), (NodeState::Pending, NodeState::Away));
    let never = facts(Answer::Incomplete, Link::Disconnected { last_heard: Timestamp::MIN, expected: None });
    assert_eq!(state(&never, 0), NodeState::Away);
}

#[test]
fn a_node_that_comes_and_goes_is_not_waited_for_forever() {
    let flapping = NodeFacts { first_connected: Some(at(5)), ..facts(Answer::Incomplete, away(70, None)) };
    assert_eq!((state(&flapping, 74), state(&flapping, 75)), (NodeState::Pending, NodeState::Away));
    let back = NodeFacts { link: Link::Connected(at(72)), ..flapping };
    assert_eq!((state(&back, 74), state(&back, 75)), (NodeState::Pending, NodeState::Away));
    assert_eq!(state(&back, 82), NodeState::Silent);
}

#[test]
fn waiting_is_excused_after_its_term() {
    let day = 24 * 60;
    let waiting = facts(Answer::Waiting(at(10)), Link::Connected(at(0)));
    assert_eq!(
        (state(&waiting, day + 9), state(&waiting, day + 10)),
        (NodeState::Waiting, NodeState::Excused)
    );
    let gone = facts(Answer::Waiting(at(10)), away(20, None));
    assert_eq!((state(&gone, 79), state(&gone, 80)), (NodeState::Waiting, NodeState::Away));
}

/// It failed at once when its wait ended later than `healthyWithin`.
#[test]
fn node_has_its_time_to_answer_after_a_wait() {
    let waited = NodeFacts {
        first_connected: Some(at(0)),
        waited_until: Some(at(300)),
        ..facts(Answer::Incomplete, Link::Connected(at(0)))
    };
    let within = i64::try_from(rollout().healthy_within.as_secs() / 60).unwrap();
    assert_eq!(state(&waited, 300 + within - 1), NodeState::Pending);
    assert_eq!(state(&waited, 300 + within), NodeState::Silent);
}

#[test]
fn extreme_times_do_not_overflow() {
    for time in [Timestamp::MIN, Timestamp::MAX] {
        for link in [Link::Connected(time), Link::Disconnected { last_heard: time, expected: Some(time) }] {
            for answer in [Answer::Incomplete, Answer::Waiting(time)] {
                let (assigned_at, first_connected, waited_until) = (Some(time), Some(time), Some(time));
                let facts = NodeFacts { assigned_at, first_connected, waited_until, answer, link };
                for now in [Timestamp::MIN, at(0), Timestamp::MAX] {
                    drop(facts.classify(now, &rollout()));
                }
            }
        }
    }
}

#[test]
fn first_failures_are_those_with_the_first_names() {
    let mut counts = WaveCounts::default();
    for number in (0..20).rev() {
        let node = NodeName::parse(&format!("n{number:02}")).unwrap();
        counts.add(&node, None, &NodeState::Failed(number.to_string()));
    }
    let shown: Vec<_> = counts.failures.iter().map(|failed| failed.node.as_str()).collect();
    assert_eq!(shown, ["n00", "n01", "n02", "n03", "n04"]);
    assert_eq!((counts.failed, counts.nodes), (20, 20));
}

#[test]
fn a_selection_settles_when_it_rests_or_after_ten_times_as_long() {
    let digest = |text: &str| Some(format!("{text:0>32}").parse().unwrap());
    let second = |second| at(0) + SignedDuration::from_secs(second);
    let settle = Duration::from_secs(5);
    let mut planned = Planned::default();
    planned.follow(second(0), digest("0"), digest("0"));
    planned.follow(second(10), digest("1"), digest("0"));
    planned.follow(second(12), digest("2"), digest("0"));
    planned.follow(second(14), digest("2"), digest("0"));
    assert_eq!(planned.settled_at(settle), second(17));
    for time in 15..100 {
        planned.follow(second(time), digest(&time.to_string()), digest("0"));
    }
    assert_eq!(planned.settled_at(settle), second(60));
    // Back to the newest revision, and away again.
    planned.follow(second(100), digest("0"), digest("0"));
    planned.follow(second(200), digest("1"), digest("0"));
    assert_eq!(planned.settled_at(settle), second(205));
}
