//! When the loop looks at a node: its turn, its deadline, the broadcasts that it knows, and the
//! requests to the store that it waits for.

use edgesync_protocol::timing::Now;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// The node waits for the turn of its machine.
    is_queued: bool,
    /// The deadline of its machine, as it is in the fleet's table.
    deadline: Option<Now>,
    /// How many broadcasts its machine knows.
    broadcasts: u64,
    /// Reads and writes of the store about it that are under way.
    requests: u32,
}

impl Schedule {
    /// A node that knows so many broadcasts.
    pub(super) fn new(broadcasts: u64) -> Self {
        Self { broadcasts, ..Self::default() }
    }

    /// Notes that the node waits for its turn. Returns whether it did not before.
    pub(crate) fn queue(&mut self) -> bool {
        !std::mem::replace(&mut self.is_queued, true)
    }

    /// The turn of the node has come.
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

    /// Notes that the machine knows so many broadcasts. Returns how many it knew before.
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
