//! The agent's metadata beside the rows: few, short values, each with its own key in table `meta`
//! and a checksum. A damaged value counts as missing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::EdgeStore;
use edgesync_store::StoreError;
use edgesync_store::checksum::checksum64;

/// Maximum bytes of a value; a longer one is not stored.
pub(crate) const MAX_METADATA_BYTES: usize = 32 << 10;

/// Minimum interval at which frequently changing values join another commit.
const JOIN_COMMIT_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Interval at which they get their own commit.
const OWN_COMMIT_INTERVAL: Duration = Duration::from_secs(3600);

/// Values not yet written.
pub(super) type Pending = Mutex<BTreeMap<&'static str, Arc<str>>>;

fn lock(pending: &Pending) -> MutexGuard<'_, BTreeMap<&'static str, Arc<str>>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EdgeStore {
    /// Returns a stored value.
    ///
    /// # Errors
    /// Fails if the store cannot be read. Damage is repaired first.
    pub async fn note(&self, key: &'static str) -> Result<Option<String>, StoreError> {
        if let Some(text) = lock(&self.inner.shared.metadata).get(key) {
            return Ok(Some(text.to_string()));
        }
        self.read_repaired(move |conn| checked(conn, &meta_key(key))).await
    }

    /// Stores a frequently changing value that may be lost. It is written with another commit, at
    /// most every ten minutes, else once an hour in its own, and when the store closes. At most
    /// [`MAX_METADATA_BYTES`].
    pub fn keep_note(&self, key: &'static str, text: String) {
        if fits(key, &text) {
            lock(&self.inner.shared.metadata).insert(key, text.into());
        }
    }
}

fn fits(key: &str, text: &str) -> bool {
    let fits = text.len() <= MAX_METADATA_BYTES;
    if !fits {
        tracing::warn!(key, bytes = text.len(), "metadata too long, not stored");
    }
    fits
}

/// Writes pending values, within the transactions of the writer.
#[derive(Debug)]
pub(super) struct MetadataWriter {
    /// Time of the last write.
    written: Instant,
    /// Values in the running transaction.
    writing: Vec<(&'static str, Arc<str>)>,
}

/// The occasion of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// Another commit happens anyway.
    Commit,
    /// The writer is idle.
    Quiet,
    /// The store closes: everything pending is written.
    End,
}

impl MetadataWriter {
    pub(super) fn new() -> Self {
        Self { written: Instant::now(), writing: Vec::new() }
    }

    /// Returns whether a write is due.
    pub(super) fn is_due(&self, pending: &Pending, occasion: Occasion) -> bool {
        is_interval_over(self.written.elapsed(), occasion) && !lock(pending).is_empty()
    }

    /// Writes the pending values, if they are due.
    pub(super) fn write(
        &mut self,
        conn: &Connection,
        pending: &Pending,
        occasion: Occasion,
    ) -> Result<(), StoreError> {
        if !self.is_due(pending, occasion) {
            return Ok(());
        }
        self.writing = lock(pending).iter().map(|(key, text)| (*key, Arc::clone(text))).collect();
        self.writing.iter().try_for_each(|(key, text)| set_checked(conn, &meta_key(key), text))
    }

    /// Writes one value now; a pending one of the same key is older.
    pub(super) fn post(
        conn: &Connection,
        pending: &Pending,
        key: &'static str,
        text: &str,
    ) -> Result<(), StoreError> {
        if fits(key, text) {
            set_checked(conn, &meta_key(key), text)?;
            lock(pending).remove(key);
        }
        Ok(())
    }

    /// Marks the values of the committed transaction as written.
    pub(super) fn committed(&mut self, pending: &Pending) {
        if self.writing.is_empty() {
            return;
        }
        self.written = Instant::now();
        let mut pending = lock(pending);
        for (key, text) in self.writing.drain(..) {
            if pending.get(key).is_some_and(|waiting| Arc::ptr_eq(waiting, &text)) {
                pending.remove(key);
            }
        }
    }

    /// Keeps the values of the rolled-back transaction pending.
    pub(super) fn rolled_back(&mut self) {
        self.writing.clear();
    }
}

fn is_interval_over(since: Duration, occasion: Occasion) -> bool {
    match occasion {
        Occasion::Commit => since >= JOIN_COMMIT_INTERVAL,
        Occasion::Quiet => since >= OWN_COMMIT_INTERVAL,
        Occasion::End => true,
    }
}

const PREFIX: &str = "note/";

fn meta_key(key: &str) -> String {
    format!("{PREFIX}{key}")
}

/// Writes a text to table `meta`, with a checksum.
pub(super) fn set_checked(conn: &Connection, key: &str, text: &str) -> Result<(), StoreError> {
    conn.prepare_cached(
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
    )?
    .execute((key, format!("{} {text}", checksum(key, text))))?;
    Ok(())
}

/// Reads a text of [`set_checked`]; `None` if it is missing or its checksum is wrong.
pub(super) fn checked(conn: &Connection, key: &str) -> Result<Option<String>, StoreError> {
    let mut statement = conn.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
    let mut rows = statement.query([key])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let value = row.get_ref(0)?.as_str().ok();
    Ok(value.and_then(|value| verified(key, value)).map(str::to_owned))
}

fn checksum(key: &str, text: &str) -> String {
    format!("{:016x}", checksum64(&[key.as_bytes(), text.as_bytes()]))
}

fn verified<'a>(key: &str, value: &'a str) -> Option<&'a str> {
    let (found, text) = value.split_once(' ')?;
    (found == checksum(key, text)).then_some(text)
}

/// Copies the readable values into another file.
pub(super) fn salvage(source: &Connection, fresh: &Connection) -> Result<(), StoreError> {
    let Ok(mut statement) = source.prepare("SELECT key, value FROM meta WHERE key GLOB 'note/*'") else {
        return Ok(());
    };
    let Ok(mut rows) = statement.query([]) else { return Ok(()) };
    while let Ok(Some(row)) = rows.next() {
        let (Ok(key), Ok(value)) = (row.get::<_, String>(0), row.get::<_, String>(1)) else { continue };
        if let Some(text) = verified(&key, &value) {
            set_checked(fresh, &key, text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_join_a_commit_after_ten_minutes_or_get_one_hourly() {
        let minutes = |count: u64| Duration::from_secs(count * 60);
        let due = |since, occasion| is_interval_over(minutes(since), occasion);
        assert!(!due(9, Occasion::Commit) && due(10, Occasion::Commit));
        assert!(!due(59, Occasion::Quiet) && due(60, Occasion::Quiet));
        assert!(due(0, Occasion::End));
    }

    #[test]
    fn a_text_is_valid_only_under_its_own_key() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)").unwrap();
        set_checked(&conn, "a", "one two").unwrap();
        assert_eq!(checked(&conn, "a").unwrap().as_deref(), Some("one two"));
        conn.execute_batch("INSERT INTO meta SELECT 'b', value FROM meta").unwrap();
        assert_eq!(checked(&conn, "b").unwrap(), None);
        conn.execute_batch("UPDATE meta SET value = replace(value, 'one', 'ones')").unwrap();
        assert_eq!(checked(&conn, "a").unwrap(), None);
        assert_eq!(checked(&conn, "c").unwrap(), None);
    }

    #[test]
    fn a_value_changed_during_its_write_stays_pending() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)").unwrap();
        let pending = Pending::default();
        let mut metadata_writer = MetadataWriter::new();
        lock(&pending).insert("k", "1".into());
        metadata_writer.write(&conn, &pending, Occasion::Commit).unwrap();
        assert!(metadata_writer.writing.is_empty(), "it is too early");
        metadata_writer.write(&conn, &pending, Occasion::End).unwrap();
        lock(&pending).insert("k", "2".into());
        metadata_writer.committed(&pending);
        assert_eq!(checked(&conn, "note/k").unwrap().as_deref(), Some("1"));
        assert_eq!(lock(&pending).get("k").map(ToString::to_string).as_deref(), Some("2"));
        metadata_writer.write(&conn, &pending, Occasion::End).unwrap();
        metadata_writer.rolled_back();
        metadata_writer.committed(&pending);
        assert!(!lock(&pending).is_empty(), "what was rolled back still waits");
        MetadataWriter::post(&conn, &pending, "k", "3").unwrap();
        assert!(lock(&pending).is_empty());
        assert_eq!(checked(&conn, "note/k").unwrap().as_deref(), Some("3"));
    }
}
