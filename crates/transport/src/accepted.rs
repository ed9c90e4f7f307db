//! Socket options of accepted connections.

use tokio::net::TcpStream;

/// Limit for a client's unsent bytes in the socket's send buffer.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 32 * 1024;

/// Sets the options of a connection whose messages are written whole, to a client that may be
/// slow. The connection works without them.
pub fn tune(stream: &TcpStream) {
    // Delaying messages to send more at once would only add latency.
    let _ = stream.set_nodelay(true);
    // The system must not buffer more than the network accepts: otherwise a slow client would
    // seem to read nothing.
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT);
}
