//! One pass over the objects of a rule: writes, checks, reloads and records what is new or changed,
//! or rolls it back. Requests only the contents of objects whose files must be written.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

mod running;
mod waiting;

pub use waiting::keep_all;

use super::contents::{self, Desired};
use super::fault::{Fault, planted};
use super::gate::{self, Closed};
use super::record::{
    Change, Digest, Held, Member, Place, RELOAD_OWED, Record, Shape, State, Status, Stuck, Wait, tail,
};
use super::refusal::Refusal;
use super::rule::{Rule, Write};
use super::selection;
use super::steps::describe;
use super::verify::{Verdict, verify};
use super::wire::Listed;
use super::{Effects, Observed};

/// Delay after the first failure of a place, in microseconds; doubled with each further one.
const FIRST_BACKOFF: i64 = 10_000_000;
/// Longest delay after failures, in microseconds.
const MAX_BACKOFF: i64 = 600_000_000;
/// Maximum number of transactions that isolate the cause of a failure.
const MAX_TRANSACTIONS: usize = 32;

/// Options of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether places without changes are inspected, too.
    pub look: bool,
    /// Whether failed places are retried at once.
    pub force: bool,
    /// Whether files of unlisted objects are kept.
    pub keep: bool,
    /// Current time in microseconds since 1970.
    pub now: i64,
}

/// A pass over the objects of a rule, which are known without their contents at first.
///
/// Order of calls: [`Pass::begin`] compares the list with the record, [`Pass::needed`] names the
/// objects whose contents the pass needs, and [`Pass::plan`] describes or [`Pass::apply`] executes
/// the changes. [`recover`](super::steps::recover) comes first, after a crash or a failed rollback.
///
/// ```
/// use edgesync_files::contents::Desired;
/// use edgesync_files::pass::{Options, Pass};
/// use edgesync_files::rule::Reload;
/// use edgesync_files::template::Template;
/// use edgesync_files::wire::Listed;
/// use edgesync_files::{
///     Change, Effects, Failure, Held, Intent, Observed, Place, Record, Rule, Shape, State,
/// };
/// use serde_json::json;
///
/// /// An empty device that records its steps.
/// #[derive(Default)]
/// struct Device(Vec<&'static str>);
///
/// impl Device {
///     fn step(&mut self, step: &'static str) -> Result<(), Failure> {
///         self.0.push(step);
///         Ok(())
///     }
/// }
///
/// impl Effects for Device {
///     fn stage(&mut self, change: &Change, desired: &Desired) -> Result<(), Failure> {
///         assert_eq!(change.place.path(), "/etc/web/page");
///         assert_eq!(desired.files["index.html"], b"hi");
///         self.step("stage")
///     }
///     fn swap(&mut self, _: &Change) -> Result<(), Failure> {
///         self.step("swap")
///     }
///     fn reload(&mut self) -> Result<(), Failure> {
///         self.step("reload")
///     }
///     fn commit(&mut self, _: &Record) -> Result<(), Failure> {
///         self.step("commit")
///     }
///     // … and the others.
/// #   fn inspect(
/// #       &mut self, _: &Place, _: Shape, _: Option<&Held>, _: Option<&Desired>,
/// #   ) -> Result<Observed, Failure> {
/// #       Ok(Observed::default())
/// #   }
/// #   fn key(&self, _: &Place) -> (u64, u64) { (1, 2) }
/// #   fn is_memory(&mut self, _: &Place, _: Shape) -> bool { false }
/// #   fn intend(&mut self, _: &Intent) -> Result<(), Failure> { self.step("intend") }
/// #   fn check(&mut self, _: &[Change]) -> Result<(), Failure> { self.step("check") }
/// #   fn restore(&mut self, _: &Change) -> Result<(), Failure> { self.step("restore") }
/// #   fn discard(&mut self, _: &Change, _: bool) -> Result<(), Failure> { self.step("discard") }
/// #   fn forget(&mut self) -> Result<(), Failure> { self.step("forget") }
/// #   fn closed(&mut self, _: bool) -> Option<edgesync_files::Closed> { None }
/// #   fn keep(
/// #       &mut self, _: &Held, _: Option<&edgesync_files::contents::Files>, _: bool,
/// #   ) -> Result<(), Failure> {
/// #       Ok(())
/// #   }
/// #   fn revive(
/// #       &mut self, _: &Held, _: u64,
/// #   ) -> Result<std::collections::BTreeMap<String, edgesync_files::Digest>, Failure> {
/// #       Err(Failure::new("no copy"))
/// #   }
/// #   fn prune(&mut self, _: &Record) {}
/// }
///
/// // A rule, as `[[files]]` configures it, and an object that it selects.
/// let rule = Rule {
///     to: Template::parse("/etc/web/{metadata.name}")?,
///     reload: Reload::Unit("web.service".to_owned()),
///     ..Rule::default()
/// };
/// let object = json!({
///     "apiVersion": "v1",
///     "kind": "ConfigMap",
///     "metadata": { "namespace": "plant", "name": "page" },
///     "data": { "index.html": "hi" },
/// });
/// let [uid, api_version, kind, namespace, name, version] =
///     ["1", "v1", "ConfigMap", "plant", "page", "7"].map(str::to_owned);
/// let listed = [Listed { uid, api_version, kind, namespace, name, version, ..Listed::default() }];
/// let mut contents = |_| Some(object.clone());
///
/// // The plan changes nothing: the record is a copy.
/// let (mut device, mut record, mut seq) = (Device::default(), Record::default(), 0);
/// let (mut copy, options) = (record.clone(), Options::default());
/// let pass = Pass::begin(&mut device, &rule, &mut copy, &mut seq, &listed, options);
/// assert_eq!(pass.needed(), [0]);
/// assert_eq!(pass.plan(&mut contents), ["write /etc/web/page: index.html, 1 files, 2 bytes"]);
///
/// // The steps of the transaction.
/// let pass = Pass::begin(&mut device, &rule, &mut record, &mut seq, &listed, options);
/// assert_eq!(pass.apply(&mut contents), None);
/// assert_eq!(device.0, ["intend", "stage", "swap", "reload", "commit", "discard", "forget"]);
/// assert_eq!(record.objects["1"].state, State::InEffect);
/// # Ok::<(), String>(())
/// ```
pub struct Pass<'a, H> {
    effects: &'a mut H,
    rule: &'a Rule,
    record: &'a mut Record,
    /// Sequence number of the last status.
    seq: &'a mut u64,
    listed: &'a [Listed],
    options: Options,
    /// Places by path, with the indexes of their objects.
    places: BTreeMap<String, (Place, Vec<usize>)>,
    /// Paths of places whose objects' contents are needed.
    due: BTreeSet<String>,
    /// Digest of the rule's text.
    text: Digest,
    /// UIDs of deleted objects whose files were changed by another party.
    conflicted: Vec<String>,
    /// Whether the record has uncommitted changes.
    dirty: bool,
    runs: usize,
    /// Whether another pass must follow at once, because a removed place will be created in another
    /// shape.
    rerun: bool,
    /// Why changes wait; none if they may take effect, or if there are none.
    closed: Option<Closed>,
    /// Why urgent changes wait, which no window keeps; none if they may take effect.
    closed_to_urgent: Option<Closed>,
}

/// What a transaction does with its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// They take effect. With `true`, outside of windows, too.
    Apply(bool),
    /// They are checked, and wait.
    Check,
}

/// Reason why a place has no desired files.
enum NotWritable {
    /// An object has changed since it was listed.
    Changed,
    /// An object cannot be written.
    Refused(usize, Refusal),
}

/// A change and its desired files.
type Task = (Change, Desired);

/// Files, directories and bytes of a rule, counted against its limits.
#[derive(Default)]
struct Usage {
    files: u64,
    bytes: u64,
    /// The directories below the base: those of objects, and their parents.
    directories: BTreeSet<String>,
}

impl Usage {
    /// Returns the directories of a place that are not counted yet.
    fn new_directories(&self, place: &Place, shape: Shape) -> Vec<String> {
        let own = (shape == Shape::Directory).then(|| place.path());
        own.into_iter().chain(place.parents()).filter(|path| !self.directories.contains(path)).collect()
    }

    fn add(&mut self, directories: Vec<String>, files: u64, bytes: u64) {
        self.files += files;
        self.bytes += bytes;
        self.directories.extend(directories);
    }

    /// Returns whether this is within the rule's limits, with so many more.
    fn has_room(&self, rule: &Rule, directories: usize, files: u64, bytes: u64) -> bool {
        let all = self.files + files + (self.directories.len() + directories) as u64;
        all <= rule.max_files && self.bytes + bytes <= rule.max_size
    }
}

impl<'a, H: Effects> Pass<'a, H> {
    /// Starts a pass, and determines which objects' contents are needed.
    pub fn begin(
        effects: &'a mut H,
        rule: &'a Rule,
        record: &'a mut Record,
        seq: &'a mut u64,
        listed: &'a [Listed],
        options: Options,
    ) -> Self {
        // A rule may have lost its reload.
        record.owes_reload &= rule.reloads();
        let mut pass = Self {
            effects,
            rule,
            record,
            seq,
            listed,
            options,
            places: BTreeMap::new(),
            due: BTreeSet::new(),
            text: Digest::of((0, 0), rule.text.as_bytes()),
            conflicted: Vec::new(),
            dirty: false,
            runs: 0,
            rerun: false,
            closed: None,
            closed_to_urgent: None,
        };
        pass.group();
        pass.withdraw_stuck();
        pass.find_due();
        pass.find_closed();
        pass
    }

    /// Returns the indexes of the objects whose contents are needed.
    #[must_use]
    pub fn needed(&self) -> Vec<usize> {
        let due = self.due.iter().filter_map(|path| self.places.get(path));
        due.flat_map(|(_, members)| members.iter().copied()).collect()
    }

    /// Assigns objects that the rule selects to places. Without `gather` only the first object of a
    /// place gets it.
    fn group(&mut self) {
        for (number, object) in self.listed.iter().enumerate() {
            if let Some(known) = self.record.objects.get_mut(&object.uid) {
                // Takes over the current configuration.
                known.sealed = is_sealed(object);
            }
            if let Err(why) = selection::check_listed(self.rule, object) {
                self.reject(object, &why);
                continue;
            }
            let name = if self.rule.gather { "" } else { object.name.as_str() };
            let place = match self.rule.to.place(&object.namespace, name) {
                Ok(place) => place,
                Err(why) => {
                    self.reject(object, &why);
                    continue;
                }
            };
            let path = place.path();
            let members = &mut self.places.entry(path).or_insert_with(|| (place, Vec::new())).1;
            if self.rule.gather || members.is_empty() {
                members.push(number);
                continue;
            }
            let first = members.first().and_then(|first| self.listed.get(*first));
            let first = first.map_or_else(String::new, |first| format!("{}/{}", first.namespace, first.name));
            self.reject(object, &Refusal::SameDestination(first));
        }
    }

    /// Withdraws objects that are no longer at a place which is in an unknown state: recovery may
    /// have failed to roll back its removal.
    fn withdraw_stuck(&mut self) {
        for (path, Stuck { change, message }) in self.record.stuck.clone() {
            if !self.places.contains_key(&path) {
                // The change has no members if it found that the files were lost.
                let old = self.record.places.get(&path).cloned().or(change.old);
                self.keep_unremoved(&Change { old, ..change }, false, &message);
            }
        }
    }

    fn find_due(&mut self) {
        let places = std::mem::take(&mut self.places);
        for (path, (place, numbers)) in &places {
            if let Some(stuck) = self.record.stuck.get(path) {
                let why = format!("earlier change cannot be rolled back: {}", stuck.message);
                self.block(path, numbers, &why);
                continue;
            }
            let wait = self.record.waits.get(path);
            let tried = |wait: &&Wait| wait.rule == self.text && self.matches(&wait.members, numbers);
            if wait.filter(tried).is_some_and(|wait| self.waits(wait)) {
                continue;
            }
            let held = self.record.places.get(path);
            let same = wait.is_none() && held.is_some_and(|held| self.is_made(held, numbers));
            if same && (!self.options.look || self.is_intact(place, held.cloned())) {
                self.dirty |= self.record.pending.remove(path).is_some();
                continue;
            }
            self.due.insert(path.clone());
        }
        self.places = places;
    }

    /// Returns whether the members are the objects with these indexes, in the same versions.
    fn matches(&self, members: &[Member], numbers: &[usize]) -> bool {
        let same = |(member, number): (&Member, &usize)| {
            let listed = self.listed.get(*number);
            listed.is_some_and(|listed| listed.uid == member.uid && listed.version == member.version)
        };
        members.len() == numbers.len() && members.iter().zip(numbers).all(same)
    }

    fn waits(&self, wait: &Wait) -> bool {
        // A clock that was set back must not prolong a wait.
        let left = wait.until.saturating_sub(self.options.now);
        !self.options.force && (1..=MAX_BACKOFF).contains(&left)
    }

    fn is_intact(&mut self, place: &Place, held: Option<Held>) -> bool {
        let Some(held) = held else { return false };
        match self.effects.inspect(place, held.shape, Some(&held), None) {
            Ok(observed) => {
                verify(held.shape, place.name(), Some(&held), None, &observed, self.rule.overwrite)
                    == Verdict::Same
            }
            Err(_) => false,
        }
    }

    /// Describes the changes without applying them. The caller must discard the record.
    pub fn plan(mut self, bodies: &mut dyn FnMut(usize) -> Option<Value>) -> Vec<String> {
        let tasks = self.tasks(bodies);
        let wait =
            self.closed.as_ref().map(|closed| format!("wait, {}: {}", closed.reason.name(), closed.message));
        let mut plan: Vec<String> = wait.into_iter().collect();
        plan.extend(tasks.iter().map(|(change, desired)| describe(change, desired)));
        let refused = self.record.objects.values().filter(|object| {
            !matches!(object.state, State::InEffect | State::Gone) && !object.message.is_empty()
        });
        plan.extend(
            refused.map(|object| format!("skip {}/{}: {}", object.namespace, object.name, object.message)),
        );
        plan
    }

    /// Applies all changes. Returns the delay in microseconds until the next attempt, if something
    /// failed.
    pub fn apply(mut self, bodies: &mut dyn FnMut(usize) -> Option<Value>) -> Option<i64> {
        let (tasks, mut unfinished) = (self.tasks(bodies), false);
        if tasks.is_empty() {
            let is_due = !self.record.waits.get("").is_some_and(|wait| self.waits(wait));
            if self.record.owes_reload && is_due {
                self.closed = self.effects.closed(false);
                if self.closed.is_none() || planted(Fault::OwedReloadAtOnce) {
                    self.reload_only();
                }
            }
        } else {
            unfinished = self.run_or_wait(tasks);
        }
        self.mark_deleted();
        self.show_pending();
        if !unfinished || self.record.owes_reload {
            self.settle();
        }
        if !self.record.owes_reload {
            self.dirty |= self.record.waits.remove("").is_some();
        }
        let (paths, there) = (&self.places, &self.record.places);
        let waiting = self.record.waits.len();
        let matters = |path: &String| path.is_empty() || paths.contains_key(path) || there.contains_key(path);
        self.record.waits.retain(|path, _| matters(path));
        self.dirty |= waiting != self.record.waits.len();
        self.keep_all();
        match if self.dirty { self.effects.commit(self.record) } else { Ok(()) } {
            Ok(()) => self.effects.prune(self.record),
            // The next pass finds the same changes.
            Err(failure) => self.record.output = failure.message,
        }
        // While the gate is closed, nothing was removed.
        if self.rerun && self.closed.is_none() {
            return Some(0);
        }
        let now = self.options.now;
        let waits = self.record.waits.values().map(|wait| wait.until.saturating_sub(now));
        let next = waits.map(|left| left.clamp(FIRST_BACKOFF / 10, MAX_BACKOFF));
        let closed = self.closed.iter().chain(&self.closed_to_urgent);
        next.chain(closed.map(|closed| closed.poll_after(now))).min()
    }

    /// Returns the required writes and removals.
    fn tasks(&mut self, bodies: &mut dyn FnMut(usize) -> Option<Value>) -> Vec<Task> {
        let mut tasks = self.removals();
        let (mut usage, mut made) = (Usage::default(), BTreeSet::new());
        for (path, held) in &self.record.places {
            made.extend(held.place.parents().take(held.parents as usize));
            if self.places.contains_key(path) && !self.due.contains(path) {
                let directories = usage.new_directories(&held.place, held.shape);
                usage.add(directories, held.files.len() as u64, held.bytes);
            }
        }
        for path in std::mem::take(&mut self.due) {
            let Some((place, numbers)) = self.places.get(&path).cloned() else { continue };
            let desired = match self.desired(&place, &numbers, bodies) {
                Ok(desired) => desired,
                // Another version is on its way to this node.
                Err(NotWritable::Changed) => continue,
                Err(NotWritable::Refused(culprit, why)) => {
                    self.keep_held(&path, &numbers, Some(culprit), &why.to_string());
                    continue;
                }
            };
            let (files, bytes) = (desired.files.len() as u64, desired.bytes());
            let directories = usage.new_directories(&place, self.shape());
            if !usage.has_room(self.rule, directories.len(), files, bytes) {
                let Rule { max_files, max_size, .. } = self.rule;
                let limit = format!("{max_files} files and directories, and {max_size} bytes");
                self.keep_held(&path, &numbers, None, &format!("exceeds the rule's limit of {limit}"));
                continue;
            }
            usage.add(directories, files, bytes);
            tasks.extend(self.task(&path, place, &numbers, desired, &made));
        }
        tasks
    }

    /// Returns the removals of places that are no longer desired.
    fn removals(&mut self) -> Vec<Task> {
        let (mut tasks, shape) = (Vec::new(), self.shape());
        let goes = |(path, held): &(&String, &Held)| match self.places.get(*path) {
            _ if self.record.stuck.contains_key(*path) => false,
            Some(_) => held.shape != shape,
            None => !self.options.keep,
        };
        let gone = self.record.places.iter().filter(goes);
        let gone: Vec<_> = gone.map(|(path, held)| (path.clone(), held.clone())).collect();
        for (path, mut held) in gone {
            // A place that changes its shape is removed first.
            let becomes = self.due.remove(&path);
            let wait = self.record.waits.get(&path);
            if wait.is_some_and(|wait| wait.members == held.members && self.waits(wait)) {
                continue;
            }
            let observed = match self.effects.inspect(&held.place, held.shape, Some(&held), None) {
                Ok(observed) => observed,
                Err(failure) => {
                    let numbers = self.places.get(&path).map(|(_, numbers)| numbers.clone());
                    self.keep_held(&path, &numbers.unwrap_or_default(), None, &failure.message);
                    continue;
                }
            };
            self.rerun |= becomes;
            let verdict = verify(held.shape, held.place.name(), Some(&held), None, &observed, false);
            if let Verdict::Conflict(why) = &verdict {
                self.conflicted(&held.members, why);
                // Files changed by another party stay; the others are removed if they are still as
                // written.
                if held.shape == Shape::File || observed.data != Some(Some(held.stamp)) {
                    self.record.places.remove(&path);
                    self.dirty = true;
                    continue;
                }
            }
            if let (Verdict::Write, Some(there)) =
                (verdict, self.record.places.get_mut(&path).filter(|there| !there.lost))
            {
                // The place is not as written: no version of these objects is in effect.
                there.members.clear();
                held.members.clear();
            }
            let change = Change {
                stamp: self.stamp(),
                place: held.place.clone(),
                shape: held.shape,
                exists: observed.entries.contains_key(held.place.name()),
                makes: false,
                parents: 0,
                old: Some(held),
                new: None,
            };
            tasks.push((change, Desired::default()));
        }
        tasks
    }

    fn shape(&self) -> Shape {
        if self.rule.gather || self.rule.write == Write::Keys { Shape::Directory } else { Shape::File }
    }

    fn stamp(&mut self) -> u64 {
        self.record.stamp += 1;
        self.record.stamp
    }

    fn desired(
        &mut self,
        place: &Place,
        numbers: &[usize],
        bodies: &mut dyn FnMut(usize) -> Option<Value>,
    ) -> Result<Desired, NotWritable> {
        let mut desired = Desired { members: self.members(numbers), ..Desired::default() };
        let held = self.record.places.get(&place.path()).map(|held| held.members.clone()).unwrap_or_default();
        // The removal of an object from a shared directory is not urgent, and neither is a change
        // that no object has asked for.
        let stays = |member: &Member| desired.members.iter().any(|new| new.uid == member.uid);
        let (mut others_wait, mut asks) = (!held.iter().all(stays), false);
        for number in numbers {
            let refused = |why: Refusal| NotWritable::Refused(*number, why);
            let Some(listed) = self.listed.get(*number) else { continue };
            let (is_secret, sealed) = (is_secret(listed), is_sealed(listed));
            if sealed && !self.rule.plain_text_on_disk && !self.effects.is_memory(place, self.shape()) {
                return Err(refused(Refusal::OnDisk(place.base.clone())));
            }
            let object = bodies(*number).ok_or(NotWritable::Changed)?;
            selection::check_body(self.rule, listed, &object).map_err(refused)?;
            let files = contents::files(self.rule, &object, is_secret).map_err(refused)?;
            desired.is_secret |= sealed;
            let is_same = |member: &Member| member.uid == listed.uid && member.version == listed.version;
            if !held.iter().any(is_same) {
                let is_urgent = gate::is_urgent(&object);
                asks |= is_urgent;
                others_wait |= !is_urgent;
            }
            for (name, content) in files {
                if desired.files.insert(name, content).is_some() {
                    return Err(refused(Refusal::SameFile));
                }
            }
        }
        desired.is_urgent = asks && !others_wait;
        Ok(desired)
    }

    /// Returns the write of a place, unless it is as desired or foreign. `made` are the parent
    /// directories that were created for files of the rule.
    fn task(
        &mut self,
        path: &str,
        place: Place,
        numbers: &[usize],
        desired: Desired,
        made: &BTreeSet<String>,
    ) -> Option<Task> {
        let (shape, held) = (self.shape(), self.record.places.get(path).cloned());
        let new = desired.digests(self.effects.key(&place));
        let observed = match self.effects.inspect(&place, shape, held.as_ref(), Some(&desired)) {
            Ok(observed) => observed,
            Err(failure) => {
                self.keep_held(path, numbers, None, &failure.message);
                return None;
            }
        };
        let name = place.name();
        let verdict = verify(shape, name, held.as_ref(), Some(&new), &observed, self.rule.overwrite);
        if let Some(there) = self.record.places.get_mut(path).filter(|there| !there.lost)
            && verify(shape, name, held.as_ref(), None, &observed, false) != Verdict::Same
        {
            // The place is not as written: no version of these objects is in effect.
            there.members.clear();
            self.dirty = true;
        }
        match verdict {
            Verdict::Conflict(why) => {
                self.wait(path, numbers);
                for number in numbers {
                    self.state(*number, State::Conflict, None, &why, false);
                }
                None
            }
            Verdict::Same if held.as_ref().is_some_and(|held| held.rule == self.text) => {
                if let Some(held) = self.record.places.get_mut(path) {
                    held.members = desired.members;
                }
                self.in_effect(path, numbers);
                None
            }
            _ => {
                let held = current_held(held, &place, shape, &observed);
                // A version of a lost record may exist: its stamp must not be used again.
                self.record.stamp = self.record.stamp.max(observed.data.flatten().unwrap_or(0));
                let (stamp, exists) = (self.stamp(), observed.entries.contains_key(name));
                let makes = match &held {
                    Some(held) => held.made,
                    None => shape == Shape::Directory && !observed.directory,
                };
                let missing = observed.missing_parents as usize;
                let ours = |(index, parent): &(usize, String)| *index < missing || made.contains(parent);
                let parents = place.parents().enumerate().take_while(ours).count();
                let parents = u32::try_from(parents).unwrap_or(u32::MAX);
                let change =
                    Change { place, shape, stamp, old: held, exists, makes, parents, new: Some(new) };
                Some((change, desired))
            }
        }
    }

    fn members(&self, numbers: &[usize]) -> Vec<Member> {
        let listed = numbers.iter().filter_map(|number| self.listed.get(*number));
        listed.map(|object| Member { uid: object.uid.clone(), version: object.version.clone() }).collect()
    }

    /// Returns the version of an object whose files are held, are complete, and were read by the
    /// program.
    fn held_version(&self, path: &str, number: usize) -> Option<String> {
        if self.record.owes_reload || self.record.stuck.contains_key(path) {
            return None;
        }
        let listed = self.listed.get(number)?;
        let held = self.record.places.get(path).filter(|held| !held.lost)?;
        held.members.iter().find(|member| member.uid == listed.uid).map(|member| member.version.clone())
    }

    fn in_effect(&mut self, path: &str, numbers: &[usize]) {
        self.record.waits.remove(path);
        self.record.pending.remove(path);
        self.dirty = true;
        for number in numbers {
            if self.record.owes_reload {
                self.state(*number, State::NotInEffect, None, RELOAD_OWED, false);
                continue;
            }
            let version = self.listed.get(*number).map(|listed| listed.version.clone());
            self.state(*number, State::InEffect, version, "", false);
        }
    }

    /// Keeps the held files, because of one object or of all.
    fn keep_held(&mut self, path: &str, numbers: &[usize], culprit: Option<usize>, why: &str) {
        self.wait(path, numbers);
        for number in numbers {
            let version = self.held_version(path, *number);
            match culprit {
                Some(other) if other != *number => {
                    let other = self.listed.get(other).map_or("", |listed| listed.name.as_str());
                    let why = format!("blocked by {other}, which has the same destination");
                    self.state(*number, State::NotInEffect, version, &why, false);
                }
                _ => self.state(*number, State::NotInEffect, version, why, false),
            }
        }
    }

    /// Marks the objects of a place that is in an unknown state.
    fn block(&mut self, path: &str, numbers: &[usize], why: &str) {
        self.dirty |= self.record.pending.remove(path).is_some();
        if !self.record.waits.get(path).is_some_and(|wait| self.waits(wait)) {
            self.wait(path, numbers);
        }
        for number in numbers {
            self.state(*number, State::NotInEffect, None, why, false);
        }
    }

    fn wait(&mut self, path: &str, numbers: &[usize]) {
        let members = self.members(numbers);
        self.wait_for(path, members);
    }

    fn wait_for(&mut self, path: &str, members: Vec<Member>) {
        self.record.pending.remove(path);
        let wait = self.record.waits.entry(path.to_owned()).or_default();
        if wait.members != members || wait.rule != self.text {
            *wait = Wait { members, rule: self.text, ..Wait::default() };
        }
        wait.tries = wait.tries.saturating_add(1);
        let pause = FIRST_BACKOFF.saturating_mul(1 << (wait.tries - 1).min(10)).min(MAX_BACKOFF);
        wait.until = self.options.now.saturating_add(pause);
        self.dirty = true;
    }

    fn reject(&mut self, object: &Listed, why: &Refusal) {
        let status = status_of(object, State::NotInEffect, None, &why.to_string(), false);
        self.set(&object.uid, status);
    }

    fn state(&mut self, number: usize, state: State, version: Option<String>, why: &str, rolled_back: bool) {
        if let Some(object) = self.listed.get(number) {
            self.set(&object.uid, status_of(object, state, version, why, rolled_back));
        }
    }

    /// Marks deleted objects whose files were changed by another party. Objects that move to
    /// another place get their status there.
    fn conflicted(&mut self, members: &[Member], why: &str) {
        let here: BTreeSet<&str> = self.listed.iter().map(|object| object.uid.as_str()).collect();
        for Member { uid, .. } in members.iter().filter(|member| !here.contains(member.uid.as_str())) {
            let Some(before) = self.record.objects.get(uid) else { continue };
            let status =
                Status { state: State::Conflict, version: None, message: tail(why), ..before.clone() };
            self.set(uid, status);
            self.conflicted.push(uid.clone());
        }
    }

    /// Marks objects whose files could not be removed as not in effect, unless they are in effect
    /// elsewhere. `restored` is whether the files are as before: otherwise no version is there.
    fn keep_unremoved(&mut self, change: &Change, restored: bool, why: &str) {
        for member in change.old.iter().flat_map(|held| &held.members) {
            let mut others = self.record.places.values().filter(|held| held.place != change.place);
            if others.any(|held| held.members.contains(member)) {
                continue;
            }
            let before = self.record.objects.get(&member.uid);
            let Some(before) = before.filter(|_| !self.conflicted.contains(&member.uid)) else { continue };
            let wanted = before.version.clone().or_else(|| before.wanted.clone());
            let version = before.version.clone().filter(|_| restored);
            let (state, message) = (State::NotInEffect, tail(why));
            let status = Status { state, version, wanted, message, ..before.clone() };
            self.set(&member.uid, status);
        }
    }

    fn mark_deleted(&mut self) {
        let listed = self.listed.iter().map(|object| object.uid.as_str());
        let there = self.record.places.values().flat_map(|held| &held.members);
        let here: BTreeSet<&str> = listed.chain(there.map(|member| member.uid.as_str())).collect();
        let gone = self.record.objects.iter();
        let gone = gone.filter(|(uid, status)| status.state != State::Gone && !here.contains(uid.as_str()));
        for (uid, status) in gone.map(|(uid, status)| (uid.clone(), status.clone())).collect::<Vec<_>>() {
            // A conflict stays visible.
            let conflicted = status.state == State::Conflict;
            let message = if conflicted { status.message.clone() } else { String::new() };
            let (state, version, wanted, rolled_back) = (State::Gone, None, None, false);
            self.set(&uid, Status { state, version, wanted, message, rolled_back, ..status });
        }
    }

    fn set(&mut self, uid: &str, status: Status) {
        self.dirty |= self.record.set(uid, status, self.seq, self.options.now);
    }

    /// Withdraws the versions in effect while a reload is owed. Once the program has read its
    /// files, objects whose current versions are in place are in effect.
    fn settle(&mut self) {
        if self.record.owes_reload {
            self.dirty |= self.record.withhold(self.seq, self.options.now);
            return;
        }
        let (listed, places) = (self.listed, std::mem::take(&mut self.places));
        for (path, (_, numbers)) in &places {
            let is_current = !self.record.waits.contains_key(path)
                && !self.record.stuck.contains_key(path)
                && !self.record.pending.contains_key(path)
                && self.record.places.get(path).is_some_and(|held| self.is_made(held, numbers));
            for number in numbers {
                let Some(object) = listed.get(*number) else { continue };
                let status = self.record.objects.get(&object.uid);
                let unsettled =
                    |status: &&Status| matches!(status.state, State::NotInEffect | State::Waiting);
                let Some(status) = status.filter(unsettled).cloned() else {
                    continue;
                };
                if is_current {
                    self.state(*number, State::InEffect, Some(object.version.clone()), "", false);
                } else {
                    let version = self.held_version(path, *number);
                    self.set(&object.uid, Status { version, ..status });
                }
            }
        }
        self.places = places;
    }

    /// Returns whether held files are those of the objects with these indexes, by the current rule.
    fn is_made(&self, held: &Held, numbers: &[usize]) -> bool {
        !held.lost && held.rule == self.text && self.matches(&held.members, numbers)
    }
}

/// Returns the held version of a place: the recorded one, unless another version of edgesync
/// exists.
fn current_held(held: Option<Held>, place: &Place, shape: Shape, observed: &Observed) -> Option<Held> {
    let Some(stamp) = observed.data.flatten() else { return held };
    if held.as_ref().is_some_and(|held| held.stamp == stamp) {
        return held;
    }
    let (made, parents) = held.map_or((false, 0), |held| (held.made, held.parents));
    let (place, mut files) = (place.clone(), observed.inside.clone());
    // No file has this digest: what is not read stays the file of another party.
    files.extend(observed.foreign.iter().map(|name| (name.clone(), Digest::default())));
    let (sizes, bytes, members, rule) = (Vec::new(), 0, Vec::new(), Digest::default());
    let (kept, lost) = (None, false);
    Some(Held { place, shape, stamp, made, parents, files, sizes, bytes, members, rule, kept, lost })
}

fn is_secret(object: &Listed) -> bool {
    object.kind == "Secret" && object.api_version == "v1"
}

fn is_sealed(object: &Listed) -> bool {
    object.sealed || is_secret(object)
}

fn status_of(object: &Listed, state: State, version: Option<String>, why: &str, rolled_back: bool) -> Status {
    Status {
        api_version: object.api_version.clone(),
        kind: object.kind.clone(),
        plural: object.plural.clone(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        sealed: is_sealed(object),
        version,
        wanted: Some(object.version.clone()),
        state,
        message: tail(why),
        rolled_back,
        ..Status::default()
    }
}
