use super::*;
use edgesync_object::{ObjectRef, ResourceVersion};

/// A stored record, by its version.
#[derive(Debug)]
struct Known(ResourceVersion);

impl StoredRecord for Known {
    fn matches(&self, record: &Record) -> bool {
        self.0 == record.version
    }

    fn is_outdated(&self, _: Option<Epoch>) -> bool {
        false
    }
}

type Queue = RecordQueue<Known>;

fn node_name(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

fn record(version: u64) -> Record {
    let object = ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "shop".into(),
        name: "m".into(),
    };
    Record { version: version.into(), object: Arc::new(object) }
}

fn records(range: std::ops::Range<u64>) -> Vec<(Uid, Record)> {
    range.map(|n| (format!("u-{n:03}").into(), record(n))).collect()
}

fn desired(job: &Job<Known>) -> BTreeMap<&str, Option<&str>> {
    let version = |record: &Option<Record>| record.as_ref().map(|record| record.version.as_str().to_owned());
    let all = job.desired.iter().map(|(uid, record)| (&**uid, version(record)));
    all.map(|(uid, version)| (uid, version.map(|version| &*version.leak()))).collect()
}

/// Marks all unlisted nodes as listed, with no records in the cluster.
fn list(queue: &mut Queue) {
    for entry in queue.take_unlisted(usize::MAX) {
        queue.listed(&entry, HashMap::new());
    }
}

#[test]
fn only_the_newest_version_of_an_object_is_written() {
    let mut queue = Queue::new(100);
    for version in 1..50 {
        queue.change(&node_name("n"), vec![("u".into(), record(version))], vec![]);
    }
    assert_eq!(queue.queued(), 1);
    assert!(queue.take().is_none(), "the current records must be read first");
    list(&mut queue);
    let job = queue.take().unwrap();
    assert_eq!(desired(&job), [("u", Some("49"))].into());
    // Changes during a job are queued, and survive its end.
    queue.change(&node_name("n"), vec![("u".into(), record(50)), ("v".into(), record(1))], vec![]);
    assert!(queue.take().is_none(), "one job of a node at a time");
    queue.finish(job, Outcome::Continue);
    let job = queue.take().unwrap();
    assert_eq!(desired(&job), [("u", Some("50")), ("v", Some("1"))].into());
    let mut done = job;
    done.desired.clear();
    queue.finish(done, Outcome::Continue);
    assert!(queue.take().is_none() && queue.is_settled());
    assert_eq!(queue.queued(), 0);
}

#[test]
fn jobs_of_nodes_are_bounded_and_alternate() {
    let mut queue = Queue::new(1000);
    queue.replace(&node_name("a"), records(0..200));
    queue.replace(&node_name("b"), records(0..1));
    list(&mut queue);
    let mut first = queue.take().unwrap();
    assert_eq!((&*first.node, first.desired.len()), ("a", RECORDS_PER_JOB));
    let second = queue.take().unwrap();
    assert_eq!(&*second.node, "b");
    first.desired.clear();
    queue.finish(first, Outcome::Continue);
    assert_eq!(queue.take().unwrap().desired.len(), RECORDS_PER_JOB);
    assert_eq!(queue.queued(), 200 - RECORDS_PER_JOB + 1);
}

#[test]
fn an_overflow_makes_the_node_due() {
    let mut queue = Queue::new(10);
    queue.replace(&node_name("large"), records(0..20));
    assert_eq!(queue.queued(), 20, "alone it fits");
    queue.replace(&node_name("small"), records(0..2));
    queue.change(&node_name("other"), records(0..1), vec![]);
    assert_eq!(
        (queue.queued(), queue.take_due()),
        (20, None),
        "no node is requested while the queue is full"
    );
    queue.change(&node_name("other"), records(1..2), vec![]);
    queue.forget(&node_name("large"));
    assert_eq!(queue.queued(), 0);
    assert_eq!(queue.take_due().as_deref(), Some("other"));
    queue.change(&node_name("other"), records(2..3), vec![]);
    assert_eq!(queue.queued(), 0, "all of its records are requested");
    queue.replace(&node_name("other"), records(0..3));
    queue.change(&node_name("other"), records(3..4), vec!["u-000".into()]);
    list(&mut queue);
    let job = queue.take().unwrap();
    assert_eq!(desired(&job).into_keys().collect::<Vec<_>>(), ["u-001", "u-002", "u-003"]);
    assert_eq!(queue.take_due().as_deref(), Some("small"));
    assert_eq!(queue.take_due(), None);
}

#[test]
fn a_fenced_node_is_due_after_its_next_change() {
    let mut queue = Queue::new(10);
    queue.replace(&node_name("n"), records(0..3));
    queue.fence(&node_name("n"));
    list(&mut queue);
    assert!(queue.take().is_none() && queue.is_settled());
    assert_eq!(queue.take_due(), None);
    queue.change(&node_name("n"), records(0..1), vec![]);
    assert_eq!((queue.take_due().as_deref(), queue.queued()), (Some("n"), 0));
    queue.regain(&node_name("n"));
    assert_eq!(queue.take_due(), None, "its records are requested already");
    queue.fence(&node_name("quiet"));
    queue.regain(&node_name("quiet"));
    assert_eq!(queue.take_due().as_deref(), Some("quiet"), "without a change");
    queue.fence(&node_name("m"));
    queue.replace(&node_name("m"), records(0..1));
    assert_eq!((queue.take_due(), queue.queued()), (None, 1), "all of its records are set");
}

#[test]
fn a_late_answer_about_the_server_drops_no_later_session() {
    let mut queue = Queue::new(100);
    queue.replace(&node_name("n"), records(0..1));
    let entry = queue.take_unlisted(9).pop().unwrap();
    queue.begin(&node_name("n"));
    queue.replace(&node_name("n"), records(0..2));
    queue.not_served(&entry);
    list(&mut queue);
    assert_eq!(queue.take().map(|job| job.desired.len()), Some(2));

    queue.replace(&node_name("gone"), records(0..1));
    let entry = queue.take_unlisted(9).pop().unwrap();
    queue.forget(&node_name("gone"));
    queue.not_served(&entry);
    assert!(queue.fenced.is_empty(), "nothing of it is left");
}

#[test]
fn a_job_that_meets_the_fence_drops_the_node() {
    let mut queue = Queue::new(100);
    queue.replace(&node_name("n"), records(0..70));
    list(&mut queue);
    let job = queue.take().unwrap();
    queue.finish(job, Outcome::Fenced);
    assert!(queue.take().is_none() && queue.is_settled());
    assert_eq!((queue.queued(), queue.take_due()), (0, None));
}

#[test]
fn a_session_begins_without_the_records_of_earlier_ones() {
    let mut queue = Queue::new(100);
    queue.replace(&node_name("n"), records(0..70));
    queue.forget_when_written(&node_name("n"));
    list(&mut queue);
    let job = queue.take().unwrap();
    assert!(queue.is_current(&job));
    queue.begin(&node_name("n"));
    queue.change(&node_name("n"), records(0..1), vec![]);
    assert!(!queue.is_current(&job), "no more of it is written");
    queue.begin(&node_name("n"));
    queue.finish(job, Outcome::Later);
    queue.resume();
    assert!(queue.take().is_none() && queue.is_settled());
    assert_eq!(queue.queued(), 0);
}

#[test]
fn failed_writes_wait_until_they_are_resumed() {
    let mut queue = Queue::new(10);
    queue.replace(&node_name("n"), records(0..2));
    let entries_to_list = queue.take_unlisted(9);
    queue.not_listed(entries_to_list.into_iter().next().unwrap());
    assert!(queue.take_unlisted(9).is_empty() && !queue.is_settled());
    queue.resume();
    list(&mut queue);
    let job = queue.take().unwrap();
    queue.finish(job, Outcome::Later);
    assert!(queue.take().is_none() && queue.queued() == 2);
    queue.change(&node_name("n"), records(2..3), vec![]);
    assert!(queue.take().is_none());
    queue.resume();
    let job = queue.take().unwrap();
    assert_eq!(job.desired.len(), 3);
    queue.finish(job, Outcome::Changed);
    assert!(queue.take().is_none());
    assert_eq!(queue.take_unlisted(9).len(), 1, "its records are read again");
}

/// The API server may have executed a request that it has not answered.
#[test]
fn a_record_is_removed_although_its_creation_failed() {
    let mut queue = Queue::new(10);
    queue.replace(&node_name("n"), records(0..1));
    list(&mut queue);
    let job = queue.take().unwrap();
    queue.change(&node_name("n"), vec![], vec!["u-000".into()]);
    queue.finish(job, Outcome::Failed);
    queue.resume();
    let entry = queue.take_unlisted(9).pop().unwrap();
    queue.listed(&entry, [("u-000".into(), Known(0.into()))].into());
    assert_eq!(desired(&queue.take().unwrap()), [("u-000", None)].into());
}

#[test]
fn a_node_that_returns_has_one_queue_entry() {
    let mut queue = Queue::new(10);
    queue.replace(&node_name("n"), records(0..2));
    list(&mut queue);
    let job = queue.take().unwrap();
    queue.forget(&node_name("n"));
    queue.replace(&node_name("n"), records(5..6));
    queue.finish(job, Outcome::Continue);
    assert_eq!(queue.queued(), 1, "the rest of the earlier job is dropped");
    list(&mut queue);
    let job = queue.take().unwrap();
    assert_eq!(desired(&job), [("u-005", Some("5"))].into());
    assert!(queue.take().is_none());
}

#[test]
fn a_disconnected_node_is_dropped_after_its_writes() {
    let mut queue = Queue::new(10);
    queue.replace(&node_name("n"), records(0..2));
    queue.forget_when_written(&node_name("n"));
    list(&mut queue);
    let mut job = queue.take().unwrap();
    job.desired.clear();
    queue.finish(job, Outcome::Continue);
    assert!(queue.nodes.is_empty());
    queue.replace(&node_name("m"), vec![]);
    list(&mut queue);
    assert!(queue.take().is_none());
    assert_eq!(queue.nodes.len(), 1);
    queue.forget_when_written(&node_name("m"));
    assert!(queue.nodes.is_empty());
}
