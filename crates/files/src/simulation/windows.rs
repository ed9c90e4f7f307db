//! Windows, holds and kept files: thousands of changes, kills of agent and helper at any step,
//! reboots that empty the memory, and a clock that is set forward and back. The oracle judges by
//! the reloads, the files, and its own knowledge of the clock and the holds.

use super::*;
use crate::calendar::Window;
use crate::clock::{Clock, Reading};
use crate::fault::plant;
use crate::gate::{Facts, decide};
use crate::hold::{Holds, Limits, NewHold, Which};
use edgesync_object::random::split_mix_64;
use jiff::tz::TimeZone;

const MINUTE: i64 = 60_000_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// 2026-11-26 00:00:00 UTC.
const START: i64 = 1_795_651_200_000_000;
const RULE: &str = "r";
const OBJECTS: u64 = 4;

/// Random numbers in a range, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        split_mix_64(&mut self.0) % limit
    }

    fn span(&mut self, limit: i64) -> i64 {
        i64::try_from(self.below(limit.unsigned_abs())).unwrap()
    }
}

/// A hold as the test knows it: how much of its time can have passed.
struct TrueHold {
    id: u64,
    passed: i64,
    length: i64,
}

struct Device {
    random: Random,
    rule: Rule,
    world: World,
    objects: BTreeMap<u64, Object>,
    history: BTreeMap<(String, String), Object>,
    version: u64,
    boot: u64,
    since_boot: i64,
    wall: i64,
    /// Whether the clock was set in this boot, or continues the last one that was known.
    known: bool,
    /// Whether no helper has read the clock in this boot.
    is_fresh: bool,
    /// The last wall clock that a helper saw while it was known.
    seen: i64,
    clock: Clock,
    holds: Holds,
    true_holds: Vec<TrueHold>,
    /// Files that were in effect before the reboot, until a pass is complete.
    expected: BTreeMap<String, Files>,
}

impl Device {
    fn new(seed: u64) -> Self {
        let apply = vec![Window::parse("02:00-04:00", TimeZone::UTC).unwrap()];
        let rule = Rule { apply, overridable: true, ..rule_of(Write::Keys, true, true) };
        let mut device = Self {
            random: Random(seed),
            rule,
            world: World::default(),
            objects: BTreeMap::new(),
            history: BTreeMap::new(),
            version: 0,
            boot: 0,
            since_boot: 0,
            wall: START,
            known: true,
            is_fresh: false,
            seen: START,
            clock: Clock::default(),
            holds: Holds::default(),
            true_holds: Vec::new(),
            expected: BTreeMap::new(),
        };
        // Before the first reading there is no last known time.
        device.observe();
        device
    }

    fn pass_time(&mut self, time: i64) {
        self.since_boot += time;
        self.wall += time;
        self.true_holds.iter_mut().for_each(|hold| hold.passed += time);
    }

    fn put(&mut self) {
        self.version += 1;
        let number = self.random.below(OBJECTS);
        let content = match self.random.below(12) {
            0 => INVALID.to_vec(),
            1 => REJECTED.to_vec(),
            2 => [URGENT, self.version.to_string().as_bytes()].concat(),
            _ => format!("good {}", self.version).into_bytes(),
        };
        let object = Object { name: format!("o{number}"), version: self.version, content };
        self.history.insert((object.listed().uid, self.version.to_string()), object.clone());
        self.objects.insert(number, object);
    }

    /// Reads the clocks, as the helper does first in each request.
    fn observe(&mut self) {
        let (boot, since_boot, wall) = (self.boot.to_string(), self.since_boot, self.wall);
        if let Some(unpowered) = self.clock.observe(Reading { boot, since_boot, wall }) {
            self.holds.shift(unpowered);
        }
        // Persisted and read again.
        self.clock = serde_json::from_str(&serde_json::to_string(&self.clock).unwrap()).unwrap();
        self.holds = serde_json::from_str(&serde_json::to_string(&self.holds).unwrap()).unwrap();
        self.holds.expire(self.clock.elapsed(), Limits::default());
        if std::mem::take(&mut self.is_fresh) {
            self.known = self.wall >= self.seen;
        }
        if self.known {
            self.seen = self.wall;
        }
    }

    fn is_outside(&self) -> bool {
        let hour = self.wall.rem_euclid(DAY) / HOUR;
        !self.known || !(2..4).contains(&hour)
    }

    fn is_held(&self) -> bool {
        self.true_holds.iter().any(|hold| hold.passed < hold.length)
    }

    /// Runs a pass of the helper, which may be killed.
    fn pass(&mut self, faults: &Faults) {
        self.observe();
        let (outside, held) = (self.is_outside(), self.is_held());
        let facts = Facts {
            holds: &self.holds,
            elapsed: self.clock.elapsed(),
            is_clock_known: self.clock.is_known(),
            now: self.wall,
        };
        let judge = |urgent: bool| decide(&self.rule, facts, urgent);
        let permission = Permission { judge: &judge, outside, held };
        let objects: Vec<Object> = self.objects.values().cloned().collect();
        // Backoff is by the wall clock, which must not stop the retries when it is set back.
        let record = self.world.pass_with(&self.rule, &objects, faults, self.wall, &permission);
        let is_complete = faults.cut.is_none() && !faults.full && self.world.intent.is_none();
        let closed = held || outside;
        if !is_complete {
            // What it changed all the same is in effect since then.
            let live = self.world.live();
            self.expected.retain(|path, _| closed && (held || !live.get(path).is_some_and(is_urgent)));
            return;
        }
        self.world.emptied = false;
        let live = self.world.live();
        for (path, files) in std::mem::take(&mut self.expected) {
            let found = live.get(&path);
            assert!(
                found == Some(&files) || !closed || (found.is_some_and(is_urgent) && !held),
                "{path} was in effect before the reboot: {files:?}, found {found:?}"
            );
        }
        if self.world.read.is_none() {
            // Programs start after the agent.
            self.world.read = Some(live);
        }
        check_claims(&self.world, &self.rule, &record, &self.history);
        for status in record.objects.values().filter(|status| status.state == State::Waiting) {
            assert!(status.reason.is_some() && !status.message.is_empty(), "{status:?}");
        }
    }

    /// Cuts the power for a while. Without a battery the clock restarts at another time.
    fn reboot(&mut self) {
        let off = self.random.span(8 * HOUR);
        self.boot += 1;
        self.since_boot = 0;
        match self.random.below(3) {
            0 => self.wall = self.random.span(HOUR),
            1 => self.wall = self.seen - 1 - self.random.span(3 * HOUR),
            _ => self.wall += off,
        }
        self.is_fresh = true;
        self.true_holds.iter_mut().for_each(|hold| hold.passed += off);
        // What a complete record says is in effect was in files.
        let mut record = self.world.record();
        if self.world.intent.is_none() {
            self.expected = self.claimed(&record);
        } else {
            self.expected.clear();
        }
        self.world.paths.clear();
        self.world.emptied = true;
        (self.world.read, self.world.listed) = (None, None);
        record.places.retain(|_, held| held.kept.is_some());
        record.places.values_mut().for_each(|held| held.lost = true);
        if !self.world.record.is_empty() {
            self.world.record = serde_json::to_string(&record).unwrap();
        }
        self.pass_time(MINUTE);
    }

    fn claimed(&self, record: &Record) -> BTreeMap<String, Files> {
        let claims = record.objects.iter().filter_map(|(uid, status)| {
            let version = status.version.clone()?;
            let object = self.history.get(&(uid.clone(), version))?;
            let path = self.rule.to.place("n", &object.name).unwrap().path();
            let files = crate::contents::files(&self.rule, &object.body(), false).unwrap();
            Some((path, files))
        });
        claims.collect()
    }

    fn set_clock(&mut self, wall: i64) {
        // The agent asks every half minute while something waits, also before the clock is set.
        self.observe();
        if !self.known {
            // All that lies between counts as time without power.
            let ahead = (wall - self.seen).max(0);
            self.true_holds.iter_mut().for_each(|hold| hold.passed += ahead);
        }
        self.wall = wall;
        self.known = true;
        self.observe();
    }

    fn hold(&mut self) {
        self.observe();
        let minutes = 1 + self.random.below(180);
        let new = NewHold { rule: RULE, uid: 7, owner: "plant", why: "harvest", seconds: minutes * 60 };
        let Ok(hold) = self.holds.hold(self.clock.elapsed(), &new, Limits::default()) else { return };
        // The helper keeps what is in effect before it answers; here a pass does.
        let length = i64::try_from(minutes).unwrap() * MINUTE;
        self.true_holds.push(TrueHold { id: hold.id, passed: 0, length });
    }

    fn release(&mut self) {
        self.observe();
        if let Ok(ended) = self.holds.release(self.clock.elapsed(), 7, &Which::Own, Limits::default()) {
            self.true_holds.retain(|hold| ended.iter().all(|ended| ended.id != hold.id));
        }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..=8 => self.put(),
            9 => drop({
                let number = self.random.below(OBJECTS);
                self.objects.remove(&number)
            }),
            10 => self.reboot(),
            11 => {
                let wall = START + self.random.span(3 * DAY);
                self.set_clock(wall);
            }
            12 => self.hold(),
            13 => self.release(),
            // The agent is killed.
            15 => self.world.listed = None,
            14 => {
                let time = self.random.span(12 * HOUR);
                self.pass_time(time);
            }
            _ => {
                let cut = (self.random.below(3) == 0).then(|| u32::try_from(self.random.below(24)).unwrap());
                // In a window more often than by chance.
                if self.known && self.random.below(3) == 0 {
                    let hour = self.wall.rem_euclid(DAY);
                    let into = self.random.below(7_000_000_000).cast_signed();
                    self.pass_time((2 * HOUR - hour).rem_euclid(DAY) + into);
                } else {
                    let time = self.random.span(30 * MINUTE);
                    self.pass_time(time);
                }
                let broken = self.random.below(8) == 0;
                let look = self.random.below(4) == 0;
                self.pass(&Faults { cut, broken, look, ..Faults::default() });
            }
        }
    }

    /// Opens a window at last, and asserts that everything is in effect.
    fn finish(&mut self) {
        for object in self.objects.values_mut() {
            self.version += 1;
            object.version = self.version;
            object.content = format!("good at last {}", self.version).into_bytes();
            self.history.insert((object.listed().uid, self.version.to_string()), object.clone());
        }
        self.release();
        let wall = self.wall.max(START) / DAY * DAY + 10 * DAY + 5 * HOUR / 2;
        self.set_clock(wall);
        self.true_holds.clear();
        let calm = Faults { look: true, force: true, ..Faults::default() };
        self.pass(&calm);
        self.pass(&calm);
        let record = self.world.record();
        assert!(self.world.intent.is_none() && record.pending.is_empty(), "{:?}", record.pending);
        for object in self.objects.values() {
            let status = &record.objects[&object.listed().uid];
            assert_eq!(status.state, State::InEffect, "{status:?}");
            assert_eq!(status.version, Some(object.version.to_string()));
        }
        assert_eq!(self.world.live().len(), self.objects.len());
        assert_eq!(self.world.copies.len(), self.objects.len(), "no copy is left over");
    }
}

fn is_urgent(files: &Files) -> bool {
    files.values().all(|content| content.starts_with(URGENT))
}

/// Runs a device with this seed through some steps. Returns changes and reloads.
fn run(seed: u64, steps: usize) -> (u64, u64) {
    let mut device = Device::new(seed);
    for _ in 0..steps {
        device.step();
    }
    device.finish();
    (device.version, device.world.reloads)
}

#[test]
fn ten_thousand_changes_reload_in_windows_and_under_no_hold() {
    let (mut changes, mut reloads, mut seed) = (0, 0, 0);
    while changes < 10_000 {
        seed += 1;
        let ran = std::panic::catch_unwind(|| run(seed, 400));
        let (more, again) = ran.unwrap_or_else(|_| panic!("seed {seed}"));
        changes += more;
        reloads += again;
    }
    assert!(reloads > 500, "{reloads} reloads of {changes} changes");
}

#[test]
fn planted_bugs_of_waiting_changes_are_found() {
    for seed in 1..=60 {
        run(seed, 400);
    }
    let missed: Vec<Fault> = Fault::ALL
        .into_iter()
        .filter(|fault| {
            plant(Some(*fault));
            (1..=60).all(|seed| std::panic::catch_unwind(|| run(seed, 400)).is_ok())
        })
        .collect();
    plant(None);
    assert_eq!(missed, []);
}

#[test]
fn changes_wait_checked_and_take_effect_together() {
    let mut device = Device::new(1);
    device.put_all(b"good");
    device.set_clock(START + 3 * HOUR);
    device.pass(&Faults::default());
    assert_eq!(device.world.record().counts(), [4, 0, 0]);
    device.pass_time(2 * HOUR);
    device.put_all(b"better");
    device.objects.get_mut(&2).unwrap().content = INVALID.to_vec();
    let before = device.world.live();
    device.pass(&Faults::default());
    let record = device.world.record();
    assert_eq!((record.counts(), record.waiting(), record.reloads), ([0, 1, 0], 3, 1));
    assert_eq!(record.objects["uid-o2"].state, State::NotInEffect, "checked at once");
    let status = &record.objects["uid-o0"];
    assert_eq!((status.version.as_deref(), status.wanted.as_deref()), (Some("1"), Some("5")));
    assert_eq!(status.until, Some(START + DAY + 2 * HOUR));
    assert_eq!(device.world.live(), before);
    // Nothing is checked again, and nothing reported again, until the window opens.
    let seq = status.seq;
    device.pass_time(HOUR);
    device.pass(&Faults { cut: Some(3), ..Faults::default() });
    assert_eq!(device.world.record().objects["uid-o0"].seq, seq);
    device.put_all(b"best");
    device.pass_time(DAY - 3 * HOUR);
    device.pass(&Faults::default());
    let record = device.world.record();
    assert_eq!((record.counts(), record.waiting(), record.reloads), ([4, 0, 0], 0, 2));
}

#[test]
fn urgent_change_overrides_a_window_and_no_hold() {
    let mut device = Device::new(1);
    device.set_clock(START + 5 * HOUR);
    device.put_all(b"urgent");
    device.objects.get_mut(&3).unwrap().content = b"good".to_vec();
    device.hold();
    device.pass(&Faults::default());
    let record = device.world.record();
    assert_eq!((record.waiting(), record.objects["uid-o0"].reason), (4, Some(crate::WaitReason::Hold)));
    device.release();
    device.pass(&Faults::default());
    let record = device.world.record();
    assert_eq!((record.counts(), record.waiting(), record.reloads), ([3, 0, 0], 1, 1));
    assert_eq!(record.objects["uid-o3"].reason, Some(crate::WaitReason::Window));
}

#[test]
fn removal_waits_and_is_withdrawn_by_its_return() {
    let mut device = Device::new(1);
    device.set_clock(START + 3 * HOUR);
    device.put_all(b"good");
    device.pass(&Faults::default());
    device.pass_time(3 * HOUR);
    let removed = device.objects.remove(&0).unwrap();
    device.pass(&Faults::default());
    let record = device.world.record();
    let status = &record.objects["uid-o0"];
    assert_eq!((status.state, status.version.as_deref()), (State::Waiting, Some("1")));
    assert_eq!((device.world.live().len(), status.wanted.as_deref()), (4, None));
    device.objects.insert(0, removed);
    device.pass(&Faults::default());
    let record = device.world.record();
    assert_eq!((record.counts(), record.waiting(), record.pending.len()), ([4, 0, 0], 0, 0));
    device.objects.remove(&0);
    device.pass_time(DAY - 3 * HOUR);
    device.pass(&Faults::default());
    assert_eq!((device.world.live().len(), device.world.record().objects["uid-o0"].state), (3, State::Gone));
}

impl Device {
    /// Gives each object a new version with this content.
    fn put_all(&mut self, content: &[u8]) {
        for number in 0..OBJECTS {
            self.version += 1;
            let object =
                Object { name: format!("o{number}"), version: self.version, content: content.to_vec() };
            self.history.insert((object.listed().uid, self.version.to_string()), object.clone());
            self.objects.insert(number, object);
        }
    }
}
