//! One client from its first byte to its last: CONNECT, the exchange, and what is said when it goes.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rumqttc::v5::mqttbytes::v5::{ConnectReturnCode, DisconnectReasonCode, Packet};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

mod exchange;
mod outgoing;
mod subscriptions;

use super::access::Target;
use super::handshake::{self, Admitted, Refusal, Will};
use super::hub::Hub;
use super::registry::{Eviction, Seat};
use super::wire::{self as connection, Bearer, Wire};
use super::{Channel, Departure, FleetEvent};
use edgesync_transport::gate;
use edgesync_transport::link::add;
use edgesync_transport::link::wire::{self, FrameBuffer, WireError};
use exchange::Exchange;

/// The largest CONNECT packet without its will, in bytes.
const MAX_CONNECT: u32 = 8 * 1024;
/// Bytes that the system takes of a client's packets ahead of the network.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 32 * 1024;
/// How long the last packet to a client may take, and how long its last bytes are waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// What a client of MQTT v3 understands as "not this version".
const V3_REFUSAL: [u8; 4] = [0x20, 0x02, 0x00, 0x01];

/// How an exchange ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) why: Departure,
    /// What the client is told, unless it has gone.
    pub(super) code: Option<DisconnectReasonCode>,
    /// Whether the will is published.
    pub(super) will: bool,
}

impl Ended {
    fn told(why: Departure, code: DisconnectReasonCode) -> Self {
        Self { why, code: Some(code), will: true }
    }

    fn lost(message: impl Into<String>) -> Self {
        Self { why: Departure::Lost(message.into()), code: None, will: true }
    }

    fn protocol(what: &str) -> Self {
        Self::told(Departure::Protocol(what.to_owned()), DisconnectReasonCode::ProtocolError)
    }

    fn wire(error: &WireError) -> Self {
        match error {
            WireError::TooLarge { .. } => {
                Self::told(Departure::Limit(error.to_string()), DisconnectReasonCode::PacketTooLarge)
            }
            _ => Self::told(Departure::Protocol(error.to_string()), DisconnectReasonCode::MalformedPacket),
        }
    }

    fn evicted(eviction: Eviction) -> Self {
        match eviction {
            Eviction::TakenOver => Self::told(Departure::TakenOver, DisconnectReasonCode::SessionTakenOver),
            Eviction::Revoked => Self::told(Departure::Revoked, DisconnectReasonCode::NotAuthorized),
            Eviction::ShuttingDown => {
                Self::told(Departure::ShuttingDown, DisconnectReasonCode::ServerShuttingDown)
            }
        }
    }
}

/// A client that was let in. Boxed where it is handed on: a task keeps the room for it at each step.
struct Guest {
    stream: Wire,
    frames: FrameBuffer,
    admitted: Admitted,
    bearer: Bearer,
    /// See [`Registry::cuts`](super::registry::Registry::cuts).
    cuts: u64,
}

/// Serves one TCP connection.
pub(super) async fn serve(hub: &Arc<Hub>, stream: TcpStream, peer: SocketAddr, place: gate::Guest) {
    // Frames are written whole; waiting for more to send would only delay them.
    let _ = stream.set_nodelay(true);
    // What the system takes has to be what the network takes: else it looks as if a slow client took nothing.
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT);
    let limit = hub.options.connect_timeout;
    let welcomed = tokio::select! {
        // Boxed, so that the task does not keep the room for it while the client is connected.
        welcomed = timeout(limit, Box::pin(welcome(hub, stream, peer, &place))) => welcomed,
        () = hub.closed() => return,
        () = place.must_go() => Ok(Err("it said nothing for too long while others waited".to_owned())),
    };
    drop(place);
    match welcomed {
        Ok(Ok(Some(guest))) => seat(hub, guest, peer).await,
        Ok(Ok(None)) => tracing::debug!(%peer, "connection closed without a word"),
        Ok(Err(problem)) => refused(hub, peer, &problem),
        Err(_) => refused(hub, peer, &format!("no connect packet within {limit:?}")),
    }
}

fn refused(hub: &Hub, peer: SocketAddr, problem: &str) {
    add(&hub.counters.refused, 1);
    if let Some(left_out) = hub.quiet.refused.line() {
        tracing::info!(%peer, problem, left_out, "connection refused");
    }
}

/// Gives a node that is known a place of its own, which strangers cannot take.
async fn seat(hub: &Arc<Hub>, mut guest: Box<Guest>, peer: SocketAddr) {
    let Ok(place) = Arc::clone(&hub.places).try_acquire_owned() else {
        add(&hub.counters.over_limit, 1);
        refused(hub, peer, "there are too many nodes");
        let refusal = Refusal::new(ConnectReturnCode::ServerBusy, "there are too many nodes: come again");
        return answer(&mut guest.stream, &refusal.connack()).await;
    };
    attend(hub, guest, peer).await;
    drop(place);
}

/// Takes a connection up to its CONNECT. None if its peer goes without a word, as those do who see whether the port
/// answers: load balancers, monitoring, `edgesync check`.
async fn welcome(
    hub: &Arc<Hub>,
    stream: TcpStream,
    peer: SocketAddr,
    place: &gate::Guest,
) -> Result<Option<Box<Guest>>, String> {
    let cuts = hub.registry.cuts();
    if !matches!(stream.peek(&mut [0]).await, Ok(1..)) {
        return Ok(None);
    }
    place.speaks();
    let (mut stream, bearer) = connection::open(hub, stream).await.map_err(|error| {
        add(&hub.counters.tls, 1);
        format!("no TLS: {error}")
    })?;
    place.speaks();
    let mut frames = FrameBuffer::new(MAX_CONNECT + hub.options.max_retained_bytes as u32);
    let admitted = greet(hub, &mut stream, &mut frames, &bearer, peer).await?;
    Ok(admitted.map(|admitted| Box::new(Guest { stream, frames, admitted, bearer, cuts })))
}

/// Reads the CONNECT, if anything comes, and decides on it; a refusal is answered here.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    hub: &Hub,
    stream: &mut S,
    frames: &mut FrameBuffer,
    bearer: &Bearer,
    peer: SocketAddr,
) -> Result<Option<Admitted>, String> {
    let packet = loop {
        if !frames.may_be_connect() {
            add(&hub.counters.malformed, 1);
            return Err("its first byte begins no connect packet".to_owned());
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
            Ok(0) => return Err("closed within its connect packet".to_owned()),
            // It has gone without the tickets of TLS that were sent to it.
            Err(error) if frames.is_empty() && error.kind() == ErrorKind::ConnectionReset => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    };
    let Packet::Connect(connect, will, login) = packet else {
        return Err("its first packet is no connect packet".to_owned());
    };
    match handshake::admit(&hub.options, connect, will, login, bearer) {
        Ok(admitted) => Ok(Some(admitted)),
        Err(refusal) => {
            if refusal.impostor {
                add(&hub.counters.identity, 1);
                if let Some(left_out) = hub.quiet.impostor.line() {
                    tracing::warn!(%peer, reason = ?refusal.reason, left_out, "somebody claims to be another node");
                }
            }
            answer(stream, &refusal.connack()).await;
            Err(refusal.reason)
        }
    }
}

/// Refuses what is not a CONNECT of MQTT v5, in words its sender understands.
async fn refuse_bytes<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, error: &WireError) {
    let code = match error {
        WireError::Version(3 | 4) => {
            return say(stream, &V3_REFUSAL).await;
        }
        WireError::Version(_) => ConnectReturnCode::UnsupportedProtocolVersion,
        WireError::TooLarge { .. } => ConnectReturnCode::PacketTooLarge,
        // Whoever sends this does not speak MQTT; an answer would mean nothing.
        WireError::Malformed(_) => return,
    };
    answer(stream, &Refusal::new(code, error.to_string()).connack()).await;
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, packet: &Packet) {
    let mut out = BytesMut::new();
    if wire::encode(packet, &mut out, u32::MAX).is_ok() {
        say(stream, &out).await;
    }
}

/// Writes the last bytes of a connection; its peer may have gone already.
async fn say<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) {
    let talk = async {
        stream.write_all(bytes).await?;
        stream.shutdown().await
    };
    let _ = timeout(LAST_WORDS, talk).await;
}

/// Serves a client that was let in.
async fn attend(hub: &Arc<Hub>, guest: Box<Guest>, peer: SocketAddr) {
    let Guest { mut stream, mut frames, admitted, bearer, cuts } = *guest;
    frames.set_limit(hub.options.max_packet);
    let down = hub.options.topics.down(&admitted.node);
    let Some((seat, previous)) = hub.registry.sit(&admitted.node, down.into(), admitted.max_packet, cuts)
    else {
        add(&hub.counters.refused, 1);
        if let Some(left_out) = hub.moves.line() {
            let node = &admitted.node;
            tracing::info!(%node, %peer, left_out, "a certificate was revoked meanwhile: told to come again");
        }
        let refusal =
            Refusal::new(ConnectReturnCode::ServerBusy, "a certificate was revoked just now: come again");
        return answer(&mut stream, &refusal.connack()).await;
    };
    if hub.is_closing() {
        // The seats were told to go before this one was taken.
        seat.evict(Eviction::ShuttingDown);
    }
    if let Some(previous) = previous {
        add(&hub.counters.taken_over, 1);
        if let Some(left_out) = hub.moves.line() {
            tracing::warn!(node = %seat.node, %peer, left_out, "a newer connection takes the node's name over");
        }
        // So that the cloud hears of the end of the old one before the start of the new one.
        previous.gone().await;
    }
    let connected = FleetEvent::NodeConnected {
        node: seat.node.clone(),
        connection: seat.connection,
        max_packet: admitted.max_packet,
    };
    if !hub.inflow.tell(connected).await {
        hub.registry.leave(&seat);
        return;
    }
    add(&hub.counters.connected, 1);
    if let Some(left_out) = hub.moves.line() {
        let (node, connection) = (&seat.node, seat.connection);
        tracing::info!(%node, %peer, connection, left_out, "node connected");
    }
    let mut exchange = Exchange::new(hub, &seat, stream, frames, &admitted, bearer.until());
    let ended = exchange.run().await;
    let (stream, out) = exchange.into_parts();
    depart(hub, &seat, &ended, admitted.will).await;
    if let Some(code) = ended.code {
        last_words(stream, out, code).await;
    }
}

/// Publishes the will and tells the cloud; after that the name is free.
async fn depart(hub: &Hub, seat: &Arc<Seat>, ended: &Ended, will: Option<Will>) {
    let counters = &hub.counters;
    match &ended.why {
        Departure::NotReading(_) => add(&counters.not_reading, 1),
        Departure::Silent(_) => add(&counters.silent, 1),
        Departure::Expired => add(&counters.expired, 1),
        Departure::Revoked => add(&counters.revoked, 1),
        Departure::Protocol(_) | Departure::Limit(_) => add(&counters.malformed, 1),
        _ => {}
    }
    if let Some(left_out) = hub.moves.line() {
        let (node, connection, why) = (&seat.node, seat.connection, &ended.why);
        tracing::info!(%node, connection, %why, left_out, "node disconnected");
    }
    let node = seat.node.clone();
    if let Some(will) = will.filter(|_| ended.will) {
        let channel = match will.target {
            Target::Presence => Channel::Presence,
            Target::Up => Channel::Up,
        };
        if will.retain && channel == Channel::Presence {
            // Its size was checked when the client connected; without a place for it, the cloud still hears it.
            let _ = hub.registry.retain_presence(&seat.node, &will.payload);
        }
        let payload = will.payload.to_vec();
        let _ = hub.inflow.tell(FleetEvent::Message { node: node.clone(), channel, payload }).await;
    }
    let event = FleetEvent::NodeDisconnected { node, connection: seat.connection, why: ended.why.clone() };
    // Without a receiver the endpoint is shutting down.
    let _ = hub.inflow.tell(event).await;
    hub.registry.leave(seat);
}

/// Tells the client why, and reads what it still sends: closing with unread bytes would make TCP throw the
/// reason away.
async fn last_words(mut stream: Wire, mut out: BytesMut, code: DisconnectReasonCode) {
    wire::encode_disconnect(code, &mut out);
    let talk = async {
        stream.write_all_buf(&mut out).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    // It may have gone already, or never stop talking.
    let _ = timeout(LAST_WORDS, talk).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Broker, BrokerOptions};
    use edgesync_transport::gate::{Gate, GateLimits, Origin};

    /// There is one for each node that is connected.
    #[tokio::test]
    async fn the_task_of_a_connection_is_small() {
        let (broker, _events) =
            Broker::bind(([127, 0, 0, 1], 0).into(), BrokerOptions::default()).await.unwrap();
        let stream = TcpStream::connect(broker.address()).await.unwrap();
        let gate = Gate::new(GateLimits { places: 1, for_one: 1 });
        let place = gate.try_enter(Origin::Loopback).unwrap();
        let task = serve(broker.hub(), stream, broker.address(), place);
        let size = size_of_val(&task);
        assert!(size <= 4608, "{size}");
    }
}
