//! The message in parts: what has arrived of an object larger than a frame, over restarts.
//!
//! It is a cache of one message, in pieces of bounded size. Each piece has a checksum, is
//! compressed, and is sealed whatever its kind, which is unknown until the message is complete. A
//! piece that is damaged or cannot be opened ends what is kept, and a salvage drops all of it.

use rusqlite::{Connection, OptionalExtension as _, Row};

use super::seals::Seals;
use super::{Commit, EdgeStore};
use edgesync_protocol::change::Change;
use edgesync_protocol::frame::PartialMessage;
use edgesync_store::StoreError;
use edgesync_store::checksum::checksum64;
use edgesync_store::engine::integer;
use edgesync_store::seal::Binding;
use edgesync_store::seal::keyring::{SEALED, pack, unpack};

/// The result of a message that was applied.
#[derive(Debug)]
pub struct AppliedMessage {
    /// The commit, with the rejection if the message cannot be applied.
    pub commit: Commit,
    /// The change in the message, if it is valid.
    pub change: Option<Change>,
}

impl EdgeStore {
    /// Keeps the next bytes of a message in parts: those after `message.received`. From offset zero
    /// on, they replace whatever is kept. Returns false if the bytes before them are gone.
    ///
    /// # Errors
    /// Fails if the store cannot be written.
    pub async fn keep_part(&self, message: PartialMessage, text: String) -> Result<bool, StoreError> {
        let bytes = text.len();
        let run = move |conn: &Connection, state: &mut super::state::State| {
            keep(conn, &state.seals(), &message, &text)
        };
        self.inner.writer.run(bytes, run).await
    }

    /// Returns the message in parts, with the number of sound bytes that are kept of it.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub async fn kept_parts(&self) -> Result<Option<PartialMessage>, StoreError> {
        let seals = self.inner.seals.clone();
        self.inner.readers.run(move |conn: &_| scan(conn, &seals, |_| ())).await
    }

    /// Appends the rest of a message to its kept bytes, applies its change, and drops what is kept,
    /// in one transaction. Returns `None`, and drops it as well, if those bytes are damaged or
    /// gone.
    ///
    /// # Errors
    /// Fails if the store does: then what is kept stays.
    pub async fn apply_parts(
        &self,
        message: PartialMessage,
        rest: String,
        max_object: usize,
    ) -> Result<Option<AppliedMessage>, StoreError> {
        let bytes = usize::try_from(message.total).unwrap_or(rest.len());
        let run = move |conn: &Connection, state: &mut super::state::State| {
            state.apply_parts(conn, &message, &rest, max_object)
        };
        self.inner.writer.run(bytes, run).await
    }

    /// Drops what is kept of a message in parts. Returns whether there was anything.
    ///
    /// # Errors
    /// Fails if the store cannot be written.
    pub async fn drop_parts(&self) -> Result<bool, StoreError> {
        self.inner.writer.run(0, |conn: &Connection, _: &mut super::state::State| clear(conn)).await
    }
}

/// Returns the text of a message: its kept bytes and the rest. `None` if the kept ones are damaged
/// or gone.
pub(super) fn whole(
    conn: &Connection,
    seals: &Seals,
    message: &PartialMessage,
    rest: &str,
) -> Result<Option<String>, StoreError> {
    let mut text = String::with_capacity(usize::try_from(message.total).unwrap_or(0));
    let kept = scan(conn, seals, |piece| text.push_str(piece))?;
    if kept.as_ref() != Some(message) {
        return Ok(None);
    }
    text.push_str(rest);
    Ok(Some(text))
}

/// Drops what is kept. Returns whether there was anything.
pub(super) fn clear(conn: &Connection) -> Result<bool, StoreError> {
    Ok(conn.prepare_cached("DELETE FROM parts")?.execute([])? > 0)
}

/// Drops what was kept without a seal, if everything must be sealed.
pub(super) fn drop_unsealed(conn: &Connection, seals: &Seals) -> Result<(), StoreError> {
    if seals.0.is_some() {
        conn.execute("DELETE FROM parts WHERE substr(piece, 1, 1) <> ?1", [&[SEALED][..]])?;
    }
    Ok(())
}

fn keep(conn: &Connection, seals: &Seals, message: &PartialMessage, text: &str) -> Result<bool, StoreError> {
    let (start, length) = (integer(message.received), integer(text.len() as u64));
    let identity = identity(message)?;
    // Pieces after a damaged one are void.
    conn.prepare_cached("DELETE FROM parts WHERE start >= ?1")?.execute([start])?;
    if start > 0 {
        let last = conn
            .prepare_cached("SELECT start + length, message FROM parts ORDER BY start DESC LIMIT 1")?
            .query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))
            .optional()?;
        if last != Some((start, identity.clone())) {
            return Ok(false);
        }
    }
    let name = name(start);
    let piece = match &seals.0 {
        Some(active) => active.keys.seal_bytes(binding(message, &name), text)?,
        None => pack(text),
    };
    conn.prepare_cached(
        "INSERT INTO parts (start, length, checksum, message, piece) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute((start, length, checksum(start, length, &identity, &piece), &identity, &piece))?;
    Ok(true)
}

/// Passes the sound pieces to `each`, from the start of the message up to a gap. Returns the
/// message with the number of their bytes.
fn scan(
    conn: &Connection,
    seals: &Seals,
    mut each: impl FnMut(&str),
) -> Result<Option<PartialMessage>, StoreError> {
    let mut statement =
        conn.prepare_cached("SELECT start, length, checksum, message, piece FROM parts ORDER BY start")?;
    let mut rows = statement.query([])?;
    let mut found: Option<PartialMessage> = None;
    while let Some(row) = rows.next()? {
        let Some((piece, text)) = sound(row, seals)? else { break };
        let received = found.as_ref().map_or(0, |found| found.received);
        let is_same = found.as_ref().is_none_or(|found| found.is_same_message(&piece));
        if !is_same || piece.received != received {
            break;
        }
        each(&text);
        found = Some(PartialMessage { received: received + text.len() as u64, ..piece });
    }
    Ok(found)
}

/// Reads a row: its message, with the number of bytes before the piece, and the piece. `None` if it
/// is damaged or cannot be opened.
fn sound(row: &Row<'_>, seals: &Seals) -> Result<Option<(PartialMessage, String)>, StoreError> {
    let number = |index: usize| row.get_ref(index).map(|value| value.as_i64().ok());
    let (Some(start), Some(length), Some(expected)) = (number(0)?, number(1)?, number(2)?) else {
        return Ok(None);
    };
    let (Ok(identity), Ok(piece)) = (row.get_ref(3)?.as_str(), row.get_ref(4)?.as_blob()) else {
        return Ok(None);
    };
    if checksum(start, length, identity, piece) != expected {
        return Ok(None);
    }
    let Ok(message) = serde_json::from_str::<PartialMessage>(identity) else { return Ok(None) };
    let name = name(start);
    let text = match &seals.0 {
        Some(active) => active.keys.open_bytes(binding(&message, &name), piece).ok(),
        None => unpack(piece),
    };
    let received = u64::try_from(start).unwrap_or(0);
    let text = text.filter(|text| integer(text.len() as u64) == length);
    Ok(text.map(|text| (PartialMessage { received, ..message }, text)))
}

/// Returns the identity of a message as text.
fn identity(message: &PartialMessage) -> Result<String, StoreError> {
    let message = PartialMessage { received: 0, ..message.clone() };
    serde_json::to_string(&message).map_err(|error| StoreError::internal(error.to_string()))
}

/// Returns the name of a piece, which no object can have.
fn name(start: i64) -> String {
    format!("parts/{start}")
}

fn binding<'a>(message: &'a PartialMessage, name: &'a str) -> Binding<'a> {
    Binding { uid: &message.uid, version: message.resource_version.as_str(), namespace: "", name }
}

fn checksum(start: i64, length: i64, identity: &str, piece: &[u8]) -> i64 {
    checksum64(&[&start.to_le_bytes(), &length.to_le_bytes(), identity.as_bytes(), piece])
}

#[cfg(test)]
mod tests;
