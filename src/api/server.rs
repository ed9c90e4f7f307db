//! The HTTP server: connections, their limits, and the way from a raw request to its response.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use super::dispatch::{self, ReadBody};
use super::listen::{Accepted, Listener};
use super::media::{self, Format};
use super::objects::{Extension, Objects};
use super::request::{Refusal, Request};
use super::response::{self, ResponseBody};
use super::stall::NoStall;
use crate::object::Status;
use crate::object::status::{Reason, Result};

/// How long accepting pauses after the system refused a connection (out of file descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most header fields of a request.
const MAX_HEADERS: usize = 64;
/// The unit in which memory for bodies is handed out.
const BODY_UNIT: usize = 1 << 10;

/// What a server gives to its clients at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest body of a request, in bytes.
    pub body_bytes: usize,
    /// All bodies that are read at one time, in bytes; at least one of the longest fits.
    pub bodies_bytes: usize,
    /// The longest head of a request, in bytes; at least 8 KiB.
    pub head_bytes: usize,
    /// Connections at one time; others wait to be accepted.
    pub connections: usize,
    /// How long a client may take for the head of a request, and stay idle between two.
    pub head_timeout: Duration,
    /// How long a client may take for the body of a request, waiting for memory included.
    pub body_timeout: Duration,
    /// How long a client may read nothing of its response.
    pub write_timeout: Duration,
    /// How long requests may go on after the shutdown has begun.
    pub drain_timeout: Duration,
}

impl Limits {
    /// For the cloud: objects of several megabytes are stored.
    #[must_use]
    pub fn cloud() -> Self {
        Self {
            body_bytes: 32 << 20,
            bodies_bytes: 64 << 20,
            head_bytes: 16 << 10,
            connections: 256,
            head_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
        }
    }

    /// For the edge: small memory, a few local clients that read.
    #[must_use]
    pub fn edge() -> Self {
        Self {
            body_bytes: 4 << 10,
            bodies_bytes: 64 << 10,
            head_bytes: 8 << 10,
            connections: 32,
            ..Self::cloud()
        }
    }
}

/// A server over a keeper of objects and further paths. Several listeners can share one, and its
/// limits with it.
pub struct Server<O, E = ()> {
    objects: Arc<O>,
    extension: E,
    limits: Limits,
    connections: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
}

impl<O: Objects, E: Extension> Server<O, E> {
    /// A server; nothing is served until [`Server::serve`].
    #[must_use]
    pub fn new(objects: Arc<O>, extension: E, limits: Limits) -> Arc<Self> {
        let units = limits.bodies_bytes.max(limits.body_bytes).div_ceil(BODY_UNIT);
        Arc::new(Self {
            objects,
            extension,
            connections: Arc::new(Semaphore::new(limits.connections.max(1))),
            bodies: Arc::new(Semaphore::new(units.clamp(1, Semaphore::MAX_PERMITS))),
            limits,
        })
    }

    /// Serves a listener until `shutdown`; then requests under way are finished, for at most the drain
    /// timeout.
    pub async fn serve(self: &Arc<Self>, listener: Listener, shutdown: impl Future<Output = ()> + Send) {
        let (stop, stopped) = watch::channel(());
        let mut tasks = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                accepted = accept(&listener) => accepted,
                Some(_) = tasks.join_next() => continue,
            };
            // Beyond the limit a connection waits here, and those after it in the system's queue.
            let permit = tokio::select! {
                () = &mut shutdown => break,
                permit = Arc::clone(&self.connections).acquire_owned() => permit.ok(),
            };
            match accepted {
                Accepted::Tcp(stream) => self.spawn(&mut tasks, stopped.clone(), stream, permit, true),
                Accepted::Unix(stream) => self.spawn(&mut tasks, stopped.clone(), stream, permit, false),
            }
        }
        // The address is free, and a socket's file gone, before the last requests are answered.
        let address = listener.address().clone();
        drop(listener);
        drop(stop);
        let drained = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.limits.drain_timeout, drained).await.is_err() {
            tracing::warn!(%address, connections = tasks.len(), "cutting connections that are still busy");
        }
        tasks.shutdown().await;
    }

    fn spawn<I>(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        mut stopped: watch::Receiver<()>,
        stream: I,
        permit: Option<OwnedSemaphorePermit>,
        tcp: bool,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let server = Arc::clone(self);
        let service = service_fn(move |request| {
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(server.respond(request, tcp).await) }
        });
        let io = TokioIo::new(NoStall::new(stream, self.limits.write_timeout));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head_timeout)
            .max_buf_size(self.limits.head_bytes.max(8 << 10))
            .max_headers(MAX_HEADERS)
            .serve_connection(io, service);
        tasks.spawn(async move {
            let _permit = permit;
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                // The other end is dropped when the shutdown begins.
                _ = stopped.changed() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to the API ended early");
            }
        });
    }

    async fn respond(&self, request: HttpRequest<Incoming>, tcp: bool) -> Response<ResponseBody> {
        let started = Instant::now();
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let response = self.answer(request, tcp).await;
        let status = response.status().as_u16();
        let elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(%method, path = uri.path(), status, elapsed_us, "API request");
        response
    }

    async fn answer(&self, request: HttpRequest<Incoming>, tcp: bool) -> Response<ResponseBody> {
        let (head, body) = request.into_parts();
        if tcp && !is_local(&head.headers) {
            let message = "requests must come from this machine: the Host or Origin header names another one";
            return response::status(&Status::new(Reason::Forbidden, message), "", Format::Json);
        }
        let parsed = Request::parse(head.method.as_str(), head.uri.path(), head.uri.query());
        let request = match parsed {
            Ok(request) => request,
            Err(refusal) => return response::status(&refusal.status, refusal.allow, Format::Json),
        };
        let pretty = matches!(&request, Request::Objects { options, .. } if options.pretty);
        let format = match Format::accepted(header(&head.headers, &ACCEPT), pretty) {
            Ok(format) => format,
            Err(status) => return response::status(&status, "", Format::Json),
        };
        let body = HttpBody {
            body,
            content_type: header(&head.headers, &CONTENT_TYPE),
            limits: &self.limits,
            memory: &self.bodies,
        };
        match dispatch::answer(&self.objects, &self.extension, request, format, body).await {
            Ok(response) => response,
            Err(Refusal { status, allow }) => response::status(&status, allow, format),
        }
    }
}

/// The next connection.
async fn accept(listener: &Listener) -> Accepted {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
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

/// Whether a request over TCP was meant for this machine by a program on it. A web page that a browser
/// shows can send requests to loopback too; these two headers give it away.
fn is_local(headers: &HeaderMap) -> bool {
    let host = header(headers, &HOST).is_none_or(is_loopback_name);
    let origin = header(headers, &ORIGIN);
    host && origin
        .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, host)| is_loopback_name(host)))
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

/// The body of a request, still on the connection.
struct HttpBody<'a> {
    body: Incoming,
    content_type: Option<&'a str>,
    limits: &'a Limits,
    memory: &'a Semaphore,
}

impl ReadBody for HttpBody<'_> {
    async fn read(self) -> Result<Value> {
        let limit = self.limits.body_bytes;
        let announced = self.body.size_hint();
        if announced.lower() > limit as u64 {
            return Err(Status::too_large(limit));
        }
        // A body of unknown length may turn out to be of any length up to the limit.
        let longest =
            announced.upper().and_then(|upper| usize::try_from(upper).ok()).unwrap_or(limit).min(limit);
        let units = u32::try_from(longest.div_ceil(BODY_UNIT)).unwrap_or(u32::MAX);
        let reading = async {
            let _memory = self.memory.acquire_many(units).await.map_err(Status::internal)?;
            let read = Limited::new(self.body, limit).collect().await;
            let read = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
                Some(_) => Status::too_large(limit),
                None => Status::bad_request(format!("the body could not be read: {error}")),
            })?;
            media::read_body(self.content_type, &read.to_bytes())
        };
        match tokio::time::timeout(self.limits.body_timeout, reading).await {
            Ok(body) => body,
            Err(_) => Err(Status::too_many_requests("the body did not arrive in time", 1)),
        }
    }
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
}
