//! The outbox: items go out lane by lane, the most important lane first, one frame at a time, and are sent again
//! until the cloud has confirmed them end to end.

use crate::sync::frame::UploadConfirm;
use crate::sync::timing::Now;
use crate::sync::upload::UploadItem;

use super::{EdgeMachine, OutboxMarks};

impl EdgeMachine {
    /// The outbox stands like this now: after it was opened, and after each commit that added to it.
    pub fn outbox_changed(&mut self, _now: Now, _marks: OutboxMarks) {
        todo!()
    }

    /// Items were read, in order; none if there are none.
    pub fn outbox_read(&mut self, _now: Now, _items: Vec<UploadItem>) {
        todo!()
    }

    /// The outbox could not be read: it is tried again later.
    pub fn outbox_failed(&mut self, _now: Now) {
        todo!()
    }

    /// While frugal only the lanes for status and the agent's Events are sent, and the Lease is renewed six times
    /// less often, with a duration to fit: the daily budget of bytes is spent.
    pub fn set_frugal(&mut self, _now: Now, _frugal: bool) {
        todo!()
    }

    /// Whether everything that waited when it was last told is confirmed.
    #[must_use]
    pub fn outbox_is_empty(&self) -> bool {
        todo!()
    }

    pub(super) fn upload_confirmed(&mut self, _now: Now, _confirm: UploadConfirm) {
        todo!()
    }
}
