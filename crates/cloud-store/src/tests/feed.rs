//! Feed for the fleet: listing, changes, relist.

use super::*;

/// Applies an item as placement does: versions by names. Returns `true` after `Complete` or a
/// change.
fn take_in(known: &mut BTreeMap<String, u64>, item: FeedItem) -> bool {
    let version = |summary: &Summary| summary.version.as_str().parse::<u64>().unwrap();
    match item {
        FeedItem::ListStarted => known.clear(),
        FeedItem::Listed(summaries) => {
            for summary in summaries {
                let before = known.insert(summary.name.to_string(), version(&summary));
                assert_eq!(before, None, "what was told is not told again by a list");
            }
        }
        FeedItem::Change(FeedChange { kind: ChangeKind::Deleted, object, .. }) => {
            known.remove(&*object.name);
        }
        FeedItem::Change(change) => drop(known.insert(change.object.name.to_string(), change.version)),
        FeedItem::Complete => return true,
        other => panic!("{other:?}"),
    }
    false
}

#[tokio::test]
async fn a_feed_tells_all_that_there_is_while_it_changes() {
    let Fixture { store, .. } = &fixture();
    for n in 0..3000 {
        create(store, &format!("a{n}")).await;
    }
    let mut feed = store.follow();
    assert!(matches!(feed.next().await, FeedItem::ListStarted));
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..600 {
                let name = format!("a{}", n * 5);
                match n % 3 {
                    0 => drop(store.delete(&kind("cm"), "lab", &name, None).await.unwrap()),
                    1 => drop(create(&store, &format!("b{n}")).await),
                    _ => {
                        let old = store.get(kind("cm").key("lab", &name)).await.unwrap();
                        let mut object: Object = serde_json::from_str(&old.body).unwrap();
                        object.set_metadata("labels", json!({"n": "1"}));
                        store.update(&kind("cm"), object, old.version).await.unwrap();
                    }
                }
            }
            create(&store, "last").await
        })
    };
    let (mut known, mut parts) = (BTreeMap::new(), 0);
    loop {
        let item = feed.next().await;
        if let FeedItem::Listed(summaries) = &item {
            assert!(summaries.len() <= 512);
            parts += 1;
        }
        if take_in(&mut known, item) {
            break;
        }
    }
    assert!(parts >= 6, "{parts}");
    let last = writer.await.unwrap();
    while known.get("last") != Some(&last.version) {
        take_in(&mut known, feed.next().await);
    }
    let (summaries, _) = follow(store).await;
    let there: BTreeMap<String, u64> =
        summaries.iter().map(|s| (s.name.to_string(), s.version.as_str().parse().unwrap())).collect();
    assert_eq!(known, there);
    assert_eq!(known.len(), 3000 - 200 + 200 + 1);
}

#[tokio::test]
async fn the_feed_tells_what_placement_needs_and_nothing_of_records() {
    let Fixture { store, .. } = &fixture();
    let (_, mut feed) = follow(store).await;
    let pod: Object = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "lab", "labels": {"x": "y"}},
        "spec": {"nodeName": "edge-1", "volumes": [{"configMap": {"name": "c"}}]}}))
    .unwrap();
    store
        .record(
            &node_name("edge-1"),
            None,
            RecordBatch { put: vec![records::put("u1", 1)], ..RecordBatch::default() },
        )
        .await
        .unwrap();
    let created = store.create(&kind("pods"), pod).await.unwrap();
    let deleted = store.delete(&kind("pods"), "lab", "p", None).await.unwrap();
    let FeedItem::Change(change) = feed.next().await else { panic!() };
    assert_eq!(
        (change.kind, change.version, &change.object.uid),
        (ChangeKind::Added, created.version, &created.uid)
    );
    assert_eq!(
        (change.object.nodes.all().len(), change.object.references.len(), change.object.labels.len()),
        (1, 1, 1)
    );
    assert_eq!(next_change(&mut feed).await, (ChangeKind::Deleted, "p".to_owned(), deleted.version));
    store.close().await;
    assert!(matches!(feed.next().await, FeedItem::Closed));
    assert!(matches!(store.follow().next().await, FeedItem::Closed));
}

#[tokio::test]
async fn a_slow_receiver_is_told_everything_anew() {
    let Fixture { store, .. } = &fixture_with(&CloudOptions { feed_changes: 4, ..CloudOptions::default() });
    let (_, mut feed) = follow(store).await;
    for n in 0..10 {
        create(store, &format!("a{n}")).await;
    }
    assert!(matches!(feed.next().await, FeedItem::ListStarted));
    let FeedItem::Listed(summaries) = feed.next().await else { panic!() };
    assert_eq!(summaries.len(), 10);
    assert!(matches!(feed.next().await, FeedItem::Complete));
}

#[tokio::test]
async fn feed_catches_up_behind_all_earlier_commits() {
    let Fixture { store, .. } = &fixture();
    create(store, "a").await;
    let mut feed = store.follow();
    // Asked before the first listing: it is answered after it.
    assert_eq!((feed.catch_up(), feed.catch_up()), (1, 2));
    assert!(matches!(feed.next().await, FeedItem::ListStarted));
    assert!(matches!(feed.next().await, FeedItem::Listed(_)));
    assert!(matches!(feed.next().await, FeedItem::Complete));
    assert!(matches!(feed.next().await, FeedItem::CaughtUp { question: 2, .. }));
    let created = create(store, "b").await;
    assert_eq!(feed.catch_up(), 3);
    assert_eq!(next_change(&mut feed).await, (ChangeKind::Added, "b".to_owned(), created.version));
    let FeedItem::CaughtUp { question: 3, version } = feed.next().await else { panic!() };
    assert_eq!(version, store.version());
    create(store, "c").await;
    assert_eq!(next_change(&mut feed).await.1, "c", "each question has one answer");
}

#[tokio::test]
async fn feed_relists_on_request_and_misses_no_change() {
    let Fixture { store, .. } = &fixture_with(&CloudOptions { feed_changes: 4, ..CloudOptions::default() });
    for n in 0..3 {
        create(store, &format!("a{n}")).await;
    }
    let mut feed = store.follow();
    assert!(matches!(feed.next().await, FeedItem::ListStarted));
    // Requested during the first listing: the relist follows it.
    feed.relist(everything());
    feed.relist(everything());
    let mut told = Vec::new();
    let mut changes = 0;
    loop {
        match feed.next().await {
            FeedItem::Listed(summaries) => told.extend(summaries.into_iter().map(|s| s.name.to_string())),
            FeedItem::Change(_) => changes += 1,
            FeedItem::Complete => drop(create(store, "new").await),
            FeedItem::Relisted => break,
            other => panic!("{other:?}"),
        }
    }
    told.sort();
    told.dedup_by(|a, b| a == b);
    let new = usize::from(told.contains(&"new".to_owned()));
    assert_eq!((told.len() - new, changes), (3, 1), "{told:?}");
    // A receiver that lags during a relist gets a complete restart first.
    feed.relist(everything());
    assert!(matches!(feed.next().await, FeedItem::Listed(_)));
    for n in 0..10 {
        create(store, &format!("b{n}")).await;
    }
    let mut items = Vec::new();
    loop {
        match feed.next().await {
            FeedItem::Listed(_) | FeedItem::Change(_) => {}
            FeedItem::Relisted => break,
            item => items.push(item),
        }
    }
    assert!(matches!(items[..], [FeedItem::ListStarted, FeedItem::Complete]), "{items:?}");
}

/// Returns the selection of a rule with these objects.
fn selection(objects: serde_json::Value) -> Selection {
    serde_json::from_value::<ObjectMatch>(objects).unwrap().into()
}

fn everything() -> Selection {
    selection(json!({}))
}

#[tokio::test]
async fn feed_relists_what_is_selected() {
    let Fixture { store, .. } = &fixture();
    for (name, labels) in [("a", json!({"tier": "b"})), ("b", json!({"tier": "c"})), ("c", json!({}))] {
        let mut object = config_map(name, &json!({}));
        object.set_metadata("labels", labels);
        store.create(&kind("cm"), object).await.unwrap();
    }
    let (_, mut feed) = follow(store).await;
    let labelled = |tier: &str| json!({"namespaces": ["l*"], "selector": format!("tier={tier}")});
    for (objects, expected) in [
        (everything(), &["a", "b", "c"][..]),
        (selection(json!({"names": ["c"]})), &["c"]),
        (selection(json!({"kinds": ["secrets"]})), &[]),
        (selection(json!({"namespaces": ["other"]})), &[]),
        (selection(labelled("b")), &["a"]),
    ] {
        feed.relist(objects);
        assert_eq!(relisted(&mut feed).await, expected);
    }
    // One list answers both.
    feed.relist(selection(labelled("b")));
    feed.relist(selection(labelled("c")));
    assert_eq!(relisted(&mut feed).await, ["a", "b"]);
}

/// Returns the names of a relist, in order.
async fn relisted(feed: &mut Feed) -> Vec<String> {
    let mut names = Vec::new();
    loop {
        match feed.next().await {
            FeedItem::Listed(summaries) => names.extend(summaries.into_iter().map(|s| s.name.to_string())),
            FeedItem::Relisted => return names,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn rules_that_are_objects_are_told_before_what_they_select() {
    let Fixture { store, .. } = &fixture();
    create(store, "first").await;
    let kind = Arc::new(edgesync_object::kinds::guess("edgesync.io/v1alpha1", "Placement", true));
    let rule = json!({
        "apiVersion": "edgesync.io/v1alpha1", "kind": "Placement", "metadata": {"name": "p", "namespace": "lab"},
        "spec": {"objects": {"kinds": ["cm"]}, "nodes": {}}, "status": {"objects": 7},
    });
    store.create(&kind, serde_json::from_value(rule).unwrap()).await.unwrap();
    create(store, "last").await;
    let (summaries, _) = follow(store).await;
    let names: Vec<_> = summaries.iter().map(|summary| &*summary.name).collect();
    assert_eq!(names, ["p", "first", "last"]);
    let rule = summaries[0].rule.as_ref().unwrap();
    assert_eq!((rule.generation, &*rule.status), (1, r#"{"objects":7}"#));
    assert_eq!(&*rule.spec, r#"{"nodes":{},"objects":{"kinds":["cm"]}}"#);
}
