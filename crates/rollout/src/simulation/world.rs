//! The world: nodes, the source of objects, the stored status and bodies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use edgesync_object::random::split_mix_64;
use edgesync_object::{Labels, NodeName, ObjectRef, ResourceVersion};
use jiff::{SignedDuration, Timestamp};

use super::leader::Leader;
use super::oracle::Oracle;
use crate::engine::{Command, Sets};
use crate::observed::{Answer, Link, NodeFacts, Observed, Planned, WaveCounts};
use crate::revision::{Digest, Entry, Selection, Set, Uid};
use crate::spec::{MaxFailures, MinSuccess, OnChange, OnFailure, Rollout};
use crate::status::{PauseReason, Status};
use crate::waves::{Wave, Waves};

pub(super) type Key = (u64, Digest);

pub(super) struct Random(u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        split_mix_64(&mut self.0) % n.max(1)
    }

    pub(super) fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap()
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())].clone()
    }
}

/// How a node behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    /// An older program, which cannot report what is in effect.
    Old,
    /// Connected, and never answers.
    Silent,
    /// Comes and goes, and never answers.
    Flapping,
    /// Never connects again.
    Gone,
    /// Waits for a window for hours.
    Windowed,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) name: NodeName,
    pub(super) labels: Labels,
    pub(super) kind: Kind,
    pub(super) assigned: Option<(Key, Timestamp)>,
    pub(super) first_connected: Option<Timestamp>,
    pub(super) link: Link,
    /// The revision that it holds, and since when.
    pub(super) held: Option<(Key, Timestamp)>,
    /// When it can hold the assigned one, and when that is in effect.
    pub(super) holds_at: Timestamp,
    pub(super) effect_at: Timestamp,
}

pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) random: Random,
    pub(super) trace: bool,
    pub(super) rollout: Rollout,
    /// Number of changes of the rule: the other half of the precondition of a write.
    pub(super) generation: u64,
    pub(super) status: Status,
    pub(super) bodies: BTreeMap<Key, Arc<Set>>,
    pub(super) lost: BTreeSet<u64>,
    pub(super) source: Selection,
    next_version: u64,
    next_uid: u64,
    /// Percentage of versions that are bad.
    bad_share: u64,
    /// Versions that fail on nodes; on those of the site only, if there is one.
    pub(super) bad: HashMap<(Uid, ResourceVersion), Option<String>>,
    /// Absences that fail.
    pub(super) bad_absences: BTreeSet<Uid>,
    pub(super) nodes: Vec<Node>,
    pub(super) leaders: Vec<Leader>,
    pub(super) oracle: Oracle,
    commands: Vec<Command>,
    backup: Option<Box<Backup>>,
}

/// A copy of the store, and what the oracle knew then.
struct Backup {
    rollout: Rollout,
    status: Status,
    bodies: BTreeMap<Key, Arc<Set>>,
    lost: BTreeSet<u64>,
    source: Selection,
    oracle: Oracle,
}

pub(super) fn later(time: Timestamp, by: Duration) -> Timestamp {
    time + SignedDuration::try_from(by).unwrap()
}

pub(super) fn entry(version: &ResourceVersion) -> Entry {
    let object = ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "shop".into(),
        name: "a".into(),
    };
    Entry { version: version.clone(), object, labels: BTreeMap::new(), size: 1, digest: "".into() }
}

fn wave(selector: &str, percent: Option<u8>) -> Wave {
    Wave { selector: selector.parse().unwrap(), percent, ..Wave::default() }
}

fn waves(random: &mut Random) -> Waves {
    let canary = wave("stage=canary", None);
    let all = wave("", None);
    let (a, b) = (wave("site=a", None), wave("site=b", None));
    let share = |percent| wave("", Some(percent));
    let empty = wave("stage=cnary", None);
    let waves = match random.below(8) {
        0 => vec![canary, share(30), all],
        1 => vec![Wave { held_only: true, ..canary }, all],
        2 => vec![a, Wave { allow_empty: true, ..b }, all],
        3 => vec![all],
        4 => vec![canary, share(20), share(40), share(60), share(70), share(80), share(90), all],
        5 => vec![canary, empty, all],
        6 => vec![canary, Wave { allow_empty: true, ..empty }, share(60), all],
        _ => vec![a, b],
    };
    Waves::new(waves).unwrap()
}

fn rollout(random: &mut Random) -> Rollout {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    Rollout {
        waves: waves(random),
        soak: minutes(random.pick(&[0, 0, 5, 10])),
        healthy_within: minutes(5),
        min_success: MinSuccess { percent: random.pick(&[0, 50, 80]), at_least: random.pick(&[1, 1, 2]) },
        max_failures: MaxFailures {
            percent: random.pick(&[0, 20, 50]),
            group_by: random.percent(50).then(|| "site".to_owned()),
        },
        offline_after: minutes(15),
        waiting_after: minutes(30),
        on_failure: random.pick(&[OnFailure::Pause, OnFailure::RollBack]),
        on_change: random.pick(&[OnChange::Replace, OnChange::Replace, OnChange::Queue]),
        settle: Duration::from_secs(20),
    }
}

fn labels(random: &mut Random) -> Labels {
    let mut labels = Labels::new();
    if random.percent(25) {
        labels.insert("stage".into(), "canary".into());
    }
    if random.percent(70) {
        labels.insert("site".into(), random.pick(&["a", "b"]).into());
    }
    labels
}

impl World {
    pub(super) fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random(seed);
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut rollout = rollout(&mut random);
        // Without trouble many revisions are on their way at once.
        let is_calm = random.percent(30);
        let (troubled, bad_share) = if is_calm { (0, 2) } else { (random.pick(&[0, 10, 30]), 25) };
        if is_calm && random.percent(50) {
            rollout.on_change = OnChange::Replace;
            rollout.soak = Duration::ZERO;
            let shares = [20, 35, 50, 65, 80, 90].map(|percent| wave("", Some(percent)));
            let canary = Wave { allow_empty: true, ..wave("stage=canary", None) };
            let shares = shares.map(|share| Wave { allow_empty: true, ..share });
            rollout.waves = Waves::new([canary].into_iter().chain(shares).collect()).unwrap();
        }
        let count = 4 + random.below(14);
        let nodes = (0..count).map(|index| Self::node(&mut random, index, now, troubled)).collect();
        let leaders = vec![Leader::default(), Leader::default()];
        let mut world = Self {
            now,
            random,
            trace,
            rollout,
            generation: 0,
            status: Status::default(),
            bodies: BTreeMap::new(),
            lost: BTreeSet::new(),
            source: Selection::new(),
            next_version: 1,
            next_uid: 1,
            bad_share,
            bad: HashMap::new(),
            bad_absences: BTreeSet::new(),
            nodes,
            leaders,
            oracle: Oracle::default(),
            commands: Vec::new(),
            backup: None,
        };
        for _ in 0..3 {
            world.create(0);
        }
        world
    }

    fn node(random: &mut Random, index: u64, now: Timestamp, troubled: u64) -> Node {
        let kinds = [Kind::Old, Kind::Silent, Kind::Flapping, Kind::Gone, Kind::Windowed];
        let kind = if random.percent(troubled) { random.pick(&kinds) } else { Kind::Normal };
        let link = match kind {
            Kind::Gone => Link::Disconnected { last_heard: now, expected: None },
            _ => Link::Connected(now),
        };
        Node {
            name: NodeName::parse(&format!("edge-{index}")).unwrap(),
            labels: labels(random),
            kind,
            assigned: None,
            first_connected: None,
            link,
            held: None,
            holds_at: now,
            effect_at: now,
        }
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{} {}", self.now.strftime("%H:%M:%S"), what());
        }
    }

    fn version(&mut self, uid: &Uid, bad: u64) -> ResourceVersion {
        let version = ResourceVersion::from(self.next_version);
        self.next_version += 1;
        if self.random.percent(bad) {
            let site = self.random.pick(&[None, None, Some("a".to_owned())]);
            self.say(|| format!("{uid} {version} is bad, {site:?}"));
            self.bad.insert((uid.clone(), version.clone()), site);
        }
        self.oracle.existed.insert((uid.clone(), version.clone()));
        version
    }

    fn create(&mut self, bad: u64) {
        let uid: Uid = format!("u{}", self.next_uid).into();
        self.next_uid += 1;
        let version = self.version(&uid, bad);
        self.source.insert(uid, version);
    }

    fn change_objects(&mut self) {
        let uids: Vec<Uid> = self.source.keys().cloned().collect();
        match self.random.below(8) {
            0 => self.create(self.bad_share),
            1 if uids.len() > 1 => {
                let uid = self.random.pick(&uids);
                self.say(|| format!("{uid} deleted"));
                if self.random.percent(self.bad_share) {
                    self.bad_absences.insert(uid.clone());
                }
                self.source.remove(&uid);
            }
            _ if !uids.is_empty() => {
                let uid = self.random.pick(&uids);
                let version = self.version(&uid, self.bad_share);
                self.say(|| format!("{uid} is {version}"));
                self.source.insert(uid, version);
            }
            _ => self.create(0),
        }
    }

    fn change_rule(&mut self) {
        match self.random.below(3) {
            0 => {
                self.rollout = rollout(&mut self.random);
                self.say(|| "new rule".to_owned());
            }
            1 => {
                // Only the end of the waves changes.
                let mut waves = self.rollout.waves.as_slice().to_vec();
                waves.pop();
                if self.random.percent(50) {
                    waves.push(wave("", Some(90)));
                }
                if let Ok(waves) = Waves::new(waves) {
                    self.rollout.waves = waves;
                }
                self.say(|| format!("{} waves", self.rollout.waves.count()));
            }
            _ => self.rollout.waves = waves(&mut self.random),
        }
        self.generation += 1;
    }

    fn change_node(&mut self) {
        let (index, now) = (self.random.index(self.nodes.len()), self.now);
        let new = labels(&mut self.random);
        let is_relabelled = self.random.percent(40);
        let minutes = self.random.below(12);
        let node = &mut self.nodes[index];
        if is_relabelled {
            node.labels = new;
        } else if let Link::Connected(_) = node.link
            && node.kind != Kind::Silent
        {
            let expected = (minutes > 6).then(|| later(now, Duration::from_secs(60 * minutes)));
            node.link = Link::Disconnected { last_heard: now, expected };
        } else if node.kind != Kind::Gone {
            node.link = Link::Connected(now);
        }
    }

    fn command(&mut self) {
        let Some(top) = self.status.top() else { return };
        let (revision, open, by) = (top.number, top.open, "ann".to_owned());
        let command = match self.random.below(8) {
            0 => Command::Pause { by },
            1..=3 => {
                let reason = self.status.paused.as_ref().map_or(PauseReason::Command, |pause| pause.reason);
                Command::Resume { by, reason }
            }
            4 | 5 => Command::Promote { by, revision, open },
            _ => Command::Undo { by, revision, override_windows: false },
        };
        // A repeated command.
        let count = 1 + usize::from(self.random.percent(40));
        self.commands.extend(std::iter::repeat_n(command, count));
    }

    /// Runs with everything that can go wrong.
    pub(super) fn disturb(&mut self) -> Result<(), String> {
        let steps = 60 + self.random.below(240);
        let haste = self.random.pick(&[3, 8, 20]);
        for _ in 0..steps {
            if self.random.percent(haste) {
                self.change_objects();
            }
            if self.random.percent(1) {
                self.change_rule();
            }
            if self.random.percent(8) {
                self.change_node();
            }
            if self.random.percent(5) {
                self.command();
            }
            if self.random.percent(1) && self.random.percent(60) {
                self.lose();
            }
            if self.random.percent(2) {
                self.back_up();
            }
            self.turn(true)?;
        }
        Ok(())
    }

    fn back_up(&mut self) {
        let (rollout, status, bodies) = (self.rollout.clone(), self.status.clone(), self.bodies.clone());
        let (lost, source, oracle) = (self.lost.clone(), self.source.clone(), self.oracle.clone());
        self.backup = Some(Box::new(Backup { rollout, status, bodies, lost, source, oracle }));
    }

    /// Restores the store from the copy, with its statuses or without.
    fn restore(&mut self) {
        let Some(backup) = self.backup.take() else { return };
        let has_status = self.random.percent(60);
        self.say(|| format!("restored from a copy, with its status: {has_status}"));
        let Backup { rollout, status, bodies, lost, source, oracle } = *backup;
        (self.rollout, self.source) = (rollout, source);
        self.generation += 1;
        if has_status {
            (self.status, self.bodies, self.lost) = (status, bodies, lost);
            self.oracle.restore(oracle);
            self.begin_again();
        } else {
            self.lose_status();
        }
    }

    fn lose_status(&mut self) {
        self.status = Status::default();
        self.bodies.clear();
        self.lost.clear();
        self.oracle.lose();
        self.begin_again();
    }

    /// Forgets all that was before. Nodes keep what they hold until a revision is assigned to them.
    fn begin_again(&mut self) {
        self.leaders = vec![Leader::default(), Leader::default()];
        self.commands.clear();
        for node in &mut self.nodes {
            node.assigned = None;
        }
    }

    /// Loses the status, the bodies of a revision above the stable one, or all that is newer than a
    /// copy.
    fn lose(&mut self) {
        let kind = self.random.below(3);
        if kind == 0 {
            self.say(|| "status lost".to_owned());
            self.lose_status();
        } else if kind == 1 {
            self.restore();
        } else if let Some(top) = self.status.progressing().cloned() {
            self.say(|| format!("bodies of {} lost", top.number));
            self.bodies.remove(&(top.number, top.digest));
            self.lost.insert(top.number);
        }
    }

    /// Runs without changes until nothing can happen by itself any more. Returns the reason that
    /// the status gives.
    pub(super) fn settle(&mut self) -> Result<String, String> {
        self.say(|| "no more disturbances".to_owned());
        // Longer than each term of a roll-out.
        let (mut quiet, mut sequence) = (0, self.status.sequence);
        for _ in 0..5_000 {
            self.turn(false)?;
            quiet = if self.status.sequence == sequence { quiet + 1 } else { 0 };
            sequence = self.status.sequence;
            if quiet > 250 {
                break;
            }
        }
        self.oracle_end()
    }

    /// Lets some time pass.
    fn turn(&mut self, disturbed: bool) -> Result<(), String> {
        let seconds = 1 + self.random.below(if disturbed { 90 } else { 40 });
        self.now = later(self.now, Duration::from_secs(seconds));
        self.run_nodes();
        for index in 0..self.leaders.len() {
            if disturbed && self.random.percent(4) {
                self.say(|| format!("leader {index} killed"));
                self.leaders[index] = Leader::default();
            }
            if self.random.percent(70) {
                self.lead(index, disturbed)?;
            }
        }
        if !self.commands.is_empty() && self.random.percent(60) {
            let command = self.commands.remove(0);
            let index = self.random.index(self.leaders.len());
            self.lead_command(index, &command)?;
        }
        self.assign()
    }

    fn run_nodes(&mut self) {
        let now = self.now;
        for index in 0..self.nodes.len() {
            let flaps = self.random.percent(30);
            let node = &mut self.nodes[index];
            if node.kind == Kind::Flapping && flaps {
                node.link = match node.link {
                    Link::Connected(_) => Link::Disconnected { last_heard: now, expected: None },
                    Link::Disconnected { .. } => Link::Connected(now),
                };
            }
            let is_connected = matches!(node.link, Link::Connected(_));
            let Some((key, _)) = node.assigned else { continue };
            if is_connected {
                node.first_connected.get_or_insert(now);
            }
            let answers = !matches!(node.kind, Kind::Silent | Kind::Flapping | Kind::Gone);
            if is_connected
                && answers
                && node.holds_at <= now
                && node.held.is_none_or(|(held, _)| held != key)
            {
                node.held = Some((key, now));
            }
        }
    }

    /// Assigns revisions node by node, as the status says.
    fn assign(&mut self) -> Result<(), String> {
        let now = self.now;
        for index in 0..self.nodes.len() {
            if self.random.percent(25) {
                continue;
            }
            let node = &self.nodes[index];
            let assignment = self.status.assignment(&self.rollout.waves);
            let Some(revision) = assignment.of(&node.name, &node.labels) else { continue };
            let key = (revision.number, revision.digest);
            let wave = self.rollout.waves.wave_of(&node.name, &node.labels);
            if node.assigned.is_some_and(|(assigned, _)| assigned == key) || self.lost.contains(&key.0) {
                continue;
            }
            let set = self.bodies.get(&key).ok_or_else(|| format!("no bodies of {key:?}"))?;
            self.oracle.assigned(&self.rollout, key, wave, set)?;
            let holds_in = self.random.below(6 * 60);
            let effect_in = self.random.below(60) + if node.kind == Kind::Windowed { 40 * 60 } else { 0 };
            let node = &mut self.nodes[index];
            node.assigned = Some((key, now));
            node.first_connected = matches!(node.link, Link::Connected(_)).then_some(now);
            node.holds_at = later(now, Duration::from_secs(holds_in));
            node.effect_at = later(node.holds_at, Duration::from_secs(effect_in));
        }
        Ok(())
    }

    /// Returns what a node reports about the assigned revision.
    pub(super) fn answer(&self, node: &Node) -> Answer {
        let Some((key, _)) = node.assigned else { return Answer::Incomplete };
        let Some((held, since)) = node.held.filter(|(held, _)| *held == key) else {
            return Answer::Incomplete;
        };
        if let Some(why) = self.bodies.get(&held).and_then(|set| self.fails(node, set)) {
            return Answer::Failed(why);
        }
        match node.kind {
            Kind::Old => Answer::HeldOnly,
            Kind::Windowed if node.effect_at > self.now => Answer::Waiting(since),
            _ if node.effect_at > self.now => Answer::NotYetInEffect,
            _ => Answer::InEffect,
        }
    }

    fn fails(&self, node: &Node, set: &Set) -> Option<String> {
        let site = node.labels.get("site");
        let is_bad = |(uid, entry): &(&Uid, &Entry)| {
            let bad = self.bad.get(&((*uid).clone(), entry.version.clone()));
            bad.is_some_and(|only| only.is_none() || only.as_ref() == site)
        };
        let version =
            set.entries().iter().find(is_bad).map(|(uid, entry)| format!("{uid} {}", entry.version));
        let absence = self.bad_absences.iter().find(|uid| !set.entries().contains_key(*uid));
        version.or_else(|| absence.map(|uid| format!("no {uid}")))
    }

    /// Returns what a leader with this status sees.
    pub(super) fn observe(&self, status: &Status, rollout: &Rollout, planned: &Planned) -> Observed {
        let mut observed =
            Observed { planned: planned.clone(), lost: self.lost.clone(), ..Observed::default() };
        observed.waves = vec![WaveCounts::default(); rollout.waves.count()];
        let Some((top, open)) = status.assignment(&rollout.waves).counted() else { return observed };
        (observed.revision, observed.open) = (top.number, open);
        for node in &self.nodes {
            let Some(wave) = rollout.waves.wave_of(&node.name, &node.labels) else { continue };
            let counts = &mut observed.waves[wave];
            if wave >= open {
                counts.add_unopened();
                continue;
            }
            let assigned = node.assigned.filter(|(key, _)| *key == (top.number, top.digest));
            let facts = NodeFacts {
                assigned_at: assigned.map(|(_, at)| at),
                first_connected: node.first_connected,
                waited_until: None,
                answer: self.answer(node),
                link: node.link,
            };
            let group = rollout.max_failures.group_by.as_ref().and_then(|key| node.labels.get(key));
            counts.add(&node.name, group.map(String::as_str), &facts.classify(self.now, rollout).state);
        }
        observed
    }

    pub(super) fn sets(&self, status: &Status) -> Sets {
        let set = |key: Key| Some((key.0, self.bodies.get(&key)?.clone()));
        status.revisions.iter().filter_map(|it| set((it.number, it.digest))).collect()
    }
}
