//! What there is to do because other replicas may serve the same nodes. Why: `docs/decisions/0018-replicas.md`.

use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::time::Duration;

use super::news::Waiting;
use super::{Fleet, Inbox};
use crate::config::ObjectSyncs;
use crate::node::DesiredOn;
use crate::source::{Changes as _, Result, Source, Standing};
use crate::work::Work;
use edgesync_object::{Labels, ResourceVersion};
use edgesync_placement::{NodeNotes, OnNode, Summary, Unread};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{CloudPhase, Record};
use edgesync_protocol::timing::Now;

/// What a node lacks for no longer than this leaves no ObjectSync, where only differences do.
const SETTLE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// Machines that want this replica to have caught up, with the questions that are to be answered, in their order: the
    /// question, the node, the machine's token.
    asked: VecDeque<(u64, String, u64)>,
    /// What cannot be read now.
    unread: Vec<Unread>,
    /// The source was replaced by an older copy, all of which is told when this question is answered.
    restored: Option<u64>,
    /// Nodes whose differences are to become ObjectSyncs, and when.
    differing: BTreeSet<(Now, String)>,
}

impl Replicas {
    /// What a node is to hold, as far as it can be read.
    pub(super) fn desired<'a>(&'a self, on_node: OnNode<'a>, work: &'a Work) -> DesiredOn<'a> {
        DesiredOn(on_node, &self.unread, work)
    }

    /// The next of those that an answer is for.
    fn next_answered(&mut self, question: u64) -> Option<(String, u64)> {
        let (_, node, token) = self.asked.pop_front_if(|(asked, ..)| *asked <= question)?;
        Some((node, token))
    }
}

impl<S: Source> Fleet<S> {
    pub(super) fn ask_to_catch_up(&mut self, name: &str, token: u64) {
        let question = self.changes.catch_up();
        self.replicas.asked.push_back((question, name.to_owned(), token));
    }

    /// Answers one of the machines that have asked; all of them know what was told before.
    pub(super) fn caught_up(&mut self, question: u64, reached: ResourceVersion) {
        self.replicas.restored.take_if(|until| *until <= question);
        let Some((name, token)) = self.replicas.next_answered(question) else { return };
        let now = self.now();
        self.work.node();
        self.with_machine(&name, |machine, desired| machine.caught_up(now, token, &reached, desired));
        self.look_for_confirmation(&name);
        self.news.go_on_with(Waiting::CaughtUp(question, reached));
    }

    /// The source was replaced by an older copy, all of which is told when this question is answered.
    pub(super) fn restored(&mut self, until: u64) {
        self.replicas.restored = Some(until);
        self.news.restored();
    }

    /// Whether not all is told yet of an older copy in the place of the source.
    pub(super) fn is_being_restored(&self) -> bool {
        self.replicas.restored.is_some()
    }

    /// The copy in the place of the source does not have the Node of a node: it is older. The node says anew what it is.
    pub(super) fn node_lost(&mut self, name: &str) {
        tracing::warn!(
            node = name,
            "its Node is not in the copy from which the store was restored: it is made anew"
        );
        self.registered.remove(name);
        let deltas = self.placement.set_node(name, Labels::new());
        self.place(deltas);
        if let Some(node) = self.node(name) {
            node.machine.set_registered(false);
            node.machine.prove_anew();
            self.touch(name);
        }
    }

    /// What is proven of a node is of a life of the source that is lost.
    pub(super) fn prove_anew(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.machine.prove_anew();
            self.touch(name);
        }
    }

    /// What cannot be read is another than before.
    pub(super) fn reads_other_than_before(&mut self, unread: Vec<Unread>) {
        for unread in unread.iter().filter(|unread| !self.replicas.unread.contains(unread)) {
            tracing::warn!(%unread, "it cannot be read now: what nodes hold of it stays as it is");
        }
        let before = mem::replace(&mut self.replicas.unread, unread);
        if before.iter().any(|before| !self.replicas.unread.contains(before)) {
            self.news.reads_more();
        }
    }

    /// A node may have been left what it is not to hold, because that could not be read.
    pub(super) fn look_again(&mut self, name: &str) {
        let (now, work) = (self.now(), &self.work);
        let Some(node) = self.nodes.get_mut(name) else { return };
        let desired = self.replicas.desired(self.placement.on(name), work);
        node.machine.reads_more(now, &desired);
        self.touch(name);
    }

    /// A Node is there, or has changed: whoever serves it has a machine for it, which is told of all changes from now on.
    pub(super) fn node_told(&mut self, summary: &Summary) {
        let name = &*summary.name;
        let Some(NodeNotes { claimed, confirmed, silent, in_sync, in_effect }) = summary.notes.as_deref()
        else {
            return;
        };
        if *silent {
            let now = self.now();
            self.lifecycle.found_silent(now, name);
        }
        if claimed.is_some() {
            self.registered.insert(name.to_owned());
        }
        self.meet(name);
        if let Some(node) = self.nodes.get_mut(name) {
            node.confirmed = confirmed.clone();
            node.in_effect = *in_effect;
            node.in_sync_elsewhere = S::IS_SHARED && *in_sync;
        }
        self.look_for_confirmation(name);
    }

    /// An operator confirms the removals of a node that are held back. Tells how many.
    pub(super) fn confirm_deletions(&mut self, name: &str) -> Option<u64> {
        let now = self.now();
        let confirmed =
            self.with_machine(name, |machine, desired| machine.confirm_deletions(now, desired))?;
        tracing::info!(node = name, confirmed, "removals that were held back are confirmed");
        if S::IS_SHARED && confirmed > 0 {
            self.write_confirmation(name, Some(confirmed));
        }
        Some(confirmed)
    }

    /// Whether an operator has confirmed, at whichever replica, what this one holds back.
    fn look_for_confirmation(&mut self, name: &str) {
        let Some(node) = self.nodes.get(name) else { return };
        let Some((incarnation, count)) = node.confirmed.rsplit_once('/') else { return };
        let held = node.machine.held_count();
        if incarnation == &*self.incarnation && (1..=count.parse().unwrap_or(0)).contains(&held) {
            let now = self.now();
            tracing::info!(node = name, held, "an operator has confirmed the removals that are held back");
            self.with_machine(name, |machine, desired| machine.confirm_deletions(now, desired));
        }
    }

    /// What an operator has confirmed is done.
    pub(super) fn end_confirmation(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name).filter(|node| !node.confirmed.is_empty()) else { return };
        node.confirmed = "".into();
        self.write_confirmation(name, None);
    }

    fn write_confirmation(&self, name: &str, count: Option<u64>) {
        let (source, inbox, node) = (self.source.clone(), self.inbox.clone(), name.to_owned());
        let incarnation = self.incarnation.clone();
        tokio::spawn(async move {
            let written = source.confirm_deletions(&node, &incarnation, count).await;
            let _ = inbox.send(Inbox::Confirmed(node, written)).await;
        });
    }

    pub(super) fn confirmation_written(&mut self, node: &str, written: &Result<()>) {
        if let Err(error) = written {
            tracing::error!(node, %error, "whether removals are confirmed could not be written for other replicas");
        }
    }
}

// --- who serves a node, and what its ObjectSyncs are

impl<S: Source> Fleet<S> {
    /// A node is welcome here: what it holds is proven.
    pub(super) fn welcomed_here(&mut self, name: &str) {
        self.source.set_served(name, true);
        let Some(node) = self.nodes.get_mut(name) else { return };
        // Another replica may have left some.
        node.has_syncs = true;
        self.source.set_epoch(name, node.machine.epoch());
        if self.source.object_syncs() == ObjectSyncs::All {
            self.tell_syncs(name);
        }
    }

    /// Tells all ObjectSyncs that a node is to have, if it is welcome here.
    pub(super) fn tell_syncs(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if node.machine.phase() != CloudPhase::Live {
            return;
        }
        let held: Vec<(Uid, Record)> = match self.source.object_syncs() {
            ObjectSyncs::All => {
                let desired = self.replicas.desired(self.placement.on(name), &self.work);
                node.machine.held_by_node(&desired).collect()
            }
            ObjectSyncs::Differences => {
                let outdated = node.machine.outdated_on_node();
                outdated.map(|(uid, record)| (uid.clone(), record.clone())).collect()
            }
            ObjectSyncs::Off => return,
        };
        self.work.objects(held.len());
        node.has_syncs = !held.is_empty();
        self.source.set_syncs(name, held);
    }

    /// A node is not connected here any more.
    pub(super) fn gone_from_here(&mut self, name: &str) {
        // Whether it lives is told by the replica that it is connected to.
        self.lifecycle.forget(name);
        self.source.set_served(name, false);
        if let Some(node) = self.nodes.get_mut(name) {
            node.has_syncs = false;
            // What changes there is told elsewhere from now on.
            node.standing = Standing::default();
        }
    }

    /// Looks whether a node differs, or has ObjectSyncs from when it did.
    pub(super) fn watch_differences(&mut self, name: &str) {
        let due = self.now() + SETTLE;
        let Some(node) = self.nodes.get_mut(name) else { return };
        let is_due = node.different > 0 || node.has_syncs;
        if is_due && !mem::replace(&mut node.differs, true) {
            self.replicas.differing.insert((due, name.to_owned()));
        }
    }

    /// Has the differences told of nodes whose time has come, as far as one turn may.
    pub(super) fn tell_differences(&mut self, now: Now) {
        let end = self.work.part();
        while !self.work.has_reached(end)
            && self.replicas.differing.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, name)) = self.replicas.differing.pop_first()
        {
            if let Some(node) = self.nodes.get_mut(&name) {
                node.differs = false;
                self.tell_syncs(&name);
            }
        }
    }

    /// When there are differences to be told.
    pub(super) fn differences_deadline(&self) -> Option<Now> {
        self.replicas.differing.first().map(|(at, _)| *at)
    }
}
