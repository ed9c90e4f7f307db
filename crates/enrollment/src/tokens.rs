//! Join tokens: JWTs (RFC 7519) signed with HMAC-SHA-256 (`HS256`) under the key in `token.key`.
//!
//! A token with a valid signature is looked up in the store, which counts its uses.

use std::path::Path;

use anyhow::{Result, bail};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::hmac;
use serde::{Deserialize, Serialize};

use super::files;
use edgesync_object::NodeName;
use edgesync_store::{durable, random};

const FILE: &str = "token.key";
const KEY_BYTES: usize = 32;
/// Maximum length of a bearer token.
const MAX_JWT: usize = 2048;

/// The key that signs tokens. Has no `Debug`.
pub(super) struct TokenKey(hmac::Key);

/// The claims of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenClaims {
    /// Its id in the store (`jti`).
    pub(super) id: String,
    /// The only node that may use it (`sub`).
    pub(super) node: Option<NodeName>,
    /// Time of expiry (`exp`), in whole seconds.
    pub(super) expires: Timestamp,
}

/// Reason why a bearer token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenRefusal {
    /// It is no JWT, or has another algorithm or key.
    #[error("token not issued by this cloud side; hint: create one here with 'edgesync-cloud token create'")]
    Unknown,
    #[error("token expired; hint: create a new one with 'edgesync-cloud token create'")]
    Expired,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    typ: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Payload {
    jti: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<NodeName>,
    exp: i64,
}

impl TokenKey {
    /// Reads `token.key`, or creates it: 32 random bytes, mode 0600.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE);
        let secret = match files::read_secret(&path)? {
            Some(secret) => secret,
            None => {
                let secret = new_secret()?;
                durable::write(&path, &secret, 0o600)?;
                secret.to_vec()
            }
        };
        Self::load(&path.display().to_string(), &secret)
    }

    /// Loads a key from its bytes.
    ///
    /// # Errors
    /// The length is wrong; `what` names the origin.
    pub(super) fn load(what: &str, secret: &[u8]) -> Result<Self> {
        if secret.len() != KEY_BYTES {
            bail!(
                "{what} has {} bytes instead of {KEY_BYTES}; hint: restore it, or remove it, which invalidates all tokens",
                secret.len()
            );
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// Signs claims as a JWT.
    pub(super) fn sign(&self, claims: &TokenClaims) -> String {
        let header = Header { alg: "HS256".into(), typ: Some("JWT".into()) };
        let payload =
            Payload { jti: claims.id.clone(), sub: claims.node.clone(), exp: claims.expires.as_second() };
        let signed = format!("{}.{}", encode(&header), encode(&payload));
        let signature = hmac::sign(&self.0, signed.as_bytes());
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    /// Verifies signature and expiry.
    ///
    /// # Errors
    /// See [`TokenRefusal`].
    pub(super) fn verify(&self, jwt: &str, now: Timestamp) -> Result<TokenClaims, TokenRefusal> {
        let claims = self.read(jwt).ok_or(TokenRefusal::Unknown)?;
        if now >= claims.expires {
            return Err(TokenRefusal::Expired);
        }
        Ok(claims)
    }

    /// Returns the claims of a token with a valid signature.
    fn read(&self, jwt: &str) -> Option<TokenClaims> {
        if jwt.len() > MAX_JWT {
            return None;
        }
        let (signed, signature) = jwt.rsplit_once('.')?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.0, signed.as_bytes(), &signature).ok()?;
        let (header, payload) = signed.split_once('.')?;
        let header: Header = decode(header)?;
        let payload: Payload = decode(payload)?;
        let expires = Timestamp::from_second(payload.exp).ok()?;
        (header.alg == "HS256").then_some(TokenClaims { id: payload.jti, node: payload.sub, expires })
    }
}

/// Generates the bytes of a new key.
///
/// # Errors
/// The system's random source fails.
pub(super) fn new_secret() -> Result<[u8; KEY_BYTES]> {
    Ok(random::bytes()?)
}

fn encode(part: &impl Serialize) -> String {
    // Structs of strings and numbers always serialize.
    BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(part).unwrap_or_default())
}

fn decode<T: for<'de> Deserialize<'de>>(part: &str) -> Option<T> {
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_fuzz::fuzz;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static KEY: LazyLock<TokenKey> = LazyLock::new(|| key(7));

    fn key(byte: u8) -> TokenKey {
        TokenKey(hmac::Key::new(hmac::HMAC_SHA256, &[byte; KEY_BYTES]))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn claims() -> TokenClaims {
        TokenClaims {
            id: "0011223344556677".into(),
            node: Some(NodeName::parse("edge-1").unwrap()),
            expires: at(2_000_000_000),
        }
    }

    /// A JWT with this header and payload and a valid signature.
    fn forged(header: &str, payload: &str) -> String {
        let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        let signed = format!("{}.{}", encode(header), encode(payload));
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&KEY.0, signed.as_bytes())))
    }

    #[test]
    fn a_token_is_a_jwt_that_any_decoder_reads() {
        let jwt = KEY.sign(&claims());
        let parts: Vec<_> = jwt.split('.').map(|part| BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).collect();
        assert_eq!(parts.len(), 3);
        let json = |part: &[u8]| serde_json::from_slice::<serde_json::Value>(part).unwrap();
        assert_eq!(json(&parts[0]), serde_json::json!({"alg": "HS256", "typ": "JWT"}));
        let payload =
            serde_json::json!({"jti": "0011223344556677", "sub": "edge-1", "exp": 2_000_000_000i64});
        assert_eq!(json(&parts[1]), payload);
        assert_eq!(parts[2].len(), 32);
    }

    #[test]
    fn the_example_of_the_rfc_is_verified() {
        // RFC 7515, A.1. Its payload has no `jti` and so no claims; its signature is valid.
        let secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
        let key = hmac::Key::new(hmac::HMAC_SHA256, &BASE64_URL_SAFE_NO_PAD.decode(secret).unwrap());
        let signed = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
        let signature = BASE64_URL_SAFE_NO_PAD.decode("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk").unwrap();
        assert!(hmac::verify(&key, signed.as_bytes(), &signature).is_ok());
    }

    #[test]
    fn a_token_is_valid_until_its_expiry() {
        let jwt = KEY.sign(&claims());
        assert_eq!(KEY.verify(&jwt, at(1_999_999_999)), Ok(claims()));
        assert_eq!(KEY.verify(&jwt, at(2_000_000_000)), Err(TokenRefusal::Expired));
    }

    #[test]
    fn a_token_of_another_key_is_unknown_even_when_expired() {
        let jwt = key(8).sign(&TokenClaims { expires: at(1), ..claims() });
        assert_eq!(KEY.verify(&jwt, at(2)), Err(TokenRefusal::Unknown));
    }

    #[test]
    fn other_algorithms_and_other_payloads_are_unknown() {
        let good = r#"{"jti":"a","exp":2000000000}"#;
        assert!(KEY.verify(&forged(r#"{"alg":"HS256"}"#, good), at(1)).is_ok());
        for (header, payload) in [
            (r#"{"alg":"none"}"#, good),
            (r#"{"alg":"HS512"}"#, good),
            ("{}", good),
            (r#"{"alg":"HS256"}"#, r#"{"jti":"a"}"#),
            (r#"{"alg":"HS256"}"#, r#"{"jti":"a","sub":"A b","exp":2000000000}"#),
            (r#"{"alg":"HS256"}"#, r#"{"exp":2000000000}"#),
            (r#"{"alg":"HS256"}"#, r#"{"jti":"a","exp":9223372036854775807}"#),
        ] {
            assert_eq!(
                KEY.verify(&forged(header, payload), at(1)),
                Err(TokenRefusal::Unknown),
                "{header} {payload}"
            );
        }
    }

    #[test]
    fn the_key_is_created_once_and_a_wrong_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let jwt = TokenKey::open(dir.path()).unwrap().sign(&claims());
        assert_eq!(TokenKey::open(dir.path()).unwrap().verify(&jwt, at(1)), Ok(claims()));
        std::fs::write(dir.path().join(FILE), "short").unwrap();
        let error = TokenKey::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("token.key has 5 bytes"), "{error}");
    }

    #[test]
    fn fuzz_tokens() {
        let signed = KEY.sign(&claims());
        let payload = r#"{"jti":"a","sub":"edge-1","exp":99999999999}"#.as_bytes().to_vec();
        fuzz("token", &[signed.into_bytes(), payload], |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _ = KEY.verify(&text, at(1));
            let _ = KEY.verify(&forged(r#"{"alg":"HS256"}"#, &text), at(1));
        });
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_no_token(text in ".{0,200}") {
            prop_assert_eq!(KEY.verify(&text, at(1)), Err(TokenRefusal::Unknown));
        }

        #[test]
        fn a_changed_token_is_refused(at_byte in 0..500usize, to in "[A-Za-z0-9_.-]") {
            let jwt = KEY.sign(&claims());
            let at_byte = at_byte % jwt.len();
            let mut changed = jwt.clone();
            changed.replace_range(at_byte..=at_byte, &to);
            // The last digit of a signature has unused bits; a strict decoder rejects those that
            // are set.
            prop_assert_eq!(KEY.verify(&changed, at(1)).is_ok(), changed == jwt);
        }

        #[test]
        fn any_signed_payload_is_parsed_without_panic(header in ".{0,40}", payload in ".{0,80}") {
            let _ = KEY.verify(&forged(&header, &payload), at(1));
        }
    }
}
