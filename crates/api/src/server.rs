//! The HTTP server: connections, their limits, and the way from a raw request to its response.

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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::accept::choose;
use super::audit::Actor;
use super::auth::{Access, Caller, Peer, Role};
use super::body::{HttpBody, Rooms};
use super::browser;
use super::dispatch::{Api, Head, Schemas};
use super::extension::Extension;
use super::limits::Limits;
use super::listen::{Accepted, Listener};
use super::media::{self, Format};
use super::metrics::ApiMetrics;
use super::request::{Refusal, Request, Verb};
use super::response::compress;
use super::response::{self, ResponseBody};
use super::room::Work;
use super::snapshots::{SnapshotLimits, Snapshots};
use super::stall::NoStall;
use super::storage::Storage;
use super::turns::Turns;
use super::visitor::{Kept, Stay, Visitor};
use edgesync_object::status::{Reason, Result};
use edgesync_object::{Resource, Status};
use edgesync_transport::admission::{
    ConnectionLimiter, ConnectionLimits, LogThrottle, Origin, Queue, QueueLimits,
};

/// How long accepting pauses after the system refused a connection (out of file descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a program on this machine may take to begin, and for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first byte of TLS: no request begins with it.
const TLS_HANDSHAKE: u8 = 0x16;
/// The most header fields of a request.
const MAX_HEADERS: usize = 64;

/// How long a snapshot waits for the next request of its client. An open one keeps the database's log from being
/// reused, so it is let go of after [`SNAPSHOT_AGE`] in any case.
const SNAPSHOT_IDLE: Duration = Duration::from_secs(60);
/// How long a snapshot lives at most.
const SNAPSHOT_AGE: Duration = Duration::from_secs(300);
/// How often snapshots that have waited too long are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(15);

/// A server over a storage of objects and further paths. Several listeners can share one, and its
/// limits with it.
pub struct Server<K: Storage, E = ()> {
    api: Api<K, E>,
    access: Access,
    limits: Limits,
    rooms: Rooms,
    /// Lines of the log about handshakes that fail.
    no_tls: LogThrottle,
}

impl<K: Storage, E: Extension> Server<K, E> {
    /// A server; nothing is served until [`Server::serve`].
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
                turns: Turns::default(),
                work: Work::new(limits.values_bytes, limits.body_timeout),
                object_bytes: limits.body_bytes,
                stopping: watch::channel(false).0,
            },
            access,
            rooms: Rooms::new(&limits),
            limits,
            no_tls: LogThrottle::new(),
        })
    }

    /// Serves a listener until `shutdown`; then requests under way are finished, for at most the drain
    /// timeout.
    pub async fn serve(self: &Arc<Self>, listener: Listener, shutdown: impl Future<Output = ()> + Send) {
        let (stop, stopped) = watch::channel(());
        let watches = limiter(self.limits.watches);
        let limits = QueueLimits { most: self.limits.connections, silence: self.limits.first_timeout };
        let mut queue = Queue::new(limiter(self.limits.connections), limits);
        let full = LogThrottle::new();
        let mut tasks = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        loop {
            let Ok((accepted, permit)) = tokio::select! {
                () = &mut shutdown => break,
                admitted = queue.next(|| async { Ok::<_, Infallible>(accept(&listener).await) }) => admitted,
                Some(_) = tasks.join_next() => continue,
                _ = sweep.tick() => {
                    self.api.snapshots.sweep();
                    continue;
                }
            };
            let Some(permit) = permit else {
                if let Some(left_out) = full.line() {
                    let origin = accepted.origin();
                    tracing::warn!(?origin, left_out, "too many connections to the API: closed");
                }
                continue;
            };
            let visitor = Visitor::new(permit, Arc::clone(&watches));
            match accepted {
                Accepted::Tcp(stream, from, None) => {
                    let stream = Box::new(stream);
                    tasks.spawn(Arc::clone(self).attend(stream, Peer::Tcp(from), stopped.clone(), visitor));
                }
                Accepted::Tcp(stream, from, Some(tls)) => {
                    tasks.spawn(Arc::clone(self).attend_local(stream, from, tls, stopped.clone(), visitor));
                }
                Accepted::Tls(stream, from, tls) => {
                    tasks.spawn(Arc::clone(self).attend_tls(stream, from, tls, stopped.clone(), visitor));
                }
                Accepted::Unix(stream, uid) => {
                    let (stream, peer) = (Box::new(stream), Peer::Unix { uid });
                    tasks.spawn(Arc::clone(self).attend(stream, peer, stopped.clone(), visitor));
                }
            }
        }
        // The address is free, and a socket's file gone, before the last requests are answered.
        let address = listener.address().clone();
        drop(listener);
        drop(stop);
        self.api.stopping.send_replace(true);
        let drained = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.limits.drain_timeout, drained).await.is_err() {
            tracing::warn!(%address, connections = tasks.len(), "cutting connections that are still busy");
        }
        tasks.shutdown().await;
    }

    /// Makes the handshake, which delays nobody else, and serves the connection while its certificate is good.
    async fn attend_tls(
        self: Arc<Self>,
        stream: tokio::net::TcpStream,
        from: std::net::SocketAddr,
        tls: edgesync_transport::tls::Server,
        mut stopped: watch::Receiver<()>,
        visitor: Visitor,
    ) {
        let secured = tokio::select! {
            secured = super::secure::accept(stream, from, &tls, &self.no_tls) => secured,
            () = visitor.must_go(Duration::MAX) => return,
            // The other end is dropped when the shutdown begins.
            _ = stopped.changed() => return,
        };
        let Some(secured) = secured else { return };
        let access = self.access.clone();
        let refused = access.until_refused(&secured.peer);
        let served = self.attend(Box::new(secured.stream), secured.peer.clone(), stopped, visitor);
        let ended = tokio::time::sleep(secured.lasts);
        let why = tokio::select! {
            () = served => return,
            () = ended => "has ended",
            () = refused => "was revoked",
        };
        tracing::info!(peer = %from, "the certificate of a client of the API {why}: its connection is cut");
    }

    /// Serves a connection of this machine, with TLS or without.
    async fn attend_local(
        self: Arc<Self>,
        stream: TcpStream,
        from: std::net::SocketAddr,
        tls: edgesync_transport::tls::Local,
        mut stopped: watch::Receiver<()>,
        visitor: Visitor,
    ) {
        let begun = tokio::select! {
            begun = local(stream, &tls) => begun,
            () = visitor.must_go(self.limits.first_timeout) => return,
            _ = stopped.changed() => return,
        };
        let Some(stream) = begun else { return };
        self.attend(stream, Peer::Tcp(from), stopped, visitor).await;
    }

    /// Serves one connection.
    async fn attend(
        self: Arc<Self>,
        stream: Box<dyn Wire>,
        peer: Peer,
        mut stopped: watch::Receiver<()>,
        visitor: Visitor,
    ) {
        let (server, visitor) = (Arc::clone(&self), Arc::new(visitor));
        let asking = Arc::clone(&visitor);
        let service = service_fn(move |request| {
            let (server, visitor) = (Arc::clone(&server), Arc::clone(&asking));
            let peer = peer.clone();
            async move { Ok::<_, Infallible>(server.respond(request, &peer, &visitor).await) }
        });
        let io = TokioIo::new(NoStall::new(stream, self.limits.write_timeout));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head_timeout)
            .max_buf_size(self.limits.head_bytes.max(8 << 10))
            .max_headers(MAX_HEADERS)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = visitor.must_go(self.limits.first_timeout) => return,
            // The other end is dropped when the shutdown begins.
            _ = stopped.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection to the API ended early");
        }
    }

    async fn respond(
        &self,
        request: HttpRequest<Incoming>,
        peer: &Peer,
        visitor: &Visitor,
    ) -> Response<Kept> {
        visitor.asks();
        let (started, mut stay) = (Instant::now(), None);
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let parsed = Request::parse(method.as_str(), uri.path(), uri.query());
        let label = Label::of(&parsed, &*self.api.storage);
        let gzip = takes_gzip(request.headers());
        let unread = AtomicBool::new(!request.body().is_end_stream());
        let mut response = self.answer(request, parsed, peer, (visitor, &mut stay), &unread).await;
        if unread.into_inner() {
            // Nobody is to send another request behind a body that nobody will read.
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
        response.map(|body| Kept { body, stay })
    }

    async fn answer(
        &self,
        request: HttpRequest<Incoming>,
        parsed: Result<Request, Refusal>,
        peer: &Peer,
        (visitor, stay): (&Visitor, &mut Option<Stay>),
        unread: &AtomicBool,
    ) -> Response<ResponseBody> {
        let (head, body) = request.into_parts();
        let stray = match peer {
            Peer::Tcp(_) if !is_local(&head.headers) => {
                Some("requests must come from this machine: the Host or Origin header names another one")
            }
            Peer::Tls(_) | Peer::Certificate { .. } if !is_same_origin(&head.headers) => {
                Some("requests of web pages must come from this server: the Origin header names another one")
            }
            _ => None,
        };
        let stray = stray.or_else(|| match peer {
            Peer::Unix { .. } => None,
            _ if !self.access.is_of_operators() => None,
            _ => browser::refusal(&head.method, &head.headers, &parsed),
        });
        if let Some(message) = stray {
            return response::status(&Status::new(Reason::Forbidden, message), "", Format::Json);
        }
        let authorization = header(&head.headers, &AUTHORIZATION);
        let open = matches!(parsed, Ok(Request::Health(_) | Request::Version));
        let open = open || matches!(parsed, Ok(Request::Page(_)));
        if matches!(parsed, Ok(Request::Discovery(super::request::Discovery::Root)))
            && browser::wants_html(&head.headers)
            && self.api.extension.file("").is_some()
        {
            return browser::to_page();
        }
        let mut is_known = true;
        let caller = match self.access.authenticate(authorization, peer) {
            Ok(caller) => caller,
            Err(_) if open => {
                is_known = false;
                Caller { name: "anybody".into(), role: Role::View }
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
            match visitor.stay(is_watch) {
                Ok(stays) => *stay = Some(stays),
                Err(status) => return response::status(&status, "", Format::Json),
            }
        }
        let accept = header(&head.headers, &ACCEPT);
        let info = Head {
            accept,
            content_type: header(&head.headers, &CONTENT_TYPE),
            user_agent: header(&head.headers, &USER_AGENT),
            if_none_match: header(&head.headers, &IF_NONE_MATCH),
            actor: Actor { caller: &caller, peer },
        };
        let body = HttpBody::new(body, info.content_type, &self.limits, &self.rooms, unread);
        match self.api.answer(request, info, body).await {
            Ok(response) => response,
            Err(Refusal { status, allow }) => {
                let accepted = media::Accepted::read(accept, false).unwrap_or_default();
                response::status(&status, allow, accepted.format)
            }
        }
    }
}

/// A connection of any kind. HTTP over it is compiled once, for all of them.
trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}

impl<I: AsyncRead + AsyncWrite + Unpin + Send> Wire for I {}

/// A connection of this machine, after its handshake if it begins with one. `None` if that fails or takes too long.
async fn local(stream: TcpStream, tls: &edgesync_transport::tls::Local) -> Option<Box<dyn Wire>> {
    let begun = async {
        let mut first = [0];
        stream.peek(&mut first).await.ok()?;
        if first != [TLS_HANDSHAKE] {
            return Some(Box::new(stream) as Box<dyn Wire>);
        }
        match tls.accept(stream).await {
            Ok(stream) => Some(Box::new(stream) as Box<dyn Wire>),
            Err(error) => {
                tracing::debug!(%error, "no TLS with a client of the API");
                None
            }
        }
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, begun).await.ok().flatten()
}

/// What a request counts as.
struct Label {
    verb: &'static str,
    /// `None` for what is no kind that is served.
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

/// Creates a limiter of a listener: half of its permits for one origin.
fn limiter(total: usize) -> Arc<ConnectionLimiter> {
    ConnectionLimiter::new(ConnectionLimits { total, per_origin: total / 2 })
}

/// The next connection.
async fn accept(listener: &Listener) -> (Origin, Accepted) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return (accepted.origin(), accepted),
            Err(error) => {
                tracing::warn!(address = %listener.address(), %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    // A header that is no text is as good as one that names an unknown type.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Whether a client takes compressed answers.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = header(headers, &ACCEPT_ENCODING).unwrap_or_default();
    choose(accepted, |coding, _| (coding == "gzip").then_some(())).is_some()
}

/// Whether a request over TCP was meant for this machine by a program on it. A web page that a browser
/// shows can send requests to loopback too; these two headers give it away.
fn is_local(headers: &HeaderMap) -> bool {
    let host = header(headers, &HOST).is_none_or(is_loopback_name);
    let origin = header(headers, &ORIGIN);
    host && origin
        .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, host)| is_loopback_name(host)))
}

/// Whether a request is not from a web page of elsewhere: a browser that has a certificate shows it for those too.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = header(headers, &ORIGIN) else { return true };
    origin.strip_prefix("https://").is_some_and(|origin| header(headers, &HOST) == Some(origin))
}

/// Whether `host[:port]` is loopback.
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
    fn only_names_of_this_machine_are_local() {
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
    fn a_web_page_of_elsewhere_is_told_by_its_origin() {
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
    fn over_tls_only_pages_of_the_server_itself_may_ask() {
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
