//! The peer and the addresses that worked last; their creator keeps them across restarts.
//!
//! They come from this program's own connections and are stored in its database. An address is used
//! only where a name does not resolve, and with TLS the certificate is verified for the name.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Maximum number of names whose addresses are kept.
const MAX_NAMES: usize = 16;

/// The stored form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    /// Address of the peer, such as `mqtts://broker.example:8883`.
    peer: String,
    /// IP addresses by host name.
    addresses: BTreeMap<String, IpAddr>,
}

#[derive(Default)]
struct State {
    kept: Kept,
    /// Name and address of the connection that is being made.
    dialed: Option<(String, IpAddr)>,
}

/// Stores a changed text.
type Keep = Box<dyn Fn(String) + Send + Sync>;

struct Inner {
    state: Mutex<State>,
    keep: Keep,
}

/// The peer that worked last, and the last good address of each name. Clones share them.
#[derive(Clone)]
pub struct LastGood(Arc<Inner>);

impl LastGood {
    /// Creates it from the text stored earlier, if there is one; `keep` stores a changed text. An
    /// unreadable text counts as none.
    pub fn new(stored: Option<&str>, keep: impl Fn(String) + Send + Sync + 'static) -> Self {
        let kept: Kept = stored.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let state = Mutex::new(State { kept, dialed: None });
        Self(Arc::new(Inner { state, keep: Box::new(keep) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last good address of a name.
    pub(crate) fn address(&self, host: &str) -> Option<IpAddr> {
        self.state().kept.addresses.get(host).copied()
    }

    /// Returns the position of the peer that worked last; 0 if it is none of these.
    pub(crate) fn position(&self, peers: impl IntoIterator<Item = String>) -> usize {
        let state = self.state();
        peers.into_iter().position(|peer| peer == state.kept.peer).unwrap_or(0)
    }

    /// Records the address to which a connection is being made.
    pub(crate) fn dialed(&self, host: &str, address: IpAddr) {
        self.state().dialed = host.parse::<IpAddr>().is_err().then(|| (host.to_owned(), address));
    }

    /// Records that the connection being made has succeeded, TLS and protocol included; to which
    /// peer, if there are several.
    pub(crate) fn worked(&self, peer: Option<&str>) {
        let mut state = self.state();
        let mut kept = state.kept.clone();
        if let Some(peer) = peer {
            peer.clone_into(&mut kept.peer);
        }
        if let Some((host, address)) = state.dialed.take() {
            if kept.addresses.len() >= MAX_NAMES && !kept.addresses.contains_key(&host) {
                // Names of earlier configurations; those in use are recorded again.
                kept.addresses.clear();
            }
            kept.addresses.insert(host, address);
        }
        if kept == state.kept {
            return;
        }
        state.kept = kept.clone();
        drop(state);
        if let Ok(text) = serde_json::to_string(&kept) {
            (self.0.keep)(text);
        }
    }
}

impl Default for LastGood {
    /// Remembers until the end of the process.
    fn default() -> Self {
        Self::new(None, drop)
    }
}

impl fmt::Debug for LastGood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.state().kept, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "mqtts://broker.example:8883";

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn success_is_stored_once_and_read_again() {
        let stored: Arc<Mutex<Vec<String>>> = Arc::default();
        let keep = Arc::clone(&stored);
        let last_good = LastGood::new(None, move |text| keep.lock().unwrap().push(text));
        last_good.dialed("broker.example", address("192.0.2.1"));
        assert_eq!(last_good.address("broker.example"), None, "not before it has worked");
        last_good.worked(Some(PEER));
        last_good.dialed("broker.example", address("192.0.2.1"));
        last_good.worked(Some(PEER));
        let texts = stored.lock().unwrap().clone();
        assert_eq!(texts.len(), 1, "{texts:?}");

        let again = LastGood::new(Some(&texts[0]), drop);
        assert_eq!(again.address("broker.example"), Some(address("192.0.2.1")));
        assert_eq!(again.position(["mqtts://a:1".to_owned(), PEER.to_owned()]), 1);
        assert_eq!(again.position(["mqtts://a:1".to_owned()]), 0);
    }

    #[test]
    fn unreadable_text_counts_as_none() {
        for text in ["", "{", "[]", "{\"addresses\":{\"a\":\"x\"}}"] {
            assert_eq!(LastGood::new(Some(text), drop).address("a"), None, "{text}");
        }
    }

    #[test]
    fn single_peer_without_a_name_is_not_kept() {
        let last_good = LastGood::new(None, |text| panic!("stored {text}"));
        last_good.dialed("192.0.2.1", address("192.0.2.1"));
        last_good.worked(None);
        assert_eq!(last_good.state().kept, Kept::default());
    }

    #[test]
    fn number_of_names_is_bounded() {
        let last_good = LastGood::default();
        for number in 0..100 {
            last_good.dialed(&format!("h{number}.example"), address("192.0.2.1"));
            last_good.worked(None);
        }
        assert!(last_good.state().kept.addresses.len() <= MAX_NAMES);
        assert!(last_good.address("h99.example").is_some());
    }
}
