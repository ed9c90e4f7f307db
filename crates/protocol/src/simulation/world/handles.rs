//! Handles on the world for single scenarios.

use std::time::Duration;

use crate::change::{Change, Uid};
use crate::cloud::{CloudCounters, CloudMachine};
use crate::frame::{Down, Up};

use super::super::model::{CloudDb, EdgeDb, config_map};
use super::{Event, Sent, World};
use crate::simulation::timeline::Simulated;
use crate::timing::Now;
use edgesync_object::ResourceVersion;

impl World {
    pub(in crate::simulation) fn write(&mut self, name: &str, size: usize) {
        let uid = self.put(name, size);
        self.tell(uid);
    }

    pub(in crate::simulation) fn delete(&mut self, name: &str) {
        if let Some(uid) = self.remove(name) {
            self.tell(uid);
        }
    }

    /// Writes an object in the cloud.
    pub(super) fn put(&mut self, name: &str, size: usize) -> Uid {
        self.look_at_clocks();
        let (uid, version) = self.cloud_db.write(name, size);
        self.history.wrote(&uid, name, &version);
        if self.cloud_db.patches {
            self.patches.wrote(&uid, &version, self.cloud_db.objects[&uid].body(&uid));
        }
        uid
    }

    /// Deletes an object in the cloud.
    pub(super) fn remove(&mut self, name: &str) -> Option<Uid> {
        self.look_at_clocks();
        let uid = self.cloud_db.delete(name)?;
        self.history.deleted(&uid, name);
        Some(uid)
    }

    /// Replaces the cloud's database by an older copy or another file.
    pub(in crate::simulation) fn restore_cloud(&mut self, db: CloudDb) {
        let before = std::mem::replace(&mut self.cloud_db, db);
        self.history.restored(self.time.now, &before, &self.cloud_db);
        for agent in &mut self.agents {
            agent.db.outbox.cloud_was_rolled_back();
        }
    }

    /// Checks the clocks, as every writer does first.
    fn look_at_clocks(&mut self) {
        let (clock, running) = (self.clock(), self.time.now.saturating_sub(self.away));
        if self.cloud_db.has_jumped(clock, running) {
            self.begin_incarnation();
        }
    }

    /// Resumes the cloud's host from a snapshot taken `ago`. The database is not reopened.
    pub(in crate::simulation) fn resume_cloud(&mut self, db: CloudDb, ago: Duration) {
        self.stop_cloud();
        self.restore_cloud(db);
        (self.away, self.clock_behind) = (self.away + ago, ago);
        let random = self.time.random.next();
        self.cloud_db.resume(random);
        self.run_cloud();
        self.time.say(|| format!("the cloud's machine wakes up as it was {ago:?} ago"));
    }

    /// Corrects the cloud's clock.
    pub(in crate::simulation) fn set_clock(&mut self) {
        self.clock_behind = Duration::ZERO;
    }

    /// Lets pages of the node's store take up to this time to read.
    pub(in crate::simulation) fn slow_reads(&mut self, ms: u64) {
        self.read_ms = ms;
    }

    /// Stalls the cloud; arriving frames wait.
    pub(in crate::simulation) fn stall(&mut self, time: Duration) {
        self.stalled_until = self.time.now + time;
        self.time.say(|| format!("the cloud is stalled for {time:?}"));
        // Its clock is checked first when it resumes.
        self.time.at(self.stalled_until, Event::Wake);
    }

    fn tell(&mut self, uid: Uid) {
        let life = self.cloud_life;
        self.time.after(1, Event::Desire { life, uid });
    }

    /// Advances time until both sides are equal and idle.
    pub(in crate::simulation) fn settle(&mut self) {
        for _ in 0..100 {
            self.pass(Duration::from_millis(500)).unwrap();
            if self.converged().is_ok() {
                return;
            }
        }
        self.converged().unwrap();
    }

    pub(in crate::simulation) fn now(&self) -> Now {
        self.time.now
    }

    /// Advances time until both sides are equal and idle, and returns the time it took.
    pub(in crate::simulation) fn pass_until_in_sync(&mut self, most: Duration) -> Duration {
        let start = self.time.now;
        while self.converged().is_err() && self.time.now - start < most {
            self.pass(Duration::from_millis(500)).unwrap();
        }
        self.converged().unwrap();
        self.time.now - start
    }

    /// Advances time until both sides are equal and idle, at most by `most`. Returns whether they
    /// are.
    pub(in crate::simulation) fn converges_within(&mut self, most: Duration) -> Result<bool, String> {
        let end = self.time.now + most;
        while self.converged().is_err() {
            if self.time.now >= end {
                return Ok(false);
            }
            self.pass(Duration::from_millis(500).min(end - self.time.now))?;
        }
        Ok(true)
    }

    /// Returns the bytes that the line has carried, in both directions.
    pub(in crate::simulation) fn carried(&self) -> u64 {
        self.carried.iter().sum()
    }

    /// Returns the version of an object that the agent holds.
    pub(in crate::simulation) fn held_version(&self, name: &str) -> Option<ResourceVersion> {
        let db = &self.agents[0].db;
        let uid = db.named(&config_map().key("default", name))?;
        db.version(uid).cloned()
    }

    /// Returns the names of the objects that the agent holds.
    pub(in crate::simulation) fn held_names(&self) -> Vec<String> {
        let names = self.cloud_db.names().into_iter();
        let mut names: Vec<String> = names.filter(|name| self.held_version(name).is_some()).collect();
        names.sort_unstable();
        names
    }

    pub(in crate::simulation) fn is_cut(&self) -> bool {
        self.link.is_none()
    }

    /// Damages what the agent keeps of a message in parts.
    pub(in crate::simulation) fn damage_parts(&mut self) {
        assert!(self.agents[0].db.damage_parts(), "nothing is kept");
    }

    /// Gives a held object another text for the same content.
    pub(in crate::simulation) fn reformat(&mut self, name: &str) {
        let db = &mut self.agents[0].db;
        let uid = db.named(&config_map().key("default", name)).cloned();
        db.reformat(&uid.expect("must be held"));
    }

    /// Empties the history of the cloud's store.
    pub(in crate::simulation) fn forget_past(&mut self) {
        self.cloud_db.forget_past();
    }

    /// Returns how many patches were applied and how many refused.
    pub(in crate::simulation) fn patched(&self) -> (usize, usize) {
        self.patches.counts()
    }

    /// Makes the cloud free the text of a message in parts of the last session. Returns whether
    /// there was one.
    pub(in crate::simulation) fn forget_begun(&mut self) -> bool {
        let Some(cloud) = &mut self.cloud else { return false };
        let has_begun = cloud.has_begun();
        cloud.forget_begun();
        has_begun
    }

    /// Steps until the condition holds, and returns the time it took.
    pub(in crate::simulation) fn pass_until(&mut self, mut condition: impl FnMut(&Self) -> bool) -> Duration {
        let start = self.time.now;
        self.drive();
        while !condition(self) {
            assert!(self.time.now - start < Duration::from_secs(600), "not within ten minutes");
            self.step().unwrap();
        }
        self.time.now - start
    }

    pub(in crate::simulation) fn forget_traffic(&mut self) {
        self.sent = [Sent::default(); 2];
    }

    pub(in crate::simulation) fn traffic(&self) -> (Sent, Sent) {
        let [up, down] = self.sent;
        (up, down)
    }

    pub(in crate::simulation) fn largest_frame(&self) -> usize {
        self.sent.iter().map(|sent| sent.largest).max().unwrap_or(0)
    }

    /// Returns the number of frames with this name that agents have sent.
    pub(in crate::simulation) fn frames(&self, name: &str) -> usize {
        self.upstream.frames.get(name).copied().unwrap_or(0)
    }

    /// Returns the number of renewals of the Lease that agents have sent in frames of their own.
    pub(in crate::simulation) fn leases(&self) -> usize {
        self.frames("Lease") + self.frames("Renew")
    }

    /// Makes the broker accept and lose such frames from agents.
    pub(in crate::simulation) fn lose(&mut self, unheard: fn(&Up) -> bool) {
        self.unheard = unheard;
    }

    /// Makes the agent's store fail to commit such changes.
    pub(in crate::simulation) fn refuse(&mut self, refused: fn(&Change) -> bool) {
        self.unstorable = refused;
    }

    /// Makes the broker lose such frames to the node.
    pub(in crate::simulation) fn lose_down(&mut self, unseen: fn(&Down) -> bool) {
        self.unseen = unseen;
    }

    /// Crashes the cloud without informing the node.
    pub(in crate::simulation) fn lose_cloud(&mut self) {
        self.cloud = None;
        self.cloud_life += 1;
    }

    /// Returns the effects in order.
    pub(in crate::simulation) fn effects(&self) -> Vec<&str> {
        self.cloud_db.effects.log.iter().map(|thing| thing.key.as_str()).collect()
    }

    pub(in crate::simulation) fn dropped(&self) -> u64 {
        self.agents[0].db.outbox.dropped()
    }

    /// Returns the number of objects and removals sent.
    pub(in crate::simulation) fn sent(&self) -> (u64, u64) {
        let counters = self.cloud_counters();
        (counters.sent, counters.removals_sent)
    }

    pub(in crate::simulation) fn cloud_counters(&self) -> CloudCounters {
        self.cloud.as_ref().map(CloudMachine::counters).unwrap_or_default()
    }

    /// Returns the number of repeated reports of the agent.
    pub(in crate::simulation) fn repeated_reports(&self) -> u64 {
        self.agents[0].machine.as_ref().map_or(0, |machine| machine.counters().repeated_reports)
    }

    /// Returns the bytes of Uploads that the agent has sent.
    pub(in crate::simulation) fn uploaded(&self) -> usize {
        self.upstream.bytes
    }

    pub(in crate::simulation) fn uploads_resent(&self) -> u64 {
        self.agents[0].machine.as_ref().map_or(0, |machine| machine.counters().uploads_resent)
    }

    /// Returns the number of frames of both sides.
    pub(in crate::simulation) fn frames_sent(&self) -> usize {
        self.upstream.frames.values().sum::<usize>() + self.sent[1].frames
    }

    pub(in crate::simulation) fn held(&self) -> usize {
        self.agents[0].db.held().len()
    }

    pub(in crate::simulation) fn held_back(&self) -> usize {
        self.cloud.as_ref().map_or(0, |cloud| cloud.held(&self.wishes).count())
    }

    /// Returns how many times the cloud has read the node's records, and the number of differences
    /// in memory.
    pub(in crate::simulation) fn remembered(&self) -> (usize, usize) {
        (self.reads, self.cloud.as_ref().map_or(0, CloudMachine::differences))
    }

    /// Makes the cloud fall behind, as without memory for the differences.
    pub(in crate::simulation) fn fall_behind(&mut self) {
        if let Some(cloud) = &mut self.cloud {
            cloud.fall_behind();
        }
    }

    pub(in crate::simulation) fn refused(&self) -> usize {
        self.cloud.as_ref().map_or(0, |cloud| cloud.refused().count())
    }

    pub(in crate::simulation) fn in_flight(&self) -> usize {
        self.cloud.as_ref().map_or(0, CloudMachine::in_flight)
    }

    pub(in crate::simulation) fn confirm_deletions(&mut self) {
        let now = self.time.now;
        self.vanished[self.connection].1 = usize::MAX;
        if let Some(cloud) = &mut self.cloud {
            cloud.confirm_deletions(now, &self.wishes);
        }
    }

    /// Sends a forged frame to the cloud in the name of the node.
    pub(in crate::simulation) fn pretend(&mut self, frame: &Up) {
        let bytes = frame.encode(super::COMPRESS_ABOVE).unwrap();
        self.time.at(self.time.now, Event::ToCloud { bytes });
    }

    /// Returns the objects in the cloud.
    pub(in crate::simulation) fn uids(&self) -> Vec<Uid> {
        self.cloud_db.objects.keys().cloned().collect()
    }

    /// Permits this number of false claims of a rollback by the node.
    pub(in crate::simulation) fn allow_lies(&mut self, times: usize) {
        (self.lies, self.chaos_has_twins) = (times, true);
    }

    /// Adopts the incarnation that the store has begun for another node.
    pub(in crate::simulation) fn follow_incarnation(&mut self, other: &CloudDb) {
        self.cloud_db.follow(other);
        self.tell_incarnation();
    }

    /// Returns the number of inputs of the cloud's machine, timer ticks included.
    pub(in crate::simulation) fn inputs(&self) -> usize {
        self.inputs + self.wakes[super::DOWN]
    }

    /// Returns the cloud's entries in memory and records for the node.
    pub(in crate::simulation) fn kept(&self) -> (usize, usize) {
        (self.cloud.as_ref().map_or(0, CloudMachine::entries), self.cloud_db.records.len())
    }

    /// Makes the second agent a copy of the first one's database.
    pub(in crate::simulation) fn copy_agent(&mut self, from: usize, to: usize) {
        self.agents[to].db = self.agents[from].db.clone();
        self.chaos_has_twins = true;
        self.start_agent(to);
    }

    /// Returns the number of incarnations that the cloud has begun.
    pub(in crate::simulation) fn renewals(&self) -> usize {
        self.renewals
    }

    /// Returns the number of timer wakes of both sides.
    pub(in crate::simulation) fn wakes(&self) -> usize {
        self.wakes.iter().sum()
    }

    pub(in crate::simulation) fn edge_db(&self) -> EdgeDb {
        self.agents[0].db.clone()
    }

    pub(in crate::simulation) fn replace_edge_db(&mut self, db: EdgeDb) {
        self.agents[0].db = db;
        self.agents[0].db.outbox.was_rolled_back();
    }

    pub(in crate::simulation) fn cloud_db(&self) -> CloudDb {
        self.cloud_db.clone()
    }

    pub(in crate::simulation) fn fresh_cloud_db(&self) -> CloudDb {
        CloudDb::new(&mut self.time.random.clone())
    }
}
