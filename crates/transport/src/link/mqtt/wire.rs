//! MQTT v5 framing over rumqttc's packet types: bytes in a bounded buffer to packets and back.
//!
//! rumqttc's own `Codec` is not used, because it mishandles input that other implementations send:
//! it rejects a DISCONNECT of two bytes, silently skips one of three bytes (mosquitto's form) and
//! any packet whose properties are cut short, and writes a DISCONNECT without properties one byte
//! longer than its header announces.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};

use bytes::BytesMut;
use rumqttc::v5::mqttbytes::Error;
use rumqttc::v5::mqttbytes::v5::{Disconnect, DisconnectReasonCode, Packet};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

/// Largest read into an empty buffer, in bytes.
const FIRST: usize = 16 * 1024;
/// Smallest read for a packet that has begun to arrive, in bytes.
const CHUNK: usize = 4 * 1024;
/// Maximum length of MQTT's length field, in bytes.
const LENGTH_BYTES: usize = 4;

const CONNECT: u8 = 1;
const PUBLISH: u8 = 3;
const PUBREL: u8 = 6;
const SUBSCRIBE: u8 = 8;
const UNSUBSCRIBE: u8 = 10;
const DISCONNECT: u8 = 14;
const AUTH: u8 = 15;

/// Reason why bytes are not a packet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The packet's length field announces more than the limit. Nothing of its body is buffered.
    #[error("packet of {size} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// The size of the packet, in bytes, its header included.
        size: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The bytes violate MQTT v5; the text says how.
    #[error("malformed packet: {0}")]
    Malformed(String),
    /// A CONNECT of another protocol version, such as 4 for MQTT 3.1.1.
    #[error("protocol version {0} is not MQTT v5")]
    Version(u8),
}

/// Collects received bytes until they form a packet.
pub struct FrameBuffer {
    bytes: BytesMut,
    limit: usize,
}

impl FrameBuffer {
    /// Creates a buffer. `limit` is the largest packet accepted, in bytes, its header included.
    pub fn new(limit: u32) -> Self {
        Self { bytes: BytesMut::new(), limit: limit as usize }
    }

    /// Changes the limit for later packets.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit as usize;
    }

    /// Returns whether no bytes are buffered.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns whether the received bytes can become a CONNECT: peers that speak another protocol
    /// are disconnected at once.
    pub fn may_be_connect(&self) -> bool {
        self.bytes.first().is_none_or(|first| *first == CONNECT << 4)
    }

    /// Returns whether the received bytes are a TLS alert (21) of version 3.x, with which a TLS
    /// server refuses plain text.
    pub(crate) fn begins_with_alert(&self) -> bool {
        self.bytes.starts_with(&[21, 3])
    }

    /// Reads available bytes; 0 means the end, with or without a TLS close_notify. Safe to cancel.
    /// The buffer grows with the received bytes, not with the length that a header announces, and
    /// never above the limit and one chunk. It is allocated with the first byte, because most
    /// connections are idle most of the time.
    pub async fn fill<R: AsyncRead + Unpin>(&mut self, reader: &mut R) -> io::Result<usize> {
        let held = self.bytes.len();
        let read = if held == 0 {
            self.bytes = BytesMut::new();
            poll_fn(|cx| {
                let mut chunk = [MaybeUninit::uninit(); FIRST];
                let mut read = ReadBuf::uninit(&mut chunk);
                ready!(Pin::new(&mut *reader).poll_read(cx, &mut read))?;
                self.bytes.extend_from_slice(read.filled());
                Poll::Ready(Ok(read.filled().len()))
            })
            .await
        } else {
            self.bytes.reserve(held.min(self.limit.saturating_sub(held)).max(CHUNK));
            reader.read_buf(&mut self.bytes).await
        };
        read.or_else(|error| if error.kind() == io::ErrorKind::UnexpectedEof { Ok(0) } else { Err(error) })
    }

    /// Appends bytes that were read elsewhere.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes the next complete packet.
    pub fn take_packet(&mut self) -> Result<Option<Packet>, WireError> {
        let Some((head, length)) = header(&self.bytes)? else { return Ok(None) };
        let total = head + length;
        if total > self.limit {
            return Err(WireError::TooLarge { size: total, limit: self.limit });
        }
        if self.bytes.len() < total {
            return Ok(None);
        }
        check_flags(&self.bytes)?;
        if self.bytes[0] >> 4 == DISCONNECT && length < 2 {
            let frame = self.bytes.split_to(total);
            let code = frame.get(head).copied().unwrap_or(0);
            let reason = DisconnectReasonCode::try_from(code).map_err(malformed)?;
            return Ok(Some(Packet::Disconnect(Disconnect::new(reason))));
        }
        match Packet::read(&mut self.bytes, None) {
            Ok(packet) => Ok(Some(packet)),
            Err(Error::InvalidProtocolLevel(level)) => Err(WireError::Version(level)),
            // MQTT v3.1 uses another protocol name.
            Err(Error::InvalidProtocol) => Err(WireError::Version(3)),
            Err(Error::InsufficientBytes(_)) => Err(WireError::Malformed("truncated packet".into())),
            Err(error) => Err(malformed(error)),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "passed to map_err")]
fn malformed(error: Error) -> WireError {
    WireError::Malformed(error.to_string().to_lowercase())
}

/// Parses the length of the header and of the body; `None` if more bytes are needed.
fn header(bytes: &[u8]) -> Result<Option<(usize, usize)>, WireError> {
    let mut length = 0;
    for (index, byte) in bytes.iter().skip(1).take(LENGTH_BYTES).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((index + 2, length)));
        }
    }
    if bytes.len() > LENGTH_BYTES {
        return Err(WireError::Malformed("remaining length has more than four bytes".into()));
    }
    Ok(None)
}

/// Checks the lower half of the first byte, which rumqttc ignores; it is fixed for all types but
/// PUBLISH.
fn check_flags(packet: &[u8]) -> Result<(), WireError> {
    let first = packet.first().copied().unwrap_or_default();
    let expected = match first >> 4 {
        PUBLISH => return Ok(()),
        AUTH => return Err(WireError::Malformed("extended authentication is not supported".into())),
        PUBREL | SUBSCRIBE | UNSUBSCRIBE => 2,
        _ => 0,
    };
    if first & 0x0f == expected {
        return Ok(());
    }
    Err(WireError::Malformed(match packet {
        [b'H', b'T', b'T', b'P', ..] => "HTTP response received: no MQTT broker at this address".into(),
        // A TLS alert (RFC 8446 section 5.1).
        [0x15, 0x03, ..] => "TLS alert received; hint: use mqtts:// in the address".into(),
        _ => format!("reserved flags in the first byte 0x{first:02x}"),
    }))
}

/// Appends a packet; appends nothing if it is larger than `limit` bytes or cannot be encoded.
pub fn encode(packet: &Packet, out: &mut BytesMut, limit: u32) -> Result<(), WireError> {
    let before = out.len();
    packet.write(out, Some(limit)).map_err(|error| {
        out.truncate(before);
        match error {
            Error::OutgoingPacketTooLarge { pkt_size, max } => {
                WireError::TooLarge { size: pkt_size as usize, limit: max as usize }
            }
            error => malformed(error),
        }
    })?;
    Ok(())
}

/// Appends a DISCONNECT with a reason code and no properties.
pub fn encode_disconnect(code: DisconnectReasonCode, out: &mut BytesMut) {
    out.extend_from_slice(&[DISCONNECT << 4, 2, code as u8, 0]);
}

/// Encoded packets for a socket.
#[derive(Default)]
pub struct SendBuffer {
    /// Encoded packets, starting at the first byte not yet written to the stream.
    pub bytes: BytesMut,
    /// Whether the TLS layer holds unflushed bytes.
    held: bool,
}

impl SendBuffer {
    /// Returns whether bytes wait for the socket, including those held in the TLS layer.
    pub fn is_unsent(&self) -> bool {
        !self.bytes.is_empty() || self.held
    }

    /// Writes as many bytes as possible, and flushes once all are written. Safe to cancel. Frees an
    /// empty buffer.
    pub async fn write_to<W: AsyncWrite + Unpin>(&mut self, writer: &mut W) -> io::Result<usize> {
        if self.bytes.is_empty() {
            writer.flush().await?;
            self.held = false;
            return Ok(0);
        }
        self.held = true;
        let count = writer.write_buf(&mut self.bytes).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
        Ok(count)
    }
}

/// Formats a reason code's name as words: `NotAuthorized` becomes "not authorized".
pub(crate) fn words(code: impl std::fmt::Debug) -> String {
    let mut text = String::new();
    for c in format!("{code:?}").chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rumqttc::v5::mqttbytes::QoS;
    use rumqttc::v5::mqttbytes::v5::{PingReq, Publish};

    use super::*;
    use edgesync_fuzz::fuzz;

    fn buffer(bytes: &[u8], limit: u32) -> FrameBuffer {
        FrameBuffer { bytes: BytesMut::from(bytes), limit: limit as usize }
    }

    #[test]
    fn other_protocols_are_detected_by_their_first_bytes() {
        for (bytes, words) in [
            (&[b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(), &[b' '; 200]].concat()[..], "no MQTT broker"),
            (b"\x15\x03\x03\x00\x02\x02\x46", "mqtts://"),
            (b"\x21\x00", "reserved flags in the first byte 0x21"),
        ] {
            let error = buffer(bytes, 1 << 20).take_packet().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    fn reason(bytes: &[u8]) -> DisconnectReasonCode {
        match buffer(bytes, 100).take_packet() {
            Ok(Some(Packet::Disconnect(disconnect))) => disconnect.reason_code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn disconnect_is_parsed_in_all_three_lengths() {
        assert_eq!(reason(&[0xe0, 0]), DisconnectReasonCode::NormalDisconnection);
        assert_eq!(reason(&[0xe0, 1, 0x95]), DisconnectReasonCode::PacketTooLarge);
        assert_eq!(reason(&[0xe0, 2, 0x8e, 0]), DisconnectReasonCode::SessionTakenOver);
    }

    #[test]
    fn encoded_disconnect_has_its_announced_length() {
        let mut out = BytesMut::new();
        encode_disconnect(DisconnectReasonCode::ServerShuttingDown, &mut out);
        let mut read = buffer(&out, 100);
        assert!(matches!(read.take_packet(), Ok(Some(Packet::Disconnect(_)))));
        assert!(read.bytes.is_empty());
    }

    #[test]
    fn packet_in_pieces_is_parsed_when_complete() {
        let mut out = BytesMut::new();
        let publish = Publish::new("a/b", QoS::AtMostOnce, vec![7; 300], None);
        encode(&Packet::Publish(publish), &mut out, 1000).unwrap();
        let mut read = buffer(&[], 1000);
        for byte in &out[..out.len() - 1] {
            read.bytes.extend_from_slice(&[*byte]);
            assert_eq!(read.take_packet(), Ok(None));
        }
        read.bytes.extend_from_slice(&out[out.len() - 1..]);
        assert!(matches!(read.take_packet(), Ok(Some(Packet::Publish(p))) if p.payload.len() == 300));
    }

    #[test]
    fn truncated_packet_is_malformed_and_not_skipped() {
        // QoS 1 PUBLISH whose property length is missing.
        let bytes = [0x32, 5, 0, 1, b'a', 0, 1];
        assert!(matches!(buffer(&bytes, 100).take_packet(), Err(WireError::Malformed(_))));
    }

    #[test]
    fn announced_length_above_the_limit_is_refused_at_once() {
        let error = buffer(&[0x30, 0xff, 0xff, 0xff, 0x7f], 1000).take_packet().unwrap_err();
        assert_eq!(error, WireError::TooLarge { size: 268_435_460, limit: 1000 });
        assert!(matches!(
            buffer(&[0x30, 0xff, 0xff, 0xff, 0xff], 1000).take_packet(),
            Err(WireError::Malformed(_))
        ));
    }

    #[test]
    fn oversized_packet_is_not_written_at_all() {
        let mut out = BytesMut::from(&b"x"[..]);
        let publish = Packet::Publish(Publish::new("a", QoS::AtMostOnce, vec![0; 100], None));
        assert!(matches!(encode(&publish, &mut out, 50), Err(WireError::TooLarge { .. })));
        let without_id = Packet::Publish(Publish::new("a", QoS::AtLeastOnce, vec![0; 10], None));
        assert!(matches!(encode(&without_id, &mut out, 50), Err(WireError::Malformed(_))));
        assert_eq!(&out[..], b"x");
        encode(&Packet::PingReq(PingReq), &mut out, 50).unwrap();
        assert_eq!(&out[..], b"x\xc0\0");
    }

    #[test]
    fn older_protocol_versions_are_detected() {
        let v4 = b"\x10\x0d\0\x04MQTT\x04\x02\0\x14\0\x01a";
        assert_eq!(buffer(v4, 100).take_packet(), Err(WireError::Version(4)));
        let v3 = b"\x10\x0f\0\x06MQIsdp\x03\x02\0\x14\0\x01a";
        assert_eq!(buffer(v3, 100).take_packet(), Err(WireError::Version(3)));
    }

    #[tokio::test]
    async fn send_buffer_is_unsent_until_flushed_and_then_freed() {
        let mut out = SendBuffer { bytes: BytesMut::with_capacity(1 << 20), held: false };
        out.bytes.extend_from_slice(b"x");
        assert_eq!(out.write_to(&mut tokio::io::sink()).await.unwrap(), 1);
        assert!(out.is_unsent(), "it may be held back");
        assert_eq!(out.bytes.capacity(), 0);
        assert_eq!(out.write_to(&mut tokio::io::sink()).await.unwrap(), 0);
        assert!(!out.is_unsent());
    }

    #[test]
    fn reason_codes_are_formatted_as_words() {
        assert_eq!(words(DisconnectReasonCode::SessionTakenOver), "session taken over");
    }

    #[test]
    fn fuzz_mqtt() {
        let samples: [&[u8]; 6] = [
            b"\x10\x14\0\x04MQTT\x05\xc0\0\x14\0\0\x01a\0\x01b\0\x01c",
            b"\x10\x27\0\x04MQTT\x05\x2e\0\x14\x05\x11\0\0\0\x0a\0\x01a\x05\x18\0\0\0\x05\0\x03t/1\0\x04gone",
            b"\x32\x0c\0\x03a/b\0\x01\x02\x01\x01hi",
            b"\x82\x09\0\x01\0\0\x03a/#\x01",
            b"\x40\x03\0\x01\0\xe0\x02\0\0",
            b"\xc0\0\x30\x05\0\x01a\0x\xe0\x07\x8e\x05\x1f\0\x02hi",
        ];
        fuzz("mqtt", &samples.map(<[u8]>::to_vec), |bytes| {
            let mut read = buffer(bytes, 300);
            while let Ok(Some(_)) = read.take_packet() {}
        });
    }

    proptest! {
        #[test]
        fn parser_neither_panics_nor_stalls_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut read = buffer(&bytes, 150);
            loop {
                let before = read.bytes.len();
                match read.take_packet() {
                    Ok(Some(_)) => prop_assert!(read.bytes.len() < before),
                    Ok(None) | Err(_) => break,
                }
            }
        }

        #[test]
        fn parser_never_panics_on_well_framed_packets(
            first in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..127)
        ) {
            let mut bytes = vec![first, body.len() as u8];
            bytes.extend(body);
            let _ = buffer(&bytes, 200).take_packet();
        }
    }
}
