//! One end of an MQTT v5 connection that does exactly what a test tells it: a broker that misbehaves on
//! command, or a client that says what no library would say. On rumqttc's packet types.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use rumqttc::v5::mqttbytes::v5::{
    ConnAck, ConnAckProperties, Connect, ConnectReturnCode, LastWill, Packet, PingResp, PubAck, PubAckReason,
    Publish, SubAck, Subscribe, SubscribeReasonCode,
};
use rumqttc::v5::mqttbytes::{Error, QoS};

use crate::timing::PATIENCE;

/// Runs a script for each connection, on a thread of its own, with the number of the connection from 0.
pub struct ScriptedBroker {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl ScriptedBroker {
    /// Listens on a free port of 127.0.0.1.
    pub fn start(script: impl Fn(usize, Peer) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (stop, kept, script) = (Arc::clone(&stopped), Arc::clone(&streams), Arc::new(script));
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                kept.lock().unwrap().extend(stream.try_clone());
                let script = Arc::clone(&script);
                std::thread::spawn(move || script(number, Peer::new(stream)));
            }
        });
        Self { address, stopped, streams }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ScriptedBroker {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the accepting thread, which sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}

/// One end of a connection. Dropped, it closes it.
pub struct Peer {
    stream: TcpStream,
    bytes: BytesMut,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The broker holds a second handle, which would keep the connection open.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Peer {
    fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, bytes: BytesMut::new() }
    }

    /// Connects as a client, without a word.
    pub fn dial(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).unwrap())
    }

    /// A second handle of the connection, for threads that take turns in sending.
    pub fn writer(&self) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self::new(self.stream.try_clone().unwrap())))
    }

    /// The next packet; `None` when the other side has closed.
    pub fn read(&mut self) -> Option<Packet> {
        loop {
            // Two forms of DISCONNECT that rumqttc does not read.
            match self.bytes.as_ref() {
                [0xe0, 0, ..] => {
                    self.bytes = BytesMut::from(&[&[0xe0, 2, 0, 0], &self.bytes[2..]].concat()[..]);
                }
                [0xe0, 1, code, ..] => {
                    let code = *code;
                    self.bytes = BytesMut::from(&[&[0xe0, 2, code, 0], &self.bytes[3..]].concat()[..]);
                }
                _ => {}
            }
            match Packet::read(&mut self.bytes, None) {
                Ok(packet) => return Some(packet),
                Err(Error::InsufficientBytes(_)) => {}
                Err(error) => panic!("not a packet: {error}"),
            }
            let mut buffer = [0; 16 * 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no packet: {error}"),
            }
        }
    }

    /// The next packet, which must be one.
    pub fn expect(&mut self) -> Packet {
        self.read().expect("the connection was closed, a packet was expected")
    }

    /// Bytes as they come, up to the end of the connection.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut rest = self.bytes.split().to_vec();
        // A reset is an end as well.
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }

    /// Sends a packet; the other side may have gone.
    pub fn send(&mut self, packet: &Packet) {
        let mut out = BytesMut::new();
        packet.write(&mut out, None).unwrap();
        self.send_bytes(&out);
    }

    /// Sends bytes; the other side may have gone.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    // As a broker.

    /// Reads a CONNECT.
    pub fn read_connect(&mut self) -> (Connect, Option<LastWill>) {
        match self.expect() {
            Packet::Connect(connect, will, _) => (connect, will),
            other => panic!("{other:?} instead of CONNECT"),
        }
    }

    /// Answers a CONNECT.
    pub fn send_connack(&mut self, code: ConnectReturnCode, properties: Option<ConnAckProperties>) {
        self.send(&Packet::ConnAck(ConnAck { session_present: false, code, properties }));
    }

    /// Lets a client in.
    pub fn accept(&mut self) -> (Connect, Option<LastWill>) {
        let connect = self.read_connect();
        self.send_connack(ConnectReturnCode::Success, None);
        connect
    }

    /// Lets a client in and grants its subscription.
    pub fn accept_and_grant(&mut self) -> Subscribe {
        self.accept();
        self.answer_subscribe(SubscribeReasonCode::Success(QoS::AtLeastOnce))
    }

    /// Reads a SUBSCRIBE and answers every filter alike.
    pub fn answer_subscribe(&mut self, code: SubscribeReasonCode) -> Subscribe {
        match self.expect() {
            Packet::Subscribe(subscribe) => {
                let return_codes = vec![code; subscribe.filters.len()];
                self.send(&Packet::SubAck(SubAck { pkid: subscribe.pkid, return_codes, properties: None }));
                subscribe
            }
            other => panic!("{other:?} instead of SUBSCRIBE"),
        }
    }

    /// The next PUBLISH, answering pings on the way.
    pub fn read_publish(&mut self) -> Publish {
        loop {
            match self.expect() {
                Packet::Publish(publish) => return publish,
                Packet::PingReq(_) => self.send(&Packet::PingResp(PingResp)),
                other => panic!("{other:?} instead of PUBLISH"),
            }
        }
    }

    /// Acknowledges a PUBLISH.
    pub fn acknowledge(&mut self, pkid: u16, reason: PubAckReason) {
        self.send(&Packet::PubAck(PubAck { pkid, reason, properties: None }));
    }

    /// Sends a message with QoS 1.
    pub fn publish(&mut self, topic: &str, payload: &[u8], pkid: u16) {
        let mut publish = Publish::new(topic, QoS::AtLeastOnce, payload.to_vec(), None);
        publish.pkid = pkid;
        self.send(&Packet::Publish(publish));
    }

    /// Answers pings, acknowledges every message and drops it, until the other side has gone; returns the
    /// payloads and whether it said good-bye.
    pub fn acknowledge_and_drop(&mut self) -> (Vec<Vec<u8>>, bool) {
        let mut dropped = Vec::new();
        while let Some(packet) = self.read() {
            match packet {
                Packet::Publish(publish) => {
                    dropped.push(publish.payload.to_vec());
                    self.acknowledge(publish.pkid, PubAckReason::Success);
                }
                Packet::PingReq(_) => self.send(&Packet::PingResp(PingResp)),
                Packet::Disconnect(_) => return (dropped, true),
                _ => {}
            }
        }
        (dropped, false)
    }
}
