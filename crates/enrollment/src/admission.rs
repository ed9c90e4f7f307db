//! Issues tokens, exchanges them for certificates, and renews certificates.

use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;

use super::authority::{Authority, Request};
use super::tokens::{TokenClaims, TokenRefusal};
use super::{Enrollment, EnrollmentService, NewToken, after, days, now};
use crate::membership::{CertificateRecord, EnrollmentRefusal, TokenRecord};
use edgesync_object::encoding::hex;
use edgesync_object::name::{check_label_key, check_label_value};
use edgesync_object::status::{Reason, Result, Status};
use edgesync_object::time::duration;
use edgesync_object::{Labels, NodeName};
use edgesync_store::random;
use edgesync_transport::tls;

/// Time to live of a token.
const TTL: RangeInclusive<Duration> = Duration::from_secs(60)..=days(3653);
/// Number of uses of a token.
const USES: RangeInclusive<u32> = 1..=1_000_000;
/// Maximum number of labels of a token.
const MAX_LABELS: usize = 32;

impl Enrollment {
    /// Creates a token for `uses` joins. `labels` are set on the Nodes that join with it.
    ///
    /// # Errors
    /// A label is invalid, there are too many, time to live or number of uses is out of range,
    /// this process has no keys, or the store fails.
    pub async fn create_token(
        &self,
        node: Option<&NodeName>,
        ttl: Duration,
        uses: u32,
        labels: Labels,
    ) -> Result<NewToken> {
        check_labels(&labels)?;
        if !TTL.contains(&ttl) {
            let ttl = duration(i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX));
            return Err(Status::bad_request(format!("ttl {ttl}: must be 1 minute to 10 years")));
        }
        if !USES.contains(&uses) {
            return Err(Status::bad_request("uses of a token must be 1 to 1,000,000"));
        }
        let keys = self.keys()?;
        let id = hex(&random::bytes::<8>().map_err(Status::internal)?);
        let created = now();
        let record = TokenRecord {
            id: id.clone(),
            node: node.cloned(),
            created,
            expires: after(created, ttl),
            uses,
            used: 0,
            revoked: None,
            labels,
        };
        self.membership.put_token(record.clone()).await?;
        let claims = TokenClaims { id, node: record.node.clone(), expires: record.expires };
        let fingerprint = self.ca.fingerprint();
        Ok(NewToken { token: format!("{fingerprint}.{}", keys.tokens.sign(&claims)), record })
    }

    /// Returns the usable tokens and those that ended within the last week.
    ///
    /// # Errors
    /// The store fails.
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        Ok(self.membership.listed_tokens(now()).await?)
    }

    /// Revokes a token. Returns whether it was usable before.
    ///
    /// # Errors
    /// 404 if there is no such token; the store fails.
    pub async fn revoke_token(&self, id: &str) -> Result<bool> {
        check_revoked_token(id, self.membership.revoke_token(id, now()).await?)
    }
}

/// Checks the result of
/// [`MembershipStore::revoke_token`](crate::membership::MembershipStore::revoke_token). Returns
/// whether the token was usable before.
///
/// # Errors
/// 404 if there is no such token.
pub fn check_revoked_token(id: &str, was_usable: Option<bool>) -> Result<bool> {
    was_usable.ok_or_else(|| {
        let message = format!("token '{id}' not found; hint: 'edgesync-cloud token list'");
        Status::new(Reason::NotFound, message)
    })
}

impl EnrollmentService {
    /// Issues a certificate for a node that presents a token. The request's subject must name the
    /// node.
    ///
    /// # Errors
    /// The message says what to do. 401 for a token that is unknown, expired, used up or revoked;
    /// 403 for a token or a request of another node; 409 for a name that was used before; 422 for a
    /// request that cannot be parsed; 429 for a node with too many certificates.
    pub async fn join(&self, bearer: &str, node: &NodeName, request: &[u8]) -> Result<tls::Certificate> {
        let now = now();
        let refused = |refusal: TokenRefusal| Status::new(Reason::Unauthorized, refusal.to_string());
        let claims = self.shared.keys()?.tokens.verify(bearer, now).map_err(refused)?;
        let request = read_request(node, request)?;
        if let Some(only) = claims.node.filter(|only| only != node) {
            return Err(refusal(&EnrollmentRefusal::OtherNode(only), node));
        }
        let (certificate, _) = self.sign(&request, node, now)?;
        let spent = self.shared.membership.spend_token(&claims.id, record(&certificate, node), now).await?;
        spent.map_err(|why| refusal(&why, node))?;
        let name = node.as_str();
        tracing::info!(node = name, serial = certificate.serial(), token = claims.id, "node joined");
        if self.is_revoked(node) {
            // The certificate is recorded: the node gets it even if the file for brokers cannot be
            // written.
            if let Err(error) = self.publish().await {
                tracing::error!(node = name, "{error:#}");
            }
            if self.is_revoked(node) {
                tracing::warn!(
                    node = name,
                    "messages of the node are ignored: the broker may still accept its revoked certificate; hint: give the \
                     broker the revocation list, then run 'edgesync-cloud node admit {node} --broker-updated'"
                );
            }
        }
        Ok(certificate)
    }

    /// Issues a new certificate for a node that presents a valid or expired one, which TLS has
    /// verified.
    ///
    /// # Errors
    /// 403 if the presented one is another node's, revoked, or expired for longer than the grace;
    /// 422 and 429 as for [`Self::join`].
    pub async fn renew(
        &self,
        presented: &tls::Certificate,
        node: &NodeName,
        request: &[u8],
    ) -> Result<tls::Certificate> {
        let now = now();
        if presented.node() != Some(node.as_str()) {
            return Err(forbidden(format!(
                "renew certificate of '{node}': the presented certificate is of another node; hint: join as '{node}' with a token from 'edgesync-cloud token create'"
            )));
        }
        let request = read_request(node, request)?;
        let (certificate, grace) = self.sign(&request, node, now)?;
        if after(presented.not_after(), grace) < now {
            return Err(forbidden(format!(
                "certificate expired {} and is past its renewal grace: join again with a new token",
                presented.not_after()
            )));
        }
        let renewed = self
            .shared
            .membership
            .renew_certificate(presented.serial(), record(&certificate, node), now)
            .await?;
        renewed.map_err(|why| refusal(&why, node))?;
        tracing::info!(node = node.as_str(), serial = certificate.serial(), until = %certificate.not_after(), "node certificate renewed");
        Ok(certificate)
    }

    /// Signs a request. Returns the renewal grace of the same moment too.
    fn sign(
        &self,
        request: &Request,
        node: &NodeName,
        now: Timestamp,
    ) -> Result<(tls::Certificate, Duration)> {
        let (lifetime, grace) = {
            let state = self.state();
            (state.lifetime, state.grace)
        };
        let signed = self.shared.keys()?.authority.sign(request, node, now, lifetime);
        Ok((signed.map_err(|error| Status::internal(format!("{error:#}")))?, grace))
    }
}

/// Parses the name of a node in a request.
///
/// # Errors
/// 422 if it is invalid, with the requirement.
pub fn parse_node(name: &str) -> Result<NodeName> {
    NodeName::parse(name).map_err(|problem| Status::new(Reason::Invalid, format!("node name {problem}")))
}

fn check_labels(labels: &Labels) -> Result<()> {
    let invalid = |message| Status::new(Reason::Invalid, message);
    if labels.len() > MAX_LABELS {
        return Err(invalid(format!("a token has at most {MAX_LABELS} labels")));
    }
    for (key, value) in labels {
        check_label_key(key).map_err(|problem| invalid(format!("label key '{key}' {problem}")))?;
        check_label_value(value).map_err(|problem| invalid(format!("value of label '{key}' {problem}")))?;
    }
    Ok(())
}

/// Parses a request and checks that it names the node.
fn read_request(node: &NodeName, request: &[u8]) -> Result<Request> {
    let (subject, request) = Authority::read_request(request)
        .map_err(|problem| Status::new(Reason::Invalid, format!("certificate request refused: {problem}")))?;
    if subject.requested_node() != Some(node.as_str()) {
        return Err(forbidden(format!(
            "certificate request is not for node '{node}': its subject must have O=system:nodes and \
             CN=system:node:{node}"
        )));
    }
    Ok(request)
}

fn forbidden(message: String) -> Status {
    Status::new(Reason::Forbidden, message)
}

/// Converts a refusal to a status that says what to do.
fn refusal(why: &EnrollmentRefusal, node: &NodeName) -> Status {
    let create = "create a new one with 'edgesync-cloud token create'";
    let (reason, message) = match why {
        EnrollmentRefusal::UnknownToken | EnrollmentRefusal::RevokedToken | EnrollmentRefusal::UsedUp => {
            (Reason::Unauthorized, format!("{why}; hint: {create}"))
        }
        EnrollmentRefusal::OtherNode(_) => (
            Reason::Forbidden,
            format!(
                "{why}; hint: join under that name, or create a token for this one with 'edgesync-cloud token create --node {node}'"
            ),
        ),
        EnrollmentRefusal::NameTaken(_) => (
            Reason::AlreadyExists,
            format!(
                "{why} or used before; hint: to replace that device, create a token with 'edgesync-cloud token create --node \
                 {node}'; to free the name for any token, 'edgesync-cloud node forget {node}'; else join under another name"
            ),
        ),
        EnrollmentRefusal::Revoked => {
            (Reason::Forbidden, format!("{why} or unknown: join again with a new token"))
        }
        EnrollmentRefusal::TooMany => (Reason::TooManyRequests, format!("{why}: it renews too often")),
    };
    Status::new(reason, message)
}

fn record(certificate: &tls::Certificate, node: &NodeName) -> CertificateRecord {
    CertificateRecord {
        serial: certificate.serial().to_owned(),
        node: node.clone(),
        not_before: certificate.not_before(),
        not_after: certificate.not_after(),
    }
}
