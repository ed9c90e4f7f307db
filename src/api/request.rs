//! From method, path and query to a typed request. Pure: no body, no store, no connection; nothing a
//! client sends makes it panic.

use std::str::FromStr;

use crate::object::status::Reason;
use crate::object::{FieldSelector, Selector, Status};

/// The longest path with its query, in bytes.
pub(super) const MAX_URI: usize = 8 << 10;
/// The most pairs in a query.
const MAX_QUERY_PAIRS: usize = 64;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// `/healthz` and `/livez`: the process answers.
    Alive,
    /// `/readyz`: requests can be answered.
    Ready,
    /// `/version`.
    Version,
    /// `/edgesync/v1/resources`: every kind that is known.
    Resources,
    /// Any other path under `/edgesync/v1/`.
    Extension {
        /// HTTP method.
        method: String,
        /// The path after `/edgesync/v1/`.
        path: String,
        /// The query.
        query: Vec<(String, String)>,
    },
    /// Objects of a kind.
    Objects {
        /// What to do with them.
        verb: Verb,
        /// Where they are.
        path: ResourcePath,
        /// How.
        options: Options,
    },
}

/// What to do with objects, in the words of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// POST to a collection.
    Create,
    /// GET of an object.
    Get,
    /// GET of a collection.
    List,
    /// GET of a collection with `watch=true`.
    Watch,
    /// PUT of an object.
    Update,
    /// PATCH of an object.
    Patch,
    /// DELETE of an object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
}

/// The path of a collection or an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResourcePath {
    /// API group, empty for the core group.
    pub(super) group: String,
    /// API version within the group.
    pub(super) version: String,
    /// Namespace, if the path names one.
    pub(super) namespace: Option<String>,
    /// Plural of the resource.
    pub(super) plural: String,
    /// Name, if the path leads to an object.
    pub(super) name: Option<String>,
    /// What follows the name, such as `status`.
    pub(super) subresource: Option<String>,
}

/// The options of a query that this API knows. Others are ignored, as Kubernetes does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Only objects with such labels.
    pub(super) labels: Selector,
    /// Only objects with such names and namespaces.
    pub(super) fields: FieldSelector,
    /// The most items wanted; `None` for all.
    pub(super) limit: Option<u64>,
    /// Where the page before ended.
    pub(super) continue_token: String,
    /// Whether JSON is indented.
    pub(super) pretty: bool,
}

/// A request that is refused before anything is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// What is answered.
    pub(super) status: Status,
    /// The methods that the path does take, for a 405.
    pub(super) allow: &'static str,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, allow: "" }
    }
}

/// The methods of a collection.
pub(super) const COLLECTION_METHODS: &str = "GET, POST";
/// The methods of an object.
pub(super) const OBJECT_METHODS: &str = "GET, PUT, DELETE";
/// The methods of what can only be read.
pub(super) const READ_METHODS: &str = "GET";

impl Verb {
    /// The verb as Kubernetes writes it in rules and messages.
    #[must_use]
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    /// Whether the verb changes objects.
    #[must_use]
    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

impl Request {
    /// Reads a request line: `path` and `query` as they came, percent-encoded.
    ///
    /// # Errors
    /// 404 for a path that leads nowhere, 405 for a method it does not take, 400 for an option that
    /// cannot be read, 414 for a line that is too long.
    pub(super) fn parse(method: &str, path: &str, query: Option<&str>) -> Result<Self, Refusal> {
        let query = query.unwrap_or("");
        if path.len().saturating_add(query.len()) > MAX_URI {
            let status =
                Status::bad_request(format!("the request URI is too long: limit is {MAX_URI} bytes"));
            return Err(Status { code: 414, ..status }.into());
        }
        let segments = split_path(path)?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match segments.as_slice() {
            ["healthz" | "livez"] => read_only(method, Self::Alive),
            ["readyz"] => read_only(method, Self::Ready),
            ["version"] => read_only(method, Self::Version),
            ["edgesync", "v1", "resources"] => read_only(method, Self::Resources),
            ["edgesync", "v1", rest @ ..] if !rest.is_empty() => Ok(Self::Extension {
                method: method.to_owned(),
                path: rest.join("/"),
                query: parse_query(query)?,
            }),
            ["api", version, rest @ ..] => objects(method, "", version, rest, &parse_query(query)?),
            ["apis", group, version, rest @ ..] => {
                objects(method, group, version, rest, &parse_query(query)?)
            }
            _ => Err(Status::no_such_path().into()),
        }
    }
}

fn read_only(method: &str, request: Request) -> Result<Request, Refusal> {
    if method == "GET" { Ok(request) } else { Err(no_such_method(READ_METHODS)) }
}

fn no_such_method(allow: &'static str) -> Refusal {
    let message = "the server does not allow this method on the requested resource";
    Refusal { status: Status::new(Reason::MethodNotAllowed, message), allow }
}

fn objects(
    method: &str,
    group: &str,
    version: &str,
    rest: &[&str],
    query: &[(String, String)],
) -> Result<Request, Refusal> {
    let (namespace, rest) = match rest {
        // The parts of a Namespace object, not a resource inside of it.
        ["namespaces", _, "status" | "finalize"] if group.is_empty() => (None, rest),
        ["namespaces", namespace, inner @ ..] if !inner.is_empty() => (Some((*namespace).to_owned()), inner),
        _ => (None, rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (plural, None, None),
        [plural, name] => (plural, Some(*name), None),
        [plural, name, subresource] => (plural, Some(*name), Some(*subresource)),
        _ => return Err(Status::no_such_path().into()),
    };
    let path = ResourcePath {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace,
        plural: (*plural).to_owned(),
        name: name.map(str::to_owned),
        subresource: subresource.map(str::to_owned),
    };
    let (options, watch) = options(query)?;
    let verb = match (method, name.is_some()) {
        ("GET", false) if watch => Verb::Watch,
        ("GET", false) => Verb::List,
        ("POST", false) => Verb::Create,
        ("DELETE", false) => Verb::DeleteCollection,
        ("GET", true) => Verb::Get,
        ("PUT", true) => Verb::Update,
        ("PATCH", true) => Verb::Patch,
        ("DELETE", true) => Verb::Delete,
        (_, false) => return Err(no_such_method(COLLECTION_METHODS)),
        (_, true) => return Err(no_such_method(OBJECT_METHODS)),
    };
    Ok(Request::Objects { verb, path, options })
}

/// Reads the options; the second value is whether a watch is asked for.
fn options(query: &[(String, String)]) -> Result<(Options, bool), Status> {
    let mut options = Options::default();
    let mut watch = false;
    for (key, value) in query {
        match key.as_str() {
            "labelSelector" => options.labels = selector(value)?,
            "fieldSelector" => options.fields = selector(value)?,
            "continue" => options.continue_token.clone_from(value),
            "limit" => options.limit = limit(value)?,
            "pretty" => options.pretty = flag("pretty", value)?,
            "watch" => watch = flag("watch", value)?,
            // Ignoring these would do what the client did not ask for.
            "dryRun" if !value.is_empty() => {
                return Err(Status::bad_request("dryRun is not supported by this server"));
            }
            "resourceVersionMatch" if value == "Exact" => {
                let message = "resourceVersionMatch \"Exact\" is not supported by this server: lists show the latest state";
                return Err(Status::bad_request(message));
            }
            _ => {}
        }
    }
    Ok((options, watch))
}

fn selector<S: FromStr<Err: std::fmt::Display>>(value: &str) -> Result<S, Status> {
    value.parse().map_err(|error: S::Err| Status::bad_request(error.to_string()))
}

fn limit(value: &str) -> Result<Option<u64>, Status> {
    match value.parse::<u64>() {
        Ok(0) => Ok(None),
        Ok(limit) => Ok(Some(limit)),
        Err(_) if value.is_empty() => Ok(None),
        Err(_) => Err(bad_option("limit", value, "must be a whole number that is not negative")),
    }
}

fn flag(name: &str, value: &str) -> Result<bool, Status> {
    match value {
        // A bare `?watch` means yes, as Kubernetes reads it.
        "" | "1" | "t" | "true" | "T" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "false" | "F" | "FALSE" | "False" => Ok(false),
        _ => Err(bad_option(name, value, "must be true or false")),
    }
}

fn bad_option(name: &str, value: &str, message: &str) -> Status {
    let shown: String = value.chars().take(64).collect();
    Status::bad_request(format!("invalid value {shown:?} of the query parameter '{name}': {message}"))
}

/// Splits a path at its slashes and decodes each segment. Slashes at the end are ignored.
fn split_path(path: &str) -> Result<Vec<String>, Status> {
    let trimmed = path.strip_prefix('/').unwrap_or(path).trim_end_matches('/');
    if trimmed.is_empty() {
        return Ok(Vec::new());
    }
    trimmed.split('/').map(segment).collect()
}

/// Decodes a segment. What could leave its place in the path once it is decoded is refused.
fn segment(encoded: &str) -> Result<String, Status> {
    let decoded = decode(encoded, false)?;
    let leaves = decoded.is_empty() || decoded == "." || decoded == ".." || decoded.contains(['/', '%']);
    if leaves || decoded.chars().any(char::is_control) {
        let shown: String = encoded.chars().take(64).collect();
        return Err(Status::bad_request(format!("invalid path segment {shown:?}")));
    }
    Ok(decoded)
}

fn parse_query(query: &str) -> Result<Vec<(String, String)>, Status> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    if pairs.clone().count() > MAX_QUERY_PAIRS {
        return Err(Status::bad_request(format!("the query has more than {MAX_QUERY_PAIRS} parameters")));
    }
    let decoded = pairs.map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(key, true)?, decode(value, true)?))
    });
    decoded.collect()
}

/// Undoes percent-encoding; in a query a plus sign is a space.
fn decode(encoded: &str, plus_is_space: bool) -> Result<String, Status> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => match (rest.next().and_then(hex), rest.next().and_then(hex)) {
                (Some(high), Some(low)) => bytes.push(high << 4 | low),
                _ => return Err(Status::bad_request("invalid percent-encoding in the request URI")),
            },
            b'+' if plus_is_space => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).map_err(|_| Status::bad_request("the request URI is not UTF-8"))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Encodes text as one segment of a path or one value of a query.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(method: &str, uri: &str) -> Result<Request, Refusal> {
        let (path, query) = uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
        Request::parse(method, path, query)
    }

    fn resource(method: &str, uri: &str) -> (Verb, ResourcePath, Options) {
        match parse(method, uri) {
            Ok(Request::Objects { verb, path, options }) => (verb, path, options),
            other => panic!("{method} {uri}: {other:?}"),
        }
    }

    /// Verb, group/version, namespace, plural, name and subresource in one line.
    fn line(method: &str, uri: &str) -> String {
        let (verb, path, _) = resource(method, uri);
        let or_dash = |part: &Option<String>| part.clone().unwrap_or_else(|| "-".into());
        let (namespace, name) = (or_dash(&path.namespace), or_dash(&path.name));
        let place = format!("{}/{} {namespace} {} {name}", path.group, path.version, path.plural);
        format!("{} {place} {}", verb.as_str(), or_dash(&path.subresource))
    }

    fn code(method: &str, uri: &str) -> u16 {
        parse(method, uri).unwrap_err().status.code
    }

    #[test]
    fn paths_of_every_form_are_understood() {
        for (method, uri, expected) in [
            ("GET", "/api/v1/configmaps", "list /v1 - configmaps - -"),
            ("GET", "/api/v1/namespaces/a/configmaps/", "list /v1 a configmaps - -"),
            ("POST", "/api/v1/namespaces/a/configmaps", "create /v1 a configmaps - -"),
            ("GET", "/api/v1/namespaces/a/configmaps/b", "get /v1 a configmaps b -"),
            ("PUT", "/apis/apps/v1/namespaces/a/deployments/b", "update apps/v1 a deployments b -"),
            ("DELETE", "/apis/apps/v1/namespaces/a/deployments/b", "delete apps/v1 a deployments b -"),
            (
                "PUT",
                "/apis/apps/v1/namespaces/a/deployments/b/status",
                "update apps/v1 a deployments b status",
            ),
            ("GET", "/api/v1/nodes/n", "get /v1 - nodes n -"),
            ("GET", "/api/v1/namespaces", "list /v1 - namespaces - -"),
            ("GET", "/api/v1/namespaces/a", "get /v1 - namespaces a -"),
            ("PUT", "/api/v1/namespaces/a/status", "update /v1 - namespaces a status"),
            ("GET", "/api/v1/pods?watch=1", "watch /v1 - pods - -"),
            ("DELETE", "/api/v1/namespaces/a/pods", "deletecollection /v1 a pods - -"),
            ("PATCH", "/api/v1/namespaces/a/pods/p", "patch /v1 a pods p -"),
            (
                "GET",
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
                "get rbac.authorization.k8s.io/v1 - clusterroles system:node -",
            ),
        ] {
            assert_eq!(line(method, uri), expected, "{method} {uri}");
        }
    }

    #[test]
    fn options_are_decoded() {
        let uri = "/api/v1/pods?limit=5&labelSelector=a+in+%28b%2Cc%29&fieldSelector=metadata.name%3Dx&continue=t%3D&pretty=true&x=y";
        let (_, _, options) = resource("GET", uri);
        assert_eq!(options.limit, Some(5));
        assert_eq!(options.labels, "a in (b,c)".parse().unwrap());
        assert_eq!(options.fields.only_name(), Some("x"));
        assert_eq!(options.continue_token, "t=");
        assert!(options.pretty);
        assert_eq!(resource("GET", "/api/v1/pods?limit=0").2, Options::default());
    }

    #[test]
    fn own_paths_are_no_resources() {
        assert_eq!(parse("GET", "/healthz"), Ok(Request::Alive));
        assert_eq!(parse("GET", "/readyz/"), Ok(Request::Ready));
        let extension = Request::Extension {
            method: "POST".into(),
            path: "nodes/a b/confirm".into(),
            query: vec![("all".into(), String::new())],
        };
        assert_eq!(parse("POST", "/edgesync/v1/nodes/a%20b/confirm?all"), Ok(extension));
    }

    #[test]
    fn what_is_refused_says_why() {
        assert_eq!(code("GET", "/"), 404);
        assert_eq!(code("GET", "/api"), 404);
        assert_eq!(code("GET", "/api/v1"), 404);
        assert_eq!(code("GET", "/apis/apps/v1/namespaces/a/b/c/d/e"), 404);
        assert_eq!(code("GET", "/edgesync/v1"), 404);
        assert_eq!(code("POST", "/healthz"), 405);
        assert_eq!(code("OPTIONS", "/api/v1/pods"), 405);
        assert_eq!(parse("PUT", "/api/v1/pods").unwrap_err().allow, COLLECTION_METHODS);
        assert_eq!(parse("POST", "/api/v1/nodes/a").unwrap_err().allow, OBJECT_METHODS);
        for bad in [
            "limit=-1",
            "limit=x",
            "watch=perhaps",
            "dryRun=All",
            "labelSelector=%zz",
            "a=%ff",
            "labelSelector=a(b",
            "fieldSelector=spec.x",
        ] {
            assert_eq!(code("GET", &format!("/api/v1/pods?{bad}")), 400, "{bad}");
        }
        assert_eq!(code("GET", &format!("/api/v1/{}", "a".repeat(MAX_URI))), 414);
        assert_eq!(code("GET", &format!("/api/v1/pods?{}", "a=b&".repeat(100))), 400);
    }

    #[test]
    fn no_segment_leaves_its_place() {
        for bad in ["..", ".", "%2e%2e", "a%2fb", "a%252fb", "%00", "a//b", "%0a"] {
            assert_eq!(code("GET", &format!("/api/v1/namespaces/x/pods/{bad}")), 400, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_request_line_is_parsed_without_panic(method in ".{0,8}", path in ".{0,80}", query in ".{0,80}") {
            let _ = Request::parse(&method, &path, Some(&query));
            let _ = Request::parse("GET", &format!("/api/v1/{path}"), Some(&query));
            let _ = Request::parse("GET", &format!("/apis/{path}"), Some(&format!("limit={query}")));
        }

        #[test]
        fn encoded_names_come_back(name in "[^/%\\p{C}]{1,40}") {
            prop_assume!(name != "." && name != "..");
            let uri = format!("/api/v1/namespaces/{0}/pods/{0}?continue={0}", encode(&name));
            let (_, path, options) = resource("GET", &uri);
            prop_assert_eq!(path.namespace.as_deref(), Some(name.as_str()));
            prop_assert_eq!(path.name.as_deref(), Some(name.as_str()));
            prop_assert_eq!(&options.continue_token, &name);
        }
    }
}
