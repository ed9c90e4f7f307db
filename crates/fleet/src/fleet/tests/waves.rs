//! A roll-out with ten thousand nodes: real machines on both sides, time that the test advances.
//! What nodes have is judged by what their rows hold.

use std::collections::{BTreeMap, BTreeSet};

use super::turns::{NODES, State, World, queue_frames};
use super::*;
use crate::fleet::overview::row_of;
use crate::node_name;
use crate::work::MAX_TURN;
use edgesync_admin::cloud::{RolloutStatus, SummaryState};
use edgesync_broker::Channel;
use edgesync_object::file_rules::FILE_RULES_ANNOTATION;
use edgesync_object::urgency::Urgency;
use edgesync_object::{Labels, Object, kinds};
use edgesync_placement::Summary;
use edgesync_protocol::frame::{Lease, Up, Upload};
use edgesync_protocol::metered::MeteredLink;
use edgesync_protocol::upload::{Lane, UploadItem};
use edgesync_rollout::status::PauseReason;
use edgesync_rollout::{Command, Rollout};
use serde_json::value::RawValue;

const RULE: &str = r#"
[[placement]]
name = "web"
nodes = { names = ["*"] }
objects = { kinds = ["ConfigMap"] }
rollout = { waves = [{ percent = 1, heldOnly = true }, { percent = 10, heldOnly = true }, { heldOnly = true }], soak = "1m", healthyWithin = "10m", settle = "1s" }
"#;
/// Turns after which a condition has to hold.
const TURNS: usize = 20_000;

thread_local! {
    static BEGUN: (Timestamp, Instant) = (Timestamp::now(), Instant::now());
}

/// Returns the rule with its last wave only.
fn one_wave() -> String {
    RULE.replace("{ percent = 1, heldOnly = true }, { percent = 10, heldOnly = true }, ", "")
}

/// Returns the time by the paused clock of this test.
fn virtual_now() -> Timestamp {
    BEGUN.with(|(wall, paused)| *wall + paused.elapsed())
}

/// The fleet with the numbers of the items that devices have uploaded.
struct Waves<const SHARED: bool = false> {
    world: World<SHARED>,
    uploaded: BTreeMap<String, u64>,
    /// Names of the nodes by wave.
    waves: [BTreeSet<String>; 3],
}

impl Waves {
    async fn start() -> Self {
        Self::of(NODES, RULE).await
    }
}

impl<const SHARED: bool> Waves<SHARED> {
    /// Starts a fleet of so many nodes with this rule.
    async fn of(nodes: usize, rule: &str) -> Self {
        let mut world = World::of(nodes, rule, State::default()).await;
        world.fleet.reconciler.clock = virtual_now;
        let waves = json!({"waves": [{"percent": 1}, {"percent": 10}, {}]});
        let rollout = Rollout::parse(&waves, "rollout").unwrap();
        let mut names: [BTreeSet<String>; 3] = Default::default();
        for name in world.devices.keys() {
            names[rollout.waves.wave_of(name, &Labels::default()).unwrap()].insert(name.clone());
        }
        Self { world, uploaded: BTreeMap::new(), waves: names }
    }

    async fn turn(&mut self) {
        self.world.carry();
        self.world.turn().await;
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        self.world.longest = 0;
        let mut turns = 0;
        while !condition(self) {
            self.turn().await;
            turns += 1;
            assert!(turns < TURNS, "{what}: {:?}", self.shown());
        }
        let longest = self.world.longest;
        assert!(longest <= MAX_TURN, "{what}: a turn of {longest} units, of {MAX_TURN} that are allowed");
    }

    /// Returns what operators are shown.
    fn shown(&self) -> RolloutStatus {
        let (answer, mut answered) = tokio::sync::oneshot::channel();
        self.world.fleet.show_rollout("web", answer);
        answered.try_recv().unwrap().unwrap()
    }

    /// Returns the numbers of the stack's revisions, and the waves that each is open for.
    fn stack(&self) -> Vec<(u64, usize)> {
        self.shown().revisions.iter().map(|revision| (revision.number, revision.open)).collect()
    }

    /// Returns the reason that operators are given for the version of an object on a node.
    fn explained(&mut self, node: &str, object: &str) -> String {
        let (answer, mut answered) = tokio::sync::oneshot::channel();
        let summary = Some(Box::new(self.world.summary(object)));
        self.world.fleet.administer(AdminRequest::Explain(node_name(node), summary, answer));
        let explained = answered.try_recv().unwrap().unwrap();
        explained.object.unwrap().facts.unwrap().because.pop().unwrap()
    }

    /// Executes a command. Returns the number of turns until it was answered.
    async fn command(&mut self, command: Command) -> usize {
        let (answer, mut answered) = tokio::sync::oneshot::channel();
        self.world.fleet.administer(AdminRequest::MoveRollout("web".to_owned(), command, answer));
        for turns in 1..TURNS {
            self.turn().await;
            if let Ok(answer) = answered.try_recv() {
                answer.unwrap();
                return turns;
            }
        }
        panic!("no answer")
    }

    /// Returns the nodes that hold this version of an object.
    fn holders(&self, name: &str, version: u64) -> BTreeSet<String> {
        let version = version.to_string();
        let holds =
            |device: &Device| device.rows.0.get(name).is_some_and(|(held, _)| held.as_str() == version);
        let holders = self.world.devices.iter().filter(|(_, device)| holds(device));
        holders.map(|(name, _)| name.clone()).collect()
    }

    /// Lets nodes report that a version of an object is in effect, or is not.
    fn report(&mut self, nodes: &BTreeSet<String>, name: &str, version: u64, is_in_effect: bool) {
        for node in nodes {
            let seq = self.uploaded.entry(node.clone()).and_modify(|seq| *seq += 1).or_insert(1);
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "plant", "name": name});
            let version = version.to_string();
            let effect = match is_in_effect {
                true => json!({"state": "InEffect", "version": version}),
                false => json!({"state": "NotInEffect", "message": "check: exit code 1"}),
            };
            let mut content = json!({"uid": name, "object": object, "wanted": version, "since": 1});
            content.as_object_mut().unwrap().extend(effect.as_object().unwrap().clone());
            let content = RawValue::from_string(json!({ "effect": content }).to_string()).unwrap();
            let device = &self.world.devices[node];
            let upload = Upload {
                session: device.machine.session().unwrap().to_owned(),
                outbox: "o".to_owned(),
                lane: Lane::Status,
                confirmed: *seq - 1,
                items: vec![UploadItem { seq: *seq, content }],
            };
            let payload = Up::Upload(upload).encode(1024).unwrap();
            let node = node_name(node);
            self.world.up.push_back(FleetEvent::Message { node, channel: Channel::Up, payload });
        }
    }

    /// Writes the Node of a node with its file rules, as reported.
    fn set_file_rules(&self, name: &str, rules: &str) {
        self.set_node(name, rules, &[]);
    }

    /// Writes the Node of a node with its file rules, and with these conditions and their reasons:
    /// a condition without a reason is true.
    fn set_node(&self, name: &str, rules: &str, conditions: &[(&str, Option<&str>)]) {
        let condition = |(name, reason): &(&str, Option<&str>)| {
            let status = if reason.is_none() { "True" } else { "False" };
            json!({"type": format!("edgesync.io/{name}"), "status": status, "reason": reason})
        };
        let conditions: Vec<serde_json::Value> = conditions.iter().map(condition).collect();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "uid": name, "annotations": {FILE_RULES_ANNOTATION: rules}},
            "status": {"conditions": conditions},
        });
        let node: Object = serde_json::from_value(node).unwrap();
        let summary = Summary::of(&node, Arc::new(kinds::guess("v1", "Node", false)), 1.into());
        self.world.send(Change::Set(Arc::new(summary)));
    }

    /// Changes an object. Returns its version.
    fn put(&mut self, name: &str) -> u64 {
        self.world.put(name);
        self.world.summary(name).version.as_str().parse().unwrap()
    }

    fn presence(&mut self, node: &str, online: bool) {
        let payload = json!({"connection": "c", "online": online}).to_string().into_bytes();
        let name = node_name(node);
        self.world.up.push_back(FleetEvent::Message { node: name, channel: Channel::Presence, payload });
        let device = self.world.devices.get_mut(node).unwrap();
        match online {
            true => device.connected(),
            false => device.machine.disconnected(),
        }
        queue_frames(node, device, &mut self.world.up);
    }

    /// Ends the session of a node, and begins the next one.
    async fn reconnect(&mut self, name: &str) {
        self.presence(name, false);
        let node = node_name(name);
        let is_away =
            |fleet: &Self| !fleet.world.fleet.reconciler.nodes.named(&node).unwrap().session.is_connected();
        self.until("the node is away", is_away).await;
        self.presence(name, true);
        let is_back =
            |fleet: &Self| fleet.world.fleet.reconciler.nodes.named(&node).unwrap().machine.in_sync();
        self.until("the node is back", is_back).await;
    }

    /// Lets time pass in steps of ten minutes.
    async fn pass(&mut self, time: Duration) {
        let step = Duration::from_secs(600);
        for _ in 0..time.as_secs() / step.as_secs() {
            tokio::time::advance(step).await;
            for _ in 0..50 {
                self.turn().await;
            }
        }
    }
}

fn pause() -> Command {
    Command::Pause { by: "ada".to_owned() }
}

#[tokio::test]
async fn bad_version_stays_at_one_wave_of_ten_thousand_nodes() {
    let mut fleet = Waves::start().await;
    let canaries = fleet.waves[0].clone();
    assert!((50..200).contains(&canaries.len()), "{} canaries", canaries.len());
    let (good, other) = (fleet.put("web"), fleet.put("db"));
    fleet.world.connect_all();
    fleet.world.until_in_sync("new nodes", 2).await;
    fleet.until("what is placed is the stable revision", |fleet| fleet.stack() == [(1, 3)]).await;
    fleet.report(&canaries, "web", good, true);
    fleet.report(&canaries, "db", other, true);

    // The canaries refuse the bad version, and no other node is ever sent it.
    let bad = fleet.put("web");
    let canaries_hold = |fleet: &Waves| fleet.holders("web", bad) == fleet.waves[0];
    fleet.until("the canaries hold the bad version", canaries_hold).await;
    fleet.report(&canaries, "web", bad, false);
    fleet.until("the roll-out pauses", |fleet| fleet.shown().paused.is_some()).await;
    fleet.pass(Duration::from_secs(24 * 3600)).await;
    assert_eq!(fleet.holders("web", bad), canaries);
    assert_eq!(fleet.holders("web", good).len(), NODES - canaries.len());
    let shown = fleet.shown();
    assert_eq!((shown.paused.as_deref(), fleet.stack()), (Some("FailuresExceeded"), vec![(1, 3), (2, 1)]));
    assert_eq!((shown.waves[0].failed, shown.waves[1].open), (canaries.len(), false));
    let first = &shown.waves[0].failures[0];
    let hidden = "ConfigMap 'plant/web': NotInEffect: message hidden, it may quote a Secret";
    assert_eq!((&first.node, first.message.as_str()), (canaries.first().unwrap(), hidden));

    for (wave, (number, version)) in [(2, bad), (1, good), (1, good)].into_iter().enumerate() {
        let node = fleet.waves[wave].first().unwrap().clone();
        let wave = wave + 1;
        let why =
            format!("revision {number} of the roll-out of web, for wave {wave} of 3, has version {version}");
        assert_eq!(fleet.explained(&node, "web"), why);
    }

    // It does not return after an undo, neither by itself nor with a fix of another object.
    fleet.command(Command::Undo { by: "ada".to_owned(), revision: 2, override_windows: true }).await;
    fleet.until("all have the good version", |fleet| fleet.holders("web", good).len() == NODES).await;
    for (name, device) in &fleet.world.devices {
        let is_urgent = device.rows.1["web"].1.contains("override-window");
        assert_eq!(is_urgent, canaries.contains(name), "only what goes back ignores the windows of {name}");
    }
    fleet.report(&canaries, "web", good, true);
    fleet.pass(Duration::from_secs(3600)).await;
    assert_eq!(fleet.stack(), [(1, 3)]);
    let fixed = fleet.put("db");
    let holds_canary = |fleet: &Waves| fleet.holders("db", fixed) == fleet.waves[0];
    fleet.until("the canaries have the fix of the other object", holds_canary).await;
    fleet.report(&canaries, "db", fixed, true);
    let is_stable = |fleet: &Waves| fleet.stack() == [(3, 3)] && fleet.holders("db", fixed).len() == NODES;
    fleet.until("the fix of the other object reaches all", is_stable).await;
    assert!(fleet.holders("web", good).len() == NODES && fleet.holders("web", bad).is_empty());

    // A third of the nodes is away, and gets the fix when it returns.
    let away: Vec<String> = fleet.waves[2].iter().step_by(3).cloned().collect();
    away.iter().for_each(|node| fleet.presence(node, false));
    let fix = fleet.put("web");
    let holds_canary = |fleet: &Waves| fleet.holders("web", fix) == fleet.waves[0];
    fleet.until("the canaries have the fix", holds_canary).await;
    fleet.report(&canaries, "web", fix, true);
    fleet.until("the second wave opens", |fleet| fleet.stack() == [(3, 3), (4, 2)]).await;
    // A pause takes hold within two seconds, whatever is being counted.
    let turns = fleet.command(pause()).await;
    assert!(turns <= 4, "{turns} turns until the pause");
    fleet.pass(Duration::from_secs(3600)).await;
    assert!(fleet.holders("web", fix).is_disjoint(&fleet.waves[2]), "paused");
    let resume = Command::Resume { by: "ada".to_owned(), reason: PauseReason::Command };
    fleet.command(resume).await;
    let last = fleet.waves[2].len() - away.len();
    let all_here = |fleet: &Waves| fleet.shown().waves[2].held_only == last;
    fleet.until("the others have answered", all_here).await;
    assert_eq!(fleet.holders("web", fix).len(), NODES - away.len());
    fleet.pass(Duration::from_secs(2 * 3600)).await;
    assert_eq!(fleet.stack(), [(4, 3)], "nodes that are away do not hold up the others");
    // The exchange after their Hello brings it: none is in sync before it has it.
    away.iter().for_each(|node| fleet.presence(node, true));
    let have_it = |fleet: &Waves| {
        let holders = fleet.holders("web", fix);
        let is_early =
            |node: &&String| !holders.contains(*node) && fleet.world.devices[*node].machine.in_sync();
        assert_eq!(away.iter().find(is_early), None);
        holders.len() == NODES
    };
    fleet.until("those that return have it", have_it).await;
}

/// An object that was new on a node counted as good until its first effect arrived.
#[tokio::test]
async fn new_object_that_a_file_rule_concerns_is_waited_for() {
    let rule = one_wave();
    let mut fleet = Waves::of(3, &rule.replace("heldOnly = true ", "")).await;
    let names: BTreeSet<String> = fleet.world.devices.keys().cloned().collect();
    fleet.put("web");
    fleet.world.connect_all();
    for name in &names {
        fleet.set_file_rules(name, r#"[{"kinds":["ConfigMap"],"names":["new"],"selector":"!none"}]"#);
    }
    fleet.until("what is placed is the stable revision", |fleet| fleet.stack() == [(1, 1)]).await;
    let version = fleet.put("new");
    let is_held =
        |fleet: &Waves| fleet.holders("new", version) == names && fleet.shown().waves[0].pending == 3;
    fleet.until("all hold the new object, and none has it in effect", is_held).await;
    for _ in 0..60 {
        tokio::time::advance(Duration::from_secs(5)).await;
        fleet.turn().await;
    }
    let shown = fleet.shown();
    assert_eq!((fleet.stack(), shown.waves[0].pending), (vec![(1, 1), (2, 1)], 3), "{shown:?}");

    // Rules that concern another object, and rules that are not known.
    let mut rest = names.clone();
    let others = [(r#"[{"names":["other"]}]"#, (1, 0)), (r#"[{"later":1}]"#, (1, 1))];
    for (rules, (good, held_only)) in others {
        fleet.set_file_rules(&rest.pop_first().unwrap(), rules);
        let is_judged = |fleet: &Waves| {
            let wave = &fleet.shown().waves[0];
            (wave.good, wave.held_only) == (good, held_only)
        };
        fleet.until(rules, is_judged).await;
    }
    fleet.report(&rest, "new", version, true);
    fleet.until("it is in effect", |fleet| fleet.shown().waves[0].good == 2).await;
    fleet.until("the revision is stable", |fleet| fleet.stack() == [(2, 1)]).await;
}

/// It was a failure after `healthyWithin`, and the node counted as one that lags.
#[tokio::test]
async fn object_that_waits_for_a_metered_link_fails_no_roll_out() {
    let rule = one_wave();
    let mut fleet = Waves::<false>::of(3, &rule).await;
    fleet.put("web");
    fleet.world.connect_all();
    fleet.until("what is placed is the stable revision", |fleet| fleet.stack() == [(1, 1)]).await;
    let name = fleet.world.devices.keys().next().unwrap().clone();
    let set_link = |fleet: &mut Waves, link| {
        let device = fleet.world.devices.get_mut(&name).unwrap();
        device.machine.set_metered(device.origin.elapsed(), link, random());
        queue_frames(&name, device, &mut fleet.world.up);
    };
    set_link(&mut fleet, Some(MeteredLink { urgency: Urgency::High, ..MeteredLink::default() }));
    let version = fleet.put("new");
    let waits = |fleet: &Waves| {
        let wave = &fleet.shown().waves[0];
        (wave.held_only, wave.waiting) == (2, 1)
    };
    fleet.until("the others hold the new object", waits).await;
    for _ in 0..130 {
        tokio::time::advance(Duration::from_secs(5)).await;
        fleet.turn().await;
    }
    let shown = fleet.shown();
    assert_eq!((shown.waves[0].failed, shown.waves[0].waiting), (0, 1), "{shown:?}");
    let reconciler = &fleet.world.fleet.reconciler;
    let node = reconciler.nodes.named(&node_name(&name)).unwrap();
    assert_eq!(row_of(node, &reconciler.nodes.lifecycle, false).state, SummaryState::Waiting);
    assert_eq!(node.progress.lag(Duration::MAX), Duration::ZERO);
    set_link(&mut fleet, None);
    fleet.until("it has the new object", |fleet| fleet.holders("new", version).len() == 3).await;
    for _ in 0..30 {
        tokio::time::advance(Duration::from_secs(5)).await;
        fleet.turn().await;
    }
    fleet.until("the revision is stable", |fleet| fleet.stack() == [(2, 1)]).await;
}

/// The failures of a roll-out were shown without a reason.
#[tokio::test]
async fn failures_have_the_message_of_the_node_unless_it_may_quote_secrets() {
    let rule = one_wave();
    let mut fleet = Waves::<false>::of(3, &rule.replace("heldOnly = true ", "")).await;
    let names: BTreeSet<String> = fleet.world.devices.keys().cloned().collect();
    fleet.put("web");
    fleet.world.connect_all();
    let rules = [r#"[{"kinds":["ConfigMap"]}]"#, r#"[{"kinds":["ConfigMap","Secret"]}]"#, r#"[{"later":1}]"#];
    for (name, rules) in names.iter().zip(rules) {
        fleet.set_file_rules(name, rules);
    }
    fleet.until("what is placed is the stable revision", |fleet| fleet.stack() == [(1, 1)]).await;
    let bad = fleet.put("web");
    fleet.until("all hold the bad version", |fleet| fleet.holders("web", bad) == names).await;
    fleet.report(&names, "web", bad, false);
    fleet.until("it has failed on all", |fleet| fleet.shown().waves[0].failed == 3).await;
    let shown = fleet.shown();
    let messages: Vec<&str> =
        shown.waves[0].failures.iter().map(|failed| failed.message.split(": ").last().unwrap()).collect();
    let hidden = "message hidden, it may quote a Secret";
    assert_eq!(messages, ["exit code 1", hidden, hidden]);
    let first = &shown.waves[0].failures[0];
    assert_eq!(first.message, "ConfigMap 'plant/web': NotInEffect: check: exit code 1");

    // The same message is in the status of the rule.
    let rollouts = &fleet.world.fleet.reconciler.desired.rollouts;
    let index = rollouts.index(&crate::source::RuleKey::Configured("web".into())).unwrap();
    let conditions = fleet.world.fleet.rollout_loop.conditions(rollouts, index).unwrap();
    let degraded = conditions.into_iter().find(|one| one.r#type == "Degraded").unwrap();
    let expected = format!(
        "revision 2 is open for 1 of 1 waves: 3 of 3 nodes in wave 1 have failed, 5 % may; {}: {}",
        first.node, first.message
    );
    assert_eq!((degraded.status, degraded.message), (true, expected));
}

/// Over a cluster, a replica knows the effects of the session alone.
#[tokio::test]
async fn effects_of_an_earlier_session_are_those_of_the_node() {
    let rule = one_wave();
    let rule = rule.replace("heldOnly = true ", "").replace("1m", "1h");
    let mut fleet = Waves::<true>::of(1, &rule).await;
    let name = fleet.world.devices.keys().next().unwrap().clone();
    let (names, rules) = (BTreeSet::from([name.clone()]), r#"[{"kinds":["ConfigMap"]}]"#);
    fleet.put("web");
    fleet.put("db");
    fleet.set_file_rules(&name, rules);
    fleet.world.connect_all();
    fleet.until("what is placed is the stable revision", |fleet| fleet.stack() == [(1, 1)]).await;

    // Of an object that the revision does not change, nothing is awaited.
    let second = fleet.put("web");
    let is_held = |fleet: &Waves<true>| !fleet.holders("web", second).is_empty();
    fleet.until("the change arrives", is_held).await;
    fleet.until("it is waited for", |fleet| fleet.shown().waves[0].pending == 1).await;
    fleet.report(&names, "web", second, true);
    fleet.until("it is in effect", |fleet| fleet.shown().waves[0].good == 1).await;

    // In the next session it stays so, until the node reports otherwise.
    fleet.reconnect(&name).await;
    fleet.pass(Duration::from_secs(600)).await;
    assert_eq!(fleet.shown().waves[0].good, 1);
    fleet.report(&names, "web", second, false);
    fleet.until("it has failed", |fleet| fleet.shown().waves[0].failed == 1).await;

    // An effect that was not seen here is judged by the conditions of the Node.
    fleet.reconnect(&name).await;
    let third = fleet.put("web");
    fleet.until("the fix arrives", |fleet| !fleet.holders("web", third).is_empty()).await;
    fleet.until("it is waited for", |fleet| fleet.shown().waves[0].pending == 1).await;
    fleet.set_node(&name, rules, &[("InSync", None), ("FilesInEffect", None)]);
    fleet.until("a minute passes", |fleet| fleet.shown().waves[0].good == 1).await;
}

/// It was incomplete, and a failure after `healthyWithin`.
#[tokio::test]
async fn node_of_another_replica_that_waits_for_its_link_fails_no_roll_out() {
    let rule = one_wave();
    let mut fleet = Waves::<true>::of(1, &rule).await;
    let name = fleet.world.devices.keys().next().unwrap().clone();
    fleet.put("web");
    fleet.set_node(&name, "", &[]);
    fleet.world.connect_all();
    fleet.until("what is placed is the stable revision", |fleet| fleet.stack() == [(1, 1)]).await;
    fleet.presence(&name, false);
    let reconciler = &mut fleet.world.fleet.reconciler;
    let renewed = virtual_now().as_microsecond();
    let lease = Lease { session: "s".into(), seconds: 3600, acquired: renewed, renewed, check_in: None };
    reconciler.nodes.lifecycle.renewed(reconciler.now(), virtual_now(), &node_name(&name), &lease);
    fleet.put("web");
    fleet.until("the change is a revision", |fleet| fleet.stack() == [(1, 1), (2, 1)]).await;
    fleet.set_node(&name, "", &[("InSync", Some("ObjectsWaiting"))]);
    fleet.until("a minute passes", |fleet| fleet.shown().waves[0].waiting == 1).await;
    fleet.pass(Duration::from_secs(1200)).await;
    assert_eq!(fleet.shown().waves[0].waiting, 1);
    fleet.set_node(&name, "", &[("InSync", None)]);
    fleet.until("it has the change", |fleet| fleet.shown().waves[0].held_only == 1).await;
}
