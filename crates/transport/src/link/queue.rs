//! A queue of messages bounded in number and in bytes, with one reader. Nothing but tokio's `Notify`.
//!
//! A channel bounds only the number; with frames between a hundred bytes and a megabyte that is no bound
//! on memory. The queue can be closed and emptied in one step, so that what was meant for one connection
//! is never sent on the next.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Why nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The limit of messages or bytes is reached.
    Full,
    /// The queue is closed.
    Closed,
}

/// Limits of a queue. A single message is always taken when the queue is empty, however large.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Messages at a time.
    pub messages: usize,
    /// Bytes of all messages together.
    pub bytes: usize,
}

struct State<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    open: bool,
}

/// See the module.
pub struct Queue<T> {
    limits: Limits,
    state: Mutex<State<T>>,
    pushed: Notify,
    freed: Notify,
}

impl<T> Queue<T> {
    /// An empty queue, open or not.
    pub fn new(limits: Limits, open: bool) -> Self {
        let state = State { items: VecDeque::new(), bytes: 0, open };
        Self { limits, state: Mutex::new(state), pushed: Notify::new(), freed: Notify::new() }
    }

    /// A panic elsewhere cannot leave the state half changed, so poison means nothing here.
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

    /// Takes the oldest message.
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

    /// Returns when something may have been pushed; only the one reader may wait here.
    pub async fn pushed(&self) {
        self.pushed.notified().await;
    }

    /// Waits for room for one more small message; `Err` when the queue is or becomes closed.
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

    /// Lets messages in again; what an earlier connection left is gone.
    pub fn open(&self) {
        let mut state = self.lock();
        state.items.clear();
        state.bytes = 0;
        state.open = true;
        drop(state);
        self.freed.notify_waiters();
    }

    /// Lets nothing more in; what waits can still be taken.
    pub(crate) fn close(&self) {
        self.lock().open = false;
        self.freed.notify_waiters();
    }

    /// Lets nothing more in and throws away what waits; returns how much that was.
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
    fn both_limits_hold_and_free_again() {
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
    fn one_message_larger_than_the_limit_passes_an_empty_queue() {
        let queue = queue(4, 10);
        assert_eq!(queue.push(1, 1000), Ok(()));
        assert_eq!(queue.push(2, 1), Err(Refused::Full));
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.push(2, 1), Ok(()));
    }

    #[test]
    fn what_one_connection_left_is_not_there_for_the_next() {
        let queue = queue(4, 10);
        queue.push(1, 1).unwrap();
        assert_eq!(queue.close_and_clear(), 1);
        assert_eq!(queue.push(2, 1), Err(Refused::Closed));
        queue.open();
        assert_eq!(queue.pop(), None);
        (0..4).for_each(|n| assert_eq!(queue.push(n, 1), Ok(())));
    }

    #[tokio::test]
    async fn a_waiter_wakes_when_room_appears_and_when_the_queue_closes() {
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
