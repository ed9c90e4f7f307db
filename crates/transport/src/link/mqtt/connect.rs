//! Makes one connection: name resolution, TCP, TLS, CONNECT, CONNACK, SUBSCRIBE, SUBACK.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    ConnAck, Connect, ConnectProperties, ConnectReturnCode, Filter, LastWill, Login, Packet, SubAck,
    Subscribe,
};
use rumqttc::v5::{MqttState, Request};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::reason;
use super::session::Aliases;
use super::wire::{self, FrameBuffer};
use crate::link::handle::Shared;
use crate::link::stream::{Stream, Target};
use crate::link::{Cause, LinkOptions, MAX_WILL, SessionIntro, compact};

/// Limit for messages that arrive before the SUBACK, in bytes.
const EARLY_BYTES: usize = 4 << 20;
/// Time for which a failed write waits for the alert that explains it.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A connection on which every subscription was granted.
pub(in crate::link) struct Established {
    pub(super) stream: Box<dyn Stream>,
    pub(super) frames: FrameBuffer,
    pub(super) state: MqttState,
    pub(super) aliases: Aliases,
    /// Messages received before the SUBACK.
    pub(super) early: Vec<Packet>,
    /// Negotiated packet limit in bytes: the smaller one of both sides.
    pub(super) max_packet: u32,
    pub(super) inflight: u16,
    /// Longest interval between two sent packets.
    pub(super) ping_every: Duration,
}

/// Connects within the configured time.
pub(super) async fn establish(
    options: &LinkOptions,
    position: usize,
    intro: &SessionIntro,
    shared: &Arc<Shared>,
) -> Result<Established, Cause> {
    let endpoint = options.endpoint(position);
    if endpoint.tls && options.tls.is_none() {
        // Nothing may go in plain text to a peer that was configured with TLS.
        return Err(Cause::Protocol { detail: format!("no TLS client for {endpoint}") });
    }
    let target = options.target(position);
    target.attempt(async { handshake(options, target, intro, target.open(shared).await?).await }).await
}

async fn handshake(
    options: &LinkOptions,
    target: Target<'_>,
    intro: &SessionIntro,
    mut stream: Box<dyn Stream>,
) -> Result<Established, Cause> {
    let mut frames = FrameBuffer::new(options.max_packet);
    let mut exchange = Exchange { options, target, stream: &mut stream, frames: &mut frames };
    exchange.send(&connect_packet(options, intro)?).await?;
    let connack = match exchange.receive().await? {
        Packet::ConnAck(connack) if connack.code == ConnectReturnCode::Success => connack,
        Packet::ConnAck(connack) => return Err(reason::of_connack(&connack)),
        other => return Err(unexpected(&other, &options.client_id)),
    };
    let mut state = MqttState::new(options.inflight, false);
    let (max_packet, inflight, ping_every) = agree(options, &connack)?;
    let aliases = aliases(options, intro, &connack)?;
    state
        .handle_incoming_packet(Packet::ConnAck(connack))
        .map_err(|e| reason::of_state(e, &options.client_id))?;
    let early = match aliases.is_compact() {
        true => Vec::new(),
        false => subscribe(&mut exchange, &mut state).await?,
    };
    state.events.clear();
    Ok(Established { stream, frames, state, aliases, early, max_packet, inflight, ping_every })
}

fn unexpected(packet: &Packet, client_id: &str) -> Cause {
    match packet {
        Packet::Disconnect(disconnect) => reason::of_disconnect(disconnect, client_id),
        // Without the packet: it may be large, and its content is the broker's choice.
        _ => Cause::Protocol { detail: "unexpected packet before the CONNACK or SUBACK".to_owned() },
    }
}

fn connect_packet(options: &LinkOptions, intro: &SessionIntro) -> Result<Packet, Cause> {
    let will = match &intro.will {
        // rumqttc would truncate the length to 16 bits.
        Some(will) if will.payload.len() > MAX_WILL => {
            let detail = format!("will of {} bytes exceeds the limit of {MAX_WILL}", will.payload.len());
            return Err(Cause::BadIntroduction { detail });
        }
        Some(will) => Some(LastWill::new(
            will.topic.as_str(),
            will.payload.clone(),
            QoS::AtLeastOnce,
            will.retain,
            None,
        )),
        None => None,
    };
    let login = match (&options.username, &options.password) {
        (None, None) => None,
        (name, password) => {
            Some(Login::new(name.as_deref().unwrap_or_default(), password.as_deref().unwrap_or_default()))
        }
    };
    let properties = ConnectProperties {
        session_expiry_interval: Some(0),
        max_packet_size: Some(options.max_packet),
        user_properties: options.compact.iter().map(|_| compact::property()).collect(),
        ..ConnectProperties::new()
    };
    let connect = Connect {
        // The broker disconnects after 1.5 times this value: sooner than this side does.
        keep_alive: u16::try_from(options.keepalive.as_secs() / 2).unwrap_or(u16::MAX).max(1),
        client_id: options.client_id.clone(),
        clean_start: true,
        properties: Some(properties),
    };
    Ok(Packet::Connect(connect, will, login))
}

/// Negotiates packet size, packets in flight and ping interval: the smaller value of both sides.
fn agree(options: &LinkOptions, connack: &ConnAck) -> Result<(u32, u16, Duration), Cause> {
    let mut agreed = (options.max_packet, options.inflight, options.keepalive / 2);
    let Some(properties) = &connack.properties else { return Ok(agreed) };
    let broken = |detail: &str| Err(Cause::Protocol { detail: detail.to_owned() });
    if let Some(size) = properties.max_packet_size {
        agreed.0 = agreed.0.min(size);
    }
    if let Some(receive) = properties.receive_max {
        agreed.1 = agreed.1.min(receive);
    }
    if let Some(seconds @ 1..) = properties.server_keep_alive {
        agreed.2 = agreed.2.min(Duration::from_secs(seconds.into()));
    }
    if agreed.0 == 0 || agreed.1 == 0 {
        return broken("limit of zero in the CONNACK");
    }
    if properties.max_qos == Some(0) {
        return broken("broker does not support QoS 1");
    }
    Ok(agreed)
}

/// Returns the aliases that the CONNACK permits.
///
/// # Errors
/// The will was left out for the endpoint that this address had before, and the broker is another
/// one.
fn aliases(options: &LinkOptions, intro: &SessionIntro, connack: &ConnAck) -> Result<Aliases, Cause> {
    let topics = options.compact.as_ref();
    let (is_compact, permitted) = connack.properties.as_ref().map_or((false, 0), |properties| {
        (compact::is_in(&properties.user_properties), properties.topic_alias_max.unwrap_or(0))
    });
    let is_compact = is_compact && topics.is_some();
    if topics.is_some() && intro.will.is_none() && !intro.greetings.is_empty() && !is_compact {
        return Err(Cause::Protocol { detail: "another broker at this address: reconnecting".to_owned() });
    }
    Ok(Aliases::new(topics, is_compact, permitted))
}

/// Subscribes to all filters; returns the messages received before the SUBACK.
async fn subscribe(exchange: &mut Exchange<'_>, state: &mut MqttState) -> Result<Vec<Packet>, Cause> {
    let options = exchange.options;
    let client_id = &options.client_id;
    let mut filters: Vec<Filter> =
        options.subscriptions.iter().map(|path| Filter::new(path, QoS::AtLeastOnce)).collect();
    if let Some(own) = &options.own_topic {
        let filter = Filter { nolocal: true, ..Filter::new(own, QoS::AtLeastOnce) };
        filters.push(filter);
    }
    if filters.is_empty() {
        return Ok(Vec::new());
    }
    let paths: Vec<String> = filters.iter().map(|filter| filter.path.clone()).collect();
    let request = Request::Subscribe(Subscribe::new_many(filters, None));
    let packet = state.handle_outgoing_packet(request).map_err(|e| reason::of_state(e, client_id))?;
    if let Some(packet) = packet {
        exchange.send(&packet).await?;
    }
    let mut early = Vec::new();
    let mut early_bytes = 0;
    loop {
        match exchange.receive().await? {
            Packet::SubAck(suback) => return check_suback(&suback, &paths).map(|()| early),
            packet @ Packet::Publish(_) => {
                early_bytes += packet.size();
                if early_bytes > EARLY_BYTES {
                    let detail = format!("more than {EARLY_BYTES} bytes of messages before the SUBACK");
                    return Err(Cause::Protocol { detail });
                }
                early.push(packet);
            }
            other => return Err(unexpected(&other, client_id)),
        }
    }
}

fn check_suback(suback: &SubAck, paths: &[String]) -> Result<(), Cause> {
    if suback.return_codes.len() != paths.len() {
        let detail = format!(
            "{} reason codes in the SUBACK for {} subscriptions",
            suback.return_codes.len(),
            paths.len()
        );
        return Err(Cause::Protocol { detail });
    }
    let refused =
        suback.return_codes.iter().zip(paths).find_map(|(code, path)| reason::of_suback(*code, path));
    refused.map_or(Ok(()), Err)
}

/// Sends and receives single packets while the connection is being made.
struct Exchange<'a> {
    options: &'a LinkOptions,
    target: Target<'a>,
    stream: &'a mut Box<dyn Stream>,
    frames: &'a mut FrameBuffer,
}

impl Exchange<'_> {
    async fn send(&mut self, packet: &Packet) -> Result<(), Cause> {
        let mut out = BytesMut::new();
        wire::encode(packet, &mut out, u32::MAX).map_err(|e| reason::of_wire(&e))?;
        let sent = async {
            self.stream.write_all(&out).await?;
            self.stream.flush().await
        };
        let Err(error) = sent.await else { return Ok(()) };
        // A peer that refuses our certificate sends an alert and closes; the alert may still be
        // readable.
        match timeout(LAST_WORDS, self.receive()).await {
            Ok(Err(cause @ Cause::Tls { .. })) => Err(cause),
            _ => Err(self.target.failed(&error)),
        }
    }

    async fn receive(&mut self) -> Result<Packet, Cause> {
        loop {
            let speaks_tls = self.target.tls.is_none() && self.frames.begins_with_alert();
            match self.frames.take_packet() {
                Ok(Some(packet)) => return Ok(packet),
                Ok(None) => {}
                Err(_) if speaks_tls => {
                    let detail =
                        "TLS alert received on a plain connection; hint: use mqtts:// in the address"
                            .to_owned();
                    return Err(Cause::Protocol { detail });
                }
                Err(error) => return Err(reason::of_wire(&error)),
            }
            match self.frames.fill(self.stream).await {
                Ok(0) => return Err(Cause::Closed),
                Ok(_) => {}
                Err(error) => return Err(self.target.failed(&error)),
            }
        }
    }
}
