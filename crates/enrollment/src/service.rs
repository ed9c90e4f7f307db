//! The join service: `GET /ca.crt`, `GET` or `POST /edge.crt`, `GET /edgesync/v1/join`, over TLS on
//! its own port, or on one that it shares with other services.
//!
//! The first two calls are KubeEdge's. A refusal is one line of text, which the device prints.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{EnrollmentService, now, parse_node};
use edgesync_api::exchange::{ExchangeLimits, HttpRequest, HttpResponse, serve_connection};
use edgesync_join::Membership;
use edgesync_join::calls::MEMBERSHIP;
use edgesync_object::status::{Reason, Result, Status};
use edgesync_transport::admission::{
    ConnectionLimiter, ConnectionLimits, LinePermit, LogThrottle, Origin, Permit, Queue, QueueLimits, Tcp,
    Visitor,
};
use edgesync_transport::link::stream::Stream;
use edgesync_transport::shared::{Arrival, Inlet};
use edgesync_transport::tls::Certificate;

/// Maximum number of connections. Beyond it, those that have been silent longest are closed.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of connections per address.
pub(super) const MAX_PER_ADDRESS: usize = 64;
/// Maximum number of connections that wait for a permit, and as many again that have sent nothing
/// yet.
const MAX_QUEUED: usize = 1024;
/// Time limit of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a connection: handshake, requests and answers.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a certificate request. One with an 8192-bit RSA key has 2.3 KB.
const MAX_BODY: usize = 16 << 10;
/// Paths of the service, for a listener that it shares with others.
pub const PATHS: &[&str] = &[CA, CERTIFICATE, MEMBERSHIP];
const CA: &str = "/ca.crt";
const CERTIFICATE: &str = "/edge.crt";
/// Delay after a failed accept: the process has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds a listener for devices. Returns it with the address that the system chose for port 0.
pub(super) async fn listen(address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let failed = || format!("listen on {address} for the join service");
    let listener = TcpListener::bind(address).await.with_context(failed)?;
    let address = listener.local_addr().with_context(failed)?;
    Ok((listener, address))
}

/// The join service, bound to its address.
pub struct JoinService {
    listener: TcpListener,
    address: SocketAddr,
    per_address: usize,
    service: EnrollmentService,
}

impl JoinService {
    /// Binds the listener.
    ///
    /// # Errors
    /// The address is in use.
    pub async fn bind(address: SocketAddr, service: EnrollmentService) -> anyhow::Result<Self> {
        let (listener, address) = listen(address).await?;
        Ok(Self { listener, address, per_address: MAX_PER_ADDRESS, service })
    }

    /// Lifts the limit per address: the clients are relays of replicas, which limit devices
    /// themselves.
    #[must_use]
    pub fn behind_relays(self) -> Self {
        Self { per_address: MAX_CONNECTIONS, ..self }
    }

    /// The bound address, with the port that the system chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is dropped. At most 256 connections are open, 64 per address; beyond that,
    /// those that have been silent longest are closed. A connection is closed after 30 s.
    pub async fn serve(self) {
        let Self { listener, per_address, service, .. } = self;
        let accept = || Tcp::accept(&listener);
        accept_all(accept, per_address, move |Tcp(stream, peer), permit| {
            connection(service.clone(), stream, peer, permit)
        })
        .await;
    }
}

/// Serves the connections of a shared listener until it is dropped, within limits of its own,
/// which are those of [`JoinService::serve`].
pub async fn serve_shared(inlet: Inlet, service: EnrollmentService) {
    let accept = || async {
        let arrival = inlet.next().await;
        Ok::<_, io::Error>((arrival.origin(), Shared(arrival)))
    };
    accept_all(accept, MAX_PER_ADDRESS, move |Shared(arrival), permit| {
        arrived(service.clone(), arrival, permit)
    })
    .await;
}

/// A connection with the address of its peer.
pub(super) trait Peer {
    fn peer(&self) -> SocketAddr;
}

impl Peer for Tcp {
    fn peer(&self) -> SocketAddr {
        self.1
    }
}

/// A connection of a shared listener: its client has sent something.
struct Shared(Arrival);

impl Peer for Shared {
    fn peer(&self) -> SocketAddr {
        self.0.peer
    }
}

impl Visitor for Shared {
    fn readable(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Accepts connections of devices within the limits, and serves each until it ends, is evicted, or
/// [`CONNECTION_TIMEOUT`] has passed. Never returns. `accept` must be safe to cancel.
pub(super) async fn accept_all<C, A, F>(
    accept: impl Fn() -> A,
    per_address: usize,
    serve: impl Fn(C, Arc<Permit>) -> F,
) where
    C: Visitor + Peer,
    A: Future<Output = io::Result<(Origin, C)>>,
    F: Future<Output = ()> + Send + 'static,
{
    let limiter =
        ConnectionLimiter::new(ConnectionLimits { total: MAX_CONNECTIONS, per_origin: per_address });
    let mut queue = Queue::new(limiter, QueueLimits { most: MAX_QUEUED, silence: HANDSHAKE_TIMEOUT });
    let overflow_log = LogThrottle::new();
    // Dropping the set aborts all connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            admitted = queue.next(&accept) => match admitted {
                Ok((accepted, Some(permit))) => {
                    let (peer, permit) = (accepted.peer(), Arc::new(permit));
                    let served = serve(accepted, Arc::clone(&permit));
                    connections.spawn(async move {
                        tokio::select! {
                            _ = timeout(CONNECTION_TIMEOUT, served) => {}
                            () = permit.evicted() => {
                                tracing::debug!(%peer, "slow connection to the join service closed");
                            }
                        }
                    });
                }
                Ok((accepted, None)) => {
                    if let Some(LinePermit { suppressed }) = overflow_log.permit_line() {
                        let peer = accepted.peer();
                        tracing::warn!(%peer, suppressed, "too many connections to the join service: connection closed");
                    }
                }
                Err(error) => {
                    tracing::warn!("accept a connection to the join service: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn connection(service: EnrollmentService, stream: TcpStream, peer: SocketAddr, permit: Arc<Permit>) {
    permit.progressed();
    let (stream, presented) = match timeout(HANDSHAKE_TIMEOUT, service.joining_tls().accept(stream)).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => return tracing::debug!(%peer, ?error, "TLS handshake with the join service failed"),
        Err(_) => return tracing::debug!(%peer, "TLS handshake with the join service timed out"),
    };
    serve_stream(service, Box::new(stream), presented, peer, permit).await;
}

/// Serves a connection of a shared listener. The handshake may have been completed before the
/// last revocation, so the rule of the service decides here.
async fn arrived(service: EnrollmentService, arrival: Arrival, permit: Arc<Permit>) {
    permit.progressed();
    let Arrival { stream, peer, presented, .. } = arrival;
    match service.joining_tls().admit(&presented) {
        Ok(presented) => serve_stream(service, stream, presented, peer, permit).await,
        Err(error) => tracing::debug!(%peer, ?error, "client of the join service refused"),
    }
}

async fn serve_stream(
    service: EnrollmentService,
    stream: Box<dyn Stream>,
    presented: Option<Certificate>,
    peer: SocketAddr,
    permit: Arc<Permit>,
) {
    // A client with a certificate is a known node that renews: its permit is not revoked.
    let _busy = presented.as_ref().map(|_| permit.busy());
    let presented = presented.map(Arc::new);
    let limits = ExchangeLimits { body_bytes: MAX_BODY, patience: CONNECTION_TIMEOUT };
    let answer = move |question: HttpRequest| {
        let (service, presented) = (service.clone(), presented.clone());
        // A device makes this call before it joins, to find out whether this is a CloudCore, which
        // does not know it.
        let is_probe = presented.is_none() && question.path == MEMBERSHIP;
        async move {
            reply(
                answer(&service, presented.as_deref(), &question).await,
                peer,
                is_probe,
                &service.shared.refusals,
            )
        }
    };
    serve_connection(stream, limits, Arc::new(answer)).await;
}

struct Answer {
    media: &'static str,
    body: Vec<u8>,
}

async fn answer(
    service: &EnrollmentService,
    presented: Option<&Certificate>,
    question: &HttpRequest,
) -> Result<Answer> {
    let path = question.path.split('?').next().unwrap_or_default();
    let der = |certificate: &Certificate| Answer {
        media: "application/octet-stream",
        body: certificate.der().to_vec(),
    };
    match (path, question.method.as_str()) {
        (CA, "GET") => Ok(der(&service.shared.ca)),
        (CERTIFICATE, "GET" | "POST") => Ok(der(&certificate(service, presented, question).await?)),
        (MEMBERSHIP, "GET") => membership(service, presented).await,
        (CA | CERTIFICATE | MEMBERSHIP, _) => Err(Status::new(Reason::MethodNotAllowed, "use GET")),
        _ => Err(Status::new(
            Reason::NotFound,
            "path not found: the join service has /ca.crt, /edge.crt and /edgesync/v1/join",
        )),
    }
}

/// Issues a certificate for a token, or renews the presented one. A token takes precedence: its
/// sender wants to join again.
///
/// # Errors
/// 422 for an invalid header `NodeName`, before token or certificate are examined. 403 if a
/// certificate without a node, of an operator, is to be renewed. Others as for
/// [`EnrollmentService::join`] and [`EnrollmentService::renew`].
async fn certificate(
    service: &EnrollmentService,
    presented: Option<&Certificate>,
    question: &HttpRequest,
) -> Result<Certificate> {
    let named = question.header("nodename");
    if let Some(bearer) = bearer(question) {
        let Some(node) = named else {
            return Err(Status::bad_request("header NodeName missing"));
        };
        return service.join(bearer, &parse_node(node)?, &question.body).await;
    }
    let Some(presented) = presented else {
        return Err(Status::new(
            Reason::Unauthorized,
            "neither a token to join (header Authorization: Bearer …) nor a certificate to renew; hint: create a token \
             with 'edgesync-cloud token create'",
        ));
    };
    let Some(node) = named.or(presented.node()) else {
        return Err(Status::new(
            Reason::Forbidden,
            "presented certificate is not of a node; hint: join with a token from 'edgesync-cloud token create'",
        ));
    };
    service.renew(presented, &parse_node(node)?, &question.body).await
}

/// The token of the header `Authorization`; `None` for an empty one.
fn bearer(question: &HttpRequest) -> Option<&str> {
    let (scheme, token) = question.header("authorization")?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

async fn membership(service: &EnrollmentService, presented: Option<&Certificate>) -> Result<Answer> {
    let named = presented.and_then(|presented| Some((presented, parse_node(presented.node()?).ok()?)));
    let Some((presented, node)) = named else {
        return Err(Status::new(
            Reason::Unauthorized,
            "no client certificate of a node; hint: join first ('edgesync join')",
        ));
    };
    // TLS accepts expired certificates here, for renewals, but no revoked ones.
    if presented.not_after() <= now() {
        let message = format!("certificate expired {}: renew it first", presented.not_after());
        return Err(Status::new(Reason::Forbidden, message));
    }
    // A node with a valid certificate that is no member was removed.
    let removed = service.shared.membership.member(&node).await?.is_none();
    let membership = Membership {
        node: node.to_string(),
        broker: service.shared.broker.clone(),
        brokers: service.shared.brokers.clone(),
        prefix: service.shared.prefix.clone(),
        time: now().to_string(),
        removed,
    };
    let body = serde_json::to_vec(&membership).map_err(Status::internal)?;
    Ok(Answer { media: "application/json", body })
}

/// Converts an answer to HTTP. Internal errors go to the log, not to the client.
fn reply(answer: Result<Answer>, peer: SocketAddr, is_probe: bool, refusals: &LogThrottle) -> HttpResponse {
    let (code, media, body) = match answer {
        Ok(answer) => (200, answer.media, answer.body),
        Err(status) if status.code >= 500 => {
            tracing::error!(%peer, "request to the join service failed: {}", printable(&status.message));
            let message = "internal error of the cloud side, see its log; try again\n";
            (status.code, "text/plain; charset=utf-8", message.into())
        }
        Err(status) => {
            if is_probe {
                tracing::debug!(%peer, "CloudCore probe");
            } else if let Some(LinePermit { suppressed }) = refusals.permit_line() {
                let code = status.code;
                tracing::info!(%peer, code, suppressed, "join or renewal refused: {}", printable(&status.message));
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
    HttpResponse { code, headers, body }
}

/// Returns text for one line of the log: control characters are escaped, quotes stay.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_logged_on_one_line_with_plain_quotes() {
        assert_eq!(printable("hint: 'token create' \"a\""), "hint: 'token create' \"a\"");
        assert_eq!(printable("ä\n\x1b[1m"), "ä\\n\\u{1b}[1m");
    }
}
