//! Reasons of failed requests, with their HTTP codes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Machine-readable reason of a failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// 400: the request is malformed.
    BadRequest,
    /// 401: credentials are missing or wrong.
    Unauthorized,
    /// 403: the request is understood and refused.
    Forbidden,
    /// 404: the object or the kind does not exist.
    NotFound,
    /// 405: the resource does not support the verb.
    MethodNotAllowed,
    /// 406: no accepted representation is available.
    NotAcceptable,
    /// 409: an object of this name exists.
    AlreadyExists,
    /// 409: the object changed, or a precondition does not hold.
    Conflict,
    /// 410: the requested point in time is no longer known.
    Expired,
    /// 413: the body exceeds the limit.
    RequestEntityTooLarge,
    /// 415: the server does not read the format of the body.
    UnsupportedMediaType,
    /// 422: the object is invalid.
    Invalid,
    /// 429: too many requests or too slow a client.
    TooManyRequests,
    /// 500: an unexpected failure, the outcome is unknown.
    InternalError,
    /// 503: a required part of the server is unavailable.
    ServiceUnavailable,
    /// 504: the request timed out.
    Timeout,
    /// A reason of another server.
    Other(String),
}

impl Reason {
    /// Returns the reason as serialized.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Expired => "Expired",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::Invalid => "Invalid",
            Self::TooManyRequests => "TooManyRequests",
            Self::InternalError => "InternalError",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::Timeout => "Timeout",
            Self::Other(word) => word,
        }
    }

    /// Returns the HTTP status code.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            Self::InternalError | Self::Other(_) => 500,
            Self::ServiceUnavailable => 503,
            Self::Timeout => 504,
        }
    }
}

impl From<&str> for Reason {
    fn from(word: &str) -> Self {
        match word {
            "BadRequest" => Self::BadRequest,
            "Unauthorized" => Self::Unauthorized,
            "Forbidden" => Self::Forbidden,
            "NotFound" => Self::NotFound,
            "MethodNotAllowed" => Self::MethodNotAllowed,
            "NotAcceptable" => Self::NotAcceptable,
            "AlreadyExists" => Self::AlreadyExists,
            "Conflict" => Self::Conflict,
            "Expired" => Self::Expired,
            "RequestEntityTooLarge" => Self::RequestEntityTooLarge,
            "UnsupportedMediaType" => Self::UnsupportedMediaType,
            "Invalid" => Self::Invalid,
            "TooManyRequests" => Self::TooManyRequests,
            "InternalError" => Self::InternalError,
            "ServiceUnavailable" => Self::ServiceUnavailable,
            "Timeout" => Self::Timeout,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        Ok(Self::from(word.as_str()))
    }
}
