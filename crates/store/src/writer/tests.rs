//! The guarantees of the writer, over a table of one column.

use super::*;
use crate::engine::{EngineOptions, Kind, open_writer, set_max_bytes};

/// An owner without hooks.
struct NoHooks;

impl WriterHooks for NoHooks {}

struct Fixture {
    writer: Writer<NoHooks>,
    _dir: tempfile::TempDir,
}

fn fixture(limits: WriterLimits, max_bytes: Option<u64>) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.db");
    let kind = Kind { application_id: 1, migrations: &[] };
    let conn = open_writer(&path, kind, &EngineOptions::default()).unwrap();
    conn.execute_batch("CREATE TABLE t (x INTEGER PRIMARY KEY, body BLOB)").unwrap();
    set_max_bytes(&conn, max_bytes).unwrap();
    Fixture { writer: Writer::start("test", conn, NoHooks, limits).unwrap(), _dir: dir }
}

type Insert = Result<(), StoreError>;

fn insert(x: i64, body: usize) -> impl FnMut(&Connection, &mut NoHooks) -> Insert + Send {
    move |conn, _| {
        conn.execute("INSERT INTO t VALUES (?1, zeroblob(?2))", (x, i64::try_from(body).unwrap()))?;
        Ok(())
    }
}

async fn count(writer: &Writer<NoHooks>) -> i64 {
    writer
        .run(0, |conn, _| -> Result<i64, StoreError> {
            Ok(conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0))?)
        })
        .await
        .unwrap()
}

/// Blocks the writer within a job until the sender is dropped or used; returns once it blocks.
async fn block(writer: &Writer<NoHooks>) -> mpsc::Sender<()> {
    let (release, wait) = mpsc::channel::<()>();
    let (entered, inside) = oneshot::channel();
    let mut entered = Some(entered);
    let writer = writer.clone();
    tokio::spawn(async move {
        let job = move |_: &Connection, _: &mut NoHooks| -> Insert {
            entered.take().map(|entered| entered.send(()));
            let _ = wait.recv();
            Ok(())
        };
        writer.run(0, job).await
    });
    inside.await.unwrap();
    release
}

/// Polls the futures once each, so that their jobs are queued in this order.
async fn queue<F: Future>(jobs: impl IntoIterator<Item = F>) -> Vec<std::pin::Pin<Box<F>>> {
    let mut jobs: Vec<_> = jobs.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        for job in &mut jobs {
            assert!(job.as_mut().poll(context).is_pending());
        }
        std::task::Poll::Ready(())
    })
    .await;
    jobs
}

#[tokio::test]
async fn jobs_that_arrive_during_a_commit_share_the_next_one() {
    let fixture = fixture(WriterLimits::default(), None);
    let writer = &fixture.writer;
    let release = block(writer).await;
    let jobs = queue((0..50).map(|x| writer.run(10, insert(x, 0)))).await;
    drop(release);
    for job in jobs {
        job.await.unwrap();
    }
    let stats = writer.stats();
    assert_eq!((stats.commits, stats.jobs, stats.rows), (2, 51, 50));
    assert_eq!(stats.syncs, 1, "the job that blocks has written nothing");
    assert_eq!(stats.commit_times.iter().sum::<u64>(), 2);
}

#[tokio::test]
async fn a_failed_job_undoes_only_itself() {
    let fixture = fixture(WriterLimits::default(), None);
    let writer = &fixture.writer;
    let release = block(writer).await;
    let bad = |x: i64| {
        move |conn: &Connection, _: &mut NoHooks| -> Insert {
            conn.execute("INSERT INTO t VALUES (?1, NULL)", [x])?;
            conn.execute("INSERT INTO t VALUES (?1, NULL)", [x])?;
            Ok(())
        }
    };
    let good = queue([writer.run(0, insert(1, 0)), writer.run(0, insert(2, 0))]).await;
    let bad = queue([writer.run(0, bad(3))]).await;
    drop(release);
    for job in good {
        job.await.unwrap();
    }
    for job in bad {
        assert!(matches!(job.await, Err(StoreError::Internal(_))));
    }
    assert_eq!(count(writer).await, 2);
    assert_eq!(writer.stats().commits, 3);
}

#[tokio::test]
async fn a_full_database_lets_small_jobs_through() {
    let fixture = fixture(WriterLimits::default(), Some(16 * PAGE_BYTES));
    let writer = &fixture.writer;
    let release = block(writer).await;
    let jobs = queue([
        writer.run(0, insert(1, 100)),
        writer.run(0, insert(2, 1 << 20)),
        writer.run(0, insert(3, 100)),
    ])
    .await;
    drop(release);
    let mut results = Vec::new();
    for job in jobs {
        results.push(job.await);
    }
    assert!(matches!(results[..], [Ok(()), Err(StoreError::Full(_)), Ok(())]), "{results:?}");
    assert_eq!(count(writer).await, 2);
}

#[tokio::test]
async fn a_group_ends_at_its_limit_of_bytes() {
    let limits = WriterLimits { group_bytes: 1000, ..WriterLimits::default() };
    let fixture = fixture(limits, None);
    let release = block(&fixture.writer).await;
    let jobs = queue((0..10).map(|x| fixture.writer.run(500, insert(x, 0)))).await;
    drop(release);
    for job in jobs {
        job.await.unwrap();
    }
    // The blocking job was alone when its group was gathered; the others run in pairs.
    assert_eq!(fixture.writer.stats().commits, 1 + 5);
}

#[tokio::test]
async fn the_queue_is_bounded_by_count_and_bytes() {
    let limits = WriterLimits { jobs: 3, bytes: 1024, ..WriterLimits::default() };
    let fixture = fixture(limits, None);
    let writer = &fixture.writer;
    let release = block(writer).await;
    let jobs = queue([
        writer.run(256, insert(1, 0)),
        writer.run(256, insert(2, 0)),
        writer.run(256, insert(3, 0)),
        writer.run(1 << 30, insert(4, 0)),
    ])
    .await;
    assert_eq!(writer.shared.jobs.available_permits(), 0);
    drop(release);
    join(jobs).await;
    assert_eq!(count(writer).await, 4);
    assert_eq!((writer.shared.jobs.available_permits(), writer.shared.bytes.available_permits()), (3, 4));
}

async fn join<F: Future<Output = Insert>>(jobs: Vec<std::pin::Pin<Box<F>>>) {
    for job in jobs {
        job.await.unwrap();
    }
}

#[tokio::test]
async fn work_between_transactions_commits_nothing() {
    let fixture = fixture(WriterLimits::default(), None);
    let writer = &fixture.writer;
    writer.run(0, insert(1, 0)).await.unwrap();
    let before = writer.stats();
    let has_no_transaction = |conn: &Connection| match conn.is_autocommit() {
        true => Ok(()),
        false => Err(StoreError::internal("in a transaction")),
    };
    writer.run_between(has_no_transaction).await.unwrap();
    assert_eq!(writer.stats(), before);
    writer.close().await;
    assert!(matches!(writer.run_between(has_no_transaction).await, Err(StoreError::Closed)));
}

#[tokio::test]
async fn closing_completes_the_queue_and_refuses_the_rest() {
    let fixture = fixture(WriterLimits::default(), None);
    let writer = &fixture.writer;
    let release = block(writer).await;
    let queued = queue([writer.run(0, insert(1, 0))]).await;
    let closing = queue([writer.close()]).await;
    drop(release);
    for job in queued {
        job.await.unwrap();
    }
    for close in closing {
        close.await;
    }
    assert!(matches!(writer.run(0, insert(2, 0)).await, Err(StoreError::Closed)));
}

#[tokio::test]
async fn the_log_is_copied_once_it_reaches_its_limit() {
    let limits = WriterLimits { wal_bytes: 64 << 10, ..WriterLimits::default() };
    let fixture = fixture(limits, None);
    for x in 0..100 {
        fixture.writer.run(0, insert(x, 3000)).await.unwrap();
    }
    let stats = fixture.writer.stats();
    assert!((5..=20).contains(&stats.checkpoints), "{stats:?}");
}

#[test]
fn log_is_read_only_when_it_may_be_long_enough() {
    let mut log = LogEstimate::new();
    assert!(log.may_reach(4 << 20), "unknown at the start");
    log.read(0);
    let mut updates = 0;
    while !log.may_reach(4 << 20) {
        log.wrote(1, 1000);
        updates += 1;
    }
    // An update of one object changes up to four pages.
    assert!((30..=1024 / 4).contains(&updates), "{updates}");
    log.read(0);
    log.wrote(0, 4 << 20);
    assert!(log.may_reach(4 << 20), "large bodies count");
    log.read(u64::MAX);
    log.wrote(u64::MAX, usize::MAX);
    assert!(log.may_reach(u64::MAX));
}

#[test]
fn a_commit_counts_in_the_first_bucket_that_is_wide_enough() {
    let counters = Counters::default();
    for micros in [0, 1000, 1001, 999_999, 1_000_000, 1_000_001, 90_000_000] {
        counters.committed_in(Duration::from_micros(micros));
    }
    let times = counters.commit_times.map(AtomicU64::into_inner);
    assert_eq!(times, [2, 1, 0, 0, 0, 0, 0, 0, 0, 2, 2]);
}
