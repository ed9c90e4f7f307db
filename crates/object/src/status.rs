//! The `Status` kind: the answer to failed API requests and to successful deletes. Pure; worded as
//! in the Kubernetes API, so that its clients understand it.

use std::fmt;

use serde::de::Deserializer;
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};

use super::Resource;

mod reason;

pub use reason::Reason;

/// Maximum number of listed causes of one invalid object; further ones are only counted in the
/// message.
pub const MAX_CAUSES: usize = 32;

/// Outcome of an API request.
///
/// It is an error type: functions behind the API return it in its final form.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// Whether the request failed; `Success` only after a delete.
    #[serde(rename = "status", deserialize_with = "failure")]
    pub failure: bool,
    /// Message for humans; empty after a delete. Programs decide by `reason`.
    #[serde(default)]
    pub message: String,
    /// Machine-readable reason; absent if unknown.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// Subject of the reason.
    #[serde(default)]
    pub details: Option<Box<Details>>,
    /// HTTP status code: that of the reason, 200 after a delete; 0 if a parsed Status has none.
    #[serde(default)]
    pub code: u16,
}

/// Subject of a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    /// Name of the object, or the operation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group of `kind`; empty for the core group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Plural of the resource, or the kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Invalid fields of the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Seconds to wait before a retry; 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
    /// With an expired `continue` token: one that continues in the newest state. Serialized into
    /// the metadata of the Status.
    #[serde(skip)]
    pub continue_token: String,
}

/// An invalid field, with its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// Machine-readable reason, such as `FieldValueRequired`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message for humans, without the field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Field in JSON notation, such as `metadata.name`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// Result of functions behind the API.
pub type Result<T, E = Status> = std::result::Result<T, E>;

impl Status {
    /// Creates a failure with a reason, its HTTP code and a message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let code = reason.code();
        Self { failure: true, message: message.into(), reason: Some(reason), details: None, code }
    }

    /// Creates the answer to a successful delete that does not return the object.
    #[must_use]
    pub fn deleted(resource: &Resource, name: &str, uid: &str) -> Self {
        let details = Details { uid: uid.into(), ..about(resource, name) };
        let details = Some(Box::new(details));
        Self { failure: false, message: String::new(), reason: None, details, code: 200 }
    }

    /// 400: the request is malformed, as the message explains.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 403: the server refuses this on an existing or future object.
    #[must_use]
    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let what = resource.qualified();
        let message = if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} \"{name}\" is forbidden: {why}")
        };
        Self::new(Reason::Forbidden, message).with(about(resource, name))
    }

    /// 404: no object has this name.
    #[must_use]
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified());
        Self::new(Reason::NotFound, message).with(about(resource, name))
    }

    /// 404: the path is not served. The details are present, though empty: `kubectl debug` reads
    /// them.
    #[must_use]
    pub fn no_such_path() -> Self {
        Self::new(Reason::NotFound, "the server could not find the requested resource")
            .with(Details::default())
    }

    /// 405: the kind does not support the verb.
    #[must_use]
    pub fn method_not_allowed(resource: &Resource, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind \"{}\"", resource.qualified());
        Self::new(Reason::MethodNotAllowed, message).with(about(resource, ""))
    }

    /// 406: the client accepts no available representation.
    #[must_use]
    pub fn not_acceptable(offered: &[&str]) -> Self {
        let offered = offered.join(", ");
        Self::new(Reason::NotAcceptable, format!("only the following media types are accepted: {offered}"))
    }

    /// 409: an object of this name exists.
    #[must_use]
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Self::new(Reason::AlreadyExists, message).with(about(resource, name))
    }

    /// 409: the object has changed since the client read it.
    #[must_use]
    pub fn modified(resource: &Resource, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// 409: the operation conflicts with the state of the object.
    #[must_use]
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified());
        Self::new(Reason::Conflict, message).with(about(resource, name))
    }

    /// 410: the point in time of a `continue` or `resourceVersion` has expired.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(Reason::Expired, message)
    }

    /// 413: the body is longer than `limit` bytes.
    #[must_use]
    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit} bytes");
        Self::new(Reason::RequestEntityTooLarge, message)
    }

    /// 415: the server does not read the content type of the body.
    #[must_use]
    pub fn unsupported_media_type(read: &[&str]) -> Self {
        let read = read.join(", ");
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {read}"
        );
        Self::new(Reason::UnsupportedMediaType, message)
    }

    /// 422: fields of the object are invalid. At most [`MAX_CAUSES`] of them are listed.
    #[must_use]
    pub fn invalid(group: &str, kind: &str, name: &str, mut causes: Vec<Cause>) -> Self {
        let hidden = causes.len().saturating_sub(MAX_CAUSES);
        causes.truncate(MAX_CAUSES);
        let mut errors: Vec<String> = causes.iter().map(ToString::to_string).collect();
        if hidden > 0 {
            errors.push(format!("and {hidden} more"));
        }
        let what = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let errors = if errors.len() == 1 { errors.concat() } else { format!("[{}]", errors.join(", ")) };
        let details = Details {
            name: name.into(),
            group: group.into(),
            kind: kind.into(),
            causes,
            ..Details::default()
        };
        Self::new(Reason::Invalid, format!("{what} \"{name}\" is invalid: {errors}")).with(details)
    }

    /// 429: the client must wait before a retry.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let details = Details { retry_after_seconds, ..Details::default() };
        Self::new(Reason::TooManyRequests, message).with(details)
    }

    /// 500: an unexpected failure; the message contains its cause.
    pub fn internal(cause: impl fmt::Display) -> Self {
        let cause = cause.to_string();
        let details = Details {
            causes: vec![Cause { message: cause.clone(), ..Cause::default() }],
            ..Details::default()
        };
        Self::new(Reason::InternalError, format!("Internal error occurred: {cause}")).with(details)
    }

    /// 503: a required part of the server is unavailable; the client may retry.
    pub fn unavailable(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let details = Details { retry_after_seconds, ..Details::default() };
        Self::new(Reason::ServiceUnavailable, message).with(details)
    }

    /// 504: the request was not finished in time.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(Reason::Timeout, message)
    }

    /// 504: the client has observed a newer state than this server.
    #[must_use]
    pub fn version_too_large(given: u64, current: u64) -> Self {
        let cause = Cause::new("ResourceVersionTooLarge", "", "Too large resource version");
        let details = Details { causes: vec![cause], retry_after_seconds: 1, ..Details::default() };
        Self::timeout(format!("Too large resource version: {given}, current: {current}")).with(details)
    }

    /// Replaces the details; the message and the code stay.
    #[must_use]
    pub fn with(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// Returns whether the failure has this reason.
    #[must_use]
    pub fn is(&self, reason: &Reason) -> bool {
        self.failure && self.reason.as_ref() == Some(reason)
    }
}

impl Cause {
    fn new(reason: &str, field: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into(), field: field.into() }
    }

    /// A required field is missing.
    #[must_use]
    pub fn required(field: &str, message: &str) -> Self {
        Self::new("FieldValueRequired", field, format!("Required value: {message}"))
    }

    /// A field has an invalid value. At most 64 characters of the value are shown.
    #[must_use]
    pub fn invalid(field: &str, value: &str, message: &str) -> Self {
        let shown: String = value.chars().take(64).collect();
        Self::new("FieldValueInvalid", field, format!("Invalid value: {shown:?}: {message}"))
    }

    /// A field has a value of the wrong type.
    #[must_use]
    pub fn wrong_type(field: &str, message: &str) -> Self {
        Self::new("FieldValueTypeInvalid", field, format!("Invalid value: {message}"))
    }

    /// A field must not be set or changed.
    #[must_use]
    pub fn forbidden(field: &str, message: &str) -> Self {
        Self::new("FieldValueForbidden", field, format!("Forbidden: {message}"))
    }
}

/// Written by hand because a Status has constant fields, which its readers do not need.
impl Details {
    /// Returns whether the details contain only the token, which belongs to the metadata.
    fn is_token_alone(&self) -> bool {
        let token = &self.continue_token;
        !token.is_empty() && *self == Self { continue_token: token.clone(), ..Self::default() }
    }
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Metadata<'a> {
            #[serde(rename = "continue", skip_serializing_if = "str::is_empty")]
            continue_token: &'a str,
        }
        let continue_token = self.details.as_ref().map_or("", |details| &details.continue_token);
        let mut out = serializer.serialize_struct("Status", 8)?;
        out.serialize_field("kind", "Status")?;
        out.serialize_field("apiVersion", "v1")?;
        out.serialize_field("metadata", &Metadata { continue_token })?;
        out.serialize_field("status", if self.failure { "Failure" } else { "Success" })?;
        if !self.message.is_empty() {
            out.serialize_field("message", &self.message)?;
        }
        if let Some(reason) = &self.reason {
            out.serialize_field("reason", reason)?;
        }
        match &self.details {
            Some(details) if details.is_token_alone() => {}
            Some(details) => out.serialize_field("details", details)?,
            None => {}
        }
        out.serialize_field("code", &self.code)?;
        out.end()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

fn about(resource: &Resource, name: &str) -> Details {
    Details {
        name: name.into(),
        group: resource.group.clone(),
        kind: resource.plural.clone(),
        ..Details::default()
    }
}

fn failure<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(String::deserialize(deserializer)? != "Success")
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature serde asks for
fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scope;

    fn pods() -> Resource {
        Resource {
            group: String::new(),
            version: "v1".into(),
            kind: "Pod".into(),
            plural: "pods".into(),
            scope: Scope::Namespaced,
        }
    }

    fn deployments() -> Resource {
        Resource { group: "apps".into(), kind: "Deployment".into(), plural: "deployments".into(), ..pods() }
    }

    #[test]
    fn missing_path_has_empty_details() {
        let text = serde_json::to_string(&Status::no_such_path()).unwrap();
        assert!(text.ends_with(r#""reason":"NotFound","details":{},"code":404}"#), "{text}");
    }

    #[test]
    fn missing_object_is_reported_as_in_kubernetes() {
        let text = serde_json::to_string(&Status::not_found(&pods(), "grafana")).unwrap();
        let expected = concat!(
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
            r#""message":"pods \"grafana\" not found","reason":"NotFound","#,
            r#""details":{"name":"grafana","kind":"pods"},"code":404}"#
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn messages_name_the_group_of_the_resource() {
        let message = |status: Status| status.message;
        assert_eq!(
            message(Status::already_exists(&deployments(), "a")),
            "deployments.apps \"a\" already exists"
        );
        assert_eq!(
            message(Status::method_not_allowed(&deployments(), "patch")),
            "patch is not supported on resources of kind \"deployments.apps\""
        );
    }

    #[test]
    fn invalid_object_lists_fields_in_message_and_causes() {
        let causes = vec![
            Cause::required("metadata.name", "name is required"),
            Cause::invalid("a.b", "x", "must be y"),
        ];
        let status = Status::invalid("apps", "Deployment", "d", causes);
        assert_eq!(status.code, 422);
        assert_eq!(
            status.message,
            "Deployment.apps \"d\" is invalid: [metadata.name: Required value: name is required, \
             a.b: Invalid value: \"x\": must be y]"
        );
        let details = status.details.unwrap();
        assert_eq!(details.causes[0].field, "metadata.name");
        assert_eq!(details.causes[0].reason, "FieldValueRequired");
    }

    #[test]
    fn causes_are_bounded() {
        let causes = (0..1_000).map(|n| Cause::required(&format!("f{n}"), "needed")).collect();
        let status = Status::invalid("", "Pod", "p", causes);
        assert!(status.message.ends_with("and 968 more]"), "{}", status.message);
        assert_eq!(status.details.unwrap().causes.len(), MAX_CAUSES);
    }

    #[test]
    fn status_survives_a_round_trip() {
        let long = Cause::invalid("f", &"z".repeat(500), "too odd");
        for status in [
            Status::invalid("", "Pod", "p", vec![long]),
            Status::deleted(&pods(), "p", "u-1"),
            Status::too_many_requests("slow down", 7),
            Status::internal("disk on fire"),
            Status::new(Reason::Other("NamespaceTerminating".into()), "wait"),
        ] {
            let text = serde_json::to_string(&status).unwrap();
            assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status, "{text}");
        }
    }

    #[test]
    fn reasons_survive_a_round_trip() {
        for word in ["BadRequest", "Conflict", "Expired", "Invalid", "NotAcceptable", "Timeout", "Unheard"] {
            assert_eq!(Reason::from(word).as_str(), word);
        }
    }
}
