//! Passes a client's messages to the cloud, one at a time: while one waits, nothing is read.

use std::sync::Arc;

use crate::FleetEvent;
use crate::inflow::{Inflow, Share};
use crate::registry::Outbound;

/// Sequel of a message, once the cloud has it.
pub(super) struct Receipt {
    /// Packet id to acknowledge.
    pub(super) id: Option<u16>,
    /// Copy for the client itself, if it subscribed to its own topic.
    pub(super) echo: Option<Outbound>,
}

/// A message that waits for space in the inflow.
struct Waiting {
    event: FleetEvent,
    /// Size of the payload.
    bytes: usize,
    receipt: Receipt,
}

/// The connection's share of the inflow, and the message that waits for it.
pub(super) struct Ingest {
    share: Arc<Share>,
    waiting: Option<Waiting>,
}

impl Ingest {
    pub(super) fn new(inflow: &Inflow) -> Self {
        Self { share: inflow.share(), waiting: None }
    }

    /// Returns whether a message waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Passes a message of `bytes` bytes on, and returns its receipt; without space it waits for
    /// [`Ingest::passed`]. Call it only while none waits.
    pub(super) fn push(
        &mut self,
        inflow: &Inflow,
        event: FleetEvent,
        bytes: usize,
        receipt: Receipt,
    ) -> Option<Receipt> {
        if let Some(reservation) = inflow.try_reserve(bytes, &self.share) {
            reservation.send(event);
            return Some(receipt);
        }
        self.waiting = Some(Waiting { event, bytes, receipt });
        None
    }

    /// Waits for space for the waiting message, and returns its receipt; `None` when the receiver
    /// of the inflow was dropped. Safe to cancel.
    pub(super) async fn passed(&mut self, inflow: &Inflow) -> Option<Receipt> {
        let bytes = self.waiting.as_ref().map_or(0, |waiting| waiting.bytes);
        let reservation = inflow.reserve(bytes, &self.share).await?;
        let Waiting { event, receipt, .. } = self.waiting.take()?;
        reservation.send(event);
        Some(receipt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inflow::inflow;

    fn event() -> FleetEvent {
        FleetEvent::Open { max_packet: 0 }
    }

    fn receipt(id: u16) -> Receipt {
        Receipt { id: Some(id), echo: None }
    }

    #[tokio::test]
    async fn message_without_space_waits_and_returns_its_receipt() {
        let (inflow, mut events) = inflow(1, 1000);
        let mut ingest = Ingest::new(&inflow);
        assert_eq!(ingest.push(&inflow, event(), 10, receipt(1)).and_then(|receipt| receipt.id), Some(1));
        assert!(ingest.push(&inflow, event(), 10, receipt(2)).is_none());
        assert!(ingest.is_waiting());
        assert!(events.recv().await.is_some());
        assert_eq!(ingest.passed(&inflow).await.and_then(|receipt| receipt.id), Some(2));
        assert!(!ingest.is_waiting());
    }

    #[tokio::test]
    async fn dropped_receiver_ends_the_wait() {
        let (inflow, events) = inflow(1, 1000);
        let mut ingest = Ingest::new(&inflow);
        assert!(ingest.push(&inflow, event(), 10, receipt(1)).is_some());
        assert!(ingest.push(&inflow, event(), 10, receipt(2)).is_none());
        drop(events);
        assert!(ingest.passed(&inflow).await.is_none());
    }
}
