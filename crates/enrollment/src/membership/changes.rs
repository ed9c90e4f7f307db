//! Notifies of changes of the membership and of their effect on the revocations.

use tokio::sync::broadcast;

use edgesync_object::NodeName;

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// A member has changed.
    Member {
        /// The name of the member.
        node: NodeName,
        /// Whether this process made the change and knows it: the watch may be faster than the
        /// answer.
        own: bool,
        /// The effect on its revocations.
        revocation: RevocationChange,
    },
    /// Certificates of operators have changed.
    Operators,
    /// Changes were dropped: the receiver must read everything again.
    All,
}

/// The effect of a change on a member's revocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationChange {
    /// The revoked certificates are the same.
    None,
    /// More certificates are revoked.
    More,
    /// Anything else: the node has joined again, revocations were dropped, or a broker refuses
    /// them.
    Other,
}

/// A subscription to the changes.
#[derive(Debug)]
pub struct Changes(Option<broadcast::Receiver<Changed>>);

impl Changes {
    pub(super) fn new(receiver: Option<broadcast::Receiver<Changed>>) -> Self {
        Self(receiver)
    }

    /// Waits for the next change; forever where no other process can make one. Cancel-safe.
    pub async fn next(&mut self) -> Changed {
        loop {
            let Some(receiver) = &mut self.0 else { return std::future::pending().await };
            match receiver.recv().await {
                Ok(changed) => return changed,
                Err(broadcast::error::RecvError::Lagged(_)) => return Changed::All,
                Err(broadcast::error::RecvError::Closed) => self.0 = None,
            }
        }
    }

    /// Returns a change that is queued already.
    pub(crate) fn try_next(&mut self) -> Option<Changed> {
        match self.0.as_mut()?.try_recv() {
            Ok(changed) => Some(changed),
            Err(broadcast::error::TryRecvError::Lagged(_)) => Some(Changed::All),
            Err(_) => None,
        }
    }
}
