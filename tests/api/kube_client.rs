//! The API through the Rust client library `kube`: watchers, reflectors and a store of changes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::serving;
use edgesync_testkit::timing::try_within;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use edgesync_api::{Address, Limits};
use edgesync_cloud_store::{CloudOptions, HistoryBound, HistoryLimits};
use edgesync_fleet::CloudObjects;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;
use serving::{Running, open_with, soon};
use tokio::sync::watch;
use tokio::task::JoinHandle;

type Versions = BTreeMap<String, String>;

fn client(address: &Address) -> Client {
    let Address::Tcp(address) = address else { panic!("{address}") };
    let mut config = Config::new(format!("http://{address}").parse().unwrap());
    config.auth_info.token = Some(serving::TOKEN.to_owned().into());
    Client::try_from(config).unwrap()
}

fn map(name: &str, value: usize) -> ConfigMap {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"odd": (value % 2 == 1).to_string()}}, "data": {"v": value.to_string()}
    }))
    .unwrap()
}

/// State of a client that follows the server with one of the library's strategies.
struct Follower {
    state: watch::Receiver<Versions>,
    starts: Arc<AtomicUsize>,
    /// The last event and the number of errors, for the message of a failure.
    last_event: Arc<Mutex<(String, usize)>>,
    task: JoinHandle<()>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    fn start(maps: Api<ConfigMap>, config: watcher::Config) -> Self {
        let (sender, state) = watch::channel(Versions::new());
        let starts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&starts);
        let last_event = Arc::new(Mutex::new((format!("{config:?}"), 0)));
        let telling = Arc::clone(&last_event);
        let task = tokio::spawn(async move {
            let mut held = Versions::new();
            let mut incoming = Versions::new();
            let mut events = Box::pin(watcher::watcher(maps, config));
            while let Some(event) = events.next().await {
                {
                    let (last, failures) = &mut *telling.lock().unwrap();
                    *last = format!("{event:?}");
                    *failures += usize::from(event.is_err());
                }
                let entry = |map: &ConfigMap| (map.name_any(), map.resource_version().unwrap_or_default());
                match event {
                    Ok(Event::Init) => {
                        counted.fetch_add(1, Ordering::SeqCst);
                        incoming = Versions::new();
                    }
                    Ok(Event::InitApply(map)) => drop(incoming.insert(entry(&map).0, entry(&map).1)),
                    Ok(Event::InitDone) => held = std::mem::take(&mut incoming),
                    Ok(Event::Apply(map)) => drop(held.insert(entry(&map).0, entry(&map).1)),
                    Ok(Event::Delete(map)) => drop(held.remove(&map.name_any())),
                    // The library retries with the next poll.
                    Err(_) => tokio::task::yield_now().await,
                }
                sender.send_replace(held.clone());
            }
        });
        Self { state, starts, last_event, task }
    }

    async fn becomes(&mut self, expected: &Versions) {
        let gets_there = async {
            self.state.wait_for(|state| state == expected).await.unwrap();
        };
        if try_within(serving::PATIENCE, gets_there).await.is_none() {
            let (last, failures) = &*self.last_event.lock().unwrap();
            let held = &*self.state.borrow();
            panic!("it holds {held:?}, not {expected:?}, failed {failures} times and was last told {last}");
        }
    }
}

async fn listed(maps: &Api<ConfigMap>, params: &ListParams) -> Versions {
    let list = maps.list(params).await.unwrap();
    list.items.iter().map(|map| (map.name_any(), map.resource_version().unwrap_or_default())).collect()
}

/// Creates, replaces, patches and deletes at random from several tasks at once.
async fn storm(address: &Address, rounds: usize) {
    let writers = (0..4_u64).map(|lane| {
        let maps: Api<ConfigMap> = Api::namespaced(client(address), "default");
        async move {
            let mut random = 0x9e37_79b9_u64.wrapping_mul(lane + 1);
            for round in 0..rounds {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let name = format!("m{}", (random >> 33) % 40);
                // The writers share the names, so conflicts are expected.
                match (random >> 20) % 4 {
                    0 => drop(maps.create(&PostParams::default(), &map(&name, round)).await),
                    1 => drop(maps.delete(&name, &DeleteParams::default()).await),
                    2 => {
                        let patch = Patch::Merge(json!({"data": {"p": round.to_string()}}));
                        drop(maps.patch(&name, &PatchParams::default(), &patch).await);
                    }
                    _ => {
                        let params = PatchParams::apply(&format!("writer-{lane}")).force();
                        drop(maps.patch(&name, &params, &Patch::Apply(&map(&name, round))).await);
                    }
                }
            }
        }
    });
    futures::future::join_all(writers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_of_every_strategy_converge_after_a_storm() {
    let running = Running::cloud(Limits::cloud()).await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&running.tcp), "default");
    let mut followers: Vec<Follower> = [
        watcher::Config::default(),
        watcher::Config::default().page_size(7),
        watcher::Config::default().any_semantic(),
        watcher::Config::default().streaming_lists(),
    ]
    .into_iter()
    .map(|config| Follower::start(maps.clone(), config))
    .collect();
    let odd = "odd=true";
    let mut selecting = Follower::start(maps.clone(), watcher::Config::default().labels(odd));
    storm(&running.tcp, 150).await;
    let expected = listed(&maps, &ListParams::default()).await;
    assert!(!expected.is_empty());
    for follower in &mut followers {
        follower.becomes(&expected).await;
    }
    selecting.becomes(&listed(&maps, &ListParams::default().labels(odd)).await).await;
}

async fn serve(path: &std::path::Path, address: &Address) -> (Arc<CloudObjects>, Running) {
    let few = HistoryBound { changes: 16, bytes: 1 << 20 };
    let options =
        CloudOptions { history: HistoryLimits { objects: few, fleet: few }, ..CloudOptions::default() };
    let objects = Arc::new(open_with(path, options).await);
    let running = Running::start_at(Arc::clone(&objects), Limits::cloud(), address).await;
    (objects, running)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_missed_more_than_the_history_relists() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cloud.db");
    let (objects, running) = serve(&path, &"127.0.0.1:0".parse().unwrap()).await;
    let address = running.tcp.clone();
    let maps: Api<ConfigMap> = Api::namespaced(client(&address), "default");
    maps.create(&PostParams::default(), &map("first", 1)).await.unwrap();
    let mut follower = Follower::start(maps.clone(), watcher::Config::default());
    follower.becomes(&listed(&maps, &ListParams::default()).await).await;
    running.stopped().await;
    objects.store().close().await;
    drop(objects);

    // Changes while the client is offline exceed the history.
    let (objects, hidden) = serve(&path, &"127.0.0.1:0".parse().unwrap()).await;
    storm(&hidden.tcp, 40).await;
    hidden.stopped().await;
    objects.store().close().await;
    drop(objects);

    let (_objects, _running) = serve(&path, &address).await;
    let expected = listed(&maps, &ListParams::default()).await;
    follower.becomes(&expected).await;
    assert!(follower.starts.load(Ordering::SeqCst) >= 2, "the client began anew after 410");
}

#[tokio::test]
async fn watches_from_expired_and_future_versions_return_410() {
    let running = Running::cloud(Limits::cloud()).await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&running.tcp), "default");
    for version in ["1", "999999999999999999"] {
        // Checked within the watch: the library would retry a refused watch forever.
        let events = maps.watch(&kube::api::WatchParams::default(), version).await.unwrap();
        let code = match soon("the first event", Box::pin(events).next()).await {
            Some(Ok(kube::api::WatchEvent::Error(status))) => Some(status.code),
            other => panic!("{other:?}"),
        };
        assert_eq!(code, Some(410), "{version}");
    }
}

#[tokio::test]
async fn typed_and_dynamic_clients_agree_on_served_kinds() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = client(&running.tcp);
    let discovery = kube::discovery::Discovery::new(client.clone()).run_aggregated().await.unwrap();
    let group = discovery.get("apps").unwrap();
    let (deployment, capabilities) = group.recommended_kind("Deployment").unwrap();
    assert_eq!((&*deployment.plural, &*deployment.version), ("deployments", "v1"));
    assert!(capabilities.supports_operation(kube::discovery::verbs::WATCH));
    assert_eq!(client.apiserver_version().await.unwrap().major, "1");
    let namespaces: Api<Namespace> = Api::all(client);
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "made"}});
    let params = PatchParams::apply("test");
    namespaces.patch("made", &params, &Patch::Apply(&space)).await.unwrap();
    assert_eq!(namespaces.get("made").await.unwrap().status.unwrap().phase.as_deref(), Some("Active"));
    let watched =
        kube::runtime::wait::await_condition(namespaces.clone(), "made", |space: Option<&Namespace>| {
            space.is_some()
        });
    serving::soon("the watch of a namespace", watched).await.unwrap();
}

/// One step of an interleaving.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create(usize),
    Apply(usize, usize),
    Delete(usize),
    Follow(usize),
    Restart,
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    use proptest::prelude::*;
    prop_oneof![
        4 => (0..6_usize).prop_map(Step::Create),
        6 => (0..6_usize, 0..9_usize).prop_map(|(name, value)| Step::Apply(name, value)),
        3 => (0..6_usize).prop_map(Step::Delete),
        2 => (0..4_usize).prop_map(Step::Follow),
        1 => Just(Step::Restart),
    ]
}

/// Runs the steps against a real server and checks that every follower ends with the contents of a
/// fresh list.
async fn interleave(steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cloud.db");
    let (mut objects, mut running) = serve(&path, &"127.0.0.1:0".parse().unwrap()).await;
    let address = running.tcp.clone();
    let maps: Api<ConfigMap> = Api::namespaced(client(&address), "default");
    let mut followers: Vec<(Follower, bool)> = Vec::new();
    for step in steps {
        match *step {
            Step::Create(name) => {
                drop(maps.create(&PostParams::default(), &map(&format!("m{name}"), name)).await);
            }
            Step::Apply(name, value) => {
                let (name, params) = (format!("m{name}"), PatchParams::apply("steps").force());
                maps.patch(&name, &params, &Patch::Apply(&map(&name, value))).await.unwrap();
            }
            Step::Delete(name) => drop(maps.delete(&format!("m{name}"), &DeleteParams::default()).await),
            Step::Follow(strategy) => {
                let config = match strategy {
                    0 => watcher::Config::default(),
                    1 => watcher::Config::default().page_size(2),
                    2 => watcher::Config::default().streaming_lists(),
                    _ => watcher::Config::default().labels("odd=true"),
                };
                followers.push((Follower::start(maps.clone(), config), strategy == 3));
            }
            Step::Restart => {
                running.stopped().await;
                objects.store().close().await;
                (objects, running) = serve(&path, &address).await;
            }
        }
    }
    let all = listed(&maps, &ListParams::default()).await;
    let odd = listed(&maps, &ListParams::default().labels("odd=true")).await;
    for (follower, selects) in &mut followers {
        follower.becomes(if *selects { &odd } else { &all }).await;
    }
    running.stopped().await;
    objects.store().close().await;
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 24, ..Default::default() })]

    #[test]
    fn watchers_equal_a_fresh_list_after_any_interleaving(
        steps in proptest::collection::vec(step(), 1..50)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(interleave(&steps));
    }
}
