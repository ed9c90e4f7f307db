//! Iterators into maps and sets, with little code.

/// What `collect` does, for maps and sets in the program for devices.
pub trait Gather: Iterator + Sized {
    /// Puts the items into a map or set, one after the other; of items with the same key the last one stays.
    ///
    /// `collect` sorts them first, with about six kilobytes of code of its own for each kind of iterator; what is gathered
    /// here has a few dozen items.
    fn gather<M: Default + Extend<Self::Item>>(self) -> M {
        let mut map = M::default();
        map.extend(self);
        map
    }
}

impl<I: Iterator> Gather for I {}
