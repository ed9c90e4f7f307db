//! Keys for the web page. `edgesync-cloud page` requests one, and the browser sends it with each
//! request.
//!
//! Keys are signed and not stored, so that they stay valid across restarts. A key names the caller
//! that has requested it, and is valid while an operator's certificate is; a new secret revokes all
//! keys.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use anyhow::{Result, bail};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::hmac;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::files;
use edgesync_api::{Caller, Credential, PageKeyHolder, PageKeys, Role};
use edgesync_object::{Status, status};
use edgesync_store::{durable, random};

/// Lifetime of a key, in seconds.
const LIFETIME: i64 = 12 * 3600;

const SECRET_BYTES: usize = 32;
/// Prefix of a key's signed part: prefix, claims.
const HEAD: &str = "page2.";
/// Maximum length of a key. The longest name of an operator makes one of 560 bytes.
const MAX_KEY: usize = 700;

/// Signs and verifies keys of the page. Has no `Debug`.
pub struct Keys {
    path: PathBuf,
    secret: RwLock<hmac::Key>,
    revoked: watch::Sender<()>,
}

/// The claims of a key, in its text as base64 of JSON.
#[derive(Serialize, Deserialize)]
struct Claims {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    role: Role,
    /// Expiry in seconds since 1970.
    ends: i64,
}

impl Keys {
    /// Reads the secret, or creates it: 32 random bytes, mode 0600. Removing the file and
    /// restarting invalidates all keys.
    ///
    /// # Errors
    /// The file cannot be read or written, or has another length.
    pub fn open(path: &Path) -> Result<Self> {
        let secret = match files::read_secret(path)? {
            Some(secret) => secret,
            None => new_secret(path)?.to_vec(),
        };
        if secret.len() != SECRET_BYTES {
            bail!(
                "{} must have {SECRET_BYTES} bytes; hint: remove it, which invalidates all page keys",
                path.display()
            );
        }
        let secret = RwLock::new(hmac::Key::new(hmac::HMAC_SHA256, &secret));
        Ok(Self { path: path.to_owned(), secret, revoked: watch::Sender::new(()) })
    }

    /// Revokes all keys: replaces the secret, in the file first. Blocks on the disk.
    ///
    /// # Errors
    /// The file cannot be written; then the keys stay valid.
    pub fn revoke_all(&self) -> status::Result<()> {
        let secret = new_secret(&self.path).map_err(|error| Status::internal(format!("{error:#}")))?;
        *self.secret.write().unwrap_or_else(PoisonError::into_inner) =
            hmac::Key::new(hmac::HMAC_SHA256, &secret);
        self.revoked.send_replace(());
        Ok(())
    }

    /// Signs a key for a caller, which ends with the caller's certificate at the latest. Returns it
    /// with its expiry.
    pub fn sign(&self, caller: &Caller, now: Timestamp) -> (String, Timestamp) {
        let ends = now.as_second().saturating_add(LIFETIME);
        let (serial, ends) = match &caller.credential {
            Credential::Certificate(certificate) => {
                (Some(certificate.serial().to_owned()), ends.min(certificate.not_after().as_second()))
            }
            _ => (None, ends),
        };
        let claims = Claims { name: caller.name.to_string(), serial, role: caller.role, ends };
        // Strings and numbers always serialize.
        let claims = serde_json::to_vec(&claims).unwrap_or_default();
        let head = format!("{HEAD}{}", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let signature = {
            let secret = self.secret.read().unwrap_or_else(PoisonError::into_inner);
            BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&secret, head.as_bytes()))
        };
        (format!("{head}.{signature}"), Timestamp::from_second(ends).unwrap_or(now))
    }

    fn verify(&self, key: &str, now: Timestamp) -> Option<PageKeyHolder> {
        let (head, signature) = key.rsplit_once('.').filter(|_| key.len() <= MAX_KEY)?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        {
            let secret = self.secret.read().unwrap_or_else(PoisonError::into_inner);
            hmac::verify(&secret, head.as_bytes(), &signature).ok()?;
        }
        let claims = BASE64_URL_SAFE_NO_PAD.decode(head.strip_prefix(HEAD)?).ok()?;
        let Claims { name, serial, role, ends } = serde_json::from_slice(&claims).ok()?;
        let ends = Timestamp::from_second(ends).ok().filter(|ends| now < *ends)?;
        Some(PageKeyHolder { name, serial, role, ends })
    }
}

/// Writes a new secret to its file.
fn new_secret(path: &Path) -> Result<[u8; SECRET_BYTES]> {
    let secret = random::bytes()?;
    durable::write(path, &secret, 0o600)?;
    Ok(secret)
}

impl PageKeys for Keys {
    fn holder(&self, key: &str) -> Option<PageKeyHolder> {
        self.verify(key, Timestamp::now())
    }

    fn revoked(&self) -> watch::Receiver<()> {
        self.revoked.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_transport::tls::Identity;
    use std::sync::Arc;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn viewer() -> Caller {
        Caller { name: "uid 7".into(), role: Role::View, credential: Credential::Socket }
    }

    #[test]
    fn a_key_has_its_holder_until_its_expiry_and_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.key");
        let (key, ends) = Keys::open(&path).unwrap().sign(&viewer(), at(100));
        let again = Keys::open(&path).unwrap();
        assert_eq!(ends, at(100 + LIFETIME));
        let holder = PageKeyHolder { name: "uid 7".into(), serial: None, role: Role::View, ends };
        assert_eq!(again.verify(&key, at(100 + LIFETIME - 1)), Some(holder));
        assert_eq!(again.verify(&key, ends), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Keys::open(&path).unwrap().verify(&key, at(100)), None, "another secret");
    }

    #[test]
    fn a_key_of_an_operator_has_the_serial_and_ends_with_the_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(&dir.path().join("page.key")).unwrap();
        let identity = Identity::local([127, 0, 0, 1].into()).unwrap();
        let certificate = Arc::new(identity.certificate().clone());
        let end = certificate.not_after();
        let credential = Credential::Certificate(Arc::clone(&certificate));
        let longest = "n".repeat(253);
        let caller = Caller { name: longest.as_str().into(), role: Role::Admin, credential };
        let late = at(end.as_second() - 10);
        let (key, ends) = keys.sign(&caller, late);
        assert_eq!(ends, end);
        let serial = Some(certificate.serial().to_owned());
        let holder = PageKeyHolder { name: longest, serial, role: Role::Admin, ends };
        assert_eq!(keys.verify(&key, late), Some(holder), "{} bytes", key.len());
    }

    #[test]
    fn revocation_ends_all_keys_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.key");
        let keys = Keys::open(&path).unwrap();
        let (key, _) = keys.sign(&viewer(), at(100));
        let revoked = keys.revoked();
        keys.revoke_all().unwrap();
        assert!(revoked.has_changed().unwrap());
        assert_eq!(keys.verify(&key, at(100)), None);
        assert_eq!(Keys::open(&path).unwrap().verify(&key, at(100)), None);
        let (fresh, _) = keys.sign(&viewer(), at(100));
        assert!(Keys::open(&path).unwrap().verify(&fresh, at(100)).is_some());
    }

    #[test]
    fn a_changed_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(&dir.path().join("page.key")).unwrap();
        let (key, _) = keys.sign(&viewer(), at(100));
        let (claims, signature) = key.strip_prefix(HEAD).unwrap().split_once('.').unwrap();
        let forged = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
        let forged = BASE64_URL_SAFE_NO_PAD.encode(forged.replace("view", "admin"));
        for other in [
            format!("{HEAD}{forged}.{signature}"),
            format!("page1.{claims}.{signature}"),
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
