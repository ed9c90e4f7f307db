//! The message in parts: keeps what has arrived of it in the store, and reads it after a restart.

use tokio::task::JoinError;

use super::peer_log::PeerLog;
use super::reject_reason;
use super::storing::InFlight;
use crate::store::EdgeStore;
use edgesync_protocol::change::RejectReason;
use edgesync_protocol::frame::PartialMessage;
use edgesync_store::StoreError;
use edgesync_transport::admission::LinePermit;

/// The result of keeping a piece: `false` if the bytes before it are gone.
pub(super) type Kept = Result<bool, StoreError>;
/// The same for the machine, with the reason of a rejection.
pub(super) type KeptAnswer = Result<bool, (RejectReason, String)>;
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

    /// Removes the oldest piece. Returns it with its result, for the machine.
    pub(super) fn end(
        &mut self,
        result: Result<Kept, JoinError>,
        peer_log: &PeerLog,
    ) -> Option<(PartialMessage, KeptAnswer)> {
        let message = self.pop()?;
        let answer = match result {
            Ok(Ok(is_kept)) => Ok(is_kept),
            Ok(Err(error)) => {
                if let Some(LinePermit { suppressed }) = peer_log.objects.permit_line() {
                    tracing::warn!(%error, uid = &*message.uid, suppressed, "part of an object not stored");
                }
                Err((reject_reason(&error), error.to_string()))
            }
            Err(error) => Err((RejectReason::StoreUnavailable, error.to_string())),
        };
        Some((message, answer))
    }
}

/// Returns what is kept from an earlier run, for the machine. `continues` is whether the peer
/// continues messages: a CloudCore does not.
pub(super) fn continued(read: Result<PartsRead, JoinError>, continues: bool) -> Option<PartialMessage> {
    let kept = match read {
        Ok(Ok(kept)) => kept.filter(|_| continues),
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
    kept
}
