//! The faults of the world: changes in the cloud, cuts, crashes, lost and restored databases.

use std::time::Duration;

use super::super::model::EdgeDb;
use super::{Event, Sizes, World};
use crate::simulation::timeline::Simulated;

impl World {
    pub(in crate::simulation) fn change_something(&mut self) {
        if self.cloud.is_none() {
            return;
        }
        let name = match self.time.random.below(40) {
            0 => "bad..name".to_owned(),
            n => format!("{}-{n}", self.word_for(n)),
        };
        let (max_frame, max_object) = (self.sizes.max_frame(), self.sizes.max_object());
        let size = match (self.sizes, self.time.random.below(60)) {
            // A patch of half of it does not fit a frame.
            (Sizes::Small, 3 | 4) if self.cloud_db.patches => max_object - 1000,
            (Sizes::Small, 0) => max_object + 1000,
            (Sizes::Small, 1 | 2) => 2 * max_frame + 3000,
            (Sizes::Default, 0) if self.time.random.percent(10) => 2 * max_frame + 3000,
            _ => 20,
        };
        let life = self.cloud_life;
        let mut touched = Vec::new();
        match self.time.random.below(10) {
            0..=6 => touched.push(self.put(&name, size)),
            7 => touched.extend(self.remove(&name)),
            _ => {
                // Delete and recreate under the same name; the changes may arrive in either order.
                touched.extend(self.remove(&name));
                touched.push(self.put(&name, size));
                if self.time.random.percent(50) {
                    touched.reverse();
                }
            }
        }
        self.time.say(|| format!("cloud changes {name} ({size}): {touched:?}"));
        for uid in touched {
            self.time.after(10, Event::Desire { life, uid });
        }
    }

    pub(in crate::simulation) fn run_chaos(&mut self) -> Result<(), String> {
        for _ in 0..self.chaos.steps {
            for _ in 0..self.time.random.below(4) {
                self.change_something();
            }
            self.post_something();
            self.strike();
            if self.link.is_none() && self.time.random.percent(70) {
                let agent = usize::from(self.chaos.twins && self.time.random.percent(30));
                if self.agents[agent].machine.is_none() {
                    self.start_agent(agent);
                }
                if self.cloud.is_none() {
                    self.start_cloud();
                }
                self.connect(agent);
            }
            let time = match self.time.random.below(10) {
                0 => 20_000,
                1..=3 => 1_000,
                _ => 100,
            };
            let time = Duration::from_millis(self.time.random.below(time) + 1);
            self.pass(time)?;
        }
        Ok(())
    }

    pub(in crate::simulation) fn strike(&mut self) {
        let chaos = self.chaos;
        if self.time.random.percent(chaos.cut) {
            self.cut();
        }
        if self.time.random.percent(chaos.half_open) {
            self.half_open();
        }
        if self.time.random.percent(chaos.stall) {
            let time = Duration::from_millis(self.time.random.below(40_000));
            self.stall(time);
        }
        if self.time.random.percent(chaos.reformat) {
            self.reformat_something();
        }
        if self.time.random.percent(chaos.crash) {
            self.stop_agent(0);
        }
        if self.time.random.percent(chaos.crash) {
            self.stop_cloud();
        }
        if self.time.random.percent(10) {
            self.agents[0].backup = self.agents[0].db.clone();
        }
        if self.time.random.percent(10) {
            self.cloud_backup = self.cloud_db.clone();
        }
        if self.time.random.percent(chaos.lose_database) {
            self.stop_agent(0);
            self.agents[0].db = EdgeDb::new(self.time.random.next());
            self.forget_uploads();
            self.time.say(|| "agent 0 lost its database".into());
        }
        if self.time.random.percent(chaos.lose_database) {
            self.stop_agent(0);
            self.roll_back();
            self.time.say(|| "agent 0 has an older copy of its database".into());
        }
        if self.time.random.percent(chaos.restore) {
            self.stop_cloud();
            self.restore_cloud(self.cloud_backup.clone());
            self.time.say(|| "the cloud has an older copy of its database".into());
        }
    }
}
