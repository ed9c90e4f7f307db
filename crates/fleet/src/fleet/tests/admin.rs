//! Tests of the admin protocol in front of a fleet.

use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::admin::{Admin, BrokerDefaults, Parts};
use crate::node_name;
use crate::summary::Board;
use edgesync_api::{Caller, Extension, ExtensionCall, Prebuilt, Role};
use edgesync_object::status;

/// A fleet, and the admin protocol in front of it.
struct Served {
    site: Site,
    admin: Admin,
    requests: mpsc::Receiver<AdminRequest>,
    board: Arc<Board>,
}

impl Served {
    async fn start() -> Self {
        let site = Site::start().await;
        let board = Board::new("start".into());
        let parts = Parts {
            database: None,
            downlink: Downlink::Embedded(site.broker.clone()),
            enrollment_service: site.fleet.enrollment.clone(),
            broker: BrokerDefaults { names: Vec::new(), prefix: String::new(), max_packet: 1 << 20 },
            service: None,
            board: Arc::clone(&board),
            page: None,
            has_tls_api: false,
            shared: None,
        };
        let (sender, requests) = mpsc::channel(1);
        Self { site, admin: Admin::new(sender, parts), requests, board }
    }

    /// Returns the answer to a request of a caller who may only read.
    async fn get(&mut self, path: &str) -> status::Result<Value> {
        self.call(get(path)).await
    }

    async fn call(&mut self, call: ExtensionCall) -> status::Result<Value> {
        let answer = self.admin.call(call);
        tokio::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return answer,
                Some(request) = self.requests.recv() => self.site.fleet.administer(request),
                () = self.site.turn() => {}
            }
        }
    }

    /// Returns the answer that exists before the request.
    async fn ready(&self, call: &ExtensionCall) -> Option<Prebuilt> {
        self.admin.ready(call, watch::channel(false).1).await.unwrap()
    }
}

fn get(path: &str) -> ExtensionCall {
    ExtensionCall { method: "GET".into(), path: path.into(), ..ExtensionCall::default() }
}

#[tokio::test]
async fn viewer_may_look_at_nodes() {
    let mut served = Served::start().await;
    served.site.fleet.meet(&node_name("edge-1"));
    let nodes = served.get("nodes").await.unwrap();
    assert_eq!(nodes["items"][0]["name"], "edge-1", "{nodes}");
    assert_eq!(served.get("nodes/edge-2").await.unwrap_err().code, 404);
}

#[tokio::test]
async fn viewer_may_look_at_labels() {
    let mut served = Served::start().await;
    let labels = served.get("labels").await.unwrap();
    assert!(labels.is_object(), "{labels}");
}

/// A pause is resumed by its reason, so that a pause that has begun since stays.
#[tokio::test]
async fn resuming_needs_the_reason_of_a_pause() {
    let mut served = Served::start().await;
    let (missing, invalid) = (404, 400);
    for (reason, code) in [
        ("Command", missing),
        ("FailuresExceeded", missing),
        ("WavesChanged", missing),
        ("Progressing", invalid),
    ] {
        let body = json!({"action": "resume", "reason": reason});
        let caller = Caller { role: Role::Edit, ..Caller::default() };
        let (method, path) = ("POST".into(), "rollouts/rules/web".into());
        let call = ExtensionCall { method, path, body, caller, ..ExtensionCall::default() };
        let refused = served.call(call).await.unwrap_err();
        assert_eq!(refused.code, code, "{reason}: {refused:?}");
    }
}

#[tokio::test]
async fn summary_is_sent_whole_or_followed() {
    let served = Served::start().await;
    let Some(Prebuilt::Whole(whole)) = served.ready(&get("summary")).await else { panic!() };
    assert_eq!(whole, served.board.snapshot());
    let watching = ExtensionCall { query: vec![("watch".into(), "1".into())], ..get("summary") };
    let Some(Prebuilt::Lines(mut lines)) = served.ready(&watching).await else { panic!() };
    assert_eq!(lines.recv().await.unwrap().unwrap(), whole);
}
