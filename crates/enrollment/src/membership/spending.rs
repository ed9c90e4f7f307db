//! Exchanges uses of a token for certificates: two documents change, one after the other.
//!
//! First the use is counted, by compare-and-swap, so that no other process counts the same one.
//! Then the certificate is recorded; it is issued after that. A crash in between costs a use and
//! admits no node. Last, the token is read again: a revocation since then has revoked only the
//! certificates recorded at that time.

use jiff::Timestamp;

use super::documents::Stored;
use super::member::Member;
use super::records::check_held;
use super::{
    CertificateRecord, EnrollmentRefusal, MembershipStore, Result, TokenRecord, back_off, contended,
};
use edgesync_cloud_store::NodeEffect;
use edgesync_object::NodeName;

/// Attempts to count a use. At most one task per replica counts uses of a token at a time.
const MAX_ATTEMPTS: u32 = 64;

impl MembershipStore {
    /// Counts a use of a token, records the certificate issued for it, and replaces the node's
    /// labels by the token's.
    ///
    /// A token that is not bound to a node is refused for a name that was used before, whatever
    /// happened to its certificates; [`Self::forget_name`] frees it. A revoked node returns this
    /// way: its older certificates stay revoked.
    ///
    /// # Errors
    /// The store fails. The inner result is the refusal.
    pub async fn spend_token(
        &self,
        id: &str,
        certificate: CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), EnrollmentRefusal>> {
        let counted = {
            let _guard = self.lock(id).await;
            self.count_use(id, &certificate.node, now).await?
        };
        match counted {
            Ok(token) => self.record_use(&token, &certificate, now).await,
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    /// Records the certificate for a use that is counted.
    pub async fn record_use(
        &self,
        token: &TokenRecord,
        certificate: &CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), EnrollmentRefusal>> {
        let absent = Member::new(&certificate.node);
        let join = |member: &mut Member| {
            if token.node.is_none() && member.was_used() {
                return Err(EnrollmentRefusal::NameTaken(member.node.clone()));
            }
            check_held(member.held(now))?;
            member.join(certificate, token.labels.clone(), now)
        };
        let effect = NodeEffect::Label(certificate.node.clone());
        let recorded = self.change(&certificate.node, Some(&absent), effect, join).await?;
        if let Some(Err(refusal)) = recorded {
            self.release_use(&token.id).await;
            return Ok(Err(refusal));
        }
        let refusal = match self.read::<TokenRecord>(&token.id).await? {
            Some(Stored { value, .. }) if value.revoked.is_none() => return Ok(Ok(())),
            Some(_) => EnrollmentRefusal::RevokedToken,
            None => EnrollmentRefusal::UnknownToken,
        };
        let revoke = |member: &mut Member| member.revoke_one(&certificate.serial, now);
        self.alter_member(&certificate.node, NodeEffect::None, revoke).await?;
        Ok(Err(refusal))
    }

    /// Locks an id within this process.
    pub(super) async fn lock(&self, id: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let locks = &self.shared.locks;
        let index =
            id.bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        locks[index % locks.len()].lock().await
    }

    /// Counts a use, if the token admits this node.
    pub async fn count_use(
        &self,
        id: &str,
        node: &NodeName,
        now: Timestamp,
    ) -> Result<Result<TokenRecord, EnrollmentRefusal>> {
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            let Some(Stored { value: mut token, revision }) = self.read::<TokenRecord>(id).await? else {
                return Ok(Err(EnrollmentRefusal::UnknownToken));
            };
            let member = self.read_member(node).await?;
            let was_used = token.node.is_none() && self.is_used(&member).await?;
            if let Err(refusal) = token.check(node, was_used, member.held(now)) {
                return Ok(Err(refusal));
            }
            token.used += 1;
            if self.write(&token, revision, NodeEffect::None).await? {
                return Ok(Ok(token));
            }
        }
        Err(contended::<TokenRecord>(id))
    }

    /// Returns a use that led to no certificate.
    async fn release_use(&self, id: &str) {
        let release_use = |token: &mut TokenRecord| token.used = token.used.saturating_sub(1);
        if let Err(error) = self.alter(id, None, NodeEffect::None, release_use).await {
            tracing::warn!(token = id, %error, "release of a token use failed, it stays counted");
        }
    }
}
