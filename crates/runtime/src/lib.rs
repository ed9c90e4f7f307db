//! Process infrastructure: signals and reload, systemd, log, allocator settings, random numbers,
//! and links from the configuration. Independent of agent and fleet. Read [`Service`] first.

pub mod connection;
pub mod log;
pub mod memory;
pub mod metrics;
mod random;
mod service;
pub mod systemd;

/// Version of the programs, used by Hello, status and `--version`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use random::random;
pub use service::{Service, StartError};

/// Formats an error with its causes on one line. Skips a cause that the text already ends with.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read x: {0}")]
    struct Wrapped(#[source] std::io::Error);

    #[test]
    fn chain_does_not_repeat_causes() {
        let denied = || std::io::Error::from_raw_os_error(13);
        assert_eq!(chain(&Wrapped(denied())), "cannot read x: Permission denied (os error 13)");
        let other = edgesync_store::durable::FileError::tried("read", "x".as_ref())(denied());
        assert_eq!(chain(&other), "read x: Permission denied (os error 13)");
    }
}
