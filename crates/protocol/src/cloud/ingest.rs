//! Passes uploads of a node's outbox to the store, one at a time and only of the current session.

use crate::upload::{IngestCursor, Lane, Lanes, Refused, RefusedReason, Upload, UploadConfirm, UploadItem};

use super::types::CloudEffect;
use super::{CloudCounters, PeerLimits};

/// The longest message about a refused item, in bytes.
const MAX_MESSAGE: usize = 256;
/// Frame bytes around the refused items.
const FRAME_OVERHEAD: usize = 512;

/// A frame whose effects are being stored.
#[derive(Debug)]
struct Ingesting {
    token: u64,
    session: String,
    lane: Lane,
    /// The numbers of the first and the last item; `None` for a probe without items.
    range: Option<(u64, u64)>,
}

/// The upload at the store and the refusals of the last one.
#[derive(Debug, Default)]
pub(super) struct Ingest {
    ingesting: Option<Ingesting>,
    next_token: u64,
    /// The refusals in the answer to the last frame, repeated if the frame is repeated.
    refused: Vec<(Lane, Refused)>,
}

impl Ingest {
    /// Ends the session. The store completes its frame, and the next one waits for that.
    pub(super) fn end_session(&mut self) {
        self.refused.clear();
    }

    /// Passes a frame to the store. Drops it while another one is being stored: the node repeats
    /// it.
    pub(super) fn begin(&mut self, upload: Upload, counters: &mut CloudCounters) -> Option<CloudEffect> {
        if self.is_busy() {
            return None;
        }
        let token = self.next_token;
        self.next_token += 1;
        counters.uploads += 1;
        counters.upload_items += upload.items.len() as u64;
        let range = upload.items.first().zip(upload.items.last()).map(|(first, last)| (first.seq, last.seq));
        let (session, lane) = (upload.session.clone(), upload.lane);
        self.ingesting = Some(Ingesting { token, session, lane, range });
        Some(CloudEffect::Ingest { token, upload })
    }

    pub(super) fn is_busy(&self) -> bool {
        self.ingesting.is_some()
    }

    /// Ends the frame of this token. Returns the confirm if the frame belongs to the current
    /// session and was stored.
    pub(super) fn finish(
        &mut self,
        token: u64,
        result: Option<(IngestCursor, Vec<Refused>)>,
        live: Option<(&str, PeerLimits)>,
        counters: &mut CloudCounters,
    ) -> Option<UploadConfirm> {
        let ingesting = self.ingesting.take_if(|ingesting| ingesting.token == token)?;
        let (IngestCursor { outbox, last }, refused) = result?;
        counters.uploads_refused += refused.len() as u64;
        let (_, limits) = live.filter(|(session, _)| *session == ingesting.session)?;
        let room = limits.max_frame.saturating_sub(FRAME_OVERHEAD);
        let refused = shorten(self.with_repeated(&ingesting, refused), room);
        Some(UploadConfirm { session: ingesting.session, outbox, last, refused })
    }

    /// Adds the refusals of an earlier copy of the frame.
    fn with_repeated(&mut self, ingesting: &Ingesting, refused: Vec<Refused>) -> Vec<Refused> {
        let Some((first, last)) = ingesting.range else { return refused };
        let before = std::mem::take(&mut self.refused).into_iter();
        let same = before.filter(|(lane, it)| *lane == ingesting.lane && (first..=last).contains(&it.seq));
        let mut all: Vec<Refused> = same.map(|(_, it)| it).collect();
        all.retain(|old| refused.iter().all(|new| new.seq != old.seq));
        all.extend(refused);
        self.refused = all.iter().map(|it| (ingesting.lane, it.clone())).collect();
        all
    }
}

/// Refuses a frame of a lane known only to later versions, so that it does not block the others.
pub(super) fn refuse_lane(upload: Upload, limits: PeerLimits) -> UploadConfirm {
    let message = "lane unknown to this version of the cloud side";
    let refused = |item: UploadItem| Refused {
        seq: item.seq,
        reason: RefusedReason::Other,
        message: message.to_owned(),
    };
    let room = limits.max_frame.saturating_sub(FRAME_OVERHEAD);
    let refused = shorten(upload.items.into_iter().map(refused).collect(), room);
    let (session, outbox) = (upload.session, upload.outbox);
    UploadConfirm { session, outbox, last: Lanes::default(), refused }
}

/// Truncates the messages, and then the list, to at most `room` bytes of JSON.
fn shorten(mut refused: Vec<Refused>, room: usize) -> Vec<Refused> {
    let mut longest = MAX_MESSAGE;
    loop {
        for it in &mut refused {
            it.message.truncate(it.message.floor_char_boundary(longest));
        }
        let fits = serde_json::to_string(&refused).is_ok_and(|json| json.len() <= room);
        if fits || refused.is_empty() {
            return refused;
        }
        if longest > 0 {
            longest /= 2;
        } else {
            refused.truncate(refused.len() / 2);
        }
    }
}

#[cfg(test)]
mod tests;
