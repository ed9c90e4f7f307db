//! One client from its first byte to its last: CONNECT, the exchange of packets, the DISCONNECT.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rumqttc::v5::mqttbytes::v5::{ConnectReturnCode, DisconnectReasonCode, Packet};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

mod exchange;
mod outgoing;
mod subscriptions;

use super::access::Target;
use super::handshake::{self, Admitted, Refusal, Will};
use super::hub::Hub;
use super::registry::{Eviction, Session};
use super::stream::{self as connection, ClientStream, Incoming, PeerIdentity};
use super::{Channel, DisconnectReason, FleetEvent};
use edgesync_transport::accepted;
use edgesync_transport::admission::{self, LinePermit};
use edgesync_transport::link::add;
use edgesync_transport::link::wire::{self, FrameBuffer, WireError};
use exchange::Exchange;

/// Limit for a CONNECT packet without its will, in bytes.
const MAX_CONNECT: u32 = 8 * 1024;
/// Time limit for the last packet to a client, and for reading its last bytes.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Refusal that an MQTT v3 client understands as "unacceptable protocol version".
const V3_REFUSAL: [u8; 4] = [0x20, 0x02, 0x00, 0x01];

/// Outcome of an exchange.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) why: DisconnectReason,
    /// Reason code for the client, unless the connection is lost.
    pub(super) code: Option<DisconnectReasonCode>,
    /// Whether the will is published.
    pub(super) will: bool,
}

impl Ended {
    fn with_code(why: DisconnectReason, code: DisconnectReasonCode) -> Self {
        Self { why, code: Some(code), will: true }
    }

    fn lost(message: impl Into<String>) -> Self {
        Self { why: DisconnectReason::Lost(message.into()), code: None, will: true }
    }

    fn protocol(what: &str) -> Self {
        Self::with_code(DisconnectReason::Protocol(what.to_owned()), DisconnectReasonCode::ProtocolError)
    }

    fn wire(error: &WireError) -> Self {
        match error {
            WireError::TooLarge { .. } => Self::with_code(
                DisconnectReason::Limit(error.to_string()),
                DisconnectReasonCode::PacketTooLarge,
            ),
            _ => Self::with_code(
                DisconnectReason::Protocol(error.to_string()),
                DisconnectReasonCode::MalformedPacket,
            ),
        }
    }

    fn evicted(eviction: Eviction) -> Self {
        match eviction {
            Eviction::TakenOver => {
                Self::with_code(DisconnectReason::TakenOver, DisconnectReasonCode::SessionTakenOver)
            }
            Eviction::Revoked => {
                Self::with_code(DisconnectReason::Revoked, DisconnectReasonCode::NotAuthorized)
            }
            Eviction::ShuttingDown => {
                Self::with_code(DisconnectReason::ShuttingDown, DisconnectReasonCode::ServerShuttingDown)
            }
        }
    }
}

/// A client with an accepted CONNECT. Boxed, because a task reserves memory for it at each await.
struct Accepted {
    stream: ClientStream,
    frames: FrameBuffer,
    admitted: Admitted,
    identity: PeerIdentity,
    /// [`Registry::revocations`](super::registry::Registry::revocations) before the handshake.
    revocations: u64,
}

/// Serves one connection.
pub(super) async fn serve(hub: &Arc<Hub>, stream: Incoming, peer: SocketAddr, permit: admission::Permit) {
    if let Incoming::Tcp(stream) = &stream {
        accepted::tune(stream);
    }
    let limit = hub.options.connect_timeout;
    let received = tokio::select! {
        // Boxed, so that the task does not keep this memory while the client is connected.
        received = timeout(limit, Box::pin(receive_connect(hub, stream, peer, &permit))) => received,
        () = hub.closed() => return,
        () = permit.evicted() => Ok(Err("evicted: idle while other connections waited".to_owned())),
    };
    drop(permit);
    match received {
        Ok(Ok(Some(accepted))) => serve_node(hub, accepted, peer).await,
        Ok(Ok(None)) => tracing::debug!(%peer, "connection closed without data"),
        Ok(Err(problem)) => refused(hub, peer, &problem),
        Err(_) => refused(hub, peer, &format!("no CONNECT within {limit:?}")),
    }
}

fn refused(hub: &Hub, peer: SocketAddr, problem: &str) {
    add(&hub.counters.refused, 1);
    if let Some(LinePermit { suppressed }) = hub.throttles.refused.permit_line() {
        tracing::info!(%peer, error = problem, suppressed, "connection refused");
    }
}

/// Serves an identified node under a permit that unidentified connections cannot take.
async fn serve_node(hub: &Arc<Hub>, mut accepted: Box<Accepted>, peer: SocketAddr) {
    let Ok(permit) = Arc::clone(&hub.node_permits).try_acquire_owned() else {
        add(&hub.counters.over_limit, 1);
        refused(hub, peer, "node limit reached");
        let refusal = Refusal::new(ConnectReturnCode::ServerBusy, "node limit reached: retry later");
        return answer(&mut accepted.stream, &refusal.connack()).await;
    };
    run_session(hub, accepted, peer).await;
    drop(permit);
}

/// Handles a connection up to its CONNECT. `None` if the peer closes without sending, as probes do:
/// load balancers, monitoring, `edgesync check`.
async fn receive_connect(
    hub: &Arc<Hub>,
    stream: Incoming,
    peer: SocketAddr,
    permit: &admission::Permit,
) -> Result<Option<Box<Accepted>>, String> {
    // Before the certificate is verified: a later revocation refuses the registration.
    let revocations = hub.registry.revocations();
    let (mut stream, identity) = match stream {
        Incoming::Tcp(stream) => {
            if !matches!(stream.peek(&mut [0]).await, Ok(1..)) {
                return Ok(None);
            }
            permit.progressed();
            connection::open(hub, stream).await.map_err(|error| {
                add(&hub.counters.tls, 1);
                format!("TLS handshake failed: {error}")
            })?
        }
        Incoming::Shared(arrival, tls) => connection::adopt(hub, arrival, &tls).await.map_err(|error| {
            add(&hub.counters.malformed, 1);
            format!("WebSocket refused: {error}")
        })?,
    };
    permit.progressed();
    let mut frames = FrameBuffer::new(MAX_CONNECT + hub.options.max_retained_bytes as u32);
    let admitted = read_connect(hub, &mut stream, &mut frames, &identity, peer).await?;
    Ok(admitted.map(|admitted| Box::new(Accepted { stream, frames, admitted, identity, revocations })))
}

/// Reads and checks the CONNECT, if one arrives; sends the answer to a refused one.
async fn read_connect<S: AsyncRead + AsyncWrite + Unpin>(
    hub: &Hub,
    stream: &mut S,
    frames: &mut FrameBuffer,
    identity: &PeerIdentity,
    peer: SocketAddr,
) -> Result<Option<Admitted>, String> {
    let packet = loop {
        if !frames.may_be_connect() {
            add(&hub.counters.malformed, 1);
            return Err("first byte is not that of a CONNECT".to_owned());
        }
        match frames.take_packet() {
            Ok(Some(packet)) => break packet,
            Ok(None) => {}
            Err(error) => {
                add(&hub.counters.malformed, 1);
                refuse_bytes(stream, &error).await;
                return Err(error.to_string());
            }
        }
        match frames.fill(stream).await {
            Ok(0) if frames.is_empty() => return Ok(None),
            Ok(0) => return Err("connection closed during CONNECT".to_owned()),
            // The peer closed before it read the TLS tickets sent to it.
            Err(error) if frames.is_empty() && error.kind() == ErrorKind::ConnectionReset => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    };
    let Packet::Connect(connect, will, login) = packet else {
        return Err("first packet is not CONNECT".to_owned());
    };
    match handshake::admit(&hub.options, connect, will, login, identity) {
        Ok(admitted) => Ok(Some(admitted)),
        Err(refusal) => {
            if refusal.impostor {
                add(&hub.counters.identity, 1);
                if let Some(LinePermit { suppressed }) = hub.throttles.impostor.permit_line() {
                    tracing::warn!(%peer, reason = ?refusal.reason, suppressed, "client claims another node's name");
                }
            }
            answer(stream, &refusal.connack()).await;
            Err(refusal.reason)
        }
    }
}

/// Refuses bytes that are no MQTT v5 CONNECT, in a form that their sender understands.
async fn refuse_bytes<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, error: &WireError) {
    let code = match error {
        WireError::Version(3 | 4) => {
            return write_last(stream, &V3_REFUSAL).await;
        }
        WireError::Version(_) => ConnectReturnCode::UnsupportedProtocolVersion,
        WireError::TooLarge { .. } => ConnectReturnCode::PacketTooLarge,
        // The peer does not speak MQTT; it could not read an answer.
        WireError::Malformed(_) => return,
    };
    answer(stream, &Refusal::new(code, error.to_string()).connack()).await;
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, packet: &Packet) {
    let mut out = BytesMut::new();
    if wire::encode(packet, &mut out, u32::MAX).is_ok() {
        write_last(stream, &out).await;
    }
}

/// Writes the last bytes of a connection; the peer may have closed it already.
async fn write_last<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) {
    let write = async {
        stream.write_all(bytes).await?;
        stream.shutdown().await
    };
    let _ = timeout(LAST_WORDS, write).await;
}

/// Serves a client with an accepted CONNECT.
async fn run_session(hub: &Arc<Hub>, accepted: Box<Accepted>, peer: SocketAddr) {
    let Accepted { mut stream, mut frames, admitted, identity, revocations } = *accepted;
    frames.set_limit(hub.options.max_packet);
    let down = hub.options.topics.down(&admitted.node);
    let Some((session, previous)) =
        hub.registry.register(&admitted.node, down.into(), admitted.max_packet, revocations)
    else {
        add(&hub.counters.refused, 1);
        if let Some(LinePermit { suppressed }) = hub.session_lines.permit_line() {
            let node = &admitted.node;
            tracing::info!(%node, %peer, suppressed, "certificate revoked during handshake: client asked to retry");
        }
        let refusal =
            Refusal::new(ConnectReturnCode::ServerBusy, "certificate revoked during handshake: retry");
        return answer(&mut stream, &refusal.connack()).await;
    };
    if hub.is_closing() {
        // The shutdown evicted the other sessions before this one was registered.
        session.evict(Eviction::ShuttingDown);
    }
    if let Some(previous) = previous {
        add(&hub.counters.taken_over, 1);
        if let Some(LinePermit { suppressed }) = hub.session_lines.permit_line() {
            tracing::warn!(node = %session.node, %peer, suppressed, "session taken over by a newer connection");
        }
        // The cloud must observe the end of the old connection before the start of the new one.
        previous.ended().await;
    }
    let connected = FleetEvent::NodeConnected {
        node: session.node.clone(),
        connection: session.connection,
        max_packet: admitted.max_packet,
    };
    if !hub.inflow.send_uncounted(connected).await {
        hub.registry.unregister(&session);
        return;
    }
    add(&hub.counters.connected, 1);
    if let Some(LinePermit { suppressed }) = hub.session_lines.permit_line() {
        let (node, connection) = (&session.node, session.connection);
        tracing::info!(%node, %peer, connection, suppressed, "node connected");
    }
    let mut exchange = Exchange::new(hub, &session, stream, frames, &admitted, identity.until());
    let ended = exchange.run().await;
    let (stream, out) = exchange.into_parts();
    finish(hub, &session, &ended, admitted.will).await;
    if let Some(code) = ended.code {
        disconnect(stream, out, code).await;
    }
}

/// Publishes the will and reports the disconnection; after that the name is free.
async fn finish(hub: &Hub, session: &Arc<Session>, ended: &Ended, will: Option<Will>) {
    let counters = &hub.counters;
    match &ended.why {
        DisconnectReason::NotReading(_) => add(&counters.not_reading, 1),
        DisconnectReason::Silent(_) => add(&counters.silent, 1),
        DisconnectReason::Expired => add(&counters.expired, 1),
        DisconnectReason::Revoked => add(&counters.revoked, 1),
        DisconnectReason::Protocol(_) | DisconnectReason::Limit(_) => add(&counters.malformed, 1),
        _ => {}
    }
    if let Some(LinePermit { suppressed }) = hub.session_lines.permit_line() {
        let (node, connection, reason) = (&session.node, session.connection, &ended.why);
        tracing::info!(%node, connection, %reason, suppressed, "node disconnected");
    }
    let node = session.node.clone();
    if let Some(will) = will.filter(|_| ended.will) {
        let channel = match will.target {
            Target::Presence => Channel::Presence,
            Target::Up => Channel::Up,
        };
        if will.retain && channel == Channel::Presence {
            // Its size was checked on connecting; without space to retain it, the cloud still
            // receives it.
            let _ = hub.registry.retain_presence(&session.node, &will.payload);
        }
        let payload = will.payload.to_vec();
        let _ = hub.inflow.send_uncounted(FleetEvent::Message { node: node.clone(), channel, payload }).await;
    }
    let event = FleetEvent::NodeDisconnected { node, connection: session.connection, why: ended.why.clone() };
    // Without a receiver the endpoint is shutting down.
    let _ = hub.inflow.send_uncounted(event).await;
    hub.registry.unregister(session);
}

/// Sends the reason to the client, and drains its bytes: closing a socket with unread bytes would
/// make TCP discard the reason.
async fn disconnect(mut stream: ClientStream, mut out: BytesMut, code: DisconnectReasonCode) {
    wire::encode_disconnect(code, &mut out);
    let write = async {
        stream.write_all_buf(&mut out).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    // The peer may have closed already, or never stop sending.
    let _ = timeout(LAST_WORDS, write).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Broker, BrokerOptions};
    use edgesync_transport::admission::{ConnectionLimiter, ConnectionLimits, Origin};
    use tokio::net::TcpStream;

    /// Each connected node has one such task.
    #[tokio::test]
    async fn task_of_a_connection_is_small() {
        let (broker, _events) =
            Broker::bind(([127, 0, 0, 1], 0).into(), BrokerOptions::default()).await.unwrap();
        let stream = TcpStream::connect(broker.address()).await.unwrap();
        let limiter = ConnectionLimiter::new(ConnectionLimits { total: 1, per_origin: 1 });
        let permit = limiter.try_acquire(Origin::Loopback).unwrap();
        let task = serve(broker.hub(), Incoming::Tcp(stream), broker.address(), permit);
        let size = size_of_val(&task);
        assert!(size <= 4608, "{size}");
    }
}
