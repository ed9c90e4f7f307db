//! A scripted end of an MQTT v5 connection, on rumqttc's packet types: a broker that misbehaves on
//! command, or a client that sends what no library would.

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

/// Runs a script for each connection on its own thread, with the number of the connection from 0.
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

    /// Returns the address that it listens on.
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
        // Wakes the accepting thread, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

/// One end of a connection, closed on drop.
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

    /// Connects as a client, without sending.
    pub fn dial(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).unwrap())
    }

    /// Returns a second handle of the connection, for senders on several threads.
    pub fn writer(&self) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self::new(self.stream.try_clone().unwrap())))
    }

    /// Returns the next packet; `None` when the other side has closed.
    pub fn read(&mut self) -> Option<Packet> {
        loop {
            // Two forms of DISCONNECT that rumqttc does not parse.
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

    /// Returns the next packet, which must exist.
    pub fn expect(&mut self) -> Packet {
        self.read().expect("the connection was closed, a packet was expected")
    }

    /// Returns all bytes up to the end of the connection.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut rest = self.bytes.split().to_vec();
        // A reset is an end, too.
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }

    /// Sends a packet; ignores a closed connection.
    pub fn send(&mut self, packet: &Packet) {
        let mut out = BytesMut::new();
        packet.write(&mut out, None).unwrap();
        self.send_bytes(&out);
    }

    /// Sends bytes; ignores a closed connection.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    // Broker side.

    /// Reads a CONNECT; panics at any other packet.
    pub fn read_connect(&mut self) -> (Connect, Option<LastWill>) {
        match self.expect() {
            Packet::Connect(connect, will, _) => (connect, will),
            other => panic!("{other:?} instead of CONNECT"),
        }
    }

    /// Sends a CONNACK without a present session.
    pub fn send_connack(&mut self, code: ConnectReturnCode, properties: Option<ConnAckProperties>) {
        self.send(&Packet::ConnAck(ConnAck { session_present: false, code, properties }));
    }

    /// Reads a CONNECT and answers it with success.
    pub fn accept(&mut self) -> (Connect, Option<LastWill>) {
        let connect = self.read_connect();
        self.send_connack(ConnectReturnCode::Success, None);
        connect
    }

    /// Accepts a client and grants its subscription.
    pub fn accept_and_grant(&mut self) -> Subscribe {
        self.accept();
        self.answer_subscribe(SubscribeReasonCode::Success(QoS::AtLeastOnce))
    }

    /// Reads a SUBSCRIBE, and answers every filter with `code`.
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

    /// Returns the next PUBLISH, and answers pings before it.
    pub fn read_publish(&mut self) -> Publish {
        loop {
            match self.expect() {
                Packet::Publish(publish) => return publish,
                Packet::PingReq(_) => self.send(&Packet::PingResp(PingResp)),
                other => panic!("{other:?} instead of PUBLISH"),
            }
        }
    }

    /// Sends a PUBACK for the PUBLISH with this packet id.
    pub fn acknowledge(&mut self, pkid: u16, reason: PubAckReason) {
        self.send(&Packet::PubAck(PubAck { pkid, reason, properties: None }));
    }

    /// Sends a message with QoS 1.
    pub fn publish(&mut self, topic: &str, payload: &[u8], pkid: u16) {
        let mut publish = Publish::new(topic, QoS::AtLeastOnce, payload.to_vec(), None);
        publish.pkid = pkid;
        self.send(&Packet::Publish(publish));
    }

    /// Answers pings, and acknowledges and drops every message, until the other side has closed.
    /// Returns the payloads, and whether it sent a DISCONNECT.
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
