//! Enrollment tokens: `<SHA-256 of the CA in hexadecimal>.<JWT>`, in the format of KubeEdge's
//! `keadm gettoken`. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::Value;

use edgesync_object::name;

/// Maximum length of a token in bytes; real ones have about 300.
pub const MAX_TOKEN: usize = 8192;

/// A token. Its secret part is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    ca: String,
    jwt: String,
}

/// Reason why a text is no token. Never contains the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid token: {0}; expected <64 hexadecimal digits>.<three parts with dots between>, as printed by 'edgesync-cloud token create' or 'keadm gettoken'"
)]
pub struct TokenError(pub String);

/// Claims of a token. Unverified: only the cloud can verify them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Time at which the token expires.
    pub expires: Option<Timestamp>,
    /// The only node that may use it.
    pub node: Option<String>,
}

impl std::str::FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let refused = |why: &str| Err(TokenError(why.to_owned()));
        let text = text.trim();
        if text.is_empty() {
            return refused("it is empty");
        }
        if text.len() > MAX_TOKEN {
            return refused("it is longer than 8192 bytes");
        }
        let Some((ca, jwt)) = text.split_once('.') else { return refused("it has no dot") };
        if ca.len() != 64 || !ca.bytes().all(|b| b.is_ascii_hexdigit()) {
            return refused("it does not begin with the 64 hexadecimal digits of the CA and a dot");
        }
        let parts = jwt.split('.').collect::<Vec<_>>();
        if parts.len() != 3 {
            return refused("it does not have three parts after the CA; was it cut when it was copied?");
        }
        let is_base64url = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if parts.iter().any(|part| part.is_empty() || !part.bytes().all(is_base64url)) {
            return refused("a part is empty or has invalid characters");
        }
        Ok(Self { ca: ca.to_ascii_lowercase(), jwt: jwt.to_owned() })
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("ca", &self.ca).finish_non_exhaustive()
    }
}

impl Token {
    /// Returns the SHA-256 of the CA's DER in lower-case hexadecimal.
    #[must_use]
    pub(crate) fn ca_fingerprint(&self) -> &str {
        &self.ca
    }

    /// Returns the JWT, for the header `Authorization: Bearer`.
    #[must_use]
    pub fn bearer(&self) -> &str {
        &self.jwt
    }

    /// Returns the claims; empty if they cannot be parsed.
    #[must_use]
    pub fn claims(&self) -> Claims {
        let payload = self.jwt.split('.').nth(1).unwrap_or_default();
        let bytes = URL_SAFE_NO_PAD.decode(payload).unwrap_or_default();
        let claims: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let expires = claims.get("exp").and_then(Value::as_i64);
        let node = claims.get("sub").and_then(Value::as_str);
        Claims {
            expires: expires.and_then(|seconds| Timestamp::from_second(seconds).ok()),
            node: node.filter(|node| name::check_subdomain(node).is_ok()).map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CA: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    fn with_claims(claims: &str) -> String {
        format!("{CA}.eyJhbGciOiJIUzI1NiJ9.{}.c2lnbmF0dXJl", URL_SAFE_NO_PAD.encode(claims))
    }

    fn claims(text: &str) -> Claims {
        with_claims(text).parse::<Token>().unwrap().claims()
    }

    #[test]
    fn token_is_parsed_with_its_claims() {
        let text = with_claims(r#"{"jti":"x","sub":"pump-7","exp":1800000000}"#);
        let token: Token = format!("  {text}\n").parse().unwrap();
        assert_eq!(token.ca_fingerprint(), CA);
        assert_eq!(format!("{CA}.{}", token.bearer()), text);
        let expires = Some(Timestamp::from_second(1_800_000_000).unwrap());
        assert_eq!(token.claims(), Claims { expires, node: Some("pump-7".into()) });
        assert_eq!(text.to_uppercase()[..64].to_lowercase(), CA);
        let upper = format!("{}{}", CA.to_uppercase(), &text[64..]);
        assert_eq!(upper.parse::<Token>().unwrap(), token);
    }

    #[test]
    fn invalid_claims_are_ignored() {
        for text in ["nonsense", "[]", r#"{"exp":"soon","sub":7}"#, r#"{"exp":9e99,"sub":"../etc"}"#] {
            assert_eq!(claims(text), Claims::default(), "{text}");
        }
        assert_eq!(claims(r#"{"exp":99999999999999}"#).expires, None);
    }

    #[test]
    fn invalid_token_is_refused_without_being_shown() {
        let good = with_claims("{}");
        let secret = "c2lnbmF0dXJl";
        for (bad, why) in [
            (String::new(), "empty"),
            ("abc".into(), "no dot"),
            (good[1..].to_owned(), "64 hexadecimal digits"),
            (good.replacen('0', "g", 1), "64 hexadecimal digits"),
            (good.rsplit_once('.').unwrap().0.to_owned(), "cut when it was copied"),
            (format!("{good}.{secret}"), "three parts"),
            (format!("{good}="), "characters"),
            (good.replace("c2ln", "c2 ln"), "characters"),
            (format!("{good}{}", "a".repeat(MAX_TOKEN)), "longer"),
        ] {
            let error = bad.parse::<Token>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("edgesync-cloud token create"), "{bad}: {error}");
            assert!(!error.contains(secret) && !error.contains("c2 ln"), "{error}");
        }
    }

    #[test]
    fn secret_part_is_not_shown() {
        let token: Token = with_claims(r#"{"sub":"a"}"#).parse().unwrap();
        let shown = format!("{token:?}");
        assert!(shown.contains(CA) && !shown.contains(token.bearer()) && !shown.contains("c2ln"), "{shown}");
    }
}
