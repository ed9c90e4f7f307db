use super::*;
use crate::node_name;

fn last_state(node: Option<&str>) -> LastState {
    LastState { node: node.map(Uid::from), ..LastState::new(RemovalCause::Requested) }
}

/// Removes a node at the store, and asks the source to catch up. `during` is a Node that is
/// seen during the deletion.
fn removed(node: Option<&str>, during: Option<&str>) -> (Removals, NodeName) {
    let (mut removals, name) = (Removals::default(), node_name("edge-1"));
    removals.insert(&name, last_state(node));
    assert_eq!(removals.begin_deletion(&name, false), Some(RemovalCause::Requested));
    if let Some(uid) = during {
        assert!(!removals.node_changed(&name, &uid.into()), "its deletion may be on its way");
    }
    assert_eq!(removals.removed(Now::ZERO, &name, Ok(Removal::Removed(None))), Next::CatchUp);
    removals.asked(&name, 1);
    (removals, name)
}

#[test]
fn node_that_the_removal_has_deleted_readmits_nobody() {
    for (node, during) in [(Some("old"), None), (None, Some("old")), (Some("older"), Some("old"))] {
        let (mut removals, name) = removed(node, during);
        assert!(!removals.node_changed(&name, &"old".into()), "the source has been asked");
        assert_eq!(removals.with_node().collect::<Vec<_>>(), [&name]);
        removals.node_deleted(&name);
        assert_eq!(removals.next_caught_up(1), None);
        assert!(removals.node_changed(&name, &"old".into()), "a store may create it with its old UID");
        removals.asked(&name, 2);
        assert_eq!(removals.next_caught_up(1), None);
        assert_eq!(removals.next_caught_up(3), Some(name));
        assert_eq!(removals.next_caught_up(3), None);
    }
}

#[test]
fn node_created_after_the_deletion_readmits_its_node() {
    for (node, during) in [(None, None), (Some("old"), None), (Some("old"), Some("new"))] {
        let (mut removals, name) = removed(node, during);
        // Its predecessor may have been deleted while changes were lost.
        assert!(!removals.node_changed(&name, &"new".into()));
        assert_eq!(removals.next_caught_up(1), Some(name.clone()));
        assert!(removals.begin_admission(&name).is_some());
        assert!(removals.admitted(Now::ZERO, &name, Ok(Admission::Admitted), false).is_some());
        assert!(!removals.has(&name));
    }
}

#[test]
fn readmission_waits_for_changes_from_before_the_removal() {
    let (mut removals, name) = removed(Some("old"), None);
    assert_eq!(removals.begin_admission(&name), None);
    assert_eq!(removals.begin_admission(&name), None);
    assert_eq!(removals.next_caught_up(0), None);
    removals.node_deleted(&name);
    assert_eq!(removals.next_caught_up(1), Some(name.clone()));
    assert!(removals.begin_admission(&name).is_some());
}

#[test]
fn answer_for_an_earlier_removal_admits_nobody() {
    let (mut removals, name) = removed(None, None);
    removals.returned(&name).unwrap();
    removals.insert(&name, last_state(Some("old")));
    removals.begin_deletion(&name, false).unwrap();
    assert_eq!(removals.removed(Now::ZERO, &name, Ok(Removal::Removed(None))), Next::CatchUp);
    removals.asked(&name, 2);
    assert_eq!(removals.next_caught_up(1), None);
    assert_eq!(removals.next_caught_up(2), Some(name));
}

#[test]
fn node_seen_between_attempts_to_delete_it_readmits_nobody() {
    let (mut removals, name) = (Removals::default(), node_name("edge-1"));
    removals.insert(&name, last_state(None));
    removals.begin_deletion(&name, false).unwrap();
    let failed = Err(SourceError::Unread("gone".into()));
    assert_eq!(removals.removed(Now::ZERO, &name, failed), Next::Nothing);
    assert!(!removals.node_changed(&name, &"old".into()));
    let now = Now::ZERO + RETRY;
    assert_eq!(removals.next_retry(now), Some(Retry::Remove(name.clone())));
    removals.begin_deletion(&name, false).unwrap();
    assert_eq!(removals.removed(now, &name, Ok(Removal::Removed(None))), Next::CatchUp);
    removals.asked(&name, 1);
    removals.node_deleted(&name);
    assert_eq!(removals.next_caught_up(1), None, "the second attempt has deleted it");
}

#[test]
fn late_removal_of_a_returned_node_ends_unless_requested() {
    let (mut removals, name) = (Removals::default(), node_name("edge-1"));
    for is_requested in [false, true] {
        removals.insert(&name, LastState::new(RemovalCause::NodeDeleted(None)));
        removals.begin_deletion(&name, false).unwrap();
        if is_requested {
            assert!(removals.remove_again(&name, tokio::sync::oneshot::channel().0).is_none());
        }
        let next = removals.removed(Now::ZERO, &name, Ok(Removal::Returned));
        assert_eq!(next, if is_requested { Next::Delete } else { Next::Return });
        if is_requested {
            assert_eq!(removals.begin_deletion(&name, false), Some(RemovalCause::Requested));
        }
        assert!(removals.returned(&name).is_some());
    }
}

#[test]
fn admission_elsewhere_during_a_removal_is_remembered() {
    let (mut removals, name) = (Removals::default(), node_name("edge-1"));
    assert!(!removals.admitted_elsewhere(&name), "it is not removed");
    removals.insert(&name, LastState::new(RemovalCause::Recorded));
    assert!(!removals.admitted_elsewhere(&name));
    removals.begin_deletion(&name, false).unwrap();
    removals.removed(Now::ZERO, &name, Ok(Removal::Removed(None)));
    assert!(removals.take_may_have_returned(&name) && !removals.take_may_have_returned(&name));
    assert!(removals.admitted_elsewhere(&name));
}

#[test]
fn node_removed_again_during_its_admission_stays_removed() {
    let mut removals = Removals::new([(node_name("edge-1"), Timestamp::UNIX_EPOCH)], []);
    let name = node_name("edge-1");
    assert!(removals.begin_admission(&name).is_some());
    assert!(removals.admitted(Now::ZERO, &name, Ok(Admission::Admitted), true).is_none());
    assert_eq!(removals.begin_deletion(&name, false), Some(RemovalCause::Recorded));
}

#[test]
fn admission_names_the_removal_that_it_ends() {
    let (name, [first, second]) = (node_name("edge-1"), [1, 2].map(|at| Timestamp::from_second(at).unwrap()));
    let mut removals = Removals::new([(name.clone(), first)], []);
    assert_eq!(removals.begin_admission(&name), Some(AdmissionRequest { removal: Some(first) }));
    let (answer, mut answered) = tokio::sync::oneshot::channel();
    assert_eq!(removals.admit_again(&name, answer).ok(), Some(false));
    assert!(removals.admitted(Now::ZERO, &name, Ok(Admission::RemovedAgain), false).is_none());
    assert_eq!(answered.try_recv().unwrap().unwrap_err().code, 503);
    assert_eq!(removals.begin_deletion(&name, false), Some(RemovalCause::Recorded));
    removals.removed(Now::ZERO, &name, Ok(Removal::Removed(Some(second))));
    assert_eq!(removals.begin_admission(&name), Some(AdmissionRequest { removal: Some(second) }));
}

#[test]
fn removal_that_is_recorded_again_is_completed_once() {
    let (name, [first, second]) = (node_name("edge-1"), [1, 2].map(|at| Timestamp::from_second(at).unwrap()));
    let mut removals = Removals::new([(name.clone(), first)], []);
    assert!(!removals.removed_again(&name, first), "it is complete");
    assert!(removals.removed_again(&name, second));
    assert!(!removals.removed_again(&name, second), "it has begun");
    assert_eq!(removals.begin_deletion(&name, false), Some(RemovalCause::Recorded));
}

#[test]
fn removal_that_is_not_complete_readmits_for_no_node_at_a_start() {
    let name = node_name("edge-1");
    let mut removals = Removals::new([(name.clone(), Timestamp::UNIX_EPOCH)], [name.clone()]);
    assert!(!removals.node_changed(&name, &"old".into()), "its deletion may be on its way");
    assert_eq!(removals.begin_deletion(&name, false), Some(RemovalCause::Recorded));
    let (mut unknown, other) = (Removals::new([], [name.clone()]), node_name("edge-2"));
    assert!(!unknown.has(&name) && !unknown.has(&other));
    assert_eq!(unknown.begin_deletion(&name, false), None);
}
