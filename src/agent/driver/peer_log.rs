//! Limits the log lines that the other side causes: the cloud side, the broker, or CloudCore.

use edgesync_transport::admission::LogThrottle;

/// Maximum number of log lines of one kind in ten seconds.
const LINES: u32 = 20;

/// A throttle for each kind of line, so that a flood of one kind hides no other. Attempts to
/// connect need none: their backoff limits them.
#[derive(Debug)]
pub(super) struct PeerLog {
    /// Frames and messages that cannot be decoded.
    pub(super) frames: LogThrottle,
    /// Presence of the cloud side.
    pub(super) presence: LogThrottle,
    /// Beginning, refusal and comparison of sessions.
    pub(super) sessions: LogThrottle,
    /// Rejected objects, and batches that were not stored.
    pub(super) objects: LogThrottle,
    /// Items of the outbox that were refused or renumbered.
    pub(super) uploads: LogThrottle,
    /// Messages that the broker refused.
    pub(super) publishes: LogThrottle,
    /// Pages that were requested and could not be read.
    pub(super) reads: LogThrottle,
    /// Whether the store accepts changes.
    pub(super) store: LogThrottle,
}

impl Default for PeerLog {
    fn default() -> Self {
        let throttle = || LogThrottle::of(LINES);
        Self {
            frames: throttle(),
            presence: throttle(),
            sessions: throttle(),
            objects: throttle(),
            uploads: throttle(),
            publishes: throttle(),
            reads: throttle(),
            store: throttle(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_transport::admission::LinePermit;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_kind_of_line_hides_no_other() {
        let log = PeerLog::default();
        let written = (0..1000).filter(|_| log.frames.permit_line().is_some()).count();
        assert_eq!(written, LINES as usize);
        for other in [&log.sessions, &log.objects, &log.uploads, &log.store] {
            assert_eq!(other.permit_line(), Some(LinePermit { suppressed: None }));
        }
    }
}
