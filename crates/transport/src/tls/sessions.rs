//! Resumable sessions, stored on the server: the client gets an id of 32 bytes. A ticket that
//! contains the session also contains the client's certificate, and crosses the network twice with
//! each reconnect, which then costs 1.1 KB more.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::server::StoresServerSessions;

/// Sessions per generation. Two generations are kept, about 800 bytes per session.
const GENERATION: usize = 16_384;

/// Session store of two generations. When one is full the older one is dropped: its clients make a
/// full handshake.
pub(super) struct Sessions {
    generation: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    younger: HashMap<Vec<u8>, Vec<u8>>,
    older: HashMap<Vec<u8>, Vec<u8>>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { generation: GENERATION, kept: Mutex::default() }
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sessions(..)")
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let mut kept = self.lock();
        if kept.younger.len() >= self.generation {
            kept.older = std::mem::take(&mut kept.younger);
        }
        kept.younger.insert(key, value);
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let kept = self.lock();
        kept.younger.get(key).or_else(|| kept.older.get(key)).cloned()
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut kept = self.lock();
        kept.younger.remove(key).or_else(|| kept.older.remove(key))
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_keeps_two_generations_of_sessions() {
        let sessions = Sessions { generation: 10, kept: Mutex::default() };
        for number in 0..100u8 {
            assert!(sessions.put(vec![number], vec![number; 2]));
            let oldest = number.saturating_sub(10);
            assert!((oldest..=number).all(|number| sessions.get(&[number]) == Some(vec![number; 2])));
        }
        let kept = (0..100u8).filter(|number| sessions.take(&[*number]).is_some()).count();
        assert!((10..=20).contains(&kept), "{kept}");
        assert_eq!(sessions.take(&[99]), None);
    }
}
