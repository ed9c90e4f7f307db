//! Watch of one kind in one namespace, with a short retry interval.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt as _};
use kube::Client;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::{Instant, sleep_until};

use edgesync_enrollment::object_store::News;

use super::access::Cluster;
use super::plan::Place;
use super::watching::{Failure, PAGE, WATCH_SECONDS, api, begins_anew, failure};
use edgesync_object::{Object, Resource};

/// Retry interval after a failure. Constant, because the consumer needs changes soon.
const PAUSE: Duration = Duration::from_millis(500);

/// A watch of objects of one kind with a label selector in one namespace.
pub struct Following {
    client: Client,
    resource: Arc<Resource>,
    place: Place,
    config: watcher::Config,
    events: Events,
    /// Time of the next retry.
    pause: Option<Instant>,
}

type Events = Pin<Box<dyn Stream<Item = watcher::Result<Event<DynamicObject>>> + Send>>;

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following").field("resource", &self.resource).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Watches the objects of a kind in a namespace that match a label selector. Sends no request
    /// before [`Following::next`].
    #[must_use]
    pub fn follow(&self, resource: &Resource, namespace: &str, selector: &str) -> Following {
        let config = watcher::Config {
            label_selector: Some(selector.to_owned()),
            timeout: Some(WATCH_SECONDS),
            page_size: Some(PAGE),
            ..watcher::Config::default()
        };
        let (client, resource) = ((*self.following).clone(), Arc::new(resource.clone()));
        let place = Place::Namespace(namespace.into());
        let events = begin(&client, &resource, &place, &config);
        Following { client, resource, place, config, events, pause: None }
    }
}

fn begin(client: &Client, resource: &Resource, place: &Place, config: &watcher::Config) -> Events {
    Box::pin(watcher(api(client.clone(), resource, place), config.clone()))
}

impl Following {
    /// Waits for the next event. Cancel-safe.
    pub async fn next(&mut self) -> News {
        loop {
            if let Some(until) = self.pause {
                sleep_until(until).await;
                self.pause = None;
            }
            let event = self.events.next().await;
            if event.as_ref().is_none_or(Result::is_err) {
                self.pause = Some(Instant::now() + PAUSE);
            }
            if event.as_ref().is_none_or(begins_anew) {
                self.events = begin(&self.client, &self.resource, &self.place, &self.config);
            }
            if let Some(news) = event.and_then(|event| self.news(event)) {
                return news;
            }
        }
    }

    fn news(&self, event: watcher::Result<Event<DynamicObject>>) -> Option<News> {
        match event {
            Ok(Event::Init) => Some(News::Begun),
            Ok(Event::InitApply(object)) => self.whole(object).map(News::Listed),
            Ok(Event::InitDone) => Some(News::Complete),
            Ok(Event::Apply(object)) => self.whole(object).map(News::Set),
            Ok(Event::Delete(object)) => self.whole(object).map(News::Gone),
            Err(error) => failure(error).map(|failure| News::Failed(failure.to_string())),
        }
    }

    fn whole(&self, mut object: DynamicObject) -> Option<Object> {
        object.metadata.managed_fields = None;
        super::objects::read(&self.resource, object).ok()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Unserved => f.write_str("kind not served"),
            Self::Broken(error) => write!(f, "{}", super::access::root(error)),
        }
    }
}
