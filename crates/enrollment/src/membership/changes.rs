//! Tells what changes in the membership, and what that means for what is revoked.

use std::sync::Arc;

use tokio::sync::broadcast;

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Something of a name.
    Member {
        /// The name.
        node: Arc<str>,
        /// Whether this process has changed it, and knows that already: the watch may be faster than the answer.
        own: bool,
        /// Whether what is revoked of it has changed.
        revocation: RevocationChange,
    },
    /// Certificates of operators.
    Operators,
    /// More than could be told: everything is to be looked at.
    All,
}

/// What has become of what is revoked of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationChange {
    /// It is the same.
    None,
    /// Something more is revoked.
    More,
    /// Something else: it has joined anew, what is revoked was forgotten, or a broker refuses it.
    Other,
}

/// Tells what changes.
#[derive(Debug)]
pub struct Changes(Option<broadcast::Receiver<Changed>>);

impl Changes {
    pub(super) fn new(receiver: Option<broadcast::Receiver<Changed>>) -> Self {
        Self(receiver)
    }

    /// Waits for the next change; for ever, where nobody else can change anything. Can be cancelled without loss.
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

    /// A change that can be told at once.
    pub(crate) fn try_next(&mut self) -> Option<Changed> {
        match self.0.as_mut()?.try_recv() {
            Ok(changed) => Some(changed),
            Err(broadcast::error::TryRecvError::Lagged(_)) => Some(Changed::All),
            Err(_) => None,
        }
    }
}
