//! The namespaces that went last.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// The most namespaces of which it is remembered that they have gone. Who still takes one for there
/// began before.
const MAX_GONE: usize = 1024;

/// The namespaces that went last. What is undone stays in here: whether there is a namespace is for
/// its row to say.
#[derive(Debug, Default)]
pub(super) struct Gone {
    names: HashSet<Arc<str>>,
    order: VecDeque<Arc<str>>,
}

impl Gone {
    /// Whether one has gone.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Notes that one goes.
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
