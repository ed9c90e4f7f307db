//! A metered link: the bytes that may come, and what the cloud sends over it.

use crate::change::Change;
use crate::cloud::CloudMachine;
use crate::edge::EdgeMachine;
use crate::frame::Received;
use crate::metered::{MeteredLink, Waiting};
use edgesync_object::urgency::Urgency;

use super::World;
use crate::simulation::model::urgency_of;

/// The terms of the link, as the owner of the node's machine keeps them.
#[derive(Clone, Copy, Debug)]
pub(in crate::simulation) struct Link {
    pub(in crate::simulation) urgency: Urgency,
    pub(in crate::simulation) size: Option<u64>,
    /// The bytes of frames with objects that may still come.
    pub(in crate::simulation) left: Option<u64>,
}

impl World {
    /// Sets the terms of the node's link.
    pub(in crate::simulation) fn set_link(&mut self, link: Option<Link>) {
        self.metered = link;
        self.state_terms();
    }

    pub(in crate::simulation) fn link_terms(&self) -> Option<Link> {
        self.metered
    }

    /// Adds bytes that may come.
    pub(in crate::simulation) fn add_credit(&mut self, bytes: u64) {
        if let Some(left) = self.metered.as_mut().and_then(|link| link.left.as_mut()) {
            *left += bytes;
        }
    }

    /// Returns the objects that wait for the link, as the cloud and as the node say.
    pub(in crate::simulation) fn waiting(&self) -> (Waiting, Waiting) {
        let cloud = self.cloud.as_ref().map(CloudMachine::waiting).unwrap_or_default();
        let node = self.agents[0].machine.as_ref().map(EdgeMachine::waiting).unwrap_or_default();
        (cloud, node)
    }

    /// Returns whether the node says that it is in sync.
    pub(in crate::simulation) fn node_is_in_sync(&self) -> bool {
        self.agents[0].machine.as_ref().is_some_and(EdgeMachine::in_sync)
    }

    /// Passes the terms to the machine of the node that has the link.
    pub(super) fn state_terms(&mut self) {
        let Some(agent) = self.link.filter(|_| self.metered.is_some()) else { return };
        let random = self.time.random.next();
        let link =
            self.metered.map(|Link { urgency, size, left }| MeteredLink { urgency, size, credit: left });
        if let Some(machine) = &mut self.agents[agent].machine {
            machine.set_metered(self.time.now, link, random);
        }
    }

    /// Counts a frame that has arrived, and checks that it keeps to the terms.
    pub(super) fn meter(&mut self, frame: &Received, bytes: usize) -> Result<(), String> {
        let Some(link) = &mut self.metered else { return Ok(()) };
        let changes: &[Change] = match frame {
            Received::Objects(objects) => &objects.changes,
            Received::Part(_) | Received::Patches(_) => &[],
            _ => return Ok(()),
        };
        if let Some(left) = &mut link.left {
            *left = left
                .checked_sub(bytes as u64)
                .ok_or_else(|| format!("credit: a frame of {bytes} bytes came, {left} might"))?;
        }
        let is_less_urgent = |change: &&Change| match change {
            Change::Put(put) => urgency_of(&put.name) < link.urgency,
            Change::Patch(_) | Change::Delete(_) => false,
        };
        match changes.iter().find(is_less_urgent) {
            Some(change) => Err(format!("terms: {change:?} came, at least {:?} may", link.urgency)),
            None => Ok(()),
        }
    }

    /// Returns the first word of the name of an object, which is its urgency.
    pub(super) fn word_for(&self, number: u64) -> &'static str {
        match (self.metered.is_some(), number % 3) {
            (true, 1) => "high",
            (true, 2) => "low",
            _ => "object",
        }
    }
}
