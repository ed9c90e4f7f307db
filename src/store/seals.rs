//! Sealed bodies in the rows of objects and outbox: sealing, opening, resealing with another key,
//! and detection of lost ones.
//!
//! A row's checksum covers the sealed text, so only access to the content needs a key.

mod clean;

use std::borrow::Cow;
use std::sync::Arc;

use rusqlite::Connection;

use super::journal;
use super::rows::{self, Interned, OBJECT_COLUMNS, ObjectRow, Resources};
use edgesync_object::{ObjectKey, Resource};
use edgesync_store::StoreError;
use edgesync_store::seal::{Binding, Keyring, SealOptions, UnsealError, is_sealed};

pub(super) use clean::{clean, needs_cleaning, record_kinds, recorded_kinds};

/// Key in table `meta` of the key with which all rows of the sealed kinds are sealed, and of the
/// kinds.
const SETTLED_KEY: &str = "sealed_with";

/// Limits of a resealing transaction: rows, and bytes of bodies. Other jobs wait no longer than for
/// a large object.
pub(super) const BATCH_ROWS: usize = 256;
pub(super) const BATCH_BYTES: usize = 256 << 10;

/// The sealed kinds and the keys; `None` seals nothing. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Seals(pub(super) Option<Arc<Active>>);

#[derive(Debug)]
pub(super) struct Active {
    pub(super) options: SealOptions,
    pub(super) keys: Keyring,
}

/// Action that a row requires.
pub(super) enum SealAction {
    Nothing,
    /// Its body can no longer be opened.
    Lost,
    /// Its body must be replaced by this text.
    Reseal(String),
}

impl Seals {
    /// Reads the keys, or creates them.
    pub(super) fn open(options: Option<&SealOptions>) -> Result<Self, StoreError> {
        let Some(options) = options else { return Ok(Self::default()) };
        if let Some(directory) = options.keys.file.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let (keys, opened) = Keyring::open(&options.keys)?;
        tracing::debug!(?opened, "the seal keys");
        Ok(Self(Some(Arc::new(Active { options: options.clone(), keys }))))
    }

    /// Returns whether objects of a kind are sealed.
    pub(super) fn covers(&self, resource: &Resource) -> bool {
        self.0.as_ref().is_some_and(|active| active.options.covers(resource))
    }

    /// Returns whether items about an object are sealed.
    pub(super) fn covers_object(&self, resources: &Resources, object: &ObjectKey) -> bool {
        let known = resources.iter().map(|kind| &*kind.resource);
        self.0.as_ref().is_some_and(|active| active.options.covers_object(object, known))
    }

    /// Returns the sealed body of a row to write; `None` if it stays plain.
    pub(super) fn seal(
        &self,
        binding: Binding<'_>,
        body: &str,
        is_covered: impl FnOnce() -> bool,
    ) -> Result<Option<String>, StoreError> {
        match &self.0 {
            Some(active) if is_covered() => Ok(Some(active.keys.seal(binding, body)?)),
            _ => Ok(None),
        }
    }

    /// Returns the opened body of a row.
    pub(super) fn open_body<'a>(
        &self,
        binding: Binding<'_>,
        body: &'a str,
    ) -> Result<Cow<'a, str>, UnsealError> {
        if !is_sealed(body) {
            return Ok(Cow::Borrowed(body));
        }
        let active = self.0.as_ref().ok_or(UnsealError::KeyLost)?;
        active.keys.open_body(binding, body).map(Cow::Owned)
    }

    /// Returns whether the body of a row can never be opened. A store opened without keys cannot
    /// know it.
    pub(super) fn is_lost(&self, binding: Binding<'_>, body: &str) -> bool {
        self.0.is_some() && self.open_body(binding, body).is_err()
    }

    /// Returns the action that a row with this body requires.
    pub(super) fn action(
        &self,
        binding: Binding<'_>,
        body: &str,
        is_covered: impl FnOnce() -> bool,
    ) -> Result<SealAction, StoreError> {
        let Some(Active { keys, .. }) = self.0.as_deref() else { return Ok(SealAction::Nothing) };
        let plain = if is_sealed(body) {
            // The row's checksum is correct and the key exists, so it can be opened. Opening all
            // such rows would take too long here; the background check does.
            if keys.is_current(body) {
                return Ok(SealAction::Nothing);
            }
            let Ok(plain) = keys.open_body(binding, body) else { return Ok(SealAction::Lost) };
            Cow::Owned(plain)
        } else if is_covered() {
            Cow::Borrowed(body)
        } else {
            return Ok(SealAction::Nothing);
        };
        Ok(SealAction::Reseal(keys.seal(binding, &plain)?))
    }

    /// Deletes the old key after an unfinished rotation: no row has it any more.
    pub(super) fn end_rotation(&self) -> Result<(), StoreError> {
        match &self.0 {
            Some(active) if self.is_rotating() => Ok(active.keys.forget_old()?),
            _ => Ok(()),
        }
    }

    /// Returns the record of a file whose rows are all sealed as required; `None` while a rotation
    /// is unfinished, and without keys.
    fn settled(&self) -> Option<String> {
        let active = self.0.as_ref().filter(|_| !self.is_rotating())?;
        Some(format!("{} {}", active.keys.newest(), clean::required(self)?))
    }

    /// Returns whether a rotation is unfinished.
    pub(super) fn is_rotating(&self) -> bool {
        self.0.as_ref().is_some_and(|active| active.keys.facts().keys > 1)
    }
}

/// Accumulated results of a batch.
#[derive(Debug, Default)]
pub(super) struct BatchResult {
    rows: usize,
    bytes: usize,
    pub(super) resealed: u64,
    lost: Vec<i64>,
}

impl BatchResult {
    pub(super) fn is_enough(&self) -> bool {
        self.rows >= BATCH_ROWS || self.bytes >= BATCH_BYTES
    }
}

/// Seals a row if required. A damaged row is left to the check.
pub(super) fn reseal_row(
    conn: &Connection,
    seals: &Seals,
    resources: &Resources,
    row: &rusqlite::Row<'_>,
    batch: &mut BatchResult,
) -> Result<(), StoreError> {
    batch.rows += 1;
    let Some(mut row) = ObjectRow::read(row)? else { return Ok(()) };
    batch.bytes += row.body.len();
    let kind = resources.by_id(row.resource_id).filter(|kind| row.expected_checksum(kind) == row.checksum);
    let Some(Interned { resource, .. }) = kind else { return Ok(()) };
    match seals.action(row.binding(), row.body, || seals.covers(resource))? {
        SealAction::Nothing => {}
        SealAction::Lost => batch.lost.push(row.id),
        SealAction::Reseal(body) => {
            row.body = &body;
            if let Some(kind) = kind {
                row.checksum = row.expected_checksum(kind);
            }
            rows::rewrite(conn, &row)?;
            batch.resealed += 1;
        }
    }
    Ok(())
}

/// Records that all rows are sealed as required: the next opening with the same key and kinds does
/// not read them.
pub(super) fn record_settled(conn: &Connection, seals: &Seals) -> Result<(), StoreError> {
    match seals.settled() {
        Some(settled) if journal::meta(conn, SETTLED_KEY)?.as_ref() != Some(&settled) => {
            journal::set_meta(conn, SETTLED_KEY, &settled)
        }
        _ => Ok(()),
    }
}

/// Checks the objects of covered kinds when a file is opened, or all objects after an interrupted
/// rotation: seals plain bodies, in batches. Returns the ids of rows that cannot be opened. Reads
/// nothing if [`record_settled`] says so.
pub(super) fn settle(
    conn: &Connection,
    seals: &Seals,
    resources: &Resources,
) -> Result<Vec<i64>, StoreError> {
    if seals.0.is_none() {
        // Rows stay plain from now on.
        conn.execute("DELETE FROM meta WHERE key = ?1", [SETTLED_KEY])?;
        return Ok(Vec::new());
    }
    let settled = seals.settled();
    if settled.is_some() && journal::meta(conn, SETTLED_KEY)? == settled {
        return Ok(Vec::new());
    }
    let rotating = seals.is_rotating();
    let mut ids = Vec::new();
    // Read from the index alone, then in the order of the file.
    let mut of_kind = conn.prepare("SELECT id FROM objects WHERE resource_id = ?1")?;
    for kind in resources.iter().filter(|kind| rotating || seals.covers(&kind.resource)) {
        let mut rows = of_kind.query([kind.id])?;
        while let Some(row) = rows.next()? {
            ids.push(row.get::<_, i64>(0)?);
        }
    }
    ids.sort_unstable();
    let (mut resealed, mut lost) = (0, Vec::new());
    let mut ids = ids.into_iter().peekable();
    while ids.peek().is_some() {
        let (tx, mut batch) = (conn.unchecked_transaction()?, BatchResult::default());
        {
            let mut by_id =
                tx.prepare_cached(&format!("SELECT {OBJECT_COLUMNS} FROM objects WHERE id = ?1"))?;
            while let Some(id) = ids.next_if(|_| !batch.is_enough()) {
                let mut rows = by_id.query([id])?;
                if let Some(row) = rows.next()? {
                    reseal_row(&tx, seals, resources, row, &mut batch)?;
                }
            }
        }
        tx.commit()?;
        resealed += batch.resealed;
        lost.append(&mut batch.lost);
    }
    if resealed > 0 {
        tracing::info!(objects = resealed, "objects sealed");
    }
    Ok(lost)
}

/// Returns the cause of dropped rows.
pub(super) fn cause_of_loss(lost: u64) -> String {
    let were = if lost == 1 { "object was" } else { "objects were" };
    format!("{lost} {were} sealed with a lost key")
}
