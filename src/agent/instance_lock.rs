//! Ensures that a node runs at most one agent per machine and cloud. Two agents with one name would
//! take over each other's connection in a loop.
//!
//! The lock is a socket in the abstract namespace (`unix(7)`). The kernel releases it with the
//! process, however that ends, and reports the holder's process id.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use anyhow::bail;

use edgesync_api::own_uid;
use edgesync_config::edge::Config;
use edgesync_object::NodeName;
use edgesync_transport::tls::certificate::sha256_hex;

/// First UID of ordinary users. The lock of such a user does not stop the agent of another user.
const FIRST_USER_UID: u32 = 1000;

/// Acquires the lock of a node's name, until the result is dropped. `None` if the lock is
/// unavailable, which does not stop the agent.
///
/// # Errors
/// Fails if another agent holds it.
pub(super) fn acquire(config: &Config, node: &NodeName) -> anyhow::Result<Option<UnixListener>> {
    let peer = config.peer();
    let name = format!("edgesync/{}", sha256_hex(format!("{node} {peer}").as_bytes()));
    let taken = SocketAddr::from_abstract_name(name).and_then(|address| {
        UnixListener::bind_addr(&address).map_err(|error| {
            let is_taken = error.kind() == ErrorKind::AddrInUse;
            if is_taken {
                std::io::Error::new(ErrorKind::AddrInUse, holder(&address).unwrap_or_default())
            } else {
                error
            }
        })
    });
    match taken {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == ErrorKind::AddrInUse && !error.to_string().is_empty() => bail!(
            "node '{node}' at {peer}: in use by another agent on this machine ({error}); hint: stop that agent, or join this one under another name"
        ),
        Err(error) => {
            tracing::debug!(%error, "check for another agent of this name failed");
            Ok(None)
        }
    }
}

/// Returns the process that listens there, if its user may hold the lock.
fn holder(address: &SocketAddr) -> Option<String> {
    let stream = UnixStream::connect_addr(address).ok()?;
    stream.set_nonblocking(true).ok()?;
    let peer = tokio::net::UnixStream::from_std(stream).ok()?.peer_cred().ok()?;
    let may = peer.uid() < FIRST_USER_UID || peer.uid() == own_uid();
    may.then(|| peer.pid().map_or_else(|| "of another container".to_owned(), |pid| format!("process {pid}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_config::BrokerUrl;

    #[tokio::test]
    async fn the_lock_admits_one_agent_per_name() {
        let config = Config::default();
        let node = NodeName::parse(&format!("n-{}", std::process::id())).unwrap();
        let first = acquire(&config, &node).unwrap();
        assert!(first.is_some());
        let refused = acquire(&config, &node).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        assert!(refused.contains(node.as_str()), "{refused}");
        // The same name at another cloud is another node.
        let mut elsewhere = config.clone();
        elsewhere.link.broker = BrokerUrl::parse("mqtt://127.0.0.1:1").unwrap().into();
        assert!(acquire(&elsewhere, &node).unwrap().is_some());
        drop(first);
        assert!(acquire(&config, &node).unwrap().is_some());
    }
}
