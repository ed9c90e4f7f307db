//! Renewals of the Lease, planned absences, and requests to stay.
//!
//! The Hello has the terms of the Lease, so that the Welcome already finds a ready node. A
//! [`Lease`] frame states them again when they have changed; a [`Renew`]
//! repeats them in a few bytes.

use serde::{Deserialize, Serialize};

/// The longest time for which a node stays on request, in seconds: a day.
pub(crate) const MAX_STAY: u64 = 86_400;

/// An optional part of the protocol that the cloud side understands, named in its Welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Feature {
    /// [`Renew`] frames, and the Lease of the Hello.
    Renew,
    /// [`CheckIn`] of a Lease: planned absences.
    CheckIn,
    /// [`Credit`](crate::metered::Credit) frames, and the metered link of the Hello. Named to nodes
    /// that have one.
    Metered,
    /// A feature of a later version.
    #[serde(other)]
    Other,
}

impl Feature {
    /// The features of this version, for all nodes that read features.
    pub(crate) const ALL: [Self; 2] = [Self::Renew, Self::CheckIn];
}

/// The terms of a Lease in a [`Hello`](crate::frame::Hello). Its renewal counts from the Welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, i64)", into = "(u32, i64)")]
pub struct LeaseTerms {
    /// The validity of the Lease without renewal, in seconds.
    pub seconds: u32,
    /// The time when this run of the agent acquired the Lease: Unix time in microseconds, by the
    /// node's clock.
    pub acquired: i64,
}

impl From<(u32, i64)> for LeaseTerms {
    fn from((seconds, acquired): (u32, i64)) -> Self {
        Self { seconds, acquired }
    }
}

impl From<LeaseTerms> for (u32, i64) {
    fn from(LeaseTerms { seconds, acquired }: LeaseTerms) -> Self {
        (seconds, acquired)
    }
}

/// Renews the Lease `kube-node-lease/<node>`. At most 150 bytes as a frame with a session id of 8
/// characters.
///
/// Never queued and never repeated: only the latest renewal matters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// The session of the Hello.
    pub session: String,
    /// The validity of the Lease without renewal, in seconds.
    pub seconds: u32,
    /// The time when this run of the agent acquired the Lease: Unix time in microseconds, by the
    /// node's clock.
    pub acquired: i64,
    /// The time of the renewal: Unix time in microseconds, by the node's clock.
    pub renewed: i64,
    /// The absence that follows if the node disconnects in order. Absent if none is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_in: Option<CheckIn>,
}

/// Renews the Lease with the terms that the node stated last in this session. Only for a cloud side
/// with [`Feature::Renew`].
///
/// The frame is the session as a JSON text and nothing else: renewals are most of the traffic of an
/// idle node.
///
/// ```
/// use edgesync_object::Budget;
/// use edgesync_protocol::frame::Up;
/// use edgesync_protocol::renewal::Renew;
///
/// let bytes = Up::Renew(Renew { session: "5f3a0c11".into() }).encode(1024)?;
/// assert_eq!(bytes, br#""5f3a0c11""#);
/// let decoded = Up::decode(&bytes, &mut Budget::of(1024))?;
/// assert!(matches!(decoded, Up::Renew(renew) if renew.session == "5f3a0c11"));
/// # Ok::<(), edgesync_protocol::frame::FrameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Renew {
    /// The session of the Hello.
    pub session: String,
}

/// The absence that a node announces in its last Lease before it disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckIn {
    /// Seconds from this frame until the node will have connected again, at the latest.
    pub within: u32,
    /// The cause of the absence.
    pub reason: CheckInReason,
}

/// The cause of a planned absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckInReason {
    /// The node connects at an interval.
    Interval,
    /// The node connects in a window of the day.
    Window,
    /// The node's budget of bytes is spent.
    Budget,
    /// A cause of a later version.
    #[serde(other)]
    Other,
}

impl CheckInReason {
    /// Returns the word used in frames, tables and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interval => "interval",
            Self::Window => "window",
            Self::Budget => "budget",
            Self::Other => "plan",
        }
    }
}

/// Asks a node with a plan to stay connected. A later request of the session replaces it; zero
/// seconds end it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stay {
    /// The session of the Hello.
    pub session: String,
    /// Seconds from this frame, at most a day.
    pub seconds: u64,
}

/// A renewal as the cloud side applies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// By a frame with all terms.
    Full(Lease),
    /// By the terms of a Hello.
    Hello(LeaseTerms),
    /// With the terms of the last renewal of the session.
    Again,
}

impl Renewal {
    /// Returns the renewal with all terms; `None` for [`Renewal::Again`]. `now` is the time of its
    /// arrival, in Unix microseconds.
    #[must_use]
    pub fn into_lease(self, now: i64) -> Option<Lease> {
        match self {
            Self::Full(lease) => Some(lease),
            Self::Hello(LeaseTerms { seconds, acquired }) => {
                Some(Lease { session: String::new(), seconds, acquired, renewed: now, check_in: None })
            }
            Self::Again => None,
        }
    }
}
