//! A token is spent in a cluster: two objects change, one after the other.
//!
//! First the use is counted, by compare-and-swap: no other replica can count the same one. Then the certificate is recorded,
//! and given out after that. Whoever fails in between has used the token up and let nobody in. At the end the token is looked
//! at once more, because it may have been revoked, and with it all certificates that there were at that time.

use jiff::Timestamp;

use super::Result;
use super::cluster::{ClusterRegister, pause};
use super::objects;
use edgesync_cloud_store::pairing::{CertificateRecord, Claimant, PairingRefusal, TokenRecord, check_held};

/// How often it is tried to count a use. Others who are faster use the token up, or are as many as there are replicas.
const TRIES: u32 = 64;

impl ClusterRegister {
    pub async fn spend_token(
        &self,
        id: &str,
        certificate: CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), PairingRefusal>> {
        let counted = {
            let _turn = self.turn(id).await;
            self.count_use(id, &certificate.node, now).await?
        };
        match counted {
            Ok(token) => self.record_use(&token, &certificate, now).await,
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    /// Records the certificate that a use has led to, once the use is counted.
    pub async fn record_use(
        &self,
        token: &TokenRecord,
        certificate: &CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), PairingRefusal>> {
        let recorded = self.change_member(&certificate.node, |member| {
            if token.node.is_none() && member.was_used() {
                return Err(PairingRefusal::NameTaken(member.node.clone()));
            }
            check_held(member.held(now))?;
            member.join(certificate, token.labels.clone(), now)
        });
        if let Err(refusal) = recorded.await? {
            self.give_back(&token.id).await;
            return Ok(Err(refusal));
        }
        let refusal = match self.read_token(&token.id).await? {
            Some((_, token)) if token.revoked.is_none() => return Ok(Ok(())),
            Some(_) => PairingRefusal::RevokedToken,
            None => PairingRefusal::UnknownToken,
        };
        self.alter_member(&certificate.node, |member| member.revoke_one(&certificate.serial, now)).await?;
        Ok(Err(refusal))
    }

    /// Waits until nobody else spends the token here.
    async fn turn(&self, id: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let turns = &self.shared.turns;
        let turn =
            id.bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        turns[turn % turns.len()].lock().await
    }

    /// Counts a use, if the token is good for this node.
    pub async fn count_use(
        &self,
        id: &str,
        node: &str,
        now: Timestamp,
    ) -> Result<Result<TokenRecord, PairingRefusal>> {
        for attempt in 0..TRIES {
            pause(attempt).await;
            let Some((object, mut token)) = self.read_token(id).await? else {
                return Ok(Err(PairingRefusal::UnknownToken));
            };
            let (_, member) = self.read_member(node).await?;
            let was_used = token.node.is_none() && self.is_used(&member).await?;
            if let Err(refusal) = token.check(&Claimant { node, was_used, held: member.held(now) }) {
                return Ok(Err(refusal));
            }
            token.used += 1;
            if self.write_token(object, &token).await? {
                return Ok(Ok(token));
            }
        }
        Err(self.contended(&self.shared.secrets, &objects::token_name(id)))
    }

    /// A use that came to nothing is none.
    async fn give_back(&self, id: &str) {
        let given = self.change_token(id, |token| token.used = token.used.saturating_sub(1)).await;
        if let Err(error) = given {
            tracing::warn!(token = id, %error, "a use of a token that came to nothing is counted nevertheless");
        }
    }
}
