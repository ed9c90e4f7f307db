//! Simulated device with faults: power cuts after each step, full disks, files changed by others,
//! programs that reject their files. Invariants: a reader never sees a mixture of versions; finally
//! files equal the objects, or the last accepted version; objects reported as in effect are.

mod failed;
mod fuzz;
mod listed;
mod stuck;
mod waiting;
mod windows;

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::contents::Desired;
use super::fault::{Fault, planted};
use super::list;
use super::pass::{Options, Pass};
use super::record::{Change, Digest, Held, Intent, Place, Record, Shape, State};
use super::rule::{Reload, Rule, Write};
use super::steps::recover;
use super::template::Template;
use super::wire::Listed;
use super::{Closed, Effects, Entry, Failure, Observed};

type Files = BTreeMap<String, Vec<u8>>;

/// Content written by another party.
const FOREIGN: &[u8] = b"foreign";
/// Contents that the check rejects, and that the program rejects on reload.
const INVALID: &[u8] = b"unsound";
const REJECTED: &[u8] = b"unloved";

/// State of a path on the simulated disk.
#[derive(Clone, Debug, Default, PartialEq)]
struct PathState {
    live: Option<(u64, Files)>,
    staged: BTreeMap<u64, Files>,
    /// Replaced files, by the stamp of the change.
    kept: BTreeMap<u64, Option<(u64, Files)>>,
}

/// State that survives a power cut.
#[derive(Clone, Debug, Default)]
struct World {
    paths: BTreeMap<String, PathState>,
    record: String,
    intent: Option<String>,
    /// Files that the program has read.
    read: Option<BTreeMap<String, Files>>,
    /// Contents that objects have had, by path: those that a reader may see.
    desired: BTreeMap<String, Vec<Files>>,
    /// The agent's knowledge of the last list: its checksum and objects.
    listed: Option<(u64, Vec<Listed>)>,
    /// Copies of files that outlive a reboot, by stamp.
    copies: BTreeMap<u64, Files>,
    /// Reloads so far.
    reloads: u64,
    /// Whether a reboot has emptied the memory, and no pass was complete since.
    emptied: bool,
    /// Whether records cannot be written.
    refuses_records: bool,
    /// The path whose files cannot be copied.
    refused_copy: Option<String>,
    /// Number of the last status.
    seq: u64,
}

/// Whether changes may take effect: as the device judges, and as the test knows.
struct Permission<'a> {
    judge: &'a dyn Fn(bool) -> Option<Closed>,
    /// No window is open, or the clock cannot tell.
    outside: bool,
    /// A hold is in force.
    held: bool,
}

/// Permission at any time.
const ALWAYS: Permission<'static> = Permission { judge: &|_| None, outside: false, held: false };
/// Begin of contents of objects that ask for their change outside of windows.
const URGENT: &[u8] = b"urgent";

/// Effects on the model. After the power cut all of them fail.
struct Model<'w> {
    world: &'w mut World,
    /// Steps until the power cut.
    left: &'w Cell<Option<u32>>,
    full: bool,
    broken: bool,
    /// Path of a place that cannot be rolled back.
    stuck: Option<String>,
    shape: Shape,
    permission: &'w Permission<'w>,
    /// Whether each change that was swapped in this transaction is urgent.
    swapped: Vec<bool>,
}

impl Model<'_> {
    fn step(&self) -> Result<(), Failure> {
        match self.left.get() {
            Some(0) => Err(Failure::new("no power")),
            Some(left) => {
                self.left.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn check_space(&self) -> Result<(), Failure> {
        if self.full { Err(no_space()) } else { Ok(()) }
    }

    fn path_state(&mut self, change: &Change) -> &mut PathState {
        self.world.paths.entry(change.place.path()).or_default()
    }

    /// Asserts that files are replaced and programs reloaded only when changes may take effect.
    fn check_permission(&self, what: &str) {
        let Permission { outside, held, .. } = *self.permission;
        assert!(!held, "{what} under a hold");
        let is_urgent = !self.swapped.is_empty() && self.swapped.iter().all(|urgent| *urgent);
        assert!(!outside || is_urgent, "{what} outside of windows");
    }

    fn check_readers(&self) {
        for (path, state) in &self.world.paths {
            let Some((_, files)) = &state.live else { continue };
            // Except foreign content.
            let same = |(name, content): (&String, &Vec<u8>), whole: &Files| {
                content == FOREIGN || whole.get(name) == Some(content)
            };
            let is_foreign = files.values().all(|content| content == FOREIGN);
            let is_part =
                |whole: &Files| whole.len() == files.len() && files.iter().all(|file| same(file, whole));
            let is_whole = self.world.desired.get(path).is_some_and(|all| all.iter().any(is_part));
            assert!(is_foreign || is_whole, "a reader of {path} sees {files:?}");
        }
    }
}

const KEY: (u64, u64) = (3, 4);

fn no_space() -> Failure {
    Failure::new("no space left on device")
}

impl Effects for Model<'_> {
    fn inspect(
        &mut self,
        place: &Place,
        shape: Shape,
        _: Option<&Held>,
        _: Option<&Desired>,
    ) -> Result<Observed, Failure> {
        let Some(state) = self.world.paths.get(&place.path()) else { return Ok(Observed::default()) };
        let mut observed = Observed { directory: true, ..Observed::default() };
        let Some((stamp, files)) = &state.live else { return Ok(observed) };
        for (name, content) in files {
            let digest = Digest::of(KEY, content);
            match shape {
                Shape::File => drop(observed.entries.insert(place.below.clone(), Entry::File(digest))),
                Shape::Directory => {
                    observed.data = Some(Some(*stamp));
                    observed.inside.insert(name.clone(), digest);
                    observed.entries.insert(name.clone(), Entry::Link);
                }
            }
        }
        if shape == Shape::Directory {
            observed.data = Some(Some(*stamp));
        }
        Ok(observed)
    }

    fn key(&self, _: &Place) -> (u64, u64) {
        KEY
    }

    fn is_memory(&mut self, _: &Place, _: Shape) -> bool {
        true
    }

    fn intend(&mut self, intent: &Intent) -> Result<(), Failure> {
        self.step()?;
        self.check_space()?;
        self.swapped.clear();
        self.world.intent = Some(serde_json::to_string(intent).unwrap());
        Ok(())
    }

    fn stage(&mut self, change: &Change, desired: &Desired) -> Result<(), Failure> {
        let torn = self.step().and_then(|()| self.check_space());
        let mut files = desired.files.clone();
        if torn.is_err() {
            files.pop_first();
        }
        if self.left.get() != Some(0) || torn.is_err() {
            self.path_state(change).staged.insert(change.stamp, files);
        }
        torn
    }

    fn check(&mut self, changes: &[Change]) -> Result<(), Failure> {
        self.step()?;
        let mut staged = changes
            .iter()
            .filter_map(|change| self.world.paths.get(&change.place.path())?.staged.get(&change.stamp));
        let is_sound = staged.all(|files| files.values().all(|content| content != INVALID));
        if is_sound { Ok(()) } else { Err(Failure::new("it is unsound")) }
    }

    fn swap(&mut self, change: &Change) -> Result<(), Failure> {
        self.step()?;
        let staged = self.path_state(change).staged.get(&change.stamp).cloned();
        let urgent = staged.is_some_and(|files| files.values().all(|content| content.starts_with(URGENT)));
        self.swapped.push(urgent);
        self.check_permission("swap");
        let (shape, state) = (self.shape, self.path_state(change));
        let before = state.live.clone();
        state.live = match &change.new {
            Some(_) => Some((change.stamp, state.staged.remove(&change.stamp).expect("it was staged"))),
            // Foreign changes stay.
            None => before.clone().and_then(|(stamp, mut files)| {
                let old = change.old.as_ref().map(|held| held.files.clone()).unwrap_or_default();
                files.retain(|name, content| match shape {
                    Shape::Directory => old.get(name) != Some(&Digest::of(KEY, content)),
                    Shape::File => false,
                });
                (!files.is_empty()).then_some((stamp, files))
            }),
        };
        state.kept.insert(change.stamp, before);
        self.check_readers();
        Ok(())
    }

    fn restore(&mut self, change: &Change) -> Result<(), Failure> {
        self.step()?;
        if self.stuck.as_ref() == Some(&change.place.path()) {
            return Err(Failure::new("it cannot be replaced"));
        }
        let state = self.path_state(change);
        if let Some(before) = state.kept.remove(&change.stamp) {
            state.live = before;
        }
        self.check_readers();
        Ok(())
    }

    fn reload(&mut self) -> Result<(), Failure> {
        self.step()?;
        self.world.reloads += 1;
        self.check_permission("reload");
        let live: BTreeMap<String, Files> = self.world.live();
        if self.broken || live.values().any(|files| files.values().any(|content| content == REJECTED)) {
            return Err(Failure::new("it does not like that"));
        }
        self.world.read = Some(live);
        Ok(())
    }

    fn commit(&mut self, record: &Record) -> Result<(), Failure> {
        self.step()?;
        self.check_space()?;
        if self.world.refuses_records {
            return Err(no_space());
        }
        self.world.record = serde_json::to_string(record).unwrap();
        Ok(())
    }

    fn discard(&mut self, change: &Change, keep_new: bool) -> Result<(), Failure> {
        self.step()?;
        let emptied = self.world.emptied;
        let state = self.path_state(change);
        state.staged.remove(&change.stamp);
        state.kept.remove(&change.stamp);
        let is_new = state.live.as_ref().is_some_and(|(stamp, _)| *stamp == change.stamp);
        let is_right = is_new == (keep_new && change.new.is_some()) || (emptied && state.live.is_none());
        assert!(is_right, "what is there is not what stays: {change:?}");
        Ok(())
    }

    fn forget(&mut self) -> Result<(), Failure> {
        self.step()?;
        self.world.intent = None;
        Ok(())
    }

    fn closed(&mut self, override_windows: bool) -> Option<Closed> {
        (self.permission.judge)(override_windows)
    }

    fn keep(&mut self, held: &Held, files: Option<&Files>, _: bool) -> Result<(), Failure> {
        self.step()?;
        self.check_space()?;
        if self.world.refused_copy == Some(held.place.path()) {
            return Err(no_space());
        }
        let live = self.world.paths.get(&held.place.path()).and_then(|state| state.live.clone());
        let (stamp, live) = live.ok_or_else(|| Failure::new("nothing to keep"))?;
        assert_eq!(stamp, held.stamp);
        assert!(files.is_none_or(|files| *files == live));
        self.world.copies.insert(held.kept.unwrap(), live);
        Ok(())
    }

    fn revive(&mut self, held: &Held, stamp: u64) -> Result<BTreeMap<String, Digest>, Failure> {
        self.step()?;
        let copy = held.kept.and_then(|kept| self.world.copies.get(&kept));
        let files = copy.ok_or_else(|| Failure::new("no copy"))?.clone();
        let digests = files.iter().map(|(name, content)| (name.clone(), Digest::of(KEY, content)));
        let digests = digests.collect();
        self.world.paths.entry(held.place.path()).or_default().live = Some((stamp, files));
        Ok(digests)
    }

    fn prune(&mut self, record: &Record) {
        if self.step().is_err() {
            return;
        }
        let newest = record.places.values().filter_map(|held| held.kept).max();
        let is_named = |stamp: &u64| record.places.values().any(|held| held.kept == Some(*stamp));
        let planted = planted(Fault::CopyRemovedEarly);
        self.world.copies.retain(|stamp, _| is_named(stamp) && (!planted || Some(*stamp) == newest));
    }
}

impl World {
    fn live(&self) -> BTreeMap<String, Files> {
        let live = |(path, state): (&String, &PathState)| Some((path.clone(), state.live.clone()?.1));
        self.paths.iter().filter_map(live).collect()
    }

    fn record(&self) -> Record {
        if self.record.is_empty() { Record::default() } else { serde_json::from_str(&self.record).unwrap() }
    }

    /// Runs a pass, after recovery from a crash in the previous one.
    fn pass(&mut self, rule: &Rule, objects: &[Object], faults: &Faults, now: i64) -> Record {
        self.pass_with(rule, objects, faults, now, &ALWAYS)
    }

    /// The same, with a gate.
    fn pass_with(
        &mut self,
        rule: &Rule,
        objects: &[Object],
        faults: &Faults,
        now: i64,
        permission: &Permission<'_>,
    ) -> Record {
        let shape = if rule.write == Write::Keys { Shape::Directory } else { Shape::File };
        let listed: Vec<Listed> = objects.iter().map(Object::listed).collect();
        for object in objects {
            let files = super::contents::files(rule, &object.body(), false).unwrap();
            let path = rule.to.place("n", &object.name).unwrap().path();
            let all = self.desired.entry(path).or_default();
            if !all.contains(&files) {
                all.push(files);
            }
        }
        let left = Cell::new(faults.cut);
        let mut record = self.record();
        let listed = self.incremental(&record, listed);
        let begun: Option<Intent> = self.intent.as_ref().map(|text| serde_json::from_str(text).unwrap());
        let stuck = faults.stuck.map(|number| rule.to.place("n", &format!("o{number}")).unwrap().path());
        let mut seq = record.objects.values().map(|status| status.seq).max().unwrap_or(0);
        let (full, broken) = (faults.full, faults.broken);
        let swapped = Vec::new();
        let mut model = Model { world: self, left: &left, full, broken, stuck, shape, permission, swapped };
        let looks = begun.is_some();
        if !recover(&mut model, rule, &mut record, begun.as_ref(), faults.look || looks) {
            return record;
        }
        let options = Options { look: faults.look || looks, force: faults.force, keep: faults.keep, now };
        assert_eq!(model.shape, shape);
        let pass = Pass::begin(&mut model, rule, &mut record, &mut seq, &listed, options);
        let needed = pass.needed();
        pass.apply(&mut |number| {
            assert!(needed.contains(&number));
            let object = objects.iter().find(|object| object.listed() == listed[number]);
            object.map(Object::body)
        });
        self.seq = seq;
        let number = list::number(&listed);
        // Without power the agent gets no answer, and its knowledge stays.
        if left.get() != Some(0) && list::number(&list::last(&record)) == number {
            self.listed = Some((number, listed));
        }
        record
    }

    /// Builds the list incrementally from the record; asserts that it equals the full list.
    fn incremental(&self, record: &Record, listed: Vec<Listed>) -> Vec<Listed> {
        let Some((number, before)) = &self.listed else { return listed };
        let gone = before.iter().filter(|old| !listed.iter().any(|new| new.uid == old.uid));
        let gone = gone.map(|old| Listed { uid: old.uid.clone(), ..Listed::default() });
        let changed = listed.iter().filter(|new| !before.contains(new)).cloned().chain(gone).collect();
        let Some(mut again) = list::since(record, *number, changed) else { return listed };
        again.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(again, listed);
        again
    }

    /// Returns the files written by another party.
    fn foreign(&self) -> Vec<(String, String)> {
        let live = self.live();
        let files = live.iter().flat_map(|(path, files)| files.iter().map(move |file| (path, file)));
        let foreign = files.filter(|(_, (_, content))| *content == FOREIGN);
        foreign.map(|(path, (name, _))| (path.clone(), name.clone())).collect()
    }
}

#[derive(Clone, Debug)]
struct Object {
    name: String,
    version: u64,
    content: Vec<u8>,
}

impl Object {
    fn listed(&self) -> Listed {
        Listed {
            uid: format!("uid-{}", self.name),
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "n".into(),
            name: self.name.clone(),
            version: self.version.to_string(),
            ..Listed::default()
        }
    }

    fn body(&self) -> Value {
        let text = String::from_utf8(self.content.clone()).unwrap();
        let urgency = if self.content.starts_with(URGENT) { "override-window" } else { "none" };
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "namespace": "n", "name": self.name, "annotations": { "edgesync.io/urgency": urgency },
            },
            "data": { "one": text, "two": text },
        })
    }
}

#[derive(Clone, Debug, Default)]
struct Faults {
    cut: Option<u32>,
    full: bool,
    broken: bool,
    look: bool,
    force: bool,
    keep: bool,
    /// Object whose place cannot be rolled back.
    stuck: Option<usize>,
}

/// An input of the simulation.
#[derive(Clone, Debug)]
enum Event {
    /// An object gets new content: valid or not.
    Put(usize, u8),
    Remove(usize),
    /// Another party changes one or all files of an object.
    Tamper(usize, bool),
    /// The memory with the files is lost.
    Lose(usize),
    Pass(Faults),
    /// The program restarts and reads its files.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let object = 0usize..4;
    let faults = (
        proptest::option::of(0u32..24),
        proptest::bool::weighted(0.15),
        proptest::bool::weighted(0.15),
        any::<bool>(),
        any::<bool>(),
        proptest::option::weighted(0.2, 0usize..4),
    )
        .prop_map(|(cut, full, broken, look, force, stuck)| Faults {
            cut,
            full,
            broken,
            look,
            force,
            keep: false,
            stuck,
        });
    prop_oneof![
        6 => (object.clone(), 0u8..8).prop_map(|(object, content)| Event::Put(object, content)),
        1 => object.clone().prop_map(Event::Remove),
        1 => (object.clone(), any::<bool>()).prop_map(|(object, all)| Event::Tamper(object, all)),
        1 => object.prop_map(Event::Lose),
        8 => faults.prop_map(Event::Pass),
        1 => Just(Event::Restart),
    ]
}

fn rule_of(write: Write, check: bool, reload: bool) -> Rule {
    Rule {
        name: "r".into(),
        to: Template::parse("/b/{metadata.name}").unwrap(),
        write,
        check: if check { vec!["/check".into()] } else { Vec::new() },
        reload: if reload { Reload::Run(vec!["/reload".into()]) } else { Reload::Nothing },
        text: "one".into(),
        ..Rule::default()
    }
}

/// Asserts that objects reported as in effect are, and that the program has read them: those in the
/// desired version, and those in an older one. While a reload is owed there are none.
fn check_claims(world: &World, rule: &Rule, record: &Record, history: &BTreeMap<(String, String), Object>) {
    for (uid, status) in &record.objects {
        assert!(status.state != State::InEffect || status.version.is_some(), "{uid}: {status:?}");
        assert!(!record.owes_reload || status.version.is_none(), "a reload is owed, {uid}: {status:?}");
        let Some(version) = &status.version else { continue };
        let Some(object) = history.get(&(uid.clone(), version.clone())) else { panic!("{uid} {version}") };
        let path = rule.to.place("n", &object.name).unwrap().path();
        let files = super::contents::files(rule, &object.body(), false).unwrap();
        let there = world.live().remove(&path);
        assert_eq!(
            there.as_ref(),
            Some(&files),
            "{uid} is reported in effect in version {version}: {status:?}"
        );
        if rule.reloads() {
            let read = world.read.as_ref().and_then(|read| read.get(&path));
            assert_eq!(read, Some(&files), "the program has not read {uid} in version {version}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn readers_see_whole_versions_and_statuses_are_true(
        events in proptest::collection::vec(event(), 1..40), single: bool, check: bool, reload: bool
    ) {
        let write = if single { Write::Field("/data/one".into()) } else { Write::Keys };
        let rule = rule_of(write, check, reload);
        let mut world = World::default();
        let mut objects: BTreeMap<usize, Object> = BTreeMap::new();
        let mut history = BTreeMap::new();
        let (mut version, mut now, mut tampered) = (0, 0, false);
        for event in events {
            now += 1_000_000;
            match event {
                Event::Put(number, content) => {
                    version += 1;
                    let content = match content {
                        0 => INVALID.to_vec(),
                        1 => REJECTED.to_vec(),
                        other => format!("good {other}").into_bytes(),
                    };
                    let object = Object { name: format!("o{number}"), version, content };
                    history.insert((object.listed().uid, version.to_string()), object.clone());
                    objects.insert(number, object);
                }
                Event::Remove(number) => drop(objects.remove(&number)),
                Event::Tamper(number, all) => {
                    let path = rule.to.place("n", &format!("o{number}")).unwrap().path();
                    // During a transaction it would be ambiguous whose files are rolled back.
                    let quiet = world.intent.is_none() && world.record().stuck.is_empty();
                    if let Some(live) = world.paths.get_mut(&path).and_then(|state| state.live.as_mut()).filter(|_| quiet) {
                        let files = live.1.values_mut().take(if all { usize::MAX } else { 1 });
                        files.for_each(|content| *content = FOREIGN.to_vec());
                        tampered = true;
                    }
                }
                Event::Lose(number) => {
                    let path = rule.to.place("n", &format!("o{number}")).unwrap().path();
                    if world.intent.is_none() && world.record().stuck.is_empty() {
                        world.paths.remove(&path);
                        tampered = true;
                    }
                }
                Event::Restart => world.read = Some(world.live()),
                Event::Pass(mut faults) => {
                    // Only an inspection detects foreign changes.
                    faults.look |= tampered;
                    faults.force |= tampered;
                    let current: Vec<Object> = objects.values().cloned().collect();
                    let foreign = world.foreign();
                    let record = world.pass(&rule, &current, &faults, now);
                    for file in foreign {
                        prop_assert!(world.foreign().contains(&file), "{:?} is foreign", file);
                    }
                    if faults.cut.is_none() && !faults.full && world.intent.is_none() {
                        // A skipped stamp may be assigned again.
                        let recorded = Record { stamp: record.stamp, ..world.record() };
                        prop_assert_eq!(&record, &recorded, "what is known is noted");
                        tampered = false;
                        check_claims(&world, &rule, &record, &history);
                    }
                }
            }
        }
        // Final phase: no power cuts, no foreign changes, valid objects.
        for object in objects.values_mut() {
            version += 1;
            object.version = version;
            object.content = format!("good at last {version}").into_bytes();
            history.insert((object.listed().uid, version.to_string()), object.clone());
        }
        let trusting = Rule { overwrite: true, ..rule.clone() };
        let current: Vec<Object> = objects.values().cloned().collect();
        let calm = Faults { look: true, force: true, ..Faults::default() };
        world.pass(&trusting, &current, &calm, now + 1);
        let record = world.pass(&trusting, &current, &calm, now + 2);
        prop_assert!(world.intent.is_none());
        check_claims(&world, &trusting, &record, &history);
        for object in &current {
            let status = &record.objects[&object.listed().uid];
            prop_assert_eq!(status.state, State::InEffect, "{:?}", status);
            prop_assert_eq!(status.version.clone(), Some(object.version.to_string()));
        }
        prop_assert_eq!(record.places.len(), current.len());
        let ours = |files: &Files| files.values().all(|content| content != FOREIGN);
        prop_assert_eq!(world.live().values().filter(|files| ours(files)).count(), current.len());
        for state in world.paths.values() {
            prop_assert!(state.staged.is_empty() && state.kept.is_empty(), "{:?}", state);
        }
        // Without changes nothing is done.
        let left = Cell::new(Some(0));
        let listed: Vec<Listed> = current.iter().map(Object::listed).collect();
        let (mut record, mut seq) = (record, u64::MAX / 2);
        let shape = if single { Shape::File } else { Shape::Directory };
        let (full, broken, stuck) = (false, false, None);
        let (permission, swapped) = (&ALWAYS, Vec::new());
        let mut model = Model { world: &mut world, left: &left, full, broken, stuck, shape, permission, swapped };
        let options = Options { look: true, now, ..Options::default() };
        let pass = Pass::begin(&mut model, &trusting, &mut record, &mut seq, &listed, options);
        prop_assert!(pass.needed().is_empty());
        prop_assert_eq!(pass.apply(&mut |_| None), None);
        prop_assert_eq!(seq, u64::MAX / 2);
    }
}

#[test]
fn bad_object_among_a_thousand_blocks_no_other() {
    let rule = rule_of(Write::Keys, false, true);
    let object = |number: u64, version, content: &[u8]| Object {
        name: format!("o{number:04}"),
        version,
        content: content.to_vec(),
    };
    let mut objects: Vec<Object> = (0..1000).map(|number| object(number, 1, b"good")).collect();
    let mut world = World::default();
    let record = world.pass(&rule, &objects, &Faults::default(), 1);
    assert_eq!((record.reloads, record.counts()), (1, [1000, 0, 0]));
    for object in &mut objects {
        object.version = 2;
        object.content = b"better".to_vec();
    }
    objects[617].content = REJECTED.to_vec();
    let record = world.pass(&rule, &objects, &Faults::default(), 2);
    assert_eq!(record.counts(), [999, 1, 0]);
    assert!(record.reloads < 20, "{}", record.reloads);
    let status = &record.objects["uid-o0617"];
    assert_eq!((status.version.as_deref(), status.wanted.as_deref()), (Some("1"), Some("2")));
    assert!(status.rolled_back && status.message.contains("does not like"), "{status:?}");
}

#[test]
fn place_that_cannot_be_rolled_back_blocks_no_other() {
    let rule = rule_of(Write::Keys, false, true);
    let object = |name: &str, version, content: &[u8]| Object {
        name: name.to_owned(),
        version,
        content: content.to_vec(),
    };
    let mut world = World::default();
    world.pass(&rule, &[object("o0", 1, b"good"), object("o1", 1, b"good")], &Faults::default(), 1);
    let objects = [object("o0", 2, REJECTED), object("o1", 2, b"better")];
    let stuck = Faults { stuck: Some(0), look: true, force: true, ..Faults::default() };
    for now in 2..5 {
        let record = world.pass(&rule, &objects, &stuck, now);
        assert!(record.stuck.contains_key("/b/o0") && world.intent.is_none());
        let status = &record.objects["uid-o0"];
        assert_eq!((status.state, status.version.as_deref()), (State::NotInEffect, None));
    }
    // The program rejects what it finds there, so no other version comes into effect. Once it is
    // removed by hand, the other object does.
    world.paths.get_mut("/b/o0").unwrap().live = None;
    let record = world.pass(&rule, &objects, &stuck, 5);
    assert_eq!(record.objects["uid-o1"].version.as_deref(), Some("2"));
    let objects = [object("o0", 3, b"good again"), objects[1].clone()];
    let calm = Faults { look: true, force: true, ..Faults::default() };
    let record = world.pass(&rule, &objects, &calm, 6);
    assert!(record.stuck.is_empty());
    assert_eq!(record.counts(), [2, 0, 0]);
}

#[test]
fn directories_count_as_files() {
    let rule = Rule { max_files: 10, ..rule_of(Write::Keys, false, false) };
    let to = Template::parse("/b/{metadata.namespace}/{metadata.name}").unwrap();
    let objects: Vec<Object> = (0..4)
        .map(|number| Object { name: format!("o{number}"), version: 1, content: b"good".to_vec() })
        .collect();
    // Three objects have two files and a directory each, in one directory.
    let record = World::default().pass(&Rule { to, ..rule }, &objects, &Faults::default(), 1);
    assert_eq!(record.counts(), [3, 1, 0]);
    assert!(record.objects["uid-o3"].message.contains("10 files and directories"));
}

#[test]
fn bytes_of_replaced_and_removed_files_do_not_count_against_the_limit() {
    // Each object has two files of four bytes.
    let rule = Rule { max_size: 16, ..rule_of(Write::Keys, false, false) };
    let object = |name: &str, version| Object { name: name.into(), version, content: b"good".to_vec() };
    let mut world = World::default();
    let objects = [object("a", 1), object("b", 1), object("c", 1)];
    let record = world.pass(&rule, &objects, &Faults::default(), 1);
    assert_eq!((record.counts(), record.objects["uid-c"].state), ([2, 1, 0], State::NotInEffect));
    let retry = Faults { force: true, ..Faults::default() };
    let mut objects = vec![object("a", 2), object("c", 1)];
    assert_eq!(world.pass(&rule, &objects, &retry, 2).counts(), [2, 0, 0]);
    objects.push(object("d", 1));
    let record = world.pass(&rule, &objects, &retry, 3);
    assert_eq!((record.counts(), record.objects["uid-d"].state), ([2, 1, 0], State::NotInEffect));
}

#[test]
fn files_stay_until_a_lost_database_is_filled() {
    let rule = rule_of(Write::Keys, false, true);
    let objects = [Object { name: "a".into(), version: 1, content: b"good".to_vec() }];
    let mut world = World::default();
    world.pass(&rule, &objects, &Faults::default(), 1);
    let lost = Faults { look: true, keep: true, ..Faults::default() };
    let record = world.pass(&rule, &[], &lost, 2);
    assert_eq!((record.counts(), record.reloads, world.live().len()), ([1, 0, 0], 1, 1));
    let record = world.pass(&rule, &[], &Faults::default(), 3);
    assert_eq!((record.counts(), world.live().len()), ([0, 0, 0], 0));
}

#[test]
fn revert_while_a_reload_is_owed_is_not_in_effect() {
    let rule = rule_of(Write::Keys, false, true);
    let object = |name: &str, version, content: &[u8]| Object {
        name: name.to_owned(),
        version,
        content: content.to_vec(),
    };
    let mut objects = [object("a", 1, b"good"), object("b", 1, b"good")];
    let mut world = World::default();
    assert_eq!(world.pass(&rule, &objects, &Faults::default(), 1).counts(), [2, 0, 0]);
    // The program reads neither the new files nor the old ones.
    let broken = Faults { broken: true, force: true, ..Faults::default() };
    objects[0] = object("a", 2, b"better");
    let record = world.pass(&rule, &objects, &broken, 2);
    assert_eq!((record.owes_reload, record.counts()), (true, [0, 2, 0]));
    objects[0] = object("a", 3, b"good");
    let record = world.pass(&rule, &objects, &broken, 3);
    assert_eq!((record.owes_reload, record.counts()), (true, [0, 2, 0]));
    assert!(record.objects.values().all(|status| status.version.is_none()), "{:?}", record.objects);
    let seq = record.objects["uid-b"].seq;
    let record = world.pass(&rule, &objects, &broken, 4);
    assert_eq!(record.objects["uid-b"].seq, seq, "nothing has changed");
    let record = world.pass(&rule, &objects, &Faults { force: true, ..Faults::default() }, 5);
    assert_eq!((record.owes_reload, record.counts()), (false, [2, 0, 0]));
    assert_eq!(record.objects["uid-a"].version.as_deref(), Some("3"));
    assert_eq!(record, world.record());
}

#[test]
fn foreign_change_is_kept_and_reported() {
    let rule = rule_of(Write::Keys, false, false);
    let objects = [Object { name: "a".into(), version: 1, content: b"good".to_vec() }];
    let mut world = World::default();
    world.pass(&rule, &objects, &Faults::default(), 1);
    let tamper = |world: &mut World| {
        let live = world.paths.get_mut("/b/a").unwrap().live.as_mut().unwrap();
        live.1.values_mut().for_each(|content| *content = FOREIGN.to_vec());
    };
    tamper(&mut world);
    let look = Faults { look: true, ..Faults::default() };
    let record = world.pass(&rule, &objects, &look, 2);
    assert_eq!((record.counts(), record.objects["uid-a"].version.as_deref()), ([0, 0, 1], None));
    let trusting = Rule { overwrite: true, ..rule.clone() };
    let record = world.pass(&trusting, &objects, &Faults { force: true, ..look.clone() }, 3);
    assert_eq!(record.counts(), [1, 0, 0]);
    // A deleted object's files are removed, unless they were changed by another party.
    tamper(&mut world);
    let record = world.pass(&rule, &[], &look, 4);
    assert!(record.places.is_empty() && world.paths["/b/a"].live.is_some());
    assert_eq!(record.objects["uid-a"].state, State::Gone);
}
