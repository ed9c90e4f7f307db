//! Frames of a WebSocket (RFC 6455) that carries a stream of bytes: decoder and encoder without
//! I/O, for both roles.
//!
//! MQTT takes the payloads of all binary messages as one stream. So a payload is passed on as it
//! arrives: the memory of a frame does not depend on the length that its header announces.

use std::io::Cursor;

use bytes::{Buf as _, BufMut as _, BytesMut};
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};

/// Maximum length of a data frame, in bytes: that of an MQTT packet.
pub(crate) const MAX_FRAME: u64 = 268_435_460;
/// Maximum payload of a control frame, in bytes.
const MAX_CONTROL: u64 = 125;
/// Maximum number of frames in sequence that carry no byte of the stream.
pub(crate) const MAX_EMPTY: u32 = 256;

/// The side of a WebSocket. A client masks what it sends, a server does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that requested the upgrade.
    Client,
    /// The side that accepted it.
    Server,
}

/// Part of a WebSocket's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// The next bytes of the stream.
    Data(BytesMut),
    /// A ping, to be answered with a pong of the same payload.
    Ping(BytesMut),
    /// The end of the stream: code and reason.
    Close(Option<(u16, String)>),
}

/// Violation of RFC 6455, or of its use by MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The peer is a client and must mask its frames.
    #[error("unmasked WebSocket frame of a client")]
    Unmasked,
    /// The peer is a server and must not mask its frames.
    #[error("masked WebSocket frame of a server")]
    Masked,
    /// A reserved bit is set, and no extension was negotiated.
    #[error("reserved bits in a WebSocket frame: no extension was negotiated")]
    Extension,
    /// A reserved type of frame.
    #[error("WebSocket frame of unknown type 0x{0:x}")]
    Kind(u8),
    /// MQTT requires binary messages.
    #[error("text message received: MQTT over WebSocket requires binary messages")]
    Text,
    /// A control frame in fragments, or a long one.
    #[error("WebSocket control frame of {0} bytes, or in fragments")]
    Control(u64),
    /// A continuation without a message, or a message within a message.
    #[error("fragments of WebSocket messages out of order")]
    Order,
    /// The header announces more than [`MAX_FRAME`].
    #[error("WebSocket frame of {0} bytes exceeds the limit of {MAX_FRAME}")]
    TooLong(u64),
    /// More than [`MAX_EMPTY`] frames in sequence without data.
    #[error("more than {MAX_EMPTY} WebSocket frames in sequence without data")]
    Flood,
}

/// A frame whose payload is being received.
#[derive(Clone, Copy, Debug)]
struct Frame {
    kind: OpCode,
    /// Bytes of the payload that have not been taken.
    left: u64,
    /// The key of the next byte is the first one.
    mask: Option<[u8; 4]>,
}

/// Decodes the frames of a peer.
#[derive(Debug)]
pub(crate) struct Decoder {
    role: Role,
    frame: Option<Frame>,
    /// Whether a message has begun whose last fragment has not.
    in_message: bool,
    /// Number of frames since the last byte of the stream.
    empty: u32,
}

impl Decoder {
    /// Creates the decoder of the side with that role.
    pub(crate) fn new(role: Role) -> Self {
        Self { role, frame: None, in_message: false, empty: 0 }
    }

    /// Returns whether a frame has begun that has not ended.
    pub(crate) fn is_within_frame(&self) -> bool {
        self.frame.is_some()
    }

    /// Takes the next part from the received bytes; `None` if more are needed.
    ///
    /// # Errors
    /// The peer violates the protocol; the connection must be closed.
    pub(crate) fn decode(&mut self, received: &mut BytesMut) -> Result<Option<Item>, FrameError> {
        loop {
            let frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.begin(received)? {
                    Some(frame) => frame,
                    None => return Ok(None),
                },
            };
            match frame.kind {
                OpCode::Data(_) if frame.left == 0 => self.count_empty()?,
                OpCode::Data(_) => {
                    if received.is_empty() {
                        self.frame = Some(frame);
                        return Ok(None);
                    }
                    let (payload, frame) = take(frame, received);
                    self.frame = frame;
                    self.empty = 0;
                    return Ok(Some(Item::Data(payload)));
                }
                OpCode::Control(control) => {
                    if (received.len() as u64) < frame.left {
                        self.frame = Some(frame);
                        return Ok(None);
                    }
                    self.count_empty()?;
                    let (payload, _) = take(frame, received);
                    match control {
                        Control::Close => return Ok(Some(Item::Close(closing(&payload)))),
                        Control::Ping => return Ok(Some(Item::Ping(payload))),
                        Control::Pong | Control::Reserved(_) => {}
                    }
                }
            }
        }
    }

    /// Takes and checks the header of a frame.
    fn begin(&mut self, received: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let first = received.first().copied().unwrap_or_default();
        let mut cursor = Cursor::new(&received[..]);
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| FrameError::Kind(first & 0x0f))?;
        let length = usize::try_from(cursor.position()).unwrap_or(usize::MAX);
        let Some((header, left)) = parsed else { return Ok(None) };
        received.advance(length.min(received.len()));
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(FrameError::Extension);
        }
        match (self.role, header.mask) {
            (Role::Server, None) => return Err(FrameError::Unmasked),
            (Role::Client, Some(_)) => return Err(FrameError::Masked),
            _ => {}
        }
        match header.opcode {
            OpCode::Control(_) if !header.is_final || left > MAX_CONTROL => {
                return Err(FrameError::Control(left));
            }
            OpCode::Control(_) => {}
            OpCode::Data(Data::Text) => return Err(FrameError::Text),
            OpCode::Data(kind) => {
                let continues = kind == Data::Continue;
                if continues != self.in_message {
                    return Err(FrameError::Order);
                }
                self.in_message = !header.is_final;
                if left > MAX_FRAME {
                    return Err(FrameError::TooLong(left));
                }
            }
        }
        Ok(Some(Frame { kind: header.opcode, left, mask: header.mask }))
    }

    fn count_empty(&mut self) -> Result<(), FrameError> {
        self.empty += 1;
        if self.empty > MAX_EMPTY { Err(FrameError::Flood) } else { Ok(()) }
    }
}

/// Takes what is there of a frame's payload; returns the rest of the frame, if there is one.
fn take(frame: Frame, received: &mut BytesMut) -> (BytesMut, Option<Frame>) {
    let count = usize::try_from(frame.left).unwrap_or(usize::MAX).min(received.len());
    let mut payload = received.split_to(count);
    let mut rest = Frame { left: frame.left - count as u64, ..frame };
    if let Some(mask) = &mut rest.mask {
        apply(*mask, &mut payload);
        mask.rotate_left(count % 4);
    }
    (payload, (rest.left > 0).then_some(rest))
}

/// Masks or unmasks bytes.
fn apply(mask: [u8; 4], bytes: &mut [u8]) {
    for (byte, key) in bytes.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= key;
    }
}

/// Returns code and reason of a close frame, safe to log.
fn closing(payload: &[u8]) -> Option<(u16, String)> {
    let (code, reason) = payload.split_first_chunk::<2>()?;
    let reason = String::from_utf8_lossy(reason).chars().filter(|c| !c.is_control()).collect();
    Some((u16::from_be_bytes(*code), reason))
}

/// Appends bytes of the stream as one binary message. A client passes a new random mask each time,
/// a server none.
pub(crate) fn encode_data(payload: &[u8], mask: Option<[u8; 4]>, out: &mut BytesMut) {
    encode(OpCode::Data(Data::Binary), payload, mask, out);
}

/// Appends the answer to a ping.
pub(crate) fn encode_pong(payload: &[u8], mask: Option<[u8; 4]>, out: &mut BytesMut) {
    encode(OpCode::Control(Control::Pong), payload, mask, out);
}

/// Appends the end of the stream with a code such as 1000.
pub(crate) fn encode_close(code: u16, mask: Option<[u8; 4]>, out: &mut BytesMut) {
    encode(OpCode::Control(Control::Close), &code.to_be_bytes(), mask, out);
}

fn encode(opcode: OpCode, payload: &[u8], mask: Option<[u8; 4]>, out: &mut BytesMut) {
    let header = FrameHeader { opcode, mask, ..FrameHeader::default() };
    let length = payload.len() as u64;
    out.reserve(header.len(length) + payload.len());
    // Writing to memory does not fail.
    let _ = header.format(length, &mut (&mut *out).writer());
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(mask) = mask {
        apply(mask, &mut out[start..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MASK: Option<[u8; 4]> = Some([0x12, 0x34, 0x56, 0x78]);

    fn items(role: Role, bytes: &[u8]) -> Result<Vec<Item>, FrameError> {
        let (mut decoder, mut received) = (Decoder::new(role), BytesMut::from(bytes));
        let mut items = Vec::new();
        while let Some(item) = decoder.decode(&mut received)? {
            items.push(item);
        }
        Ok(items)
    }

    fn error(role: Role, bytes: &[u8]) -> FrameError {
        items(role, bytes).unwrap_err()
    }

    #[test]
    fn frames_of_rfc_6455_are_decoded() {
        // Section 5.7: "Hello" as a masked message, here binary, and a ping of it.
        let masked = [0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        assert_eq!(items(Role::Server, &masked).unwrap(), [Item::Data(BytesMut::from("Hello"))]);
        let ping = [0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
        assert_eq!(items(Role::Client, &ping).unwrap(), [Item::Ping(BytesMut::from("Hello"))]);
        let fragments = [0x02, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
        let expected = [Item::Data(BytesMut::from("Hel")), Item::Data(BytesMut::from("lo"))];
        assert_eq!(items(Role::Client, &fragments).unwrap(), expected);
    }

    #[test]
    fn frames_of_the_wrong_role_are_refused() {
        assert_eq!(error(Role::Server, &[0x82, 0x01, 0]), FrameError::Unmasked);
        assert_eq!(error(Role::Client, &[0x82, 0x81, 0, 0, 0, 0, 0]), FrameError::Masked);
    }

    #[test]
    fn violations_of_the_framing_are_refused() {
        assert_eq!(error(Role::Client, &[0xc2, 0x00]), FrameError::Extension);
        assert_eq!(error(Role::Client, &[0x83, 0x00]), FrameError::Kind(3));
        assert_eq!(error(Role::Client, &[0x81, 0x01, b'a']), FrameError::Text);
        assert_eq!(error(Role::Client, &[0x09, 0x00]), FrameError::Control(0));
        assert_eq!(error(Role::Client, &[0x89, 126, 0, 126]), FrameError::Control(126));
        assert_eq!(error(Role::Client, &[0x80, 0x00]), FrameError::Order);
        assert_eq!(error(Role::Client, &[0x02, 0x00, 0x82, 0x00]), FrameError::Order);
    }

    #[test]
    fn huge_frame_is_refused_by_its_header() {
        let header = [0x82, 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(error(Role::Client, &header), FrameError::TooLong(i64::MAX as u64));
    }

    #[test]
    fn frame_within_the_limit_is_passed_on_without_being_collected() {
        let (mut decoder, mut received) = (Decoder::new(Role::Client), BytesMut::new());
        received.extend_from_slice(&[0x82, 127, 0, 0, 0, 0, 0x0f, 0xff, 0xff, 0xff]);
        for _ in 0..1000 {
            received.extend_from_slice(&[7_u8; 100]);
            assert_eq!(decoder.decode(&mut received), Ok(Some(Item::Data(BytesMut::from(&[7_u8; 100][..])))));
            assert!(received.is_empty() && decoder.is_within_frame());
        }
    }

    #[test]
    fn pings_without_end_are_refused() {
        let pings = [0x89_u8, 0x00].repeat(MAX_EMPTY as usize + 1);
        assert_eq!(error(Role::Client, &pings), FrameError::Flood);
        let empty = [0x82_u8, 0x00].repeat(MAX_EMPTY as usize + 1);
        assert_eq!(error(Role::Client, &empty), FrameError::Flood);
        let mixed = [0x89_u8, 0x00, 0x82, 0x01, b'a'].repeat(2 * MAX_EMPTY as usize);
        assert_eq!(items(Role::Client, &mixed).unwrap().len(), 4 * MAX_EMPTY as usize);
    }

    #[test]
    fn close_frame_has_code_and_reason() {
        let mut bytes = vec![0x88, 0x06];
        bytes.extend_from_slice(&1008_u16.to_be_bytes());
        bytes.extend_from_slice(b"no\x07!");
        assert_eq!(items(Role::Client, &bytes).unwrap(), [Item::Close(Some((1008, "no!".into())))]);
        assert_eq!(items(Role::Client, &[0x88, 0x00]).unwrap(), [Item::Close(None)]);
        assert_eq!(items(Role::Client, &[0x88, 0x01, 3]).unwrap(), [Item::Close(None)]);
    }

    proptest! {
        #[test]
        fn stream_survives_any_cut_in_both_roles(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8),
            cut in 1..40_usize,
            is_client in any::<bool>(),
        ) {
            let (mask, role) = if is_client { (MASK, Role::Server) } else { (None, Role::Client) };
            let mut wire = BytesMut::new();
            for chunk in &chunks {
                encode_data(chunk, mask, &mut wire);
            }
            let (mut decoder, mut received, mut stream) = (Decoder::new(role), BytesMut::new(), Vec::new());
            for part in wire.chunks(cut) {
                received.extend_from_slice(part);
                while let Some(Item::Data(data)) = decoder.decode(&mut received).unwrap() {
                    stream.extend_from_slice(&data);
                }
            }
            prop_assert_eq!(stream, chunks.concat());
            prop_assert!(received.is_empty() && !decoder.is_within_frame());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = items(Role::Server, &bytes);
            let _ = items(Role::Client, &bytes);
        }
    }
}
