use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;
use tokio::time::Instant;

use super::object::Record;
use super::sink::Entry;
use super::*;
use crate::store::TIME_CORRECTED;
use edgesync_protocol::upload::Lane;
use edgesync_store::StoreError;

const LIMITS: EventLimits = EventLimits { burst: 1000, refill: Duration::from_secs(60) };

/// A fake store that records each transaction.
#[derive(Default)]
struct Table {
    posts: Vec<Vec<Entry>>,
    run: Option<String>,
    /// Corrections, with the number of posts before them.
    corrected: Vec<(MonotonicTime, i64, usize)>,
    /// Failed attempts, in milliseconds since the start.
    failures: Vec<u64>,
    fails: bool,
    /// An Event with this note can never be written.
    poison: Option<&'static str>,
}

impl Table {
    fn records(&self) -> impl Iterator<Item = &Record> {
        self.posts.iter().flatten().filter_map(|entry| match entry {
            Entry::Event(record) => Some(record),
            Entry::Run(_) => None,
        })
    }

    /// Returns the last state of each Event by name, and the number of writes.
    fn events(&self) -> (BTreeMap<String, Value>, usize) {
        let read =
            |record: &Record| (record.name.clone(), serde_json::from_str::<Value>(&record.body).unwrap());
        (self.records().map(read).collect(), self.records().count())
    }

    fn notes(&self) -> Vec<String> {
        let note = |record: &Record| {
            let body: Value = serde_json::from_str(&record.body).unwrap();
            body["note"].as_str().unwrap().to_owned()
        };
        self.records().map(note).collect()
    }
}

#[derive(Clone)]
struct Fake {
    table: Arc<Mutex<Table>>,
    start: Instant,
}

impl Fake {
    fn new() -> Self {
        Self { table: Arc::default(), start: Instant::now() }
    }

    fn events(&self, limits: EventLimits) -> Events {
        let start = self.start;
        let clock = move || {
            let since_boot = u64::try_from(start.elapsed().as_millis()).unwrap();
            let wall = Timestamp::from_second(1_800_000_000).unwrap() + start.elapsed();
            Stamp { wall, at: MonotonicTime { boot: 7, since_boot } }
        };
        Events::with_sink(self.clone(), &NodeName::parse("press-1").unwrap(), limits, Box::new(clock))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        work(&mut self.table.lock().unwrap())
    }

    fn check(&self, entries: &[Entry]) -> Result<(), StoreError> {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap();
        self.with(|table| {
            if table.fails {
                table.failures.push(now);
                return Err(StoreError::Full(Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(
                    "x",
                ))));
            }
            let is_poison = |entry: &Entry| match (entry, table.poison) {
                (Entry::Event(record), Some(poison)) => record.body.contains(poison),
                _ => false,
            };
            if entries.iter().any(is_poison) { Err(StoreError::internal("poison")) } else { Ok(()) }
        })
    }
}

impl Sink for Fake {
    async fn post(&self, entries: Vec<Entry>) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        self.check(&entries)?;
        self.with(|table| {
            for entry in &entries {
                if let Entry::Run(text) = entry {
                    table.run = Some(text.clone());
                }
            }
            table.posts.push(entries);
        });
        Ok(())
    }

    async fn last_run(&self) -> Result<Option<String>, StoreError> {
        self.check(&[])?;
        Ok(self.with(|table| table.run.clone()))
    }

    async fn correct_times(&self, before: MonotonicTime, forward_ms: i64) -> Result<u64, StoreError> {
        self.check(&[])?;
        self.with(|table| table.corrected.push((before, forward_ms, table.posts.len())));
        Ok(0)
    }
}

/// Advances virtual time once all tasks are idle.
async fn pass(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

fn object(number: usize) -> Regarding {
    let about = ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "shop".into(),
        name: format!("c-{number}").into(),
    };
    Regarding::Object(about, "u".into())
}

fn emit(events: &Events, numbers: std::ops::Range<usize>) {
    for number in numbers {
        events.emit(EventReason::ObjectRejected, object(number), format!("note {number}"));
    }
}

#[tokio::test(start_paused = true)]
async fn queued_events_are_written_in_few_transactions() {
    let fake = Fake::new();
    let events = fake.events(LIMITS);
    emit(&events, 0..130);
    pass(1).await;
    let sizes: Vec<_> = fake.with(|table| table.posts.iter().map(Vec::len).collect());
    assert_eq!(sizes.iter().sum::<usize>(), 130);
    assert!(sizes.len() <= 4 && sizes.iter().all(|size| *size <= writer::MAX_BATCH), "{sizes:?}");
    let (lanes, notes) =
        fake.with(|table| (table.records().map(|record| record.lane).collect::<Vec<_>>(), table.notes()));
    assert_eq!(lanes, [Lane::Events; 130]);
    assert_eq!(notes, (0..130).map(|number| format!("note {number}")).collect::<Vec<_>>(), "in order");
    assert_eq!((events.emitted(), events.suppressed()), (130, 0));
}

#[tokio::test(start_paused = true)]
async fn occurrences_beyond_a_full_queue_are_counted() {
    let fake = Fake::new();
    let events = fake.events(LIMITS);
    for _ in 0..1000 {
        events.emit(EventReason::LimitHit, Regarding::Node, "n".into());
    }
    pass(60_000).await;
    let (last, _) = fake.with(|table| table.events());
    let counted: u64 = last.values().map(|event| event["series"]["count"].as_u64().unwrap()).sum();
    assert_eq!((last.len(), counted), (1, QUEUE as u64));
    assert_eq!(
        events.suppressed_counts(),
        SuppressedCounts { queue: 1000 - QUEUE as u64, ..SuppressedCounts::default() }
    );
    assert_eq!(counted + events.suppressed(), events.emitted());
}

#[tokio::test(start_paused = true)]
async fn the_last_count_of_a_series_is_written_in_any_case() {
    let fake = Fake::new();
    let events = fake.events(LIMITS);
    for _ in 0..7 {
        events.emit(EventReason::SessionTakenOver, Regarding::Node, "n".into());
        pass(10).await;
    }
    pass(correlate::PACE).await;
    let (last, writes) = fake.with(|table| table.events());
    assert_eq!((last.len(), writes), (1, 4), "1, 2, 4 and the rest");
    let series = &last.values().next().unwrap()["series"];
    assert_eq!(series["count"], 7);
    assert_eq!(series["lastObservedTime"], "2027-01-15T08:00:00.060000Z");
}

#[tokio::test(start_paused = true)]
async fn new_limits_apply_to_the_next_occurrence() {
    let fake = Fake::new();
    let events = fake.events(LIMITS);
    events.set_limits(EventLimits { burst: 1, refill: Duration::from_secs(3600) });
    for _ in 0..5 {
        events.emit(EventReason::LimitHit, Regarding::Node, "n".into());
        pass(1).await;
    }
    assert_eq!(events.suppressed_counts(), SuppressedCounts { source: 4, ..SuppressedCounts::default() });
    emit(&events, 0..12);
    pass(1).await;
    assert_eq!(
        events.suppressed_counts(),
        SuppressedCounts { source: 4, reason: 2, ..SuppressedCounts::default() }
    );
}

#[tokio::test(start_paused = true)]
async fn events_wait_for_a_failing_store_and_the_newest_win() {
    let fake = Fake::new();
    let events = fake.events(LIMITS);
    fake.with(|table| table.fails = true);
    emit(&events, 0..200);
    pass(100).await;
    emit(&events, 200..300);
    pass(200_000).await;
    assert_eq!(events.suppressed_counts(), SuppressedCounts { unwritten: 44, ..SuppressedCounts::default() });
    let failures = fake.with(|table| {
        table.fails = false;
        std::mem::take(&mut table.failures)
    });
    assert_eq!(failures.len(), 9, "tried less and less often: {failures:?}");
    pass(60_000).await;
    let notes = fake.with(|table| table.notes());
    assert_eq!(notes, (44..300).map(|number| format!("note {number}")).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn an_unwritable_event_does_not_block_others() {
    let fake = Fake::new();
    let events = fake.events(LIMITS);
    fake.with(|table| table.poison = Some("note 3\""));
    emit(&events, 0..6);
    pass(1).await;
    assert_eq!(fake.with(|table| table.notes()), ["note 0", "note 1", "note 2", "note 4", "note 5"]);
    assert_eq!(events.suppressed_counts(), SuppressedCounts { unwritten: 1, ..SuppressedCounts::default() });
}

fn reasons(table: &Table) -> Vec<String> {
    let reason = |record: &Record| {
        let body: Value = serde_json::from_str(&record.body).unwrap();
        body["reason"].as_str().unwrap().to_owned()
    };
    table.records().map(reason).collect()
}

#[tokio::test(start_paused = true)]
async fn run_records_share_the_transaction_of_their_events() {
    let fake = Fake::new();
    let events = fake.events(LIMITS);
    events.emit(EventReason::StoreSalvaged, Regarding::Node, "before".into());
    assert_eq!(events.begin_run().await, LastRun::None);
    assert_eq!(fake.with(|table| reasons(table)), ["StoreSalvaged", "AgentStarted"]);
    drop(events);
    let events = fake.events(LIMITS);
    assert_eq!(events.begin_run().await, LastRun::Unclean);
    for _ in 0..3 {
        events.emit(EventReason::LimitHit, Regarding::Node, "n".into());
    }
    events.end_run().await;
    let (last, run) = fake.with(|table| (table.posts.last().unwrap().clone(), table.run.clone()));
    assert_eq!(run.as_deref(), Some("stopped 2027-01-15T08:00:00Z"));
    let [.., Entry::Event(limit), Entry::Event(stopped), Entry::Run(_)] = last.as_slice() else {
        panic!("{last:?}")
    };
    assert!(limit.body.contains(r#""count":3"#), "{}", limit.body);
    assert!(stopped.body.contains("AgentStopped"), "{}", stopped.body);
    let events = fake.events(LIMITS);
    assert_eq!(events.begin_run().await, LastRun::Clean);
    for post in fake.with(|table| table.posts.clone()) {
        let runs = post.iter().filter(|entry| matches!(entry, Entry::Run(_))).count();
        let about = post.iter().filter(|entry| match entry {
            Entry::Event(record) => record.body.contains(r#""reason":"Agent"#),
            Entry::Run(_) => false,
        });
        assert_eq!(about.count(), runs);
    }
}

#[tokio::test(start_paused = true)]
async fn begin_and_end_do_not_block_and_survive_a_failing_store() {
    let fake = Fake::new();
    let events = fake.events(LIMITS);
    fake.with(|table| table.fails = true);
    assert_eq!(events.begin_run().await, LastRun::None);
    events.end_run().await;
    assert_eq!(fake.with(|table| table.posts.len()), 0);
    fake.with(|table| table.fails = false);
    pass(60_000).await;
    assert_eq!(fake.with(|table| reasons(table)), ["AgentStarted", "AgentStopped"]);
    assert_eq!(fake.with(|table| table.run.clone()).as_deref(), Some("stopped 2027-01-15T08:00:00Z"));
}

#[tokio::test(start_paused = true)]
async fn times_are_corrected_in_the_store_and_then_in_memory() {
    let fake = Fake::new();
    let events = fake.events(LIMITS);
    pass(1000).await;
    fake.with(|table| table.fails = true);
    emit(&events, 0..1);
    pass(10_000).await;
    // This test's clock is not set: it shows the time as after the correction.
    let before = MonotonicTime { boot: 7, since_boot: 5_000 };
    let hour = 3_600_000;
    let mut now = events.shared.now();
    now.wall += Duration::from_secs(3600);
    let set = ClockSet { before, forward_ms: hour, now };
    events.commands.try_send(Command::ClockSet(set)).unwrap();
    pass(1).await;
    emit(&events, 1..2);
    fake.with(|table| table.fails = false);
    pass(60_000).await;
    let (written, _) = fake.with(|table| table.events());
    let mut times: Vec<_> = written.values().map(|event| event["eventTime"].as_str().unwrap()).collect();
    times.sort_unstable();
    assert_eq!(times, ["2027-01-15T08:00:11.001000Z", "2027-01-15T09:00:01.000000Z"]);
    let said = written.values().filter(|event| event["metadata"]["annotations"][TIME_CORRECTED].is_string());
    assert_eq!(said.count(), 1);
    assert_eq!(fake.with(|table| table.corrected.clone()), [(before, hour, 0)], "or it would be done twice");
    events.clock_set(MonotonicTime { boot: 7, since_boot: 90_000 }, 5_000);
    pass(1).await;
    assert_eq!(fake.with(|table| table.corrected.len()), 2, "also while nothing waits here");
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_its_last_handle_and_writes_the_rest() {
    let fake = Fake::new();
    let events = fake.events(LIMITS);
    let other = events.clone();
    for _ in 0..3 {
        events.emit(EventReason::LimitHit, Regarding::Node, "n".into());
    }
    drop(events);
    pass(1).await;
    assert_eq!(Arc::strong_count(&fake.table), 2, "the task works for the other handle");
    drop(other);
    pass(1).await;
    assert_eq!(Arc::strong_count(&fake.table), 1, "the task has ended");
    let (last, _) = fake.with(|table| table.events());
    assert_eq!(last.values().next().unwrap()["series"]["count"], 3);
}
