//! A device for tests of this crate and of its clients.

use std::collections::BTreeMap;

use super::contents::{Desired, Files};
use super::{Change, Closed, Digest, Effects, Failure, Held, Intent, Observed, Place, Record, Shape};

/// A device without files, on which every step succeeds. The function examines each change, when it
/// is intended, and when it is staged with its files. Places in `/disk` are on a disk, all others
/// in memory.
pub struct EmptyDevice(pub fn(&Change, Option<&Desired>));

impl Effects for EmptyDevice {
    fn inspect(
        &mut self,
        _: &Place,
        _: Shape,
        _: Option<&Held>,
        _: Option<&Desired>,
    ) -> Result<Observed, Failure> {
        Ok(Observed::default())
    }

    fn key(&self, _: &Place) -> (u64, u64) {
        (1, 2)
    }

    fn is_memory(&mut self, place: &Place, _: Shape) -> bool {
        place.base != "/disk"
    }

    fn intend(&mut self, intent: &Intent) -> Result<(), Failure> {
        intent.changes.iter().for_each(|change| (self.0)(change, None));
        Ok(())
    }

    fn stage(&mut self, change: &Change, desired: &Desired) -> Result<(), Failure> {
        (self.0)(change, Some(desired));
        Ok(())
    }

    fn check(&mut self, _: &[Change]) -> Result<(), Failure> {
        Ok(())
    }

    fn swap(&mut self, _: &Change) -> Result<(), Failure> {
        Ok(())
    }

    fn restore(&mut self, _: &Change) -> Result<(), Failure> {
        Ok(())
    }

    fn reload(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn commit(&mut self, _: &Record) -> Result<(), Failure> {
        Ok(())
    }

    fn discard(&mut self, _: &Change, _: bool) -> Result<(), Failure> {
        Ok(())
    }

    fn forget(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn closed(&mut self, _: bool) -> Option<Closed> {
        None
    }

    fn keep(&mut self, _: &Held, _: Option<&Files>, _: bool) -> Result<(), Failure> {
        Ok(())
    }

    fn revive(&mut self, _: &Held, _: u64) -> Result<BTreeMap<String, Digest>, Failure> {
        Err(Failure::new("no copy"))
    }

    fn prune(&mut self, _: &Record) {}
}
