//! Tokens, certificates and the nodes that have joined with them.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row};
use serde::{Deserialize, Serialize};

use super::objects::{Tx, find, parse, resource_id};
use super::{CloudError, CloudStore};
use edgesync_object::node_labels::give_labels;
use edgesync_object::{Labels, Resource};
use edgesync_store::StoreError;

/// The most certificates of a node that have neither ended nor been revoked: a node that renews without end does not
/// fill the database.
pub const MAX_CERTIFICATES_PER_NODE: u32 = 64;
/// All of them, as [`token`] reads them.
const TOKENS: &str = "SELECT id, node, created, expires, uses, used, revoked, labels FROM tokens";
/// About what a row takes in the queue and in the transaction.
pub(super) const ROW_BYTES: usize = 512;
/// About what a join takes: with the Node, whose labels change.
const SPENT_BYTES: usize = 4096;

/// A token, without its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRecord {
    /// Its id.
    pub id: String,
    /// The only node that it is for.
    pub node: Option<String>,
    /// When it was made.
    pub created: Timestamp,
    /// Until when it can be used.
    pub expires: Timestamp,
    /// How often it could be used at first.
    pub uses: u32,
    /// How often it has been used.
    pub used: u32,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
    /// What it gives to the Nodes of those that join with it.
    pub labels: Labels,
}

/// A certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateRecord {
    /// Its serial number in hexadecimal.
    pub serial: String,
    /// The node.
    pub node: String,
    /// From when it is valid.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
}

/// Why a certificate is not recorded, and so not given out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairingRefusal {
    /// There is no such token: the database is another one than the token was made with.
    #[error("the token is not known here")]
    UnknownToken,
    /// It was revoked.
    #[error("the token was revoked")]
    RevokedToken,
    /// It has been used as often as it may.
    #[error("the token has been used already, as often as it may")]
    UsedUp,
    /// It is for another node.
    #[error("the token is for node '{0}' only")]
    OtherNode(String),
    /// The name has been used before, and the token is not bound to it.
    #[error("the name '{0}' is taken")]
    NameTaken(String),
    /// The certificate that was shown is revoked, or not known.
    #[error("the certificate is revoked")]
    Revoked,
    /// The node has [`MAX_CERTIFICATES_PER_NODE`] certificates already.
    #[error("the node has {MAX_CERTIFICATES_PER_NODE} certificates that have not ended")]
    TooMany,
}

/// Who shows a token, and what is known of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant<'a> {
    /// The name.
    pub node: &'a str,
    /// Whether anybody has joined under it, reported in it, or was removed.
    pub was_used: bool,
    /// How many certificates it has that have neither ended nor been revoked.
    pub held: u32,
}

/// What is revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    /// Serial numbers of certificates, and when each was revoked.
    pub serials: Vec<(String, Timestamp)>,
    /// Nodes that have certificates, all of them revoked.
    pub nodes: Vec<String>,
    /// Nodes with revoked certificates of which nobody has said that an external broker refuses them.
    pub doubtful: Vec<String>,
}

/// A name that somebody has joined under, and that is not removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// The name.
    pub node: String,
    /// When the last of its certificates that are not revoked ends.
    pub ends: Option<Timestamp>,
    /// Whether it has certificates, all of them revoked.
    pub is_revoked: bool,
}

/// All of them, as [`member`] reads them.
const MEMBERS: &str =
    "SELECT name, max(CASE WHEN revoked IS NULL THEN not_after END), count(serial), count(revoked)
     FROM members LEFT JOIN certificates ON node = name
     WHERE name NOT IN (SELECT name FROM removed_nodes)";

impl CloudStore {
    /// The names that somebody has joined under and that are not removed, in their order.
    ///
    /// # Errors
    /// The store's.
    pub async fn members(&self) -> Result<Vec<MemberRecord>, CloudError> {
        self.readers
            .run(|conn| {
                let mut select = conn.prepare_cached(&format!("{MEMBERS} GROUP BY name ORDER BY name"))?;
                Ok(select.query_map([], member)?.collect::<Result<_, _>>()?)
            })
            .await
    }

    /// The same of one name.
    ///
    /// # Errors
    /// The store's.
    pub async fn member(&self, node: &str) -> Result<Option<MemberRecord>, CloudError> {
        let node = node.to_owned();
        self.readers
            .run(move |conn| {
                let mut select = conn.prepare_cached(&format!("{MEMBERS} AND name = ?1 GROUP BY name"))?;
                Ok(select.query_row([&node], member).optional()?)
            })
            .await
    }

    /// Records a token.
    ///
    /// # Errors
    /// The store's.
    pub async fn put_token(&self, token: TokenRecord) -> Result<(), CloudError> {
        self.write(ROW_BYTES, move |tx| {
            let mut insert = tx.conn.prepare_cached(
                "INSERT INTO tokens (id, node, created, expires, uses, used, revoked, labels)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?;
            insert.execute((
                &token.id,
                &token.node,
                token.created.as_second(),
                token.expires.as_second(),
                token.uses,
                token.used,
                token.revoked.map(Timestamp::as_second),
                write_labels(&token.labels)?,
            ))?;
            Ok(())
        })
        .await
    }

    /// All tokens, newest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>, CloudError> {
        self.readers
            .run(|conn| {
                let mut select = conn.prepare_cached(&format!("{TOKENS} ORDER BY created DESC, id"))?;
                let rows = select.query_map([], token)?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
            .await
    }

    /// Revokes a token; none if there is no such token, and else whether it was of use before.
    ///
    /// # Errors
    /// The store's.
    pub async fn revoke_token(&self, id: &str, now: Timestamp) -> Result<Option<bool>, CloudError> {
        let id = id.to_owned();
        self.write(ROW_BYTES, move |tx| {
            let Some(token) = find_token(tx.conn, &id)? else { return Ok(None) };
            tx.conn
                .prepare_cached("UPDATE tokens SET revoked = ?2 WHERE id = ?1 AND revoked IS NULL")?
                .execute((&id, now.as_second()))?;
            Ok(Some(token.is_of_use(now)))
        })
        .await
    }

    /// Counts a use of a token, records the certificate that it led to, and gives the labels of the token to the node, in the
    /// place of those of the token before, in one transaction. A token that is not bound to a node gives no certificate
    /// for a name that was used before, whatever has become of its certificates ([`CloudStore::forget_name`] frees it).
    /// A node that was revoked comes back by this: its older certificates stay revoked.
    ///
    /// # Errors
    /// The store's; inside, why not.
    pub async fn spend_token(
        &self,
        id: &str,
        certificate: CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), PairingRefusal>, CloudError> {
        let (id, nodes) = (id.to_owned(), self.shared.kind("nodes")?);
        self.write(SPENT_BYTES, move |tx| {
            let token = match tx.check_token(&id, &certificate.node, now)? {
                Ok(token) => token,
                Err(refusal) => return Ok(Err(refusal)),
            };
            tx.conn.prepare_cached("UPDATE tokens SET used = used + 1 WHERE id = ?1")?.execute([&id])?;
            tx.put_certificate(&certificate)?;
            tx.put_member(&nodes, &certificate.node, &token.labels)?;
            Ok(Ok(()))
        })
        .await
    }

    /// Records the certificate of a renewal. The one that was shown must be known, of the same node and not revoked.
    ///
    /// # Errors
    /// The store's; inside, why not.
    pub async fn renew_certificate(
        &self,
        shown: &str,
        certificate: CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), PairingRefusal>, CloudError> {
        let shown = shown.to_owned();
        self.write(ROW_BYTES, move |tx| {
            let good: Option<i64> = tx
                .conn
                .prepare_cached(
                    "SELECT 1 FROM certificates WHERE serial = ?1 AND node = ?2 AND revoked IS NULL",
                )?
                .query_row((&shown, &certificate.node), |row| row.get(0))
                .optional()?;
            if good.is_none() {
                return Ok(Err(PairingRefusal::Revoked));
            }
            if let Err(refusal) = check_held(tx.held(&certificate.node, now)?) {
                return Ok(Err(refusal));
            }
            tx.put_certificate(&certificate)?;
            Ok(Ok(()))
        })
        .await
    }

    /// The labels of the token that a node joined with last; none if its name was never used, or is forgotten.
    ///
    /// # Errors
    /// The store's.
    pub async fn member_labels(&self, node: &str) -> Result<Option<Labels>, CloudError> {
        let node = node.to_owned();
        self.readers.run(move |conn| member_labels(conn, &node)).await
    }

    /// Revokes all certificates of a node and all tokens that are bound to it. Gives the number of certificates.
    ///
    /// # Errors
    /// The store's.
    pub async fn revoke_certificates(&self, node: &str, now: Timestamp) -> Result<usize, CloudError> {
        let node = node.to_owned();
        self.write(ROW_BYTES, move |tx| Ok(tx.revoke(&node, now)?)).await
    }

    /// Forgets that a name was used, and with it the labels of its token: any device may join under it again. What is
    /// still good of it is revoked. Tells whether it was used.
    ///
    /// # Errors
    /// The store's.
    pub async fn forget_name(&self, node: &str, now: Timestamp) -> Result<bool, CloudError> {
        let node = node.to_owned();
        self.write(ROW_BYTES, move |tx| {
            tx.revoke(&node, now)?;
            let mut forget = tx.conn.prepare_cached("DELETE FROM members WHERE name = ?1")?;
            Ok(forget.execute([&node])? > 0)
        })
        .await
    }

    /// Whether a name was ever used, or a token was made for it.
    ///
    /// # Errors
    /// The store's.
    pub async fn knows_name(&self, node: &str) -> Result<bool, CloudError> {
        let node = node.to_owned();
        self.readers
            .run(move |conn| {
                let mut token = conn.prepare_cached("SELECT 1 FROM tokens WHERE node = ?1")?;
                Ok(was_used(conn, &node)? || token.exists([&node])?)
            })
            .await
    }

    /// Notes that an external broker refuses all certificates of a node that are revoked so far. Gives their number.
    ///
    /// # Errors
    /// The store's.
    pub async fn note_refused(&self, node: &str, now: Timestamp) -> Result<usize, CloudError> {
        let node = node.to_owned();
        self.write(ROW_BYTES, move |tx| {
            let mut note = tx.conn.prepare_cached(
                "UPDATE certificates SET refused = ?2 WHERE node = ?1 AND revoked IS NOT NULL AND refused IS NULL",
            )?;
            Ok(note.execute((&node, now.as_second()))?)
        })
        .await
    }

    /// What is revoked.
    ///
    /// # Errors
    /// The store's.
    pub async fn revocations(&self) -> Result<Revocations, CloudError> {
        self.readers
            .run(|conn| {
                let mut serials = conn.prepare_cached(
                    "SELECT serial, revoked FROM certificates WHERE revoked IS NOT NULL ORDER BY serial",
                )?;
                let serials = serials.query_map([], |row| Ok((row.get(0)?, time(row, 1)?)))?;
                let serials = serials.collect::<Result<_, _>>()?;
                let mut nodes = conn.prepare_cached(
                    "SELECT DISTINCT node FROM certificates AS one WHERE revoked IS NOT NULL AND NOT EXISTS (
                       SELECT 1 FROM certificates AS other WHERE other.node = one.node AND other.revoked IS NULL
                     )",
                )?;
                let nodes = nodes.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
                let mut doubtful = conn.prepare_cached(
                    "SELECT DISTINCT node FROM certificates WHERE revoked IS NOT NULL AND refused IS NULL",
                )?;
                let doubtful = doubtful.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
                Ok(Revocations { serials, nodes, doubtful })
            })
            .await
    }

    /// Forgets tokens and certificates (also revoked ones) that ended before this time: nobody can use them.
    ///
    /// # Errors
    /// The store's.
    pub async fn prune_pairing(&self, before: Timestamp) -> Result<usize, CloudError> {
        let before = before.as_second();
        self.write(ROW_BYTES, move |tx| {
            let tokens = tx.conn.execute("DELETE FROM tokens WHERE expires < ?1", [before])?;
            let certificates = tx.conn.execute("DELETE FROM certificates WHERE not_after < ?1", [before])?;
            let operators = tx.conn.execute("DELETE FROM operators WHERE expires < ?1", [before])?;
            Ok(tokens + certificates + operators)
        })
        .await
    }
}

impl TokenRecord {
    /// Whether somebody can join with it.
    #[must_use]
    pub fn is_of_use(&self, now: Timestamp) -> bool {
        self.revoked.is_none() && self.used < self.uses && now < self.expires
    }

    /// Whether it gives a certificate to somebody. When it ends is in its signature.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, claimant: &Claimant<'_>) -> Result<(), PairingRefusal> {
        let Claimant { node, was_used, held } = *claimant;
        match &self.node {
            _ if self.revoked.is_some() => Err(PairingRefusal::RevokedToken),
            Some(only) if only != node => Err(PairingRefusal::OtherNode(only.clone())),
            _ if self.used >= self.uses => Err(PairingRefusal::UsedUp),
            None if was_used => Err(PairingRefusal::NameTaken(node.to_owned())),
            _ => check_held(held),
        }
    }
}

impl Tx<'_> {
    /// The token, if it is good for a certificate of this node.
    fn check_token(
        &self,
        id: &str,
        node: &str,
        now: Timestamp,
    ) -> Result<Result<TokenRecord, PairingRefusal>, CloudError> {
        let Some(token) = find_token(self.conn, id)? else { return Ok(Err(PairingRefusal::UnknownToken)) };
        let claimant = Claimant { node, was_used: was_used(self.conn, node)?, held: self.held(node, now)? };
        Ok(token.check(&claimant).map(|()| token))
    }

    /// A node has joined: the labels of its token go to its Node, now or when there is one.
    fn put_member(&mut self, nodes: &Arc<Resource>, node: &str, labels: &Labels) -> Result<(), CloudError> {
        let before = self.member_labels(node)?.unwrap_or_default();
        self.conn
            .prepare_cached(
                "INSERT INTO members (name, labels) VALUES (?1, ?2)
                 ON CONFLICT (name) DO UPDATE SET labels = excluded.labels",
            )?
            .execute((node, write_labels(labels)?))?;
        let Some(kind) = resource_id(self.conn, &nodes.group, &nodes.kind)? else { return Ok(()) };
        let Some(row) = find(self.conn, kind, "", node)? else { return Ok(()) };
        let mut object = parse(&row.stored)?;
        give_labels(&mut object, &before, labels);
        if row.stored.body != object.to_json() {
            self.change(nodes, row, object)?;
        }
        Ok(())
    }

    /// The labels of the token that a node joined with last; none if it has never joined.
    pub(super) fn member_labels(&self, node: &str) -> Result<Option<Labels>, CloudError> {
        member_labels(self.conn, node)
    }

    fn revoke(&self, node: &str, now: Timestamp) -> rusqlite::Result<usize> {
        let revoke = |table: &str| {
            let sql = format!("UPDATE {table} SET revoked = ?2 WHERE node = ?1 AND revoked IS NULL");
            self.conn.prepare_cached(&sql)?.execute((node, now.as_second()))
        };
        revoke("tokens")?;
        revoke("certificates")
    }

    /// How many certificates of a node are not revoked and end after a time.
    fn held(&self, node: &str, since: Timestamp) -> Result<u32, CloudError> {
        let mut count = self.conn.prepare_cached(
            "SELECT count(*) FROM certificates WHERE node = ?1 AND revoked IS NULL AND not_after > ?2",
        )?;
        Ok(count.query_row((node, since.as_second()), |row| row.get(0))?)
    }

    fn put_certificate(&self, certificate: &CertificateRecord) -> Result<(), CloudError> {
        let mut insert = self.conn.prepare_cached(
            "INSERT INTO certificates (serial, node, not_before, not_after, revoked) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        insert.execute((
            &certificate.serial,
            &certificate.node,
            certificate.not_before.as_second(),
            certificate.not_after.as_second(),
            certificate.revoked.map(Timestamp::as_second),
        ))?;
        Ok(())
    }
}

/// Whether a node may have one more certificate that is good, beside so many.
///
/// # Errors
/// [`PairingRefusal::TooMany`].
pub fn check_held(held: u32) -> Result<(), PairingRefusal> {
    if held < MAX_CERTIFICATES_PER_NODE { Ok(()) } else { Err(PairingRefusal::TooMany) }
}

fn member_labels(conn: &Connection, node: &str) -> Result<Option<Labels>, CloudError> {
    let mut select = conn.prepare_cached("SELECT labels FROM members WHERE name = ?1")?;
    Ok(select.query_row([node], |row| read_labels(row, 0)).optional()?)
}

/// Whether anybody has joined under a name, reported in it, or was removed.
fn was_used(conn: &Connection, node: &str) -> rusqlite::Result<bool> {
    let mut known = conn.prepare_cached(
        "SELECT 1 FROM members WHERE name = ?1
         UNION ALL SELECT 1 FROM nodes WHERE name = ?1
         UNION ALL SELECT 1 FROM removed_nodes WHERE name = ?1",
    )?;
    known.exists([node])
}

fn find_token(conn: &Connection, id: &str) -> rusqlite::Result<Option<TokenRecord>> {
    conn.prepare_cached(&format!("{TOKENS} WHERE id = ?1"))?.query_row([id], token).optional()
}

fn token(row: &Row<'_>) -> rusqlite::Result<TokenRecord> {
    Ok(TokenRecord {
        id: row.get(0)?,
        node: row.get(1)?,
        created: time(row, 2)?,
        expires: time(row, 3)?,
        uses: row.get(4)?,
        used: row.get(5)?,
        revoked: optional_time(row, 6)?,
        labels: read_labels(row, 7)?,
    })
}

fn member(row: &Row<'_>) -> rusqlite::Result<MemberRecord> {
    let (all, revoked): (u32, u32) = (row.get(2)?, row.get(3)?);
    Ok(MemberRecord {
        node: row.get(0)?,
        ends: optional_time(row, 1)?,
        is_revoked: all > 0 && all == revoked,
    })
}

fn write_labels(labels: &Labels) -> Result<String, StoreError> {
    serde_json::to_string(labels).map_err(|error| StoreError::internal(error.to_string()))
}

fn read_labels(row: &Row<'_>, column: usize) -> rusqlite::Result<Labels> {
    let text = row.get_ref(column)?.as_str()?;
    serde_json::from_str(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into()))
}

pub(super) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    Ok(optional_time(row, column)?.unwrap_or(Timestamp::UNIX_EPOCH))
}

pub(super) fn optional_time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    let Some(seconds) = row.get::<_, Option<i64>>(column)? else { return Ok(None) };
    let out_of_range = |_| rusqlite::Error::IntegralValueOutOfRange(column, seconds);
    Timestamp::from_second(seconds).map(Some).map_err(out_of_range)
}
