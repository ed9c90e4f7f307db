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

/// Stores a changed text.
type Keep = Box<dyn Fn(String) + Send + Sync>;

struct Inner {
    kept: Mutex<Kept>,
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
        Self(Arc::new(Inner { kept: Mutex::new(kept), keep: Box::new(keep) }))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last good address of a name.
    pub(crate) fn address(&self, host: &str) -> Option<IpAddr> {
        self.kept().addresses.get(host).copied()
    }

    /// Returns the position of the peer that worked last; 0 if it is none of these.
    pub(crate) fn position(&self, peers: impl IntoIterator<Item = String>) -> usize {
        let kept = self.kept();
        peers.into_iter().position(|peer| peer == kept.peer).unwrap_or(0)
    }

    /// Records a connection that has succeeded, TLS and protocol included: the name and the address
    /// dialed, and the peer, if the link has several.
    pub(crate) fn worked(&self, dialed: Option<(String, IpAddr)>, peer: Option<&str>) {
        let mut known = self.kept();
        let mut kept = known.clone();
        if let Some(peer) = peer {
            peer.clone_into(&mut kept.peer);
        }
        if let Some((host, address)) = dialed {
            if kept.addresses.len() >= MAX_NAMES && !kept.addresses.contains_key(&host) {
                // Names of earlier configurations; those in use are recorded again.
                kept.addresses.clear();
            }
            kept.addresses.insert(host, address);
        }
        if kept == *known {
            return;
        }
        known.clone_from(&kept);
        drop(known);
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
        fmt::Debug::fmt(&*self.kept(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "mqtts://broker.example:8883";

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn dialed(host: &str) -> Option<(String, IpAddr)> {
        Some((host.to_owned(), address("192.0.2.1")))
    }

    #[test]
    fn success_is_stored_once_and_read_again() {
        let stored: Arc<Mutex<Vec<String>>> = Arc::default();
        let keep = Arc::clone(&stored);
        let last_good = LastGood::new(None, move |text| keep.lock().unwrap().push(text));
        for _ in 0..2 {
            last_good.worked(dialed("broker.example"), Some(PEER));
        }
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
        last_good.worked(None, None);
        assert_eq!(*last_good.kept(), Kept::default());
    }

    #[test]
    fn number_of_names_is_bounded() {
        let last_good = LastGood::default();
        for number in 0..100 {
            last_good.worked(dialed(&format!("h{number}.example")), None);
        }
        assert!(last_good.kept().addresses.len() <= MAX_NAMES);
        assert!(last_good.address("h99.example").is_some());
    }
}
