//! Scenarios in which a large object crosses a line that is cut again and again. What has arrived
//! stays, over reconnects and restarts of either side.

use super::*;
use crate::fault::{self, Fault};
use crate::simulation::seeds::Seeds;
use crate::simulation::timeline::Random;

const SEEDS: Seeds =
    Seeds { run, count: 60, package: env!("CARGO_PKG_NAME"), one: "simulation::scenarios::drops::one_seed" };

/// The bytes of the object, which hardly compress.
const SIZE: usize = 4 << 20;
/// The bytes on the line, in percent of those needed.
const MAX_PERCENT: u64 = 110;
/// The bytes in memory that a crash loses.
const PIECE: u64 = 128 << 10;
/// The object takes about six minutes.
const PATIENCE: Duration = Duration::from_secs(6 * 3600);
/// Time for a transfer that is interrupted once.
const PATIENCE_ONCE: Duration = Duration::from_secs(3600);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn world_over(seed: u64, line: Line, trace: bool) -> World {
    World::new(seed, Setting { line, sizes: Sizes::Default, ..Setting::QUIET }, trace)
}

/// Returns a world over a line of 10 KB/s with the object in the cloud.
fn slow(is_external: bool) -> World {
    let mut world = world_over(1, Line::slow(is_external), false);
    world.write("large", SIZE);
    world
}

/// Returns the bytes that objects of these sizes need: those of an unlimited line.
fn needed(sizes: &[usize], is_external: bool) -> u64 {
    let mut world = world_over(1, Line { is_external, ..Line::FAST }, false);
    for (n, size) in sizes.iter().enumerate() {
        world.write(&format!("large-{n}"), *size);
    }
    world.connect(0);
    world.pass_until_in_sync(seconds(60));
    world.carried()
}

fn check_bytes(world: &World, needed: u64, lost: u64) -> Result<(), String> {
    let (carried, resent) = (world.carried(), world.cloud_counters().resent);
    println!("{carried} bytes for {needed}, {lost} may be lost; {resent} resent, {:?}", world.now());
    match carried * 100 > needed * MAX_PERCENT + lost * 100 {
        true => Err(format!("cost: {carried} bytes for {needed}, of which {lost} may be lost")),
        false => Ok(()),
    }
}

/// The end of a connection.
enum End {
    Cut,
    /// The agent is killed, which loses what it has in memory.
    Kill,
}

/// Connects for the time that `next` returns, until both sides are equal.
fn cross(
    world: &mut World,
    patience: Duration,
    mut next: impl FnMut(&mut World) -> (Duration, End),
) -> Result<u64, String> {
    let (start, mut cuts) = (world.now(), 0);
    while world.now() - start < patience {
        let (time, end) = next(world);
        world.connect(0);
        if world.converges_within(time)? {
            return Ok(cuts);
        }
        match end {
            End::Cut => world.cut(),
            End::Kill => {
                world.stop_agent(0);
                world.start_agent(0);
            }
        }
        cuts += 1;
        world.pass(seconds(5))?;
    }
    Err(format!("G6: nothing arrived over {cuts} connections: {:?}", world.converged().err()))
}

/// Checks that the object needs no more bytes over a line that is cut so often.
fn cut_every(time: Duration) -> Result<(), String> {
    for is_external in [false, true] {
        let mut world = slow(is_external);
        let cuts = cross(&mut world, PATIENCE, |_| (time, End::Cut))?;
        println!("external {is_external}: {cuts} cuts");
        check_bytes(&world, needed(&[SIZE], is_external), 0)?;
    }
    Ok(())
}

#[test]
fn an_object_of_4_mib_crosses_a_line_cut_every_two_minutes() {
    cut_every(seconds(120)).unwrap();
}

#[test]
fn an_object_of_4_mib_crosses_a_line_cut_every_half_minute() {
    cut_every(seconds(30)).unwrap();
}

#[test]
fn a_message_sent_from_its_start_each_time_is_found() {
    fault::with(Some(Fault::PartsFromStart), || cut_every(seconds(120))).unwrap_err();
}

/// Runs a transfer over a random line with random cuts. Some cuts are crashes of either side.
fn run(seed: u64, trace: bool) -> Result<(), String> {
    let mut random = Random(seed ^ 0xd20b);
    let rate = 5_000 + random.below(45_000);
    let latency = Duration::from_millis([10, 40, 200, 400][random.below(4) as usize]);
    let is_external = random.percent(50);
    let line = Line { rate: [Some(rate); 2], latency, socket: 0, is_external };
    let size = (600 << 10) + random.below(3 << 20) as usize;
    let mut world = world_over(seed, line, trace);
    world.write("large", size);
    let (mut crashes, mut kills) = (0, 0);
    cross(&mut world, PATIENCE, |world| {
        // A connection that carries little loses a large share of it: what was under way.
        let time = Duration::from_secs_f64((200_000 + random.below(2_000_000)) as f64 / rate as f64);
        let time = time.max(latency * 40);
        let is_crash = crashes < 2 && random.percent(20);
        crashes += u64::from(is_crash);
        if is_crash && random.percent(50) {
            world.stop_cloud();
            world.start_cloud();
            return (time, End::Cut);
        }
        kills += u64::from(is_crash);
        (time, if is_crash { End::Kill } else { End::Cut })
    })?;
    // A kill loses the bytes in memory, and the piece that was being committed.
    check_bytes(&world, needed(&[size], is_external), kills * 2 * PIECE)
}

#[test]
fn a_large_object_needs_no_more_bytes_whatever_the_cuts() {
    SEEDS.hold();
}

#[test]
fn one_seed() {
    SEEDS.one_holds();
}

/// Changes the object every minute, for an hour over a line that is cut every two. Returns the
/// number of versions that have arrived.
fn change_every_minute() -> Result<u64, String> {
    let mut world = slow(false);
    let (mut versions, mut last) = (0, None);
    for minute in 0..60 {
        if minute % 2 == 0 {
            world.cut();
            world.pass(seconds(5))?;
            world.connect(0);
        }
        for _ in 0..60 {
            world.pass(seconds(1))?;
            let held = world.held_version("large");
            versions += u64::from(held != last);
            last = held;
        }
        world.write("large", SIZE);
    }
    // One more is on its way.
    check_bytes(&world, needed(&[SIZE], false) * (versions + 1), 0)?;
    Ok(versions)
}

#[test]
fn an_object_that_changes_faster_than_it_travels_arrives() {
    let versions = change_every_minute().unwrap();
    assert!(versions >= 8, "{versions} versions in an hour");
}

#[test]
fn messages_that_are_dropped_for_a_newer_version_are_found() {
    let versions = fault::with(Some(Fault::PartsOutrun), change_every_minute);
    assert!(versions.is_err() || versions == Ok(0), "{versions:?}");
}

#[test]
fn a_newer_version_goes_first_if_it_needs_fewer_bytes() {
    let mut world = slow(false);
    world.connect(0);
    world.pass(seconds(100)).unwrap();
    world.write("large", 1000);
    let time = world.pass_until_in_sync(seconds(60));
    assert!(time <= seconds(15), "{time:?}");
    assert_eq!(world.edge_db().parts(), None);
}

#[test]
fn the_rest_of_a_message_goes_before_a_version_that_needs_more() {
    let mut world = slow(false);
    world.connect(0);
    world.pass(seconds(100)).unwrap();
    let begun = world.held_version("large");
    world.write("large", SIZE);
    world.pass(seconds(290)).unwrap();
    let first = world.held_version("large");
    assert!(first.is_some() && first != begun);
    world.pass_until_in_sync(seconds(600));
    assert_ne!(world.held_version("large"), first);
    check_bytes(&world, needed(&[SIZE, SIZE], false), 0).unwrap();
}

#[test]
fn a_deleted_object_is_not_sent_to_its_end() {
    let mut world = slow(false);
    world.connect(0);
    world.pass(seconds(100)).unwrap();
    assert!(world.edge_db().parts().is_some());
    let before = world.carried();
    world.delete("large");
    world.pass_until_in_sync(seconds(60));
    assert!(world.carried() - before < 100_000, "{} bytes", world.carried() - before);
    assert_eq!(world.edge_db().parts(), None);
}

/// Interrupts a transfer, runs `between` while the line is down, and completes it.
fn interrupted(between: impl FnOnce(&mut World)) -> Result<World, String> {
    let mut world = slow(false);
    world.connect(0);
    world.pass(seconds(200))?;
    world.cut();
    between(&mut world);
    cross(&mut world, PATIENCE_ONCE, |_| (seconds(1200), End::Cut))?;
    Ok(world)
}

/// Restarts the agent in the middle of a transfer.
fn restarted() -> Result<(), String> {
    let world = interrupted(|world| {
        world.stop_agent(0);
        world.start_agent(0);
    })?;
    check_bytes(&world, needed(&[SIZE], false), PIECE / 8)
}

#[test]
fn parts_that_a_restart_forgets_are_found() {
    fault::with(Some(Fault::PartsForgotten), restarted).unwrap_err();
}

#[test]
fn a_restart_of_either_side_loses_no_more_than_a_piece() {
    restarted().unwrap();
    let cloud = interrupted(|world| {
        world.stop_cloud();
        world.start_cloud();
    });
    check_bytes(&cloud.unwrap(), needed(&[SIZE], false), 0).unwrap();
    let memory = interrupted(|world| assert!(world.forget_begun(), "a text is kept"));
    check_bytes(&memory.unwrap(), needed(&[SIZE], false), 0).unwrap();
}

/// Damages what is kept of a message.
fn damaged() -> Result<(), String> {
    let world = interrupted(|world| {
        world.stop_agent(0);
        world.damage_parts();
        world.start_agent(0);
    })?;
    // It is received again.
    check_bytes(&world, needed(&[SIZE, SIZE], false), 0)
}

#[test]
fn damaged_parts_are_received_again() {
    damaged().unwrap();
}

#[test]
fn damaged_parts_that_are_applied_are_found() {
    fault::with(Some(Fault::DamagedParts), damaged).unwrap_err();
}

/// Changes the object while the cloud is down, so that nothing has the version that was begun.
fn changed_over_a_restart() -> Result<(), String> {
    let mut before = 0;
    let world = interrupted(|world| {
        before = world.carried();
        world.stop_cloud();
        world.start_cloud();
        world.write("large", SIZE);
    })?;
    check_bytes(&world, before + needed(&[SIZE], false), 0)
}

#[test]
fn a_version_that_nothing_has_any_more_is_replaced() {
    changed_over_a_restart().unwrap();
}

#[test]
fn parts_continued_with_another_version_are_found() {
    fault::with(Some(Fault::PartsOfAnyVersion), changed_over_a_restart).unwrap_err();
}

#[test]
fn a_lost_database_receives_the_whole_object() {
    let mut before = 0;
    let world = interrupted(|world| {
        before = world.carried();
        world.stop_agent(0);
        world.replace_edge_db(EdgeDb::new(99));
        world.start_agent(0);
    });
    check_bytes(&world.unwrap(), before + needed(&[SIZE], false), 0).unwrap();
}

#[test]
fn a_transfer_goes_on_before_other_large_objects() {
    let world = interrupted(|world| {
        world.stop_cloud();
        world.start_cloud();
        world.write("a-larger-one", SIZE + 1000);
    });
    check_bytes(&world.unwrap(), needed(&[SIZE, SIZE + 1000], false), 0).unwrap();
}

#[test]
fn sides_of_an_older_version_transfer_as_before() {
    for (is_old, is_cloud_old) in [(true, false), (false, true)] {
        println!("old node: {is_old}, old cloud: {is_cloud_old}");
        let setting = Setting {
            line: Line::slow(false),
            sizes: Sizes::Default,
            is_old,
            is_cloud_old,
            ..Setting::QUIET
        };
        let mut world = World::new(1, setting, false);
        world.write("large", SIZE);
        world.connect(0);
        world.pass(seconds(200)).unwrap();
        assert_eq!(world.edge_db().parts().is_some(), !is_cloud_old, "it would be for nothing");
        world.pass_until_in_sync(seconds(1200));
        check_bytes(&world, needed(&[SIZE], false), 0).unwrap();
        world.write("large", SIZE);
        world.pass(seconds(100)).unwrap();
        world.cut();
        world.connect(0);
        world.pass_until_in_sync(seconds(1200));
    }
}
