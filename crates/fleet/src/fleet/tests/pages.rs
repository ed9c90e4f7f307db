//! Tests of the fleet's answers to pages.

use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::*;
use crate::node_name;
use crate::summary::{Board, ObjectFilter, RolloutOf};
use edgesync_admin::Answer;
use edgesync_admin::cloud::{
    LabelKeys, LabelValues, NodeObjects, ObjectList, PlacementExplanation, Rollout, RuleList,
};

/// Nodes that share one object, and the overview of them.
struct Shown {
    site: Site,
    board: Arc<Board>,
    object: Stored,
    nodes: Vec<tokio::task::JoinHandle<()>>,
}

const NODES: usize = 3;

impl Shown {
    async fn start() -> Self {
        let mut site = Site::start().await;
        let board = Board::new("start".into());
        site.fleet.show_on(Arc::clone(&board));
        let object = site.store.create(&config_map(), object("all", 10)).await.unwrap();
        let names = (0..NODES).map(|n| &*format!("node-{n}").leak());
        let nodes: Vec<_> = names.map(|name| tokio::spawn(node(name, site.broker.clone()))).collect();
        site.until_in_sync(NODES, &object).await;
        Self { site, board, object, nodes }
    }

    /// Runs the fleet until the overview satisfies a condition, with a constantly watching client.
    async fn until_shown(&mut self, expected: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let view: Value = serde_json::from_slice(&self.board.snapshot()).unwrap();
            if expected(&view) {
                return view;
            }
            assert!(Instant::now() < end, "{view}");
            self.site.turn().await;
        }
    }

    /// Returns an answer as the API serializes it.
    async fn json<T: Serialize>(
        &mut self,
        request: impl FnOnce(oneshot::Sender<T>) -> AdminRequest,
    ) -> Value {
        json!(self.ask(request).await)
    }

    async fn ask<T>(&mut self, request: impl FnOnce(oneshot::Sender<T>) -> AdminRequest) -> T {
        let (answer, answered) = oneshot::channel();
        self.site.fleet.administer(request(answer));
        self.until_answered(answered).await
    }

    async fn until_answered<T>(&mut self, mut answered: oneshot::Receiver<T>) -> T {
        loop {
            match answered.try_recv() {
                Ok(answer) => return answer,
                Err(oneshot::error::TryRecvError::Empty) => self.site.turn().await,
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn rollout(&mut self) -> Value {
        let of = RolloutOf::Object(self.object.uid.as_ref().into());
        self.json(|answer| AdminRequest::Rollout(of, answer)).await
    }
}

/// Asserts that an answer has exactly the keys of its type.
fn assert_is<T: Answer + Serialize>(answer: &Value) {
    assert_eq!(json!(edgesync_admin::read::<T>(answer).unwrap()), *answer);
}

#[tokio::test]
async fn overview_follows_nodes_that_connect_and_leave() {
    let mut shown = Shown::start().await;
    let view = shown.until_shown(|view| view["counts"][0] == NODES).await;
    assert_eq!((&view["held"], &view["desired"]), (&json!(NODES), &json!(NODES)));
    let names: Vec<&Value> = view["nodes"].as_array().unwrap().iter().map(|row| &row[0]).collect();
    assert_eq!(names, ["node-0", "node-1", "node-2"]);
    shown.nodes[0].abort();
    let view = shown.until_shown(|view| view["counts"] == json!([2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0])).await;
    let row = &view["nodes"][0];
    assert_eq!((&row[0], &row[1], &row[3]), (&json!("node-0"), &json!(6), &json!(1)));
    let removed = shown.ask(|answer| AdminRequest::Remove(node_name("node-0"), answer)).await;
    assert!(removed.unwrap());
    shown.until_shown(|view| view["counts"] == json!([2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0])).await;
    shown.nodes.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn rollout_requests_before_the_first_count_wait_for_it() {
    let mut shown = Shown::start().await;
    let of = RolloutOf::Object(shown.object.uid.as_ref().into());
    let requests = [(); 2].map(|()| {
        let (answer, answered) = oneshot::channel();
        shown.site.fleet.administer(AdminRequest::Rollout(of.clone(), answer));
        answered
    });
    let [first, mut second] = requests;
    assert!(second.try_recv().is_err(), "not counted yet");
    for answered in [first, second] {
        let rollout = shown.until_answered(answered).await.unwrap();
        assert_eq!((rollout.holding, rollout.desired), (NODES, NODES));
    }
    shown.nodes.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn rollout_lists_holding_nodes_and_stragglers() {
    let mut shown = Shown::start().await;
    let view = shown.rollout().await;
    assert_eq!((&view["holding"], &view["desired"]), (&json!(NODES), &json!(NODES)), "{view}");
    assert_eq!(view["stragglers"], json!([]));
    // The held objects of a disconnected node are unknown.
    shown.nodes[0].abort();
    shown.until_shown(|view| view["counts"][6] == 1).await;
    let mut changed = object("all", 20);
    changed.set_metadata("uid", json!(shown.object.uid));
    let stored = shown.site.store.update(&config_map(), changed, shown.object.version).await.unwrap();
    shown.site.until_in_sync(NODES - 1, &stored).await;
    let (end, version) = (Instant::now() + PATIENCE, stored.version.to_string());
    let view = loop {
        let view = shown.rollout().await;
        if view["holding"] == 2 && view["version"] == *version {
            break view;
        }
        assert!(Instant::now() < end, "{view}");
        shown.site.turn().await;
    };
    assert_eq!((&view["behind"][6], &view["stragglers"][0]["node"]), (&json!(1), &json!("node-0")), "{view}");
    assert_eq!(view["stragglers"][0]["why"], "offline");
    assert_is::<Rollout>(&view);
    assert!(view["since"].is_number(), "the change was seen: {view}");
    let curve = &view["curve"];
    assert_eq!(curve["holding"].as_array().unwrap().last(), Some(&json!(2)));
    let ruled = shown.json(|answer| AdminRequest::Rollout(RolloutOf::Configured(0), answer)).await;
    assert_eq!((&ruled["holding"], &ruled["objects"]), (&json!(2), &json!(1)), "{ruled}");
    assert_is::<Rollout>(&ruled);
    assert_is::<RuleList>(&shown.json(AdminRequest::Rules).await);
    assert_is::<LabelKeys>(&shown.json(|answer| AdminRequest::Labels(None, answer)).await);
    let site = Some("site".to_owned());
    assert_is::<LabelValues>(&shown.json(|answer| AdminRequest::Labels(site, answer)).await);
    let explained = shown.json(|answer| AdminRequest::Explain(node_name("node-1"), None, answer)).await;
    assert_is::<PlacementExplanation>(&explained);
    for none in [RolloutOf::Configured(1), RolloutOf::Object("none".into()), RolloutOf::Rule("none".into())] {
        assert_eq!(shown.ask(|answer| AdminRequest::Rollout(none, answer)).await, None);
    }
    shown.nodes.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn search_returns_secrets_only_to_permitted_roles() {
    let mut shown = Shown::start().await;
    let secret = kinds::by_word("secret").unwrap().resource();
    let body =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "all-keys", "namespace": "plant"}});
    let stored = shown.site.store.create(&secret, serde_json::from_value(body).unwrap()).await.unwrap();
    while shown.site.fleet.reconciler.desired.placement.object(&stored.uid).is_none() {
        shown.site.turn().await;
    }
    let filter = ObjectFilter { name: "all".into(), ..ObjectFilter::default() };
    let names = |found: &Value| -> Vec<String> {
        found["items"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().into()).collect()
    };
    let found = shown.json(|answer| AdminRequest::Find(filter.clone(), answer)).await;
    assert_eq!(names(&found), ["all"]);
    assert_is::<ObjectList>(&found);
    let all = ObjectFilter { secrets: true, ..filter.clone() };
    let found = shown.json(|answer| AdminRequest::Find(all, answer)).await;
    assert_eq!(names(&found), ["all", "all-keys"]);
    let exact = ObjectFilter { exact: true, name: "al".into(), ..ObjectFilter::default() };
    assert!(names(&shown.json(|answer| AdminRequest::Find(exact, answer)).await).is_empty());
    let on_node =
        shown.json(|answer| AdminRequest::Objects(node_name("node-1"), filter.clone(), answer)).await;
    assert_eq!((names(&on_node), &on_node["known"]), (vec!["all".to_owned()], &json!(true)));
    assert_eq!(on_node["items"][0]["held"], on_node["items"][0]["resourceVersion"]);
    assert_is::<NodeObjects>(&on_node);
    assert!(shown.ask(|answer| AdminRequest::Objects(node_name("unknown"), filter, answer)).await.is_none());
    shown.nodes.iter().for_each(tokio::task::JoinHandle::abort);
}
