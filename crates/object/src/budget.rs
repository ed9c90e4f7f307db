//! Limits of an input. A budget accompanies the bytes: each parsing step draws what it uses from
//! it, so no step has to trust a number that the sender wrote.

use super::meta::{MAX_DEPTH, nests_deeper};

/// Minimum size of a list item as text, in bytes: a UID alone is longer.
const ITEM_BYTES: usize = 16;

/// Remaining limits of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    limit: usize,
    bytes: usize,
    items: usize,
    depth: usize,
}

/// The limit that an input exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// The input is too long.
    #[error("must be at most {limit} bytes")]
    Bytes {
        /// Limit of the whole input in bytes.
        limit: usize,
    },
    /// The lists have too many items.
    #[error("must have at most {limit} items")]
    Items {
        /// Limit of the whole input.
        limit: usize,
    },
    /// The input nests too deep.
    #[error("must nest at most {limit} levels deep")]
    Depth {
        /// Limit of the nesting in levels.
        limit: usize,
    },
}

impl Budget {
    /// Returns the budget of an input of at most `bytes` bytes: one item per 16 bytes, and 100
    /// levels. The parsed result takes at most about 16 times as much memory.
    #[must_use]
    pub fn of(bytes: usize) -> Self {
        Self { limit: bytes, bytes, items: bytes / ITEM_BYTES, depth: MAX_DEPTH }
    }

    /// Returns the budget of an input of at most `items` items of any length.
    #[must_use]
    pub fn of_items(items: usize) -> Self {
        let bytes = items.saturating_mul(ITEM_BYTES);
        Self { items, ..Self::of(bytes) }
    }

    /// Returns the number of bytes left.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of bytes drawn.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.limit - self.bytes
    }

    /// Draws bytes.
    ///
    /// # Errors
    /// Fewer bytes are left; nothing is drawn.
    pub fn take_bytes(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Exceeded::Bytes { limit: self.limit })?;
        Ok(())
    }

    /// Draws items.
    ///
    /// # Errors
    /// Fewer items are left; nothing is drawn.
    pub fn take_items(&mut self, items: usize) -> Result<(), Exceeded> {
        let limit = self.limit / ITEM_BYTES;
        self.items = self.items.checked_sub(items).ok_or(Exceeded::Items { limit })?;
        Ok(())
    }

    /// Checks the nesting depth of well-formed JSON text.
    ///
    /// # Errors
    /// The text nests too deep.
    pub fn check_depth(&self, json: &str) -> Result<(), Exceeded> {
        let limit = self.depth;
        if nests_deeper(json, limit) { Err(Exceeded::Depth { limit }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_refuses_what_is_not_left() {
        let mut budget = Budget::of(64);
        assert_eq!(budget.take_bytes(40), Ok(()));
        assert_eq!(budget.take_bytes(25), Err(Exceeded::Bytes { limit: 64 }));
        assert_eq!((budget.bytes(), budget.spent()), (24, 40));
        assert_eq!(budget.take_items(3), Ok(()));
        assert_eq!(budget.take_items(2), Err(Exceeded::Items { limit: 4 }));
        assert_eq!(budget.take_items(1), Ok(()));
    }

    #[test]
    fn budget_of_items_counts_items() {
        let mut budget = Budget::of_items(3);
        assert_eq!(budget.take_items(3), Ok(()));
        assert_eq!(budget.take_items(1), Err(Exceeded::Items { limit: 3 }));
    }

    #[test]
    fn depth_is_bounded_at_any_length() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(Budget::of(0).check_depth(&nested(MAX_DEPTH)), Ok(()));
        let exceeded = Budget::of(1 << 20).check_depth(&nested(MAX_DEPTH + 1));
        assert_eq!(exceeded, Err(Exceeded::Depth { limit: MAX_DEPTH }));
    }
}
