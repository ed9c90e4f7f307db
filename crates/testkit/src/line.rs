//! MQTT of a simulated node: hand-made packets over TCP, or over TLS with the node's certificate.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use edgesync_transport::tls::{Certificate, Client, Clock, Identity, Key, NODES, Trust};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

/// The cloud's CA, which vouches for every node. All nodes share one key, because the nodes are not
/// measured.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    trust: Trust,
    key: KeyPair,
}

impl Authority {
    /// Opens the authority of a cloud side in the directory of its files.
    pub fn open(directory: &Path) -> anyhow::Result<Self> {
        let read = |name: &str| std::fs::read_to_string(directory.join(name));
        let certificate = read("ca.crt")?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, KeyPair::from_pem(&read("ca.key")?)?)?;
        let trust = Trust::new(Certificate::all_from_pem("ca.crt", &certificate)?);
        Ok(Self { issuer, trust, key: KeyPair::generate()? })
    }

    /// Creates a client with the certificate of a node.
    fn client(&self, node: &str) -> anyhow::Result<Client> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, NODES);
        params.distinguished_name.push(DnType::CommonName, node);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&self.key, &self.issuer)?;
        let chain = Certificate::all_from_pem(node, &certificate.pem())?;
        let identity = Identity::new(node, chain, Key::from_pem(node, &self.key.serialize_pem())?)?;
        Ok(Client::new(&self.trust, Some(&identity), Clock::system([]))?)
    }
}

/// Address of the endpoint; with TLS if there is an authority.
#[derive(Clone)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub authority: Option<Arc<Authority>>,
    /// Number of loopback addresses that nodes connect from: one has 28,000 ports. With 1 they
    /// connect from the address of the endpoint.
    pub sources: u8,
}

impl Endpoint {
    async fn connect(&self, node: &str) -> anyhow::Result<TcpStream> {
        if self.sources <= 1 {
            return Ok(TcpStream::connect(self.address).await?);
        }
        let sum: usize = node.bytes().map(usize::from).sum();
        let source = u8::try_from(sum % usize::from(self.sources))?;
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::new(127, 0, 1, source), 0).into())?;
        Ok(socket.connect(self.address).await?)
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Silence after which a node pings, as agents do by default. A cloud side grants no longer one.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// A connection of one node, subscribed to its messages.
pub struct Line {
    stream: Box<dyn Stream>,
    /// Received bytes of an incomplete packet.
    unread: Vec<u8>,
    next_id: u16,
    /// When the last packet was sent.
    sent: Instant,
}

impl Line {
    /// Connects and subscribes to `edgesync/v1/nodes/<node>/down`.
    pub async fn open(endpoint: &Endpoint, node: &str) -> anyhow::Result<Self> {
        let plain = endpoint.connect(node).await?;
        plain.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match &endpoint.authority {
            Some(authority) => {
                Box::new(authority.client(node)?.connect(&endpoint.address.ip().to_string(), plain).await?)
            }
            None => Box::new(plain),
        };
        let mut line = Self { stream, unread: Vec::new(), next_id: 0, sent: Instant::now() };
        line.write(&connect(node)).await?;
        line.packet().await?;
        line.write(&subscribe(&format!("edgesync/v1/nodes/{node}/down"))).await?;
        line.packet().await?;
        Ok(line)
    }

    async fn write(&mut self, packet: &[u8]) -> std::io::Result<()> {
        self.sent = Instant::now();
        self.stream.write_all(packet).await?;
        self.stream.flush().await
    }

    /// Sends one message with QoS 1.
    pub async fn publish(&mut self, topic: &str, payload: &[u8]) -> std::io::Result<()> {
        self.next_id = self.next_id.wrapping_add(1).max(1);
        let mut body = Vec::new();
        string(&mut body, topic);
        body.extend(self.next_id.to_be_bytes());
        body.push(0);
        body.extend(payload);
        self.write(&packet(0x32, &body)).await
    }

    /// Returns when a ping is due.
    pub fn ping_due(&self) -> Instant {
        self.sent + KEEPALIVE
    }

    pub async fn ping(&mut self) -> std::io::Result<()> {
        self.write(&packet(0xc0, &[])).await
    }

    /// Disconnects in order, and waits until the peer has read everything.
    pub async fn disconnect(mut self) -> std::io::Result<()> {
        // The reason 0 is left out.
        self.write(&packet(0xe0, &[])).await?;
        while self.packet().await.is_ok() {}
        Ok(())
    }

    /// Returns the payload of the next packet if it is a message, and acknowledges it. Safe to
    /// cancel.
    pub async fn message(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let (first, mut body) = self.packet().await?;
        if first >> 4 != 3 {
            return Ok(None);
        }
        let topic = usize::from(u16::from_be_bytes([body[0], body[1]])) + 2;
        let has_id = first & 0x06 != 0;
        let properties = topic + if has_id { 2 } else { 0 };
        let payload = properties + 1 + usize::from(body[properties]);
        if has_id {
            self.write(&packet(0x40, &body[topic..topic + 2])).await?;
        }
        Ok(Some(body.split_off(payload)))
    }

    async fn packet(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        loop {
            if let Some((start, end)) = whole(&self.unread) {
                let (first, body) = (self.unread[0], self.unread[start..end].to_vec());
                self.unread.drain(..end);
                return Ok((first, body));
            }
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Returns the range of the first packet's body, if it is complete.
fn whole(bytes: &[u8]) -> Option<(usize, usize)> {
    let (mut length, mut start) = (0, 1);
    loop {
        let byte = *bytes.get(start)?;
        length |= usize::from(byte & 0x7f) << (7 * (start - 1));
        start += 1;
        if byte & 0x80 == 0 {
            break;
        }
    }
    (bytes.len() >= start + length).then_some((start, start + length))
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend(u16::try_from(text.len()).unwrap_or(0).to_be_bytes());
    out.extend(text.as_bytes());
}

/// Encodes an MQTT packet: type and flags, the length as a variable byte integer, the body.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let mut length = body.len();
    loop {
        let more = length >= 128;
        out.push((length % 128) as u8 | if more { 0x80 } else { 0 });
        length /= 128;
        if !more {
            break;
        }
    }
    out.extend(body);
    out
}

fn connect(node: &str) -> Vec<u8> {
    let mut body = Vec::new();
    string(&mut body, "MQTT");
    // Version 5, clean start, 600 s keep-alive, no properties.
    body.extend([5, 0x02, 0x02, 0x58, 0]);
    string(&mut body, node);
    packet(0x10, &body)
}

fn subscribe(topic: &str) -> Vec<u8> {
    let mut body = vec![0, 1, 0];
    string(&mut body, topic);
    body.push(1);
    packet(0x82, &body)
}
