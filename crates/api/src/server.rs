//! HTTP server: connections, their limits, and the path from a raw request to its response.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use hyper::body::{Body as _, Incoming};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HOST, HeaderMap,
    HeaderName, HeaderValue, IF_NONE_MATCH, ORIGIN, USER_AGENT,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::accept::choose;
use super::audit::{Actor, ReadThrottle};
use super::auth::{Access, Caller, Credential, Peer};
use super::body::{HttpBody, MemoryBudgets};
use super::browser;
use super::dispatch::{Api, Head, Schemas};
use super::extension::Extension;
use super::limits::Limits;
use super::listen::{Accepted, Listener};
use super::media::{self, Format};
use super::memory_budget::ObjectBudget;
use super::metrics::ApiMetrics;
use super::object_locks::ObjectLocks;
use super::permit::{ConnectionPermit, Lasting, PermitBody};
use super::request::{Refusal, Request, Verb};
use super::response::compress;
use super::response::{self, ResponseBody};
use super::secure::Secured;
use super::snapshots::{SnapshotLimits, Snapshots};
use super::storage::Storage;
use super::write_timeout::WriteTimeout;
use edgesync_object::status::{Reason, Result};
use edgesync_object::{Resource, Status};
use edgesync_transport::admission::{
    ConnectionLimiter, ConnectionLimits, LinePermit, LogThrottle, Origin, Queue, QueueLimits,
};
use edgesync_transport::link::stream::Stream;
use edgesync_transport::shared::Arrival;

/// Pause of accepting after the system refused a connection (mostly out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time limit of a local client for its first byte and the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first byte of a TLS handshake record; no HTTP request begins with it.
const TLS_HANDSHAKE: u8 = 0x16;
/// Maximum number of header fields of a request.
const MAX_HEADERS: usize = 64;

/// Maximum time for which a snapshot is held between two pages. An open snapshot keeps the database
/// from reusing its write-ahead log.
const SNAPSHOT_IDLE: Duration = Duration::from_secs(60);
/// Maximum age of a snapshot.
const SNAPSHOT_AGE: Duration = Duration::from_secs(300);
/// Interval of dropping expired snapshots.
const SWEEP_EVERY: Duration = Duration::from_secs(15);

/// An API server over a storage and an extension. Listeners can share one, and its memory budgets
/// and snapshots with it.
pub struct Server<K: Storage, E = ()> {
    api: Api<K, E>,
    access: Access,
    limits: Limits,
    budgets: MemoryBudgets,
    /// Throttles log lines about failed handshakes.
    handshake_log: LogThrottle,
}

impl<K: Storage, E: Extension> Server<K, E> {
    /// Creates a server; nothing is served until [`Server::serve`].
    #[must_use]
    pub fn new(storage: Arc<K>, extension: E, access: Access, limits: Limits) -> Arc<Self> {
        let snapshots = SnapshotLimits { count: limits.snapshots, idle: SNAPSHOT_IDLE, age: SNAPSHOT_AGE };
        Arc::new(Self {
            api: Api {
                storage,
                extension,
                metrics: Arc::new(ApiMetrics::default()),
                snapshots: Arc::new(Snapshots::new(snapshots)),
                schemas: Schemas::default(),
                locks: ObjectLocks::default(),
                access: access.clone(),
                read_entries: ReadThrottle::default(),
                object_budget: ObjectBudget::new(limits.values_bytes, limits.body_timeout),
                object_bytes: limits.body_bytes,
                stopping: watch::channel(false).0,
            },
            access,
            budgets: MemoryBudgets::new(&limits),
            limits,
            handshake_log: LogThrottle::new(),
        })
    }

    /// Serves a listener until `shutdown`; then waits for requests in flight, for at most the drain
    /// timeout.
    pub async fn serve(self: &Arc<Self>, listener: Listener, shutdown: impl Future<Output = ()> + Send) {
        let (stop, stopped) = watch::channel(());
        let watches = connection_limiter(self.limits.watches);
        let limits = QueueLimits { most: self.limits.connections, silence: self.limits.first_timeout };
        let mut queue = Queue::new(connection_limiter(self.limits.connections), limits);
        let limit_log = LogThrottle::new();
        let mut tasks = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        loop {
            let Ok((accepted, admitted)) = tokio::select! {
                () = &mut shutdown => break,
                admitted = queue.next(|| async { Ok::<_, Infallible>(accept(&listener).await) }) => admitted,
                Some(_) = tasks.join_next() => continue,
                _ = sweep.tick() => {
                    self.api.snapshots.sweep();
                    continue;
                }
            };
            let Some(admitted) = admitted else {
                if let Some(LinePermit { suppressed }) = limit_log.permit_line() {
                    let origin = accepted.origin();
                    tracing::warn!(?origin, suppressed, "too many API connections, closing the new one");
                }
                continue;
            };
            let permit = ConnectionPermit::new(admitted, Arc::clone(&watches));
            match accepted {
                Accepted::Tcp(stream, from, None) => {
                    let stream = Box::new(stream);
                    tasks.spawn(Arc::clone(self).serve_connection(
                        stream,
                        Peer::Tcp(from),
                        stopped.clone(),
                        permit,
                    ));
                }
                Accepted::Tcp(stream, from, Some(tls)) => {
                    tasks.spawn(Arc::clone(self).serve_local(stream, from, tls, stopped.clone(), permit));
                }
                Accepted::Tls(stream, from, tls) => {
                    tasks.spawn(Arc::clone(self).serve_tls(stream, from, tls, stopped.clone(), permit));
                }
                Accepted::Shared(arrival, tls) => {
                    tasks.spawn(Arc::clone(self).serve_shared(arrival, tls, stopped.clone(), permit));
                }
                Accepted::Unix(stream, uid) => {
                    let (stream, peer) = (Box::new(stream), Peer::Unix { uid });
                    tasks.spawn(Arc::clone(self).serve_connection(stream, peer, stopped.clone(), permit));
                }
            }
        }
        // Frees the address and removes the socket file before the last requests are answered.
        let address = listener.address().clone();
        drop(listener);
        drop(stop);
        self.api.stopping.send_replace(true);
        let drained = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.limits.drain_timeout, drained).await.is_err() {
            tracing::warn!(%address, connections = tasks.len(), "closing busy connections");
        }
        tasks.shutdown().await;
    }

    /// Performs the TLS handshake in this task, and serves the connection.
    async fn serve_tls(
        self: Arc<Self>,
        stream: tokio::net::TcpStream,
        from: std::net::SocketAddr,
        tls: edgesync_transport::tls::Server,
        mut stopped: watch::Receiver<()>,
        permit: ConnectionPermit,
    ) {
        let accepted = tokio::select! {
            accepted = super::secure::accept(stream, from, &tls, &self.handshake_log) => accepted,
            () = permit.must_close(Duration::MAX) => return,
            // The sender is dropped when the shutdown begins.
            _ = stopped.changed() => return,
        };
        let Some(accepted) = accepted else { return };
        self.serve_secured(accepted, from, stopped, permit).await;
    }

    /// Serves a connection of a shared listener, whose handshake did not require a certificate.
    async fn serve_shared(
        self: Arc<Self>,
        arrival: Box<Arrival>,
        tls: edgesync_transport::tls::Server,
        mut stopped: watch::Receiver<()>,
        permit: ConnectionPermit,
    ) {
        let Arrival { stream, peer: from, presented, .. } = *arrival;
        let admitted = tls.admit(&presented);
        // A connection may last for days.
        drop(presented);
        match admitted {
            Ok(certificate) => {
                let accepted = Secured::new(stream, from, certificate);
                self.serve_secured(accepted, from, stopped, permit).await;
            }
            Err(error) => {
                if let Some(LinePermit { suppressed }) = self.handshake_log.permit_line() {
                    tracing::info!(peer = %from, %error, suppressed, "API client without a valid certificate refused");
                }
                tokio::select! {
                    () = super::secure::refuse(stream, &error) => {}
                    () = permit.must_close(Duration::MAX) => {}
                    _ = stopped.changed() => {}
                }
            }
        }
    }

    /// Serves a connection while its certificate is valid and not revoked.
    async fn serve_secured(
        self: Arc<Self>,
        accepted: Secured,
        from: std::net::SocketAddr,
        stopped: watch::Receiver<()>,
        permit: ConnectionPermit,
    ) {
        let access = self.access.clone();
        let refused = access.until_revoked(&accepted.peer);
        let served = self.serve_connection(accepted.stream, accepted.peer.clone(), stopped, permit);
        let ended = tokio::time::sleep(accepted.valid_for);
        let reason = tokio::select! {
            () = served => return,
            () = ended => "expired",
            () = refused => "was revoked",
        };
        tracing::info!(peer = %from, "certificate of an API client {reason}, closing its connection");
    }

    /// Serves a connection of this machine, with or without TLS.
    async fn serve_local(
        self: Arc<Self>,
        stream: TcpStream,
        from: std::net::SocketAddr,
        tls: edgesync_transport::tls::Local,
        mut stopped: watch::Receiver<()>,
        permit: ConnectionPermit,
    ) {
        let accepted = tokio::select! {
            accepted = accept_local(stream, &tls) => accepted,
            () = permit.must_close(self.limits.first_timeout) => return,
            _ = stopped.changed() => return,
        };
        let Some(stream) = accepted else { return };
        self.serve_connection(stream, Peer::Tcp(from), stopped, permit).await;
    }

    async fn serve_connection(
        self: Arc<Self>,
        stream: Box<dyn Stream>,
        peer: Peer,
        mut stopped: watch::Receiver<()>,
        permit: ConnectionPermit,
    ) {
        let (server, permit) = (Arc::clone(&self), Arc::new(permit));
        let service_permit = Arc::clone(&permit);
        let service = service_fn(move |request| {
            let (server, permit) = (Arc::clone(&server), Arc::clone(&service_permit));
            let peer = peer.clone();
            async move { Ok::<_, Infallible>(server.respond(request, &peer, &permit).await) }
        });
        let io = TokioIo::new(WriteTimeout::new(stream, self.limits.write_timeout));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head_timeout)
            .max_buf_size(self.limits.head_bytes.max(8 << 10))
            .max_headers(MAX_HEADERS)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = permit.must_close(self.limits.first_timeout) => return,
            // The sender is dropped when the shutdown begins.
            _ = stopped.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "API connection ended early");
        }
    }

    async fn respond(
        &self,
        request: HttpRequest<Incoming>,
        peer: &Peer,
        permit: &ConnectionPermit,
    ) -> Response<PermitBody> {
        permit.request_started();
        let (started, mut lasting) = (Instant::now(), Lasting::default());
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let parsed = Request::parse(method.as_str(), uri.path(), uri.query());
        let label = Label::of(&parsed, &*self.api.storage);
        let gzip = accepts_gzip(request.headers());
        let body_unread = AtomicBool::new(!request.body().is_end_stream());
        let mut response = self.answer(request, parsed, peer, (permit, &mut lasting), &body_unread).await;
        if body_unread.into_inner() {
            // The unread body blocks the connection for further requests.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        let elapsed = started.elapsed();
        let status = response.status().as_u16();
        let bytes = response.body().size_hint().lower();
        self.api.metrics.record_request(label.verb, label.resource.as_deref(), status, elapsed, bytes);
        let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(%method, path = uri.path(), status, elapsed_us, "API request");
        let response = if gzip { compress::compressed(response) } else { response };
        response.map(|body| PermitBody { body, lasting })
    }

    async fn answer(
        &self,
        request: HttpRequest<Incoming>,
        parsed: Result<Request, Refusal>,
        peer: &Peer,
        (permit, lasting): (&ConnectionPermit, &mut Lasting),
        body_unread: &AtomicBool,
    ) -> Response<ResponseBody> {
        let (head, body) = request.into_parts();
        let cross_site = match peer {
            Peer::Tcp(_) if !is_local(&head.headers) => {
                Some("requests must come from this machine: the Host or Origin header names another one")
            }
            Peer::Tls(_) | Peer::Certificate { .. } if !is_same_origin(&head.headers) => {
                Some("requests of web pages must come from this server: the Origin header names another one")
            }
            _ => None,
        };
        let cross_site = cross_site.or_else(|| match peer {
            Peer::Unix { .. } => None,
            _ if !self.access.is_of_operators() => None,
            _ => browser::refusal(&head.method, &head.headers, &parsed),
        });
        if let Some(message) = cross_site {
            return response::status(&Status::new(Reason::Forbidden, message), "", Format::Json);
        }
        let authorization = header(&head.headers, &AUTHORIZATION);
        let open = matches!(parsed, Ok(Request::Health(_) | Request::Version));
        let open = open || matches!(parsed, Ok(Request::Page(_)));
        if matches!(parsed, Ok(Request::Discovery(super::request::Discovery::Root)))
            && browser::wants_html(&head.headers)
            && self.api.extension.file("").is_some()
        {
            return browser::redirect_to_page();
        }
        let mut is_known = true;
        let caller = match self.access.authenticate(authorization, peer) {
            Ok(caller) => caller,
            Err(_) if open => {
                is_known = false;
                Caller { name: "system:anonymous".into(), ..Caller::default() }
            }
            Err(status) if status.code == 401 => return response::unauthorized(&status),
            Err(status) => return response::status(&status, "", Format::Json),
        };
        let request = match parsed {
            Ok(request) => request,
            Err(refusal) => return response::status(&refusal.status, refusal.allow, Format::Json),
        };
        let is_watch = matches!(&request, Request::Objects(request) if request.verb == Verb::Watch);
        let is_watch = is_watch || browser::is_watch(&request);
        let caller = match self.access.is_of_operators() {
            true => browser::narrowed(caller, peer, &request),
            false => caller,
        };
        if is_known {
            match permit.for_request(is_watch) {
                Ok(stays) => lasting.permit = Some(stays),
                Err(status) => return response::status(&status, "", Format::Json),
            }
        }
        if is_watch && caller.credential == Credential::PageKey {
            lasting.ends = Some(Box::pin(self.access.until_key_ends(authorization)));
        }
        let accept = header(&head.headers, &ACCEPT);
        let info = Head {
            accept,
            content_type: header(&head.headers, &CONTENT_TYPE),
            user_agent: header(&head.headers, &USER_AGENT),
            if_none_match: header(&head.headers, &IF_NONE_MATCH),
            actor: Actor { caller: &caller, peer },
        };
        let body = HttpBody::new(body, info.content_type, &self.limits, &self.budgets, body_unread);
        match self.api.answer(request, info, body).await {
            Ok(response) => response,
            Err(Refusal { status, allow }) => {
                let accepted = media::Accepted::read(accept, false).unwrap_or_default();
                response::status(&status, allow, accepted.format)
            }
        }
    }
}

/// Accepts a local connection, with a handshake if it begins with one. `None` if that fails or
/// times out.
async fn accept_local(stream: TcpStream, tls: &edgesync_transport::tls::Local) -> Option<Box<dyn Stream>> {
    let accepted = async {
        let mut first = [0];
        stream.peek(&mut first).await.ok()?;
        if first != [TLS_HANDSHAKE] {
            return Some(Box::new(stream) as Box<dyn Stream>);
        }
        match tls.accept(stream).await {
            Ok(stream) => Some(Box::new(stream) as Box<dyn Stream>),
            Err(error) => {
                tracing::debug!(%error, "TLS handshake with an API client failed");
                None
            }
        }
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, accepted).await.ok().flatten()
}

/// The metric labels of a request.
struct Label {
    verb: &'static str,
    /// `None` for a resource that is not served.
    resource: Option<Arc<Resource>>,
}

impl Label {
    fn of(parsed: &Result<Request, Refusal>, storage: &impl Storage) -> Self {
        match parsed {
            Ok(Request::Objects(request)) => {
                let path = &request.path;
                let kind = storage.kind(&path.group, &path.version, &path.plural);
                let resource = kind.map(|kind| Arc::clone(&kind.resource));
                Self { verb: request.verb.as_str(), resource }
            }
            Ok(Request::Extension { .. }) | Err(_) => Self { verb: "other", resource: None },
            Ok(_) => Self { verb: "get", resource: None },
        }
    }
}

/// Creates the connection limiter of a listener: one client gets at most half.
fn connection_limiter(total: usize) -> Arc<ConnectionLimiter> {
    ConnectionLimiter::new(ConnectionLimits { total, per_origin: total / 2 })
}

/// Accepts the next connection, pausing after errors.
async fn accept(listener: &Listener) -> (Origin, Accepted) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return (accepted.origin(), accepted),
            Err(error) => {
                tracing::warn!(address = %listener.address(), %error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    // A value that is not text is treated as an unknown type.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Returns whether the client accepts gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = header(headers, &ACCEPT_ENCODING).unwrap_or_default();
    choose(accepted, |coding, _| (coding == "gzip").then_some(())).is_some()
}

/// Returns whether a TCP request was addressed to this machine by a local program. A web page in a
/// browser can send requests to loopback too; these two headers reveal it.
fn is_local(headers: &HeaderMap) -> bool {
    let host = header(headers, &HOST).is_none_or(is_loopback_name);
    let origin = header(headers, &ORIGIN);
    host && origin
        .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, host)| is_loopback_name(host)))
}

/// Returns whether a request is not cross-origin: browsers present a client certificate for those
/// too.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = header(headers, &ORIGIN) else { return true };
    origin.strip_prefix("https://").is_some_and(|origin| header(headers, &HOST) == Some(origin))
}

/// Returns whether `host[:port]` is loopback.
fn is_loopback_name(host: &str) -> bool {
    if let Ok(address) = host.parse::<std::net::SocketAddr>() {
        return address.ip().is_loopback();
    }
    let host = match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_local() {
        for good in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1", "[::1]:80", "[::1]"] {
            assert!(is_loopback_name(good), "{good}");
        }
        for bad in
            ["", "example.com", "localhost.example.com:80", "10.0.0.1:80", "127.0.0.1.example.com", "[::2]:1"]
        {
            assert!(!is_loopback_name(bad), "{bad}");
        }
    }

    #[test]
    fn cross_site_page_is_recognised_by_its_origin() {
        let mut headers = HeaderMap::new();
        assert!(is_local(&headers));
        headers.insert(HOST, "127.0.0.1:80".parse().unwrap());
        headers.insert(ORIGIN, "http://localhost:3000".parse().unwrap());
        assert!(is_local(&headers));
        headers.insert(ORIGIN, "null".parse().unwrap());
        assert!(!is_local(&headers));
        headers.insert(ORIGIN, "https://example.com".parse().unwrap());
        assert!(!is_local(&headers));
    }

    #[test]
    fn over_tls_only_same_origin_pages_are_accepted() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "cloud.example:10551".parse().unwrap());
        assert!(is_same_origin(&headers));
        headers.insert(ORIGIN, "https://cloud.example:10551".parse().unwrap());
        assert!(is_same_origin(&headers));
        for other in ["https://cloud.example", "http://cloud.example:10551", "null", "https://example.com"] {
            headers.insert(ORIGIN, other.parse().unwrap());
            assert!(!is_same_origin(&headers), "{other}");
        }
    }
}
