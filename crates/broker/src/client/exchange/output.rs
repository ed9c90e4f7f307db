//! Encoded packets for one client, and how far the client has read them. The caller does the I/O.

use std::collections::VecDeque;

use bytes::BytesMut;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish};
use tokio::time::Instant;

use edgesync_transport::link::wire::{self, SendBuffer, WireError};

/// Limit for packets encoded ahead of the socket, in bytes; a single packet may exceed it. While as
/// many bytes of answers are queued beyond it, nothing is read either: a client that does not read
/// answers gets no further requests handled.
pub(super) const AHEAD: usize = 32 * 1024;

/// Send buffer of one client.
pub(super) struct Output {
    pub(super) buffer: SendBuffer,
    /// The largest packet that the client accepts, in bytes.
    max_packet: u32,
    /// Bytes of answers added since the buffer was last below [`AHEAD`].
    answers: usize,
    /// Number of bytes written so far.
    written: u64,
    /// End positions, in the same count, of the cloud's messages that are not fully written.
    ends: VecDeque<u64>,
    /// Time of the last write, or when the buffer became non-empty.
    progress: Instant,
}

impl Output {
    /// Creates a buffer that begins with the CONNACK.
    pub(super) fn new(connack: &Packet, max_packet: u32, now: Instant) -> Self {
        let mut buffer = SendBuffer::default();
        // Cannot fail: the packet is small, and no limit applies.
        let _ = wire::encode(connack, &mut buffer.bytes, u32::MAX);
        Self { buffer, max_packet, answers: 0, written: 0, ends: VecDeque::new(), progress: now }
    }

    /// Returns whether messages may be added.
    pub(super) fn has_capacity(&self) -> bool {
        self.buffer.bytes.len() < AHEAD
    }

    /// Returns whether so many answers are unread that no further request is handled.
    pub(super) fn blocks_reading(&self) -> bool {
        !self.has_capacity() && self.answers >= AHEAD
    }

    /// Returns the number of the cloud's messages that are not fully written.
    pub(super) fn unwritten(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Returns the time of the last progress while bytes wait for the socket.
    pub(super) fn unsent_since(&self) -> Option<Instant> {
        self.buffer.is_unsent().then_some(self.progress)
    }

    /// Adds an answer to a request of the client.
    pub(super) fn push_answer(&mut self, packet: &Packet, now: Instant) -> Result<(), WireError> {
        let before = self.buffer.bytes.len();
        self.push(packet, now)?;
        self.answers += self.buffer.bytes.len() - before;
        Ok(())
    }

    /// Adds a message; one of the cloud counts as unwritten until its last byte is written.
    pub(super) fn push_message(
        &mut self,
        publish: Publish,
        is_from_cloud: bool,
        now: Instant,
    ) -> Result<(), WireError> {
        self.push(&Packet::Publish(publish), now)?;
        if is_from_cloud {
            self.ends.push_back(self.written + self.buffer.bytes.len() as u64);
        }
        Ok(())
    }

    fn push(&mut self, packet: &Packet, now: Instant) -> Result<(), WireError> {
        if !self.buffer.is_unsent() {
            self.progress = now;
        }
        wire::encode(packet, &mut self.buffer.bytes, self.max_packet)
    }

    /// Records bytes that the socket has accepted. Returns whether reading was blocked until now.
    pub(super) fn wrote(&mut self, count: usize, now: Instant) -> bool {
        self.progress = now;
        self.written += count as u64;
        while self.ends.pop_front_if(|end| *end <= self.written).is_some() {}
        self.has_capacity() && std::mem::take(&mut self.answers) >= AHEAD
    }

    /// Returns the unwritten bytes.
    pub(super) fn into_bytes(self) -> BytesMut {
        self.buffer.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rumqttc::v5::mqttbytes::QoS;
    use rumqttc::v5::mqttbytes::v5::PingResp;

    use super::*;

    fn output(now: Instant) -> Output {
        let mut output = Output::new(&Packet::PingResp(PingResp), 1 << 20, now);
        take(&mut output, usize::MAX, now);
        output
    }

    /// Writes up to `count` bytes; returns whether reading was blocked until then.
    fn take(output: &mut Output, count: usize, now: Instant) -> bool {
        let count = count.min(output.buffer.bytes.len());
        let _ = output.buffer.bytes.split_to(count);
        output.wrote(count, now)
    }

    fn message(size: usize) -> Publish {
        Publish::new("t", QoS::AtMostOnce, vec![0; size], None)
    }

    #[test]
    fn message_of_the_cloud_is_unwritten_until_its_last_byte() {
        let now = Instant::now();
        let mut output = output(now);
        output.push_message(message(100), true, now).unwrap();
        output.push_message(message(100), false, now).unwrap();
        output.push_message(message(100), true, now).unwrap();
        assert_eq!(output.unwritten(), 2);
        take(&mut output, 100, now);
        assert_eq!(output.unwritten(), 2);
        take(&mut output, 10, now);
        assert_eq!(output.unwritten(), 1);
        take(&mut output, usize::MAX, now);
        assert_eq!(output.unwritten(), 0);
    }

    #[test]
    fn unread_answers_block_reading_and_messages_do_not() {
        let now = Instant::now();
        let mut output = output(now);
        output.push_message(message(AHEAD), false, now).unwrap();
        assert!(!output.has_capacity() && !output.blocks_reading());
        while !output.blocks_reading() {
            output.push_answer(&Packet::PingResp(PingResp), now).unwrap();
        }
        assert!(!take(&mut output, AHEAD / 2, now), "too many bytes are still unwritten");
        assert!(take(&mut output, AHEAD, now));
        assert!(!output.blocks_reading());
        assert!(!take(&mut output, 1, now), "reading was not blocked");
    }

    #[test]
    fn progress_starts_when_the_buffer_becomes_non_empty() {
        let (start, later) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let mut output = output(start);
        output.push_answer(&Packet::PingResp(PingResp), later).unwrap();
        assert_eq!(output.unsent_since(), Some(later));
        output.push_answer(&Packet::PingResp(PingResp), later + Duration::from_secs(1)).unwrap();
        assert_eq!(output.unsent_since(), Some(later));
    }

    #[test]
    fn oversized_message_leaves_the_buffer_unchanged() {
        let now = Instant::now();
        let mut output = output(now);
        assert!(output.push_message(message(2 << 20), true, now).is_err());
        assert_eq!((output.unwritten(), output.unsent_since()), (0, None));
    }
}
