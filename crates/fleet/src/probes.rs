//! Probes of Kubernetes and Prometheus over plain HTTP (`api.health`). Serves from the very start
//! of the process, and exposes only health and metrics.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio::task::JoinSet;

use super::admin::Admin;
use super::bare::{Bare, Check, Checks, Readiness};
use super::metrics;
use edgesync_api::{Access, Extension, ExtensionCall, Limits, ListenError, Listener, MetricsWriter, Server};
use edgesync_object::Status;
use edgesync_object::status;

/// Components available after the start.
#[derive(Clone, Default)]
struct Started {
    admin: Arc<OnceLock<Admin>>,
    /// Checks of the store.
    checks: Arc<OnceLock<Checks>>,
}

/// HTTP server of the probes; stops on drop.
pub struct Probes {
    readiness: Readiness,
    started: Started,
    _serving: JoinSet<()>,
}

impl Probes {
    /// Starts to serve at this address, if there is one.
    ///
    /// # Errors
    /// The address is unavailable.
    pub async fn open(address: Option<SocketAddr>) -> Result<Self, ListenError> {
        let readiness = Readiness::waits_for("starting");
        let (started, mut serving) = (Started::default(), JoinSet::new());
        if let Some(address) = address {
            let listener = Listener::bind_open(address).await?;
            tracing::info!(address = %listener.address(), "serving health and metrics");
            let (checks, waits) = (Arc::clone(&started.checks), readiness.clone());
            let all = move || {
                let own = checks.get().map(|checks| checks()).unwrap_or_default();
                std::iter::once(waits.check()).chain(own).collect()
            };
            let server = Server::new(Bare::new(all), started.clone(), Access::anonymous(), Limits::edge());
            serving.spawn(async move { server.serve(listener, std::future::pending()).await });
        }
        Ok(Self { readiness, started, _serving: serving })
    }

    /// Returns the readiness that the start updates.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Adds metrics and the checks of the store.
    pub fn started(&self, admin: Admin, checks: impl Fn() -> Vec<Check> + Send + Sync + 'static) {
        // Called once per start.
        let _ = self.started.admin.set(admin);
        let _ = self.started.checks.set(Box::new(checks));
    }
}

impl Extension for Started {
    async fn call(&self, _: ExtensionCall) -> status::Result<serde_json::Value> {
        Err(Status::no_such_path())
    }

    async fn metrics(&self, out: &mut MetricsWriter<'_>) {
        let Some(admin) = self.admin.get() else { return };
        if let Some(numbers) = admin.numbers().await {
            metrics::write(&numbers, out);
        }
    }
}
