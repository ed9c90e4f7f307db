//! The signer of a fleet in a Kubernetes cluster: the only process with the keys of CA and tokens.
//!
//! It serves joining and renewal, renews the certificate of the replicas' services, and answers the
//! commands for tokens and operators on its socket. It serves no nodes and places nothing, so it
//! needs no right to objects of others.

use std::sync::Arc;

use anyhow::Context as _;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::enrollment_options;
use super::replica::until_open;
use edgesync_admin::Route;
use edgesync_api::{Access, Address, Extension, ExtensionCall, Limits, Listener, Server, own_uid};
use edgesync_config::host_name;
use edgesync_enrollment::membership::MembershipStore;
use edgesync_enrollment::service::JoinService;
use edgesync_enrollment::{EnrollmentRole, EnrollmentService};
use edgesync_fleet::answers;
use edgesync_fleet::bare::Bare;
use edgesync_fleet::config::Config;
use edgesync_fleet::probes::Probes;
use edgesync_kubernetes::cluster::Cluster;
use edgesync_object::Status;
use edgesync_object::status::{Reason, Result};
use edgesync_runtime::Service;
use edgesync_runtime::connection::proxy_rules;
use edgesync_runtime::systemd::{self, Request, Signals};

/// Runs the signer until it is stopped.
///
/// # Errors
/// `enrollment.listen` is off, the cluster's configuration is unusable, or an address is in use.
pub(super) async fn run(mut service: Service<Config>) -> anyhow::Result<()> {
    let config = service.config().clone();
    let Some(listen) = config.enrollment.listen else {
        anyhow::bail!("enrollment.listen = \"off\": a signer serves nothing but joining and renewal");
    };
    let mut signals = Signals::new().context("install signal handlers")?;
    let probes = Probes::open(config.api.health).await.context("open api.health")?;
    let rules = proxy_rules(&config.link)?;
    let cluster = Cluster::connect(config.kubernetes.kubeconfig.as_deref(), &rules).await?;
    systemd::ready("waiting for the cluster");
    tracing::info!(?cluster, "signer started");
    let attempt = async || try_open(&config, &cluster).await;
    let opening = until_open("no device can join yet", probes.readiness(), attempt);
    let Some(enrollment) = signals.unless_stopped(opening).await else { return Ok(()) };
    let join_service =
        JoinService::bind(listen, enrollment.clone()).await.context("open the join service")?.behind_relays();
    let socket =
        Listener::bind(&Address::Unix(config.api.socket.clone())).await.context("open api.socket")?;
    let access = Access::certificates(enrollment.operators(), own_uid());
    let limits = Limits { body_bytes: config.api.max_body, ..Limits::cloud() };
    let server = Server::new(Bare::new(Vec::new), Admin(enrollment.clone()), access, limits);
    let address = join_service.address();
    let (stop, mut stopped) = watch::channel(());
    let mut tasks = JoinSet::new();
    tasks.spawn(join_service.serve());
    tasks.spawn({
        let enrollment = enrollment.clone();
        async move { enrollment.run(None).await }
    });
    let api = tokio::spawn(async move {
        let stopped = async move {
            let _ = stopped.changed().await;
        };
        server.serve(socket, stopped).await;
    });
    let running = format!("joining on {address}");
    systemd::status(&running);
    tracing::info!(joining = %address, "serving joins and renewals");
    probes.readiness().set(None);
    while signals.next().await == Request::Reload {
        systemd::reloading();
        // The log has the differences, or why nothing has changed.
        let _ = service.reload();
        let settings = &service.config().enrollment;
        enrollment.reconfigure(settings.certificate_lifetime, settings.renewal_grace);
        systemd::ready(&running);
    }
    systemd::stopping("stopping");
    probes.readiness().set(Some("stopping".to_owned()));
    signals
        .during(async {
            drop(stop);
            let _ = api.await;
            tasks.shutdown().await;
        })
        .await;
    tracing::info!("stopped");
    Ok(())
}

async fn try_open(config: &Config, cluster: &Cluster) -> anyhow::Result<EnrollmentService> {
    let version = cluster.version().await?;
    let membership = MembershipStore::of_cluster(Arc::new(cluster.clone()), &config.kubernetes.namespace);
    let options = enrollment_options(config, EnrollmentRole::Signer, &host_name());
    let enrollment = EnrollmentService::open(options, membership).await.context("open the CA")?;
    tracing::info!(version, "cluster connected");
    Ok(enrollment)
}

/// The administrative requests that need the keys, and those about what they have signed.
struct Admin(EnrollmentService);

impl Extension for Admin {
    async fn call(&self, call: ExtensionCall) -> Result<Value> {
        let Self(service) = self;
        let route = Route::parse(&call.method, &call.path).ok_or_else(Status::no_such_path)?;
        if !route.is_enrollment() {
            let cluster = service.enrollment().store().cluster();
            let namespace = cluster.map_or("NAMESPACE", |(_, namespace)| namespace);
            let message = format!(
                "the signer answers for tokens and operators only; hint: run the command in the Pod of a replica, kubectl -n \
                 {namespace} exec deploy/edgesync-cloud -- edgesync-cloud ..., or with the kubeconfig of the cluster, \
                 --kubeconfig FILE"
            );
            return Err(Status::new(Reason::NotFound, message));
        }
        answers::check_change(&call)?;
        answers::enrollment(service, route, &call.body, None).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_api::{Caller, Role};
    use edgesync_cloud_store::{CloudOptions, CloudStore};

    /// A viewer who asked the signer for nodes was refused for the role, which no replica requires.
    #[tokio::test]
    async fn the_signer_names_the_replica_before_the_role() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.enrollment.directory = directory.path().join("pki");
        let store = CloudStore::open(&directory.path().join("cloud.db"), &CloudOptions::default()).unwrap();
        let options = enrollment_options(&config, EnrollmentRole::Whole, "signer");
        let admin = Admin(EnrollmentService::open(options, store.clone()).await.unwrap());
        for (method, path, role, code, words) in [
            ("GET", "nodes", Role::View, 404, "hint: run the command in the Pod of a replica"),
            ("POST", "nodes/a/remove", Role::View, 404, "hint: run the command in the Pod of a replica"),
            ("POST", "operators/ada/revoke", Role::View, 403, "requires role 'admin', have 'view'"),
            ("POST", "operators/ada/revoke", Role::Admin, 404, "ada"),
        ] {
            let (method, path) = (method.to_owned(), path.to_owned());
            let caller = Caller { role, ..Caller::default() };
            let call = ExtensionCall { method, path, query: Vec::new(), body: Value::Null, caller };
            let refused = admin.call(call).await.unwrap_err();
            assert!(refused.code == code && refused.message.contains(words), "{words}: {refused:?}");
        }
        store.close().await;
    }
}
