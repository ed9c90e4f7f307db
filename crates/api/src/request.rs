//! Parses method, path and query into a typed request. Pure: no body, no store, no connection. No
//! input makes it panic.

mod options;
mod review;
mod unserved;
mod uri;

use edgesync_admin::Route;
use edgesync_object::Status;
use edgesync_object::status::Reason;

pub(super) use options::{DeleteQuery, FieldValidation, Options, VersionMatch, dry_run};
use options::{check_timeout, options};
pub(super) use review::Review;
use uri::{parse_query, split_path};

/// Maximum length of a path with its query, in bytes.
pub(super) const MAX_URI: usize = 8 << 10;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// `/healthz`, `/livez`, `/readyz`, and single checks below them.
    Health(HealthRequest),
    /// `/version`: the version of the API server.
    Version,
    /// `/metrics`: the Prometheus text format.
    Metrics,
    /// `/`, `/api`, `/apis` and below.
    Discovery(Discovery),
    /// `/openapi/v2` and `/openapi/v3`: the schemas of the served kinds.
    OpenApi(OpenApi),
    /// `/edgesync/v1/resources`: every known kind.
    Resources,
    /// Any other path under `/edgesync/v1/`.
    Extension {
        method: String,
        /// The path after `/edgesync/v1/`.
        path: String,
        query: Vec<(String, String)>,
    },
    /// `OPTIONS`: the methods that a path allows.
    Methods(&'static str),
    /// A review of the client's own identity and permissions.
    Review(Review),
    /// A request on objects of a kind.
    Objects(Box<ObjectsRequest>),
    /// `/page/` and below: a file of the page for browsers.
    Page(String),
}

/// A request on objects of a kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObjectsRequest {
    pub(super) verb: Verb,
    pub(super) path: ResourcePath,
    pub(super) options: Options,
}

/// A request for the server's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthRequest {
    /// `healthz`, `livez` or `readyz`.
    pub(super) endpoint: &'static str,
    /// The only check to run; `None` for all.
    pub(super) check: Option<String>,
    /// Query parameters, such as `verbose`.
    pub(super) query: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Discovery {
    /// `/`: the list of all paths.
    Root,
    /// `/api`: the versions of the core group.
    Core,
    /// `/apis`: all other groups.
    Groups,
    /// `/apis/GROUP`: the versions of one group.
    Group(String),
    /// `/api/VERSION`, `/apis/GROUP/VERSION`: the resources of one version.
    Version {
        /// Empty for the core group.
        group: String,
        version: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpenApi {
    /// `/openapi/v2`: one document for all kinds.
    V2,
    /// `/openapi/v3`: the index of documents.
    V3Index,
    /// `/openapi/v3/api/VERSION` and `/openapi/v3/apis/GROUP/VERSION`: one group and version.
    V3 {
        /// Empty for the core group.
        group: String,
        version: String,
    },
}

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
    /// The segment after the name, such as `status`.
    pub(super) subresource: Option<String>,
}

/// A request refused before any lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The status of the response.
    pub(super) status: Status,
    /// The methods that the path allows, for a 405.
    pub(super) allow: &'static str,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, allow: "" }
    }
}

/// Methods of a collection.
pub(super) const COLLECTION_METHODS: &str = "GET, HEAD, POST, DELETE, OPTIONS";
/// Methods of a collection that cannot be deleted as a whole.
pub(super) const ONE_BY_ONE_METHODS: &str = "GET, HEAD, POST, OPTIONS";
/// Methods of an object.
pub(super) const OBJECT_METHODS: &str = "GET, HEAD, PUT, PATCH, DELETE, OPTIONS";
/// Methods of a subresource.
pub(super) const SUBRESOURCE_METHODS: &str = "GET, HEAD, PUT, PATCH, OPTIONS";
/// Methods of the subresource `/finalize`.
pub(super) const FINALIZE_METHODS: &str = "PUT, OPTIONS";
/// Methods of a read-only path.
pub(super) const READ_METHODS: &str = "GET, HEAD, OPTIONS";

impl Verb {
    pub(super) const ALL: [Self; 8] = [
        Self::Create,
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Update,
        Self::Patch,
        Self::Delete,
        Self::DeleteCollection,
    ];

    /// Returns the verb as Kubernetes writes it in rules and messages.
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

    /// Returns whether the verb changes objects.
    #[must_use]
    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

impl Request {
    /// Parses a request line; `path` and `query` are percent-encoded.
    ///
    /// # Errors
    /// 404 for an unknown path, 405 for a method that it does not allow, 400 for an invalid option
    /// or timeout, 414 for a line that is too long.
    pub(super) fn parse(method: &str, path: &str, query: Option<&str>) -> Result<Self, Refusal> {
        let query = query.unwrap_or("");
        if path.len().saturating_add(query.len()) > MAX_URI {
            let status =
                Status::bad_request(format!("the request URI is too long: limit is {MAX_URI} bytes"));
            return Err(Status { code: 414, ..status }.into());
        }
        let segments = split_path(method, path)?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let query = parse_query(query)?;
        let request = Self::of(method, &segments, &query)?;
        // As in Kubernetes, a watch has `timeoutSeconds` only.
        let is_watch = matches!(&request, Self::Objects(request) if request.verb == Verb::Watch);
        if !is_watch {
            check_timeout(&query)?;
        }
        Ok(request)
    }

    fn of(method: &str, segments: &[&str], query: &[(String, String)]) -> Result<Self, Refusal> {
        let request = match segments {
            ["edgesync", "v1", rest @ ..] => return extension(method, rest, query),
            ["api", version, rest @ ..] if !rest.is_empty() => {
                return objects(method, "", version, rest, query);
            }
            ["apis", group, version, plural] if let Some(review) = Review::of(group, version, plural) => {
                return match method {
                    "POST" => Ok(Self::Review(review)),
                    _ => Err(no_such_method("POST")),
                };
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                return objects(method, group, version, rest, query);
            }
            ["version"] => Self::Version,
            ["page", rest @ ..] => Self::Page(rest.join("/")),
            ["metrics"] => Self::Metrics,
            [endpoint @ ("healthz" | "livez" | "readyz"), check @ ..] if check.len() < 2 => {
                Self::Health(health(endpoint, check.first(), query))
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

fn extension(method: &str, rest: &[&str], query: &[(String, String)]) -> Result<Request, Refusal> {
    if rest.is_empty() {
        return Err(Status::no_such_path().into());
    }
    let path = rest.join("/");
    if Route::parse("GET", &path) == Some(Route::Resources) {
        return match method {
            "GET" | "HEAD" => Ok(Request::Resources),
            _ => Err(no_such_method(READ_METHODS)),
        };
    }
    Ok(Request::Extension { method: method.to_owned(), path, query: query.to_vec() })
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
    // The deprecated form of a watch: `/api/v1/watch/…`.
    let (rest, watch_path) = match rest {
        ["watch", rest @ ..] if !rest.is_empty() => (rest, true),
        rest => (rest, false),
    };
    let (namespace, rest) = match rest {
        // Subresources of a Namespace object, not resources inside the namespace.
        ["namespaces", _, "status" | "finalize"] if group.is_empty() => (None, rest),
        ["namespaces", namespace, inner @ ..] if !inner.is_empty() => (Some((*namespace).to_owned()), inner),
        _ => (None, rest),
    };
    let (plural, mut name, subresource) = match rest {
        [plural] => (plural, None, None),
        [plural, name] => (plural, Some(*name), None),
        [plural, name, subresource] => (plural, Some(*name), Some(*subresource)),
        // A subresource with its own path below: `pods/NAME/proxy/…`.
        [plural, _, subresource, ..] => {
            return Err(unserved::refusal(group, plural, subresource)
                .unwrap_or_else(|| Status::no_such_path().into()));
        }
        _ => return Err(Status::no_such_path().into()),
    };
    if let Some(refusal) = subresource.and_then(|subresource| unserved::refusal(group, plural, subresource)) {
        return Err(refusal);
    }
    let (mut options, mut watch) = options(query)?;
    if watch_path {
        if method != "GET" || subresource.is_some() {
            return Err(no_such_method("GET"));
        }
        watch = true;
    }
    // A watch of one object is a watch of the collection with its name selected.
    if let Some(only) = name.filter(|_| watch && method == "GET" && subresource.is_none()) {
        options.fields.select_name(only);
        name = None;
    }
    let allowed = match subresource {
        Some("finalize") if group.is_empty() && *plural == "namespaces" => FINALIZE_METHODS,
        _ => methods(name.is_some(), subresource.is_some()),
    };
    let verb = match (method, name.is_some()) {
        ("GET", false) if watch => Verb::Watch,
        ("GET" | "HEAD", false) => Verb::List,
        ("POST", false) => Verb::Create,
        ("DELETE", false) => Verb::DeleteCollection,
        ("GET" | "HEAD", true) => Verb::Get,
        ("PUT", true) => Verb::Update,
        ("PATCH", true) => Verb::Patch,
        ("DELETE", true) if subresource.is_none() => Verb::Delete,
        ("OPTIONS", _) => return Ok(Request::Methods(allowed)),
        _ => return Err(no_such_method(allowed)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_fuzz::fuzz;
    use edgesync_object::encoding::percent;
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

    /// Verb, group/version, namespace, plural, name and subresource on one line.
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
    fn paths_of_every_form_are_parsed() {
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
            ("PUT", "/api/v1/namespaces/a/finalize", "update /v1 - namespaces a finalize"),
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
        assert_eq!(options.fields, "metadata.name=x".parse().unwrap());
        assert_eq!(options.continue_token, "t=");
        assert!(options.pretty);
        assert_eq!(resource("GET", "/api/v1/pods?limit=0").2, Options::default());
        for timeout in ["", "0", "-0", "30s", "1m30s", "1.5h", "500ms", "7%C2%B5s", "7%CE%BCs"] {
            assert_eq!(resource("GET", &format!("/api/v1/pods?timeout={timeout}")).2, Options::default());
        }
    }

    /// Clients send their own timeout with every request, not only with those on objects.
    #[test]
    fn timeout_is_a_duration_on_every_path_but_a_watch() {
        for path in [
            "/version",
            "/healthz",
            "/apis",
            "/api/v1",
            "/openapi/v3",
            "/metrics",
            "/edgesync/v1/resources",
            "/edgesync/v1/nodes",
            "/api/v1/namespaces/a/pods/p",
        ] {
            let refused = parse("GET", &format!("{path}?timeout=invalid")).unwrap_err().status;
            assert_eq!(refused.code, 400, "{path}");
            let message = &refused.message;
            assert!(message.contains("invalid timeout specified in the request URL"), "{path}: {message}");
            assert!(parse("GET", &format!("{path}?timeout=3m")).is_ok(), "{path}");
        }
        assert_eq!(line("GET", "/api/v1/pods?watch=1&timeout=invalid"), "watch /v1 - pods - -");
    }

    #[test]
    fn paths_outside_of_groups_are_no_resources() {
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
    fn discovery_paths_are_parsed() {
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
    fn deprecated_watch_path_selects_the_name() {
        for uri in ["/api/v1/watch/namespaces/a/pods/p", "/api/v1/namespaces/a/pods/p?watch"] {
            let (verb, path, options) = resource("GET", uri);
            assert_eq!((verb, path.name), (Verb::Watch, None), "{uri}");
            assert_eq!(options.fields, "metadata.name=p".parse().unwrap(), "{uri}");
        }
        assert_eq!(line("GET", "/apis/apps/v1/watch/deployments"), "watch apps/v1 - deployments - -");
    }

    #[test]
    fn refusals_give_their_reason() {
        assert_eq!(code("GET", "/nowhere"), 404);
        assert_eq!(code("GET", "/api/v1/a/b/c/d"), 404);
        assert_eq!(code("GET", "/openapi/v4"), 404);
        assert_eq!(code("GET", "/apis/apps/v1/namespaces/a/b/c/d/e"), 404);
        assert_eq!(code("GET", "/edgesync/v1"), 404);
        assert_eq!(code("POST", "/healthz"), 405);
        assert_eq!(code("POST", "/api"), 405);
        assert_eq!(parse("OPTIONS", "/api/v1/pods"), Ok(Request::Methods(COLLECTION_METHODS)));
        assert_eq!(parse("PUT", "/api/v1/pods").unwrap_err().allow, COLLECTION_METHODS);
        assert_eq!(parse("OPTIONS", "/api/v1/namespaces/a/finalize"), Ok(Request::Methods(FINALIZE_METHODS)));
        assert_eq!(parse("POST", "/api/v1/namespaces/a/finalize").unwrap_err().allow, FINALIZE_METHODS);
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
            "timeout=nonsense",
            "timeout=30",
            "timeout=9999999999h",
            "gracePeriodSeconds=x",
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
    fn segments_cannot_escape_their_position() {
        for bad in ["..", ".", "%2e%2e", "a%2fb", "a%252fb", "%00", "%0a"] {
            assert_eq!(code("GET", &format!("/api/v1/namespaces/x/pods/{bad}")), 400, "{bad}");
        }
    }

    #[test]
    fn request_lines_never_panic_fuzzed() {
        let samples = [
            "GET /api/v1/namespaces/default/pods/p/status?fieldManager=a&dryRun=All",
            "GET /apis/apps/v1/deployments?watch=true&labelSelector=a%20in%20(b,c)&resourceVersion=5&allowWatchBookmarks=1",
            "DELETE /api/v1/namespaces/x/configmaps?gracePeriodSeconds=0&propagationPolicy=Foreground&limit=10&continue=abc",
            "POST /edgesync/v1/nodes/a%2Fb/revoke?x=1&x=2",
            "GET /openapi/v3/apis/apps/v1?hash=A",
        ];
        fuzz("request-line", &samples.map(|line| line.as_bytes().to_vec()), |bytes| {
            let line = String::from_utf8_lossy(bytes);
            let (method, uri) = line.split_once(' ').unwrap_or(("GET", &line));
            let (path, query) = uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
            let _ = Request::parse(method, path, query);
        });
    }

    #[test]
    fn empty_segments_are_not_found_and_trailing_slashes_only_read() {
        for empty in ["//api/v1/pods", "/api//v1/pods", "/api/v1/namespaces//pods", "/api/v1/pods//", "//"] {
            for method in ["GET", "POST", "DELETE", "OPTIONS"] {
                assert_eq!(code(method, empty), 404, "{method} {empty}");
            }
        }
        assert_eq!(line("GET", "/api/v1/pods/"), "list /v1 - pods - -");
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            assert_eq!(code(method, "/api/v1/namespaces/a/pods/"), 404, "{method}");
        }
        assert_eq!(code("POST", "/edgesync/v1/nodes/"), 404);
    }

    proptest! {
        #[test]
        fn any_request_line_is_parsed_without_panic(method in ".{0,8}", path in ".{0,80}", query in ".{0,80}") {
            let _ = Request::parse(&method, &path, Some(&query));
            let _ = Request::parse("GET", &format!("/api/v1/{path}"), Some(&query));
            let _ = Request::parse("GET", &format!("/apis/{path}"), Some(&format!("limit={query}")));
        }

        #[test]
        fn encoded_names_round_trip(name in "[^/%\\p{C}]{1,40}") {
            prop_assume!(name != "." && name != "..");
            let uri = format!("/api/v1/namespaces/{0}/pods/{0}?continue={0}", percent(&name));
            let (_, path, options) = resource("GET", &uri);
            prop_assert_eq!(path.namespace.as_deref(), Some(name.as_str()));
            prop_assert_eq!(path.name.as_deref(), Some(name.as_str()));
            prop_assert_eq!(&options.continue_token, &name);
        }
    }
}
