//! The memory that requests share: for what bodies become, and for stored objects that are worked on. Who finds no room waits
//! for it, without what the room is for.

use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::response::ResponseBody;
use super::storage::{Storage, Stored};
use crate::object::status::Result;
use crate::object::{Resource, Status};

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

    /// Reads an object once there is room for `factor` times its text. One that is larger than all the room has it alone.
    ///
    /// # Errors
    /// 429 if no room was found in time; those of [`Storage::get`].
    pub(super) async fn read<K: Storage>(
        &self,
        storage: &K,
        place: (&Arc<Resource>, &str, &str),
        factor: usize,
    ) -> Result<Option<(Stored, Share)>> {
        let (resource, namespace, name) = place;
        let mut reserved: Option<(usize, Share)> = None;
        loop {
            let reading = self.reads.acquire().await.map_err(Status::internal)?;
            let Some(stored) = storage.get(resource, namespace, name).await? else { return Ok(None) };
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
