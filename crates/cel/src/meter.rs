//! What working an expression out may cost, and why it fails. Pure.

/// Why a value could not be worked out.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// It has none.
    Failed(String),
    /// It costs too much.
    Budget,
}

pub(super) type Outcome<T> = Result<T, Failure>;

pub(super) fn failed<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Failure::Failed(message.into()))
}

/// The most of a text that a failure shows, in bytes.
const MAX_SHOWN: usize = 100;

/// The beginning of a text, as failures show it: those that are absorbed have cost nothing.
pub(super) fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_SHOWN)).unwrap_or(text)
}

/// What may still be spent. A step is about one look at a value.
#[derive(Debug)]
pub struct Meter {
    left: u64,
}

impl Meter {
    pub fn new(steps: u64) -> Self {
        Self { left: steps }
    }

    pub fn left(&self) -> u64 {
        self.left
    }

    /// Spends steps.
    ///
    /// # Errors
    /// There are not so many left: then nothing is.
    pub(super) fn spend(&mut self, steps: usize) -> Outcome<()> {
        let left = self.left.checked_sub(steps as u64);
        self.left = left.unwrap_or_default();
        left.map(drop).ok_or(Failure::Budget)
    }

    /// Spends what reading or writing so many bytes costs.
    pub(super) fn bytes(&mut self, bytes: usize) -> Outcome<()> {
        self.spend(1 + bytes / 16)
    }
}
