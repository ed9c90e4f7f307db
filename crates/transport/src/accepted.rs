//! Socket options of accepted connections.

use tokio::net::{TcpListener, TcpStream};

/// Limit for a client's unsent bytes in the socket's send buffer.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 32 * 1024;

/// Sets the option that accepted connections inherit: what a client sends first is acknowledged
/// with the answer, and not by a packet of its own. Clients speak first, and before the connection
/// can be tuned.
pub fn tune_listener(listener: &TcpListener) {
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(listener).set_tcp_quickack(false);
    #[cfg(not(target_os = "linux"))]
    let _ = listener;
}

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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use socket2::SockRef;

    #[tokio::test]
    async fn accepted_connections_acknowledge_with_their_answer() {
        for is_tuned in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            if is_tuned {
                tune_listener(&listener);
            }
            let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (far, _) = listener.accept().await.unwrap();
            assert_eq!(SockRef::from(&far).tcp_quickack().unwrap(), !is_tuned);
            drop(near);
        }
    }
}
