//! The certificates of operators.

use jiff::Timestamp;
use rusqlite::Row;
use serde::{Deserialize, Serialize};

use super::pairing::{ROW_BYTES, optional_time, time};
use super::{CloudError, CloudStore};

/// The most certificates of operators that have neither ended nor been revoked.
pub const MAX_OPERATORS: u32 = 10_000;

/// A certificate of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorRecord {
    /// Its serial number in hexadecimal.
    pub serial: String,
    /// Whose it is.
    pub name: String,
    /// What they may do, in a word of the API.
    pub role: String,
    /// When it was made.
    pub created: Timestamp,
    /// Until when it is valid.
    pub expires: Timestamp,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
}

impl CloudStore {
    /// Records the certificate of an operator; false if there are [`MAX_OPERATORS`] already.
    ///
    /// # Errors
    /// The store's.
    pub async fn put_operator(&self, operator: OperatorRecord) -> Result<bool, CloudError> {
        self.write(ROW_BYTES, move |tx| {
            let count: u32 = tx.conn.query_row(
                "SELECT count(*) FROM operators WHERE revoked IS NULL AND expires > ?1",
                [operator.created.as_second()],
                |row| row.get(0),
            )?;
            if count >= MAX_OPERATORS {
                return Ok(false);
            }
            tx.conn
                .prepare_cached(
                    "INSERT INTO operators (serial, name, role, created, expires, revoked)
                     VALUES (?1, ?2, ?3, ?4, ?5, NULL)",
                )?
                .execute((
                    &operator.serial,
                    &operator.name,
                    &operator.role,
                    operator.created.as_second(),
                    operator.expires.as_second(),
                ))?;
            Ok(true)
        })
        .await
    }

    /// All certificates of operators, newest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn operators(&self) -> Result<Vec<OperatorRecord>, CloudError> {
        self.readers
            .run(|conn| {
                let mut select = conn.prepare_cached(
                    "SELECT serial, name, role, created, expires, revoked FROM operators
                     ORDER BY created DESC, serial",
                )?;
                let rows = select.query_map([], operator)?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
            .await
    }

    /// Revokes the certificate with this serial number, or all of this name. Gives how many that were not revoked before.
    ///
    /// # Errors
    /// The store's.
    pub async fn revoke_operators(&self, which: &str, now: Timestamp) -> Result<usize, CloudError> {
        let which = which.to_owned();
        self.write(ROW_BYTES, move |tx| {
            let sql =
                "UPDATE operators SET revoked = ?2 WHERE (serial = ?1 OR name = ?1) AND revoked IS NULL";
            Ok(tx.conn.prepare_cached(sql)?.execute((&which, now.as_second()))?)
        })
        .await
    }
}

fn operator(row: &Row<'_>) -> rusqlite::Result<OperatorRecord> {
    Ok(OperatorRecord {
        serial: row.get(0)?,
        name: row.get(1)?,
        role: row.get(2)?,
        created: time(row, 3)?,
        expires: time(row, 4)?,
        revoked: optional_time(row, 5)?,
    })
}
