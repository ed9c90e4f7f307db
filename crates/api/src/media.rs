//! Media types: content negotiation, and objects in JSON and YAML. Pure.

pub(super) mod protobuf;

use serde_json::Value;

use super::accept::choose;
use super::table::{META_V1, META_V1BETA1};
use edgesync_object::number::shorten;
use edgesync_object::status::Result;
use edgesync_object::{MAX_DEPTH, Status, too_deep, yaml};

/// Media types of responses.
pub(super) const MEDIA_TYPES: [&str; 2] = ["application/json", "application/yaml"];
/// Media types of request bodies.
const READ_TYPES: [&str; 3] = [MEDIA_TYPES[0], MEDIA_TYPES[1], protobuf::MEDIA_TYPE];

/// A response format, negotiated by the `Accept` header and the `pretty` parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// JSON in one line.
    #[default]
    Json,
    /// JSON indented by two spaces, if the client sets `pretty`.
    PrettyJson,
    /// YAML, if the client accepts `application/yaml`.
    Yaml,
}

impl Format {
    /// Returns the media type of the format.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json | Self::PrettyJson => MEDIA_TYPES[0],
            Self::Yaml => MEDIA_TYPES[1],
        }
    }

    /// Renders the JSON text of an object, with a final newline.
    ///
    /// # Errors
    /// 500 if the text is not JSON.
    pub fn render(self, mut json: String) -> Result<String> {
        if self == Self::Json {
            json.push('\n');
            return Ok(json);
        }
        let value: Value = serde_json::from_str(&json).map_err(Status::internal)?;
        drop(json);
        self.render_value(&value)
    }

    /// Renders a value, with a final newline.
    ///
    /// # Errors
    /// 500 if the value cannot be rendered.
    pub(crate) fn render_value(self, value: &Value) -> Result<String> {
        match self {
            Self::Json => Ok(format!("{value}\n")),
            Self::PrettyJson => Ok(format!("{value:#}\n")),
            Self::Yaml => yaml::write(value).map_err(Status::internal),
        }
    }
}

/// The view of objects in a response: the `as` of a media range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum As {
    #[default]
    Whole,
    /// A table for people.
    Table,
    Metadata,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) format: Format,
    pub(super) view: As,
    /// Group and version of a table or of metadata.
    pub(super) meta: &'static str,
}

impl Default for Accepted {
    fn default() -> Self {
        Self { format: Format::Json, view: As::Whole, meta: META_V1 }
    }
}

impl Accepted {
    /// Negotiates a representation by an `Accept` header: the first of the highest quality that is
    /// supported. No header means JSON.
    ///
    /// # Errors
    /// 406 if no range is supported.
    pub(super) fn read(accept: Option<&str>, pretty: bool) -> Result<Self> {
        let json = if pretty { Format::PrettyJson } else { Format::Json };
        let accept = accept.map(str::trim).filter(|accept| !accept.is_empty());
        let Some(accept) = accept else { return Ok(Self { format: json, ..Self::default() }) };
        let offer = |media_type: &str, parameters: &[(&str, &str)]| {
            let format = match media_type {
                "application/json" | "application/*" | "*/*" => json,
                "application/yaml" => Format::Yaml,
                _ => return None,
            };
            let (mut view, mut meta) = (As::Whole, META_V1);
            for parameter in parameters {
                match *parameter {
                    ("as", "Table") => view = As::Table,
                    ("as", "PartialObjectMetadata" | "PartialObjectMetadataList") => view = As::Metadata,
                    ("as", _) => return None,
                    ("g", group) if group != "meta.k8s.io" => return None,
                    ("v", "v1beta1") => meta = META_V1BETA1,
                    ("v", version) if version != "v1" => return None,
                    _ => {}
                }
            }
            Some(Self { format, view, meta })
        };
        choose(accept, offer).ok_or_else(|| Status::not_acceptable(&MEDIA_TYPES))
    }
}

/// Parses a body. No content type means JSON; an empty body is `Null`.
///
/// # Errors
/// 415 for another format or a kind that the format does not support, 400 for a body that is
/// invalid or nests too deep.
pub(super) fn read_body(content_type: Option<&str>, body: &[u8]) -> Result<Value> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    let syntax = Syntax::announced(content_type)?;
    if syntax == Syntax::Protobuf {
        return protobuf::read(body);
    }
    let text = std::str::from_utf8(body);
    let text = text.map_err(|error| Status::bad_request(format!("the body is not UTF-8: {error}")))?;
    let mut value = if syntax == Syntax::Yaml {
        yaml::parse(text)
            .map_err(|error| Status::bad_request(format!("the body is not valid YAML: {error}")))?
    } else {
        if too_deep(text) {
            let message = format!("the body nests deeper than {MAX_DEPTH} levels");
            return Err(Status::bad_request(message));
        }
        serde_json::from_str(text)
            .map_err(|error| Status::bad_request(format!("the body is not valid JSON: {error}")))?
    };
    shorten(&mut value);
    Ok(value)
}

/// The syntax of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// JSON, also where YAML is announced.
    Json,
    /// YAML: `application/yaml`, `application/x-yaml` or `text/yaml`.
    Yaml,
    /// Kubernetes' protobuf encoding: [`protobuf::MEDIA_TYPE`].
    Protobuf,
}

impl Syntax {
    /// Returns the syntax that a content type announces; JSON if there is none.
    ///
    /// # Errors
    /// 415 for an unsupported one.
    pub(super) fn announced(content_type: Option<&str>) -> Result<Self> {
        match media_type(content_type).as_str() {
            "application/json" => Ok(Self::Json),
            "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Self::Yaml),
            protobuf::MEDIA_TYPE => Ok(Self::Protobuf),
            _ => Err(Status::unsupported_media_type(&READ_TYPES)),
        }
    }

    /// Returns the syntax by which a body will be parsed.
    pub(super) fn of(content_type: Option<&str>, body: &[u8]) -> Self {
        let media_type = media_type(content_type);
        if media_type == protobuf::MEDIA_TYPE {
            Self::Protobuf
        } else if media_type.contains("yaml") && !body.trim_ascii_start().starts_with(b"{") {
            Self::Yaml
        } else {
            Self::Json
        }
    }
}

/// Returns the media type without parameters, in lower case.
fn media_type(content_type: Option<&str>) -> String {
    let media_type = content_type.unwrap_or(MEDIA_TYPES[0]).split(';').next().unwrap_or_default();
    media_type.trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_fuzz::{files, fuzz};
    use proptest::prelude::*;
    use serde_json::json;

    fn read(accept: &str) -> Result<Accepted, u16> {
        Accepted::read(Some(accept), false).map_err(|status| status.code)
    }

    #[test]
    fn format_follows_the_accept_header() {
        let format = |accept: &str| read(accept).map(|accepted| accepted.format);
        assert_eq!(Accepted::read(None, false), Ok(Accepted::default()));
        assert_eq!(Accepted::read(None, true).unwrap().format, Format::PrettyJson);
        assert_eq!(format(""), Ok(Format::Json));
        assert_eq!(format("*/*"), Ok(Format::Json));
        assert_eq!(format("application/yaml"), Ok(Format::Yaml));
        assert_eq!(format("application/json;q=0.5, application/yaml"), Ok(Format::Yaml));
        assert_eq!(format("application/json, application/yaml"), Ok(Format::Json));
        assert_eq!(format("application/yaml;q=0, application/*;q=0.1"), Ok(Format::Json));
        assert_eq!(format("text/html"), Err(406));
        assert_eq!(format("application/vnd.kubernetes.protobuf, application/json"), Ok(Format::Json));
        assert_eq!(format("application/vnd.kubernetes.protobuf"), Err(406));
        assert_eq!(format("application/yaml;q=0"), Err(406));
    }

    #[test]
    fn view_follows_the_accept_header() {
        let view = |accept: &str| read(accept).map(|accepted| accepted.view);
        let meta = |accept: &str| read(accept).map(|accepted| accepted.meta);
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(view(kubectl), Ok(As::Table));
        assert_eq!(meta(kubectl), Ok("meta.k8s.io/v1"));
        let older = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
        assert_eq!((view(older), meta(older)), (Ok(As::Table), Ok("meta.k8s.io/v1beta1")));
        assert_eq!(view("application/json;as=Table;v=v2;g=meta.k8s.io"), Err(406));
        assert_eq!(
            view("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
            Ok(As::Metadata)
        );
        assert_eq!(view("application/json;as=Other;v=v1;g=meta.k8s.io,application/json"), Ok(As::Whole));
    }

    #[test]
    fn bodies_are_parsed_by_content_type() {
        let code = |kind: Option<&str>, body: &[u8]| read_body(kind, body).unwrap_err().code;
        assert_eq!(read_body(None, b"{\"a\":1}"), Ok(json!({"a": 1})));
        assert_eq!(read_body(Some("application/json; charset=utf-8"), b"[1]"), Ok(json!([1])));
        assert_eq!(read_body(Some("application/yaml"), b"a: 1\n"), Ok(json!({"a": 1})));
        assert_eq!(read_body(Some("text/html"), b""), Ok(Value::Null));
        assert_eq!(code(Some("text/html"), b"x"), 415);
        assert_eq!(read_body(None, b"{\"a\":[1.0,1.5]}").unwrap().to_string(), "{\"a\":[1,1.5]}");
        assert_eq!(code(Some("application/json"), b"a: 1"), 400);
        assert_eq!(code(Some("application/json"), b"\"\xff\""), 400);
        assert_eq!(code(None, "[".repeat(5_000).as_bytes()), 400);
        assert_eq!(code(Some("application/yaml"), b"a: [1"), 400);
        let protobuf = Some("Application/vnd.kubernetes.protobuf; charset=x");
        assert_eq!(code(protobuf, b"{}"), 400);
        let lease = b"k8s\0\x0a\x1f\x0a\x16coordination.k8s.io/v1\x12\x05Lease";
        let expected = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"});
        assert_eq!(read_body(protobuf, lease), Ok(expected));
    }

    #[test]
    fn bodies_never_panic_fuzzed() {
        let samples = files("e2e", ".json");
        fuzz("json", &samples, |bytes| {
            let _ = read_body(Some("application/json"), bytes);
            let _ = std::str::from_utf8(bytes).map(super::super::duplicates::duplicates);
        });
        let samples = files("kubeedge", ".yaml");
        fuzz("yaml", &samples, |bytes| drop(read_body(Some("application/yaml"), bytes)));
    }

    proptest! {
        #[test]
        fn no_header_or_body_panics(accept in ".{0,60}", kind in ".{0,20}", body in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Accepted::read(Some(&accept), false);
            let _ = read_body(Some(&kind), &body);
            let _ = read_body(Some("application/json"), &body);
            let _ = read_body(Some("application/yaml"), &body);
        }
    }
}
