use super::*;
use crate::conditions::messages;
use crate::observed::{NodeState, WaveCounts};
use crate::revision::{Entry, Rejections, Uid};
use crate::status::MAX_REVISIONS;
use crate::status::Reason;
use edgesync_object::{NodeName, ObjectRef, ResourceVersion};
use jiff::SignedDuration;
use serde_json::{Value, json};

/// A rule with its stored status, sets and objects; each step is written.
struct Rule {
    now: Timestamp,
    rollout: Rollout,
    status: Status,
    sets: Sets,
    observed: Observed,
    source: Selection,
}

fn rollout(extra: &Value) -> Rollout {
    let waves = json!([{"selector": "stage=canary"}, {"percent": 10}, {}]);
    let mut spec = json!({"waves": waves, "soak": "30m", "maxFailures": {"percent": 0}});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    Rollout::parse(&spec, "rollout").unwrap()
}

fn entry(version: &ResourceVersion) -> Entry {
    let object = ObjectRef {
        api_version: "v1".into(),
        kind: "Secret".into(),
        namespace: "a".into(),
        name: "b".into(),
    };
    Entry { version: version.clone(), object, labels: BTreeMap::new(), size: 1, digest: "".into() }
}

impl Rule {
    /// A rule whose first revision is stable.
    fn new(extra: &Value) -> Self {
        let mut rule = Self {
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            rollout: rollout(extra),
            status: Status::default(),
            sets: Sets::new(),
            observed: Observed::default(),
            source: Selection::new(),
        };
        rule.change("a", 1);
        rule.change("b", 1);
        rule.revise().unwrap();
        rule
    }

    fn change(&mut self, uid: &str, version: u64) {
        self.source.insert(uid.into(), version.into());
    }

    fn set(&self) -> Set {
        let below = self.status.top().and_then(|top| self.sets.get(&top.number));
        let plan = self.status.rejected.plan(&self.source, below.map(|set| &**set)).unwrap();
        let entry = |origin: &crate::revision::Origin| match origin {
            crate::revision::Origin::Source(version) => entry(version),
            crate::revision::Origin::Below(entry) => entry.clone(),
        };
        Set::new(plan.objects().iter().map(|(uid, origin)| (uid.clone(), entry(origin))).collect())
    }

    fn pass(&mut self, minutes: i64) -> &mut Self {
        self.now += SignedDuration::from_mins(minutes);
        self
    }

    fn step(&mut self, input: Input<'_>) -> Step {
        let step = step(self.now, &self.rollout, &self.status, &self.observed, &self.sets, input);
        if let Some(next) = step.next.clone() {
            assert_eq!(next.sequence, self.status.sequence + 1);
            self.status = next;
        }
        step
    }

    fn observe(&mut self) -> Step {
        self.step(Input::Observe)
    }

    fn command(&mut self, command: &Command) -> Result<(), Refusal> {
        self.step(Input::Command(command)).refused.map_or(Ok(()), Err)
    }

    /// Lets the objects settle, and begins a revision with them.
    fn revise(&mut self) -> Result<u64, Option<Refusal>> {
        let (digest, top) = (self.set().digest(), self.status.top().map(|top| top.digest));
        self.observed.planned.follow(self.now, Some(digest), top);
        self.pass(1);
        let wanted = self.observe().snapshot.ok_or(None)?;
        let snapshot = Snapshot { wanted, set: Arc::new(self.set()), selection: self.source.clone() };
        self.begin(&snapshot).map_err(Some)
    }

    fn begin(&mut self, snapshot: &Snapshot) -> Result<u64, Refusal> {
        match self.step(Input::Snapshot(snapshot)).refused {
            Some(refusal) => Err(refusal),
            None => {
                let number = self.status.top().unwrap().number;
                self.sets.insert(number, snapshot.set.clone());
                Ok(number)
            }
        }
    }

    /// Sets the states of the nodes of each wave, two nodes in each.
    fn nodes(&mut self, states: &[NodeState]) -> &mut Self {
        let top = self.status.top().unwrap();
        (self.observed.revision, self.observed.open) = (top.number, top.open);
        self.observed.waves = vec![WaveCounts::default(); self.rollout.waves.count()];
        for (wave, state) in states.iter().enumerate() {
            for number in 0..2 {
                let name = NodeName::parse(&format!("n{wave}{number}")).unwrap();
                self.observed.waves[wave].add(&name, None, state);
            }
        }
        self
    }

    fn good(&mut self) -> &mut Self {
        let states = vec![NodeState::Good; self.rollout.waves.count()];
        self.nodes(&states)
    }

    /// Lets all open waves be good for the soak.
    fn soak(&mut self) {
        self.good().observe();
        self.pass(30).observe();
    }

    fn stack(&self) -> Vec<(u64, usize)> {
        self.status.revisions.iter().map(|revision| (revision.number, revision.open)).collect()
    }

    fn reasons(&self) -> (Reason, Reason, Reason) {
        let conditions = self.status.conditions.as_ref().unwrap();
        (conditions.progressing.reason, conditions.paused.reason, conditions.degraded.reason)
    }

    fn version(&self, number: u64, uid: &str) -> Option<String> {
        self.sets[&number].version(uid).map(ToString::to_string)
    }
}

fn by() -> String {
    "ann".to_owned()
}

fn promote(revision: u64, open: usize) -> Command {
    Command::Promote { by: by(), revision, open }
}

fn resume(reason: PauseReason) -> Command {
    Command::Resume { by: by(), reason }
}

fn undo(revision: u64) -> Command {
    Command::Undo { by: by(), revision, override_windows: true }
}

fn failed() -> NodeState {
    NodeState::Failed("nginx: bad".to_owned())
}

#[test]
fn the_set_of_now_is_the_first_stable_revision() {
    let rule = Rule::new(&json!({}));
    assert_eq!(rule.stack(), [(1, 3)]);
    assert_eq!(rule.reasons(), (Reason::Initialized, Reason::NotPaused, Reason::AsExpected));
}

#[test]
fn waves_open_one_by_one_after_their_soak() {
    let mut rule = Rule::new(&json!({}));
    rule.change("a", 2);
    assert_eq!(rule.revise(), Ok(2));
    assert_eq!((rule.stack(), rule.reasons().0), (vec![(1, 3), (2, 1)], Reason::Opening));
    let wake = rule.good().observe().wake;
    assert_eq!(wake, Some(rule.now + SignedDuration::from_mins(30)));
    assert_eq!(rule.reasons().0, Reason::Soaking);
    rule.pass(29).observe();
    assert_eq!(rule.stack(), [(1, 3), (2, 1)]);
    let step = rule.pass(1).observe();
    assert_eq!(step.happened, [Happened::WaveOpened { revision: 2, wave: 2, by: String::new() }]);
    rule.soak();
    assert_eq!(rule.stack(), [(1, 3), (2, 3)]);
    rule.soak();
    assert_eq!((rule.stack(), rule.reasons().0), (vec![(2, 3)], Reason::Complete));
    assert_eq!(rule.status.history.last().unwrap().outcome, Outcome::Superseded);
    // Nothing more to write.
    assert_eq!(rule.good().observe().next, None);
}

#[test]
fn counts_of_another_state_open_nothing() {
    let mut rule = Rule::new(&json!({"soak": "0s"}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.good().observed.revision = 1;
    rule.observe();
    assert_eq!(rule.stack(), [(1, 3), (2, 1)]);
    rule.good().observe();
    assert_eq!(rule.stack(), [(1, 3), (2, 2)]);
    // They were counted when one wave was open.
    assert_eq!(rule.observe().next, None);
}

#[test]
fn a_clock_that_was_set_back_does_not_shorten_the_soak() {
    let mut rule = Rule::new(&json!({}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.good().observe();
    rule.pass(-600).observe();
    rule.pass(29).observe();
    assert_eq!(rule.stack(), [(1, 3), (2, 1)]);
    rule.pass(1).observe();
    assert_eq!(rule.stack(), [(1, 3), (2, 2)]);
}

#[test]
fn an_old_status_is_not_written_twice() {
    let mut rule = Rule::new(&json!({"soak": "0s"}));
    rule.change("a", 2);
    rule.revise().unwrap();
    let old = rule.status.clone();
    rule.good().observe();
    // A second leader decides the same from the old status, and its write is refused.
    let late = step(rule.now, &rule.rollout, &old, &rule.observed, &rule.sets, Input::Observe);
    let next = late.next.unwrap();
    assert_eq!((next.sequence, next), (rule.status.sequence, rule.status.clone()));
}

#[test]
fn failures_pause_until_they_are_resolved() {
    let mut rule = Rule::new(&json!({}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.nodes(&[failed()]).observe();
    let expected = (Reason::FailuresExceeded, Reason::FailuresExceeded, Reason::FailuresExceeded);
    assert_eq!(rule.reasons(), expected);
    let degraded = |rule: &Rule| messages(&rule.rollout, &rule.status, &rule.observed).degraded;
    let first = "2 of 2 nodes in wave 1 have failed, 0 % may; n00: nginx: bad";
    assert_eq!(degraded(&rule), first);
    // The next leader, which has counted nothing yet, and knows no messages of earlier sessions.
    let counted = std::mem::take(&mut rule.observed);
    assert_eq!(degraded(&rule), first);
    let before = rule.status.clone();
    rule.observe();
    assert_eq!(rule.status, before, "nothing is to be written");
    rule.observed = counted;
    // Resumed while they still fail: paused again.
    rule.command(&resume(PauseReason::FailuresExceeded)).unwrap();
    rule.observe();
    assert_eq!(rule.reasons(), expected);
    // Good again, but nobody has resumed.
    rule.soak();
    assert_eq!(rule.stack(), [(1, 3), (2, 1)]);
    rule.command(&resume(PauseReason::FailuresExceeded)).unwrap();
    rule.soak();
    assert_eq!(rule.stack(), [(1, 3), (2, 2)]);
}

#[test]
fn a_promotion_accepts_failures_and_opens_one_wave() {
    let mut rule = Rule::new(&json!({}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.nodes(&[failed()]).observe();
    assert_eq!(rule.command(&promote(2, 2)), Err(Refusal::Outdated));
    assert_eq!(rule.command(&promote(1, 1)), Err(Refusal::Outdated));
    assert_eq!(rule.command(&promote(2, 1)), Ok(()));
    assert_eq!(rule.command(&promote(2, 1)), Err(Refusal::Outdated), "a repeated command");
    assert_eq!((rule.stack(), rule.status.paused.clone()), (vec![(1, 3), (2, 2)], None));
    // The failures of the first wave were accepted, those of the second one were not.
    rule.nodes(&[failed(), NodeState::Good]).observe();
    rule.pass(30).observe();
    assert_eq!(rule.stack(), [(1, 3), (2, 3)]);
    rule.nodes(&[failed(), failed(), NodeState::Good]).observe();
    assert_eq!(rule.reasons().0, Reason::FailuresExceeded);
    rule.command(&promote(2, 3)).unwrap();
    assert_eq!(rule.stack(), [(2, 3)]);
    assert_eq!(rule.command(&promote(2, 3)), Err(Refusal::NothingProgresses));
}

#[test]
fn failures_roll_back_where_configured() {
    let mut rule = Rule::new(&json!({"onFailure": "RollBack"}));
    rule.change("a", 2);
    rule.revise().unwrap();
    let step = rule.nodes(&[failed()]).observe();
    let ended = Happened::Ended { revision: 2, outcome: Outcome::RolledBack, by: String::new() };
    assert_eq!(step.happened, [ended]);
    assert_eq!((rule.stack(), rule.reasons().0), (vec![(1, 3)], Reason::Undone));
    // The next settle does not bring it back.
    assert_eq!(rule.revise(), Err(None));
    // Neither does the fix of another object.
    rule.change("b", 3);
    assert_eq!(rule.revise(), Ok(3));
    assert_eq!((rule.version(3, "a"), rule.version(3, "b")), (Some("1".into()), Some("3".into())));
    rule.change("a", 4);
    assert_eq!(rule.revise(), Ok(4));
    assert_eq!(rule.version(4, "a"), Some("4".into()));
}

#[test]
fn an_undone_removal_stays_undone_until_the_object_is_selected_again() {
    let mut rule = Rule::new(&json!({}));
    rule.source.remove("b");
    assert_eq!(rule.revise(), Ok(2));
    assert_eq!(rule.command(&undo(1)), Err(Refusal::Outdated));
    rule.command(&undo(2)).unwrap();
    assert_eq!(rule.status.stable().unwrap().overrides_windows_of, Some(2));
    assert_eq!(rule.command(&undo(1)), Err(Refusal::NothingBelow));
    rule.change("a", 5);
    assert_eq!(rule.revise(), Ok(3));
    assert_eq!(rule.status.stable().unwrap().overrides_windows_of, None, "windows hold again");
    assert_eq!(rule.version(3, "b"), Some("1".into()));
    rule.change("b", 6);
    assert_eq!(rule.revise(), Ok(4));
    assert_eq!(rule.status.rejected, Rejections::default());
}

#[test]
fn an_undo_without_the_sets_is_refused_and_pauses_a_roll_back() {
    let mut rule = Rule::new(&json!({"onFailure": "RollBack"}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.sets.remove(&1);
    assert_eq!(rule.command(&undo(2)), Err(Refusal::BodiesLost));
    rule.nodes(&[failed()]).observe();
    assert_eq!((rule.stack(), rule.reasons().1), (vec![(1, 3), (2, 1)], Reason::FailuresExceeded));
}

#[test]
fn a_pause_by_hand_holds_everything_that_moves_by_itself() {
    let mut rule = Rule::new(&json!({"onFailure": "RollBack"}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.command(&Command::Pause { by: by() }).unwrap();
    assert_eq!(rule.command(&Command::Pause { by: by() }), Err(Refusal::AlreadyPaused));
    rule.soak();
    rule.nodes(&[failed()]).observe();
    rule.change("b", 3);
    assert_eq!(rule.revise(), Err(None));
    assert_eq!((rule.stack(), rule.reasons().1), (vec![(1, 3), (2, 1)], Reason::Paused));
    rule.command(&promote(2, 1)).unwrap();
    assert_eq!((rule.stack(), rule.reasons().1), (vec![(1, 3), (2, 2)], Reason::Paused));
    rule.command(&resume(PauseReason::Command)).unwrap();
    assert_eq!(rule.command(&resume(PauseReason::Command)), Err(Refusal::NotPaused));
    assert_eq!(rule.revise(), Ok(3));
}

#[test]
fn replacements_drop_what_they_overtake() {
    let mut rule = Rule::new(&json!({}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.soak();
    rule.change("a", 3);
    rule.revise().unwrap();
    assert_eq!(rule.stack(), [(1, 3), (2, 2), (3, 1)]);
    rule.change("a", 4);
    rule.revise().unwrap();
    assert_eq!(rule.stack(), [(1, 3), (2, 2), (4, 1)]);
    rule.soak();
    assert_eq!(rule.stack(), [(1, 3), (4, 2)]);
    let ended: Vec<_> = rule.status.history.iter().map(|it| (it.number, it.outcome)).collect();
    assert_eq!(ended, [(3, Outcome::Replaced), (2, Outcome::Replaced)]);
}

#[test]
fn the_stack_has_a_limit_and_the_rest_waits() {
    let waves: Vec<Value> = (1..=8).map(|step| json!({"percent": step * 10})).collect();
    let mut rule = Rule::new(&json!({"waves": waves, "soak": "0s"}));
    for (version, open) in [(2, 4), (3, 3), (4, 2)] {
        rule.change("a", version);
        rule.revise().unwrap();
        for _ in 1..open {
            let states = vec![NodeState::Good; open];
            rule.nodes(&states).observe();
        }
    }
    assert_eq!((rule.stack().len(), rule.stack()[3]), (MAX_REVISIONS, (4, 2)));
    rule.change("a", 5);
    assert_eq!(rule.revise(), Err(None));
    assert_eq!(rule.reasons().2, Reason::Queued);
}

#[test]
fn queued_changes_wait_for_the_end_of_the_revision() {
    let mut rule = Rule::new(&json!({"onChange": "Queue", "waves": [{}], "soak": "0s"}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.change("a", 3);
    assert_eq!((rule.revise(), rule.reasons().2), (Err(None), Reason::Queued));
    rule.nodes(&[NodeState::Good]).observe();
    assert_eq!(rule.revise(), Ok(3));
}

#[test]
fn changes_that_come_faster_than_waves_open_are_reported() {
    let mut rule = Rule::new(&json!({}));
    for version in 2..6 {
        rule.change("a", version);
        rule.revise().unwrap();
    }
    assert_eq!((rule.stack().len(), rule.reasons().2), (2, Reason::Starved));
    rule.soak();
    assert_eq!(rule.reasons().2, Reason::AsExpected);
}

#[test]
fn changed_waves_keep_the_unchanged_ones_open_and_open_nothing() {
    let mut rule = Rule::new(&json!({"soak": "0s"}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.soak();
    assert_eq!(rule.stack(), [(1, 3), (2, 2)]);
    rule.rollout =
        rollout(&json!({"soak": "0s", "waves": [{"selector": "stage=canary"}, {"percent": 50}, {}]}));
    let step = rule.good().observe();
    assert_eq!(step.happened, [Happened::WavesChanged { unchanged: 1 }]);
    assert_eq!(rule.stack(), [(1, 3), (2, 1)]);
    rule.good().observe();
    assert_eq!(rule.stack(), [(1, 3), (2, 2)]);
}

/// The write that adopts waves must not also undo, promote or begin something: the operator has
/// seen another stack.
#[test]
fn a_write_that_adopts_waves_does_nothing_else_but_pause() {
    let mut rule = Rule::new(&json!({"soak": "0s"}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.soak();
    rule.change("a", 3);
    rule.revise().unwrap();
    let before = rule.status.clone();
    rule.rollout = rollout(&json!({"waves": [{}]}));
    for command in [undo(3), promote(3, 1), resume(PauseReason::Command)] {
        rule.status = before.clone();
        assert_eq!(rule.command(&command), Err(Refusal::Outdated));
        assert_eq!(rule.stack(), [(1, 1), (3, 0)]);
    }
    rule.status = before;
    rule.command(&Command::Pause { by: by() }).unwrap();
    assert_eq!(rule.reasons().1, Reason::Paused);
}

/// Both were dropped, and the canaries went back to the stable revision.
#[test]
fn a_lost_revision_overtakes_no_other_when_waves_change() {
    let mut rule = Rule::new(&json!({}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.soak();
    rule.change("a", 3);
    rule.revise().unwrap();
    assert_eq!(rule.stack(), [(1, 3), (2, 2), (3, 1)]);
    let waves = json!([{"selector": "stage=canary"}, {"percent": 20}, {}]);
    rule.rollout = rollout(&json!({"waves": waves}));
    rule.observed.lost = [3].into();
    rule.observe();
    assert_eq!(rule.stack(), [(1, 3), (2, 1)]);
}

#[test]
fn waves_that_were_changed_completely_wait_for_an_operator() {
    let mut rule = Rule::new(&json!({"soak": "0s"}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.rollout = rollout(&json!({"waves": [{}]}));
    rule.good().observe();
    rule.good().observe();
    assert_eq!((rule.stack(), rule.reasons().1), (vec![(1, 1), (2, 0)], Reason::WavesChanged));
    assert_eq!(rule.command(&resume(PauseReason::FailuresExceeded)), Err(Refusal::Outdated));
    rule.command(&resume(PauseReason::WavesChanged)).unwrap();
    rule.good().observe();
    assert_eq!(rule.stack(), [(1, 1), (2, 1)]);
}

#[test]
fn empty_waves_and_missing_answers_stop() {
    let mut rule = Rule::new(&json!({"soak": "0s"}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.nodes(&[]).observe();
    assert_eq!(rule.reasons().0, Reason::WaveEmpty);
    rule.nodes(&[NodeState::Away]).observe();
    assert_eq!(rule.reasons().0, Reason::NoAnswers);
    rule.nodes(&[NodeState::HeldOnly]).observe();
    let message = messages(&rule.rollout, &rule.status, &rule.observed).progressing;
    assert!(message.contains("0 of 2 nodes have succeeded, 1 are required; 2 hold it"), "{message}");
    assert_eq!(rule.stack(), [(1, 3), (2, 1)]);
}

#[test]
fn a_snapshot_over_another_revision_is_refused() {
    let mut rule = Rule::new(&json!({}));
    rule.change("a", 2);
    rule.revise().unwrap();
    let snapshot = |rule: &Rule, over: Option<u64>, number| {
        let wanted = Wanted { number, over };
        Snapshot { wanted, set: Arc::new(rule.set()), selection: rule.source.clone() }
    };
    rule.change("a", 3);
    let late = snapshot(&rule, Some(2), 3);
    rule.command(&undo(2)).unwrap();
    assert_eq!(rule.begin(&late), Err(Refusal::Outdated));
    rule.change("a", 2);
    let unchanged = snapshot(&rule, Some(1), 3);
    assert_eq!(rule.begin(&unchanged), Err(Refusal::Unchanged));
    let entries = [("a", 2_u64), ("b", 1)].map(|(uid, version)| (Uid::from(uid), entry(&version.into())));
    let rejected = Snapshot { set: Arc::new(Set::new(entries.into())), ..unchanged };
    assert_eq!(rule.begin(&rejected), Err(Refusal::OldVersion));
}

#[test]
fn a_set_beyond_the_limits_is_refused_with_its_numbers() {
    let mut rule = Rule::new(&json!({}));
    rule.change("a", 2);
    rule.observed.too_large =
        Some(crate::observed::TooLarge { objects: 9, max_objects: 8, bytes: 70, max_bytes: 60 });
    assert_eq!(rule.revise(), Err(None));
    assert_eq!((rule.stack(), rule.reasons().2), (vec![(1, 3)], Reason::TooLarge));
    let message = messages(&rule.rollout, &rule.status, &rule.observed).degraded;
    assert!(
        message.contains("9 objects with 70 bytes exceed the limit of 8 objects and 60 bytes"),
        "{message}"
    );
}

#[test]
fn bodies_that_cannot_be_stored_are_reported() {
    let mut rule = Rule::new(&json!({}));
    rule.observed.unstored = Some("no space".to_owned());
    rule.observe();
    assert_eq!(rule.reasons().2, Reason::NotStored);
    let message = messages(&rule.rollout, &rule.status, &rule.observed).degraded;
    assert!(message.contains("cannot be stored: no space"), "{message}");
}

#[test]
fn a_revision_without_bodies_is_dropped_unless_it_is_stable() {
    let mut rule = Rule::new(&json!({}));
    rule.change("a", 2);
    rule.revise().unwrap();
    rule.observed.lost = [1, 2].into();
    rule.observe();
    assert_eq!((rule.stack(), rule.reasons().2), (vec![(1, 3)], Reason::BodiesLost));
    assert_eq!(rule.status.history.last().unwrap().outcome, Outcome::Lost);
}

#[test]
fn older_rules_are_named() {
    let mut rule = Rule::new(&json!({}));
    rule.observed.overlaps = vec!["shop/base".to_owned()];
    rule.observe();
    assert_eq!(rule.reasons(), (Reason::Initialized, Reason::NotPaused, Reason::Overlaps));
    let message = messages(&rule.rollout, &rule.status, &rule.observed).degraded;
    assert!(message.ends_with("shop/base"), "{message}");
}
