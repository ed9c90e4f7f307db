//! A replica's cache of the cluster: each object as the cluster has it.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use edgesync_kubernetes::cache::{Cache, CacheChange, CacheOptions};
use edgesync_kubernetes::cluster::{Cluster, Feed, Interest, Item, ObservedObject, Origin};
use edgesync_object::{OmittedFields, Selector};
use edgesync_placement::ObjectMatch;
use edgesync_transport::proxy::ProxyRules;
use serde_json::Value;

use crate::cluster::api::{ApiServer, over_each};
use crate::cluster::setup::PATIENCE;
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::site::Site;
use edgesync_testkit::timing::within;

/// More than fit a page, a batch of a list or a shard of a cache.
const OBJECTS: usize = 1000;

/// Applies all changes of the feed until it is complete.
async fn fill(feed: &mut Feed, cache: &Cache) {
    let put = |seen: &ObservedObject| CacheChange::Put(Arc::clone(&seen.summary), Arc::clone(&seen.body));
    loop {
        let changes = match feed.next().await {
            Item::Listed(objects) => objects.iter().map(put).collect(),
            Item::Updated(object) => vec![put(&object)],
            Item::Deleted(summary) => vec![CacheChange::Remove(Arc::clone(&summary.uid))],
            Item::Unlisted(gone) => {
                gone.iter().map(|summary| CacheChange::Remove(Arc::clone(&summary.uid))).collect()
            }
            Item::Complete => return,
            _ => continue,
        };
        cache.apply(changes).await.unwrap();
    }
}

over_each!(cache_of_a_replica_equals_the_cluster);

async fn cache_of_a_replica_equals_the_cluster<K: ApiServer>() {
    let site = Site::new();
    let kubernetes = K::start(&site).await;
    let admin = Kubectl::with_kubeconfig(&site, "admin", kubernetes.admin());
    let rules = [
        include_str!("../../packaging/kubernetes/crds/placements.yaml"),
        include_str!("../../packaging/kubernetes/crds/clusterplacements.yaml"),
    ];
    for text in rules.iter().filter(|_| !K::IS_OURS) {
        admin.feed(&["create", "-f", "-"], text).ok();
    }
    let objects: String = (0..OBJECTS)
        .map(|number| {
            let kind = if number % 2 == 0 { "ConfigMap" } else { "Secret" };
            format!(
                "---\n{{apiVersion: v1, kind: {kind}, metadata: {{name: o{number}, namespace: default, \
                 labels: {{tier: edge}}}}, {}: {{text: '{number} ä\"'}}}}\n",
                if kind == "Secret" { "stringData" } else { "data" }
            )
        })
        .collect();
    admin.feed(&["create", "-f", "-"], &objects).ok();

    let cluster = Cluster::connect(Some(kubernetes.admin()), &ProxyRules::default()).await.unwrap();
    let kinds = ["cm", "secret"].map(|kind| kind.parse().unwrap()).into();
    let objects = ObjectMatch { kinds, selector: "tier=edge".parse().unwrap(), ..ObjectMatch::default() };
    let [nodes, rules] = Interest::fleet(Selector::default());
    let selected = Interest::rule(Origin::Configured(0), objects);
    let mut feed = Feed::new(cluster, vec![nodes, rules, selected], vec!["edgesync".into()]);
    let cache = Cache::open(&site.path("cache.db"), &CacheOptions::default()).unwrap();
    within("the feed lists everything", PATIENCE, fill(&mut feed, &cache)).await;

    let (mut told, mut next) = (Vec::new(), Some(0));
    while let Some(from) = next {
        let part = cache.part(from).await.unwrap();
        told.extend(part.summaries);
        next = part.next;
    }
    let bodies = cache
        .bodies(told.iter().map(|summary| Arc::clone(&summary.uid)).collect(), OmittedFields::default())
        .await
        .unwrap();
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    let cached = bodies.iter().map(|loaded| read(loaded.body.as_str()));
    let cached: BTreeMap<_, _> = cached.map(|object| (name(&object), object)).collect();
    let list = admin.run(&["get", "cm,secret", "-l", "tier=edge", "-n", "default", "-o", "json"]).json();
    let expected = list["items"].as_array().unwrap().iter();
    let expected: BTreeMap<_, _> = expected.map(|object| (name(object), object.clone())).collect();
    assert_eq!((expected.len(), told.len()), (OBJECTS, OBJECTS));
    assert_eq!(cached, expected);
}
