//! The `Status` kind: what every endpoint of the API answers when a request fails, and when a delete
//! succeeds. Pure; the words are those of the Kubernetes API, so that its clients understand them.

use std::fmt;

use serde::de::Deserializer;
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};

use super::Resource;

mod reason;

pub use reason::Reason;

/// How many causes of one invalid object are listed; the rest is counted in the message only.
pub const MAX_CAUSES: usize = 32;

/// The outcome of a request, as the API reports it.
///
/// It is an error type: the functions behind the API return it as it goes out on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// Whether the request failed; `Success` only after a delete.
    #[serde(rename = "status", deserialize_with = "failure")]
    pub failure: bool,
    /// The sentence for humans.
    #[serde(default)]
    pub message: String,
    /// The word for machines; absent if nothing is known.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// What the reason is about.
    #[serde(default)]
    pub details: Option<Box<Details>>,
    /// HTTP status code.
    #[serde(default)]
    pub code: u16,
}

/// What a failure is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    /// Name of the object, or the operation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Plural of the resource, or the kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The single fields that are wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Seconds to wait before the request is repeated; 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
    /// With an expired `continue` token: one that goes on in the newest state. Written into the metadata of the
    /// Status.
    #[serde(skip)]
    pub continue_token: String,
}

/// One field that is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// The word for machines, such as `FieldValueRequired`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The sentence for humans, without the field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The field in JSON notation, such as `metadata.name`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// The result of whatever stands behind the API.
pub type Result<T, E = Status> = std::result::Result<T, E>;

impl Status {
    /// A failure with its reason, the reason's code and a message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let code = reason.code();
        Self { failure: true, message: message.into(), reason: Some(reason), details: None, code }
    }

    /// What a successful delete answers when the object is not returned.
    #[must_use]
    pub fn deleted(resource: &Resource, name: &str, uid: &str) -> Self {
        let details = Details { uid: uid.into(), ..about(resource, name) };
        let details = Some(Box::new(details));
        Self { failure: false, message: String::new(), reason: None, details, code: 200 }
    }

    /// 400: the request makes no sense, as the message says.
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

    /// 404: no object of this name.
    #[must_use]
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified());
        Self::new(Reason::NotFound, message).with(about(resource, name))
    }

    /// 404: the path leads to nothing that is served. It has details, though empty ones: `kubectl debug` looks into them.
    #[must_use]
    pub fn no_such_path() -> Self {
        Self::new(Reason::NotFound, "the server could not find the requested resource")
            .with(Details::default())
    }

    /// 405: the verb is not for this kind.
    #[must_use]
    pub fn method_not_allowed(resource: &Resource, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind \"{}\"", resource.qualified());
        Self::new(Reason::MethodNotAllowed, message).with(about(resource, ""))
    }

    /// 406: the client takes none of the representations there are.
    #[must_use]
    pub fn not_acceptable(offered: &[&str]) -> Self {
        let offered = offered.join(", ");
        Self::new(Reason::NotAcceptable, format!("only the following media types are accepted: {offered}"))
    }

    /// 409: the name is taken.
    #[must_use]
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Self::new(Reason::AlreadyExists, message).with(about(resource, name))
    }

    /// 409: the object is no longer the one the client read.
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

    /// 410: the point in time a `continue` or `resourceVersion` names is gone.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(Reason::Expired, message)
    }

    /// 413: the body is longer than `limit` bytes.
    #[must_use]
    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit} bytes");
        Self::new(Reason::RequestEntityTooLarge, message)
    }

    /// 415: the body has a content type the server does not read.
    #[must_use]
    pub fn unsupported_media_type(read: &[&str]) -> Self {
        let read = read.join(", ");
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {read}"
        );
        Self::new(Reason::UnsupportedMediaType, message)
    }

    /// 422: fields of the object are wrong. At most [`MAX_CAUSES`] of them are listed.
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

    /// 429: the client must wait.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let details = Details { retry_after_seconds, ..Details::default() };
        Self::new(Reason::TooManyRequests, message).with(details)
    }

    /// 500: an unexpected failure; the message carries its cause.
    pub fn internal(cause: impl fmt::Display) -> Self {
        let cause = cause.to_string();
        let details = Details {
            causes: vec![Cause { message: cause.clone(), ..Cause::default() }],
            ..Details::default()
        };
        Self::new(Reason::InternalError, format!("Internal error occurred: {cause}")).with(details)
    }

    /// 503: a part the server needs is missing now; the client may repeat the request.
    pub fn unavailable(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let details = Details { retry_after_seconds, ..Details::default() };
        Self::new(Reason::ServiceUnavailable, message).with(details)
    }

    /// 504: the request was not finished in time.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(Reason::Timeout, message)
    }

    /// 504: the client has seen a newer state than this server.
    #[must_use]
    pub fn version_too_large(given: u64, current: u64) -> Self {
        let cause = Cause::new("ResourceVersionTooLarge", "", "Too large resource version");
        let details = Details { causes: vec![cause], retry_after_seconds: 1, ..Details::default() };
        Self::timeout(format!("Too large resource version: {given}, current: {current}")).with(details)
    }

    /// Adds details.
    #[must_use]
    pub fn with(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// Whether the failure has this reason.
    #[must_use]
    pub fn is(&self, reason: &Reason) -> bool {
        self.failure && self.reason.as_ref() == Some(reason)
    }
}

impl Cause {
    fn new(reason: &str, field: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into(), field: field.into() }
    }

    /// A field that must be there is not.
    #[must_use]
    pub fn required(field: &str, message: &str) -> Self {
        Self::new("FieldValueRequired", field, format!("Required value: {message}"))
    }

    /// A field has a value it must not have. At most 64 characters of the value are shown.
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

    /// A field may not be set or changed.
    #[must_use]
    pub fn forbidden(field: &str, message: &str) -> Self {
        Self::new("FieldValueForbidden", field, format!("Forbidden: {message}"))
    }
}

/// Written by hand because a Status has constant fields, which its readers do not need.
impl Details {
    /// Whether there is nothing but what goes into the metadata.
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
    fn a_missing_path_has_details_that_are_empty() {
        let text = serde_json::to_string(&Status::no_such_path()).unwrap();
        assert!(text.ends_with(r#""reason":"NotFound","details":{},"code":404}"#), "{text}");
    }

    #[test]
    fn a_missing_object_is_reported_as_the_conventions_show_it() {
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
    fn an_invalid_object_names_each_field_in_message_and_causes() {
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
    fn a_flood_of_causes_is_cut() {
        let causes = (0..1_000).map(|n| Cause::required(&format!("f{n}"), "needed")).collect();
        let status = Status::invalid("", "Pod", "p", causes);
        assert!(status.message.ends_with("and 968 more]"), "{}", status.message);
        assert_eq!(status.details.unwrap().causes.len(), MAX_CAUSES);
    }

    #[test]
    fn a_status_survives_the_wire() {
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
    fn every_reason_is_read_back_as_itself() {
        for word in ["BadRequest", "Conflict", "Expired", "Invalid", "NotAcceptable", "Timeout", "Unheard"] {
            assert_eq!(Reason::from(word).as_str(), word);
        }
    }
}
