//! Memory budget shared by requests, for parsed bodies and for stored objects in use. A request
//! that waits for memory holds none of the data that it waits for.

use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::response::ResponseBody;
use super::storage::Stored;
use edgesync_object::Status;
use edgesync_object::status::Result;

/// Granularity of reservations, in bytes.
const UNIT: usize = 1 << 10;
/// Copies of an object's text in memory during a write: the text, the object before and after, the
/// body that was sent, and the stored form.
pub(super) const WRITE_FACTOR: usize = 8;
/// Copies of an object's text in memory during a read.
pub(super) const READ_FACTOR: usize = 2;
/// Objects read at one time before their size is known.
const MAX_READS: usize = 4;

/// A number of bytes that requests reserve parts of.
pub(super) struct MemoryBudget {
    bytes: usize,
    units: Arc<Semaphore>,
}

/// A part of the budget, returned on drop.
#[derive(Debug)]
#[must_use]
pub(super) struct Reservation(OwnedSemaphorePermit);

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT)
}

impl MemoryBudget {
    pub(super) fn new(bytes: usize) -> Self {
        let units = units(bytes).clamp(1, Semaphore::MAX_PERMITS);
        Self { bytes, units: Arc::new(Semaphore::new(units)) }
    }

    /// Returns the size of the whole budget, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves memory, waiting in FIFO order.
    pub(super) async fn reserve(&self, bytes: usize) -> Result<Reservation> {
        let units = u32::try_from(units(bytes)).unwrap_or(u32::MAX);
        Arc::clone(&self.units).acquire_many_owned(units).await.map(Reservation).map_err(Status::internal)
    }

    /// Reserves memory without waiting; `None` if too little is free.
    fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let units = u32::try_from(units(bytes)).ok()?;
        Arc::clone(&self.units).try_acquire_many_owned(units).map(Reservation).ok()
    }
}

impl Reservation {
    /// Returns everything beyond `bytes` to the budget.
    fn shrink_to(mut self, bytes: usize) -> Self {
        drop(self.0.split(self.0.num_permits().saturating_sub(units(bytes))));
        self
    }
}

/// Ties a reservation, reduced to the body's length, to a response until the client has read it.
pub(super) fn hold_until_sent(
    response: Response<ResponseBody>,
    reservation: Reservation,
) -> Response<ResponseBody> {
    struct Held {
        bytes: Bytes,
        _reservation: Reservation,
    }
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    response.map(|body| match body {
        ResponseBody::Whole(Some(bytes)) => {
            let _reservation = reservation.shrink_to(bytes.len());
            ResponseBody::Whole(Some(Bytes::from_owner(Held { bytes, _reservation })))
        }
        body => body,
    })
}

/// Budget for stored objects.
pub(super) struct ObjectBudget {
    memory: MemoryBudget,
    reads: Semaphore,
    wait_timeout: Duration,
}

impl ObjectBudget {
    /// Creates a budget of `bytes`; a request waits for memory at most `wait_timeout`.
    pub(super) fn new(bytes: usize, wait_timeout: Duration) -> Self {
        Self { memory: MemoryBudget::new(bytes), reads: Semaphore::new(MAX_READS), wait_timeout }
    }

    /// Reads an object with `get` and reserves `factor` times the length of its text. An object
    /// larger than the whole budget gets all of it.
    ///
    /// # Errors
    /// 429 if no memory became free in time; those of `get`.
    pub(super) async fn read<F: Future<Output = Result<Option<Stored>>>>(
        &self,
        factor: usize,
        get: impl Fn() -> F,
    ) -> Result<Option<(Stored, Reservation)>> {
        let mut reserved: Option<(usize, Reservation)> = None;
        loop {
            let reading = self.reads.acquire().await.map_err(Status::internal)?;
            let Some(stored) = get().await? else { return Ok(None) };
            let needed = stored.json.len().saturating_mul(factor).min(self.memory.bytes());
            let reservation = match reserved.take() {
                Some((bytes, reservation)) if bytes >= needed => Some(reservation),
                _ => self.memory.try_reserve(needed),
            };
            if let Some(reservation) = reservation {
                return Ok(Some((stored, reservation)));
            }
            drop((stored, reading));
            let reservation = tokio::time::timeout(self.wait_timeout, self.memory.reserve(needed)).await;
            let busy = |_| Status::too_many_requests("too many large objects are being processed", 1);
            reserved = Some((needed, reservation.map_err(busy)??));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

    /// A budget of that many units.
    fn budget(memory: usize) -> ObjectBudget {
        ObjectBudget::new(memory * UNIT, WAIT_TIMEOUT)
    }

    /// An object whose text is that many units long.
    fn object(units: usize) -> Stored {
        Stored { json: " ".repeat(units * UNIT), ..Stored::default() }
    }

    /// Reads an object of that many units.
    async fn show(budget: &ObjectBudget, units: usize) -> Result<Option<(Stored, Reservation)>> {
        budget.read(READ_FACTOR, async || Ok(Some(object(units)))).await
    }

    fn free(budget: &ObjectBudget) -> usize {
        budget.memory.units.available_permits()
    }

    #[tokio::test(start_paused = true)]
    async fn reservation_is_a_multiple_of_the_text_until_dropped() {
        let budget = budget(100);
        let (_, shown) = show(&budget, 10).await.unwrap().unwrap();
        assert_eq!(free(&budget), 100 - 10 * READ_FACTOR);
        let (_, changed) = budget.read(WRITE_FACTOR, async || Ok(Some(object(10)))).await.unwrap().unwrap();
        assert_eq!(free(&budget), 100 - 10 * (READ_FACTOR + WRITE_FACTOR));
        drop((shown, changed));
        assert_eq!(free(&budget), 100);
        assert!(budget.read(READ_FACTOR, async || Ok(None)).await.unwrap().is_none());
        assert_eq!(free(&budget), 100, "what is not there takes nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn request_without_free_memory_gets_429_after_the_timeout() {
        let budget = budget(100);
        let held = show(&budget, 50).await.unwrap();
        let begun = tokio::time::Instant::now();
        let refusal = show(&budget, 1).await.unwrap_err();
        assert_eq!((refusal.code, begun.elapsed()), (429, WAIT_TIMEOUT));
        drop(held);
        assert!(show(&budget, 1).await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn object_larger_than_the_budget_reserves_all_of_it() {
        let budget = budget(100);
        let large = show(&budget, 1_000).await.unwrap().unwrap();
        assert_eq!(large.0.json.len(), 1_000 * UNIT);
        let mut small = std::pin::pin!(show(&budget, 1));
        assert!(small.as_mut().now_or_never().is_none());
        drop(large);
        assert!(small.await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_request_holds_no_text_and_no_read_permit() {
        let budget = budget(100);
        let held = show(&budget, 50).await.unwrap();
        let mut waiting: Vec<_> = (0..2 * MAX_READS).map(|_| Box::pin(show(&budget, 25))).collect();
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none());
        }
        assert_eq!(budget.reads.available_permits(), MAX_READS);
        drop(held);
        for one in waiting {
            assert!(one.await.unwrap().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn object_that_grew_while_waiting_reserves_more() {
        let budget = budget(100);
        let held = show(&budget, 50).await.unwrap();
        let units = std::cell::Cell::new(10);
        let mut growing = std::pin::pin!(budget.read(READ_FACTOR, async || Ok(Some(object(units.get())))));
        assert!(growing.as_mut().now_or_never().is_none());
        units.set(40);
        drop(held);
        let grown = growing.await.unwrap().unwrap();
        assert_eq!((grown.0.json.len(), free(&budget)), (40 * UNIT, 100 - 40 * READ_FACTOR));
    }

    #[tokio::test]
    async fn response_reserves_its_length_until_it_is_read() {
        let memory = MemoryBudget::new(100 * UNIT);
        let reservation = memory.reserve(80 * UNIT).await.unwrap();
        let text = ResponseBody::Whole(Some(vec![b' '; 30 * UNIT].into()));
        let response = hold_until_sent(Response::new(text), reservation);
        assert_eq!(memory.units.available_permits(), 70);
        let taken = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((taken.len(), memory.units.available_permits()), (30 * UNIT, 70));
        drop(taken);
        assert_eq!(memory.units.available_permits(), 100);
    }
}
