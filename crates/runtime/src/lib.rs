//! The skeleton of a process: signals and reload, systemd, log, allocator settings, random numbers, and links made from the
//! configuration. It knows neither agent nor fleet. Read [`Service`] first.

pub mod connection;
pub mod log;
pub mod memory;
pub mod metrics;
mod random;
mod service;
pub mod systemd;

/// The version of the programs, as a Hello, the status and `--version` tell it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use random::random;
pub use service::{Service, StartError};

/// An error with its causes in one line. A cause that the words before end with is not said again.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !said.ends_with(&words) {
            said.push_str(": ");
            said.push_str(&words);
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read x: {0}")]
    struct Said(#[source] std::io::Error);

    #[test]
    fn a_cause_that_an_error_tells_itself_is_not_told_again() {
        let denied = || std::io::Error::from_raw_os_error(13);
        assert_eq!(chain(&Said(denied())), "cannot read x: Permission denied (os error 13)");
        let other = edgesync_store::durable::FileError::tried("read", "x".as_ref())(denied());
        assert_eq!(chain(&other), "cannot read x: Permission denied (os error 13)");
    }
}
