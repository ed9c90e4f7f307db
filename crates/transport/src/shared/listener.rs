//! The shared listener: admission, handshakes, and the choice of the service.

use std::fmt::Display;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::arrival::{Arrival, Inlet, QUEUE};
use super::counters::SharedCounters;
use super::line::Line;
use super::replayed::Replayed;
use super::route::{self, Destination, NoRoute, Routes, Service, Speaks};
use crate::accepted;
use crate::admission::{
    ConnectionLimiter, ConnectionLimits, LinePermit, LogThrottle, Permit, Queue, QueueLimits, Tcp,
};
use crate::link::add;
use crate::link::counted::Counted;
use crate::link::stream::Stream;
use crate::tls::{Hello, Server};

/// Maximum number of connections whose service is not known yet. One address gets a quarter of
/// them.
const MAX_UNROUTED: usize = 1024;
/// Maximum number of connections that wait for a permit, and the same of silent ones: a whole
/// fleet may connect at once.
const MAX_WAITING: usize = 16 << 10;
/// Time limit from the permit until the connection is passed to its service.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a connection waits for a full inlet: a service that runs takes its connections at
/// once, and one that does not must not hold the permits of the others.
const HAND_OVER: Duration = Duration::from_secs(2);
/// Time limit for the answer to a client that no service takes.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Pause after a failed accept: the process has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that the system completes before they are accepted. It may have a lower limit.
const BACKLOG: u32 = 1024;
/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// TLS of the services, and their routes.
#[derive(Clone, Debug)]
pub struct SharedOptions {
    /// The services and how they are distinguished.
    pub routes: Routes,
    /// TLS of MQTT, which requires a certificate.
    pub mqtt: Server,
    /// TLS of the API, which requires a certificate.
    pub api: Server,
    /// TLS of joining, and of connections whose service only the first bytes show: a certificate
    /// is optional.
    pub open: Server,
}

/// A bound listener, before it serves.
#[derive(Debug)]
pub struct SharedListener {
    listener: TcpListener,
    address: SocketAddr,
    outlets: Outlets,
    counters: Arc<SharedCounters>,
}

/// The senders to the inlets of the services.
#[derive(Debug, Default)]
struct Outlets {
    mqtt: Option<mpsc::Sender<Arrival>>,
    join: Option<mpsc::Sender<Arrival>>,
    api: Option<mpsc::Sender<Arrival>>,
}

impl Outlets {
    fn of(&mut self, service: Service) -> &mut Option<mpsc::Sender<Arrival>> {
        match service {
            Service::Mqtt => &mut self.mqtt,
            Service::Join => &mut self.join,
            Service::Api => &mut self.api,
        }
    }

    fn get(&self, service: Service) -> Option<&mpsc::Sender<Arrival>> {
        match service {
            Service::Mqtt => self.mqtt.as_ref(),
            Service::Join => self.join.as_ref(),
            Service::Api => self.api.as_ref(),
        }
    }
}

impl SharedListener {
    /// Binds the address, port 0 for any. All addresses of IPv6 include those of IPv4; on a
    /// machine without IPv6 they are those of IPv4.
    ///
    /// # Errors
    /// The address is in use, or the system refuses it.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let is_any = address.is_ipv6() && address.ip().is_unspecified();
        let bound = match is_any {
            true => listen_on_both(address),
            false => TcpListener::bind(address).await,
        };
        let listener = match bound {
            Err(error) if is_any && has_no_ipv6(&error) => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await?
            }
            bound => bound?,
        };
        accepted::tune_listener(&listener);
        let address = listener.local_addr()?;
        Ok(Self { listener, address, outlets: Outlets::default(), counters: Arc::default() })
    }

    /// Returns the bound address, with the port that the system chose for port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counters, which the listener shares.
    #[must_use]
    pub fn counters(&self) -> Arc<SharedCounters> {
        Arc::clone(&self.counters)
    }

    /// Creates the inlet of a service. A second one replaces the first.
    pub fn inlet(&mut self, service: Service) -> Inlet {
        let (sender, receiver) = mpsc::channel(QUEUE);
        *self.outlets.of(service) = Some(sender);
        Inlet::new(self.address, receiver)
    }

    /// Serves until it is dropped. Connections that were passed to a service stay with it.
    pub async fn serve(self, options: SharedOptions) {
        let Self { listener, outlets, counters, .. } = self;
        let dispatcher = Dispatcher { options, outlets, counters, refusals: LogThrottle::new() };
        let dispatcher = Arc::new(dispatcher);
        let limits = ConnectionLimits { total: MAX_UNROUTED, per_origin: MAX_UNROUTED / 4 };
        let waiting = QueueLimits { most: MAX_WAITING, silence: ROUTE_TIMEOUT };
        let mut queue = Queue::new(ConnectionLimiter::new(limits), waiting);
        let overflow_log = LogThrottle::new();
        // Dropping the set aborts the handshakes in progress.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                Some(_) = connections.join_next() => {}
                admitted = queue.next(|| Tcp::accept(&listener)) => match admitted {
                    Ok((Tcp(stream, peer), Some(permit))) => {
                        add(&dispatcher.counters.accepted, 1);
                        connections.spawn(Arc::clone(&dispatcher).serve(stream, peer, permit));
                    }
                    Ok((Tcp(_, peer), None)) => {
                        add(&dispatcher.counters.accepted, 1);
                        add(&dispatcher.counters.over_limit, 1);
                        if let Some(LinePermit { suppressed }) = overflow_log.permit_line() {
                            tracing::warn!(%peer, suppressed, "too many connections to the shared port: connection closed");
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accept on the shared port failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}

/// Listens on all addresses of IPv6 and IPv4, also where `net.ipv6.bindv6only` of the system would
/// leave IPv4 out.
fn listen_on_both(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    socket2::SockRef::from(&socket).set_only_v6(false)?;
    // As TcpListener::bind does: a restart must not wait for connections of the last process.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Returns whether the system has no IPv6: EAFNOSUPPORT, or no address of it.
fn has_no_ipv6(error: &io::Error) -> bool {
    const EAFNOSUPPORT: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

/// State shared by the connections of a listener.
struct Dispatcher {
    options: SharedOptions,
    outlets: Outlets,
    counters: Arc<SharedCounters>,
    refusals: LogThrottle,
}

impl Dispatcher {
    /// Passes one connection to its service, or closes it.
    async fn serve(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, permit: Permit) {
        accepted::tune(&stream);
        let passed = tokio::select! {
            passed = timeout(ROUTE_TIMEOUT, self.pass(stream, peer, &permit)) => passed,
            () = permit.evicted() => {
                return self.refused(peer, &"evicted: idle while other connections waited");
            }
        };
        match passed {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => self.refused(peer, &problem),
            Err(_) => self.refused(peer, &format_args!("no request within {ROUTE_TIMEOUT:?}")),
        }
    }

    fn refused(&self, peer: SocketAddr, problem: &dyn Display) {
        add(&self.counters.refused, 1);
        if let Some(LinePermit { suppressed }) = self.refusals.permit_line() {
            tracing::info!(%peer, error = %problem, suppressed, "connection to the shared port refused");
        }
    }

    /// Performs the handshake, chooses the service and passes the connection to it. `Err` has the
    /// reason for the log. A peer that closes without a request, as probes do, is no error.
    async fn pass(&self, mut stream: TcpStream, peer: SocketAddr, permit: &Permit) -> Result<(), String> {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(1..) => {}
            _ => return Ok(()),
        }
        if first != [TLS_HANDSHAKE] {
            answer_plain(&mut stream, first[0]).await;
            return Err(format!("no TLS: first byte {:#04x}; hint: use https:// or mqtts://", first[0]));
        }
        let line = Arc::new(Line::default());
        let hello = Hello::read(Counted::new(stream, &line)).await.map_err(|error| handshake(&error))?;
        permit.progressed();
        let routes = &self.options.routes;
        let offer = hello.offer();
        let choice = match routes.by_hello(&offer) {
            Ok(choice) => choice,
            Err(problem) => {
                if let NoRoute::Protocols(_) = problem {
                    // The client gets the alert no_application_protocol.
                    let _ = self.options.open.complete(hello, &[route::MQTT, route::HTTP]).await;
                }
                return Err(problem.to_string());
            }
        };
        let (tls, protocol) = match (choice.speaks, choice.only) {
            (Speaks::Mqtt, _) => (&self.options.mqtt, route::MQTT),
            (_, Some(Service::Mqtt)) => (&self.options.mqtt, route::HTTP),
            (_, Some(Service::Api)) => (&self.options.api, route::HTTP),
            (_, Some(Service::Join) | None) => (&self.options.open, route::HTTP),
        };
        let completed = tls.complete(hello, &[protocol]).await;
        let (mut stream, presented) = completed.map_err(|error| handshake(&error))?;
        permit.progressed();
        let mut received = BytesMut::new();
        let destination = loop {
            match routes.by_first_bytes(choice, &received) {
                Ok(Some(destination)) => break destination,
                Ok(None) => {}
                Err(problem) => {
                    answer(&mut stream, &received, &problem).await;
                    return Err(problem.to_string());
                }
            }
            received.reserve(1024);
            match stream.read_buf(&mut received).await {
                Ok(0) if received.is_empty() => return Ok(()),
                // The peer closed before it read the TLS tickets sent to it.
                Err(error) if received.is_empty() && error.kind() == io::ErrorKind::ConnectionReset => {
                    return Ok(());
                }
                Ok(0) => return Err("connection closed in the first line".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        };
        let Destination { service, web_socket } = destination;
        let stream: Box<dyn Stream> = Box::new(Replayed::new(received, stream));
        let arrival = Arrival { stream, peer, presented, web_socket, line };
        let outlet = self.outlets.get(service).ok_or_else(|| format!("{service} is not served"))?;
        hand_over(outlet, arrival, service).await?;
        add(&self.counters.passed, 1);
        Ok(())
    }
}

/// Passes a connection to its service. `Err` has the reason for the log.
async fn hand_over<T>(outlet: &mpsc::Sender<T>, arrival: T, service: Service) -> Result<(), String> {
    outlet.send_timeout(arrival, HAND_OVER).await.map_err(|error| match error {
        SendTimeoutError::Timeout(_) => format!("{service} takes no connections"),
        SendTimeoutError::Closed(_) => format!("{service} is shutting down"),
    })
}

fn handshake(error: &io::Error) -> String {
    format!("TLS handshake failed: {error}")
}

/// Tells a client without TLS what the port speaks, if it began an HTTP request.
async fn answer_plain(stream: &mut TcpStream, first: u8) {
    if first.is_ascii_uppercase() {
        let text = "This port has TLS; use https://";
        write_last(stream, &response("400 Bad Request", text)).await;
    }
}

/// Answers a client whose HTTP request no service takes.
async fn answer<S: Stream>(stream: &mut S, received: &[u8], problem: &NoRoute) {
    let is_http = received.first().is_some_and(u8::is_ascii_uppercase);
    if let Some(status) = problem.http_status().filter(|_| is_http) {
        write_last(stream, &response(status, &problem.to_string())).await;
    }
}

fn response(status: &str, text: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}\n",
        text.len() + 1
    )
}

/// Writes the last bytes of a connection; the peer may have closed it already.
async fn write_last<S: Stream>(stream: &mut S, text: &str) {
    let write = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing a socket with unread bytes would make TCP discard the answer.
        tokio::io::copy(&mut *stream, &mut tokio::io::sink()).await
    };
    let _ = timeout(LAST_WORDS, write).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn service_that_takes_nothing_holds_no_connection() {
        let (outlet, inlet) = mpsc::channel(1);
        assert_eq!(hand_over(&outlet, 1, Service::Api).await, Ok(()));
        let refused = hand_over(&outlet, 2, Service::Api).await;
        assert_eq!(refused, Err("api takes no connections".to_owned()));
        drop(inlet);
        assert_eq!(hand_over(&outlet, 3, Service::Api).await, Err("api is shutting down".to_owned()));
    }

    #[tokio::test]
    async fn any_address_of_ipv6_includes_ipv4() {
        let listener = SharedListener::bind("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.address().port();
        let (accepted, connected) =
            tokio::join!(listener.listener.accept(), TcpStream::connect((Ipv4Addr::LOCALHOST, port)));
        assert!(connected.is_ok());
        let (_, peer) = accepted.unwrap();
        assert!(peer.ip().to_canonical().is_ipv4(), "{peer}");
    }
}
