//! A scripted join service.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::authority::{Authority, time};
use crate::Membership;
use crate::token::Token;
use edgesync_api::exchange::{ExchangeLimits, HttpRequest, HttpResponse, serve_connection};
use edgesync_config::JoinUrl;
use edgesync_transport::tls::{ClientRule, Clock, Identity, Server, Trust};

/// Time of the clouds' clock.
pub(crate) const CLOUD_TIME: &str = "2026-11-21T12:00:00Z";

/// A received request, and the node whose certificate was presented.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) question: HttpRequest,
    pub(crate) shown: Option<String>,
}

/// A running join service.
pub(crate) struct Service {
    pub(crate) url: JoinUrl,
    asked: Arc<Mutex<Vec<Asked>>>,
    task: JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn reply(code: u16, body: impl Into<Vec<u8>>) -> HttpResponse {
    HttpResponse { code, headers: Vec::new(), body: body.into() }
}

/// Returns the time of a correct server clock.
pub(crate) fn cloud_now() -> jiff::Timestamp {
    time(CLOUD_TIME)
}

impl Service {
    /// Starts a service that presents `identity`, trusts the CA, and answers with `answer`.
    pub(crate) async fn start(
        authority: &Authority,
        identity: &Identity,
        answer: impl Fn(&Asked) -> HttpResponse + Send + Sync + 'static,
    ) -> Self {
        let rule = ClientRule {
            trust: Trust::new(vec![authority.ca.clone()]),
            revoked: Arc::default(),
            required: false,
            expired_grace: Duration::from_secs(90 * 86_400),
        };
        let server = Server::new(identity, &rule, Clock::of(cloud_now, [])).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (kept, answer) = (Arc::clone(&asked), Arc::new(answer));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, kept, answer) = (server.clone(), Arc::clone(&kept), Arc::clone(&answer));
                tokio::spawn(async move {
                    let Ok((stream, shown)) = server.accept(stream).await else { return };
                    let shown =
                        shown.as_ref().and_then(|shown| shown.subject().requested_node()).map(str::to_owned);
                    let answer = move |question: HttpRequest| {
                        let asked = Asked { question, shown: shown.clone() };
                        let reply = answer(&asked);
                        kept.lock().unwrap().push(asked);
                        std::future::ready(reply)
                    };
                    let limits = ExchangeLimits { body_bytes: 1 << 16, patience: Duration::from_secs(30) };
                    serve_connection(stream, limits, Arc::new(answer)).await;
                });
            }
        });
        Self { url: JoinUrl { host: "127.0.0.1".into(), port }, asked, task }
    }

    /// Starts a service that lets every node join.
    pub(crate) async fn of_cloud(authority: Arc<Authority>, broker: &str) -> Self {
        let identity = server_identity(&authority);
        let (answering, broker) = (Arc::clone(&authority), broker.to_owned());
        Self::start(&authority, &identity, move |asked| cloud(&answering, &broker, asked)).await
    }

    /// Starts a CloudCore that lets every node join.
    pub(crate) async fn of_cloud_core(authority: Arc<Authority>) -> Self {
        let identity = server_identity(&authority);
        let answering = Arc::clone(&authority);
        Self::start(&authority, &identity, move |asked| cloud_core(&answering, asked)).await
    }

    /// Returns the requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

pub(crate) fn server_identity(authority: &Authority) -> Identity {
    authority.server(
        &["127.0.0.1", "cloud.example"],
        time("2026-11-01T00:00:00Z"),
        time("2027-11-01T00:00:00Z"),
    )
}

/// Creates a token of the authority's cloud.
pub(crate) fn token(authority: &Authority) -> Token {
    format!("{}.head.claims.signature", authority.ca.fingerprint()).parse().unwrap()
}

/// Answers like a CloudCore: a presented certificate takes precedence over a token and must be that
/// of the node in the header; the subject of the request is taken over.
pub(crate) fn cloud_core(authority: &Authority, asked: &Asked) -> HttpResponse {
    let question = &asked.question;
    match question.path.as_str() {
        "/ca.crt" => reply(200, authority.ca.der()),
        "/edge.crt" => {
            let node = question.header("nodename").unwrap_or_default();
            let is_let_in = match &asked.shown {
                Some(shown) => shown == node,
                None => question.header("authorization") == Some("Bearer head.claims.signature"),
            };
            if !is_let_in {
                return reply(
                    401,
                    "token validation failure, err: token has invalid claims: token is expired",
                );
            }
            let (from, until) = (time("2026-11-20T00:00:00Z"), time("2027-11-20T00:00:00Z"));
            reply(200, authority.sign(&question.body, &format!("system:node:{node}"), from, until))
        }
        _ => reply(404, "404: Page Not Found"),
    }
}

/// Answers like a cloud that lets every node join.
pub(crate) fn cloud(authority: &Authority, broker: &str, asked: &Asked) -> HttpResponse {
    let question = &asked.question;
    match question.path.as_str() {
        "/ca.crt" => reply(200, authority.ca.der()),
        "/edge.crt" => {
            let node = question.header("nodename").unwrap_or_default();
            let by_token = question.header("authorization") == Some("Bearer head.claims.signature");
            if !by_token && asked.shown.as_deref() != Some(node) {
                return reply(401, "token expired");
            }
            let (from, until) = (time("2026-11-20T00:00:00Z"), time("2027-11-20T00:00:00Z"));
            reply(200, authority.sign(&question.body, node, from, until))
        }
        "/edgesync/v1/join" => match &asked.shown {
            None => reply(401, "no certificate"),
            Some(node) => {
                let membership = Membership {
                    node: node.clone(),
                    broker: broker.to_owned(),
                    brokers: Vec::new(),
                    prefix: "plant/v1".into(),
                    time: CLOUD_TIME.into(),
                    removed: false,
                };
                reply(200, serde_json::to_vec(&membership).unwrap())
            }
        },
        _ => reply(404, "no such path"),
    }
}
