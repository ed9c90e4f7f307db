use super::*;
use crate::observed::NodeState;
use edgesync_object::NodeName;
use serde_json::{Value, json};

fn rollout(extra: &Value) -> Rollout {
    let mut spec = json!({"waves": [{"selector": "stage=canary"}, {}]});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    Rollout::parse(&spec, "rollout").unwrap()
}

fn counts(states: &[(Option<&str>, NodeState, usize)]) -> WaveCounts {
    let mut counts = WaveCounts::default();
    let mut index = 0;
    for (group, state, count) in states {
        for _ in 0..*count {
            counts.add(&NodeName::parse(&format!("n{index}")).unwrap(), *group, state);
            index += 1;
        }
    }
    counts
}

fn failed() -> NodeState {
    NodeState::Failed("bad".to_owned())
}

#[test]
fn a_wave_is_good_when_no_node_is_waited_for() {
    let rollout = rollout(&json!({}));
    let judge = |states: &[_]| rollout.judge(0, &counts(states), false);
    assert_eq!(judge(&[(None, NodeState::Good, 2)]), Verdict::Good);
    assert_eq!(judge(&[(None, NodeState::Good, 9), (None, NodeState::Pending, 1)]), Verdict::Awaiting);
    assert_eq!(judge(&[(None, NodeState::Good, 9), (None, NodeState::Waiting, 1)]), Verdict::Awaiting);
    // A node that is away, or waits for long, blocks nobody.
    let states = [(None, NodeState::Good, 2), (None, NodeState::Away, 1), (None, NodeState::Excused, 1)];
    assert_eq!(judge(&states), Verdict::Good);
}

#[test]
fn nodes_that_join_a_good_wave_do_not_end_its_soak() {
    let rollout = rollout(&json!({}));
    let states = counts(&[(None, NodeState::Good, 2), (None, NodeState::Pending, 2)]);
    assert_eq!(rollout.judge(0, &states, true), Verdict::Good);
    let states = counts(&[(None, NodeState::Good, 2), (None, NodeState::Pending, 3)]);
    assert_eq!(rollout.judge(0, &states, true), Verdict::TooFew { successes: 2, required: 3 });
}

#[test]
fn too_few_answers_are_not_good() {
    let strict = rollout(&json!({"minSuccess": {"percent": 60, "atLeast": 3}}));
    let judge = |good, away| {
        strict.judge(0, &counts(&[(None, NodeState::Good, good), (None, NodeState::Away, away)]), false)
    };
    assert_eq!(judge(2, 0), Verdict::TooFew { successes: 2, required: 3 });
    assert_eq!(judge(3, 2), Verdict::Good);
    assert_eq!(judge(3, 3), Verdict::TooFew { successes: 3, required: 4 });
}

#[test]
fn held_only_is_a_success_where_the_wave_says_so() {
    let states = counts(&[(None, NodeState::HeldOnly, 4)]);
    let waves = json!({"waves": [{"selector": "stage=canary", "heldOnly": true}, {}]});
    assert_eq!(rollout(&json!({})).judge(0, &states, false), Verdict::TooFew { successes: 0, required: 2 });
    assert_eq!(rollout(&waves).judge(0, &states, false), Verdict::Good);
    assert_eq!(rollout(&waves).judge(1, &states, false), Verdict::TooFew { successes: 0, required: 2 });
}

#[test]
fn an_empty_wave_is_good_if_it_may_be_or_is_the_last() {
    let empty = WaveCounts::default();
    let waves = json!({"waves": [{"selector": "a"}, {"selector": "b", "allowEmpty": true}, {}]});
    let verdicts = [0, 1, 2].map(|wave| rollout(&waves).judge(wave, &empty, false));
    assert_eq!(verdicts, [Verdict::Empty, Verdict::Good, Verdict::Good]);
}

#[test]
fn the_order_of_answers_does_not_matter_for_failures() {
    let rollout = rollout(&json!({"maxFailures": {"percent": 10}}));
    let judge = |good, bad, pending| {
        let states =
            [(None, NodeState::Good, good), (None, failed(), bad), (None, NodeState::Pending, pending)];
        rollout.judge(0, &counts(&states), false)
    };
    assert_eq!(judge(0, 1, 9), Verdict::Awaiting);
    assert_eq!(judge(9, 1, 0), Verdict::Good);
    assert!(matches!(judge(0, 2, 8), Verdict::FailuresExceeded(_)));
    // Away nodes have not answered, and dilute nothing.
    let states = [(None, failed(), 1), (None, NodeState::Good, 5), (None, NodeState::Away, 94)];
    assert!(matches!(rollout.judge(0, &counts(&states), false), Verdict::FailuresExceeded(_)));
}

#[test]
fn silence_is_a_failure_and_waiting_is_none() {
    let rollout = rollout(&json!({"maxFailures": {"percent": 0}}));
    let judge = |state| rollout.judge(0, &counts(&[(None, NodeState::Good, 9), (None, state, 1)]), false);
    assert!(matches!(judge(NodeState::Silent), Verdict::FailuresExceeded(_)));
    assert_eq!(judge(NodeState::Excused), Verdict::Good);
}

#[test]
fn each_group_has_the_limit_of_failures() {
    let by_site = rollout(&json!({"maxFailures": {"percent": 20, "groupBy": "site"}}));
    let states =
        [(Some("a"), NodeState::Good, 99), (Some("b"), NodeState::Good, 2), (Some("b"), failed(), 1)];
    let Verdict::FailuresExceeded(exceeded) = by_site.judge(0, &counts(&states), false) else { panic!() };
    assert_eq!(exceeded.group.as_deref(), Some("b"));
    assert_eq!(exceeded.counts, Group { answered: 3, failed: 1, awaited: 0 });
    let states = [(Some("a"), NodeState::Good, 4), (Some("a"), failed(), 1), (None, NodeState::Good, 1)];
    assert_eq!(by_site.judge(0, &counts(&states), false), Verdict::Good);
}
