//! The join service: `GET /ca.crt`, `GET` or `POST /edge.crt`, `GET /edgesync/v1/join`, over TLS on a port of its own.
//! The first two are KubeEdge's. A refusal is a line of text, which is shown on the device.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Pairing, now};
use edgesync_api::exchange::{ExchangeLimits, Question, Reply, serve_connection};
use edgesync_join::Membership;
use edgesync_join::calls::MEMBERSHIP;
use edgesync_object::status::{Reason, Result, Status};
use edgesync_transport::admission::{
    ConnectionLimiter, ConnectionLimits, LogThrottle, Permit, Queue, QueueLimits, Tcp,
};
use edgesync_transport::tls::Certificate;

/// The most connections at a time. When more come, those go that have said nothing for longest.
const MAX_CONNECTIONS: usize = 256;
/// The most of one address.
const MAX_OF_ONE: usize = 64;
/// The most that wait for a place, and as many that have said nothing.
const WAITING: usize = 1024;
/// How long the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection may last: the handshake, and the requests with their answers.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest request for a certificate. One with an RSA key of 8192 bits has 2.3 KB.
const MAX_BODY: usize = 16 << 10;
/// How long to wait after a connection could not be taken: too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The join service, listening.
pub struct JoinService {
    listener: TcpListener,
    address: SocketAddr,
    pairing: Pairing,
}

impl JoinService {
    /// Listens.
    ///
    /// # Errors
    /// The address is taken.
    pub async fn bind(address: SocketAddr, pairing: Pairing) -> anyhow::Result<Self> {
        let failed = || format!("the join service cannot listen on {address}");
        let listener = TcpListener::bind(address).await.with_context(failed)?;
        let address = listener.local_addr().with_context(failed)?;
        Ok(Self { listener, address, pairing })
    }

    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is dropped. At most so many connections at a time as a small machine can take (256, and 64 of one
    /// address): then those go that have said nothing for longest. Slow ones are cut after 30 s.
    pub async fn serve(self) {
        let limiter =
            ConnectionLimiter::new(ConnectionLimits { total: MAX_CONNECTIONS, per_origin: MAX_OF_ONE });
        let mut queue = Queue::new(limiter, QueueLimits { most: WAITING, silence: HANDSHAKE });
        let full = LogThrottle::new();
        // Dropped at the end, and with it the connections.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                Some(_) = connections.join_next() => {}
                admitted = queue.next(|| Tcp::accept(&self.listener)) => match admitted {
                    Ok((Tcp(stream, peer), Some(permit))) => {
                        let (pairing, permit) = (self.pairing.clone(), Arc::new(permit));
                        connections.spawn(async move {
                            tokio::select! {
                                _ = timeout(PATIENCE, connection(pairing, stream, peer, permit.clone())) => {}
                                () = permit.must_go() => {
                                    tracing::debug!(%peer, "a connection to the join service was too slow");
                                }
                            }
                        });
                    }
                    Ok((Tcp(_, peer), None)) => {
                        if let Some(left_out) = full.line() {
                            tracing::warn!(%peer, left_out, "too many connections to the join service: closed");
                        }
                    }
                    Err(error) => {
                        tracing::warn!("the join service cannot take a connection: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}

async fn connection(pairing: Pairing, stream: TcpStream, peer: SocketAddr, permit: Arc<Permit>) {
    permit.speaks();
    let (stream, shown) = match timeout(HANDSHAKE, pairing.joining_tls().accept(stream)).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => return tracing::debug!(%peer, ?error, "no TLS with the join service"),
        Err(_) => return tracing::debug!(%peer, "no TLS with the join service in time"),
    };
    // Who shows a certificate is known, and renews it.
    let _busy = shown.as_ref().map(|_| permit.busy());
    let shown = shown.map(Arc::new);
    let limits = ExchangeLimits { body_bytes: MAX_BODY, patience: PATIENCE };
    let answer = move |question: Question| {
        let (pairing, shown) = (pairing.clone(), shown.clone());
        // Before it joins, a device finds out in this way whether this is a CloudCore, which does not know the call.
        let is_question = shown.is_none() && question.path == MEMBERSHIP;
        async move {
            reply(
                answer(&pairing, shown.as_deref(), &question).await,
                peer,
                is_question,
                &pairing.shared.refusals,
            )
        }
    };
    serve_connection(stream, limits, Arc::new(answer)).await;
}

/// An answer that is no refusal.
struct Answer {
    media: &'static str,
    body: Vec<u8>,
}

async fn answer(pairing: &Pairing, shown: Option<&Certificate>, question: &Question) -> Result<Answer> {
    let path = question.path.split('?').next().unwrap_or_default();
    let der = |certificate: &Certificate| Answer {
        media: "application/octet-stream",
        body: certificate.der().to_vec(),
    };
    match (path, question.method.as_str()) {
        ("/ca.crt", "GET") => Ok(der(pairing.shared.authority.certificate())),
        ("/edge.crt", "GET" | "POST") => Ok(der(&certificate(pairing, shown, question).await?)),
        (MEMBERSHIP, "GET") => membership(pairing, shown).await,
        ("/ca.crt" | "/edge.crt" | MEMBERSHIP, _) => Err(Status::new(Reason::MethodNotAllowed, "use GET")),
        _ => Err(Status::new(
            Reason::NotFound,
            "this is the join service of edgesync: it has /ca.crt, /edge.crt and /edgesync/v1/join",
        )),
    }
}

/// A token counts before a certificate: whoever sends one wants to join anew.
async fn certificate(
    pairing: &Pairing,
    shown: Option<&Certificate>,
    question: &Question,
) -> Result<Certificate> {
    let named = question.header("nodename");
    if let Some(bearer) = bearer(question) {
        let Some(node) = named else {
            return Err(Status::bad_request("the header NodeName must say which node asks"));
        };
        return pairing.join(bearer, node, &question.body).await;
    }
    let Some(shown) = shown else {
        return Err(Status::new(
            Reason::Unauthorized,
            "a token is needed to join (header Authorization: Bearer …), or a certificate to renew it; create a token \
             with 'edgesync-cloud token create'",
        ));
    };
    let node = named.or(shown.node()).unwrap_or_default();
    pairing.renew(shown, node, &question.body).await
}

/// The token of the header `Authorization`; an empty one is none.
fn bearer(question: &Question) -> Option<&str> {
    let (scheme, token) = question.header("authorization")?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

async fn membership(pairing: &Pairing, shown: Option<&Certificate>) -> Result<Answer> {
    let Some((shown, node)) = shown.and_then(|shown| Some((shown, shown.node()?))) else {
        return Err(Status::new(
            Reason::Unauthorized,
            "the certificate of a node is needed: join first ('edgesync join')",
        ));
    };
    // Expired ones are let in here, for renewals; revoked ones are not.
    if shown.not_after() <= now() {
        let message = format!("the certificate has ended on {}: renew it first", shown.not_after());
        return Err(Status::new(Reason::Forbidden, message));
    }
    // Whoever has a certificate that is good and is no member was removed.
    let removed = pairing.shared.membership.member(node).await?.is_none();
    let membership = Membership {
        node: node.to_owned(),
        broker: pairing.shared.broker.clone(),
        prefix: pairing.shared.prefix.clone(),
        time: now().to_string(),
        removed,
    };
    let body = serde_json::to_vec(&membership).map_err(Status::internal)?;
    Ok(Answer { media: "application/json", body })
}

/// As HTTP. What has gone wrong in here is for the log, not for whoever asks.
fn reply(answer: Result<Answer>, peer: SocketAddr, is_question: bool, refusals: &LogThrottle) -> Reply {
    let (code, media, body) = match answer {
        Ok(answer) => (200, answer.media, answer.body),
        Err(status) if status.code >= 500 => {
            tracing::error!(%peer, "a request to the join service has failed: {}", status.message.escape_debug());
            let message = "the cloud side has failed: try again; its log says why\n";
            (status.code, "text/plain; charset=utf-8", message.into())
        }
        Err(status) => {
            if is_question {
                tracing::debug!(%peer, "asked whether this is a CloudCore");
            } else if let Some(left_out) = refusals.line() {
                let code = status.code;
                tracing::info!(%peer, code, left_out, "refused to join or renew: {}", status.message.escape_debug());
            }
            (status.code, "text/plain; charset=utf-8", format!("{}\n", status.message).into_bytes())
        }
    };
    let mut headers = vec![("content-type".to_owned(), media.to_owned())];
    match code {
        401 => headers.push(("www-authenticate".to_owned(), "Bearer".to_owned())),
        405 => headers.push(("allow".to_owned(), "GET, POST".to_owned())),
        429 => headers.push(("retry-after".to_owned(), "3600".to_owned())),
        _ => {}
    }
    Reply { code, headers, body }
}
