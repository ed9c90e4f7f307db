//! Schedule of a node: its turn, its deadline, the broadcasts that it knows, and its requests in
//! flight at the store.

use edgesync_protocol::timing::Now;

/// Turn, deadline and requests of a node; see the module.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// Whether the machine waits for its turn.
    is_queued: bool,
    /// Deadline of its machine, as entered in the fleet's table.
    deadline: Option<Now>,
    /// Number of broadcasts that its machine knows.
    broadcasts: u64,
    /// Number of reads and writes in flight for it at the store.
    requests: u32,
}

impl Schedule {
    /// Creates the schedule of a node that knows this many broadcasts.
    pub(super) fn new(broadcasts: u64) -> Self {
        Self { broadcasts, ..Self::default() }
    }

    /// Marks the node as queued. Returns whether it was not before.
    pub(crate) fn queue(&mut self) -> bool {
        !std::mem::replace(&mut self.is_queued, true)
    }

    /// Marks the node as not queued.
    pub(crate) fn begin_turn(&mut self) {
        self.is_queued = false;
    }

    pub(crate) fn deadline(&self) -> Option<Now> {
        self.deadline
    }

    /// Replaces the deadline, and returns the one before.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Now>) -> Option<Now> {
        std::mem::replace(&mut self.deadline, deadline)
    }

    /// Sets the number of broadcasts that the machine knows, and returns the previous one.
    pub(crate) fn inform(&mut self, broadcasts: u64) -> u64 {
        std::mem::replace(&mut self.broadcasts, broadcasts)
    }

    pub(crate) fn request_begun(&mut self) {
        self.requests += 1;
    }

    pub(crate) fn request_ended(&mut self) {
        self.requests = self.requests.saturating_sub(1);
    }

    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }
}
