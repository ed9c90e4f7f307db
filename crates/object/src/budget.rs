//! What an input may cost. A budget comes in with the bytes and goes with them: each step that reads them takes from it
//! what it uses, so no step has to trust a number that the sender wrote.

use super::meta::{MAX_DEPTH, nests_deeper};

/// The fewest bytes that one item of a list takes as text, as any honest sender writes it: a UID alone is longer.
const ITEM_BYTES: usize = 16;

/// What may still be read of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    limit: usize,
    bytes: usize,
    items: usize,
    depth: usize,
}

/// A budget that does not suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// Too long.
    #[error("must be at most {limit} bytes")]
    Bytes {
        /// The limit of the whole input in bytes.
        limit: usize,
    },
    /// Too many items in its lists.
    #[error("must have at most {limit} items")]
    Items {
        /// The limit of the whole input.
        limit: usize,
    },
    /// Nested too deep.
    #[error("must nest at most {limit} levels deep")]
    Depth {
        /// The limit.
        limit: usize,
    },
}

impl Budget {
    /// Of an input of at most so many bytes: one item for each 16 of them, and 100 levels. What is built from it takes at
    /// most about 16 times as many bytes of memory.
    #[must_use]
    pub fn of(bytes: usize) -> Self {
        Self { limit: bytes, bytes, items: bytes / ITEM_BYTES, depth: MAX_DEPTH }
    }

    /// Of at most so many items, whatever their length.
    #[must_use]
    pub fn of_items(items: usize) -> Self {
        let bytes = items.saturating_mul(ITEM_BYTES);
        Self { items, ..Self::of(bytes) }
    }

    /// How many bytes are left.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many bytes were taken.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.limit - self.bytes
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// So many are not left; nothing is taken.
    pub fn take_bytes(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Exceeded::Bytes { limit: self.limit })?;
        Ok(())
    }

    /// Takes items.
    ///
    /// # Errors
    /// So many are not left; nothing is taken.
    pub fn take_items(&mut self, items: usize) -> Result<(), Exceeded> {
        let limit = self.limit / ITEM_BYTES;
        self.items = self.items.checked_sub(items).ok_or(Exceeded::Items { limit })?;
        Ok(())
    }

    /// Checks how deep JSON text nests, which is taken to be well-formed.
    ///
    /// # Errors
    /// Too deep.
    pub fn check_depth(&self, json: &str) -> Result<(), Exceeded> {
        let limit = self.depth;
        if nests_deeper(json, limit) { Err(Exceeded::Depth { limit }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_gone_and_what_is_not_left_is_not_taken() {
        let mut budget = Budget::of(64);
        assert_eq!(budget.take_bytes(40), Ok(()));
        assert_eq!(budget.take_bytes(25), Err(Exceeded::Bytes { limit: 64 }));
        assert_eq!((budget.bytes(), budget.spent()), (24, 40));
        assert_eq!(budget.take_items(3), Ok(()));
        assert_eq!(budget.take_items(2), Err(Exceeded::Items { limit: 4 }));
        assert_eq!(budget.take_items(1), Ok(()));
    }

    #[test]
    fn a_budget_of_items_counts_items() {
        let mut budget = Budget::of_items(3);
        assert_eq!(budget.take_items(3), Ok(()));
        assert_eq!(budget.take_items(1), Err(Exceeded::Items { limit: 3 }));
    }

    #[test]
    fn depth_is_bounded_whatever_the_length() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(Budget::of(0).check_depth(&nested(MAX_DEPTH)), Ok(()));
        let exceeded = Budget::of(1 << 20).check_depth(&nested(MAX_DEPTH + 1));
        assert_eq!(exceeded, Err(Exceeded::Depth { limit: MAX_DEPTH }));
    }
}
