//! Process infrastructure: signals and reload, systemd, log, allocator settings, and
//! links from the configuration. Independent of agent and fleet. Read [`Service`] first.

pub mod connection;
pub mod log;
pub mod memory;
pub mod metrics;
mod service;
pub mod systemd;

/// With 32-bit times, the standard library panics at each reading of the clock after 2038-01-19.
/// The variable applies to it as well if it is compiled with the program.
#[cfg(all(target_env = "musl", target_pointer_width = "32"))]
#[allow(deprecated, reason = "libc marks the type because its width is about to change")]
const _: () = assert!(
    size_of::<libc::time_t>() == 8,
    "time_t has 32 bits, so the program would stop in 2038; hint: set RUST_LIBC_UNSTABLE_MUSL_V1_2_3=1, as \
     .cargo/config.toml does"
);

/// Version of the programs, used by Hello, status and `--version`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use edgesync_transport::random;
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

    /// The standard library has one type for the clock and for times of files. The file is in
    /// memory, because some file systems end in 2038 themselves.
    #[test]
    fn times_of_the_standard_library_pass_2038_and_2106() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        for second in [1 << 31, 1 << 32] {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second);
            file.set_modified(time).unwrap();
            assert_eq!(file.metadata().unwrap().modified().unwrap(), time, "{second}");
            assert_eq!(jiff::Timestamp::try_from(time).unwrap().as_second(), second.cast_signed());
        }
    }

    #[test]
    fn chain_does_not_repeat_causes() {
        let denied = || std::io::Error::from_raw_os_error(13);
        assert_eq!(chain(&Wrapped(denied())), "cannot read x: Permission denied (os error 13)");
        let other = edgesync_store::durable::FileError::tried("read", "x".as_ref())(denied());
        assert_eq!(chain(&other), "read x: Permission denied (os error 13)");
    }
}
