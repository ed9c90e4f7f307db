//! Directed scenarios: each leads to one bug that searches over many seeds have found, or to a
//! planted one that few seeds find.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::NODES;
use super::history::Thing;
use super::rules::{Selection, Strategy, Wave};
use super::store::{Database, Gate, Way};
use super::world::{Event, World};
use crate::admin::AdminRequest;
use edgesync_object::NodeName;
use edgesync_protocol::fault::{self, Fault};
use edgesync_protocol::simulation::timeline::Simulated as _;

const SECOND: Duration = Duration::from_secs(1);
/// Long enough for all that is on its way in a calm world.
const WHILE: Duration = Duration::from_secs(5);
/// The object of a scenario.
const OBJECT: &str = "x";

/// What is on its way between a replica and the source, held up.
pub(super) struct Held {
    pub(super) which: (usize, Way),
    pub(super) gates: Vec<Gate>,
}

/// Returns the first world of this kind in which nothing fails, with a node connected to its last
/// replica.
fn calm(is_right: impl Fn(&World) -> bool) -> Result<World, String> {
    calm_with(0, false, is_right)
}

/// Returns the same with this node. `rolls` is whether rules have roll-outs.
fn calm_with(node: usize, rolls: bool, is_right: impl Fn(&World) -> bool) -> Result<World, String> {
    let world = (0..).map(|seed| World::new(seed, 100, false, rolls)).find(|world| is_right(world));
    let mut world = world.ok_or("no seed has such a world")?;
    world.join(node, world.replicas.len() - 1);
    world.pass(WHILE)?;
    Ok(world)
}

/// Two replicas.
fn replicas() -> Result<World, String> {
    calm(|world| world.is_shared)
}

/// One cloud side with its own endpoint.
fn alone() -> Result<World, String> {
    calm(|world| !world.is_shared && !world.is_external)
}

/// One cloud side that meets its nodes at an external broker.
fn behind_a_broker() -> Result<World, String> {
    calm(|world| world.is_external)
}

/// Runs a scenario under a planted bug. Returns what is found.
fn found(planted: Fault, scenario: fn() -> Result<(), String>) -> String {
    match fault::with(Some(planted), scenario) {
        Err(why) => why,
        Ok(()) => panic!("{planted:?} was not found"),
    }
}

impl World {
    fn name(&self, node: usize) -> NodeName {
        self.devices[node].name.clone()
    }

    /// Starts a node and connects it.
    fn join(&mut self, node: usize, replica: usize) {
        let now = self.time.now;
        self.devices[node].start(now);
        self.connect(node, replica);
    }

    /// Writes the object, placed on these nodes.
    fn place(&mut self, nodes: &[usize]) {
        self.place_as(OBJECT, nodes);
    }

    /// Writes an object of this name and UID.
    fn place_as(&mut self, name: &str, nodes: &[usize]) {
        let nodes = nodes.iter().map(|node| self.name(*node)).collect();
        let content = self.time.random.next();
        self.model.state().write(|objects, version| {
            let thing = Thing { version, content, name: name.to_owned(), nodes, tier: None, size: 20 };
            objects.things.insert(name.into(), Arc::new(thing));
        });
    }

    fn holds(&self, node: usize) -> bool {
        self.devices[node].db.version(OBJECT).is_some()
    }

    /// Lets an operator remove a node, at the first replica.
    fn request_removal(&mut self, name: &NodeName) {
        self.model.state().removable.insert(name.clone());
        let request = AdminRequest::Remove(name.clone(), oneshot::channel().0);
        self.with_fleet(0, |fleet| fleet.administer(request));
    }

    /// Lets the watch of a replica stand still for a while.
    fn stop_watch(&mut self, replica: usize, time: Duration) {
        self.replicas[replica].watch_stands_until = self.time.now + time;
    }

    /// Holds up some messages between a replica and the source from now on.
    fn hold(&mut self, replica: usize, way: Way) {
        self.held = Some(Held { which: (replica, way), gates: Vec::new() });
    }

    /// Returns the number of messages that are held up.
    fn held(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.gates.len())
    }

    /// Lets pass what was held up, in order or the last one first.
    fn release(&mut self, is_reversed: bool) {
        let Some(Held { which: (replica, _), mut gates }) = self.held.take() else { return };
        if is_reversed {
            gates.reverse();
        }
        let life = self.replicas[replica].life;
        for (gate, delay) in gates.into_iter().zip(1..) {
            let at = self.time.now + Duration::from_millis(delay);
            self.time.at(at, Event::Request { replica, life, gate });
        }
    }

    /// Delivers a frame to a node.
    fn deliver_down(&mut self, node: usize, bytes: Vec<u8>) {
        if let Some(link) = self.devices[node].link {
            let now = self.time.now;
            self.time.at(now, Event::ToNode { node, link, bytes });
        }
    }
}

// --- removals

/// A replica records the removal of a node, and ends before it has deleted the Node. Another one
/// starts.
fn start_during_a_removal() -> Result<(), String> {
    let mut world = replicas()?;
    let name = world.name(0);
    // The list of a replica may be some changes old.
    for _ in 0..NODES {
        world.place(&[]);
    }
    world.model.state().remove(&name, None);
    world.stop(0);
    world.stop(1);
    world.start(0);
    world.pass(WHILE)?;
    world.check_removed()?;
    match world.model.state().db.objects.nodes.contains_key(&name) {
        true => Err("removal: it is not completed".into()),
        false => Ok(()),
    }
}

#[test]
fn removal_that_is_under_way_is_completed_at_a_start() {
    start_during_a_removal().unwrap();
}

#[test]
fn a_start_that_takes_a_recorded_removal_for_a_complete_one_is_found() {
    let why = found(Fault::UnfinishedRemovalIsGone, start_during_a_removal);
    assert!(why.contains("returns by itself"), "{why}");
}

/// A node is removed, readmitted, and removed again. The first replica observes the readmission in
/// time, and its write for it is late.
fn late_readmission() -> Result<(), String> {
    let mut world = replicas()?;
    let name = world.name(0);
    world.command(0, false, false);
    world.pass(WHILE)?;
    world.hold(0, Way::Request);
    world.model.state().readmit(&name);
    world.pass(SECOND)?;
    if world.held() == 0 {
        return Err("the replica has not observed the readmission".into());
    }
    world.command(0, false, false);
    world.pass(WHILE)?;
    world.release(false);
    world.pass(WHILE)?;
    world.check_removed()?;
    world.run_to_convergence()
}

#[test]
fn late_readmission_undoes_no_later_removal() {
    late_readmission().unwrap();
}

#[test]
fn a_readmission_that_undoes_any_removal_is_found() {
    let why = found(Fault::AnyRemovalUndone, late_readmission);
    assert!(why.contains("returns by itself"), "{why}");
}

/// Another replica, or the command of an operator, records the removal of a node and does no
/// more.
fn removal_without_its_node() -> Result<(), String> {
    let mut world = replicas()?;
    let name = world.name(0);
    assert!(world.replicas[1].fleet.as_ref().is_some_and(|fleet| fleet.reconciler.nodes.contains(&name)));
    world.model.state().remove(&name, None);
    world.pass(WHILE)?;
    world.check_removed()
}

#[test]
fn a_removal_elsewhere_ends_the_session_without_a_node() {
    removal_without_its_node().unwrap();
}

#[test]
fn a_removal_elsewhere_that_is_not_noticed_is_found() {
    let why = found(Fault::RemovalUnnoticed, removal_without_its_node);
    assert!(why.contains("although it is removed"), "{why}");
}

/// An operator removes a node and readmits it at once: replicas see the deletion of its Node
/// later.
fn removal_and_readmission_at_once() -> Result<(), String> {
    let mut world = replicas()?;
    world.command(0, false, true);
    world.pass(WHILE)?;
    world.run_to_convergence()
}

#[test]
fn a_node_that_has_returned_is_not_removed_again() {
    removal_and_readmission_at_once().unwrap();
}

#[test]
fn a_late_removal_of_a_returned_node_is_found() {
    let why = found(Fault::LateRemovalCounts, removal_and_readmission_at_once);
    assert!(why.contains("is removed by itself"), "{why}");
}

/// The report of a node is on its way to the store when an operator removes the node.
fn removal_during_a_record() -> Result<(), String> {
    let mut world = alone()?;
    let name = world.name(0);
    world.place(&[0]);
    while !world.holds(0) {
        world.pass(Duration::from_millis(1))?;
    }
    world.hold(0, Way::Request);
    world.pass(SECOND)?;
    world.request_removal(&name);
    world.pass(SECOND)?;
    world.release(true);
    world.pass(WHILE)?;
    world.check_removed()
}

#[test]
fn removal_awaits_the_requests_of_its_node() {
    removal_during_a_record().unwrap();
}

#[test]
fn a_removal_that_awaits_no_requests_is_found() {
    let why = found(Fault::RemovalUnawaited, removal_during_a_record);
    assert!(why.contains("has records although it is removed"), "{why}");
}

/// A Node has changed before its node is removed. The fleet receives that late, and the deletion of
/// the Node as well. An operator may have readmitted the node meanwhile.
fn removal_before_its_changes(is_readmitted: bool) -> Result<(), String> {
    let mut world = alone()?;
    let name = world.name(0);
    world.stop_watch(0, 4 * SECOND);
    world.model.state().write(|objects, version| {
        if let Some(node) = objects.nodes.get_mut(&name) {
            node.version = version;
        }
    });
    world.request_removal(&name);
    world.pass(SECOND)?;
    if is_readmitted {
        world.admit(name);
    }
    world.pass(2 * WHILE)?;
    match is_readmitted {
        true => world.run_to_convergence(),
        false => world.check_removed(),
    }
}

#[test]
fn changes_of_a_node_from_before_its_removal_count_for_nothing() {
    removal_before_its_changes(false).unwrap();
    removal_before_its_changes(true).unwrap();
}

#[test]
fn a_late_change_that_readmits_a_removed_node_is_found() {
    let why = found(Fault::StaleNodeReadmits, || removal_before_its_changes(false));
    assert!(why.contains("returns by itself"), "{why}");
}

#[test]
fn a_readmission_before_the_source_caught_up_is_found() {
    let why = found(Fault::ReadmissionUnawaited, || removal_before_its_changes(true));
    assert!(why.contains("is removed by itself"), "{why}");
}

/// A Node is replaced while the watch loses changes: the new one comes before the deletion of the
/// old one.
fn replaced_node() -> Result<(), String> {
    let mut world = alone()?;
    let name = world.name(0);
    world.model.state().replace_node(&name);
    world.pass(WHILE)?;
    world.run_to_convergence()
}

#[test]
fn replaced_node_stays_in_the_fleet() {
    replaced_node().unwrap();
}

#[test]
fn the_deletion_of_a_replaced_node_is_found() {
    let why = found(Fault::ReplacedNodeIsGone, replaced_node);
    assert!(why.contains("is removed by itself"), "{why}");
}

/// A client replaces a Node, and an operator removes and readmits the node, while the watches of
/// all replicas are interrupted: the only deletion that they see later is that of the first Node.
fn removal_after_a_replacement() -> Result<(), String> {
    let mut world = replicas()?;
    let name = world.name(0);
    for replica in 0..world.replicas.len() {
        world.stop_watch(replica, 4 * SECOND);
    }
    world.model.state().replace_node(&name);
    world.command(0, false, true);
    world.pass(2 * WHILE)?;
    world.run_to_convergence()
}

#[test]
fn deletion_of_an_earlier_node_removes_no_returned_node() {
    removal_after_a_replacement().unwrap();
}

#[test]
fn late_deletion_of_an_earlier_node_that_counts_is_found() {
    let why = found(Fault::LateRemovalCounts, removal_after_a_replacement);
    assert!(why.contains("is removed by itself"), "{why}");
}

// --- bodies

/// The body of a new version is on its way when an older copy replaces the source. A node that
/// lacks the object connects.
fn body_read_before_a_restore() -> Result<(), String> {
    let mut world = replicas()?;
    world.place(&[0, 1]);
    world.pass(WHILE)?;
    let copy: Database = world.model.state().db.clone();
    world.hold(1, Way::Bodies);
    world.place(&[0, 1]);
    world.pass(SECOND)?;
    if world.held() == 0 {
        return Err("no body is on its way".into());
    }
    world.model.state().restore(copy);
    world.restores += 1;
    world.pass(SECOND)?;
    world.join(1, 1);
    world.pass(SECOND)?;
    world.release(false);
    world.pass(WHILE)?;
    world.run_to_convergence()
}

#[test]
fn bodies_read_before_a_restore_answer_no_load_after_it() {
    body_read_before_a_restore().unwrap();
}

#[test]
fn bodies_of_a_lost_source_are_found() {
    let why = found(Fault::BodiesOfLostSource, body_read_before_a_restore);
    assert!(why.contains("G2: x came back") || why.contains("G6"), "{why}");
}

/// The body of a version is on its way for one node. Another one, which says Hello after the next
/// version, needs that.
fn body_older_than_asked() -> Result<(), String> {
    let mut world = replicas()?;
    world.hold(1, Way::Bodies);
    world.place(&[0, 1]);
    world.pass(SECOND)?;
    if world.held() == 0 {
        return Err("no body is on its way".into());
    }
    world.place(&[0, 1]);
    world.pass(SECOND)?;
    world.join(1, 1);
    world.pass(SECOND)?;
    world.release(false);
    world.pass(WHILE)?;
    world.run_to_convergence()
}

#[test]
fn body_in_flight_serves_no_load_of_a_newer_version() {
    body_older_than_asked().unwrap();
}

#[test]
fn a_body_older_than_asked_is_found() {
    let why = found(Fault::OlderBodies, body_older_than_asked);
    assert!(why.contains("G2: x came back"), "{why}");
}

/// An older copy that lacks most objects of a connected node replaces the source.
fn restore_without_objects() -> Result<(), String> {
    let mut world = replicas()?;
    let copy: Database = world.model.state().db.clone();
    for number in 0..6 {
        world.place_as(&format!("x{number}"), &[0]);
    }
    world.pass(WHILE)?;
    world.model.state().restore(copy);
    world.restores += 1;
    world.pass(WHILE)?;
    if world.devices[0].db.len() < 4 {
        return Err("guard: the node has lost its objects".into());
    }
    world.run_to_convergence()
}

#[test]
fn restored_source_without_objects_removes_none_at_once() {
    restore_without_objects().unwrap();
}

#[test]
fn a_restored_source_that_voids_no_proofs_is_found() {
    let why = found(Fault::RestoredUnproven, restore_without_objects);
    assert!(why.contains("guard"), "{why}");
}

// --- roll-outs

/// A node that is no canary.
const LATER: usize = 4;

/// Two replicas. The second one leads a roll-out with canaries, and serves a node of the last wave.
fn rolling() -> Result<World, String> {
    let mut world = calm_with(LATER, true, |world| world.is_shared)?;
    world.set_leader(1, false);
    let objects = Selection { tier: Some(0), half: None };
    let strategy = Strategy::of(&[Wave::Canary, Wave::Rest]);
    world.model.state().create_rule("a", objects, None, Some(strategy));
    world.pass(2 * WHILE)?;
    match world.newest_revision() {
        Some(1) => Ok(world),
        other => Err(format!("the roll-out has begun with {other:?}")),
    }
}

impl World {
    /// Writes the object that the roll-out selects.
    fn roll(&mut self) {
        self.place(&[]);
        self.model.state().write(|objects, version| {
            let thing = Thing { version, tier: Some(0), ..Thing::clone(&objects.things[OBJECT]) };
            objects.things.insert(OBJECT.into(), Arc::new(thing));
        });
    }

    /// Returns the number of the newest revision that a status has.
    fn newest_revision(&self) -> Option<u64> {
        let state = self.model.state();
        let tops = state.db.objects.rules.values().filter_map(|rule| rule.rollout.top());
        tops.map(|(key, _)| key.number).max()
    }

    fn restore_copy(&mut self, copy: Database) {
        self.model.state().restore(copy);
        self.restores += 1;
    }
}

/// A copy without statuses replaces the source: all nodes get the newest versions. The leader
/// hears only then that it has begun a revision, which the copy lacks.
fn status_written_before_a_restore() -> Result<(), String> {
    let mut world = rolling()?;
    world.roll();
    let end = world.time.now + 2 * WHILE;
    let written = loop {
        world.hold(1, Way::Answer);
        while world.held() == 0 && world.time.now < end {
            world.step()?;
        }
        match world.newest_revision() {
            Some(2) => break world.held.take(),
            other if world.time.now >= end => return Err(format!("no revision has begun after {other:?}")),
            _ => world.release(false),
        }
    };
    let mut copy: Database = world.model.state().db.clone();
    World::drop_statuses(Arc::make_mut(&mut copy.objects));
    world.restore_copy(copy);
    world.pass(SECOND)?;
    if !world.holds(LATER) {
        return Err("the node lacks the newest version".into());
    }
    world.held = written;
    world.release(false);
    world.pass(WHILE)?;
    if !world.holds(LATER) {
        return Err("the node has lost the object".into());
    }
    world.run_to_convergence()
}

#[test]
fn status_written_before_a_restore_decides_nothing() {
    status_written_before_a_restore().unwrap();
}

/// The body of a new version is read for a revision when an older copy replaces the source.
fn snapshot_begun_before_a_restore() -> Result<(), String> {
    let mut world = rolling()?;
    world.roll();
    world.pass(4 * WHILE)?;
    let copy: Database = world.model.state().db.clone();
    world.hold(1, Way::Bodies);
    world.roll();
    world.pass(WHILE)?;
    if world.held() == 0 {
        return Err("no body is on its way".into());
    }
    let lost = world.model.state().db.objects.things[OBJECT].version.into();
    world.restore_copy(copy);
    world.pass(SECOND)?;
    world.release(false);
    world.pass(WHILE)?;
    {
        let state = world.model.state();
        let mut revisions = state.db.objects.rules.values().flat_map(|rule| rule.rollout.revisions());
        if revisions.any(|key| state.sets[key].version(OBJECT) == Some(&lost)) {
            return Err("a revision has a version that the restore has lost".into());
        }
    }
    world.run_to_convergence()
}

#[test]
fn snapshot_begun_before_a_restore_is_discarded() {
    snapshot_begun_before_a_restore().unwrap();
}

/// The roll-out of the older one of two rules is removed and added again, before its status is
/// deleted. Both have a revision that is open for canaries.
fn rollout_added_again() -> Result<(), String> {
    let mut world = rolling()?;
    world.roll();
    for _ in 0..6 {
        world.pass(WHILE)?;
        world.end_rollouts();
    }
    let (uid, rule) = {
        let state = world.model.state();
        let mut rules = state.db.objects.rules.iter().filter(|(_, rule)| rule.strategy.is_some());
        rules.next().map(|(uid, rule)| (uid.clone(), rule.clone())).ok_or("no rule")?
    };
    world.model.state().create_rule("b", rule.objects, rule.nodes, rule.strategy.clone());
    world.pass(2 * WHILE)?;
    world.roll();
    world.pass(WHILE)?;
    let (held, sent) = (world.devices[LATER].db.version(OBJECT).cloned(), world.devices[LATER].puts);
    if world.newest_revision() != Some(3) || held.is_none() {
        return Err(format!("{:?} is the newest revision, {held:?} is held", world.newest_revision()));
    }
    for strategy in [None, rule.strategy.clone()] {
        world.model.state().change_rule(&uid, true, |rule| rule.strategy = strategy);
    }
    world.pass(WHILE)?;
    match world.devices[LATER].puts - sent {
        0 => world.run_to_convergence(),
        _ => Err("the node was sent a version that is open for canaries".into()),
    }
}

#[test]
fn rollout_that_is_added_again_opens_no_wave() {
    rollout_added_again().unwrap();
}

// --- effects in files

/// A node loses its database while the store ingests its last effect.
fn effect_of_a_lost_database() -> Result<(), String> {
    let mut world = alone()?;
    world.place(&[0]);
    world.pass(WHILE)?;
    world.hold(0, Way::Answer);
    world.made += 1;
    let (now, made, random) = (world.time.now, world.made, world.time.random.next());
    let device = &mut world.devices[0];
    let version = device.db.version(OBJECT).ok_or("the node lacks the object")?.clone();
    device.post_effect(now, made, (OBJECT.into(), version), OBJECT);
    world.pass(SECOND)?;
    let answer = world.held.take();
    if answer.as_ref().is_none_or(|held| held.gates.is_empty()) {
        return Err("no effect is being stored".into());
    }
    world.devices[0].lose_database(now + SECOND, random);
    world.pass(WHILE)?;
    world.held = answer;
    world.release(false);
    world.pass(WHILE)?;
    world.run_to_convergence()
}

#[test]
fn effect_stored_late_does_not_outlive_the_database() {
    effect_of_a_lost_database().unwrap();
}

#[test]
fn an_effect_of_a_lost_database_is_found() {
    let why = found(Fault::LateEffects, effect_of_a_lost_database);
    assert!(why.contains("as reported by a lost database"), "{why}");
}

// --- changes of the source

/// A node has received a change from another replica. Here, its records are read while the same
/// change spreads.
fn records_during_a_broadcast() -> Result<(), String> {
    let mut world = replicas()?;
    world.join(4, 0);
    world.place(&[0, 4]);
    world.pass(WHILE)?;
    world.stop_watch(1, WHILE + 2 * SECOND);
    world.place(&[0, 4]);
    world.pass(WHILE)?;
    world.hold(1, Way::Answer);
    world.connect(4, 1);
    world.pass(SECOND)?;
    // One unit of work per turn, and few turns.
    (world.turns, world.pause) = (1, Duration::from_millis(200));
    let broadcasts = |world: &mut World| {
        let fleet = world.replicas[1].fleet.as_mut()?;
        fleet.reconciler.work.set_part(1);
        Some(fleet.reconciler.broadcasts.count())
    };
    let before = broadcasts(&mut world);
    while broadcasts(&mut world) == before {
        world.step()?;
    }
    if world.held() == 0 {
        return Err("no records are on their way".into());
    }
    world.release(false);
    world.pass(WHILE)?;
    world.turns = 1000;
    world.run_to_convergence()
}

#[test]
fn records_read_during_a_broadcast_cost_nothing() {
    records_during_a_broadcast().unwrap();
}

#[test]
fn an_input_before_earlier_broadcasts_is_found() {
    let why = found(Fault::InputBeforeBroadcasts, records_during_a_broadcast);
    assert!(why.contains("which node 4 holds"), "{why}");
}

/// An object is deleted while the watch loses changes.
fn deletion_that_the_watch_loses() -> Result<(), String> {
    let mut world = alone()?;
    world.place(&[0]);
    world.pass(WHILE)?;
    world.model.state().write(|objects, _| objects.things.clear());
    world.model.state().lose_changes(0);
    world.with_fleet(0, |_| {});
    world.pass(WHILE)?;
    if world.holds(0) { Err("the node keeps the object".into()) } else { Ok(()) }
}

#[test]
fn objects_that_a_list_lacks_are_removed() {
    deletion_that_the_watch_loses().unwrap();
}

#[test]
fn objects_that_a_list_lacks_are_found() {
    let why = found(Fault::MissingKept, deletion_that_the_watch_loses);
    assert!(why.contains("keeps the object"), "{why}");
}

/// While the watch loses changes, the object of a tier is placed on a node by name, and the node
/// leaves the tier: at each time the object is desired there. The list has the Node first, and the
/// fleet has little time for each part of it.
fn placement_changed_in_a_list() -> Result<(), String> {
    let mut world = calm(|world| !world.is_shared && !world.is_external && world.part == 1)?;
    let name = world.name(0);
    let tier = world.model.state().db.objects.nodes[&name].tier;
    world.place(&[]);
    world.model.state().write(|objects, version| {
        let thing = Thing { version, tier: Some(tier), ..Thing::clone(&objects.things[OBJECT]) };
        objects.things.insert(OBJECT.into(), Arc::new(thing));
    });
    world.pass(WHILE)?;
    assert!(world.holds(0));
    world.place(&[0]);
    world.model.state().set_tier(&name, 1 - tier);
    world.model.state().lose_changes(0);
    world.with_fleet(0, |_| {});
    world.pass(WHILE)?;
    world.run_to_convergence()
}

#[test]
fn incomplete_list_removes_nothing_that_is_desired() {
    placement_changed_in_a_list().unwrap();
}

// --- reports of nodes

/// A client replaces a Node while the answer to the report of its node is on its way.
#[test]
fn late_answer_to_a_report_says_nothing_of_a_later_node() {
    let mut world = alone().unwrap();
    let name = world.name(0);
    world.hold(0, Way::Answer);
    world.made += 1;
    let (now, made) = (world.time.now, world.made);
    world.devices[0].post_report(now, made);
    world.pass(WHILE).unwrap();
    assert!(world.held() > 0);
    world.model.state().replace_node(&name);
    world.pass(WHILE).unwrap();
    world.release(false);
    world.pass(WHILE).unwrap();
    world.connect(0, 0);
    world.pass(WHILE).unwrap();
    assert!(world.model.state().db.objects.nodes[&name].is_reported);
}

// --- what a broker may do

/// Removes the object of a node, places it again, and delivers the frame with the removal once
/// more, as it was or under a new number. Returns whether the node has removed the object.
fn removal_once_more(is_new: bool) -> Result<bool, String> {
    let mut world = behind_a_broker()?;
    world.place(&[0]);
    world.pass(WHILE)?;
    world.place(&[]);
    world.pass(WHILE)?;
    world.place(&[0]);
    world.pass(WHILE)?;
    let (0, frame) = world.last_removal.take().ok_or("nothing was removed")? else {
        return Err("another node had the object".into());
    };
    assert!(world.holds(0));
    let mut frame = String::from_utf8(frame).map_err(|error| error.to_string())?;
    if is_new {
        let (before, number) = frame.rsplit_once("\"receipt\":").ok_or("the frame has no number")?;
        frame = format!("{before}\"receipt\":9{number}");
    }
    world.deliver_down(0, frame.into_bytes());
    while world.holds(0) && world.time.next_at().is_some_and(|at| at < 4 * WHILE + WHILE) {
        world.step()?;
    }
    let is_removed = !world.holds(0);
    world.pass(WHILE)?;
    world.run_to_convergence()?;
    Ok(is_removed)
}

#[test]
fn only_a_frame_that_a_broker_repeats_removes_a_placed_object() {
    assert_eq!(removal_once_more(false), Ok(true), "and it is sent again");
    let why = removal_once_more(true).unwrap_err();
    assert!(why.contains("G3"), "{why}");
}
