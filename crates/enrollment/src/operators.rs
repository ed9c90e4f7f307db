//! Operators: who may use the API. Each certificate is recorded when it is made, with a role; one that is not recorded, or
//! revoked, opens nothing.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use super::authority::Authority;
use super::membership::{MAX_OPERATORS, MembershipStore, OperatorRecord};
use super::{EnrollmentService, after, days, files, now};
use edgesync_api::{Caller, Kubeconfig, Operators, Role};
use edgesync_object::name::check_subdomain;
use edgesync_object::status::{Reason, Result, Status};
use edgesync_store::durable;
use edgesync_transport::tls::{Identity, OPERATOR_PREFIX, OPERATORS, Subject};

/// How long the certificate of an operator may be good.
const LIFETIMES: std::ops::RangeInclusive<Duration> = Duration::from_secs(60)..=days(3653);
/// The operator whose kubeconfig lies on this machine, and how long their certificate is good.
const LOCAL: &str = "local";
const LOCAL_LIFETIME: Duration = days(90);
/// With less than this left it is made anew.
const LOCAL_RENEWAL: Duration = days(30);

/// The certificates that count, by serial number.
pub(super) struct Table {
    callers: RwLock<HashMap<String, Caller>>,
    revoked: watch::Sender<()>,
    refresh_lock: tokio::sync::Mutex<()>,
}

impl Operators for Table {
    fn find(&self, serial: &str) -> Option<Caller> {
        self.callers.read().unwrap_or_else(PoisonError::into_inner).get(serial).cloned()
    }

    fn revoked(&self) -> watch::Receiver<()> {
        self.revoked.subscribe()
    }
}

impl Table {
    pub(super) fn new(records: &[OperatorRecord]) -> Arc<Self> {
        Arc::new(Self {
            callers: RwLock::new(callers(records)),
            revoked: watch::Sender::new(()),
            refresh_lock: tokio::sync::Mutex::default(),
        })
    }

    fn replace(&self, records: &[OperatorRecord]) {
        *self.callers.write().unwrap_or_else(PoisonError::into_inner) = callers(records);
        self.revoked.send_replace(());
    }
}

fn callers(records: &[OperatorRecord]) -> HashMap<String, Caller> {
    let good = records.iter().filter(|record| record.revoked.is_none());
    good.filter_map(|record| {
        let caller = Caller { name: record.name.as_str().into(), role: record.role.parse().ok()? };
        Some((record.serial.clone(), caller))
    })
    .collect()
}

impl EnrollmentService {
    /// Who may use the API, with which certificate.
    pub fn operators(&self) -> Arc<dyn Operators> {
        Arc::clone(&self.shared.operators) as _
    }

    /// What is known of the certificates of operators, newest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn operator_records(&self) -> Result<Vec<OperatorRecord>> {
        self.shared.enrollment.operator_records().await
    }

    /// A certificate for an operator of the API, recorded.
    ///
    /// # Errors
    /// A bad name, role or time; too many; the library's and the store's.
    pub async fn new_operator(&self, name: &str, role: Role, lifetime: Duration) -> Result<Identity> {
        let identity = self.shared.enrollment.new_operator(name, role, lifetime).await?;
        self.read_operators().await?;
        Ok(identity)
    }

    /// Revokes the certificate with this serial number, or all of this name: their connections are cut. Gives how many.
    ///
    /// # Errors
    /// 404 if there is none that could be revoked; the store's.
    pub async fn revoke_operators(&self, which: &str) -> Result<usize> {
        // Goes on when whoever asked has hung up.
        let (service, name) = (self.clone(), which.to_owned());
        let revoking = tokio::spawn(async move {
            let count = service.shared.membership.revoke_operators(&name, now()).await?;
            service.read_operators().await?;
            Ok::<_, Status>(count)
        });
        check_found(which, revoking.await.map_err(Status::internal)??)
    }

    pub(super) async fn read_operators(&self) -> Result<()> {
        // One after the other, so that nothing newer is replaced.
        let _guard = self.shared.operators.refresh_lock.lock().await;
        let records = self.operator_records().await?;
        self.shared.operators.replace(&records);
        Ok(())
    }

    /// Sees to it that the administrators of this machine have a kubeconfig: mode 0600, with a certificate that is good.
    ///
    /// # Errors
    /// The file's, the store's.
    pub async fn write_kubeconfig(&self, path: &Path, server: &str) -> anyhow::Result<()> {
        let what = path.display().to_string();
        let found = files::read_secret(path)?;
        let found = found.and_then(|bytes| Kubeconfig::read(&what, std::str::from_utf8(&bytes).ok()?).ok());
        let authority = vec![self.shared.authority.certificate().clone()];
        let is_good = |kept: &Kubeconfig| {
            let certificate = kept.identity.certificate();
            let role = self.shared.operators.find(certificate.serial()).map(|caller| caller.role);
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
        tracing::info!(file = what, server, %until, "wrote a kubeconfig for the administrators of this machine");
        Ok(())
    }
}

/// A certificate for an operator, recorded.
pub(super) async fn issue(
    authority: &Authority,
    membership: &MembershipStore,
    name: &str,
    role: Role,
    lifetime: Duration,
) -> Result<Identity> {
    check_subdomain(name)
        .map_err(|problem| Status::bad_request(format!("the name of an operator {problem}")))?;
    if !LIFETIMES.contains(&lifetime) {
        return Err(Status::bad_request(
            "the certificate of an operator must be good for 1 minute to 10 years",
        ));
    }
    if role == Role::Local {
        return Err(Status::bad_request("the role of an operator is view, edit or admin"));
    }
    let now = now();
    let identity = sign(authority, name, role, now, lifetime).map_err(Status::internal)?;
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
            format!("there are {MAX_OPERATORS} certificates of operators: revoke some of them first"),
            60,
        ));
    }
    Ok(identity)
}

/// So many certificates were revoked, which must be some.
pub(super) fn check_found(which: &str, revoked: usize) -> Result<usize> {
    if revoked > 0 {
        return Ok(revoked);
    }
    let message = format!(
        "no certificate of an operator has the name or serial number '{which}', or it is revoked already"
    );
    Err(Status::new(Reason::NotFound, message))
}

/// The common name has a colon, so that no broker takes an operator for a node.
fn sign(
    authority: &Authority,
    name: &str,
    role: Role,
    now: Timestamp,
    lifetime: Duration,
) -> anyhow::Result<Identity> {
    let organization = match role {
        Role::Admin => OPERATORS.to_owned(),
        role => format!("edgesync:{role}"),
    };
    let subject = Subject { common_name: format!("{OPERATOR_PREFIX}{name}"), organization };
    authority.client(&subject, now, lifetime)
}
