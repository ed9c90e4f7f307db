//! Iterators into maps and sets, and a few things in order, with little code.

use std::cmp::Ordering;

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

/// Sorts a few things, some hundreds at most; what is equal stays in its order.
///
/// `sort_by` is faster for many, with about six kilobytes of code of its own for each kind of thing.
pub fn sort_few<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    for end in 1..items.len() {
        let mut at = end;
        while let Some([before, item]) = items.get(at.wrapping_sub(1)..=at)
            && compare(before, item) == Ordering::Greater
        {
            items.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// Sorts many things; what is equal comes into any order.
pub fn sort_many<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let mut gap = items.len() / 2;
    while gap > 0 {
        for end in gap..items.len() {
            let mut at = end;
            while let Some(before) = at.checked_sub(gap)
                && let (Some(one), Some(other)) = (items.get(before), items.get(at))
                && compare(one, other) == Ordering::Greater
            {
                items.swap(before, at);
                at = before;
            }
        }
        gap = if gap == 2 { 1 } else { gap * 5 / 11 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn many_things_come_into_order(items in proptest::collection::vec(0u16..500, 0..700)) {
            let (mut many, mut all) = (items.clone(), items);
            sort_many(&mut many, u16::cmp);
            all.sort_unstable();
            prop_assert_eq!(many, all);
        }

        #[test]
        fn a_few_things_come_into_the_order_of_a_stable_sort(
            items in proptest::collection::vec((0u8..8, any::<u8>()), 0..40)
        ) {
            let (mut few, mut all) = (items.clone(), items);
            sort_few(&mut few, |a, b| a.0.cmp(&b.0));
            all.sort_by_key(|item| item.0);
            prop_assert_eq!(few, all);
        }
    }
}
