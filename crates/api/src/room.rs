//! The memory that requests share: for what bodies become, and for stored objects that are worked on. Who finds no room waits
//! for it, without what the room is for.

use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::response::ResponseBody;
use super::storage::Stored;
use edgesync_object::Status;
use edgesync_object::status::Result;

/// The unit in which memory is handed out, bytes.
const UNIT: usize = 1 << 10;
/// How many times its text an object is in memory while it is changed: the text, the object before and after, the form that
/// was sent, and what is stored.
pub(super) const CHANGED: usize = 8;
/// The same while it is only shown.
pub(super) const SHOWN: usize = 2;
/// Objects that are read at one time before it is known how large they are.
const READS: usize = 4;

/// Memory that is handed out in units.
pub(super) struct Room {
    bytes: usize,
    units: Arc<Semaphore>,
}

/// A part of it, until it is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Share(OwnedSemaphorePermit);

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT)
}

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        let units = units(bytes).clamp(1, Semaphore::MAX_PERMITS);
        Self { bytes, units: Arc::new(Semaphore::new(units)) }
    }

    /// All of it, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Waits for room, in the order of asking.
    pub(super) async fn take(&self, bytes: usize) -> Result<Share> {
        let units = u32::try_from(units(bytes)).unwrap_or(u32::MAX);
        Arc::clone(&self.units).acquire_many_owned(units).await.map(Share).map_err(Status::internal)
    }

    /// Takes room if there is any at once.
    fn try_take(&self, bytes: usize) -> Option<Share> {
        let units = u32::try_from(units(bytes)).ok()?;
        Arc::clone(&self.units).try_acquire_many_owned(units).map(Share).ok()
    }
}

impl Share {
    /// Gives back what is beyond some bytes.
    fn shrunk(mut self, bytes: usize) -> Self {
        drop(self.0.split(self.0.num_permits().saturating_sub(units(bytes))));
        self
    }
}

/// Keeps the room that an answer takes up until the client has taken it.
pub(super) fn hold(response: Response<ResponseBody>, share: Share) -> Response<ResponseBody> {
    struct Held {
        bytes: Bytes,
        _share: Share,
    }
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    response.map(|body| match body {
        ResponseBody::Whole(Some(bytes)) => {
            let _share = share.shrunk(bytes.len());
            ResponseBody::Whole(Some(Bytes::from_owner(Held { bytes, _share })))
        }
        body => body,
    })
}

/// Room for stored objects.
pub(super) struct Work {
    room: Room,
    reads: Semaphore,
    patience: Duration,
}

impl Work {
    /// Room for so many bytes in all, for which a request waits so long.
    pub(super) fn new(bytes: usize, patience: Duration) -> Self {
        Self { room: Room::new(bytes), reads: Semaphore::new(READS), patience }
    }

    /// Reads an object with `get` once there is room for `factor` times its text. One that is larger than all the room has
    /// it alone.
    ///
    /// # Errors
    /// 429 if no room was found in time; those of `get`.
    pub(super) async fn read<F: Future<Output = Result<Option<Stored>>>>(
        &self,
        factor: usize,
        get: impl Fn() -> F,
    ) -> Result<Option<(Stored, Share)>> {
        let mut reserved: Option<(usize, Share)> = None;
        loop {
            let reading = self.reads.acquire().await.map_err(Status::internal)?;
            let Some(stored) = get().await? else { return Ok(None) };
            let needed = stored.json.len().saturating_mul(factor).min(self.room.bytes());
            let share = match reserved.take() {
                Some((bytes, share)) if bytes >= needed => Some(share),
                _ => self.room.try_take(needed),
            };
            if let Some(share) = share {
                return Ok(Some((stored, share)));
            }
            drop((stored, reading));
            let share = tokio::time::timeout(self.patience, self.room.take(needed)).await;
            let busy = |_| Status::too_many_requests("too many large objects are worked on", 1);
            reserved = Some((needed, share.map_err(busy)??));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Room for so many units.
    fn work(room: usize) -> Work {
        Work::new(room * UNIT, PATIENCE)
    }

    /// An object whose text takes so many units.
    fn object(units: usize) -> Stored {
        Stored { json: " ".repeat(units * UNIT), ..Stored::default() }
    }

    /// Reads an object of so many units to show it.
    async fn show(work: &Work, units: usize) -> Result<Option<(Stored, Share)>> {
        work.read(SHOWN, async || Ok(Some(object(units)))).await
    }

    fn free(work: &Work) -> usize {
        work.room.units.available_permits()
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_takes_a_multiple_of_its_text_as_long_as_it_is_worked_on() {
        let work = work(100);
        let (_, shown) = show(&work, 10).await.unwrap().unwrap();
        assert_eq!(free(&work), 100 - 10 * SHOWN);
        let (_, changed) = work.read(CHANGED, async || Ok(Some(object(10)))).await.unwrap().unwrap();
        assert_eq!(free(&work), 100 - 10 * (SHOWN + CHANGED));
        drop((shown, changed));
        assert_eq!(free(&work), 100);
        assert!(work.read(SHOWN, async || Ok(None)).await.unwrap().is_none());
        assert_eq!(free(&work), 100, "what is not there takes nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_in_time_is_to_come_again() {
        let work = work(100);
        let held = show(&work, 50).await.unwrap();
        let begun = tokio::time::Instant::now();
        let refusal = show(&work, 1).await.unwrap_err();
        assert_eq!((refusal.code, begun.elapsed()), (429, PATIENCE));
        drop(held);
        assert!(show(&work, 1).await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_larger_than_the_room_has_it_alone() {
        let work = work(100);
        let large = show(&work, 1_000).await.unwrap().unwrap();
        assert_eq!(large.0.json.len(), 1_000 * UNIT);
        let mut small = std::pin::pin!(show(&work, 1));
        assert!(small.as_mut().now_or_never().is_none());
        drop(large);
        assert!(small.await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_room_keeps_neither_a_text_nor_others_from_reading() {
        let work = work(100);
        let held = show(&work, 50).await.unwrap();
        let mut waiting: Vec<_> = (0..2 * READS).map(|_| Box::pin(show(&work, 25))).collect();
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none());
        }
        assert_eq!(work.reads.available_permits(), READS);
        drop(held);
        for one in waiting {
            assert!(one.await.unwrap().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_has_grown_while_room_was_waited_for_takes_more() {
        let work = work(100);
        let held = show(&work, 50).await.unwrap();
        let units = std::cell::Cell::new(10);
        let mut growing = std::pin::pin!(work.read(SHOWN, async || Ok(Some(object(units.get())))));
        assert!(growing.as_mut().now_or_never().is_none());
        units.set(40);
        drop(held);
        let grown = growing.await.unwrap().unwrap();
        assert_eq!((grown.0.json.len(), free(&work)), (40 * UNIT, 100 - 40 * SHOWN));
    }

    #[tokio::test]
    async fn an_answer_keeps_its_own_length_until_it_is_taken() {
        let room = Room::new(100 * UNIT);
        let share = room.take(80 * UNIT).await.unwrap();
        let text = ResponseBody::Whole(Some(vec![b' '; 30 * UNIT].into()));
        let response = hold(Response::new(text), share);
        assert_eq!(room.units.available_permits(), 70);
        let taken = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((taken.len(), room.units.available_permits()), (30 * UNIT, 70));
        drop(taken);
        assert_eq!(room.units.available_permits(), 100);
    }
}
