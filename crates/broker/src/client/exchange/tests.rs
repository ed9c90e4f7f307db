//! Slow clients over real sockets, against an endpoint with default options.

use std::time::Duration;

use rumqttc::v5::mqttbytes::v5::{Connect, Filter, PingReq, Subscribe};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::*;
use crate::{Broker, BrokerOptions, FleetEvents};
use edgesync_object::NodeName;
use edgesync_transport::link::Backlog;
use edgesync_transport::link::wire;

/// As the default of `link.max_frame`.
const FRAME: usize = 256 << 10;
/// Keep-alive of the client, short for a fast test: after 1.5 times this silence the endpoint
/// disconnects it.
const KEEPALIVE: u16 = 2;
/// Interval between two reads of the client.
const TICK: Duration = Duration::from_millis(10);

/// A client that reads at a limited rate.
struct Reader {
    stream: TcpStream,
    frames: FrameBuffer,
    acknowledges: bool,
}

fn node_name(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

async fn endpoint() -> (Broker, FleetEvents) {
    Broker::bind(([127, 0, 0, 1], 0).into(), BrokerOptions::default()).await.unwrap()
}

/// Returns why the client was disconnected.
async fn disconnect_reason(mut events: FleetEvents) -> DisconnectReason {
    loop {
        if let FleetEvent::NodeDisconnected { why, .. } = events.recv().await.unwrap() {
            return why;
        }
    }
}

impl Reader {
    async fn join(broker: &Broker, acknowledges: bool) -> Self {
        let stream = TcpStream::connect(broker.address()).await.unwrap();
        let mut reader = Self { stream, frames: FrameBuffer::new(1 << 20), acknowledges };
        let connect =
            Connect { keep_alive: KEEPALIVE, client_id: "n-1".into(), clean_start: true, properties: None };
        assert!(reader.say(&Packet::Connect(connect, None, None)).await);
        let filters = vec![Filter::new("edgesync/v1/nodes/n-1/down", QoS::AtLeastOnce)];
        assert!(reader.say(&Packet::Subscribe(Subscribe { pkid: 1, filters, properties: None })).await);
        loop {
            match reader.frames.take_packet().unwrap() {
                Some(Packet::SubAck(_)) => break,
                Some(_) => {}
                None => assert!(reader.frames.fill(&mut reader.stream).await.unwrap() > 0),
            }
        }
        reader
    }

    /// Sends a packet; returns whether the connection is still open.
    async fn say(&mut self, packet: &Packet) -> bool {
        let mut out = BytesMut::new();
        wire::encode(packet, &mut out, u32::MAX).unwrap();
        self.stream.write_all(&out).await.is_ok()
    }

    /// Reads at most `bytes_a_tick` bytes per tick until `messages` messages have arrived, and
    /// sends keepalives. Returns the number of messages received before a disconnect.
    async fn read(&mut self, bytes_a_tick: usize, messages: usize) -> usize {
        let (mut came, mut ticks) = (0, tokio::time::interval(TICK));
        let mut bytes = vec![0; bytes_a_tick];
        for tick in 0.. {
            ticks.tick().await;
            if tick % 50 == 0 && !self.say(&Packet::PingReq(PingReq)).await {
                return came;
            }
            match self.stream.try_read(&mut bytes) {
                Ok(0) if bytes_a_tick > 0 => return came,
                Ok(count) => self.frames.push(bytes.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return came,
            }
            while let Some(packet) = self.frames.take_packet().unwrap() {
                let Packet::Publish(publish) = packet else { continue };
                came += 1;
                let ack = PubAck { pkid: publish.pkid, reason: PubAckReason::Success, properties: None };
                if self.acknowledges && !self.say(&Packet::PubAck(ack)).await {
                    return came;
                }
            }
            if came >= messages {
                break;
            }
        }
        came
    }
}

fn publish(broker: &Broker, messages: usize) {
    for n in 0..messages {
        broker.try_publish(&node_name("n-1"), vec![n as u8; FRAME]).unwrap();
    }
}

#[tokio::test]
async fn slow_reader_stays_connected() {
    let (broker, _events) = endpoint().await;
    let mut reader = Reader::join(&broker, true).await;
    publish(&broker, 2);
    // Reading one message takes three times the allowed silence, and so does one full send buffer.
    let bytes_a_tick = FRAME / 900;
    assert_eq!(reader.read(bytes_a_tick, 2).await, 2, "{:?}", broker.traffic());
    assert_eq!((broker.traffic().open, broker.traffic().not_reading), (1, 0));
}

#[tokio::test]
async fn client_that_reads_nothing_is_disconnected() {
    let options = BrokerOptions { slowest: 64 << 10, ..BrokerOptions::default() };
    let (broker, events) = Broker::bind(([127, 0, 0, 1], 0).into(), options).await.unwrap();
    let mut reader = Reader::join(&broker, true).await;
    publish(&broker, 12);
    assert_eq!(reader.read(0, 1).await, 0);
    let why = disconnect_reason(events).await;
    assert!(matches!(why, DisconnectReason::NotReading(_)), "{why}");
}

#[tokio::test]
async fn client_that_acknowledges_nothing_is_disconnected() {
    let (broker, events) = endpoint().await;
    let mut reader = Reader::join(&broker, false).await;
    broker.try_publish(&node_name("n-1"), vec![0; 1000]).unwrap();
    assert_eq!(reader.read(8000, usize::MAX).await, 1);
    let why = disconnect_reason(events).await;
    assert!(matches!(why, DisconnectReason::NotReading(_)), "{why}");
}

#[tokio::test]
async fn backlog_counts_unsent_and_unacknowledged_messages() {
    let (broker, _events) = endpoint().await;
    let mut reader = Reader::join(&broker, true).await;
    assert_eq!(
        (broker.backlog(&node_name("n-1")), broker.backlog(&node_name("n-2"))),
        (Some(Backlog::default()), None)
    );
    publish(&broker, 8);
    let mut last = broker.backlog(&node_name("n-1")).unwrap();
    assert_eq!(last, Backlog { unsent: 8, unacknowledged: 8 });
    for came in 1..=8 {
        assert_eq!(reader.read(FRAME / 4, 1).await, 1);
        let now = broker.backlog(&node_name("n-1")).unwrap();
        assert!(now.unsent <= last.unsent && now.unacknowledged <= last.unacknowledged, "{last:?}, {now:?}");
        assert!(now.unsent <= 8 - came && now.unacknowledged >= 8 - came, "{now:?} after {came}");
        assert!(now.unsent <= now.unacknowledged, "{now:?}");
        last = now;
    }
    while broker.backlog(&node_name("n-1")) != Some(Backlog::default()) {
        assert_eq!(broker.backlog_shrunk().await, ["n-1"]);
    }
}
