//! Frames of a node's outbox on their way into the store: only of the session of now, one at a time.

use crate::upload::{Lane, Lanes, Refused, RefusedReason, Taken, Upload, UploadConfirm, UploadItem};

use super::types::CloudEffect;
use super::{CloudCounters, PeerLimits};

/// The longest text about a refused item, in bytes.
const MAX_MESSAGE: usize = 256;
/// Room in a frame for what stands around the refused items.
const FRAME_OVERHEAD: usize = 512;

/// A frame whose effects are being stored.
#[derive(Debug)]
struct Ingesting {
    token: u64,
    session: String,
    lane: Lane,
    /// The numbers of its first and its last item; none if it only asks.
    range: Option<(u64, u64)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ingest {
    ingesting: Option<Ingesting>,
    next_token: u64,
    /// The refusals in the answer to the last frame: repeated if the frame comes again.
    refused: Vec<(Lane, Refused)>,
}

impl Ingest {
    /// Ends the session. The store goes on with its frame, and the next one waits for that.
    pub(super) fn end_session(&mut self) {
        self.refused.clear();
    }

    /// Hands a frame to the store. Drops it while another one is being stored: the node repeats it.
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
        Some(CloudEffect::Take { token, upload })
    }

    pub(super) fn is_busy(&self) -> bool {
        self.ingesting.is_some()
    }

    /// Ends the frame of this token. Returns the confirm for the session of now, if the frame is of it and was stored.
    pub(super) fn finish(
        &mut self,
        token: u64,
        result: Option<(Taken, Vec<Refused>)>,
        live: Option<(&str, PeerLimits)>,
        counters: &mut CloudCounters,
    ) -> Option<UploadConfirm> {
        let ingesting = self.ingesting.take_if(|ingesting| ingesting.token == token)?;
        let (Taken { outbox, last }, refused) = result?;
        counters.uploads_refused += refused.len() as u64;
        let (_, limits) = live.filter(|(session, _)| *session == ingesting.session)?;
        let room = limits.max_frame.saturating_sub(FRAME_OVERHEAD);
        let refused = shorten(self.with_repeated(&ingesting, refused), room);
        Some(UploadConfirm { session: ingesting.session, outbox, last, refused })
    }

    /// Adds the refusals of the frame when it came before.
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

/// Refuses a frame of a lane that only later versions know: it must not hold up the others.
pub(super) fn refuse_lane(upload: Upload, limits: PeerLimits) -> UploadConfirm {
    let message = "this version of the cloud side does not know the lane";
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

/// Cuts texts, and then the list, so that it has at most so many bytes as JSON.
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
