//! The device's clock: whether it can be right, and when it jumps. A device without a battery for
//! its clock starts in the past; a monotonic clock corrects the times taken before the clock is
//! set.
//!
//! [`OffsetTracker`] compares readings of both clocks and is pure; [`Clock`] reads them.

use std::fs;
use std::hash::Hasher as _;
use std::sync::Arc;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use siphasher::sip128::SipHasher24;
use uuid::Uuid;

use crate::store::MonotonicTime;

/// Lower bound of the current time: 2026-01-01. A clock before it is wrong.
pub(super) const RELEASE: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// Maximum difference of both clocks, in milliseconds, before the wall clock counts as set.
const TOLERANCE_MS: i64 = 2_000;
/// Milliseconds in which a slew changes a clock by one millisecond at most: 500 ppm.
const SLEW_MS: u64 = 2_000;
/// Limit of the slew per comparison, as after an hour. Otherwise a comparison after a long sleep
/// would take a jump for a slew.
const MAX_SLEW_MS: u64 = 3_600_000 / SLEW_MS;
/// Maximum milliseconds between the readings of both clocks.
const APART_MS: u64 = 50;
/// Attempts to read both clocks within [`APART_MS`].
const READINGS: usize = 4;
/// Identity of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Change of the clock since the last comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockChange {
    /// The clock was set, by a number of milliseconds (negative: back).
    Jumped {
        /// Times before this point are off.
        at: MonotonicTime,
        by: i64,
        /// Whether the clock could never be right before. Then its times of this boot are off by as
        /// much.
        doubtful: bool,
        /// Whether the clock could never be right before, and can be now.
        became_known: bool,
    },
}

/// The clock of this process: wall clock and boot clock, read together.
#[derive(Debug)]
pub(super) struct Clock {
    boot: u64,
    tracker: OffsetTracker,
}

impl Clock {
    /// Creates a clock. `floor` is a lower bound of the current time, such as a persisted one: a
    /// wall clock before it or before [`RELEASE`] is wrong.
    pub(super) fn new(floor: Timestamp) -> Self {
        let boot = boot_number(fs::read_to_string(BOOT_ID).ok().as_deref());
        Self { boot, tracker: OffsetTracker::new(floor, Reading::now()) }
    }

    /// Returns a function equal to [`Clock::clocked`], for other tasks.
    pub(super) fn reader(&self) -> Arc<dyn Fn() -> MonotonicTime + Send + Sync> {
        let boot = self.boot;
        Arc::new(move || MonotonicTime { boot, since_boot: since_boot() })
    }

    /// Returns the monotonic time.
    pub(super) fn clocked(&self) -> MonotonicTime {
        MonotonicTime { boot: self.boot, since_boot: since_boot() }
    }

    /// Returns whether the wall clock can be right, as of the last comparison. One that reaches the
    /// floor by running, without being set, stays wrong.
    pub(super) fn is_known(&self) -> bool {
        self.tracker.known
    }

    /// Compares both clocks. Returns a change if they differ by more than the tolerance since the
    /// last time. Cheap: compare before dating anything, so that nothing is dated between a jump
    /// and its detection.
    pub(super) fn detect_jump(&mut self) -> Option<ClockChange> {
        let reading = Reading::now();
        let at = MonotonicTime { boot: self.boot, since_boot: reading.boot };
        let Jump { by, doubtful, became_known } = self.tracker.compare(reading)?;
        Some(ClockChange::Jumped { at, by, doubtful, became_known })
    }
}

/// Both clocks at one moment, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    /// Unix time in milliseconds.
    wall: i64,
    /// Time since boot in milliseconds, suspended time included (`CLOCK_BOOTTIME`).
    boot: u64,
}

impl Reading {
    /// Reads both clocks. The boot clock is read before and after, because a process that is
    /// suspended between two readings would see a false jump.
    fn now() -> Self {
        let mut best = None::<(u64, Self)>;
        for _ in 0..READINGS {
            let before = since_boot();
            let wall = Timestamp::now().as_millisecond();
            let boot = since_boot();
            let apart = boot.saturating_sub(before);
            if best.is_none_or(|(least, _)| apart < least) {
                best = Some((apart, Self { wall, boot }));
            }
            if apart <= APART_MS {
                break;
            }
        }
        best.map_or(Self { wall: 0, boot: 0 }, |(_, reading)| reading)
    }

    /// Returns the wall clock minus the boot clock.
    fn offset(self) -> i64 {
        self.wall.saturating_sub(i64::try_from(self.boot).unwrap_or(i64::MAX))
    }
}

/// A jump of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Jump {
    by: i64,
    doubtful: bool,
    became_known: bool,
}

/// Tracks the wall clock against the boot clock.
///
/// The offset follows the wall clock at the rate of a slew at most. Small steps are no jump on
/// their own, but are one once they add up to more than the tolerance.
#[derive(Debug)]
struct OffsetTracker {
    /// Unix time in milliseconds.
    floor: i64,
    /// Offset of the wall clock, as far as tracked.
    offset: i64,
    /// Time since boot of the last comparison.
    followed: u64,
    /// Whether the wall clock can be right.
    known: bool,
    /// Whether it ever could.
    was_known: bool,
}

impl OffsetTracker {
    fn new(floor: Timestamp, first: Reading) -> Self {
        let floor = floor.max(RELEASE).as_millisecond();
        let known = first.wall.saturating_add(TOLERANCE_MS) >= floor;
        Self { floor, offset: first.offset(), followed: first.boot, known, was_known: known }
    }

    fn compare(&mut self, reading: Reading) -> Option<Jump> {
        let by = reading.offset().saturating_sub(self.offset);
        let slew = self.slew(reading.boot);
        if by.unsigned_abs() <= TOLERANCE_MS.saturating_add(slew).unsigned_abs() {
            self.offset = self.offset.saturating_add(by.clamp(-slew, slew));
            return None;
        }
        self.offset = reading.offset();
        self.known = reading.wall >= self.floor;
        let doubtful = !self.was_known;
        self.was_known |= self.known;
        Some(Jump { by, doubtful, became_known: doubtful && self.known })
    }

    /// Returns the maximum slew since the last comparison, in milliseconds. Keeps fractions for the
    /// next one.
    fn slew(&mut self, boot: u64) -> i64 {
        let elapsed = boot.saturating_sub(self.followed);
        let slew = (elapsed / SLEW_MS).min(MAX_SLEW_MS);
        self.followed = boot.saturating_sub(elapsed % SLEW_MS);
        i64::try_from(slew).unwrap_or_default()
    }
}

/// Returns the milliseconds since boot.
fn since_boot() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000).saturating_add(nanos / 1_000_000)
}

/// Returns a number for the boot that fits a column of the database. Where the system has no boot
/// id, each process counts as a boot: then no time of an earlier process is comparable.
fn boot_number(boot_id: Option<&str>) -> u64 {
    let mut hasher = SipHasher24::new();
    match boot_id.map(str::trim).filter(|id| !id.is_empty()) {
        Some(id) => hasher.write(id.as_bytes()),
        None => hasher.write(Uuid::new_v4().as_bytes()),
    }
    hasher.finish() >> 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FLOOR: i64 = 1_800_000_000_000;
    const DAY: u64 = 86_400_000;

    fn floor() -> Timestamp {
        Timestamp::from_millisecond(FLOOR).unwrap()
    }

    fn tracker(wall: i64) -> OffsetTracker {
        OffsetTracker::new(floor(), Reading { wall, boot: 0 })
    }

    fn jump(by: i64, doubtful: bool, became_known: bool) -> Option<Jump> {
        Some(Jump { by, doubtful, became_known })
    }

    #[test]
    fn a_running_clock_never_jumps_however_rarely_it_is_compared() {
        let mut tracker = tracker(FLOOR);
        for boot in [0, 1, 1_999, 2_000, DAY, 400 * DAY] {
            assert_eq!(tracker.compare(Reading { wall: FLOOR + boot as i64, boot }), None);
        }
        assert!(tracker.known);
    }

    #[test]
    fn a_jump_is_reported_once_with_its_size() {
        let mut tracker = tracker(FLOOR);
        let ahead = Reading { wall: FLOOR + 3_000 + 1_000, boot: 1_000 };
        assert_eq!(tracker.compare(ahead), jump(3_000, false, false));
        assert_eq!(tracker.compare(ahead), None);
        let back = Reading { wall: FLOOR + 1_500, boot: 1_500 };
        assert_eq!(tracker.compare(back), jump(-3_000, false, false));
    }

    #[test]
    fn the_tolerance_is_two_seconds_inclusive() {
        assert_eq!(tracker(FLOOR).compare(Reading { wall: FLOOR + 2_000, boot: 0 }), None);
        assert_eq!(tracker(FLOOR).compare(Reading { wall: FLOOR - 2_000, boot: 0 }), None);
        assert_eq!(
            tracker(FLOOR).compare(Reading { wall: FLOOR + 2_001, boot: 0 }),
            jump(2_001, false, false)
        );
    }

    #[test]
    fn small_steps_are_a_jump_once_they_add_up() {
        let mut tracker = tracker(FLOOR);
        let looks = (1..=4).map(|n| tracker.compare(Reading { wall: FLOOR + n * 910, boot: n as u64 * 10 }));
        assert_eq!(looks.collect::<Vec<_>>(), [None, None, jump(2_700, false, false), None]);
    }

    #[test]
    fn a_jump_is_detected_after_a_long_sleep() {
        let mut tracker = tracker(FLOOR);
        assert_eq!(tracker.compare(Reading { wall: FLOOR + 30 * DAY as i64, boot: 30 * DAY }), None);
        let slept = Reading { wall: FLOOR + 60 * DAY as i64 + 5_000, boot: 60 * DAY };
        assert_eq!(tracker.compare(slept), jump(5_000, false, false));
    }

    #[test]
    fn a_clock_before_the_floor_becomes_known_once_when_set() {
        let mut tracker = tracker(1_000);
        assert!(!tracker.known);
        let set = |by: i64, boot: u64| Reading { wall: by + boot as i64, boot };
        assert_eq!(tracker.compare(set(FLOOR, 60_000)), jump(FLOOR - 1_000, true, true));
        assert!(tracker.known);
        // A later correction does not make earlier times doubtful.
        assert_eq!(tracker.compare(set(0, 61_000)), jump(-FLOOR, false, false));
        assert!(!tracker.known);
        assert_eq!(tracker.compare(set(FLOOR, 62_000)), jump(FLOOR, false, false));
        assert!(tracker.known);
    }

    #[test]
    fn a_clock_set_from_1970_to_2041_jumps_by_its_difference() {
        let set = "2041-06-01T00:00:00Z".parse::<Timestamp>().unwrap().as_millisecond();
        let mut tracker = tracker(1_000);
        assert_eq!(tracker.compare(Reading { wall: set, boot: 0 }), jump(set - 1_000, true, true));
        assert_eq!(tracker.compare(Reading { wall: set + DAY as i64, boot: DAY }), None);
    }

    #[test]
    fn a_step_that_stays_before_the_floor_leaves_the_clock_doubtful() {
        let mut tracker = tracker(0);
        assert_eq!(tracker.compare(Reading { wall: FLOOR - 1, boot: 1 }), jump(FLOOR - 2, true, false));
        assert!(!tracker.known);
        assert_eq!(
            tracker.compare(Reading { wall: FLOOR + DAY as i64, boot: 1 }),
            jump(1 + DAY as i64, true, true)
        );
    }

    #[test]
    fn a_wrong_clock_that_runs_past_the_floor_stays_wrong() {
        let mut tracker = tracker(FLOOR - 10_000);
        assert_eq!(tracker.compare(Reading { wall: FLOOR + 10_000, boot: 20_000 }), None);
        assert!(!tracker.known);
    }

    #[test]
    fn the_release_is_a_floor() {
        assert_eq!(RELEASE.to_string(), "2026-01-01T00:00:00Z");
        let unset = Reading { wall: RELEASE.as_millisecond() - TOLERANCE_MS - 1, boot: 5 };
        assert!(!OffsetTracker::new(Timestamp::UNIX_EPOCH, unset).known);
        let set = Reading { wall: RELEASE.as_millisecond(), boot: 5 };
        assert!(OffsetTracker::new(Timestamp::UNIX_EPOCH, set).known);
    }

    #[test]
    fn a_boot_number_is_stable_and_fits_a_column() {
        let one = boot_number(Some("0f3a8f0e-7c0b-4f5e-9d1c-2b6a9a5e7d10\n"));
        assert_eq!(one, boot_number(Some("0f3a8f0e-7c0b-4f5e-9d1c-2b6a9a5e7d10")));
        assert_ne!(one, boot_number(Some("1f3a8f0e-7c0b-4f5e-9d1c-2b6a9a5e7d10")));
        assert_ne!(boot_number(None), boot_number(Some("\n")), "a boot without a name is like no other");
        assert!(i64::try_from(one).is_ok() && i64::try_from(boot_number(None)).is_ok());
    }

    #[test]
    fn the_clocks_of_the_system_are_read() {
        let clock = Clock::new(Timestamp::UNIX_EPOCH);
        let (first, read, second) = (clock.clocked(), clock.reader()(), clock.clocked());
        assert!(first.since_boot > 0 && first.boot == second.boot);
        assert_eq!(read.boot, first.boot);
        assert!((first.since_boot..=second.since_boot).contains(&read.since_boot));
    }

    proptest! {
        #[test]
        fn a_slewed_clock_never_jumps(
            ppm in -500i64..=500,
            steps in prop::collection::vec(1u64..3_600_000, 1..50),
        ) {
            let mut tracker = tracker(FLOOR);
            let mut boot = 0;
            for step in steps {
                boot += step;
                let slewed = boot as i64 * ppm / 1_000_000;
                prop_assert_eq!(tracker.compare(Reading { wall: FLOOR + boot as i64 + slewed, boot }), None);
            }
        }

        #[test]
        fn every_jump_is_reported_once_to_the_millisecond(
            steps in prop::collection::vec((1u64..DAY, prop_oneof![
                Just(0i64), -1_000_000_000i64..-10_000, 10_000i64..1_000_000_000,
            ]), 1..50),
        ) {
            let mut tracker = tracker(FLOOR);
            let (mut boot, mut set) = (0, 0);
            for (step, by) in steps {
                boot += step;
                set += by;
                let reported = tracker.compare(Reading { wall: FLOOR + boot as i64 + set, boot });
                prop_assert_eq!(reported.map_or(0, |reported| reported.by), by);
                prop_assert_eq!(tracker.compare(Reading { wall: FLOOR + boot as i64 + set, boot }), None);
            }
        }

        #[test]
        fn reported_jumps_add_up_to_the_corrections(
            looks in prop::collection::vec((0u64..10_000, -5_000i64..5_000), 1..100),
        ) {
            let mut tracker = tracker(FLOOR);
            let (mut boot, mut set, mut reported) = (0, 0, 0);
            for (step, by) in looks {
                boot += step;
                set += by;
                reported += tracker.compare(Reading { wall: FLOOR + boot as i64 + set, boot }).map_or(0, |jump| jump.by);
                let slew = (boot / SLEW_MS) as i64;
                prop_assert!((set - reported).abs() <= TOLERANCE_MS + slew);
            }
        }

        #[test]
        fn readings_never_panic(readings in prop::collection::vec((any::<i64>(), any::<u64>()), 1..20)) {
            let mut tracker = tracker(FLOOR);
            for (wall, boot) in readings {
                tracker.compare(Reading { wall, boot });
            }
        }
    }
}
