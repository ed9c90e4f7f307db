//! The faults of the world: changes in the cluster, cuts, crashes, lost and restored databases.

use std::time::Duration;

use serde_json::Value;

use super::events::Event;
use super::objects::{self, NAMESPACE, NODE};
use super::outbox::{self, Item};
use super::world::{Disk, MAX_OBJECT, World};
use edgesync_protocol::simulation::timeline::Simulated;
use edgesync_protocol::upload::Lane;

impl World {
    fn some_object(&mut self) -> Value {
        self.definitions += 1;
        let generation = self.definitions;
        let mut below = |n: u64| self.time.random.below(n);
        let size = if below(40) == 0 { MAX_OBJECT } else { 20 };
        let bad = below(50) == 0;
        let name =
            |prefix: &str, n: u64| if bad { format!("{prefix}..bad") } else { format!("{prefix}-{n}") };
        match below(12) {
            0..=3 => {
                let configs = [below(6), below(6), below(6)];
                objects::pod(&name("pod", below(5)), generation, configs, below(3), size)
            }
            4..=6 => objects::config("ConfigMap", &name("config", below(6)), generation, size),
            7 => objects::config("Secret", &name("secret", below(3)), generation, size),
            8 => objects::config("ConfigMap", "fetched", generation, size),
            9 => match below(2) {
                0 => objects::config("Secret", "fetched", generation, size),
                _ => objects::config("ConfigMap", &name("app", below(4)), generation, size),
            },
            _ => objects::widget(&name("widget", below(6)), generation, size),
        }
    }

    pub(super) fn change_something(&mut self) {
        let object = self.some_object();
        let is_bound = object["kind"] != "Pod" || self.cloud.object("node", "", NODE).is_some();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let now = self.time.now;
        match self.time.random.below(10) {
            0 | 1 => {
                let gone = self.cloud.delete(now, &kind, NAMESPACE, &name);
                self.time.say(|| format!("cluster: {kind} {name} is deleted: {gone:?}"));
            }
            _ if !is_bound => {}
            2 | 3 => {
                let uid = self.cloud.recreate(now, object);
                self.time.say(|| format!("cluster: {kind} {name} is recreated: {uid}"));
            }
            _ => {
                let uid = self.cloud.apply(now, object);
                self.time.say(|| format!("cluster: {kind} {name} is applied: {uid}"));
            }
        }
    }

    fn say_something(&mut self) {
        for _ in 0..self.time.random.below(3) {
            self.made += 1;
            let number = self.made;
            let lane = if self.time.random.percent(50) { Lane::Events } else { Lane::Bulk };
            if outbox::put(&mut self.disk.outbox, lane, Item::Event(number)) {
                self.owed.insert(number);
            }
        }
        if self.time.random.percent(20) {
            self.report_node();
        }
        let life = self.life;
        self.time.after(5, Event::Marks { life });
    }

    pub(super) fn run_chaos(&mut self) -> Result<(), String> {
        for _ in 0..self.chaos.steps {
            for _ in 0..self.time.random.below(4) {
                self.change_something();
            }
            if self.agent.is_some() {
                self.say_something();
            }
            self.strike();
            if self.link.is_none() && self.time.random.percent(70) {
                if self.agent.is_none() {
                    self.start_agent();
                }
                self.connect();
            }
            let time = match self.time.random.below(10) {
                0 => 60_000,
                1..=4 => 4_000,
                _ => 100,
            };
            let time = Duration::from_millis(self.time.random.below(time) + 1);
            self.pass(time)?;
        }
        Ok(())
    }

    fn strike(&mut self) {
        let chaos = self.chaos;
        if self.time.random.percent(chaos.cut) {
            self.cut();
        }
        if self.time.random.percent(chaos.crash) {
            self.stop_agent();
        }
        if self.time.random.percent(chaos.restart) {
            if chaos.switches {
                let on = self.time.random.percent(50);
                self.cloud.settings.dynamic_controller = on;
            }
            let on = self.cloud.settings.dynamic_controller;
            self.time.say(|| format!("CloudCore restarts, dynamic controller {on}"));
            self.cloud.restart(self.time.now);
        }
        if self.time.random.percent(chaos.full) {
            self.full_until = self.time.now + Duration::from_millis(self.time.random.below(40_000));
            self.time.say(|| "the store is full".into());
        }
        if self.time.random.percent(8) {
            self.backup = self.disk.clone();
        }
        if self.time.random.percent(chaos.lose_database) {
            self.stop_agent();
            let id = self.time.random.next();
            self.replace_disk(Disk::new(id));
            self.time.say(|| "the database is lost".into());
        }
        if self.time.random.percent(chaos.lose_database) {
            self.stop_agent();
            self.replace_disk(self.backup.clone());
            self.time.say(|| "an older copy takes the place of the database".into());
        }
        if self.time.random.percent(chaos.remove_node) {
            self.time.say(|| "the Node is deleted".into());
            self.cloud.delete(self.time.now, "node", "", NODE);
            self.damaged = true;
            self.time.after(3000, Event::Collect);
        }
    }

    /// Replaces the disk; Events missing on it are not owed any more.
    pub(super) fn replace_disk(&mut self, disk: Disk) {
        self.disk = disk;
        self.damaged = true;
        let waits = |item: Item| match item {
            Item::Event(number) => Some(number),
            Item::Node(_) => None,
        };
        let waiting: Vec<u64> = self.disk.outbox.rows.values().copied().filter_map(waits).collect();
        let arrived = self.arrived();
        self.owed.retain(|number| waiting.contains(number) || arrived.contains(number));
    }

    pub(super) fn collect_garbage(&mut self) {
        if self.cloud.object("node", "", NODE).is_none() {
            self.cloud.delete(self.time.now, "lease", "kube-node-lease", NODE);
            let pods: Vec<String> = (0..5).map(|n| format!("pod-{n}")).chain(["pod..bad".into()]).collect();
            for pod in pods {
                self.cloud.delete(self.time.now, "pod", NAMESPACE, &pod);
            }
        } else {
            // The node was registered again before: its Lease belongs to a deleted Node.
            self.cloud.delete(self.time.now, "lease", "kube-node-lease", NODE);
        }
    }
}
