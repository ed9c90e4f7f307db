//! Planted bugs: the simulation must find each of them.

/// A bug that tests plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A wave opens as soon as the one before is good.
    SoakIgnored,
    /// The soak continues although the wave has stopped to be good.
    SoakNotReset,
    /// A wave counts as good while nodes have not answered.
    PendingIgnored,
    /// Failures beyond the limit stop nothing.
    FailuresIgnored,
    /// The limit of failures holds for the wave as a whole only.
    GroupsIgnored,
    /// A wave counts as good with too few answers.
    MinSuccessIgnored,
    /// A wave without nodes counts as good.
    EmptyIsGood,
    /// A node that cannot report what is in effect is always a success.
    HeldOnlyIsGood,
    /// Nodes that are away are waited for.
    AwayBlocks,
    /// A node that comes and goes without an answer is waited for.
    FlappingBlocks,
    /// Connected nodes may be silent for any time.
    SilentIsPending,
    /// A node that waits for its window is a failure.
    WaitingFails,
    /// Two waves open at once.
    OpensTwo,
    /// Counts of another revision are judged.
    CountsOfAnyRevision,
    /// The first revision that is open for all waves becomes stable unproven.
    StableUnproven,
    /// The stable revision is dropped when the one above it is open for all waves.
    StableDropped,
    /// A paused roll-out opens waves.
    PauseIgnored,
    /// A repeated promotion opens one more wave.
    PromoteAgain,
    /// `Queue` begins a revision at once.
    QueueIgnored,
    /// The stack has any height.
    StackUnbounded,
    /// Revisions that are open for no more waves than the one above stay.
    OvertakenKept,
    /// Waves that have changed stay open.
    WavesChangeIgnored,
    /// Waves that have changed are open until the status is written.
    WavesUnadopted,
    /// Waves that have changed completely open by themselves.
    WavesChangeOpens,
    /// An undone version is not recorded.
    UndoForgotten,
    /// The record of undone versions is forgotten with the next revision.
    RejectionsForgotten,
    /// The undone removal of an object is not recorded.
    UndoneRemovalForgotten,
    /// A new revision takes undone versions from the source.
    RejectedTaken,
    /// A snapshot that was made over another revision is accepted.
    SnapshotOfAnyTop,
    /// The status has the same sequence after a write.
    SequenceKept,
    /// Numbers of undone revisions are used again.
    NumberReused,
    /// Bodies of snapshots that no revision has yet are swept.
    SweepsTooMuch,
    /// Bodies of ended revisions are kept.
    SweepsNothing,
}

#[cfg(test)]
impl Fault {
    pub(crate) const ALL: [Self; 33] = [
        Self::SoakIgnored,
        Self::SoakNotReset,
        Self::PendingIgnored,
        Self::FailuresIgnored,
        Self::GroupsIgnored,
        Self::MinSuccessIgnored,
        Self::EmptyIsGood,
        Self::HeldOnlyIsGood,
        Self::AwayBlocks,
        Self::FlappingBlocks,
        Self::SilentIsPending,
        Self::WaitingFails,
        Self::OpensTwo,
        Self::CountsOfAnyRevision,
        Self::StableUnproven,
        Self::StableDropped,
        Self::PauseIgnored,
        Self::PromoteAgain,
        Self::QueueIgnored,
        Self::StackUnbounded,
        Self::OvertakenKept,
        Self::WavesChangeIgnored,
        Self::WavesUnadopted,
        Self::WavesChangeOpens,
        Self::UndoForgotten,
        Self::RejectionsForgotten,
        Self::UndoneRemovalForgotten,
        Self::RejectedTaken,
        Self::SnapshotOfAnyTop,
        Self::SequenceKept,
        Self::NumberReused,
        Self::SweepsTooMuch,
        Self::SweepsNothing,
    ];
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread, or none.
#[cfg(test)]
pub(crate) fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Returns whether a bug is planted; never outside of tests.
#[cfg(test)]
pub(crate) fn planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Returns whether a bug is planted; never outside of tests.
#[cfg(not(test))]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}
