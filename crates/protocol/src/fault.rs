//! Injected bugs, one of each class, for tests only. The simulation must find every one of them.

use std::cell::Cell;

/// A deliberately injected bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The edge reports objects before their commit has returned.
    AckBeforeCommit,
    /// A delete for an unknown UID removes the object with the same name.
    DeleteByName,
    /// Any version replaces any other one.
    NoVersionCheck,
    /// Revision, count and digest are saved apart from the rows.
    DigestOutsideTransaction,
    /// The cloud stores the effects of an upload apart from the numbers.
    NumberApartFromEffect,
    /// The cloud accepts an effect whatever the item's number.
    EffectOfAnyNumber,
    /// The edge forgets outbox items when they are sent.
    SettleWhenSent,
    /// The edge continues the numbering of an older copy of its outbox.
    NoRenumbering,
    /// The edge counts any progress of the link as progress of the awaited answer.
    AnyProgressCounts,
    /// The cloud's machine counts objects as recorded before the store has saved the records.
    RecordBeforeStored,
    /// The cloud sends a Welcome without comparing digests.
    WelcomeUncompared,
    /// The cloud confirms revisions that are not stored.
    ConfirmUnstored,
    /// The cloud holds back no removals.
    NoGuard,
    /// The cloud records any UID that a node invents.
    NoQuota,
    /// The endpoint buffers as much of one node as fits.
    NoShares,
    /// The cloud never resends.
    NeverAgain,
    /// The cloud applies a late load answer of an earlier session to the current one.
    StaleLoad,
    /// The cloud ignores a report that contradicts an earlier one about an object in flight.
    AnsweredForGood,
    /// The cloud sends a version that it loads although the node holds it.
    HeldVersionSent,
    /// The cloud deletes an object before it sends another version of it.
    DeleteAndResend,
    /// Both sides ignore the unsent bytes of the link: the cloud resends everything unreported.
    LineUnknown,
    /// The edge fills its upload frames whatever the link's throughput.
    FullUploads,
    /// The cloud accepts each claim to a version of a lost store as the first one.
    ClaimsAreNews,
    /// The claim of one node about the cloud's store counts for all nodes.
    OneIsEnough,
    /// The cloud does not store the fact that a node claimed a rollback of the store.
    DoubtForgotten,
    /// Both sides continue a message in parts with another version of its object.
    PartsOfAnyVersion,
    /// The edge applies a message in parts whatever its digest.
    DamagedParts,
    /// The cloud sends a message in parts from its start, whatever the node holds of it.
    PartsFromStart,
    /// The edge does not read what its store keeps of a message in parts.
    PartsForgotten,
    /// The cloud drops a message in parts when its object changes.
    PartsOutrun,
    /// The edge applies a patch to any version of its object.
    PatchAnyVersion,
    /// The edge applies a patch to any text of its base version.
    PatchAnyBase,
    /// The edge stores the result of a patch whatever its digest.
    PatchUnproven,
    /// The edge decodes a patch whatever the length of its result.
    PatchUnbounded,
    /// The edge does not report a patch that it could not apply.
    UnpatchedUnreported,
    /// The cloud sends patches against a base that the node has refused.
    PatchAgain,
    /// The cloud sends patches to nodes that do not know them.
    PatchUnasked,
    /// The cloud's ledger keeps records that equal the desired version.
    LedgerOfAll,
    /// The cloud wakes each machine fifty times a second.
    Restless,
    /// The cloud's store does not notice that its host was suspended.
    PauseUnnoticed,
    /// A replica continues from the ledger of its last session with the node.
    LedgerUnproven,
    /// A replica mistakes revisions confirmed by another replica for a loss in its store.
    LossByMemory,
    /// A replica that lags behind deletes objects it has not received yet.
    DeleteUnasked,
    /// A replica that lags behind sends an older version than the node holds.
    RollBackUnasked,
    /// A replica that lags behind sends objects that the node does not hold.
    RestoreUnasked,
    /// A replica deletes objects it cannot read.
    UnreadIsGone,
    /// A replica overwrites a newer object with its last known version of an unreadable one.
    UnreadIsKnown,
    /// The edge keeps the confirmed revision of its last store when the store is reset.
    ResetKeepsConfirmed,
    /// The fleet passes inputs to machines that lack earlier broadcasts.
    InputBeforeBroadcasts,
    /// The fleet answers a load with a body that is older than the requested one.
    OlderBodies,
    /// The fleet answers loads with bodies that were read before an older copy has replaced the
    /// source.
    BodiesOfLostSource,
    /// The fleet lets nodes keep their proof when an older copy has replaced the source.
    RestoredUnproven,
    /// The fleet keeps the witnesses of the last incarnation.
    WitnessesKept,
    /// The fleet never releases the differences that a read of records was expected to add.
    ExpectedKept,
    /// The fleet keeps the effects that another database file of the node has reported.
    EffectsOfAnyEpoch,
    /// The fleet takes effects that a lost database file of the node has reported, stored late.
    LateEffects,
    /// The fleet takes the answer to an earlier question for that to a later one.
    CatchUpOutdated,
    /// The fleet deletes a removed node at the source while requests for it are in flight.
    RemovalUnawaited,
    /// The fleet takes a change of a Node from before the removal of its node for a new Node.
    StaleNodeReadmits,
    /// The fleet does not wait for changes from before a removal before it readmits the node.
    ReadmissionUnawaited,
    /// A replica that starts takes a removal that is under way for a completed one.
    UnfinishedRemovalIsGone,
    /// A readmission undoes whatever removal of its node is recorded by then.
    AnyRemovalUndone,
    /// The fleet ignores that another replica has removed a node.
    RemovalUnnoticed,
    /// A replica that sees late that a Node was deleted removes its node, which has returned.
    LateRemovalCounts,
    /// The fleet takes the deletion of a Node for that of a later one with its name.
    ReplacedNodeIsGone,
    /// The fleet applies a new configuration to new nodes only.
    ReloadIgnored,
    /// The fleet sends the newest versions of objects that a roll-out governs.
    RevisionIgnored,
    /// The fleet opens changed waves by the number of those that were open before.
    ChangedWavesOpen,
    /// The fleet takes a rule whose selection has changed for one without a roll-out.
    ChangedRuleIsPlain,
    /// The fleet keeps the revisions of a rule that has no roll-out any more.
    RolloutRemovalIgnored,
    /// The fleet keeps the revisions of a deleted rule.
    DeletedRuleGoverns,
    /// Of several rules with a roll-out the fleet lets the youngest decide.
    YoungestDecides,
    /// The fleet lets a rule without a roll-out decide the version of an object.
    PlainRuleDecides,
    /// The fleet removes the objects of a roll-out without a revision.
    LostStatusRemoves,
    /// The fleet keeps its status of a roll-out when an older one was restored.
    RestoredStatusIgnored,
    /// The fleet keeps the wave of a node whose labels have changed.
    WaveKept,
    /// The fleet uses the status of a roll-out before it is stored.
    StatusUnstored,
    /// The fleet forgets an object of the same name when a revision gets or loses one.
    NamesakeForgotten,
    /// The fleet deletes the revisions of a status that a rule without a roll-out still has.
    SweepOfLeftover,
    /// The fleet keeps objects that a list lacks.
    MissingKept,
    /// The fleet does not list the objects that a new rule may select.
    NewRuleUnlisted,
    /// A replica that lags behind refuses uploads about objects it has not received yet.
    RefuseWhileBehind,
    /// A replica writes for nodes whose Lease names another replica.
    FenceIgnored,
    /// A renewal over a dead connection takes a node from the replica that serves it.
    LateRenewalCounts,
    /// A renewal that waited for a dropped one takes a node back.
    WaitingRenewalCounts,
    /// A replica writes Leases whatever their version.
    LeaseUnconditional,
    /// A record queued before a newer one of the same object replaces it.
    OlderRecordWins,
    /// A writer of ObjectSyncs continues from the versions that have proved outdated.
    KnownAfterConflict,
    /// A replica confirms the items of an upload before their effects are written.
    ConfirmUnwritten,
    /// A replica counts an effect as written although the API server answered with a conflict.
    ConflictIsSuccess,
    /// A replica continues an expired watch from the present.
    ExpiredWatchContinues,
    /// A replica catches up with a list from a watch cache.
    CatchUpFromCache,
    /// A replica checks the Lease of a node in a watch cache.
    FenceFromCache,
    /// A replica that claims a node without a Lease writes nothing.
    ClaimWithoutLease,
    /// A replica repeats a throttled request at once.
    ThrottleIgnored,
    /// The edge repeats the terms of its Lease although they have changed.
    ShortWithoutTerms,
    /// The cloud renews a Lease whose terms it does not know.
    RenewalWithoutTerms,
    /// The cloud sends objects that may not come over the node's link.
    TermsIgnored,
    /// The cloud sends more bytes than the node's credit.
    CreditIgnored,
    /// A credit of the node forgets the frames that are on their way.
    CreditForgetsFlight,
    /// The cloud sends less urgent objects before more urgent large ones.
    UrgencyUnordered,
    /// The node takes the objects that wait for its link for none.
    WaitingIsInSync,
    /// A node may announce an absence of any length.
    AbsenceUnbounded,
    /// A node that announced an absence is away although its connection was lost.
    AbsentWithoutDisconnect,
    /// The term of an absence that began before a restart is not continued.
    AbsenceForgotten,
    /// The term of an absence ends with that of a connected node.
    AbsenceTooShort,
}

thread_local! {
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Returns whether the bug is injected in this thread.
pub fn planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Injects a bug in this thread while `run` runs.
pub fn with<T>(fault: Option<Fault>, run: impl FnOnce() -> T) -> T {
    let before = PLANTED.replace(fault);
    let result = run();
    PLANTED.set(before);
    result
}
