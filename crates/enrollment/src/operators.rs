//! Operators of the API: issues, records and revokes their certificates.
//!
//! Each certificate is recorded with a role when it is issued. One that is not recorded, or
//! revoked, grants nothing; neither does one whose subject is not that of the recorded name and
//! role. So a writer of records without the CA's key makes no operator.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;

use super::authority::Authority;
use super::membership::{MAX_OPERATORS, MembershipStore, OperatorRecord};
use super::{EnrollmentService, after, days, files, now};
use edgesync_api::{Caller, Kubeconfig, Operators, Role};
use edgesync_object::name::check_subdomain;
use edgesync_object::status::{Reason, Result, Status};
use edgesync_store::durable;
use edgesync_transport::tls::{Certificate, Identity, OPERATOR_PREFIX, OPERATORS, Subject};

/// Lifetime of an operator's certificate.
const LIFETIMES: std::ops::RangeInclusive<Duration> = Duration::from_secs(60)..=days(3653);
/// The operator of this machine's kubeconfig, and the lifetime of its certificate.
const LOCAL: &str = "local";
const LOCAL_LIFETIME: Duration = days(90);
/// Remaining lifetime at which this machine's kubeconfig gets a new certificate.
const LOCAL_RENEWAL: Duration = days(30);

/// The operators with a certificate that is not revoked, by serial number.
pub(super) struct Table {
    operators: RwLock<HashMap<String, Operator>>,
    revoked: watch::Sender<()>,
    refresh_lock: tokio::sync::Mutex<()>,
}

/// A recorded operator, and the subject that its certificate must have.
struct Operator {
    caller: Caller,
    subject: Subject,
}

impl Operators for Table {
    fn find(&self, certificate: &Certificate) -> Option<Caller> {
        let operators = self.operators.read().unwrap_or_else(PoisonError::into_inner);
        let recorded = operators.get(certificate.serial())?;
        (recorded.subject == *certificate.subject()).then(|| recorded.caller.clone())
    }

    fn role(&self, serial: &str, name: &str) -> Option<Role> {
        let operators = self.operators.read().unwrap_or_else(PoisonError::into_inner);
        let caller = &operators.get(serial)?.caller;
        (*caller.name == *name).then_some(caller.role)
    }

    fn revoked(&self) -> watch::Receiver<()> {
        self.revoked.subscribe()
    }
}

impl Table {
    pub(super) fn new(records: &[OperatorRecord]) -> Arc<Self> {
        Arc::new(Self {
            operators: RwLock::new(operators(records)),
            revoked: watch::Sender::new(()),
            refresh_lock: tokio::sync::Mutex::default(),
        })
    }

    fn replace(&self, records: &[OperatorRecord]) {
        *self.operators.write().unwrap_or_else(PoisonError::into_inner) = operators(records);
        self.revoked.send_replace(());
    }
}

fn operators(records: &[OperatorRecord]) -> HashMap<String, Operator> {
    let good = records.iter().filter(|record| record.revoked.is_none());
    good.filter_map(|record| {
        let role = record.role.parse().ok()?;
        let caller = Caller { name: record.name.as_str().into(), role, ..Caller::default() };
        Some((record.serial.clone(), Operator { caller, subject: subject(&record.name, role) }))
    })
    .collect()
}

impl EnrollmentService {
    /// The operators that the API accepts, by certificate.
    pub fn operators(&self) -> Arc<dyn Operators> {
        Arc::clone(&self.shared.operators) as _
    }

    /// Issues and records a certificate for an operator of the API.
    ///
    /// # Errors
    /// Name, role or lifetime is invalid; there are too many operators; signing or the store fails.
    pub async fn new_operator(&self, name: &str, role: Role, lifetime: Duration) -> Result<Identity> {
        let identity = self.shared.enrollment.new_operator(name, role, lifetime).await?;
        self.read_operators().await?;
        Ok(identity)
    }

    /// Revokes the operator certificate with this serial number, or all of this name, and closes
    /// their connections. Returns their number.
    ///
    /// # Errors
    /// 404 if none could be revoked; the store fails.
    pub async fn revoke_operators(&self, which: &str) -> Result<usize> {
        // Completes even if the caller is cancelled.
        let (service, name) = (self.clone(), which.to_owned());
        let revoking = tokio::spawn(async move {
            let count = service.shared.membership.revoke_operators(&name, now()).await?;
            service.read_operators().await?;
            Ok::<_, Status>(count)
        });
        check_revoked_operators(which, revoking.await.map_err(Status::internal)??)
    }

    pub(super) async fn read_operators(&self) -> Result<()> {
        // Serializes refreshes: an older read must not replace a newer one.
        let _guard = self.shared.operators.refresh_lock.lock().await;
        let records = self.shared.enrollment.operator_records().await?;
        self.shared.operators.replace(&records);
        Ok(())
    }

    /// Writes the kubeconfig for administrators of this machine, mode 0600, unless it is valid and
    /// not due for renewal.
    ///
    /// # Errors
    /// The file or the store fails.
    pub async fn write_kubeconfig(&self, path: &Path, server: &str) -> anyhow::Result<()> {
        let what = path.display().to_string();
        let found = files::read_secret(path)?;
        let found = found.and_then(|bytes| Kubeconfig::read(&what, std::str::from_utf8(&bytes).ok()?).ok());
        let authority = vec![self.shared.ca.clone()];
        let is_good = |kept: &Kubeconfig| {
            let certificate = kept.identity.certificate();
            let role = self.shared.operators.find(certificate).map(|caller| caller.role);
            role == Some(Role::Admin) && after(now(), LOCAL_RENEWAL) < certificate.not_after()
        };
        let kept = found.filter(|kept| kept.authority == authority).filter(is_good);
        if kept.as_ref().is_some_and(|kept| kept.server == server) {
            return Ok(());
        }
        let identity = match kept {
            Some(kept) => kept.identity,
            None => self.new_operator(LOCAL, Role::Admin, LOCAL_LIFETIME).await?,
        };
        let until = identity.certificate().not_after();
        let config = Kubeconfig { server: server.to_owned(), authority, user: LOCAL.to_owned(), identity };
        let (path, text) = (path.to_owned(), config.to_yaml()?);
        tokio::task::spawn_blocking(move || durable::write(&path, text.as_bytes(), 0o600)).await??;
        tracing::info!(file = what, server, %until, "admin kubeconfig written");
        Ok(())
    }
}

/// Issues a certificate for an operator and records it.
pub(super) async fn issue(
    authority: &Authority,
    membership: &MembershipStore,
    name: &str,
    role: Role,
    lifetime: Duration,
) -> Result<Identity> {
    check_subdomain(name).map_err(|problem| Status::bad_request(format!("operator name {problem}")))?;
    if !LIFETIMES.contains(&lifetime) {
        return Err(Status::bad_request("lifetime of an operator certificate must be 1 minute to 10 years"));
    }
    if role == Role::Local {
        return Err(Status::bad_request("role of an operator must be view, edit or admin"));
    }
    let now = now();
    let identity = authority.client(&subject(name, role), now, lifetime).map_err(Status::internal)?;
    let certificate = identity.certificate();
    let record = OperatorRecord {
        serial: certificate.serial().to_owned(),
        name: name.to_owned(),
        role: role.to_string(),
        created: now,
        expires: certificate.not_after(),
        revoked: None,
    };
    if !membership.put_operator(record).await? {
        return Err(Status::too_many_requests(
            format!("limit of {MAX_OPERATORS} operator certificates reached: revoke some first"),
            60,
        ));
    }
    Ok(identity)
}

/// Returns the number of revoked certificates.
///
/// # Errors
/// 404 if it is zero.
pub fn check_revoked_operators(which: &str, revoked: usize) -> Result<usize> {
    if revoked > 0 {
        return Ok(revoked);
    }
    let message = format!(
        "no valid operator certificate with the name or serial number '{which}'; hint: 'edgesync-cloud operator list'"
    );
    Err(Status::new(Reason::NotFound, message))
}

/// The subject of an operator's certificate. The common name contains a colon, so that no broker
/// mistakes an operator for a node.
fn subject(name: &str, role: Role) -> Subject {
    let organization = match role {
        Role::Admin => OPERATORS.to_owned(),
        role => format!("edgesync:{role}"),
    };
    Subject { common_name: format!("{OPERATOR_PREFIX}{name}"), organization }
}
