use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const LIMITS: EventLimits = EventLimits { burst: 25, refill: Duration::from_secs(60) };

/// A correlator at a time.
struct Bench {
    core: Correlator,
    ids: u128,
    now: u64,
}

impl Bench {
    fn new(burst: u32, refill: Duration) -> Self {
        Self { core: Correlator::new(EventLimits { burst, refill }), ids: 0, now: 1_000_000 }
    }

    fn stamp(&self) -> Stamp {
        let wall = Timestamp::from_millisecond(i64::try_from(self.now).unwrap()).unwrap();
        Stamp { wall, at: MonotonicTime { boot: 1, since_boot: self.now } }
    }

    fn occurs(&mut self, reason: EventReason, regarding: Regarding, note: &str) -> Option<Suppression> {
        let occurrence = Occurrence { reason, regarding, note: Arc::from(note), stamp: self.stamp() };
        let ids = &mut self.ids;
        self.core.occurred(occurrence, || {
            *ids += 1;
            *ids
        })
    }

    fn hits(&mut self) -> Option<Suppression> {
        self.occurs(EventReason::LimitHit, Regarding::Node, "n")
    }

    /// Returns the written Events: id, count and number of suppressed occurrences.
    fn written(&mut self) -> Vec<(u128, u32, u32)> {
        self.core.take().iter().map(|state| (state.id, state.count, state.suppressed)).collect()
    }

    fn wait(&mut self, milliseconds: u64) -> &mut Self {
        self.now += milliseconds;
        self.core.tick(self.now);
        self
    }
}

fn object(number: u32) -> Regarding {
    let about = edgesync_object::ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "shop".into(),
        name: format!("c-{number}").into(),
    };
    Regarding::Object(about, "u".into())
}

#[test]
fn repeats_are_one_event_written_at_powers_of_two() {
    let mut bench = Bench::new(100, Duration::from_secs(60));
    for _ in 0..20 {
        assert_eq!(bench.hits(), None);
    }
    assert_eq!(bench.written(), [(1, 1, 0), (1, 2, 0), (1, 4, 0), (1, 8, 0), (1, 16, 0)]);
}

#[test]
fn the_last_count_is_written_at_its_deadline() {
    let mut bench = Bench::new(100, Duration::from_secs(60));
    for _ in 0..3 {
        bench.hits();
    }
    bench.written();
    assert_eq!(bench.core.deadline(), Some(bench.now + PACE));
    assert_eq!(bench.wait(PACE - 1).written(), []);
    assert_eq!(bench.wait(1).written(), [(1, 3, 0)]);
    assert_eq!(bench.core.deadline(), None);
}

#[test]
fn rare_occurrences_are_written_each_time() {
    let mut bench = Bench::new(100, Duration::from_secs(60));
    for _ in 0..7 {
        bench.hits();
        bench.wait(PACE);
    }
    assert_eq!(bench.written().len(), 7);
}

#[test]
fn an_event_continues_for_six_minutes_after_the_last_time() {
    let mut bench = Bench::new(100, Duration::from_secs(60));
    bench.hits();
    bench.wait(WINDOW).hits();
    bench.wait(WINDOW).hits();
    assert_eq!(bench.written(), [(1, 1, 0), (1, 2, 0), (1, 3, 0)]);
    bench.wait(WINDOW + 1).hits();
    assert_eq!(bench.written(), [(2, 1, 0)]);
}

#[test]
fn other_reasons_and_objects_are_other_sources() {
    let mut bench = Bench::new(1, Duration::from_secs(60));
    for number in 0..4 {
        assert_eq!(bench.occurs(EventReason::ObjectRejected, object(number), "n"), None);
        assert_eq!(bench.occurs(EventReason::StatusRefused, object(number), "n"), None);
    }
    assert_eq!(bench.occurs(EventReason::ObjectRejected, object(0), "n"), Some(Suppression::Source));
    let ids: Vec<_> = bench.written().into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, (1..=8).collect::<Vec<_>>());
}

#[test]
fn occurrences_beyond_the_bucket_are_suppressed_and_counted() {
    let mut bench = Bench::new(2, Duration::from_secs(60));
    let suppressed: Vec<_> = (0..5).map(|_| bench.hits()).collect();
    let too_many = Some(Suppression::Source);
    assert_eq!(suppressed, [None, None, too_many, too_many, too_many]);
    assert_eq!(bench.written(), [(1, 1, 0), (1, 2, 0)]);
    assert_eq!(bench.wait(WINDOW - 1).written(), []);
    assert_eq!(bench.wait(1).written(), [(1, 2, 3)], "without another occurrence that is told");
    assert_eq!(bench.hits(), None, "tokens come back");
    assert_eq!(bench.wait(PACE).written(), [(1, 3, 3)]);
}

#[test]
fn the_next_event_reports_occurrences_suppressed_before_it() {
    let mut bench = Bench::new(1, Duration::from_secs(3600));
    bench.hits();
    bench.wait(WINDOW + 1);
    assert_eq!(bench.hits(), Some(Suppression::Source));
    bench.wait(3_600_000);
    assert_eq!(bench.hits(), None);
    assert_eq!(bench.written(), [(1, 1, 0), (2, 1, 1)]);
}

#[test]
fn many_sources_of_one_reason_are_limited_together() {
    let mut bench = Bench::new(2, Duration::from_secs(60));
    let suppressed: Vec<_> = (0..100)
        .filter_map(|number| bench.occurs(EventReason::ObjectRejected, object(number), "n"))
        .collect();
    assert_eq!(suppressed, [Suppression::Reason; 80]);
    assert_eq!(bench.hits(), None, "other reasons are not concerned");
    bench.wait(6_000);
    assert_eq!(bench.occurs(EventReason::ObjectRejected, object(100), "n"), None);
    assert_eq!(bench.occurs(EventReason::ObjectRejected, object(101), "n"), Some(Suppression::Reason));
}

#[test]
fn the_evicted_source_writes_its_last_count() {
    let mut bench = Bench::new(1000, Duration::from_secs(60));
    for _ in 0..3 {
        bench.occurs(EventReason::ObjectRejected, object(0), "n");
    }
    bench.written();
    for number in 1..u32::try_from(MAX_SOURCES).unwrap() {
        bench.occurs(EventReason::ObjectRejected, object(number), "n");
    }
    assert!(!bench.written().contains(&(1, 3, 0)));
    bench.occurs(EventReason::ObjectRejected, object(999), "n");
    assert_eq!(bench.written(), [(1, 3, 0), (257, 1, 0)]);
    assert_eq!(bench.core.sources.len(), MAX_SOURCES);
}

#[test]
fn idle_sources_are_removed() {
    let mut bench = Bench::new(2, Duration::from_secs(60));
    for number in 0..10 {
        bench.occurs(EventReason::ObjectRejected, object(number), "n");
    }
    bench.wait(WINDOW + 1).hits();
    assert_eq!(bench.core.sources.len(), 1);
}

#[test]
fn new_limits_apply_at_once() {
    let mut bench = Bench::new(5, Duration::from_secs(60));
    bench.core.set_limits(EventLimits { burst: 1, refill: Duration::from_secs(3600) });
    assert_eq!((bench.hits(), bench.hits()), (None, Some(Suppression::Source)));
    bench.core.set_limits(EventLimits { burst: 0, refill: Duration::ZERO });
    assert_eq!(bench.wait(1).hits(), None, "limits that are none are the least");
    bench.core.set_limits(EventLimits { burst: u32::MAX, refill: Duration::MAX });
    bench.hits();
}

#[test]
fn a_flood_of_a_day_causes_few_writes() {
    let mut bench = Bench::new(LIMITS.burst, LIMITS.refill);
    let (mut writes, mut suppressed) = (0, 0);
    for _ in 0..24 * 3600 {
        suppressed += u64::from(bench.hits().is_some());
        writes += bench.wait(1000).written().len();
    }
    assert!((1440..1500).contains(&writes), "{writes}");
    assert!(suppressed > 80_000, "{suppressed}");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Occurs { reason: EventReason, about: u32, note: u8 },
    Wait(u64),
    Limits(u32, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let reason = prop::sample::select(vec![
        EventReason::ObjectRejected,
        EventReason::LimitHit,
        EventReason::StatusRefused,
    ]);
    let about = prop_oneof![8 => 0_u32..4, 1 => 0_u32..400];
    let step = prop_oneof![
        8 => (reason, about, 0_u8..3).prop_map(|(reason, about, note)| Step::Occurs { reason, about, note }),
        2 => prop_oneof![0_u64..100, 0_u64..60_000, 0_u64..1_000_000].prop_map(Step::Wait),
        1 => (1_u32..30, 1_u64..200_000).prop_map(|(burst, refill)| Step::Limits(burst, refill)),
    ];
    prop::collection::vec(step, 0..600)
}

/// Compares each write of an Event with the previous one.
fn check_writes(
    writes: Vec<EventState>,
    now: u64,
    seen: &mut BTreeMap<u128, (EventState, u64)>,
) -> Result<(), TestCaseError> {
    for state in writes {
        prop_assert!(state.count >= 1 && state.first.at.since_boot <= state.last.at.since_boot);
        if let Some((before, written)) = seen.get(&state.id) {
            prop_assert_eq!((&before.note, &before.regarding), (&state.note, &state.regarding));
            prop_assert!(state.count > before.count || state.suppressed > before.suppressed);
            let is_early = now - written < PACE && !state.count.is_power_of_two();
            prop_assert!(!is_early, "{} after {} ms", state.count, now - written);
        }
        seen.insert(state.id, (state, now));
    }
    Ok(())
}

proptest! {
    #[test]
    fn each_occurrence_is_counted_or_suppressed_once(steps in steps()) {
        let mut bench = Bench::new(3, Duration::from_secs(20));
        let (mut emitted, mut accepted, mut suppressed) = (0_u64, 0_u64, 0_u64);
        let mut seen = BTreeMap::new();
        let mut sources_before = 0;
        for step in steps {
            match step {
                Step::Occurs { reason, about, note } => {
                    emitted += 1;
                    match bench.occurs(reason, object(about), &note.to_string()) {
                        None => accepted += 1,
                        Some(_) => suppressed += 1,
                    }
                }
                Step::Wait(milliseconds) => { bench.wait(milliseconds); }
                Step::Limits(burst, refill) => {
                    bench.core.set_limits(EventLimits { burst, refill: Duration::from_millis(refill) });
                }
            }
            let writes = bench.core.take();
            // An evicted source writes early.
            let went = sources_before == MAX_SOURCES;
            if !went {
                check_writes(writes, bench.now, &mut seen)?;
            } else {
                seen.extend(writes.into_iter().map(|state| (state.id, (state, bench.now))));
            }
            sources_before = bench.core.sources.len();
            prop_assert!(sources_before <= MAX_SOURCES);
            prop_assert!(bench.core.deadline().is_none_or(|due| due >= bench.now));
        }
        bench.core.finish();
        for last in bench.core.take() {
            seen.insert(last.id, (last, 0));
        }
        let counted: u64 = seen.values().map(|(state, _)| u64::from(state.count)).sum();
        let reported: u64 = seen.values().map(|(state, _)| u64::from(state.suppressed)).sum();
        prop_assert_eq!(accepted + suppressed, emitted);
        prop_assert_eq!(counted, accepted, "what is told is in the last writing of an Event");
        prop_assert!(reported <= suppressed);
    }

    #[test]
    fn a_source_never_exceeds_its_bucket(
        burst in 1_u32..10,
        every in 1_u64..100_000,
        waits in prop::collection::vec(0_u64..50_000, 1..200),
    ) {
        let mut bench = Bench::new(burst, Duration::from_millis(every));
        let mut state = Vec::new();
        for wait in waits {
            bench.wait(wait);
            if bench.hits().is_none() {
                state.push(bench.now);
            }
        }
        for (number, from) in state.iter().enumerate() {
            for (count, to) in (1_u64..).zip(&state[number..]) {
                prop_assert!(count <= u64::from(burst) + (to - from) / every + 1);
            }
        }
    }

    #[test]
    fn a_clock_set_back_or_at_its_end_is_harmless(times in prop::collection::vec(any::<u64>(), 1..50)) {
        let mut core = Correlator::new(LIMITS);
        for (id, since_boot) in (1..).zip(times) {
            let stamp = Stamp { wall: Timestamp::MAX, at: MonotonicTime { boot: 1, since_boot } };
            let (reason, regarding) = (EventReason::ClockJumped, Regarding::Node);
            core.occurred(Occurrence { reason, regarding, note: Arc::from(""), stamp }, || id);
            core.tick(since_boot);
        }
        core.finish();
        prop_assert!(!core.take().is_empty());
    }
}
