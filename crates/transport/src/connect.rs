//! The words for connections that cannot be opened, the same in every message of both programs.

use std::io;

/// The words for a port or a socket on which no process listens.
pub(crate) const REFUSED: &str = "connection refused";

/// Describes why a connection could not be opened.
#[must_use]
pub fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => REFUSED.to_owned(),
        _ => error.to_string(),
    }
}

/// Replaces the text of an error by that of [`describe`]; its kind stays.
#[must_use]
pub fn reworded(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::ConnectionRefused => io::Error::new(kind, REFUSED),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn refused_connection_has_the_same_words_everywhere() {
        // The port is free: its listener is closed.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = TcpStream::connect(address).unwrap_err();
        assert_eq!(describe(&error), "connection refused");
        let error = reworded(error);
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (io::ErrorKind::ConnectionRefused, "connection refused")
        );
        let missing = io::Error::from_raw_os_error(2);
        assert_eq!(describe(&missing), missing.to_string());
        assert_eq!(reworded(missing).raw_os_error(), Some(2));
    }
}
