//! Request bodies: read within limits of length, time, and the memory shared by all requests.

use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};

use super::dispatch::{Memory, RawBody, ReadBody};
use super::limits::Limits;
use super::media::Syntax;
use super::memory_budget::MemoryBudget;
use super::weight::weight;
use edgesync_object::Status;
use edgesync_object::status::{Reason, Result};

/// Lower limit of the memory for parsed bodies, as a multiple of the longest body: mostly text, in
/// three copies.
const VALUE_FACTOR: usize = 8;

/// A request body that is still on the connection.
pub(super) struct HttpBody<'a> {
    body: Incoming,
    content_type: Option<&'a str>,
    limits: &'a Limits,
    budgets: &'a MemoryBudgets,
    /// Becomes false once the body has been read.
    unread: &'a AtomicBool,
}

impl<'a> HttpBody<'a> {
    /// `unread` becomes false once the body has been read.
    pub(super) fn new(
        body: Incoming,
        content_type: Option<&'a str>,
        limits: &'a Limits,
        budgets: &'a MemoryBudgets,
        unread: &'a AtomicBool,
    ) -> Self {
        Self { body, content_type, limits, budgets, unread }
    }

    /// Reads the body unparsed.
    async fn bytes(self) -> Result<RawBody> {
        let limit = self.limits.body_bytes;
        let announced = self.body.size_hint();
        if announced.lower() > limit as u64 {
            return Err(Status::too_large(limit));
        }
        // A body of unknown length is assumed to reach the limit.
        let longest =
            announced.upper().and_then(|upper| usize::try_from(upper).ok()).unwrap_or(limit).min(limit);
        let reservation = self.budgets.bodies.reserve(longest).await?;
        let read = Limited::new(self.body, limit).collect().await;
        let read = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => Status::too_large(limit),
            None => Status::bad_request(format!("read the body: {error}")),
        })?;
        self.unread.store(false, Ordering::Relaxed);
        Ok(RawBody { bytes: read.to_bytes(), _reservation: reservation })
    }
}

impl ReadBody for HttpBody<'_> {
    async fn read(self) -> Result<(RawBody, Memory)> {
        let (budgets, content_type, timeout) = (self.budgets, self.content_type, self.limits.body_timeout);
        let reading = async {
            let body = self.bytes().await?;
            let weight = weight(Syntax::of(content_type, &body), &body);
            if weight > budgets.values.bytes() {
                let message = format!(
                    "the body would take about {} MiB of memory: limit is {} MiB",
                    weight >> 20,
                    budgets.values.bytes() >> 20
                );
                return Err(Status::new(Reason::RequestEntityTooLarge, message));
            }
            Ok((body, Memory { reservation: budgets.values.reserve(weight).await? }))
        };
        match tokio::time::timeout(timeout, reading).await {
            Ok(read) => read,
            Err(_) => Err(Status::too_many_requests("timed out reading the body", 1)),
        }
    }
}

/// Memory budgets shared by requests.
pub(super) struct MemoryBudgets {
    /// Budget of bodies as received.
    bodies: MemoryBudget,
    /// Budget of bodies once parsed.
    values: MemoryBudget,
}

impl MemoryBudgets {
    /// Creates the budgets of the limits.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            bodies: MemoryBudget::new(limits.bodies_bytes.max(limits.body_bytes)),
            values: MemoryBudget::new(
                limits.values_bytes.max(limits.body_bytes.saturating_mul(VALUE_FACTOR)),
            ),
        }
    }
}
