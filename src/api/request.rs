//! From method, path and query to a typed request. Pure: no body, no store, no connection; nothing a
//! client sends makes it panic.

use std::str::FromStr;

use crate::object::status::Reason;
use crate::object::{FieldSelector, Selector, Status};

/// The longest path with its query, in bytes.
pub(super) const MAX_URI: usize = 8 << 10;
/// The most pairs in a query.
const MAX_QUERY_PAIRS: usize = 64;
/// The longest name of a field manager, in bytes.
const MAX_MANAGER: usize = 128;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// `/healthz`, `/livez` and `/readyz`, and single checks below them.
    Health(HealthRequest),
    /// `/version`.
    Version,
    /// `/metrics`.
    Metrics,
    /// `/`, `/api`, `/apis` and below: what is served.
    Discovery(Discovery),
    /// `/openapi/v2` and `/openapi/v3`: what objects look like.
    OpenApi(OpenApi),
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
    /// Which methods a path takes: `OPTIONS`.
    Methods(&'static str),
    /// Objects of a kind.
    Objects(Box<ObjectsRequest>),
}

/// Objects of a kind: what to do with them, where they are, and how.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObjectsRequest {
    /// What to do.
    pub(super) verb: Verb,
    /// Where.
    pub(super) path: ResourcePath,
    /// How.
    pub(super) options: Options,
}

/// Whether the server is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthRequest {
    /// `healthz`, `livez` or `readyz`.
    pub(super) endpoint: &'static str,
    /// The only check that is asked for.
    pub(super) check: Option<String>,
    /// How the answer is to look.
    pub(super) query: Vec<(String, String)>,
}

/// Which part of what is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Discovery {
    /// `/`: all paths.
    Root,
    /// `/api`: the versions of the core group.
    Core,
    /// `/apis`: all other groups.
    Groups,
    /// `/apis/GROUP`.
    Group(String),
    /// `/api/VERSION`, `/apis/GROUP/VERSION`: kinds.
    Version {
        /// The group; empty for the core group.
        group: String,
        /// The version.
        version: String,
    },
}

/// Which document on the kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpenApi {
    /// `/openapi/v2`: all in one.
    V2,
    /// `/openapi/v3`: the list of documents.
    V3Index,
    /// `/openapi/v3/api/VERSION`, `/openapi/v3/apis/GROUP/VERSION`.
    V3 {
        /// The group; empty for the core group.
        group: String,
        /// The version.
        version: String,
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
    /// GET of a collection with `watch=true`, or a path with `/watch/`.
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
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Options {
    /// Only objects with such labels.
    pub(super) labels: Selector,
    /// Only objects with such fields.
    pub(super) fields: FieldSelector,
    /// The most items wanted; `None` for all.
    pub(super) limit: Option<u64>,
    /// Where the page before ended.
    pub(super) continue_token: String,
    /// The version that a list must show, or after which a watch starts.
    pub(super) resource_version: Option<u64>,
    /// How `resource_version` is meant by a list.
    pub(super) version_match: Option<VersionMatch>,
    /// How long a list or watch may take, in seconds.
    pub(super) timeout_seconds: Option<u64>,
    /// Whether a watch is told now and then how far it has come.
    pub(super) bookmarks: bool,
    /// Whether a watch begins with all objects, and a bookmark after them.
    pub(super) initial_events: Option<bool>,
    /// Whether a write is only tried.
    pub(super) dry_run: bool,
    /// Who writes, for `metadata.managedFields`.
    pub(super) field_manager: String,
    /// What happens with fields that are not known.
    pub(super) field_validation: FieldValidation,
    /// Whether an apply takes fields from others.
    pub(super) force: bool,
    /// How much of the objects a table carries; empty for the default.
    pub(super) include_object: String,
    /// How an object is deleted, where the query says so.
    pub(super) delete: DeleteQuery,
    /// Whether JSON is indented.
    pub(super) pretty: bool,
}

/// How a list's `resourceVersion` is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionMatch {
    /// Exactly this state.
    Exact,
    /// This state or a newer one.
    NotOlderThan,
}

/// What happens with fields of a body that the kind does not have, or has twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FieldValidation {
    /// They are dropped.
    Ignore,
    /// They are dropped, and a `Warning` header says so.
    #[default]
    Warn,
    /// The request is refused.
    Strict,
}

/// Options of a delete as they may stand in the query; those of a body win.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeleteQuery {
    /// Seconds that the object may live on.
    pub(super) grace: Option<i64>,
    /// What becomes of its dependents.
    pub(super) propagation: Option<String>,
    /// An older way to say the same.
    pub(super) orphan_dependents: Option<bool>,
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
pub(super) const COLLECTION_METHODS: &str = "GET, HEAD, POST, DELETE, OPTIONS";
/// The methods of an object.
pub(super) const OBJECT_METHODS: &str = "GET, HEAD, PUT, PATCH, DELETE, OPTIONS";
/// The methods of a part of an object.
pub(super) const SUBRESOURCE_METHODS: &str = "GET, HEAD, PUT, PATCH, OPTIONS";
/// The methods of what can only be read.
pub(super) const READ_METHODS: &str = "GET, HEAD, OPTIONS";

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
        if let ["edgesync", "v1", rest @ ..] = segments.as_slice() {
            return extension(method, rest, query);
        }
        let query = parse_query(query)?;
        let request = match segments.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => {
                return objects(method, "", version, rest, &query);
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                return objects(method, group, version, rest, &query);
            }
            ["version"] => Self::Version,
            ["metrics"] => Self::Metrics,
            [endpoint @ ("healthz" | "livez" | "readyz"), check @ ..] if check.len() < 2 => {
                Self::Health(health(endpoint, check.first(), &query))
            }
            ["openapi", rest @ ..] => Self::OpenApi(openapi(rest)?),
            other => Self::Discovery(discovery(other)?),
        };
        match method {
            "GET" | "HEAD" => Ok(request),
            "OPTIONS" => Ok(Self::Methods(READ_METHODS)),
            _ => Err(no_such_method(READ_METHODS)),
        }
    }
}

fn extension(method: &str, rest: &[&str], query: &str) -> Result<Request, Refusal> {
    match (method, rest) {
        (_, []) => Err(Status::no_such_path().into()),
        ("GET" | "HEAD", ["resources"]) => Ok(Request::Resources),
        (_, ["resources"]) => Err(no_such_method(READ_METHODS)),
        _ => Ok(Request::Extension {
            method: method.to_owned(),
            path: rest.join("/"),
            query: parse_query(query)?,
        }),
    }
}

fn health(endpoint: &str, check: Option<&&str>, query: &[(String, String)]) -> HealthRequest {
    let endpoint = match endpoint {
        "livez" => "livez",
        "readyz" => "readyz",
        _ => "healthz",
    };
    HealthRequest { endpoint, check: check.map(|check| (*check).to_owned()), query: query.to_vec() }
}

fn discovery(segments: &[&str]) -> Result<Discovery, Status> {
    match segments {
        [] => Ok(Discovery::Root),
        ["api"] => Ok(Discovery::Core),
        ["apis"] => Ok(Discovery::Groups),
        ["api", version] => Ok(Discovery::Version { group: String::new(), version: (*version).to_owned() }),
        ["apis", group] => Ok(Discovery::Group((*group).to_owned())),
        ["apis", group, version] => {
            Ok(Discovery::Version { group: (*group).to_owned(), version: (*version).to_owned() })
        }
        _ => Err(Status::no_such_path()),
    }
}

fn openapi(segments: &[&str]) -> Result<OpenApi, Status> {
    match segments {
        ["v2"] => Ok(OpenApi::V2),
        ["v3"] => Ok(OpenApi::V3Index),
        ["v3", "api", version] => Ok(OpenApi::V3 { group: String::new(), version: (*version).to_owned() }),
        ["v3", "apis", group, version] => {
            Ok(OpenApi::V3 { group: (*group).to_owned(), version: (*version).to_owned() })
        }
        _ => Err(Status::no_such_path()),
    }
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
    // The old form of a watch: `/api/v1/watch/…`.
    let (rest, watch_path) = match rest {
        ["watch", rest @ ..] if !rest.is_empty() => (rest, true),
        rest => (rest, false),
    };
    let (namespace, rest) = match rest {
        // The parts of a Namespace object, not a resource inside of it.
        ["namespaces", _, "status" | "finalize"] if group.is_empty() => (None, rest),
        ["namespaces", namespace, inner @ ..] if !inner.is_empty() => (Some((*namespace).to_owned()), inner),
        _ => (None, rest),
    };
    let (plural, mut name, subresource) = match rest {
        [plural] => (plural, None, None),
        [plural, name] => (plural, Some(*name), None),
        [plural, name, subresource] => (plural, Some(*name), Some(*subresource)),
        _ => return Err(Status::no_such_path().into()),
    };
    let (mut options, mut watch) = options(query)?;
    if watch_path {
        if method != "GET" || subresource.is_some() {
            return Err(no_such_method("GET"));
        }
        watch = true;
    }
    // A watch of one object is a watch of the collection that selects its name.
    if let Some(only) = name.filter(|_| watch && method == "GET" && subresource.is_none()) {
        options.fields.select_name(only);
        name = None;
    }
    let verb = match (method, name.is_some()) {
        ("GET", false) if watch => Verb::Watch,
        ("GET" | "HEAD", false) => Verb::List,
        ("POST", false) => Verb::Create,
        ("DELETE", false) => Verb::DeleteCollection,
        ("GET" | "HEAD", true) => Verb::Get,
        ("PUT", true) => Verb::Update,
        ("PATCH", true) => Verb::Patch,
        ("DELETE", true) if subresource.is_none() => Verb::Delete,
        ("OPTIONS", _) => return Ok(Request::Methods(methods(name.is_some(), subresource.is_some()))),
        _ => return Err(no_such_method(methods(name.is_some(), subresource.is_some()))),
    };
    let path = ResourcePath {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace,
        plural: (*plural).to_owned(),
        name: name.map(str::to_owned),
        subresource: subresource.map(str::to_owned),
    };
    Ok(Request::Objects(Box::new(ObjectsRequest { verb, path, options })))
}

fn methods(name: bool, subresource: bool) -> &'static str {
    match (name, subresource) {
        (false, _) => COLLECTION_METHODS,
        (true, false) => OBJECT_METHODS,
        (true, true) => SUBRESOURCE_METHODS,
    }
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
            "limit" => options.limit = number(key, value)?.filter(|limit| *limit > 0),
            "resourceVersion" => options.resource_version = version(value)?,
            "resourceVersionMatch" => options.version_match = version_match(value)?,
            "timeoutSeconds" => options.timeout_seconds = number(key, value)?,
            "allowWatchBookmarks" => options.bookmarks = flag(key, value)?,
            "sendInitialEvents" => options.initial_events = Some(flag(key, value)?),
            "dryRun" => options.dry_run |= dry_run(value)?,
            "fieldManager" => options.field_manager = manager(value)?,
            "fieldValidation" => options.field_validation = field_validation(value)?,
            "force" => options.force = flag(key, value)?,
            "includeObject" => options.include_object.clone_from(value),
            "gracePeriodSeconds" if !value.is_empty() => {
                let grace = value.parse().map_err(|_| bad_option(key, value, "must be a whole number"))?;
                options.delete.grace = Some(grace);
            }
            "propagationPolicy" => options.delete.propagation = Some(value.clone()),
            "orphanDependents" => options.delete.orphan_dependents = Some(flag(key, value)?),
            "pretty" => options.pretty = flag(key, value)?,
            "watch" => watch = flag(key, value)?,
            _ => {}
        }
    }
    Ok((options, watch))
}

fn selector<S: FromStr<Err: std::fmt::Display>>(value: &str) -> Result<S, Status> {
    value.parse().map_err(|error: S::Err| Status::bad_request(error.to_string()))
}

fn number(name: &str, value: &str) -> Result<Option<u64>, Status> {
    match value.parse::<u64>() {
        Ok(number) => Ok(Some(number)),
        Err(_) if value.is_empty() => Ok(None),
        Err(_) => Err(bad_option(name, value, "must be a whole number that is not negative")),
    }
}

fn version(value: &str) -> Result<Option<u64>, Status> {
    match value.parse::<u64>() {
        Ok(version) => Ok(Some(version)),
        Err(_) if value.is_empty() => Ok(None),
        Err(_) => {
            Err(bad_option("resourceVersion", value, "must be a version that this server gave, or '0'"))
        }
    }
}

fn version_match(value: &str) -> Result<Option<VersionMatch>, Status> {
    match value {
        "" => Ok(None),
        "Exact" => Ok(Some(VersionMatch::Exact)),
        "NotOlderThan" => Ok(Some(VersionMatch::NotOlderThan)),
        _ => Err(bad_option("resourceVersionMatch", value, "must be 'Exact' or 'NotOlderThan'")),
    }
}

/// Reads one value of `dryRun`, in a query or in the options of a delete.
pub(super) fn dry_run(value: &str) -> Result<bool, Status> {
    match value {
        "" => Ok(false),
        "All" => Ok(true),
        _ => Err(bad_option("dryRun", value, "must be 'All'")),
    }
}

fn manager(value: &str) -> Result<String, Status> {
    if value.len() > MAX_MANAGER {
        return Err(bad_option("fieldManager", value, "must be at most 128 bytes"));
    }
    if value.chars().any(char::is_control) {
        return Err(bad_option("fieldManager", value, "must consist of printable characters"));
    }
    Ok(value.to_owned())
}

fn field_validation(value: &str) -> Result<FieldValidation, Status> {
    match value {
        "" | "Warn" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        "Strict" => Ok(FieldValidation::Strict),
        _ => Err(bad_option("fieldValidation", value, "must be 'Ignore', 'Warn' or 'Strict'")),
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
            Ok(Request::Objects(request)) => (request.verb, request.path, request.options),
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
        let health = |uri| match parse("GET", uri) {
            Ok(Request::Health(health)) => health,
            other => panic!("{uri}: {other:?}"),
        };
        assert_eq!(health("/healthz").endpoint, "healthz");
        assert_eq!(health("/readyz/").endpoint, "readyz");
        let one = health("/livez/store?verbose&exclude=a&exclude=b");
        assert_eq!((one.check.as_deref(), one.query.len()), (Some("store"), 3));
        let extension = Request::Extension {
            method: "POST".into(),
            path: "nodes/a b/confirm".into(),
            query: vec![("all".into(), String::new())],
        };
        assert_eq!(parse("POST", "/edgesync/v1/nodes/a%20b/confirm?all"), Ok(extension));
    }

    #[test]
    fn the_paths_of_discovery_are_read() {
        let discovered = |uri| match parse("GET", uri) {
            Ok(Request::Discovery(discovery)) => discovery,
            other => panic!("{uri}: {other:?}"),
        };
        assert_eq!(discovered("/"), Discovery::Root);
        assert_eq!(discovered("/api"), Discovery::Core);
        assert_eq!(discovered("/apis/"), Discovery::Groups);
        assert_eq!(discovered("/apis/apps"), Discovery::Group("apps".into()));
        let version = |group: &str| Discovery::Version { group: group.into(), version: "v1".into() };
        assert_eq!(discovered("/api/v1"), version(""));
        assert_eq!(discovered("/apis/apps/v1"), version("apps"));
        assert_eq!(parse("GET", "/openapi/v3"), Ok(Request::OpenApi(OpenApi::V3Index)));
    }

    #[test]
    fn the_old_path_of_a_watch_selects_the_name() {
        for uri in ["/api/v1/watch/namespaces/a/pods/p", "/api/v1/namespaces/a/pods/p?watch"] {
            let (verb, path, options) = resource("GET", uri);
            assert_eq!(
                (verb, path.name, options.fields.only_name()),
                (Verb::Watch, None, Some("p")),
                "{uri}"
            );
        }
        assert_eq!(line("GET", "/apis/apps/v1/watch/deployments"), "watch apps/v1 - deployments - -");
    }

    #[test]
    fn what_is_refused_says_why() {
        assert_eq!(code("GET", "/nowhere"), 404);
        assert_eq!(code("GET", "/api/v1/a/b/c/d"), 404);
        assert_eq!(code("GET", "/openapi/v4"), 404);
        assert_eq!(code("GET", "/apis/apps/v1/namespaces/a/b/c/d/e"), 404);
        assert_eq!(code("GET", "/edgesync/v1"), 404);
        assert_eq!(code("POST", "/healthz"), 405);
        assert_eq!(code("POST", "/api"), 405);
        assert_eq!(parse("OPTIONS", "/api/v1/pods"), Ok(Request::Methods(COLLECTION_METHODS)));
        assert_eq!(parse("PUT", "/api/v1/pods").unwrap_err().allow, COLLECTION_METHODS);
        assert_eq!(parse("POST", "/api/v1/nodes/a").unwrap_err().allow, OBJECT_METHODS);
        for bad in [
            "limit=-1",
            "limit=x",
            "watch=perhaps",
            "dryRun=Some",
            "resourceVersion=x",
            "resourceVersionMatch=x",
            "fieldValidation=x",
            "timeoutSeconds=-1",
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
