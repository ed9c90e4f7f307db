//! The message in parts: keeps what has arrived of it in the store, and reads it after a restart.

use tokio::task::JoinError;

use super::storing::InFlight;
use super::{Driver, random, reject_reason};
use crate::store::EdgeStore;
use edgesync_protocol::change::RejectReason;
use edgesync_protocol::edge::EdgeEffect;
use edgesync_protocol::frame::PartialMessage;
use edgesync_store::StoreError;
use edgesync_transport::admission::LinePermit;

/// The result of keeping a piece: `false` if the bytes before it are gone.
type Kept = Result<bool, StoreError>;
/// The result of reading what is kept.
pub(super) type PartsRead = Result<Option<PartialMessage>, StoreError>;

/// The pieces that are being kept.
pub(super) type Keeps = InFlight<PartialMessage, Kept>;

impl Keeps {
    /// Gives a piece to the store. Spawned, so that the writer queues it at once and in order with
    /// the commits.
    pub(super) fn begin(&mut self, store: EdgeStore, message: PartialMessage, text: String) {
        let piece = message.clone();
        self.push(message, tokio::spawn(async move { store.keep_part(piece, text).await }));
    }
}

impl Driver {
    /// Passes the result of the oldest piece to the machine.
    pub(super) fn part_kept(&mut self, result: Result<Kept, JoinError>) {
        let Some(message) = self.storing.keeps.pop() else { return };
        let result = match result {
            Ok(Ok(is_kept)) => Ok(is_kept),
            Ok(Err(error)) => {
                if let Some(LinePermit { suppressed }) = self.peer_log.objects.permit_line() {
                    tracing::warn!(%error, uid = &*message.uid, suppressed, "part of an object not stored");
                }
                Err((reject_reason(&error), error.to_string()))
            }
            Err(error) => Err((RejectReason::StoreUnavailable, error.to_string())),
        };
        self.machine.part_kept(&message, result);
    }

    /// Passes what is kept from an earlier run to the machine.
    pub(super) fn parts_read(&mut self, read: Result<PartsRead, JoinError>) {
        self.storing.reading_parts = None;
        let kept = match read {
            // A CloudCore continues nothing.
            Ok(Ok(kept)) => kept.filter(|_| self.wire.cloud_core().is_none()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "kept parts of an object not read, receiving it from its start");
                None
            }
            Err(error) => {
                tracing::error!(%error, "read of the kept parts of an object ended early");
                None
            }
        };
        if let Some(PartialMessage { uid, received, total, .. }) = &kept {
            tracing::info!(uid = &**uid, received, total, "continuing an object received in parts");
        }
        self.machine.parts_read(self.now(), kept, random());
    }

    /// Ends the session, and keeps what has arrived of a message in parts.
    pub(super) async fn end_transfer(&mut self) {
        self.machine.disconnected();
        while let Some(effect) = self.machine.poll_effect() {
            if let EdgeEffect::KeepPart { message, text } = effect {
                self.storing.keeps.begin(self.store.clone(), message, text);
            }
        }
        while !self.storing.keeps.is_empty() {
            let result = self.storing.keeps.front().await;
            self.part_kept(result);
        }
    }
}
