//! Resumable sessions, stored on the server: the client gets a ticket of 16 bytes, the key of its
//! session. A ticket that contains the session also contains the client's certificate, and crosses
//! the network twice with each reconnect, which then costs 1.1 KB more.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::server::{ProducesTickets, StoresServerSessions};

use super::provider;

/// Bytes of a ticket. It is no secret: a client proves with each use that it has the keys of the
/// session.
const TICKET_BYTES: usize = 16;
/// Time for which a client may resume a session, in seconds: the longest that TLS 1.3 permits. A
/// node that connects once a day needs more than the day that the library grants by default.
const LIFETIME_SECONDS: u32 = 7 * 24 * 3600;

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

/// Issues keys of the store in the place of encrypted sessions. Each is used once.
impl ProducesTickets for Sessions {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME_SECONDS
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut ticket = vec![0; TICKET_BYTES];
        provider().secure_random.fill(&mut ticket).ok()?;
        self.put(ticket.clone(), plain.to_vec()).then_some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.take(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_returns_its_session_once() {
        let sessions = Sessions::default();
        let [first, second] = [b"first", b"other"].map(|session| sessions.encrypt(session).unwrap());
        assert_ne!(first, second);
        assert_eq!(first.len(), TICKET_BYTES);
        assert_eq!(sessions.decrypt(&first).as_deref(), Some(&b"first"[..]));
        assert_eq!(sessions.decrypt(&first), None);
        assert_eq!(sessions.decrypt(&[]), None);
        assert_eq!(sessions.decrypt(&second).as_deref(), Some(&b"other"[..]));
    }

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
