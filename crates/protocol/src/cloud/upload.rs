//! Leases and the outbox of a node: only of the session of now, one frame at a time.

use crate::frame::Down;
use crate::timing::Now;
use crate::upload::{Lane, Lanes, Lease, Refused, RefusedReason, Taken, Upload, UploadConfirm, UploadItem};

use super::{CloudEffect, CloudMachine, Phase};

/// The longest text about a refused item, in bytes.
const MAX_MESSAGE: usize = 256;
/// Room in a frame for what stands around the refused items.
const FRAME_OVERHEAD: usize = 512;

/// A frame whose effects are being stored.
#[derive(Debug)]
struct Taking {
    token: u64,
    session: String,
    lane: Lane,
    /// The numbers of its first and its last item; none if it only asks.
    range: Option<(u64, u64)>,
}

/// What the store is doing with the frames of a node.
#[derive(Debug, Default)]
pub(super) struct Taker {
    taking: Option<Taking>,
    next_token: u64,
    /// What was refused of the last frame: told again if the frame comes again.
    refused: Vec<(Lane, Refused)>,
}

impl Taker {
    /// The session is over. What the store is doing goes on; until it is done nothing else is begun.
    pub(super) fn forget_session(&mut self) {
        self.refused.clear();
    }

    /// Adds what was refused of the frame when it came before.
    fn refused_again(&mut self, taking: &Taking, refused: Vec<Refused>) -> Vec<Refused> {
        let Some((first, last)) = taking.range else { return refused };
        let before = std::mem::take(&mut self.refused).into_iter();
        let same = before.filter(|(lane, it)| *lane == taking.lane && (first..=last).contains(&it.seq));
        let mut all: Vec<Refused> = same.map(|(_, it)| it).collect();
        all.retain(|old| refused.iter().all(|new| new.seq != old.seq));
        all.extend(refused);
        self.refused = all.iter().map(|it| (taking.lane, it.clone())).collect();
        all
    }
}

impl CloudMachine {
    /// Whether the cloud knows of the Node; if not, the next Welcome asks for it.
    pub fn set_registered(&mut self, registered: bool) {
        self.registered = registered;
    }

    pub(super) fn lease(&mut self, lease: Lease) {
        let session = match &self.phase {
            Phase::Offline => None,
            Phase::Connecting(connecting) => Some(&connecting.hello.session),
            Phase::Live { session, .. } => Some(session),
        };
        // It says that the node lives, not that objects arrive: it does not put off sending them again.
        if session == Some(&lease.session) {
            self.counters.leases += 1;
            self.effects.retain(|effect| !matches!(effect, CloudEffect::Renew(_)));
            self.effects.push_back(CloudEffect::Renew(lease));
        } else {
            self.refuse_unknown(lease.session);
        }
    }

    pub(super) fn upload(&mut self, upload: Upload) {
        match &self.phase {
            Phase::Live { session, .. } if *session == upload.session => {}
            // The node repeats it when it is welcome.
            Phase::Connecting(connecting) if connecting.hello.session == upload.session => return,
            _ => return self.refuse_unknown(upload.session),
        }
        // What comes while another one is being stored is repeated by the node.
        if self.taker.taking.is_some() || !upload.is_sane() {
            return;
        }
        if upload.lane == Lane::Other {
            return self.refuse_lane(upload);
        }
        let token = self.taker.next_token;
        self.taker.next_token += 1;
        self.counters.uploads += 1;
        self.counters.upload_items += upload.items.len() as u64;
        let range = upload.items.first().zip(upload.items.last()).map(|(first, last)| (first.seq, last.seq));
        let (session, lane) = (upload.session.clone(), upload.lane);
        self.taker.taking = Some(Taking { token, session, lane, range });
        self.effects.push_back(CloudEffect::Take { token, upload });
    }

    /// A lane of a later version: nothing of it is ever taken, and it must not hold up the others.
    fn refuse_lane(&mut self, upload: Upload) {
        // The node sends it again.
        if self.frames.iter().any(|frame| matches!(frame, Down::UploadConfirm(_))) {
            return;
        }
        let Phase::Live { limits, .. } = &self.phase else { return };
        let message = "this version of the cloud side does not know the lane";
        let refused = |item: UploadItem| Refused {
            seq: item.seq,
            reason: RefusedReason::Other,
            message: message.to_owned(),
        };
        let room = limits.max_frame.saturating_sub(FRAME_OVERHEAD);
        let refused = shorten(upload.items.into_iter().map(refused).collect(), room);
        let (session, outbox) = (upload.session, upload.outbox);
        let confirm = UploadConfirm { session, outbox, last: Lanes::default(), refused };
        self.frames.push_back(Down::UploadConfirm(confirm));
    }

    /// The effects of an upload are stored: the numbers after it, and what was refused of it; or they could
    /// not be, then nothing is confirmed and the node sends it again.
    pub fn taken(&mut self, _now: Now, token: u64, result: Option<(Taken, Vec<Refused>)>) {
        let Some(taking) = self.taker.taking.take_if(|taking| taking.token == token) else { return };
        let Some((taken, refused)) = result else { return };
        self.counters.uploads_refused += refused.len() as u64;
        let Phase::Live { session, limits } = &self.phase else { return };
        if *session != taking.session {
            return;
        }
        let room = limits.max_frame.saturating_sub(FRAME_OVERHEAD);
        let refused = shorten(self.taker.refused_again(&taking, refused), room);
        let Taken { outbox, last } = taken;
        // Confirms are cumulative: one that has not left yet is overtaken.
        self.frames.retain(|frame| !matches!(frame, Down::UploadConfirm(_)));
        let confirm = UploadConfirm { session: taking.session, outbox, last, refused };
        self.frames.push_back(Down::UploadConfirm(confirm));
    }
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
