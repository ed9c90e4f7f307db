//! One agent for one name at one cloud. A second one on this machine would throw the first out of its connection, and be
//! thrown out by it, again and again.
//!
//! Who holds a socket without a file (`unix(7)`, abstract) is that agent. It goes with the process, however that ends, and
//! is where others find out who it is.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use anyhow::bail;

use edgesync_api::own_uid;
use edgesync_config::edge::Config;
use edgesync_transport::tls::certificate::sha256_hex;

/// Users below this are services; others may not keep an agent from running.
const FIRST_PERSON: u32 = 1000;

/// Takes the name of a node, as long as what is returned is kept.
///
/// # Errors
/// Another agent has it.
pub(super) fn take_name(config: &Config) -> anyhow::Result<Option<UnixListener>> {
    let (node, peer) = (&config.node.name, config.peer());
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
            "another agent on this machine ({error}) is node '{node}' at {peer}, and would lose its connection: stop it, or join \
             with this one under another name"
        ),
        Err(error) => {
            tracing::debug!(%error, "whether another agent has this name is not known");
            Ok(None)
        }
    }
}

/// Which process listens there, if it may.
fn holder(address: &SocketAddr) -> Option<String> {
    let stream = UnixStream::connect_addr(address).ok()?;
    stream.set_nonblocking(true).ok()?;
    let peer = tokio::net::UnixStream::from_std(stream).ok()?.peer_cred().ok()?;
    let may = peer.uid() < FIRST_PERSON || peer.uid() == own_uid();
    may.then(|| peer.pid().map_or_else(|| "of another container".to_owned(), |pid| format!("process {pid}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_one_agents_at_a_time() {
        let mut config = Config::default();
        config.node.name = format!("n-{}", std::process::id());
        let first = take_name(&config).unwrap();
        assert!(first.is_some());
        let refused = take_name(&config).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        assert!(refused.contains(&config.node.name), "{refused}");
        // At another cloud it is another node.
        let mut elsewhere = config.clone();
        elsewhere.link.broker.port += 1;
        assert!(take_name(&elsewhere).unwrap().is_some());
        drop(first);
        assert!(take_name(&config).unwrap().is_some());
    }
}
