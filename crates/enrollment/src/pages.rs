//! Keys for the web page. `edgesync-cloud page` requests one, and the browser sends it with each
//! request.
//!
//! Keys are signed and not stored, so that they stay valid across restarts.

use std::path::Path;

use anyhow::{Result, bail};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use super::files;
use edgesync_api::{PageKeys, Role};
use edgesync_store::durable;

/// Lifetime of a key, in seconds.
const LIFETIME: i64 = 12 * 3600;

const SECRET_BYTES: usize = 32;
/// Prefix of a key's signed part: prefix, role, expiry.
const HEAD: &str = "page1";
/// Maximum length of a key.
const MAX_KEY: usize = 200;

/// Signs and verifies keys of the page. Has no `Debug`.
pub struct Keys(hmac::Key);

impl Keys {
    /// Reads the secret, or creates it: 32 random bytes, mode 0600. Removing the file invalidates
    /// all keys.
    ///
    /// # Errors
    /// The file cannot be read or written, or has another length.
    pub fn open(path: &Path) -> Result<Self> {
        let secret = match files::read_secret(path)? {
            Some(secret) => secret,
            None => {
                let mut secret = [0; SECRET_BYTES];
                if SystemRandom::new().fill(&mut secret).is_err() {
                    bail!("random source of the system failed");
                }
                durable::write(path, &secret, 0o600)?;
                secret.to_vec()
            }
        };
        if secret.len() != SECRET_BYTES {
            bail!(
                "{} must have {SECRET_BYTES} bytes; hint: remove it, which invalidates all page keys",
                path.display()
            );
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &secret)))
    }

    /// Signs a key for a role. Returns it with its expiry.
    pub fn sign(&self, role: Role, now: Timestamp) -> (String, Timestamp) {
        let ends = now.as_second().saturating_add(LIFETIME);
        let head = format!("{HEAD}.{role}.{ends}");
        let signature = BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&self.0, head.as_bytes()));
        (format!("{head}.{signature}"), Timestamp::from_second(ends).unwrap_or(now))
    }

    fn verify(&self, key: &str, now: Timestamp) -> Option<Role> {
        let (head, signature) = key.rsplit_once('.').filter(|_| key.len() <= MAX_KEY)?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.0, head.as_bytes(), &signature).ok()?;
        let mut words = head.strip_prefix(HEAD)?.strip_prefix('.')?.split('.');
        let (role, ends) = (words.next()?.parse().ok()?, words.next()?.parse::<i64>().ok()?);
        (now.as_second() < ends).then_some(role)
    }
}

impl PageKeys for Keys {
    fn role(&self, key: &str) -> Option<Role> {
        self.verify(key, Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_key_has_its_role_until_its_expiry_and_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.key");
        let (key, ends) = Keys::open(&path).unwrap().sign(Role::View, at(100));
        let again = Keys::open(&path).unwrap();
        assert_eq!(ends, at(100 + LIFETIME));
        assert_eq!(again.verify(&key, at(100 + LIFETIME - 1)), Some(Role::View));
        assert_eq!(again.verify(&key, ends), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Keys::open(&path).unwrap().verify(&key, at(100)), None, "another secret");
    }

    #[test]
    fn a_changed_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(&dir.path().join("page.key")).unwrap();
        let (key, _) = keys.sign(Role::View, at(100));
        for other in [
            key.replace("view", "admin"),
            key.replace("43300", "99999"),
            key[..key.len() - 1].to_owned(),
            key.rsplit_once('.').unwrap().0.to_owned(),
            String::new(),
            "x".repeat(10_000),
        ] {
            assert_eq!(keys.verify(&other, at(100)), None, "{other:.80}");
        }
    }

    #[test]
    fn a_damaged_secret_is_an_error_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.key");
        std::fs::write(&path, "short").unwrap();
        assert!(Keys::open(&path).err().unwrap().to_string().contains("remove it"));
    }
}
