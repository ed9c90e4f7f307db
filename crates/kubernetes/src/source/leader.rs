//! Leader election among the replicas by the Lease `edgesync-cloud`. The leader does the work that
//! must happen once, such as the check for expired nodes ([`super::lease_expiry`]).
//!
//! Expiry is measured by the observer's own clock, from the last change of the Lease; its
//! timestamps are informational. Clocks may therefore differ, but must run at the same rate. A
//! leader gives up leadership ([`LEADER_TIMEOUT`]) before another replica can take over
//! ([`LEASE_DURATION`]), counted from before its renewal request.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::requests::Requests;
use crate::cluster::Failure;
use edgesync_fleet::source::Result;
use edgesync_object::time::rfc3339_micros;
use edgesync_object::{Object, Resource, kinds};

/// The name of the Lease.
const NAME: &str = "edgesync-cloud";
/// Lease duration. An observer notices a renewal up to [`RETRY_INTERVAL`] later, so a failed leader
/// is replaced within 15 seconds.
const LEASE_DURATION: Duration = Duration::from_secs(13);
/// Time after a renewal for which a leader relies on its leadership.
const LEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the leader's renewals, half of [`LEADER_TIMEOUT`].
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// Poll interval of followers, and retry delay after a failed renewal.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Leadership of this replica. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    requests: Requests,
    namespace: Arc<str>,
    replica: Arc<str>,
    lease: Arc<Resource>,
    /// End of the time for which this replica relies on its leadership.
    until: watch::Sender<Option<Instant>>,
}

/// The Lease of another replica, as last observed.
#[derive(Debug)]
struct ObservedLease {
    version: String,
    at: Instant,
    seconds: Duration,
}

impl Leader {
    /// Creates a candidate, inactive before [`Leader::run`]. `replica` must be unique among
    /// replicas.
    pub(super) fn new(requests: Requests, namespace: &str, replica: &str) -> Self {
        let lease = Arc::new(kinds::guess("coordination.k8s.io/v1", "Lease", true));
        let until = watch::channel(None).0;
        Self { requests, namespace: namespace.into(), replica: replica.into(), lease, until }
    }

    /// Returns whether this replica leads now.
    pub(super) fn is_leader(&self) -> bool {
        self.until.borrow().is_some_and(|until| until > Instant::now())
    }

    /// Waits until leadership differs from `was`; returns the new value.
    pub(super) async fn changed(&self, was: bool) -> bool {
        let mut until = self.until.subscribe();
        loop {
            let end = *until.borrow_and_update();
            if self.is_leader() != was {
                return !was;
            }
            tokio::select! {
                // The sender lives as long as `self`.
                _ = until.changed() => {}
                () = tokio::time::sleep_until(end.unwrap_or_else(Instant::now)), if was && end.is_some() => {}
            }
        }
    }

    /// Acquires and renews the Lease until `stop`, then releases it, so that a successor need not
    /// wait.
    pub(super) async fn run(&self, stop: impl Future<Output = ()> + Send) {
        let mut stop = std::pin::pin!(stop);
        let mut observed = None;
        loop {
            let led = self.is_leader();
            let attempt = async {
                let wait = match self.attempt(&mut observed).await {
                    Ok(wait) => wait,
                    Err(error) => {
                        tracing::debug!(%error, "leader election failed");
                        RETRY_INTERVAL
                    }
                };
                if self.is_leader() != led {
                    tracing::info!(leads = !led, "leadership changed");
                }
                tokio::time::sleep(wait).await;
            };
            tokio::select! {
                () = &mut stop => break,
                () = attempt => {}
            }
        }
        if let Err(error) = self.release().await {
            tracing::debug!(%error, "release of the leader Lease failed, it expires");
        }
    }

    /// Makes one attempt. Returns the delay before the next.
    async fn attempt(&self, observed: &mut Option<ObservedLease>) -> Result<Duration, Failure> {
        let now = Instant::now();
        let found = self.requests.get(&self.lease, &self.namespace, NAME).await?;
        let Some(lease) = found else {
            return self.record_write(now, self.requests.create(&self.lease, &self.new_lease()).await);
        };
        let holder = holder(&lease);
        if holder == &*self.replica {
            let lease = self.renewed(lease, false);
            return self.record_write(now, self.requests.replace(&self.lease, &lease).await);
        }
        let end = ObservedLease::observe(observed, &lease).end();
        if holder.is_empty() || end <= Instant::now() {
            let lease = self.renewed(lease, true);
            return self.record_write(now, self.requests.replace(&self.lease, &lease).await);
        }
        self.until.send_replace(None);
        Ok(RETRY_INTERVAL.min(end.saturating_duration_since(Instant::now())))
    }

    /// Handles the result of a write that started at `started`.
    fn record_write(&self, started: Instant, written: Result<Object, Failure>) -> Result<Duration, Failure> {
        match written {
            Ok(_) => {
                self.until.send_replace(Some(started + LEADER_TIMEOUT));
                Ok(RENEW_INTERVAL)
            }
            // Another replica won the compare-and-swap; read its Lease next.
            Err(Failure::Conflict(_)) => Ok(Duration::ZERO),
            Err(failure) => Err(failure),
        }
    }

    async fn release(&self) -> Result<(), Failure> {
        self.until.send_replace(None);
        let found = self.requests.get(&self.lease, &self.namespace, NAME).await?;
        if let Some(mut lease) = found.filter(|lease| holder(lease) == &*self.replica) {
            if let Some(Value::Object(spec)) = lease.fields_mut().get_mut("spec") {
                spec.remove("holderIdentity");
                spec.insert("leaseDurationSeconds".to_owned(), json!(1));
            }
            self.requests.replace(&self.lease, &lease).await?;
        }
        Ok(())
    }

    fn new_lease(&self) -> Object {
        let name = |name: &str| Value::String(name.to_owned());
        let metadata = json!({"name": NAME, "namespace": &*self.namespace});
        let fields = [
            ("apiVersion", name(&self.lease.api_version())),
            ("kind", name(&self.lease.kind)),
            ("metadata", metadata),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value)).into_iter();
        self.renewed(Object::from(fields.collect::<serde_json::Map<_, _>>()), true)
    }

    /// Returns the Lease as held by this replica; after an acquisition or a renewal.
    fn renewed(&self, mut lease: Object, is_acquisition: bool) -> Object {
        let now = rfc3339_micros(Timestamp::now());
        let before = lease.fields().get("spec").cloned().unwrap_or_else(|| json!({}));
        let transitions = before["leaseTransitions"].as_u64();
        let spec = json!({
            "holderIdentity": &*self.replica,
            "leaseDurationSeconds": LEASE_DURATION.as_secs(),
            "acquireTime": if is_acquisition { json!(now) } else { before["acquireTime"].clone() },
            "renewTime": now,
            "leaseTransitions": transitions.map_or(0, |count| count.saturating_add(u64::from(is_acquisition))),
        });
        lease.fields_mut().insert("spec".to_owned(), spec);
        lease
    }
}

impl ObservedLease {
    /// Records a Lease if it has changed.
    fn observe<'s>(observed: &'s mut Option<Self>, lease: &Object) -> &'s Self {
        let seconds = lease.fields().get("spec").and_then(|spec| spec.get("leaseDurationSeconds"));
        let seconds = seconds.and_then(Value::as_u64).map_or(LEASE_DURATION, Duration::from_secs);
        let version = lease.resource_version();
        if observed.as_ref().is_some_and(|observed| observed.version != version) {
            *observed = None;
        }
        observed.get_or_insert_with(|| Self { version: version.to_owned(), at: Instant::now(), seconds })
    }

    fn end(&self) -> Instant {
        self.at + self.seconds
    }
}

fn holder(lease: &Object) -> &str {
    let spec = lease.fields().get("spec");
    spec.and_then(|spec| spec.get("holderIdentity")).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
