//! Bugs planted on purpose, one of each class: the simulation must find every one of them. Tests only.

use std::cell::Cell;

use super::change::Change;
use super::replica::{Applied, Observed};

/// A deliberately planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The edge reports objects before their commit has returned.
    AckBeforeCommit,
    /// A delete for an unknown UID removes what has the same name.
    DeleteByName,
    /// Any version replaces any other one.
    NoVersionGate,
    /// Revision, count and digest are saved apart from the rows.
    DigestOutsideTransaction,
    /// The cloud stores the effects of an upload apart from the numbers.
    NumberApartFromEffect,
    /// The cloud takes what is in effect for news whatever the number of the item.
    EffectOfAnyNumber,
    /// The edge forgets items of the outbox when they are sent.
    SettleWhenSent,
    /// The edge goes on with the numbers of an older copy of its outbox.
    NoRenumbering,
    /// The edge takes whatever the link carries for progress of what it waits for.
    AnyProgressCounts,
    /// The cloud's machine counts objects as recorded before their records are stored.
    RecordBeforeStored,
    /// The cloud welcomes a node without comparing.
    WelcomeUncompared,
    /// The cloud confirms what is not stored.
    ConfirmUnstored,
    /// The cloud holds no removals back.
    NoGuard,
    /// The cloud records whatever a node invents.
    NoQuota,
    /// The endpoint takes as much of one node as there is room for.
    NoShares,
    /// The cloud sends nothing again.
    NeverAgain,
    /// The cloud takes the late answer to a load of an earlier session for that of now.
    StaleLoad,
    /// The cloud has an object removed before it sends another version of it.
    DeleteAndResend,
    /// Neither side waits for what the line has not carried yet: the cloud sends again all that is not reported.
    LineUnknown,
    /// The edge fills the frames of its outbox whatever the line carries.
    FullUploads,
    /// The cloud takes each claim to a version of a lost life for the first one.
    ClaimsAreNews,
    /// What one node says of the cloud's store counts for all.
    OneIsEnough,
    /// The cloud does not store that a node has said that the store went back.
    DoubtForgotten,
    /// The cloud keeps what is recorded even if that is what is desired.
    LedgerOfAll,
    /// The cloud looks at each node fifty times a second.
    Restless,
    /// The cloud's store does not notice that its machine was away.
    PauseUnnoticed,
    /// A replica goes on with what it knew of a node when it served it last.
    LedgerUnproven,
    /// A replica takes what another one has confirmed for the loss of its own store.
    LossByMemory,
    /// A replica that has not caught up has removed what it has not heard of.
    DeleteUnasked,
    /// A replica that has not caught up sends an older version than the node holds.
    RollBackUnasked,
    /// A replica that has not caught up sends what the node does not hold.
    RestoreUnasked,
    /// A replica has removed what it cannot read.
    UnreadIsGone,
    /// A replica puts what it knew of what it cannot read in the place of something newer.
    UnreadIsKnown,
}

thread_local! {
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Whether the bug is planted in this thread.
pub fn planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Plants a bug in this thread while `run` runs.
pub fn with<T>(fault: Option<Fault>, run: impl FnOnce() -> T) -> T {
    let before = PLANTED.replace(fault);
    let result = run();
    PLANTED.set(before);
    result
}

/// What [`Fault::AckBeforeCommit`] claims: that every change has already taken effect.
pub(crate) fn observe_early(changes: &[Change]) -> Applied {
    let observe = |change: &Change| {
        let version = match change {
            Change::Put(put) => Some(put.version.clone()),
            Change::Delete(_) => None,
        };
        Observed { uid: change.uid().clone(), version }
    };
    Applied { observed: changes.iter().map(observe).collect(), rejected: Vec::new() }
}
