//! Step counter of an evaluation, and its failures.

/// Reason why an evaluation has no result.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// CEL has no value for it; the message is CEL's, such as `no such key: x`. `||`, `&&` and the
    /// macros absorb it where the other operand decides.
    Failed(String),
    /// The [`Meter`] is empty. Nothing absorbs this.
    Budget,
}

pub(super) type Outcome<T> = Result<T, Failure>;

pub(super) fn failed<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Failure::Failed(message.into()))
}

/// Maximum length of a text in a failure, in bytes.
const MAX_SHOWN: usize = 100;

/// Truncates a text for a failure: a failure that `
/// ` absorbs costs nothing.
pub(super) fn truncated(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_SHOWN)).unwrap_or(text)
}

/// The remaining budget of an evaluation, in steps. A step is about one access to a value, or 16
/// bytes of text read or written; a match of a pattern costs more for a larger pattern. Kubernetes'
/// cost units are of about the same size.
#[derive(Debug)]
pub struct Meter {
    left: u64,
}

impl Meter {
    /// Creates a meter with a budget. Kubernetes gives one rule 1,000,000 units and all rules of an
    /// object 10,000,000.
    pub fn new(steps: u64) -> Self {
        Self { left: steps }
    }

    /// Returns the steps that are left: 0 after [`Failure::Budget`]. The difference to the start is
    /// the cost of the run.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Spends steps.
    ///
    /// # Errors
    /// Fewer steps are left. The meter is then empty.
    pub(super) fn spend(&mut self, steps: usize) -> Outcome<()> {
        let left = self.left.checked_sub(steps as u64);
        self.left = left.unwrap_or_default();
        left.map(drop).ok_or(Failure::Budget)
    }

    /// Spends the cost of reading or writing this many bytes.
    pub(super) fn bytes(&mut self, bytes: usize) -> Outcome<()> {
        self.spend(1 + bytes / 16)
    }
}
