//! Watch of one kind in one namespace, with a short retry interval.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt as _};
use kube::Client;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event, ListSemantic, watcher};
use tokio::time::{Instant, sleep_until};

use edgesync_enrollment::object_store::WatchEvent;

use super::access::Cluster;
use super::plan::Namespaces;
use super::watch_run::{Failure, PAGE, WATCH_SECONDS, api, failure, needs_relist};
use edgesync_object::{Object, Resource};

/// Retry interval after a failure. Constant, because the consumer needs changes soon.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// A watch of objects of one kind with a label selector in one namespace.
pub struct KindWatch {
    client: Client,
    resource: Arc<Resource>,
    namespaces: Namespaces,
    config: watcher::Config,
    events: Events,
    /// Time of the next retry.
    retry_at: Option<Instant>,
}

type Events = Pin<Box<dyn Stream<Item = watcher::Result<Event<DynamicObject>>> + Send>>;

impl fmt::Debug for KindWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KindWatch").field("resource", &self.resource).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Watches the objects of a kind in a namespace that match a label selector. Sends no request
    /// before [`KindWatch::next`].
    #[must_use]
    pub fn follow(&self, resource: &Resource, namespace: &str, selector: &str) -> KindWatch {
        let config = watcher::Config {
            label_selector: Some(selector.to_owned()),
            timeout: Some(WATCH_SECONDS),
            page_size: Some(PAGE),
            list_semantic: ListSemantic::MostRecent,
            ..watcher::Config::default()
        };
        let (client, resource) = ((*self.watch_client).clone(), Arc::new(resource.clone()));
        let namespaces = Namespaces::One(namespace.into());
        let events = start(&client, &resource, &namespaces, &config);
        KindWatch { client, resource, namespaces, config, events, retry_at: None }
    }
}

fn start(client: &Client, resource: &Resource, namespaces: &Namespaces, config: &watcher::Config) -> Events {
    Box::pin(watcher(api(client.clone(), resource, namespaces), config.clone()))
}

impl KindWatch {
    /// Waits for the next event. Cancel-safe.
    pub async fn next(&mut self) -> WatchEvent {
        loop {
            if let Some(until) = self.retry_at {
                sleep_until(until).await;
                self.retry_at = None;
            }
            let event = self.events.next().await;
            if event.as_ref().is_none_or(Result::is_err) {
                self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
            }
            if event.as_ref().is_none_or(needs_relist) {
                self.events = start(&self.client, &self.resource, &self.namespaces, &self.config);
            }
            if let Some(event) = event.and_then(|event| self.convert(event)) {
                return event;
            }
        }
    }

    fn convert(&self, event: watcher::Result<Event<DynamicObject>>) -> Option<WatchEvent> {
        match event {
            Ok(Event::Init) => Some(WatchEvent::ListStarted),
            Ok(Event::InitApply(object)) => self.read(object).map(WatchEvent::Listed),
            Ok(Event::InitDone) => Some(WatchEvent::Complete),
            Ok(Event::Apply(object)) => self.read(object).map(WatchEvent::Updated),
            Ok(Event::Delete(object)) => self.read(object).map(WatchEvent::Deleted),
            Err(error) => failure(error).map(|failure| WatchEvent::Failed(failure.to_string())),
        }
    }

    fn read(&self, mut object: DynamicObject) -> Option<Object> {
        object.metadata.managed_fields = None;
        super::objects::read(&self.resource, object).ok()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Unserved => f.write_str("kind not served"),
            Self::Broken(error) => write!(f, "{}", super::access::root_cause(error)),
        }
    }
}
