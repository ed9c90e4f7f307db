//! The bodies of requests: read within limits of length and time, and of the memory that all of them take until their
//! requests are done.

use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};

use super::dispatch::{Memory, RawBody, ReadBody};
use super::limits::Limits;
use super::media::Syntax;
use super::room::Room;
use super::weight::weight;
use edgesync_object::Status;
use edgesync_object::status::{Reason, Result};

/// How many times its length a body may become in memory in any case: mostly texts, in three copies.
const VALUE_FACTOR: usize = 8;

/// The body of a request, still on the connection.
pub(super) struct HttpBody<'a> {
    body: Incoming,
    content_type: Option<&'a str>,
    limits: &'a Limits,
    rooms: &'a Rooms,
    /// Becomes false once it has been read.
    unread: &'a AtomicBool,
}

impl<'a> HttpBody<'a> {
    /// `unread` becomes false once the body has been read.
    pub(super) fn new(
        body: Incoming,
        content_type: Option<&'a str>,
        limits: &'a Limits,
        rooms: &'a Rooms,
        unread: &'a AtomicBool,
    ) -> Self {
        Self { body, content_type, limits, rooms, unread }
    }

    /// Reads the body as it is.
    async fn bytes(self) -> Result<RawBody> {
        let limit = self.limits.body_bytes;
        let announced = self.body.size_hint();
        if announced.lower() > limit as u64 {
            return Err(Status::too_large(limit));
        }
        // A body of unknown length may turn out to be of any length up to the limit.
        let longest =
            announced.upper().and_then(|upper| usize::try_from(upper).ok()).unwrap_or(limit).min(limit);
        let room = self.rooms.bodies.take(longest).await?;
        let read = Limited::new(self.body, limit).collect().await;
        let read = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => Status::too_large(limit),
            None => Status::bad_request(format!("the body could not be read: {error}")),
        })?;
        self.unread.store(false, Ordering::Relaxed);
        Ok(RawBody { bytes: read.to_bytes(), _room: room })
    }
}

impl ReadBody for HttpBody<'_> {
    async fn read(self) -> Result<(RawBody, Memory)> {
        let (rooms, content_type, patience) = (self.rooms, self.content_type, self.limits.body_timeout);
        let reading = async {
            let body = self.bytes().await?;
            let weight = weight(Syntax::of(content_type, &body), &body);
            if weight > rooms.values.bytes() {
                let message = format!(
                    "the body would take about {} MiB of memory: limit is {} MiB",
                    weight >> 20,
                    rooms.values.bytes() >> 20
                );
                return Err(Status::new(Reason::RequestEntityTooLarge, message));
            }
            Ok((body, Memory { room: rooms.values.take(weight).await? }))
        };
        match tokio::time::timeout(patience, reading).await {
            Ok(read) => read,
            Err(_) => Err(Status::too_many_requests("the body did not arrive in time", 1)),
        }
    }
}

/// The memory that requests share.
pub(super) struct Rooms {
    /// For bodies as they come.
    bodies: Room,
    /// For what they become.
    values: Room,
}

impl Rooms {
    /// As much as the limits say.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            bodies: Room::new(limits.bodies_bytes.max(limits.body_bytes)),
            values: Room::new(limits.values_bytes.max(limits.body_bytes.saturating_mul(VALUE_FACTOR))),
        }
    }
}
