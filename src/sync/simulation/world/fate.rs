//! What happens to the world: changes in the cloud, cuts, crashes, lost and restored databases.

use std::time::Duration;

use super::super::model::EdgeDb;
use super::{Event, LIMIT, MAX_OBJECT, World};
use crate::sync::simulation::timeline::Simulated;

impl World {
    pub(in crate::sync::simulation) fn change_something(&mut self) {
        if self.cloud.is_none() {
            return;
        }
        let name = match self.time.random.below(40) {
            0 => "bad..name".to_owned(),
            n => format!("object-{}", n % 24),
        };
        let size = match self.time.random.below(60) {
            0 => MAX_OBJECT + 1000,
            1 | 2 => 2 * LIMIT + 3000,
            _ => 20,
        };
        let life = self.cloud_life;
        let mut touched = Vec::new();
        match self.time.random.below(10) {
            0..=6 => touched.push(self.cloud_db.write(&name, size)),
            7 => touched.extend(self.cloud_db.delete(&name)),
            _ => {
                // Delete and recreate under the same name; the news may arrive in either order.
                touched.extend(self.cloud_db.delete(&name));
                touched.push(self.cloud_db.write(&name, size));
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

    pub(in crate::sync::simulation) fn run_chaos(&mut self) -> Result<(), String> {
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

    pub(in crate::sync::simulation) fn strike(&mut self) {
        let chaos = self.chaos;
        if self.time.random.percent(chaos.cut) {
            self.cut();
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
            self.cloud_db = self.cloud_backup.clone();
            self.time.say(|| "the cloud has an older copy of its database".into());
        }
    }
}
