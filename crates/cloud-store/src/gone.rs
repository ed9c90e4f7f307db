//! Tombstones of the namespaces deleted last.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Limit of the remembered namespaces. Only requests that started before a deletion depend on it,
/// so the newest ones suffice.
const MAX_GONE: usize = 1024;

/// Names of the namespaces deleted last. A rolled-back deletion stays in here: the row decides
/// whether a namespace exists.
#[derive(Debug, Default)]
pub(super) struct Gone {
    names: HashSet<Arc<str>>,
    order: VecDeque<Arc<str>>,
}

impl Gone {
    /// Returns whether a namespace was deleted recently.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    pub(super) fn add(&mut self, name: &str) {
        let name: Arc<str> = name.into();
        if self.names.insert(Arc::clone(&name)) {
            self.order.push_back(name);
        }
        if self.order.len() > MAX_GONE
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
    }
}
