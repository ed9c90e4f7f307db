//! Values that are kept once for all of their users, as long as there is one.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

/// Number of keys below which those without a value are kept.
const MIN_KEYS: usize = 64;

/// Shared values by their keys.
#[derive(Debug)]
pub(super) struct Interner<K, V> {
    by_key: HashMap<K, Weak<V>>,
    /// Number of keys at which those without a value are removed.
    limit: usize,
}

impl<K, V> Default for Interner<K, V> {
    fn default() -> Self {
        Self { by_key: HashMap::new(), limit: MIN_KEYS }
    }
}

impl<K: Eq + Hash, V> Interner<K, V> {
    /// Returns the value of a key, if it has a user.
    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
    {
        self.by_key.get(key).and_then(Weak::upgrade)
    }

    /// Shares a value under a key that has none.
    pub(super) fn insert(&mut self, key: K, value: V) -> Arc<V> {
        if self.by_key.len() >= self.limit {
            self.by_key.retain(|_, value| value.strong_count() > 0);
            self.limit = MIN_KEYS.max(2 * self.by_key.len());
        }
        let value = Arc::new(value);
        self.by_key.insert(key, Arc::downgrade(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shared_and_unused_ones_are_dropped() {
        let mut shared: Interner<Box<str>, usize> = Interner::default();
        let kept = shared.insert("kept".into(), 7);
        for number in 0..10 * MIN_KEYS {
            assert_eq!(*shared.insert(number.to_string().into(), number), number);
        }
        assert!(shared.by_key.len() <= 2 * MIN_KEYS && shared.get("0").is_none());
        assert!(Arc::ptr_eq(&kept, &shared.get("kept").unwrap()));
    }
}
