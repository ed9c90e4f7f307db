//! Unique versions, even if the file is replaced by an older copy. For the reasons see
//! `docs/decisions/0003-cloud-versions.md`.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::history::Lengths;
use edgesync_protocol::cloud::Issued;
use edgesync_protocol::timing::ClockJumpDetector;
use edgesync_store::StoreError;

/// Limit of the recorded openings. Versions before the oldest recorded one count as issued.
const MAX_OPENINGS: i64 = 4096;

/// Counters that a transaction keeps beside its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// The last version issued.
    pub(super) last: u64,
    /// Extents of the history.
    pub(super) history: Lengths,
    /// Lead of the wall clock over the boot-time clock at the last check.
    pub(super) lead: ClockJumpDetector,
}

/// State found and recorded by opening a file.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) counters: Counters,
    pub(super) issued: Issued,
    pub(super) incarnation: String,
}

/// Returns the clock in the unit of versions: microseconds since 1970.
pub(super) fn micros(now: jiff::Timestamp) -> u64 {
    u64::try_from(now.as_microsecond()).unwrap_or(0)
}

/// Returns a version beyond all that a newer copy of this file, or the same process in a copy of
/// its machine, may have issued. Versions are issued at less than one per microsecond, so none can
/// have passed the clock.
///
/// If the clock is behind the file, versions continue from the last one. This logs an error,
/// because they may have been issued before.
fn base(previous: u64, now: jiff::Timestamp) -> u64 {
    let clock = micros(now);
    if clock <= previous {
        let behind = Duration::from_micros(previous - clock);
        tracing::error!(
            ?behind,
            "clock is behind the database: if this is an older copy, versions may be issued twice; \
             hint: set the clock and restart"
        );
    }
    clock.max(previous + 1)
}

/// Records a jump from the last version to a base, optionally with a new incarnation.
fn enter(
    conn: &Connection,
    previous: u64,
    base: u64,
    now: jiff::Timestamp,
    renewed: bool,
) -> rusqlite::Result<()> {
    conn.execute(
        "INSERT INTO openings (base, previous_last, opened, renewed) VALUES (?1, ?2, ?3, ?4)",
        (base, previous, now.to_string(), renewed),
    )?;
    conn.execute(
        "DELETE FROM openings WHERE base <= (SELECT base FROM openings ORDER BY base DESC LIMIT 1 OFFSET ?1)",
        [MAX_OPENINGS],
    )?;
    Ok(())
}

/// Jumps ahead within a transaction, as opening does, and starts a new incarnation. Returns the
/// version to continue from.
pub(super) fn begin_anew(
    conn: &Connection,
    previous: u64,
    now: jiff::Timestamp,
    incarnation: &str,
) -> rusqlite::Result<u64> {
    let base = base(previous, now);
    enter(conn, previous, base, now, true)?;
    conn.execute("UPDATE meta SET incarnation = ?1 WHERE id = 1", [incarnation])?;
    Ok(base)
}

/// Derives the issued versions from the recorded openings.
pub(super) fn issued(conn: &Connection) -> rusqlite::Result<Issued> {
    let mut statement = conn.prepare("SELECT previous_last, base FROM openings ORDER BY base")?;
    let gaps = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let gaps = gaps.collect::<rusqlite::Result<_>>()?;
    let since = conn.query_row("SELECT max(base) FROM openings WHERE renewed = 1", [], |row| row.get(0))?;
    Ok(Issued { gaps, since })
}

/// Jumps ahead of all versions that may have been issued, and records the jump, in a separate
/// transaction.
pub(super) fn open(conn: &mut Connection, now: jiff::Timestamp, fresh: &str) -> Result<Opened, StoreError> {
    let tx = conn.transaction()?;
    let found: Option<(u64, String)> = tx
        .query_row("SELECT last_version, incarnation FROM meta WHERE id = 1", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let previous = found.as_ref().map_or(0, |(last, _)| *last);
    let base = base(previous, now);
    let incarnation = found.map_or_else(|| fresh.to_owned(), |(_, incarnation)| incarnation);
    tx.execute(
        "INSERT INTO meta (id, last_version, incarnation) VALUES (1, ?1, ?2)
         ON CONFLICT (id) DO UPDATE SET last_version = excluded.last_version",
        (base, &incarnation),
    )?;
    enter(&tx, previous, base, now, false)?;
    let history = Lengths::open(&tx, base)?;
    let issued = issued(&tx)?;
    tx.commit()?;
    let counters = Counters { last: base, history, lead: ClockJumpDetector::default() };
    Ok(Opened { counters, issued, incarnation })
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_store::migrate::CLOUD;

    fn database() -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        for migration in CLOUD {
            conn.execute_batch(migration.sql).unwrap();
        }
        conn
    }

    fn at(micros: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_microsecond(micros).unwrap()
    }

    fn is_lost(opened: &Opened, version: u64) -> bool {
        opened.issued.is_lost(&version.into())
    }

    #[test]
    fn opening_jumps_to_the_clock_and_records_the_gap() {
        let mut conn = database();
        let first = open(&mut conn, at(1000), "a").unwrap();
        assert_eq!((first.counters.last, &*first.incarnation), (1000, "a"));
        conn.execute("UPDATE meta SET last_version = 1010", []).unwrap();
        let second = open(&mut conn, at(2000), "b").unwrap();
        assert_eq!((second.counters.last, &*second.incarnation), (2000, "a"));
        conn.execute("UPDATE meta SET last_version = 2005", []).unwrap();
        for (version, lost) in [
            (0, false),
            (1, true),
            (999, true),
            (1000, false),
            (1010, false),
            (1011, true),
            (1999, true),
            (2000, false),
            (2005, false),
            (u64::MAX, false),
        ] {
            assert_eq!(is_lost(&second, version), lost, "{version}");
        }
        for (version, end) in [
            (1, Some(1000)),
            (999, Some(1000)),
            (1000, None),
            (1001, None),
            (1010, None),
            (1011, Some(2000)),
            (1999, Some(2000)),
            (2000, None),
            (2001, None),
            (u64::MAX, None),
        ] {
            assert_eq!(second.issued.end_of(version), end, "{version}");
        }
    }

    #[test]
    fn a_clock_that_went_back_still_moves_forward() {
        let mut conn = database();
        open(&mut conn, at(5000), "a").unwrap();
        assert_eq!(open(&mut conn, at(10), "a").unwrap().counters.last, 5001);
    }

    #[test]
    fn versions_of_a_lost_timeline_lie_in_the_gap() {
        let mut conn = database();
        open(&mut conn, at(1000), "a").unwrap();
        conn.execute("UPDATE meta SET last_version = 1100", []).unwrap();
        // A copy is made here; the original continues to 1200 and is lost; the copy is opened
        // later.
        let restored = open(&mut conn, at(9000), "a").unwrap();
        assert!((1101..=1200).all(|version| restored.issued.end_of(version) == Some(9000)));
        assert!((1101..=1200).all(|version| is_lost(&restored, version)));
        assert!(!is_lost(&restored, 1100) && !is_lost(&restored, 9001));
        assert_eq!([1100, 9001].map(|version| restored.issued.end_of(version)), [None; 2]);
    }

    #[test]
    fn new_incarnation_skips_versions_of_a_copied_machine() {
        let mut conn = database();
        let opened = open(&mut conn, at(1000), "a").unwrap();
        // The machine is saved here. It continues to 1200 and is lost; the saved one resumes at
        // 9000 and has issued two versions.
        let base = begin_anew(&conn, opened.counters.last + 2, at(9000), "b").unwrap();
        let issued = issued(&conn).unwrap();
        assert_eq!(base, 9000);
        assert!((1003..=1200).all(|version| issued.is_lost(&version.into())));
        for given in [1000, 1002, 9000, 9001] {
            assert!(!issued.is_lost(&given.into()) && issued.end_of(given).is_none(), "{given}");
        }
        assert!(!issued.is_news(&1100.into()), "that is what the new incarnation began for");
        let again = begin_anew(&conn, base, at(10), "c").unwrap();
        assert_eq!(again, 9001, "a clock behind the file");
        let reopened = open(&mut conn, at(20_000), "x").unwrap();
        assert_eq!((reopened.counters.last, &*reopened.incarnation), (20_000, "c"));
        let issued = reopened.issued;
        assert!(!issued.is_news(&1100.into()), "not even after another opening");
        assert!(issued.is_news(&15_000.into()));
    }

    #[test]
    fn versions_that_no_store_writes_are_of_no_lost_one() {
        let mut conn = database();
        let opened = open(&mut conn, at(1000), "a").unwrap();
        for odd in ["", "abc", "-1", "01001", "99999999999999999999999"] {
            assert!(!opened.issued.is_lost(&odd.into()), "{odd}");
        }
    }

    #[test]
    fn the_list_of_openings_is_bounded() {
        let mut conn = database();
        for n in 0..MAX_OPENINGS + 10 {
            open(&mut conn, at(n * 10), "a").unwrap();
        }
        let rows: i64 = conn.query_row("SELECT count(*) FROM openings", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, MAX_OPENINGS);
    }
}
