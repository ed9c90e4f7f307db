//! Parses responses, with an error that names the missing key.

use std::error::Error;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A response document that a client parses.
pub trait Answer: DeserializeOwned {
    /// Name in error messages, without article.
    const NAME: &'static str;
}

/// Parses a response.
///
/// # Errors
/// A required key is missing, or a value has the wrong type.
pub fn read<T: Answer>(answer: &Value) -> Result<T, InvalidResponse> {
    T::deserialize(answer).map_err(|source| InvalidResponse { name: T::NAME, source })
}

/// Serializes a response.
///
/// # Errors
/// A map has keys that are not strings, which no response has.
pub fn write(answer: &impl Serialize) -> Result<Value, serde_json::Error> {
    serde_json::to_value(answer)
}

/// Error of a response with a missing key or a value of the wrong type.
#[derive(Debug)]
pub struct InvalidResponse {
    name: &'static str,
    source: serde_json::Error,
}

impl fmt::Display for InvalidResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parse {}: {}; the server may have another version", self.name, self.source)
    }
}

/// The source is part of the message.
impl Error for InvalidResponse {}

/// Deserializes a required key whose value may be `null`.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, Deserialize)]
    struct Sample {
        #[serde(deserialize_with = "nullable")]
        cause: Option<String>,
    }

    impl Answer for Sample {
        const NAME: &'static str = "sample";
    }

    #[test]
    fn missing_key_is_named_in_the_error() {
        assert_eq!(read::<Sample>(&json!({ "cause": null })).unwrap().cause, None);
        assert_eq!(read::<Sample>(&json!({ "cause": "x" })).unwrap().cause.as_deref(), Some("x"));
        let missing = read::<Sample>(&json!({ "causes": "x" })).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "parse sample: missing field `cause`; the server may have another version"
        );
        let other = read::<Sample>(&json!({ "cause": 7 })).unwrap_err();
        assert_eq!(
            other.to_string(),
            "parse sample: invalid type: integer `7`, expected a string; the server may have another version"
        );
    }
}
