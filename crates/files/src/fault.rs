//! Planted bugs of waiting changes: the simulation must find each of them.

/// A bug that tests plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Holds do not close the gate.
    HoldIgnored,
    /// An urgent change overrides a hold.
    HoldOverridden,
    /// Windows open by a clock that is not known.
    UnknownClockTrusted,
    /// A set clock ends holds.
    HoldEndsByWallClock,
    /// The recovery from a crash reloads at any time.
    RecoveryReloads,
    /// A reload that is owed after a recovery is forgotten in the next crash.
    OwedReloadLost,
    /// A reload that is owed is made up for at any time.
    OwedReloadAtOnce,
    /// An urgent change takes others along.
    UrgencyOfNeighbours,
    /// Files in memory are not kept.
    NothingKept,
    /// The copy of a version is removed before its successor is in effect.
    #[cfg(test)]
    CopyRemovedEarly,
    /// A change that waited is not tried again.
    PendingForgotten,
}

#[cfg(test)]
impl Fault {
    pub(crate) const ALL: [Self; 11] = [
        Self::HoldIgnored,
        Self::HoldOverridden,
        Self::UnknownClockTrusted,
        Self::HoldEndsByWallClock,
        Self::RecoveryReloads,
        Self::OwedReloadLost,
        Self::OwedReloadAtOnce,
        Self::UrgencyOfNeighbours,
        Self::NothingKept,
        Self::CopyRemovedEarly,
        Self::PendingForgotten,
    ];
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread, or none.
#[cfg(test)]
pub(crate) fn plant(fault: Option<Fault>) {
    PLANTED.with(|planted| planted.set(fault));
}

/// Returns whether a bug is planted; never outside of tests.
#[cfg(test)]
pub(crate) fn planted(fault: Fault) -> bool {
    PLANTED.with(|planted| planted.get() == Some(fault))
}

/// Returns whether a bug is planted; never outside of tests.
#[cfg(not(test))]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}
