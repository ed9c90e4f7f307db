//! The numbers for the metrics, as far as the fleet has them. Made when somebody asks: with many nodes they are
//! many.

use jiff::Timestamp;

use super::Fleet;
use crate::cloud::metrics::CloudNumbers;

impl Fleet {
    /// The numbers of now, but for those of store and broker.
    pub(super) fn numbers(&self) -> CloudNumbers {
        let mut numbers = CloudNumbers {
            objects: self.placement.len() as u64,
            bad_frames: self.bad_frames.clone(),
            ..CloudNumbers::default()
        };
        let clock = Timestamp::now();
        for (name, node) in &self.nodes {
            let node = node.numbers(name, clock);
            numbers.nodes.add(&node);
            if self.metrics_per_node {
                numbers.each.push(node);
            }
        }
        numbers.each.sort_by(|one, other| one.name.cmp(&other.name));
        numbers
    }
}
