//! One of the replicas leads: the one that holds the Lease `edgesync-cloud`. It does what is to be
//! done once, such as telling which nodes have fallen silent ([`super::sweep`]).
//!
//! Whether the Lease of another one has run out is judged by how long it has not changed, by the
//! clock of whoever looks. What it says of times is for people. So clocks may differ as they like;
//! they only have to run equally fast. A leader stops being one in its own eyes ([`SURE`]) before
//! anybody else can take its place ([`LEASE`]), counted from before it asked.

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
/// How long it is good. Whoever waits for it notices a renewal up to [`LOOK`] later, so another one
/// takes over within fifteen seconds from when a leader dies.
const LEASE: Duration = Duration::from_secs(13);
/// How long a leader is sure to be one after a renewal.
const SURE: Duration = Duration::from_secs(10);
/// How often it is renewed.
const RENEW: Duration = Duration::from_secs(5);
/// How often those look who do not lead, and how soon a renewal is tried again that has failed.
const LOOK: Duration = Duration::from_secs(2);

/// Whether this replica leads. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    requests: Requests,
    namespace: Arc<str>,
    replica: Arc<str>,
    lease: Arc<Resource>,
    /// Until when this replica is sure to lead.
    until: watch::Sender<Option<Instant>>,
}

/// The Lease of another one, as it was seen last.
#[derive(Debug)]
struct Seen {
    version: String,
    at: Instant,
    seconds: Duration,
}

impl Leader {
    /// It leads nothing before [`Leader::run`]. No two replicas may have the same id.
    pub(super) fn new(requests: Requests, namespace: &str, replica: &str) -> Self {
        let lease = Arc::new(kinds::guess("coordination.k8s.io/v1", "Lease", true));
        let until = watch::channel(None).0;
        Self { requests, namespace: namespace.into(), replica: replica.into(), lease, until }
    }

    /// Whether this replica leads now.
    pub(super) fn is_leader(&self) -> bool {
        self.until.borrow().is_some_and(|until| until > Instant::now())
    }

    /// Waits until that is another than it was, and tells what it is then.
    pub(super) async fn changed(&self, was: bool) -> bool {
        let mut until = self.until.subscribe();
        loop {
            let end = *until.borrow_and_update();
            if self.is_leader() != was {
                return !was;
            }
            tokio::select! {
                // The sender lives as long as this does.
                _ = until.changed() => {}
                () = tokio::time::sleep_until(end.unwrap_or_else(Instant::now)), if was && end.is_some() => {}
            }
        }
    }

    /// Tries to lead, and goes on leading, until `stop`; then the Lease is given back, so that
    /// another one need not wait.
    pub(super) async fn run(&self, stop: impl Future<Output = ()> + Send) {
        let mut stop = std::pin::pin!(stop);
        let mut seen = None;
        loop {
            let led = self.is_leader();
            let step = async {
                let wait = match self.step(&mut seen).await {
                    Ok(wait) => wait,
                    Err(error) => {
                        tracing::debug!(%error, "the Lease of the leader cannot be had");
                        LOOK
                    }
                };
                if self.is_leader() != led {
                    tracing::info!(leads = !led, "which replica leads has changed");
                }
                tokio::time::sleep(wait).await;
            };
            tokio::select! {
                () = &mut stop => break,
                () = step => {}
            }
        }
        if let Err(error) = self.give_back().await {
            tracing::debug!(%error, "the Lease of the leader is not given back: it runs out");
        }
    }

    /// Looks once, and tells when to look again.
    async fn step(&self, seen: &mut Option<Seen>) -> Result<Duration, Failure> {
        let now = Instant::now();
        let found = self.requests.get(&self.lease, &self.namespace, NAME).await?;
        let Some(lease) = found else {
            return self.hold(now, self.requests.create(&self.lease, &self.new_lease()).await);
        };
        let holder = holder(&lease);
        if holder == &*self.replica {
            let lease = self.renewed(lease, false);
            return self.hold(now, self.requests.replace(&self.lease, &lease).await);
        }
        let end = Seen::see(seen, &lease).end();
        if holder.is_empty() || end <= Instant::now() {
            let lease = self.renewed(lease, true);
            return self.hold(now, self.requests.replace(&self.lease, &lease).await);
        }
        self.until.send_replace(None);
        Ok(LOOK.min(end.saturating_duration_since(Instant::now())))
    }

    /// What follows from a write that was begun at a time.
    fn hold(&self, began: Instant, written: Result<Object, Failure>) -> Result<Duration, Failure> {
        match written {
            Ok(_) => {
                self.until.send_replace(Some(began + SURE));
                Ok(RENEW)
            }
            // Another one was faster: it is looked at next.
            Err(Failure::Conflict(_)) => Ok(Duration::ZERO),
            Err(failure) => Err(failure),
        }
    }

    async fn give_back(&self) -> Result<(), Failure> {
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

    /// A Lease that this replica holds, as it is to be written.
    fn renewed(&self, mut lease: Object, anew: bool) -> Object {
        let now = rfc3339_micros(Timestamp::now());
        let before = lease.fields().get("spec").cloned().unwrap_or_else(|| json!({}));
        let transitions = before["leaseTransitions"].as_u64();
        let spec = json!({
            "holderIdentity": &*self.replica,
            "leaseDurationSeconds": LEASE.as_secs(),
            "acquireTime": if anew { json!(now) } else { before["acquireTime"].clone() },
            "renewTime": now,
            "leaseTransitions": transitions.map_or(0, |count| count.saturating_add(u64::from(anew))),
        });
        lease.fields_mut().insert("spec".to_owned(), spec);
        lease
    }
}

impl Seen {
    /// Notes a Lease, if it has changed.
    fn see<'s>(seen: &'s mut Option<Self>, lease: &Object) -> &'s Self {
        let seconds = lease.fields().get("spec").and_then(|spec| spec.get("leaseDurationSeconds"));
        let seconds = seconds.and_then(Value::as_u64).map_or(LEASE, Duration::from_secs);
        let version = lease.resource_version();
        if seen.as_ref().is_some_and(|seen| seen.version != version) {
            *seen = None;
        }
        seen.get_or_insert_with(|| Self { version: version.to_owned(), at: Instant::now(), seconds })
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
