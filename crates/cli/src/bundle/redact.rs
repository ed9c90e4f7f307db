//! Redacts secrets in texts: tokens, passwords, keys, sealed bodies, names of Secrets. Pure.
//!
//! Logs, status and metrics contain none in the first place; this is the second line of defence.

use std::collections::BTreeSet;

use serde_json::Value;

/// Replacement of a secret.
const REDACTED: &str = "<redacted>";
/// The shortest value searched for, in bytes: a shorter one is no secret and would match
/// everywhere.
const MIN_SECRET: usize = 6;

/// The secrets of this device.
#[derive(Default)]
pub struct Redactor {
    /// Values redacted wherever they occur.
    values: Vec<String>,
    /// Names of Secrets, redacted as whole words or between `/`, `:` and `@`.
    names: BTreeSet<String>,
}

impl Redactor {
    pub fn new(values: impl IntoIterator<Item = String>, names: impl IntoIterator<Item = String>) -> Self {
        let values = values.into_iter().map(|value| value.trim().to_owned());
        let mut values: Vec<String> = values.filter(|value| value.len() >= MIN_SECRET).collect();
        // Longest first: a value may be part of another.
        values.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
        Self { values, names: names.into_iter().collect() }
    }

    /// Redacts known values, private keys in PEM, and values of keys such as `password`.
    pub(super) fn text(&self, text: &str) -> String {
        let mut plain = text.to_owned();
        for value in &self.values {
            if plain.contains(value.as_str()) {
                plain = plain.replace(value.as_str(), REDACTED);
            }
        }
        let mut out = String::with_capacity(plain.len());
        let mut in_key = false;
        for line in plain.split_inclusive('\n') {
            let begins = line.contains("-----BEGIN ") && line.contains("PRIVATE KEY");
            let ends = line.contains("-----END ") && line.contains("PRIVATE KEY");
            if begins || in_key {
                if begins {
                    out.push_str(REDACTED);
                    out.push('\n');
                }
                in_key = !ends;
                continue;
            }
            self.line(line, &mut out);
        }
        out
    }

    /// Redacts the strings of a JSON value; field names stay.
    pub(super) fn json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.json(item)).collect()),
            Value::Object(fields) => {
                let plain = |(name, value): (&String, &Value)| {
                    let secret = is_secret_key(name) && value.is_string();
                    (name.clone(), if secret { Value::from(REDACTED) } else { self.json(value) })
                };
                Value::Object(fields.iter().map(plain).collect())
            }
            other => other.clone(),
        }
    }

    /// Redacts a line word by word: values after `password =`, `token:` or `Bearer`.
    fn line(&self, line: &str, out: &mut String) {
        let mut rest = line;
        // Whether the last word was a key, and whether a separator followed that makes the next
        // word its value.
        let (mut key, mut expects_value) = (false, false);
        while let Some(c) = rest.chars().next() {
            let end = rest
                .find(|c| is_word(c) != is_word(rest.chars().next().unwrap_or(' ')))
                .unwrap_or(rest.len());
            let (piece, after) = rest.split_at(end);
            rest = after;
            if !is_word(c) {
                expects_value = expects_value || key && piece.contains(['=', ':']);
                key = key && piece.chars().all(|c| matches!(c, ' ' | '"' | '\'' | '\\' | '\t'));
                out.push_str(piece);
                continue;
            }
            // A boolean is no secret.
            if std::mem::take(&mut expects_value) && !matches!(piece, "true" | "false") {
                out.push_str(REDACTED);
                continue;
            }
            if piece == ":" && key {
                expects_value = true;
                out.push_str(piece);
                continue;
            }
            let bearer = piece.eq_ignore_ascii_case("bearer");
            let named = piece.strip_suffix(':').unwrap_or(piece);
            key = is_secret_key(named);
            expects_value = bearer || key && piece.ends_with(':');
            self.word(piece, out);
        }
    }

    fn word(&self, word: &str, out: &mut String) {
        if let Some((scheme, rest)) = word.split_once("://")
            && let Some((_, host)) = rest.rsplit_once('@')
        {
            out.push_str(&format!("{scheme}://{REDACTED}@{host}"));
            return;
        }
        if looks_secret(word) {
            out.push_str(REDACTED);
            return;
        }
        if let Some((name, value)) = word.split_once(':')
            && !value.is_empty()
            && is_secret_key(name)
        {
            out.push_str(&format!("{name}:{REDACTED}"));
            return;
        }
        for part in word.split_inclusive(['/', ':', '@']) {
            let name = part.trim_end_matches(['/', ':', '@', '.']);
            match self.names.contains(name) {
                true => out.push_str(&format!("{REDACTED}{}", &part[name.len()..])),
                false => out.push_str(part),
            }
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric()
        || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '+' | '%' | '~' | '#' | '*' | '!' | '$')
}

/// Returns whether a word is a JWT, with or without a fingerprint before it, or a sealed body.
fn looks_secret(word: &str) -> bool {
    let jwt = word.find("eyJ").is_some_and(|at| word[at..].split('.').count() >= 3);
    jwt || word.starts_with("sealed:")
}

/// Returns whether the value of a key is secret. File names are not.
fn is_secret_key(name: &str) -> bool {
    let name = name.rsplit(['/', '.']).next().unwrap_or(name).to_ascii_lowercase();
    let secret = ["password", "passwd", "passphrase", "secret", "token", "apikey", "api_key", "credential"];
    secret.iter().any(|word| name.ends_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn redactor() -> Redactor {
        Redactor::new(
            ["broker-pass-1\n".to_owned(), "abc".to_owned()],
            ["db-login".to_owned(), "tls".to_owned()],
        )
    }

    #[test]
    fn tokens_passwords_keys_and_sealed_bodies_are_redacted() {
        for (text, expected) in [
            ("connects with broker-pass-1.", "connects with <redacted>."),
            ("mqtts://me:pw@broker:8883 is there", "mqtts://<redacted>@broker:8883 is there"),
            ("mqtts://broker:8883/", "mqtts://broker:8883/"),
            ("got 0a1b.eyJhbGciOi.eyJzdWIiOi.c2ln now", "got <redacted> now"),
            ("body sealed:1:17:c2VjcmV0 x", "body <redacted> x"),
            ("Authorization: Bearer s3cr3tvalue", "Authorization: Bearer <redacted>"),
            ("password = \"hunter2\" # x", "password = \"<redacted>\" # x"),
            ("password_file = \"/etc/p\"", "password_file = \"/etc/p\""),
            ("token:hunter2 b", "token:<redacted> b"),
            ("{\"token\": \"hunter2\"}", "{\"token\": \"<redacted>\"}"),
            ("the token was refused", "the token was refused"),
            ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nafter", "<redacted>\nafter"),
            ("abc stays: too short", "abc stays: too short"),
        ] {
            assert_eq!(redactor().text(text), expected, "{text}");
        }
    }

    #[test]
    fn names_of_secrets_are_redacted_as_whole_words() {
        for (text, expected) in [
            ("object=shop/db-login: rejected", "object=shop/<redacted>: rejected"),
            ("db-login.", "<redacted>."),
            ("db-login-2 and mtls and tls", "db-login-2 and mtls and <redacted>"),
        ] {
            assert_eq!(redactor().text(text), expected, "{text}");
        }
    }

    #[test]
    fn json_keeps_its_shape() {
        let value =
            json!({ "tls": 1, "a": ["shop/db-login", 2], "token": "x", "tokens": { "password": "y" } });
        let expected = json!({ "tls": 1, "a": ["shop/<redacted>", 2], "token": "<redacted>", "tokens": { "password": "<redacted>" } });
        assert_eq!(redactor().json(&value), expected);
    }

    #[test]
    fn text_without_secrets_is_unchanged() {
        let text = "2026-11-21T13:00:00Z INFO in sync, objects=12\n[seal]\nrequire_credential = false # default\n[link]\nbroker = \"mqtts://b\"\nä ß \u{1f600}\n";
        assert_eq!(redactor().text(text), text);
        assert_eq!(redactor().text(""), "");
    }
}
