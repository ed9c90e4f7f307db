//! A message queue bounded in number and in bytes, with one reader. Depends on tokio's `Notify`
//! only.
//!
//! A channel bounds only the number; with frames between a hundred bytes and a megabyte that does
//! not bound memory. The queue can be closed and cleared in one step, so that no message queued for
//! one connection is sent on the next.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Reason why a message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The limit of messages or bytes is reached.
    Full,
    /// The queue is closed.
    Closed,
}

/// Limits of a queue. An empty queue accepts one message of any size.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of queued messages.
    pub messages: usize,
    /// Bytes of all queued messages together.
    pub bytes: usize,
}

struct State<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    open: bool,
}

/// A bounded queue; closed it refuses messages.
pub struct Queue<T> {
    limits: Limits,
    state: Mutex<State<T>>,
    pushed: Notify,
    freed: Notify,
}

impl<T> Queue<T> {
    /// Creates an empty queue, open or closed.
    pub fn new(limits: Limits, open: bool) -> Self {
        let state = State { items: VecDeque::new(), bytes: 0, open };
        Self { limits, state: Mutex::new(state), pushed: Notify::new(), freed: Notify::new() }
    }

    /// Locks the state. A panic elsewhere cannot leave it inconsistent, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self, state: &State<T>, size: usize) -> bool {
        state.items.is_empty()
            || (state.items.len() < self.limits.messages && state.bytes + size <= self.limits.bytes)
    }

    /// Appends a message of `size` bytes.
    pub fn push(&self, item: T, size: usize) -> Result<(), Refused> {
        let mut state = self.lock();
        if !state.open {
            return Err(Refused::Closed);
        }
        if !self.has_room(&state, size) {
            return Err(Refused::Full);
        }
        state.items.push_back((item, size));
        state.bytes += size;
        drop(state);
        self.pushed.notify_one();
        Ok(())
    }

    /// Removes the oldest message.
    pub fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        let (item, size) = state.items.pop_front()?;
        state.bytes -= size;
        if state.items.is_empty() && state.items.capacity() > 32 {
            // Thousands of queues exist on the cloud side; a burst must not stay allocated.
            state.items = VecDeque::new();
        }
        drop(state);
        self.freed.notify_waiters();
        Some(item)
    }

    /// Returns when a message may have been pushed. For the one reader only.
    pub async fn pushed(&self) {
        self.pushed.notified().await;
    }

    /// Waits until one more small message fits; `Err` when the queue is or becomes closed.
    pub async fn ready(&self) -> Result<(), Refused> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            {
                let state = self.lock();
                if !state.open {
                    return Err(Refused::Closed);
                }
                if self.has_room(&state, 1) {
                    return Ok(());
                }
            }
            freed.await;
        }
    }

    /// Returns the number of queued messages.
    pub fn depth(&self) -> usize {
        self.lock().items.len()
    }

    /// Opens the queue, and discards messages of an earlier connection.
    pub fn open(&self) {
        let mut state = self.lock();
        state.items.clear();
        state.bytes = 0;
        state.open = true;
        drop(state);
        self.freed.notify_waiters();
    }

    /// Refuses further messages; queued ones can still be popped.
    pub(crate) fn close(&self) {
        self.lock().open = false;
        self.freed.notify_waiters();
    }

    /// Refuses further messages and discards the queued ones; returns their number.
    pub fn close_and_clear(&self) -> usize {
        let mut state = self.lock();
        state.open = false;
        state.bytes = 0;
        let items = std::mem::take(&mut state.items);
        drop(state);
        self.freed.notify_waiters();
        items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(messages: usize, bytes: usize) -> Queue<u8> {
        Queue::new(Limits { messages, bytes }, true)
    }

    #[test]
    fn queue_enforces_both_limits() {
        let by_number = queue(2, 100);
        assert_eq!(by_number.push(1, 1), Ok(()));
        assert_eq!(by_number.push(2, 1), Ok(()));
        assert_eq!(by_number.push(3, 1), Err(Refused::Full));
        assert_eq!(by_number.pop(), Some(1));
        assert_eq!(by_number.push(3, 1), Ok(()));

        let by_bytes = queue(10, 100);
        assert_eq!(by_bytes.push(1, 60), Ok(()));
        assert_eq!(by_bytes.push(2, 41), Err(Refused::Full));
        assert_eq!(by_bytes.push(2, 40), Ok(()));
        assert_eq!(by_bytes.push(3, 1), Err(Refused::Full));
    }

    #[test]
    fn empty_queue_accepts_one_oversized_message() {
        let queue = queue(4, 10);
        assert_eq!(queue.push(1, 1000), Ok(()));
        assert_eq!(queue.push(2, 1), Err(Refused::Full));
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.push(2, 1), Ok(()));
    }

    #[test]
    fn reopened_queue_is_empty() {
        let queue = queue(4, 10);
        queue.push(1, 1).unwrap();
        assert_eq!(queue.close_and_clear(), 1);
        assert_eq!(queue.push(2, 1), Err(Refused::Closed));
        queue.open();
        assert_eq!(queue.pop(), None);
        (0..4).for_each(|n| assert_eq!(queue.push(n, 1), Ok(())));
    }

    #[tokio::test]
    async fn waiter_wakes_when_space_appears_and_when_closed() {
        let queue = queue(1, 10);
        queue.push(1, 1).unwrap();
        let (ready, ()) = tokio::join!(queue.ready(), async {
            tokio::task::yield_now().await;
            queue.pop();
        });
        assert_eq!(ready, Ok(()));
        queue.push(1, 1).unwrap();
        let (ready, ()) = tokio::join!(queue.ready(), async {
            tokio::task::yield_now().await;
            queue.close();
        });
        assert_eq!(ready, Err(Refused::Closed));
    }
}
