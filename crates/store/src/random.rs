//! Random bytes fit for keys and tokens.

use ring::rand::{SecureRandom as _, SystemRandom};

/// The random number generator of the system failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("random number generator of the system failed")]
pub struct NoRandomness;

/// Returns random bytes from the system call `getrandom`, so no device file is needed.
///
/// # Errors
/// The system refuses the call.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}
